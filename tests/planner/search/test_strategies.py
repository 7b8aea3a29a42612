"""Certificates for every strategy and every bound on its own."""

from collections.abc import Callable, Sequence
from math import inf
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, baselines, bounds, check, loads, max_load
from splitnet.planner.search.anneal import anneal
from splitnet.planner.search.baselines import (
    earliest_finish,
    first_fit,
    longest_first,
    single_devices,
    topological_fill,
)
from splitnet.planner.search.call_graph import CallGraph, CallState
from splitnet.planner.search.chain import chain_partition, interval_loads
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.coarsen import coarsen
from splitnet.planner.search.contract import build_problem, contract
from splitnet.planner.search.flow import FlowNetwork
from splitnet.planner.search.judge import Judge
from splitnet.planner.search.latency import (
    call_latency,
    calls_of,
    is_convex,
    is_pipeline,
)
from splitnet.planner.search.orders import (
    depth_first,
    frontier,
    fuse_cycles,
    is_ordered,
)
from splitnet.planner.search.pipeline import iterated_chains, stages_of
from splitnet.planner.search.problem import Device, device_classes
from splitnet.planner.search.program import integer_program
from splitnet.planner.search.stages import anneal_stages
from splitnet.planner.search.state import Fixed, State

from .problems import convex_by_paths, feasible_plans, problems, slow_loads

quick = settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

BASELINES: dict[str, Callable[[Problem], list[int] | None]] = {
    "longest first": longest_first,
    "first fit": first_fit,
    "topological fill": lambda p: topological_fill(p, depth_first(p)),
    "earliest finish": earliest_finish,
}


def some_plan(problem: Problem, random: Random) -> list[int]:
    """Choose any allowed device for every group, memory ignored."""
    assume(all(problem.allowed))
    return [random.choice(row) for row in problem.allowed]


@pytest.mark.parametrize("name", BASELINES)
@given(problem=problems(max_nodes=14, kinds=3))
@quick
def test_baselines_return_feasible_plans(name: str, problem: Problem) -> None:
    """A baseline gives a complete, fitting plan, or none."""
    plan = BASELINES[name](problem)

    assert plan is None or check(problem, plan) == []


