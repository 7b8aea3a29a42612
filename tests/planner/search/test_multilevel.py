"""What the multilevel search merges, and which plans it breeds from."""

from math import inf
from random import Random

from splitnet.planner.search import Problem
from splitnet.planner.search.coarsen import coarsen
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.elite import Parents
from splitnet.planner.search.problem import Device


def row_of(seconds: list[float], send: list[float]) -> Problem:
    """Make a chain of groups for three equal devices."""
    return build_problem(
        [str(index) for index in range(len(seconds))],
        seconds=[(value,) for value in seconds],
        size_bytes=[0.0] * len(seconds),
        edges=[(index, index + 1) for index in range(len(seconds) - 1)],
        transfer_seconds=[(value,) for value in send],
        devices=[Device(f"gpu:{index}", 0) for index in range(3)],
    )


def test_coarsening_by_weight_leaves_heavy_groups_apart() -> None:
    """Small groups merge before heavy ones, though those have the dearer nets."""
    problem = row_of([8.0, 8.0, 1.0, 1.0, 1.0, 1.0], [1.2, 1.0, 1.0, 1.0, 1.0, 0.0])

    plain = coarsen(problem, 5, Random(0), limit=99.0, noise=0.0)[1]
    weighted = coarsen(problem, 5, Random(0), limit=99.0, noise=0.0, power=0.5)[1]
    thrice = coarsen(problem, 3, Random(0), limit=99.0, noise=0.0, power=0.5)[1]

    assert plain == [0, 0, 1, 2, 3, 4]
    assert weighted[0] != weighted[1]
    assert thrice == [0, 1, 2, 2, 2, 2]


def test_parents_replace_the_plan_most_like_a_better_one() -> None:
    """One family does not fill all places; names of devices make no difference."""
    problem = row_of([1.0] * 4, [1.0] * 4)
    parents = Parents(problem, 2)
    early, late = [0, 1, 1, 1], [0, 0, 0, 1]
    parents.add(5.0, early)
    parents.add(4.0, late)
    parents.add(3.0, [2, 2, 2, 0])
    parents.add(6.0, [0, 0, 1, 1])
    parents.add(inf, [0, 1, 0, 1])

    assert [(row.value, row.plan) for row in parents.rows] == [
        (3.0, [2, 2, 2, 0]),
        (5.0, early),
    ]
