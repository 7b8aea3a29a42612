"""The compiled makespan equals the simulator's event loop."""

from math import inf

import numpy as np
import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner import analysis
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.solve import warm_up
from splitnet.planner.engine.tasks import tasks_of
from splitnet.planner.evaluate import score
from tests.planner.engine.problems import calls_problem, step_problem
from tests.zoo import random_dag


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "make", [lambda s: step_problem(12 + s, s, gpus=1 + s % 4), calls_problem]
)
def test_makespan_equals_the_event_loop(make, seed):
    """Placements in runs, long and short: equal to 1e-12; infinite above the limit."""
    problem, draw = make(seed), np.random.default_rng(seed)
    tasks, groups = tasks_of(problem), problem.group_count
    for share in (0.0, 0.02, 0.1, 0.3, 1.0) * 3:
        turns = np.cumsum(draw.random(groups) < share)
        place = draw.integers(problem.device_count, size=groups + 1)[turns]
        seconds, _ = problem.simulated(place)

        assert makespan(tasks, place, inf) == pytest.approx(seconds, rel=1e-12)
        assert makespan(tasks, place, seconds * 0.999) == inf
        assert makespan(tasks, place, seconds) < inf


def test_moves_of_many_parts_are_simulated_by_compiled_code(monkeypatch):
    """They would take ten times as long by the event loop, which finds the same."""
    graph, cluster = random_dag(5, 200), Cluster.of("4*gpu", "cpu")
    plan = score(graph, cluster, {"*": "gpu:1"})
    warm_up("latency")
    with monkeypatch.context() as only:
        only.delattr(analysis, "_interpreted")
        compiled = analysis.heaviest_moves(plan)
    monkeypatch.setattr(analysis, "compiled_step", lambda problem: None)
    monkeypatch.setattr(analysis, "_MOST_SIMULATED", 10**6)

    assert len(compiled) == 50
    assert all(one.estimated for moves in compiled.values() for one in moves)
    assert analysis.heaviest_moves(plan) == compiled
