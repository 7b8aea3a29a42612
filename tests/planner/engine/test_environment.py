"""The engine where it is installed, interrupted, or not compiled at all."""

import signal
import time
from itertools import product

import pytest

from splitnet.core.plan import CONTIGUITIES, OBJECTIVES
from splitnet.planner.engine.solve import solve
from splitnet.planner.load_graph import cut_size
from splitnet.planner.problem import single_devices, value_of
from tests.child import python
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

WITHOUT_COMPILER = """
import os, sys
from splitnet.core.cluster import Cluster
from splitnet.core.plan import OBJECTIVES
from splitnet.planner.engine.solve import solve
import splitnet as sn
from tests.planner.engine.problems import step_problem
from tests.zoo import chain
for objective in OBJECTIVES:
    found = solve(step_problem(5, 2), objective=objective, time_limit=60)
    assert found.algorithm == "branch and bound" and found.bound == found.value
for calls in (20, 40):
    graph, box = chain(calls, flops=2e6, out=2**16), Cluster.of("2*gpu")
    plan = sn.plan(graph, box, regroup=True, training=False)
    assert plan.strategy == "comparison with the bound" and not plan.transfers
assert "numba" not in sys.modules
os.environ["NUMBA_DISABLE_JIT"] = "1"
for objective, contiguity in zip(OBJECTIVES, ("free", "convex", "pipeline")):
    problem = step_problem(41, 4, contiguity=contiguity)
    found = solve(problem, objective=objective, effort=500, prove=False)
    assert found.algorithm == "multilevel simulated annealing" and found.feasible
"""
LOADS = (random_loads, "throughput", "pipeline")


@pytest.mark.parametrize("code", [WITHOUT_FOLDERS, WITHOUT_COMPILER])
def test_engine_works_where_it_is(code, monkeypatch):
    """Without a folder for machine code; without numba what is proven otherwise."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    python("-c", code, HOME="/nonexistent")


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_ctrl_c_ends_the_compiled_search(objective):
    """It is repeated: Python drops an exception that a callback from C raises."""
    problem = step_problem(60, 1)
    solve(problem, objective=objective, effort=1, prove=False)  # loads what is compiled

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.3, 0.3)
    began = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            solve(problem, objective=objective, time_limit=60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("make", "objective", "contiguity"),
    [*product([step_problem], OBJECTIVES, CONTIGUITIES), LOADS],
)
def test_a_search_keeps_constraints_and_beats_every_device(make, objective, contiguity):
    """The cut penalty is a fraction of the value for each cut; there are fewer then."""
    how = {"effort": 50_000, "time_limit": 60.0, "prove": False}
    cuts = list[int]()

    def penalised(problem, place):
        value = value_of(problem, objective, place)
        return value * (1 + problem.cut_penalty * cut_size(problem.graph, place))

    for penalty in (0.0, 0.2):
        problem = make(45, 1, cut_penalty=penalty, contiguity=contiguity)
        found = solve(problem, objective=objective, **how)
        alone = min(penalised(problem, place) for place in single_devices(problem))
        assert found.algorithm == "multilevel simulated annealing"
        assert penalised(problem, found.assignment) <= alone
        assert found.value == value_of(problem, objective, found.assignment)
        assert found.feasible
        cuts.append(cut_size(problem.graph, found.assignment))
    assert cuts[1] < cuts[0]
