"""Certificates for every plan the portfolio returns."""

import dataclasses
import time
from collections.abc import Sequence
from math import inf

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from splitnet.core.errors import InfeasibleError
from splitnet.planner.search import Problem, Progress, Result, max_load, search
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.latency import call_latency
from splitnet.planner.search.portfolio import CONTIGUITIES
from splitnet.planner.search.problem import Device, check

from .problems import convex_by_paths, feasible_plans, problems, slow_loads

MODES = [("throughput", c) for c in CONTIGUITIES] + [("call_latency", "free")]
quick = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def run(problem: Problem, objective: str, contiguity: str, steps: int = 3000) -> Result:
    """Search with a budget of steps; skip what cannot be placed."""
    try:
        return search(problem, objective, contiguity, iterations=steps)
    except InfeasibleError:
        assume(False)
        raise


def value_of(problem: Problem, objective: str, plan: Sequence[int]) -> float:
    """Recompute a plan's value."""
    if objective == "throughput":
        return max(slow_loads(problem, plan))
    return call_latency(problem, plan)


@pytest.mark.parametrize(("objective", "contiguity"), MODES)
@given(data=st.data())
@quick
def test_plan_is_complete_and_costs_what_it_says(
    objective: str, contiguity: str, data: st.DataObject
) -> None:
    """A plan keeps pins and memory, and its value survives recomputation."""
    problem = data.draw(problems(max_nodes=24, kinds=3))
    result = run(problem, objective, contiguity)

    assert check(problem, result.assignment) == []
    real = value_of(problem, objective, result.assignment)
    assert result.value == pytest.approx(real, rel=1e-9, abs=1e-9)
    assert result.bound <= result.value + 1e-9
    if contiguity != "free":
        assert convex_by_paths(problem, result.assignment)


@pytest.mark.parametrize(("objective", "contiguity"), MODES)
@given(data=st.data())
@quick
def test_plan_is_never_worse_than_one_device(
    objective: str, contiguity: str, data: st.DataObject
) -> None:
    """Every feasible single device is a plan the search has seen."""
    problem = data.draw(problems(max_nodes=24, kinds=3))
    result = run(problem, objective, contiguity)

    for device in range(len(problem.devices)):
        plan = [device] * problem.group_count
        if not check(problem, plan):
            assert result.value <= value_of(problem, objective, plan) + 1e-9


@pytest.mark.parametrize(("objective", "contiguity"), MODES)
@given(data=st.data())
@quick
def test_small_problems_are_solved_exactly(
    objective: str, contiguity: str, data: st.DataObject
) -> None:
    """Up to six groups the value equals exhaustion over all plans."""
    problem = data.draw(problems(max_nodes=6, kinds=3))
    values = []
    for plan in feasible_plans(problem):
        if contiguity == "convex" and not convex_by_paths(problem, plan):
            continue
        if contiguity == "pipeline" and not ordered(problem, plan):
            continue
        values.append(value_of(problem, objective, plan))
    assume(values)
    result = run(problem, objective, contiguity, steps=400_000)

    assert result.value == pytest.approx(min(values), rel=1e-9, abs=1e-9)
    assert result.bound <= min(values) + 1e-9


def ordered(problem: Problem, plan: Sequence[int]) -> bool:
    """Whether repeatedly removing devices without incoming edges removes them all."""
    edges = {(plan[a], plan[b]) for a, b in problem.forward if plan[a] != plan[b]}
    left = set(plan)
    while left:
        free = {d for d in left if not any(b == d and a in left for a, b in edges)}
        if not free:
            return False
        left -= free
    return True


def three_boxes(memory: float, devices: int, contiguity: str = "free") -> Result:
    """Place a chain of three groups of 60 bytes."""
    problem = build_problem(
        ["a", "b", "c"],
        seconds=[(1.0,)] * 3,
        size_bytes=[60.0] * 3,
        edges=[(0, 1), (1, 2)],
        transfer_seconds=[(0.1,)] * 3,
        devices=[Device(f"gpu:{index}", 0, memory) for index in range(devices)],
    )
    return search(problem, contiguity=contiguity, iterations=2000)


