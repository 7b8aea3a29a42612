"""The compiled search: one problem, one engine, several objectives.

Importing this package is light; numba is imported when a problem is too large for the
exhaustive search.
"""

from splitnet.planner.engine.solve import OBJECTIVES, Solution, solve, warm_up

__all__ = ["OBJECTIVES", "Solution", "solve", "warm_up"]
