"""Local search from a good start: move a group or a few, swap two, kick, start over."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from math import inf

from splitnet.planner.board import Assignment, Board, Score

__all__ = ["refine"]

_LARGEST_BUNCH = 6

_PLAYS_PER_GROUP = 150
"""Judgements per group before the search may be called stale."""

_MOST_KNOWN_UNITS = 2000
"""Larger assignments are not remembered: they hardly ever come again."""


def refine(
    board: Board,
    start: Assignment,
    draw: random.Random,
    late: Callable[[], bool],
    *,
    plays: int,
    confirm: Callable[[Assignment], Score],
    others: Sequence[Assignment] = (),
    spread: Callable[[Assignment], Assignment] | None = None,
    judge: Callable[[Assignment, Score | None], Score] | None = None,
) -> Iterator[Assignment]:
    """Yield ever better assignments by the quick judge; the exact one decides later.

    First-improvement hill climbing, restarted from the best with a few random moves
    (iterated local search, Lourenco, Martin, Stuetzle, 2003). Moves go from busy
    devices to idle ones, towards neighbours, or anywhere, alone or in a bunch. Ends
    early when two thirds of its judgements brought nothing. There is no guarantee.

    Args:
        board: Where moves are made.
        start: Where to start from.
        draw: Of the moves.
        late: Whether the time is up.
        plays: How many judgements, at most.
        confirm: The exact score of what was yielded before.
        others: Where to start over from in the first third, in turn; then, and where
            there are none, from the best.
        spread: From assignments of `board` to those that are yielded.
        judge: May look closer than `board.quick`.
    """
    free = board.free_groups
    if not free:
        return
    moves = _Moves(board, draw)
    spread = spread or (lambda chosen: chosen)
    judged = _Known(judge or board.quick, board.units.count <= _MOST_KNOWN_UNITS)
    bases = cycle(others or [start])
    best = here = start
    best_score = here_score = judged(start, None)
    stale, found = 0, 0
    for number in range(plays):
        if late() or number > 3 * found + _PLAYS_PER_GROUP * len(free):
            return
        moved = moves.near(here)
        score = judged(moved, here_score)
        stale = 0 if score[:3] < here_score[:3] else stale + 1
        if score < best_score:
            yield spread(moved)
            exact = confirm(spread(moved))
            if score.feasible and not exact.feasible:
                score = judged.learn(moved, exact)
            else:
                best, best_score, found = moved, score, number
        if score[:3] <= here_score[:3] and score.tie < inf:
            here, here_score = moved, score
        if stale > 4 * len(free) + 20:
            here = moves.far(best)
            if others and number < plays // 3:
                here = moves.far(moves.far(next(bases)))
            here_score, stale = judged(here, None), 0


class _Known:
    """A judge with a memory; a floor is judged again where it does not decide."""

    def __init__(
        self, judge: Callable[[Assignment, Score | None], Score], remember: bool
    ) -> None:
        self.judge, self.remember = judge, remember
        self.known: dict[Assignment, Score] = {}

    def __call__(self, chosen: Assignment, unless: Score | None) -> Score:
        score = self.known.get(chosen)
        if score is not None and (
            score.tie < inf or (unless is not None and score > unless)
        ):
            return score
        score = self.judge(chosen, unless)
        return self.learn(chosen, score) if self.remember else score

    def learn(self, chosen: Assignment, score: Score) -> Score:
        self.known[chosen] = score
        return score


class _Moves:
    """Random neighbours of an assignment, drawn where they are likely to help."""

    def __init__(self, board: Board, draw: random.Random) -> None:
        self.board, self.draw = board, draw
        self.free = board.free_groups
        times = board.units.unit_seconds
        self.seconds = [[0.0] * board.group_count for _ in times]
        for device, row in enumerate(times):
            for unit, group in enumerate(board.group_of_unit):
                self.seconds[device][group] += row[unit]
        self.friends: list[list[int]] = [[] for _ in range(board.group_count)]
        pairs: dict[tuple[int, int], None] = {}
        for net in board.units.nets:
            a = board.group_of_unit[net.source]
            for reader in net.readers:
                b = board.group_of_unit[reader]
                if a != b:
                    pairs[min(a, b), max(a, b)] = None
        for a, b in pairs:
            self.friends[a].append(b)
            self.friends[b].append(a)

    def near(self, chosen: Assignment) -> Assignment:
        """Move one group or a few neighbours, or exchange the devices of two."""
        if self.draw.random() < 0.3:
            return self._bunch(chosen)
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

    def _bunch(self, chosen: Assignment) -> Assignment:
        """Take neighbours on one device together to another: what one alone cannot do.

        Half the time to a device that one of them sends to or hears from.
        """
        group = self.draw.choice(self.free)
        here, size = chosen[group], self.draw.randint(2, _LARGEST_BUNCH)
        bunch, todo = {group: None}, [group]
        while todo and len(bunch) < size:
            near = self.friends[todo.pop(self.draw.randrange(len(todo)))]
            same = [f for f in near if f not in bunch and chosen[f] == here]
            for friend in self.draw.sample(same, min(len(same), size - len(bunch))):
                bunch[friend] = None
                todo.append(friend)
        roads = [chosen[f] for g in bunch for f in self.friends[g] if chosen[f] != here]
        if not roads or self.draw.random() < 0.5:
            roads = [d for d in self.board.allowed[group] if d != here]
        device = self.draw.choice(roads)
        moved = list(chosen)
        for one in bunch:
            if device in self.board.allowed[one]:
                moved[one] = device
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