def test_earliest_finish_of_many_equal_groups_is_not_quadratic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ties between all ready groups do not make each look at all others."""
    count, looks = 1000, []
    problem = build_problem(
        [str(node) for node in range(count)],
        seconds=[(1.0,)] * count,
        size_bytes=[1.0] * count,
        edges=[],
        transfer_seconds=[(0.0,)] * count,
        devices=[Device(f"gpu:{index}", 0) for index in range(4)],
    )
    options = baselines._Room.options
    monkeypatch.setattr(
        baselines._Room,
        "options",
        lambda room, group: looks.append(group) or options(room, group),
    )
    plan = earliest_finish(problem)

    assert plan is not None
    assert max_load(problem, plan) == count / 4
    assert len(looks) <= 10 * count


@given(problem=problems(max_nodes=12, kinds=3))
@quick
def test_single_devices_are_exactly_the_feasible_ones(problem: Problem) -> None:
    """Every device that can hold everything is offered, and no other."""
    fine = [
        [d] * problem.group_count
        for d in range(len(problem.devices))
        if not check(problem, [d] * problem.group_count)
    ]

    assert single_devices(problem) == fine


@given(problem=problems(max_nodes=14, kinds=3), seed=st.integers(0, 999))
@quick
def test_loads_equal_those_of_the_original_nodes(problem: Problem, seed: int) -> None:
    """Contraction and merged nets change no load."""
    plan = some_plan(problem, Random(seed))

    assert loads(problem, plan) == pytest.approx(slow_loads(problem, plan))


@given(problem=problems(max_nodes=14, kinds=3), seed=st.integers(0, 999))
@quick
def test_moves_keep_the_loads_exact(problem: Problem, seed: int) -> None:
    """After any sequence of moves the tables equal a fresh count."""
    random = Random(seed)
    state = State(Fixed(problem), some_plan(problem, random))
    for _ in range(30):
        group = random.randrange(problem.group_count)
        target = random.choice(problem.allowed[group])
        if target != state.device[group]:
            state.move(group, target, *state.change(group, target))

    fresh = State(Fixed(problem), state.device)
    assert state.load == pytest.approx(slow_loads(problem, state.device), abs=1e-9)
    assert (state.near, state.count) == (pytest.approx(fresh.near), fresh.count)


@given(problem=problems(max_nodes=14, kinds=3), seed=st.integers(0, 999))
@quick
def test_call_moves_keep_the_latency_exact(problem: Problem, seed: int) -> None:
    """Where every accelerator makes one call, the fast latency is the exact one."""
    random = Random(seed)
    pools = [i for i, d in enumerate(problem.devices) if d.pooled]
    assume(len(pools) <= 1)
    graph = CallGraph(problem, problem, problem.nodes.group)
    calls = CallState(graph, some_plan(problem, random))
    for _ in range(20):
        group = random.randrange(problem.group_count)
        target = random.choice(problem.allowed[group])
        if target != calls.state.device[group]:
            calls.move(group, target, *calls.state.change(group, target))
        plan = calls.state.device
        single = max((call for _, call in calls_of(problem, plan)), default=0)
        fast, exact = calls.latency(), call_latency(problem, plan)
        if all(n <= 1 for d, n in calls_of(problem, plan) if d >= 0) and single >= 0:
            assert fast == pytest.approx(exact, rel=1e-9, abs=1e-9)


@given(problem=problems(max_nodes=14, kinds=3), seed=st.integers(0, 999))
@quick
def test_what_a_call_encloses_cannot_leave_it(problem: Problem, seed: int) -> None:
    """A move that is refused before it is made would have made calls wait in a circle.

    But for clusters of several atoms that go to the host, which are never refused.
    """
    random = Random(seed)
    graph = CallGraph(problem, problem, problem.nodes.group)
    calls = CallState(graph, some_plan(problem, random))
    for group in range(problem.group_count):
        for target in problem.allowed[group]:
            here = calls.state.device[group]
            if target != here and calls.encloses(group, target):
                calls.move(group, target, *calls.state.change(group, target))
                assert calls.latency() == inf
                calls.move(group, here, *calls.state.change(group, here))


@given(
    problem=problems(max_nodes=14, kinds=3),
    seed=st.integers(0, 999),
    power=st.sampled_from((0.0, 0.5)),
)
@quick
def test_contraction_keeps_the_loads(problem: Problem, seed: int, power: float) -> None:
    """A plan of the coarse problem, spread out, has the same loads."""
    random = Random(seed)
    coarse, cluster = coarsen(problem, 3, random, limit=1e9, power=power)
    plan = some_plan(coarse, random)
    spread = [plan[owner] for owner in cluster]

    assert loads(coarse, plan) == pytest.approx(slow_loads(problem, spread))
    assert contract(problem, list(range(problem.group_count))).nets == problem.nets


@given(problem=problems(max_nodes=12, kinds=3), seed=st.integers(0, 999))
@quick
def test_interval_loads_equal_counted_loads(problem: Problem, seed: int) -> None:
    """The table agrees with counting, on any order of the groups."""
    random = Random(seed)
    order = list(range(problem.group_count))
    random.shuffle(order)
    table = interval_loads(problem, order, list(range(len(order) + 1)))
    for device in range(len(problem.devices)):
        for start in range(len(order)):
            for stop in range(start, len(order) + 1):
                inside = order[start:stop]
                other = (device + 1) % (len(problem.devices) + 1)
                plan = [other] * len(order)
                for group in inside:
                    plan[group] = device
                value = table[device][start, stop]
                size = sum(problem.size_bytes[g] for g in inside)
                room = problem.devices[device].capacity_bytes
                if size > room or any(device not in problem.allowed[g] for g in inside):
                    assert value == float("inf")
                else:
                    alone = [device if g in inside else -1 for g in range(len(order))]
                    assert value == pytest.approx(_load_of(problem, alone, device))


def _load_of(problem: Problem, alone: list[int], device: int) -> float:
    """Count the load of one device by hand; -1 marks groups elsewhere."""
    kind = problem.devices[device].kind
    total = sum(problem.seconds[g][kind] for g, d in enumerate(alone) if d == device)
    for net in problem.nets:
        pins = {alone[pin] for pin in (net.producer, *net.consumers)}
        total += net.seconds[kind] if len(pins) > 1 else 0.0
    return total


@given(problem=problems(max_nodes=12, kinds=3), seed=st.integers(0, 999))
@quick
def test_orders_are_topological(problem: Problem, seed: int) -> None:
    """After fusing cycles every order follows the forward edges."""
    fused, cluster = fuse_cycles(problem)

    assert sorted(set(cluster)) == list(range(fused.group_count))
    for order in (
        depth_first(fused),
        depth_first(fused, Random(seed)),
        depth_first(fused, Random(seed), backward=True),
        frontier(fused, Random(seed)),
    ):
        assert is_ordered(fused, order)


@given(problem=problems(max_nodes=10, kinds=3))
@quick
def test_chains_are_feasible_pipelines(problem: Problem) -> None:
    """A cut of a topological order is a pipeline with the value it says."""
    fused, cluster = fuse_cycles(problem)
    found = chain_partition(fused, depth_first(fused))
    assume(found is not None)
    assert found is not None
    plan = [found[1][owner] for owner in cluster]

    assert check(problem, plan) == []
    assert is_pipeline(problem, plan)
    assert is_convex(problem, plan)
    assert max_load(problem, plan) == pytest.approx(found[0], rel=1e-9, abs=1e-9)


@given(problem=problems(max_nodes=10), seed=st.integers(0, 999))
@quick
def test_convexity_equals_reachability(problem: Problem, seed: int) -> None:
    """The linear test agrees with all pairs of paths."""
    plan = some_plan(problem, Random(seed))

    assert is_convex(problem, plan) == convex_by_paths(problem, plan)


@given(problem=problems(max_nodes=12), seed=st.integers(0, 99))
@quick
def test_annealing_keeps_memory_and_never_loses_its_start(
    problem: Problem, seed: int
) -> None:
    """The best plan seen is feasible and at most the start's value."""
    start = first_fit(problem)
    assume(start is not None)
    assert start is not None
    budget = Budget(iterations=2000)
    value, plan = anneal(Fixed(problem), start, budget, Random(seed))
    some = range(0, problem.group_count, 2)
    again = Budget(iterations=2000)
    _, other = anneal(Fixed(problem), start, again, Random(seed), movable=some)

    assert other[1::2] == start[1::2]
    assert check(problem, plan) == []
    assert value == pytest.approx(max_load(problem, plan), rel=1e-9, abs=1e-9)
    assert value <= max_load(problem, start) + 1e-9


