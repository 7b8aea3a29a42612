"""Plans in rounds: calls that run side by side, one round after the other.

    lanes    a a a a a|c c c|e e e e
             a a a a|c c c c|e e e        round 1: a, b    round 2: c, d    last: e
             b b b b b|d d d|e e e e
             b b b|d d d d d|e e e e

In a round every side grows from what is done already, and takes a group when all that
the group hears from is done or on that side; so no side waits for another. A link
between two sides ends the growth behind it until the next round.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from splitnet.planner.search.orders import ancestry
from splitnet.planner.search.problem import Problem

__all__ = ["Rounds"]

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
SOUNDED = 5
NOISE = 0.3
MANY = -1


@dataclass(slots=True)
class _Side:
    """One call as it grows."""

    seconds: float
    size_bytes: float
    members: list[int]


class Rounds:
    """Builds plans in rounds for one problem of fused groups."""

    __slots__ = (
        "_accelerators",
        "_after",
        "_before",
        "_hosted",
        "_pool",
        "_problem",
        "_seconds",
    )

    def __init__(self, problem: Problem) -> None:
        """Read edges and times; O(groups + edges)."""
        devices = problem.devices
        self._problem = problem
        self._before, self._after = ancestry(problem)
        self._accelerators = [i for i, d in enumerate(devices) if not d.pooled]
        self._pool = next((i for i, d in enumerate(devices) if d.pooled), -1)
        self._hosted = [
            all(devices[device].pooled for device in row) for row in problem.allowed
        ]
        kind = devices[self._accelerators[0]].kind if self._accelerators else 0
        self._seconds = [
            0.0 if hosted else row[kind]
            for row, hosted in zip(problem.seconds, self._hosted, strict=True)
        ]

    def plan(
        self,
        order: Sequence[int],
        random: Random,
        *,
        tries: int,
        calls: int | None = None,
    ) -> list[int] | None:
        """Return a plan with at most one call per accelerator, on the first `calls`.

        Objective: call latency without transfers; sides prefer what is early in
        `order`. A round has the sides that save most; which ready groups begin which
        side is drawn and improved `tries` times by how much the round then covers.
        Memory is kept, other limits are for whoever judges; None if groups are left. No
        guarantee. O(tries x (groups log groups + edges)).
        """
        rank = [0] * len(order)
        for position, group in enumerate(order):
            rank[group] = position
        plan = [MANY] * len(order)
        waiting = [len(row) for row in self._before]
        ready = [group for group, number in enumerate(waiting) if not number]
        line, rest = self._accelerators[:calls], sum(self._seconds)
        ready = self._settle(ready, waiting, plan)
        while line and ready:
            sides = self._best_round(rank, waiting, ready, line, rest, tries, random)
            for side in sides:
                if side.members:
                    device = line.pop(0)
                    for group in side.members:
                        plan[group] = device
                    rest -= side.seconds
            if not any(side.members for side in sides):
                break
            done = [group for side in sides for group in side.members]
            fresh = [group for group in ready if plan[group] == MANY]
            fresh += self._release(done, waiting, plan)
            ready = self._settle(fresh, waiting, plan)
        return None if MANY in plan else plan

    def _best_round(
        self,
        rank: Sequence[int],
        waiting: Sequence[int],
        ready: Sequence[int],
        line: Sequence[int],
        rest: float,
        tries: int,
        random: Random,
    ) -> list[_Side]:
        """Choose how many sides save most seconds per call, then improve them.

        Sides end where as many calls on all devices that are left would cover all that
        is left, so that the last rounds have as much to do as the first.
        """
        best: tuple[float, int, list[int], float] | None = None
        for width in WIDTHS:
            if width > min(len(ready), max(1, len(line) - 1)):
                break
            share = rest / (width * (len(line) // width)) if len(line) > 1 else inf
            begin = [number % width for number in range(len(ready))]
            random.shuffle(begin)
            part = tries // SOUNDED if width > 1 else 0
            room = [self._problem.devices[d].capacity_bytes for d in line[:width]]
            begin, sides = self._round(
                rank, waiting, ready, begin, room, share, part, random
            )
            busy = [min(side.seconds, share) for side in sides]
            saved = (sum(busy) - max(busy)) / width * (1 + NOISE * random.random())
            if best is None or saved > best[0]:
                best = saved, width, begin, share
        assert best is not None, "one side is always possible"
        _, width, begin, share = best
        room = [self._problem.devices[d].capacity_bytes for d in line[:width]]
        part = tries if width > 1 else 0
        return self._round(rank, waiting, ready, begin, room, share, part, random)[1]

    def _round(
        self,
        rank: Sequence[int],
        waiting: Sequence[int],
        ready: Sequence[int],
        begin: Sequence[int],
        room: Sequence[float],
        share: float,
        tries: int,
        random: Random,
    ) -> tuple[list[int], list[_Side]]:
        """Grow one side per room; change where groups begin while that covers more."""
        found = list(begin)
        best = self._grow(rank, waiting, ready, found, room, share)
        most = sum(min(side.seconds, share) for side in best)
        for _ in range(tries):
            changed = list(found)
            changed[random.randrange(len(ready))] = random.randrange(len(room))
            sides = self._grow(rank, waiting, ready, changed, room, share)
            covered = sum(min(side.seconds, share) for side in sides)
            if covered >= most:
                found, best, most = changed, sides, covered
        return found, best

    def _grow(
        self,
        rank: Sequence[int],
        waiting: Sequence[int],
        ready: Sequence[int],
        begin: Sequence[int],
        room: Sequence[float],
        share: float,
    ) -> list[_Side]:
        """Let the least busy side take its next group until all are full or stuck."""
        after, hosted, seconds = self._after, self._hosted, self._seconds
        size = self._problem.size_bytes
        sides = [_Side(0.0, 0.0, []) for _ in room]
        heaps: list[list[tuple[int, int]]] = [[] for _ in room]
        for group, number in zip(ready, begin, strict=True):
            heappush(heaps[number], (rank[group], group))
        reached: dict[int, int] = {}
        left: dict[int, int] = {}
        alive = list(range(len(sides)))
        while alive:
            number = min(alive, key=lambda one: sides[one].seconds)
            side, heap = sides[number], heaps[number]
            if not heap or side.seconds >= share:
                alive.remove(number)
                continue
            group = heappop(heap)[1]
            if side.size_bytes + size[group] > room[number]:
                continue
            side.seconds += seconds[group]
            side.size_bytes += size[group]
            side.members.append(group)
            for target in after[group]:
                if reached.setdefault(target, number) != number:
                    reached[target] = MANY
                left[target] = left.get(target, waiting[target]) - 1
                own = reached[target] == number and not hosted[target]
                if own and not left[target]:
                    heappush(heap, (rank[target], target))
        return sides

    def _release(
        self, done: Sequence[int], waiting: list[int], plan: Sequence[int]
    ) -> list[int]:
        """Count down what waited for groups that are done; return what is ready."""
        ready = []
        for group in done:
            for target in self._after[group]:
                waiting[target] -= 1
                if not waiting[target] and plan[target] == MANY:
                    ready.append(target)
        return ready

    def _settle(
        self, ready: Sequence[int], waiting: list[int], plan: list[int]
    ) -> list[int]:
        """Run on the host what can only be there; return what else is ready."""
        found, todo = [], list(ready)
        while todo:
            group = todo.pop()
            if self._hosted[group]:
                plan[group] = self._pool
                todo += self._release([group], waiting, plan)
            else:
                found.append(group)
        return found