@pytest.mark.parametrize("contiguity", CONTIGUITIES)
def test_what_does_not_pack_says_what_would_help(contiguity: str) -> None:
    """Either change that the message names is enough, and nothing less is."""
    with pytest.raises(InfeasibleError) as caught:
        three_boxes(100.0, 2, contiguity)
    text = str(caught.value)

    assert "needs 180 bytes in all, 60 at once; gpu:0 has 100" in text
    assert "try 120 bytes of memory there" in text
    assert "1 more device like gpu:0" in text
    assert three_boxes(120.0, 2, contiguity).value > 0
    assert three_boxes(100.0, 3, contiguity).value > 0
    with pytest.raises(InfeasibleError):
        three_boxes(119.0, 2, contiguity)


def test_a_pipeline_that_cannot_be_is_told_of_other_plans() -> None:
    """Where only the contiguity is in the way, that is what to change."""
    problem = build_problem(
        ["a", "b", "c"],
        seconds=[(1.0,)] * 3,
        size_bytes=[50.0, 100.0, 50.0],
        edges=[(0, 1), (1, 2)],
        transfer_seconds=[(0.1,)] * 3,
        devices=[Device(f"gpu:{index}", 0, 100.0) for index in range(2)],
    )

    with pytest.raises(
        InfeasibleError, match="is 'pipeline'.*\n.*\n.*contiguity 'free'"
    ):
        search(problem, contiguity="pipeline", iterations=2000)
    assert search(problem, iterations=2000).value > 0


@given(problem=problems(max_nodes=16), seed=st.integers(0, 5))
@quick
def test_same_seed_and_steps_give_the_same_plan(problem: Problem, seed: int) -> None:
    """A budget of steps reads no clock."""
    run(problem, "throughput", "free")
    first, second = (
        search(problem, iterations=3000, seed=seed).assignment for _ in range(2)
    )

    assert first == second


@given(problem=problems(max_nodes=16))
@quick
def test_names_decide_nothing(problem: Problem) -> None:
    """Renaming groups and devices leaves every decision as it was."""
    plain = run(problem, "throughput", "free")
    renamed = dataclasses.replace(
        problem,
        names=tuple(name[::-1] + "?" for name in problem.names),
        devices=tuple(
            dataclasses.replace(device, name=f"x{-index}")
            for index, device in enumerate(problem.devices)
        ),
    )

    assert search(renamed, iterations=3000).assignment == plain.assignment


@given(problem=problems(max_nodes=6), data=st.data())
@quick
def test_declaration_order_does_not_change_the_value(
    problem: Problem, data: st.DataObject
) -> None:
    """Exact answers survive listing the devices in another order."""
    plain = run(problem, "throughput", "free", steps=400_000)
    order = data.draw(st.permutations(range(len(problem.devices))))
    place = {old: new for new, old in enumerate(order)}
    shuffled = dataclasses.replace(
        problem,
        devices=tuple(problem.devices[old] for old in order),
        allowed=tuple(tuple(sorted(place[d] for d in row)) for row in problem.allowed),
    )

    other = search(shuffled, iterations=400_000)
    assert other.value == pytest.approx(plain.value)


def wide_problem(count: int, devices: int = 4) -> Problem:
    """Many independent chains on identical devices."""
    return build_problem(
        [str(i) for i in range(count)],
        seconds=[(1.0 + i % 7,) for i in range(count)],
        size_bytes=[1.0] * count,
        edges=[(i, i + 1) for i in range(count - 1) if i % 5],
        transfer_seconds=[(0.3 + i % 3,) for i in range(count)],
        devices=[Device(f"gpu:{i}", 0) for i in range(devices)],
    )


@pytest.mark.parametrize(("objective", "contiguity"), MODES)
def test_deadline_is_kept(objective: str, contiguity: str) -> None:
    """The search stops within a tenth of its limit, and some for a slow machine.

    Counted is its own processor time, of which a busy machine gives it less, not more.
    """
    problem = wide_problem(600)
    began = time.process_time()
    search(problem, objective, contiguity, time_limit=0.5)

    assert time.process_time() - began < 0.55 + 0.5


def test_progress_only_improves() -> None:
    """Values reported on the way fall strictly, and the last one is the result."""
    seen: list[Progress] = []
    result = search(wide_problem(60), iterations=20_000, on_progress=seen.append)

    values = [progress.value for progress in seen]
    assert values == sorted(set(values), reverse=True)
    assert values[-1] == result.value
    assert tuple(seen) == result.history