@given(problem=problems(max_nodes=6, kinds=3))
@quick
def test_bounds_are_at_most_the_optimum(problem: Problem) -> None:
    """No feasible plan beats a bound."""
    plans = feasible_plans(problem)
    assume(plans)
    best = min(max(slow_loads(problem, plan)) for plan in plans)

    for bound, name in (
        bounds.largest_group_bound(problem),
        bounds.work_bound(problem),
        bounds.cut_bound(problem, Budget(10.0)),
    ):
        assert bound <= best + 1e-9, name


@given(problem=problems(max_nodes=6, kinds=3))
@quick
def test_critical_path_is_at_most_the_best_latency(problem: Problem) -> None:
    """No feasible plan is faster than the longest path."""
    plans = feasible_plans(problem)
    assume(plans)
    best = min(call_latency(problem, plan) for plan in plans)

    assert bounds.critical_path_bound(problem)[0] <= best + 1e-9


def test_minimum_cut_of_a_known_network() -> None:
    """The textbook network with a cut of 5."""
    network = FlowNetwork(4, 3)
    for tail, head, room in ((0, 1, 3.0), (0, 2, 4.0), (1, 2, 2.0), (1, 3, 2.0)):
        network.arc(tail, head, room, 0.0)
    network.arc(2, 3, 3.0, 0.0)
    value, inside = network.minimum_cut(0, limit=Budget(10.0))

    assert value == pytest.approx(5.0)
    assert inside == [0, 1, 2]


