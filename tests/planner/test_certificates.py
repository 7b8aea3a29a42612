"""What every strategy promises for every objective, on thousands of random graphs."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.errors import DeviceError, InfeasibleError
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan
from splitnet.planner.board import Board, Score
from splitnet.planner.planner import OBJECTIVES, plan_graph, score
from splitnet.planner.request import Request
from splitnet.planner.schedule import one_device
from splitnet.planner.steady import STEADY
from splitnet.planner.strategies import STRATEGIES, every_assignment
from splitnet.planner.wishes import resolve
from splitnet.simulator.old_simulate import simulate
from tests.zoo import random_dag

ROUNDING = 1 + 1e-9
BOXES = (
    Cluster.of("2*gpu", "cpu"),
    Cluster.of("2*gpu", "cpu", memory="700 MiB"),
    Cluster.of("gpu", "gpu", "cpu", memory="300 MiB", link="2 GB/s"),
    Cluster(
        (
            Device.of("gpu:0", memory="400 MiB", speed="20 TFLOP/s"),
            Device.of("gpu:1", memory="250 MiB", speed="5 TFLOP/s"),
            Device.of("cpu:0", memory="1 GiB"),
        ),
        (
            Link("*", "*", 1e10, 1e-5),
            Link("gpu:0", "gpu:1", 5e10, 2e-6),
            Link("gpu:1", "cpu:0", 1e9, 1e-4),
        ),
    ),
)
EXACT = ("auto", "exhaustive")
NAMES = ("auto", *STRATEGIES)


def wished(seed: int) -> tuple[Graph, Cluster]:
    """A random graph of 2 to 6 parts with pins, near, apart; and a machine for it."""
    draw = random.Random(seed)
    graph = random_dag(seed, draw.randint(2, 6), pinned=draw.random() < 0.6)
    parts = list(graph.parts)
    if len(parts) > 2 and draw.random() < 0.3:
        a, b = draw.sample(range(1, len(parts)), 2)
        parts[b] = replace(parts[b], apart=(parts[a].name,))
    return replace(graph, parts=tuple(parts)), draw.choice(BOXES)


def judging_board(graph: Graph, box: Cluster, objective: str) -> Board:
    """The board whose exact judge counts the objective, first wishes only."""
    request = Request(graph, box, objective=objective)
    groups = request.resolve()[1]
    board = request.board(groups)
    if objective in STEADY:
        board = replace(board, worth=request.steady(groups).worth(None))
    return board


def check_promises(plan: Plan, graph: Graph, box: Cluster) -> None:
    """Complete, wishes kept, memory kept, and worth what an independent count says."""
    assert list(plan.device_of) == [p.name for p in graph.parts]
    for group in resolve(graph, box, whole_lists=True)[1]:
        assert len({plan.device_of[part] for part in group.parts}) == 1
        assert plan.device_of[group.parts[0]] in group.allowed
    for part in graph.parts:
        for other in part.apart:
            assert plan.device_of[part.name] != plan.device_of[other]
    for device in box:
        assert plan.memory[device.name].total <= device.memory_bytes
    assert 0 <= plan.bound <= plan.value
    again = score(graph, box, plan.device_of, objective=plan.objective)
    assert again.value == plan.value
    if plan.objective == "latency":
        assert plan.value == simulate(plan).seconds


def check_against_all(plan: Plan, board: Board, *, exact: bool) -> None:
    """Between the optimum of all assignments and the best single device."""
    scores = {chosen: board.exact(chosen) for chosen in every_assignment(board)}
    best = min((s for s in scores.values() if s.feasible), default=None)
    if best is None:
        return
    assert plan.bound <= best.value * ROUNDING
    assert plan.value >= best.value / ROUNDING
    if exact:
        assert plan.value <= best.value * ROUNDING
    alone: list[Score] = [
        board.exact(one_device(board, device)) for device in range(len(board.capacity))
    ]
    for single in alone:
        if single.feasible:
            assert plan.value <= single.value * ROUNDING


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", NAMES)
def test_plan_keeps_every_promise(strategy, objective):
    """Every strategy, every objective: nothing broken, nothing misjudged."""

    @settings(
        max_examples=20 if strategy in ("auto", "program", "exhaustive") else 60,
        deadline=None,
        derandomize=True,
    )
    @given(st.integers(0, 100_000))
    def promise(seed: int) -> None:
        graph, box = wished(seed)
        try:
            plan = plan_graph(
                graph, box, objective=objective, strategy=strategy, time_limit=1.0
            )
        except (DeviceError, InfeasibleError):
            return
        check_promises(plan, graph, box)
        check_against_all(
            plan, judging_board(graph, box, objective), exact=strategy in EXACT
        )

    promise()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("strategy", NAMES)
def test_plan_does_not_hang_on_names(strategy, objective):
    """Renaming every part and call changes no decision and no bound."""

    @settings(max_examples=6, deadline=None, derandomize=True)
    @given(st.integers(0, 100_000))
    def same(seed: int) -> None:
        graph, box = wished(seed)
        options = {"objective": objective, "strategy": strategy, "time_limit": 1.0}
        try:
            plan = plan_graph(graph, box, **options)
        except (DeviceError, InfeasibleError) as error:
            with pytest.raises(type(error)):
                plan_graph(renamed(graph), box, **options)
            return
        other = plan_graph(renamed(graph), box, **options)

        assert list(plan.device_of.values()) == list(other.device_of.values())
        assert (plan.value, plan.bound) == (other.value, other.bound)

    same()


def renamed(graph: Graph) -> Graph:
    """The same graph with every name changed, so that their order changes too."""
    names = [p.name for p in graph.parts] + [c.name for c in graph.calls]
    new = {n: f"n{999 - i}" for i, n in enumerate(dict.fromkeys(names))}
    return replace(
        graph,
        calls=tuple(
            replace(c, name=new[c.name], part=new[c.part]) for c in graph.calls
        ),
        tensors=tuple(
            replace(t, source=new[t.source], target=new[t.target])
            for t in graph.tensors
        ),
        parts=tuple(
            replace(
                p,
                name=new[p.name],
                near=tuple(new[n] for n in p.near),
                apart=tuple(new[n] for n in p.apart),
            )
            for p in graph.parts
        ),
        outputs=tuple(new[n] for n in graph.outputs),
    )