def test_interrupt_keeps_the_best_plan() -> None:
    """Ctrl-C returns what was found so far."""

    def stop(progress: Progress) -> None:
        if progress.strategy != "single device":
            raise KeyboardInterrupt

    problem = wide_problem(60)
    result = search(problem, time_limit=30.0, on_progress=stop)

    assert check(problem, result.assignment) == []
    assert result.seconds < 10.0


def test_chain_of_equal_blocks_is_cut_evenly() -> None:
    """Eight equal groups without transfers fill four devices with two each."""
    problem = build_problem(
        "abcdefgh",
        seconds=[(1.0,)] * 8,
        size_bytes=[0.0] * 8,
        edges=[(i, i + 1) for i in range(7)],
        transfer_seconds=[(0.0,)] * 8,
        devices=[Device(f"gpu:{i}", 0) for i in range(4)],
    )
    result = search(problem, contiguity="pipeline", time_limit=1.0)

    assert result.value == result.bound == pytest.approx(2.0)
    assert max_load(problem, result.assignment) == pytest.approx(2.0)


def test_unknown_words_are_refused() -> None:
    """A wrong objective names the right ones."""
    with pytest.raises(ValueError, match="must be one of"):
        search(wide_problem(5), "speed")
    with pytest.raises(ValueError, match="must be one of"):
        search(wide_problem(5), contiguity="loose")


def test_no_group_is_a_plan_of_nothing() -> None:
    """An empty graph is placed at no cost."""
    problem = build_problem(
        [],
        seconds=[],
        size_bytes=[],
        edges=[],
        transfer_seconds=[],
        devices=[Device("gpu:0", 0)],
    )
    result = search(problem, time_limit=0.2)

    assert (result.assignment, result.value) == ((), 0.0)


def small(sizes: Sequence[float], rooms: Sequence[float], **rest: object) -> Problem:
    """Independent groups of given sizes on devices of given capacities."""
    count = len(sizes)
    return build_problem(
        [f"layer{i}" for i in range(count)],
        seconds=rest.pop("seconds", [(1.0,)] * count),  # type: ignore[arg-type]
        size_bytes=sizes,
        edges=[],
        transfer_seconds=[(0.0,)] * count,
        devices=[Device(f"gpu:{i}", 0, room) for i, room in enumerate(rooms)],
        **rest,  # type: ignore[arg-type]
    )


def test_a_group_too_large_is_named_with_the_missing_bytes() -> None:
    """One group that fits nowhere says how much is missing."""
    with pytest.raises(InfeasibleError, match=r"'layer1'.*3 bytes are missing"):
        search(small([1.0, 13.0], [10.0, 8.0]))


def test_total_memory_names_the_missing_bytes_and_devices() -> None:
    """All groups together are too large."""
    with pytest.raises(InfeasibleError, match=r"10 bytes are missing.*1 more of the"):
        search(small([10.0, 10.0, 10.0], [10.0, 10.0]))


def test_total_memory_of_pinned_groups_is_seen() -> None:
    """Two groups pinned to one device are too large for it."""
    pins = {0: (0,), 1: (0,)}
    with pytest.raises(InfeasibleError, match=r"on gpu:0.*2 bytes are missing"):
        search(small([6.0, 6.0], [10.0, 10.0], pins=pins))


def test_contradicting_pins_are_named() -> None:
    """A group whose nodes are pinned apart has no device."""
    with pytest.raises(InfeasibleError, match=r"'layer0 \(\+1\)' has pins"):
        search(small([1, 1], [9, 9], pins={0: (0,), 1: (1,)}, together=["x", "x"]))


def test_unsupported_groups_are_named() -> None:
    """No kind of device runs the group."""
    with pytest.raises(InfeasibleError, match="'layer0' is supported on no device"):
        search(small([1.0], [9.0], seconds=[(inf,)]))


def test_no_device_is_named() -> None:
    """An empty machine."""
    with pytest.raises(InfeasibleError, match="there is no device"):
        search(small([1.0], []))


def test_a_packing_that_cannot_work_is_infeasible() -> None:
    """Enough bytes in total, but no way to pack them."""
    with pytest.raises(InfeasibleError, match="1 more device like gpu:0"):
        search(small([6.0, 6.0, 6.0], [10.0, 10.0]), time_limit=0.5)
