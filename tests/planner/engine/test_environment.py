"""The engine where it is installed, interrupted, or not compiled at all."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from splitnet.planner.engine.load_graph import cut_size
from splitnet.planner.engine.solve import OBJECTIVES, solve, value_of
from tests.planner.engine.problems import random_loads, step_problem

WITHOUT_FOLDERS = """
import tempfile
def refused(**_): raise OSError("read-only file system")
tempfile.TemporaryFile = refused
from splitnet.planner.engine import compiler
assert compiler._CACHE is None
doubled = compiler.entry(lambda x: 2 * x)
assert doubled(21) == 42 and not compiler.is_compiled("anneal_step")
"""

INTERPRETED = """
import os
os.environ["NUMBA_DISABLE_JIT"] = "1"
from tests.planner.engine.problems import step_problem
from splitnet.planner.engine.solve import OBJECTIVES, solve
for objective in OBJECTIVES:
    for contiguity in ("free", "convex", "pipeline"):
        problem = step_problem(45, 4)
        given = {"contiguity": contiguity, "effort": 1500, "time_limit": 1}
        found = solve(problem, objective=objective, **given)
        assert found.bound <= found.value, (objective, contiguity)
"""

SMALL = """
import sys
from tests.planner.engine.problems import step_problem
from splitnet.planner.engine.solve import OBJECTIVES, solve
for objective in OBJECTIVES:
    found = solve(step_problem(7, 2), objective=objective, time_limit=60)
    assert found.algorithm == "branch and bound" and found.bound == found.value
assert "numba" not in sys.modules
"""

CHAIN = """
import sys
from splitnet.core.cluster import Cluster
from splitnet.planner.planner import find_plan
from tests.planner.engine.problems import chain_graph
box = Cluster.of("2*gpu")
for calls in (20, 40):
    plan = find_plan(chain_graph(calls), box, regroup=True, training=False)
    assert plan.strategy == "comparison with the bound"; assert not plan.transfers
assert "numba" not in sys.modules
"""


@pytest.mark.parametrize("code", [WITHOUT_FOLDERS, INTERPRETED, SMALL, CHAIN])
def test_engine_works_where_it_is(code):
    """Without a folder for machine code, interpreted, or without numba.

    Read-only folders: compiled in memory. Eight calls: proven optimal. Layers in a row
    that one device has room for: planned by comparison with the bound.
    """
    environment = os.environ | {"HOME": "/nonexistent", "PYTHONPATH": os.getcwd()}
    environment.pop("XDG_CACHE_HOME", None)

    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_ctrl_c_ends_the_compiled_search(objective):
    """An interrupt during a search of a minute is raised within a second.

    It is repeated each second: Python drops an exception that is raised while a
    callback from C runs, such as those of loading compiled code.
    """
    problem = step_problem(60, 1)
    solve(problem, objective=objective, effort=100_000)  # loads the compiled code

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(problem, objective=objective, time_limit=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("seed", range(5))
def test_random_problems_break_no_constraint(seed):
    """Ten problems a seed, objectives and sets in turn: the value is the evaluator's.

    The cut penalty is a fraction of each cut, so that it is in use as well.
    """
    random = np.random.default_rng(seed)
    for number in range(10):
        objective = OBJECTIVES[number % 3]
        contiguity = ("free", "convex", "pipeline")[(number + seed) % 3]
        groups, penalty = int(random.integers(15, 45)), 0.01 * (number % 2)
        make = random_loads if objective == "throughput" and seed % 2 else step_problem
        problem = make(groups, seed * 10 + number, cut_penalty=penalty)

        found = solve(
            problem,
            objective=objective,
            contiguity=contiguity,
            effort=5_000,
            time_limit=1,
            seed=seed,
        )

        value = value_of(problem, objective, found.assignment, contiguity)
        assert found.value == value
        assert found.bound <= found.value


def test_cut_penalty_holds_for_every_objective():
    for objective in OBJECTIVES:
        free, dear = (
            solve(
                step_problem(30, 5, cut_penalty=penalty),
                objective=objective,
                effort=100_000,
            )
            for penalty in (0.0, 0.2)
        )
        graph = step_problem(30, 5).graph
        cuts = [cut_size(graph, one.assignment) for one in (free, dear)]
        assert cuts[1] < cuts[0]
