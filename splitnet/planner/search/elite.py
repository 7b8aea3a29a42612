"""The best few plans of a search, all of different value; those to breed from."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from splitnet.planner.search.problem import Problem

__all__ = ["Elite", "Parents"]

SAME = 1e-9


class Elite:
    """Keeps the best plans with their values; plans of equal value count as one."""

    __slots__ = ("_size", "rows")

    def __init__(self, size: int) -> None:
        """Start empty, for at most `size` plans."""
        self._size = size
        self.rows: list[tuple[float, list[int]]] = []

    def add(self, value: float, plan: Sequence[int]) -> None:
        """Take a plan in if it is good enough; an infinite value never is."""
        if value < inf and all(abs(value - v) > SAME * value for v, _ in self.rows):
            self.rows.append((value, list(plan)))
            self.rows.sort(key=lambda row: row[0])
            del self.rows[self._size :]

    def draw(self, random: Random) -> list[int]:
        """Return one of the plans, the better the likelier."""
        return self.rows[int(random.random() ** 2 * len(self.rows))][1]


@dataclass(frozen=True, slots=True)
class Parent:
    """A plan, its value, and the nets that it cuts."""

    value: float
    plan: list[int]
    cuts: int


class Parents:
    """Good plans that differ in which nets they cut, the best first.

    A better plan takes the place of the one most like it, so that one family does not
    fill all places; devices that change names make no difference. Source: Sanders and
    Schulz, "Distributed Evolutionary Graph Partitioning" (2012).
    """

    __slots__ = ("_problem", "_size", "rows")

    def __init__(self, problem: Problem, size: int) -> None:
        """Start empty, for at most `size` plans."""
        self._problem, self._size = problem, size
        self.rows: list[Parent] = []

    def add(self, value: float, plan: Sequence[int]) -> None:
        """Take a plan in if room is left, or it is better than the one most like it."""
        rows = self.rows
        if value == inf or any(abs(value - r.value) <= SAME * value for r in rows):
            return
        new = Parent(value, list(plan), self._cuts(plan))
        if len(rows) >= self._size:
            worse = [row for row in rows if row.value > value]
            if not worse:
                return
            rows.remove(min(worse, key=lambda row: (row.cuts ^ new.cuts).bit_count()))
        rows.append(new)
        rows.sort(key=lambda row: row.value)

    def _cuts(self, plan: Sequence[int]) -> int:
        """Return which nets have ends on several devices, a byte each; O(pins)."""
        return int.from_bytes(
            bytes(
                any(plan[consumer] != plan[net.producer] for consumer in net.consumers)
                for net in self._problem.nets
            )
        )
