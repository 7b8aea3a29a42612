"""Linear and mixed-integer programs, row by row, for HiGHS."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

__all__ = ["Rows", "optimum"]

_MOST_NODES = 300
"""Nodes of the branch and bound: a limit that does not hang on the machine's speed."""

_SAFETY = 1e-6
"""The share taken off a bound for what the solver's tolerances may hide."""


@dataclass
class Rows:
    """A program under construction: columns with bounds, rows with entries."""

    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    row_lower: list[float] = field(default_factory=list)
    row_upper: list[float] = field(default_factory=list)

    def column(self, upper: float = inf, *, whole: bool = False) -> int:
        """A new variable from 0 to `upper`."""
        self.lower.append(0.0)
        self.upper.append(upper)
        self.whole.append(whole)
        return len(self.lower) - 1

    def row(
        self, entries: Sequence[tuple[int, float]], lower: float, upper: float = inf
    ) -> None:
        """A new constraint: lower <= sum of value * variable <= upper."""
        merged: dict[int, float] = {}
        for column, value in entries:
            merged[column] = merged.get(column, 0.0) + value
        self.starts.append(len(self.index))
        self.index += merged.keys()
        self.value += merged.values()
        self.row_lower.append(lower)
        self.row_upper.append(upper)


def optimum(
    rows: Rows, total: int, time_limit: float | None
) -> tuple[float, list[float] | None]:
    """Minimise one variable: a proven lower bound on it, and a solution or None.

    Without `time_limit` the variables are all continuous.
    """
    import highspy
    import numpy as np

    lp = highspy.HighsLp()
    count = len(rows.lower)
    lp.num_col_, lp.num_row_ = count, len(rows.row_lower)
    cost = np.zeros(count)
    cost[total] = 1.0
    lp.col_cost_ = cost
    lp.col_lower_, lp.col_upper_ = np.array(rows.lower), np.array(rows.upper)
    lp.row_lower_, lp.row_upper_ = np.array(rows.row_lower), np.array(rows.row_upper)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.array([*rows.starts, len(rows.index)], dtype=np.int32)
    lp.a_matrix_.index_ = np.array(rows.index, dtype=np.int32)
    lp.a_matrix_.value_ = np.array(rows.value)
    make: Any = highspy.Highs  # untyped upstream
    solver = make()
    solver.setOptionValue("output_flag", False)
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("random_seed", 0)
    if time_limit is not None:
        kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
        lp.integrality_ = [kinds[whole] for whole in rows.whole]
        solver.setOptionValue("mip_max_nodes", _MOST_NODES)
        solver.setOptionValue("time_limit", float(time_limit))
    solver.passModel(lp)
    solver.run()
    info = solver.getInfo()
    solved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    if time_limit is None:
        bound = info.objective_function_value if solved else 0.0
    else:
        bound = info.mip_dual_bound
    if not 0 < bound < inf:
        bound = 0.0
    values = list(solver.getSolution().col_value)
    has_one = len(values) == count and info.primal_solution_status == 2
    return bound * (1 - _SAFETY), values if has_one else None
