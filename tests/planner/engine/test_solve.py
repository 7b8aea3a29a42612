"""The engine: constraints kept, values true, small optima, compiled simulation."""

from math import inf

import numpy as np
import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.plan import CONTIGUITIES, OBJECTIVES, PlanOptions
from splitnet.planner import analysis
from splitnet.planner.bounds import lower_bound
from splitnet.planner.engine.functions import merged, regrouped
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.solve import solve, warm_up
from splitnet.planner.engine.starts import paths_apart
from splitnet.planner.engine.tasks import tasks_of
from splitnet.planner.evaluate import Evaluator, score
from splitnet.planner.load_graph import cut_size
from splitnet.planner.problem import value_of
from tests.planner.engine import problems as drawn
from tests.zoo import random_dag


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("objective", "contiguity"),
    [*((one, "free") for one in OBJECTIVES), *(("loads", one) for one in CONTIGUITIES)],
)
def test_small_problems_are_optimal(seed, objective, contiguity):
    """The value equals the least of all assignments; no bound is above it."""
    problem = drawn.step_problem(5, seed)
    if objective == "loads":
        how = {"cut_penalty": 0.01 * (seed % 2), "contiguity": contiguity}
        problem, objective = drawn.random_loads(5, seed, **how), "throughput"
    best = drawn.best_of_all(problem, objective)
    found = solve(problem, objective=objective)
    cuts = cut_size(problem.graph, found.assignment)
    assert found.value * (1 + problem.cut_penalty * cuts) == pytest.approx(best)
    assert found.feasible == (best < inf)
    for bound in (found.bound, lower_bound(problem, objective, hard=True)):
        assert bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("scale", [1e-12, 1e18])
def test_bounds_hold_for_figures_of_any_size(scale):
    """HiGHS refuses coefficients below 1e-9 and above 1e15."""
    problem = drawn.random_loads(5, 0)
    size, seconds = problem.graph.size_bytes, problem.graph.seconds
    size[0] = seconds[0, 0] = scale
    bound = lower_bound(problem, "throughput", hard=True)
    assert 0 < bound <= drawn.best_of_all(problem, "throughput")


@pytest.mark.parametrize("seed", range(6))
def test_no_placement_of_calls_is_below_the_bound(seed):
    """Whatever is where, and whichever functions that makes."""
    problem, draw = drawn.calls_problem(seed), np.random.default_rng(seed)
    bound = lower_bound(problem, "latency")
    kinds = problem.graph.allowed.argmax(axis=1)
    for share in (0.0, 0.02, 0.1, 0.3, 1.0) * 4:
        place = draw.integers(3, size=61)[np.cumsum(draw.random(60) < share)]
        place = np.where(problem.graph.allowed[np.arange(60), place], place, kinds)
        assert problem.simulated(place)[0] >= bound


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_search_is_repeated_and_longer_ones_go_on(objective):
    problem = drawn.step_problem(45, 4, gpus=3)
    how = {"objective": objective, "time_limit": 600.0, "seed": 3, "prove": False}
    found = [solve(problem, **how, effort=most) for most in (60_000, 60_000, 4_000)]
    assert not any(one.ended_by_clock for one in found)
    assert found[0].assignment.tolist() == found[1].assignment.tolist()
    assert found[1].value <= found[2].value


def test_paths_are_whole_where_they_may_be():
    """Lanes without edges between them are on a device each at first."""
    names = [f"c{i}" for i in range(60)]
    calls = [Call(n, n, "Dense", output_bytes=9, forward_flops=1e9) for n in names]
    lanes = [Tensor(one, other, bytes=9) for one, other in zip(names, names[3:])]
    graph = Graph("lanes", 1, (*calls,), (*lanes,), (), (*map(Part, names),))
    problem = Evaluator.of(graph, Cluster.of("3*gpu"), PlanOptions()).problem
    place = paths_apart(problem, np.random.default_rng(0)).reshape(20, 3)
    assert len({*place[0]}) == 3
    assert (place == place[0]).all()
    for seed in range(10):  # some may not be on the CPU
        problem = drawn.step_problem(45, seed)
        place = paths_apart(problem, np.random.default_rng(seed))
        assert problem.graph.allowed[np.arange(45), place].all()


def test_clock_ends_a_search_and_says_so():
    problem = drawn.step_problem(24, 1)
    found = solve(problem, objective="latency", effort=10**12, time_limit=0.2)
    assert found.ended_by_clock
    assert found.feasible


