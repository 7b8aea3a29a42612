"""Several calls per accelerator: what may share one, and that the cut finds them."""

from math import inf
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.planner.search import Problem, build_problem, check, search
from splitnet.planner.search.call_clusters import coarsen_calls
from splitnet.planner.search.call_graph import CallGraph
from splitnet.planner.search.call_sharing import SharedCalls
from splitnet.planner.search.latency import call_latency, calls_of
from splitnet.planner.search.orders import fuse_cycles
from splitnet.planner.search.problem import Device

from .problems import problems

quick = settings(max_examples=150, deadline=None)


def ladder(*, rungs: int, accelerators: int, memory: float = inf) -> Problem:
    """Two lanes of equal nodes; after each node the lanes hear from one another.

    0 -> 2 -> 4 -> ...      and 0 -> 3, 1 -> 2, 2 -> 5, 3 -> 4, ...
    1 -> 3 -> 5 -> ...
    """
    count = 2 * rungs
    edges = [(a, b) for b in range(2, count) for a in (b - b % 2 - 2, b - b % 2 - 1)]
    return build_problem(
        [str(node) for node in range(count)],
        seconds=[(1.0, 50.0)] * count,
        size_bytes=[1.0] * count,
        edges=edges,
        transfer_seconds=[(0.01, 0.0)] * count,
        devices=[Device(f"gpu:{i}", 0, memory) for i in range(accelerators)]
        + [Device("cpu:0", 1, pooled=True)],
    )


def shared(problem: Problem, times: int) -> SharedCalls:
    """The calls of a problem whose groups are nodes."""
    return SharedCalls(problem, problem, list(problem.nodes.group), times)


def test_calls_in_turn_share_accelerators() -> None:
    """Rungs of two calls on four accelerators: each comes back two rungs later."""
    problem = ladder(rungs=4, accelerators=4)
    calls = shared(problem, 2)
    # The pool is device 4, so the second calls of the accelerators are 5 to 8.
    wide = [0, 1, 2, 3, 5, 6, 7, 8]
    folded = calls.fold(wide)
    assert folded is not None
    assert sorted(folded) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert call_latency(problem, folded) == call_latency(calls.wide, wide)


def test_calls_that_hear_at_first_hand_do_not_share() -> None:
    """On two accelerators each call would hear from the one before it there: none."""
    problem = ladder(rungs=2, accelerators=2)
    assert shared(problem, 2).fold([0, 1, 3, 4]) is None


def test_what_leaves_a_call_and_comes_back_is_no_call() -> None:
    """The first rung and the last of one call, and the one between on the processor."""
    problem = ladder(rungs=3, accelerators=2)
    assert shared(problem, 2).fold([3, 3, 3, 3, 2, 2]) is not None
    assert shared(problem, 2).fold([3, 3, 2, 2, 3, 3]) is None


def test_memory_counts_all_calls_of_an_accelerator() -> None:
    """What fits as calls of two nodes does not fit as two calls of one accelerator."""
    wide = [0, 1, 2, 3, 5, 6, 7, 8]
    problem = ladder(rungs=4, accelerators=4, memory=2.0)
    assert shared(problem, 2).fold(wide) is not None
    problem = ladder(rungs=4, accelerators=4, memory=1.0)
    assert shared(problem, 2).fold(wide) is None


@given(problem=problems(max_nodes=10), seed=st.integers(0, 10_000))
@quick
def test_folded_calls_are_the_calls_that_were_meant(
    problem: Problem, seed: int
) -> None:
    """What can be folded keeps pins, and its value where each call could run alone."""
    fused, cluster = fuse_cycles(problem)
    owner = [cluster[group] for group in problem.nodes.group]
    calls = SharedCalls(fused, problem, owner, 3)
    random = Random(seed)
    if not all(calls.wide.allowed):
        return
    wide = [random.choice(row) for row in calls.wide.allowed]
    if check(calls.wide, wide):
        return
    folded = calls.fold(wide)
    if folded is None:
        return
    faults = [fault for fault in check(fused, folded) if "may not use" in fault]
    assert not faults
    meant = [wide[index] for index in cluster]
    real = [folded[index] for index in cluster]
    if not calls.is_plain(wide):
        assert not check(fused, folded)
        assert len(set(calls_of(problem, real))) == len(set(_units(problem, meant)))
    value = call_latency(problem, real)
    assert value < inf or calls.is_plain(wide)


def _units(problem: Problem, plan: list[int]) -> list[tuple[int, int]]:
    pooled = {i for i, d in enumerate(problem.devices) if d.pooled}
    return [
        (-1, node) if plan[group] in pooled else (plan[group], 1)
        for node, group in enumerate(problem.nodes.group)
    ]


@given(seed=st.integers(0, 10_000))
@quick
def test_clusters_fold_as_their_groups_do(seed: int) -> None:
    """What is said of clusters is so for all their groups."""
    random = Random(seed)
    problem = ladder(rungs=6, accelerators=3)
    calls = shared(problem, 3)
    wide = [random.randrange(10) for _ in range(problem.group_count)]
    coarse, owner = coarsen_calls(problem, 6, random, inf, keep=wide)
    graph = CallGraph(coarse, problem, owner)
    plan = [0] * coarse.group_count
    for group, index in enumerate(owner):
        plan[index] = wide[group]
    folds = calls.folder(coarse, owner, graph).folds(plan)
    assert folds == (calls.fold(wide) is not None)


def test_a_search_finds_several_calls_per_accelerator() -> None:
    """Forty rungs on four accelerators: one call each takes more than half as long."""
    problem = ladder(rungs=40, accelerators=4)
    result = search(problem, "call_latency", iterations=20_000, seed=0)
    units = [unit for unit in calls_of(problem, result.assignment) if unit[0] >= 0]
    assert len(set(units)) > 4
    assert result.value < 60.0
