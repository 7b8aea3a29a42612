"""What the search for calls forecasts of a move before it makes it."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitnet.planner.search import Problem
from splitnet.planner.search.call_graph import CallGraph, CallState
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.problem import Device

from .problems import problems
from .test_strategies import quick, some_plan

FASTER = 10.0


def three_in_a_row() -> Problem:
    """Make a chain of three groups for three accelerators and a slower host."""
    return build_problem(
        ["a", "b", "c"],
        seconds=[(2.0, 2.0 * FASTER), (3.0, 3.0 * FASTER), (4.0, 4.0 * FASTER)],
        size_bytes=[0.0] * 3,
        edges=[(0, 1), (1, 2)],
        transfer_seconds=[(0.5, 0.0), (0.25, 0.0), (0.0, 0.0)],
        devices=[
            *(Device(f"gpu:{index}", 0) for index in range(3)),
            Device("cpu:0", 1, pooled=True),
        ],
    )


@pytest.mark.parametrize("target", [0, 2])
def test_a_forecast_is_the_latency_that_a_move_brings(target: int) -> None:
    """From the host to an empty accelerator, or into the call before."""
    problem = three_in_a_row()
    calls = CallState(CallGraph(problem, problem, problem.nodes.group), [0, 3, 1])
    assert calls.latency() == 2.5 + 30.0 + 4.25
    calls.settle()

    change = calls.state.change(1, target)
    forecast = calls.forecast(1, target, *change)
    calls.move(1, target, *change)

    assert calls.latency() == pytest.approx(forecast)


def test_a_forecast_tells_a_circle() -> None:
    """A call that would wait for itself looks longer than before."""
    problem = three_in_a_row()
    calls = CallState(CallGraph(problem, problem, problem.nodes.group), [0, 1, 2])
    value = calls.latency()
    calls.settle()

    assert calls.forecast(2, 0, *calls.state.change(2, 0)) > value


@given(problem=problems(max_nodes=14, kinds=3), seed=st.integers(0, 999))
@quick
def test_the_longest_path_goes_through_a_settled_unit(
    problem: Problem, seed: int
) -> None:
    """No unit ends after the latency, nor has more behind it; one has all of it."""
    plan = some_plan(problem, Random(seed))
    calls = CallState(CallGraph(problem, problem, problem.nodes.group), plan)
    value = calls.latency()
    calls.settle()

    if value < float("inf"):
        starts, stops, rests = calls._start, calls._stop, calls._rest
        assert max(stops, default=0.0) == pytest.approx(value)
        through = [start + rest for start, rest in zip(starts, rests, strict=True)]
        assert max(through, default=0.0) == pytest.approx(value)