@given(problem=problems(max_nodes=8, kinds=3))
@quick
def test_device_classes_are_interchangeable(problem: Problem) -> None:
    """Devices of one class have equal kind and capacity and serve the same groups."""
    classes = device_classes(problem)
    for a, first in enumerate(problem.devices):
        for b, second in enumerate(problem.devices):
            if classes[a] == classes[b]:
                assert first.kind == second.kind
                assert first.capacity_bytes == second.capacity_bytes
                assert all((a in row) == (b in row) for row in problem.allowed)


def test_step_budget_counts_and_ends() -> None:
    """Slices of a step budget share one counter."""
    budget = Budget(iterations=100)
    part = budget.slice(0.5)
    part.spend(50)

    assert part.spent
    assert not budget.spent
    assert budget.left == 50


@given(problem=problems(max_nodes=6, kinds=3))
@settings(quick, max_examples=25)
def test_integer_program_equals_exhaustion(problem: Problem) -> None:
    """HiGHS finds the optimum of all plans, and its bound is below it."""
    plans = feasible_plans(problem)
    assume(plans)
    best = min(max(slow_loads(problem, plan)) for plan in plans)
    _, plan, bound = integer_program(problem, 5.0)

    assert plan is not None
    assert check(problem, plan) == []
    assert max_load(problem, plan) == pytest.approx(best, rel=1e-3, abs=1e-6)
    assert bound <= best * (1 + 1e-6) + 1e-6


@given(problem=problems(max_nodes=16), seed=st.integers(0, 99))
@quick
def test_annealed_stages_stay_a_pipeline(problem: Problem, seed: int) -> None:
    """Moves between stages never turn an edge back, and never lose the start."""
    fused, _ = fuse_cycles(problem)
    found = chain_partition(fused, depth_first(fused))
    assume(found is not None)
    assert found is not None
    stage = stages_of(fused, found[1])
    assert stage is not None
    budget = Budget(iterations=1500)
    fixed = Fixed(fused)
    plan = anneal_stages(fused, fixed, found[1], stage, budget, Random(seed))

    assert stages_of(fused, plan) is not None
    assert check(fused, plan) == []
    assert max_load(fused, plan) <= found[0] + 1e-9


def test_groups_that_no_forward_edge_touches_fill_up_the_stages() -> None:
    """Three stages of 4, and backward groups of 2 that no interval reaches all of."""
    problem = build_problem(
        [*"abc", *"xyz"],
        seconds=[(4.0,)] * 3 + [(2.0,)] * 3,
        size_bytes=[0.0] * 6,
        transfer_seconds=[(0.0,)] * 6,
        edges=[(0, 1), (1, 2), (3, 4), (4, 5)],
        backward=[False] * 3 + [True] * 3,
        devices=[Device(f"gpu:{number}", 0) for number in range(3)],
    )
    start = chain_partition(problem, depth_first(problem))
    found: list[float] = []

    def report(plan: Sequence[int], _: str) -> float:
        assert stages_of(problem, plan) is not None
        found.append(max_load(problem, plan))
        return found[-1]

    assert start is not None
    assert start[0] == 8.0
    budget = Budget(iterations=20_000)
    iterated_chains(problem, [start[1]], budget, Random(0), report)

    assert min(found) == 6.0


def test_large_plans_are_judged_as_small_ones() -> None:
    """The numpy count of a problem of many groups equals the plain one."""
    random = Random(3)
    count = 2500
    problem = build_problem(
        [str(node) for node in range(count)],
        seconds=[(random.random(), 9 * random.random()) for _ in range(count)],
        size_bytes=[1.0] * count,
        edges=[(random.randrange(b), b) for b in range(1, count) for _ in range(2)],
        transfer_seconds=[(random.random(), 0.0) for _ in range(count)],
        devices=[Device("gpu:0", 0), Device("gpu:1", 0), Device("cpu:0", 1)],
    )
    plan = [random.randrange(3) for _ in range(count)]

    assert Judge(problem).max_load(plan) == pytest.approx(max_load(problem, plan))
