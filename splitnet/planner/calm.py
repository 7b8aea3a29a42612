"""Fewer crossings for next to nothing: no part leaves its device for a moment's gain.

The search counts seconds alone. To overlap an update here and a copy there it would
send a chain to and fro between devices, which no one would draw, nor believe.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from splitnet.planner.board import Assignment, Board
from splitnet.planner.chains import chain_cuts

__all__ = ["calmed", "crossings"]


def calmed(
    board: Board,
    chosen: Assignment,
    *,
    cut_penalty: float,
    late: Callable[[], bool],
    others: Iterable[Assignment] = (),
) -> Assignment:
    """The assignment with the fewest crossings found that costs little more.

    First `others` and the best cuts of the running order are tried; then groups
    are moved, one at a time, to where they are read or made. What does not fit stays as
    it is. At most a judgement for each group and device, as often as one helps.

    Args:
        board: The problem, and the judge of each candidate.
        chosen: The best assignment that is known.
        others: Assignments that are known to have few crossings.
        cut_penalty: Share of the value of `chosen` that may be given up; at least 0.
        late: Whether the time is up; what was found until then is returned.
    """
    score = board.exact(chosen)
    limit = score.value * (1 + cut_penalty)
    if not score.feasible:
        return chosen

    def fewer(now: Assignment, other: Assignment) -> bool:
        if late() or crossings(board, other) >= crossings(board, now):
            return False
        judged = board.exact(other)
        return judged.feasible and judged.value <= limit

    now = chosen
    for other in (*others, *_cuts(board, limit)):
        now = other if fewer(now, other) else now
    moved = True
    while moved and not late():
        moved = False
        for group in board.free_groups:
            for device in dict.fromkeys(now):
                other = (*now[:group], device, *now[group + 1 :])
                if device in board.allowed[group] and fewer(now, other):
                    now, moved = other, True
    return now


def _cuts(board: Board, limit: float) -> Iterator[Assignment]:
    """The best cuts; for one that does not fit, those that leave its copies room.

    Where bytes count, only cuts that may be within the limit.
    """
    if board.objective == "memory":
        room = tuple(min(top, int(limit)) for top in board.capacity)
        board = replace(board, capacity=room)
    for cut in chain_cuts(board):
        yield cut
        if not board.exact(cut).feasible:
            passing = board.passing_bytes(cut)
            room = tuple(max(0, c - p) for c, p in zip(board.capacity, passing))
            yield from chain_cuts(replace(board, capacity=room))


def crossings(board: Board, chosen: Assignment) -> int:
    """How often a tensor goes to a device other than the one where it was made."""
    device = board.unit_devices(chosen)
    return sum(
        len({device[reader] for reader in net.readers} - {device[net.source]})
        for net in board.units.nets
    )
