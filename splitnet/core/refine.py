"""Local search from a good start: move one group, swap two, kick, and start over."""

import random
from collections.abc import Iterator
from time import monotonic

from splitnet.core.board import Assignment, Board, Score

__all__ = ["refine"]

_UNIT_PLAYS = 150_000
"""Units that the quick judge may play in all: about a second."""

_PLAYS_PER_GROUP = 60
"""Judgements per group that has a choice: enough for a few restarts."""


def refine(
    board: Board, start: Assignment, draw: random.Random, deadline: float
) -> Iterator[Assignment]:
    """Yield ever better assignments by the quick judge; the exact judge has the last word.

    First-improvement hill climbing over single moves and swaps, restarted from the best
    with a few random moves (iterated local search, Lourenco et al., 2003). The number
    of judgements depends on the size alone.
    """
    free = board.free_groups
    if not free:
        return
    most = max(20, _UNIT_PLAYS // max(1, board.units.count))
    budget = min(most, 20 + _PLAYS_PER_GROUP * len(free))
    known: dict[Assignment, Score] = {}
    best, best_score = start, board.quick(start)
    here, here_score = best, best_score
    stale = 0
    for _ in range(budget):
        if monotonic() > deadline:
            return
        moved = _neighbour(board, here, free, draw)
        if moved not in known:
            known[moved] = board.quick(moved)
        score = known[moved]
        if score <= here_score:
            stale = 0 if score < here_score else stale + 1
            here, here_score = moved, score
            if score < best_score:
                best, best_score = moved, score
                yield best
        else:
            stale += 1
        if stale > 4 * len(free) + 20:
            here, here_score = _kick(board, best, free, draw)
            stale = 0


def _neighbour(
    board: Board, chosen: Assignment, free: tuple[int, ...], draw: random.Random
) -> Assignment:
    """Move one group, or exchange the devices of two."""
    moved = list(chosen)
    group = draw.choice(free)
    other = draw.choice(free)
    swappable = (
        chosen[group] != chosen[other]
        and chosen[group] in board.allowed[other]
        and chosen[other] in board.allowed[group]
    )
    if swappable and draw.random() < 0.3:
        moved[group], moved[other] = chosen[other], chosen[group]
        return tuple(moved)
    choices = [d for d in board.allowed[group] if d != chosen[group]]
    moved[group] = draw.choice(choices)
    return tuple(moved)


def _kick(
    board: Board, chosen: Assignment, free: tuple[int, ...], draw: random.Random
) -> tuple[Assignment, Score]:
    moved = list(chosen)
    for _ in range(max(2, len(free) // 10)):
        group = draw.choice(free)
        moved[group] = draw.choice(board.allowed[group])
    kicked = tuple(moved)
    return kicked, board.quick(kicked)