@pytest.mark.parametrize("calls", [24, 90])
def test_without_time_the_gpus_are_still_used(calls):
    """No GPU has room for all, four have: the first start is packed onto them."""
    box = Cluster.of("4*gpu", "cpu")
    problem = Evaluator.of(drawn.random_graph(calls, 1), box, PlanOptions()).problem
    room = 0.4 * problem.simulated(np.zeros(calls, np.int64))[1][0]
    problem = drawn.with_room(problem, [room] * 4 + [1e12])
    found = solve(problem, objective="latency", time_limit=1e-4)
    assert found.value < 0.2 * value_of(problem, "latency", np.full(calls, 4))


def test_little_memory_holds_what_is_slow_elsewhere():
    """GPUs have room for half of the calls; the CPU gets what takes it least long."""
    graph, box = drawn.random_graph(400, 2), Cluster.of("2*gpu", "cpu")
    problem = Evaluator.of(graph, box, PlanOptions()).problem
    room = 0.25 * problem.simulated(np.zeros(400, np.int64))[1][0]
    problem = drawn.with_room(problem, [room, room, inf])
    found = solve(problem, objective="latency", effort=200_000, time_limit=100.0)
    assert found.value < 1.6 * found.bound


@pytest.mark.parametrize(
    ("calls", "objective", "broken"),
    [
        *((6, one, what) for one in OBJECTIVES for what in ("memory", "devices")),
        (50, "latency", "memory"),
    ],
)
def test_what_cannot_be_is_infeasible(calls, objective, broken):
    problem = drawn.step_problem(calls, 1)
    if broken == "memory":
        problem = drawn.with_room(problem, [1e6] * 3)
    else:
        problem.graph.allowed[2] = False
    found = solve(problem, objective=objective, effort=20_000)
    assert not found.feasible
    assert found.value == inf
    assert len(found.assignment) == calls


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "make",
    [
        lambda s: drawn.step_problem(12 + s, s, gpus=1 + s % 4, overhead=s % 2 / 3e9),
        drawn.calls_problem,
    ],
)
def test_makespan_equals_the_event_loop(make, seed):
    """Of runs, long and short, to 1e-12; infinite above the limit; peaks estimated."""
    problem, draw = make(seed), np.random.default_rng(seed)
    tasks, groups = tasks_of(problem), problem.group_count
    for share in (0.0, 0.02, 0.1, 0.3, 1.0) * 3:
        turns = np.cumsum(draw.random(groups) < share)
        place = draw.integers(problem.device_count, size=groups + 1)[turns]
        seconds, held = problem.simulated(place)
        assert makespan(tasks, place, inf) == pytest.approx(seconds, rel=1e-12)
        close = 0.1 if problem.functions and seed % 4 != 3 else 0.25  # a training step
        assert tasks.devices.peak.max() == pytest.approx(held.max(), rel=close)
        assert makespan(tasks, place, seconds) < makespan(tasks, place, 0.999 * seconds)


def test_units_are_merged_after_a_run_that_ended_early():
    """Events that it left would be taken for functions."""
    graph, box = random_dag(0, 60), Cluster.of("2*gpu", "cpu")
    problem = Evaluator.of(graph, box, PlanOptions(regroup=True)).problem
    tasks, fresh, groups = tasks_of(problem), tasks_of(problem), problem.group_count
    for seed in range(5):
        draw = np.random.default_rng(seed)
        place = draw.integers(2, size=groups)
        assert makespan(tasks, place, 0.95 * makespan(tasks, place, inf)) == inf
        cluster, on = draw.integers(15, size=groups), draw.integers(2, size=15)
        found, wanted = merged(tasks, cluster), merged(fresh, cluster)
        moved = makespan(regrouped(tasks, cluster), on, inf)
        assert found.units.group.tolist() == wanted.units.group.tolist()
        assert moved == makespan(fresh, on[cluster], inf)


def test_moves_of_many_parts_are_simulated_by_compiled_code(monkeypatch):
    """They would take ten times as long by the event loop, which finds the same."""
    graph, cluster = random_dag(5, 200), Cluster.of("4*gpu", "cpu")
    plan = score(graph, cluster, {"*": "gpu:1"})
    warm_up("latency")
    compiled = analysis.heaviest_moves(plan)
    monkeypatch.setattr(analysis, "compiled_step", lambda problem: None)
    simulated = analysis.heaviest_moves(plan)
    assert 0 < len(simulated) < len(compiled) == 50
    assert all(one.estimated for moves in compiled.values() for one in moves)
    for part, moves in simulated.items():
        for one, other in zip(moves, compiled[part], strict=True):
            assert one.device == other.device
            assert one.transfer_bytes == other.transfer_bytes
            assert one.value == pytest.approx(other.value, rel=1e-12)
