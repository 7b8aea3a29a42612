"""The compiled makespan equals the simulator's event loop."""

from math import inf

import numpy as np
import pytest

from splitnet.planner.engine.makespan import makespan, tasks_of
from splitnet.simulator.event_loop import run_step
from tests.planner.engine.problems import step_problem


@pytest.mark.parametrize("seed", range(12))
def test_makespan_equals_the_event_loop(seed: int) -> None:
    """Random placements of random steps: equal to 1e-12; infinite above the limit."""
    problem = step_problem(12 + seed, seed, gpus=1 + seed % 4)
    assert problem.step is not None
    tasks = tasks_of(problem.step, problem.group_of_unit)
    random = np.random.default_rng(seed)
    for _ in range(20):
        place = random.integers(problem.device_count, size=problem.group_count)
        seconds = run_step(problem.step, problem.unit_devices(place)).seconds

        assert makespan(tasks, place, inf) == pytest.approx(seconds, rel=1e-12)
        assert makespan(tasks, place, seconds * 0.999) == inf
        assert makespan(tasks, place, seconds) < inf
