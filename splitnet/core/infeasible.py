"""Say why nothing fits, and the smallest change that would."""

from splitnet.core.board import Assignment, Board
from splitnet.core.errors import InfeasibleError

__all__ = ["explain_infeasible"]


def explain_infeasible(board: Board, chosen: Assignment) -> InfeasibleError:
    """The error for a problem of which `chosen` is the least broken assignment found."""
    return InfeasibleError(f"nothing fits; least broken: {board.exact(chosen)}")
