"""Plans that do not run to and fro: chains in runs, branches side by side, all fits."""

import random

import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner import planner, portfolio, strategies
from splitnet.planner.calm import calmed, crossings
from splitnet.planner.grouping import group
from splitnet.planner.planner import plan_graph
from splitnet.planner.request import Request
from splitnet.planner.steady_search import convex_starts
from tests.zoo import MIB, call, graph_of, random_dag, source, two_towers

SLACK = 0.02


@pytest.fixture
def no_clock(monkeypatch):
    """Searches end by their work alone, however busy the machine is."""
    for module in (planner, portfolio, strategies):
        monkeypatch.setattr(module, "monotonic", lambda: 0.0)


def uneven_chain(seed, *, skips, count=40):
    """Dense calls of unlike cost, one after the other; with `skips`, residual."""
    draw = random.Random(seed)
    names = ["x", *(f"c{i:02}" for i in range(count))]
    calls = [source("x")]
    calls += [
        call(
            name,
            flops=draw.choice([1e9, 5e9, 1e10]),
            out=draw.choice([MIB, 4 * MIB]),
            weights=(f"{name}/w",),
        )
        for name in names[1:]
    ]
    edges = list(zip(names, names[1:]))
    if skips:
        step = draw.randint(4, 7)
        edges += [(names[i], names[i + 3]) for i in range(1, count - 3, step)]
    graph = graph_of("chain", calls, edges, weight_bytes=10 * MIB)
    return group(graph, 24, lambda one: one.forward_flops)


def runs_of(graph, plan):
    """The devices along a chain, each once for every time the chain comes to it."""
    devices = [
        plan.device_of[one.part]
        for one in sorted(graph.calls, key=lambda one: one.name)
        if one.kind != "InputLayer"
    ]
    return [d for i, d in enumerate(devices) if not i or devices[i - 1] != d]


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("skips", [False, True])
def test_a_chain_that_fits_no_device_is_cut_in_runs(seed, skips):
    """Memory forces three devices; the chain comes to each once, and each has room."""
    graph = uneven_chain(seed, skips=skips)
    cluster = Cluster.of("4*gpu", "cpu", memory="720 MiB", link="10 GB/s")

    free = plan_graph(graph, cluster, time_limit=1.0)
    plan = plan_graph(graph, cluster, time_limit=1.0, cut_penalty=SLACK)

    runs = runs_of(graph, plan)
    assert len(runs) == len(set(runs)) == 3
    assert plan.value <= free.value * (1 + SLACK)
    for device in cluster:
        assert plan.memory[device.name].total <= device.memory_bytes


@pytest.mark.usefixtures("no_clock")
@pytest.mark.parametrize("seed", range(3))
def test_a_tight_step_is_no_slower_than_that_of_a_convex_plan(seed):
    """Where memory is short, plans that return to no device are tried as well."""
    graph = uneven_chain(seed, skips=True, count=24)
    cluster = Cluster.of("4*gpu", "cpu", memory="460 MiB", link="1 GB/s")
    request = Request(graph, cluster)
    _, groups = request.resolve()
    counts = [request.steady(groups, one) for one in ("throughput", "memory")]
    board = request.board(groups)
    starts = convex_starts(counts, board, time_limit=0.5, seed=0)
    known = [s.value for s in map(board.exact, starts) if s.feasible]

    plan = plan_graph(graph, cluster, time_limit=0.5, cut_penalty=SLACK)

    assert known
    assert plan.value <= min(known) * (1 + SLACK)
    assert starts == convex_starts(counts, board, time_limit=5.0, seed=0)
    assert convex_starts(counts, board, time_limit=0.05, seed=0) == []


def test_branches_stay_side_by_side():
    """Two heavy towers are worth their crossings, and keep their two devices."""
    graph = two_towers(on=("auto", "auto"))
    plan = plan_graph(graph, Cluster.of("2*gpu", "cpu"), cut_penalty=SLACK)

    assert plan.device_of["see"] != plan.device_of["tell"]


@pytest.mark.parametrize("seed", range(8))
def test_calm_costs_no_more_than_its_slack(seed):
    """Whatever graph and start: no more crossings, and near to the start in time."""
    graph = random_dag(seed, 10)
    request = Request(graph, Cluster.of("3*gpu", "cpu"))
    _, groups = request.resolve()
    board = request.board(groups)
    draw = random.Random(seed)
    start = tuple(draw.choice(devices) for devices in board.allowed)

    calm = calmed(board, start, cut_penalty=SLACK, late=lambda: False)

    assert crossings(board, calm) <= crossings(board, start)
    assert board.exact(calm).value <= board.exact(start).value * (1 + SLACK)
    assert calmed(board, start, cut_penalty=SLACK, late=lambda: True) == start
