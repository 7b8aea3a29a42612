"""Local search from a good start: move a group, swap two, kick, and start over."""

import random
from collections.abc import Callable, Iterator

from splitnet.core.board import Assignment, Board, Score
from splitnet.core.schedule import unit_seconds

__all__ = ["refine"]

_UNIT_PLAYS = 250_000
"""Units that the quick judge may play in all, in 100 judgements at least."""

_PLAYS_PER_GROUP = 60
"""Judgements per group that has a choice: enough for a few restarts."""


def refine(
    board: Board,
    start: Assignment,
    draw: random.Random,
    late: Callable[[], bool],
    *,
    judge: Callable[[Assignment], Score] | None = None,
    plays: int | None = None,
) -> Iterator[Assignment]:
    """Yield ever better assignments by the quick judge; the exact one decides later.

    Moves are moves on `board`; `judge` may look closer than its own quick judge does,
    and then plays `plays` units a time.

    First-improvement hill climbing, restarted from the best with a few random moves
    (iterated local search, Lourenco, Martin, Stuetzle, 2003). Moves go from busy
    devices to idle ones, towards neighbours, or anywhere. The number of judgements
    depends on the size alone; there is no guarantee.
    """
    free = board.free_groups
    if not free:
        return
    moves = _Moves(board, draw)
    judge = judge or board.quick
    most = max(100, _UNIT_PLAYS // max(1, plays or board.units.count))
    budget = min(most, 20 + _PLAYS_PER_GROUP * len(free))
    known: dict[Assignment, Score] = {}

    def judged(chosen: Assignment) -> Score:
        if chosen not in known:
            known[chosen] = judge(chosen)
        return known[chosen]

    best = here = start
    best_score = here_score = judged(start)
    stale = 0
    for _ in range(budget):
        if late():
            return
        moved = moves.near(here)
        score = judged(moved)
        stale = 0 if score < here_score else stale + 1
        if score <= here_score:
            here, here_score = moved, score
            if score < best_score:
                best, best_score = moved, score
                yield best
        if stale > 4 * len(free) + 20:
            here = moves.far(best)
            here_score, stale = judged(here), 0


class _Moves:
    """Random neighbours of an assignment, drawn where they are likely to help."""

    def __init__(self, board: Board, draw: random.Random) -> None:
        self.board, self.draw = board, draw
        self.free = board.free_groups
        times = unit_seconds(board)
        self.seconds = [[0.0] * board.group_count for _ in times]
        for device, row in enumerate(times):
            for unit, group in enumerate(board.group_of_unit):
                self.seconds[device][group] += row[unit]
        self.friends: list[list[int]] = [[] for _ in range(board.group_count)]
        for net in board.units.nets:
            a = board.group_of_unit[net.source]
            for reader in net.readers:
                b = board.group_of_unit[reader]
                if a != b:
                    self.friends[a].append(b)
                    self.friends[b].append(a)

    def near(self, chosen: Assignment) -> Assignment:
        """Move one group, or exchange the devices of two."""
        kind = self.draw.random()
        if kind < 0.4:
            return self._unload(chosen)
        group = self.draw.choice(self.free)
        allowed = self.board.allowed[group]
        if kind < 0.65 and self.friends[group]:
            device = chosen[self.draw.choice(self.friends[group])]
            if device != chosen[group] and device in allowed:
                return self._moved(chosen, group, device)
        if kind < 0.85:
            other = self.draw.choice(self.free)
            a, b = chosen[group], chosen[other]
            if a != b and b in allowed and a in self.board.allowed[other]:
                return self._moved(self._moved(chosen, group, b), other, a)
        choices = [device for device in allowed if device != chosen[group]]
        return self._moved(chosen, group, self.draw.choice(choices))

    def far(self, chosen: Assignment) -> Assignment:
        """Kick: several groups go anywhere."""
        moved = list(chosen)
        for _ in range(max(2, len(self.free) // 10)):
            group = self.draw.choice(self.free)
            moved[group] = self.draw.choice(self.board.allowed[group])
        return tuple(moved)

    def _unload(self, chosen: Assignment) -> Assignment:
        """Take a group from the busiest device to the less busy of two others."""
        loads = [0.0] * len(self.seconds)
        for group, device in enumerate(chosen):
            loads[device] += self.seconds[device][group]
        busiest = max(range(len(loads)), key=loads.__getitem__)
        there = [group for group in self.free if chosen[group] == busiest]
        group = self.draw.choice(there or self.free)
        choices = [d for d in self.board.allowed[group] if d != chosen[group]]
        pair = [self.draw.choice(choices), self.draw.choice(choices)]
        device = min(pair, key=lambda d: loads[d] + self.seconds[d][group])
        return self._moved(chosen, group, device)

    @staticmethod
    def _moved(chosen: Assignment, group: int, device: int) -> Assignment:
        return (*chosen[:group], device, *chosen[group + 1 :])
