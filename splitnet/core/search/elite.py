"""The best few plans of a search, all of different value."""

from collections.abc import Sequence
from math import inf
from random import Random

__all__ = ["Elite"]

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
