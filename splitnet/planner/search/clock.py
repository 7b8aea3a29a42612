"""One budget for all searches: seconds on the wall, or a count of steps.

A step is one proposed move or one comparable piece of work. With a step budget nothing
reads the clock, so a seed and a budget fix the result on any machine.
"""

import time

__all__ = ["Budget"]


class Budget:
    """Tells a search how far through its time it is.

    Slices share the step counter of the whole budget, so nested searches cannot spend
    more than their parent has.
    """

    __slots__ = ("_counter", "_pace", "_start", "_stop")

    def __init__(
        self, seconds: float | None = None, *, iterations: int | None = None
    ) -> None:
        """Start now; give `seconds`, or `iterations` to ignore the clock."""
        self._pace = [1.0]
        if iterations is not None:
            self._counter: list[int] | None = [0]
            self._start, self._stop = 0.0, float(iterations)
        else:
            self._counter = None
            self._start = time.perf_counter()
            self._stop = self._start + (float("inf") if seconds is None else seconds)

    def _now(self) -> float:
        if self._counter is None:
            return time.perf_counter()
        return float(self._counter[0])

    def slice(self, share: float) -> "Budget":
        """Return a budget for `share` of what is left, starting now."""
        part = Budget.__new__(Budget)
        part._counter, part._pace = self._counter, self._pace
        part._start = self._now()
        part._stop = part._start + max(0.0, self._stop - part._start) * share
        return part

    def limited(self, amount: float) -> "Budget":
        """Return a budget for at most `amount` seconds (or steps) of what is left."""
        part = Budget.__new__(Budget)
        part._counter, part._pace = self._counter, self._pace
        part._start = self._now()
        part._stop = min(self._stop, part._start + amount)
        return part

    def spend(self, steps: int) -> None:
        """Report work done; only a step budget counts it."""
        if self._counter is not None:
            self._counter[0] += steps

    def observe(self, seconds: float, *, expected: float) -> None:
        """Report what a piece of work took, to plan the next on a machine so slow."""
        self._pace[0] = max(1.0, 0.5 * (self._pace[0] + seconds / expected))

    @property
    def usable(self) -> float:
        """Seconds left as an undisturbed machine would count them; or steps."""
        return self.left / self._pace[0]

    @property
    def counts_steps(self) -> bool:
        """Whether steps, not seconds, are the unit."""
        return self._counter is not None

    @property
    def left(self) -> float:
        """Seconds (or steps) left; 0 when spent."""
        return max(0.0, self._stop - self._now())

    @property
    def spent(self) -> bool:
        """Whether nothing is left."""
        return self._now() >= self._stop

    @property
    def fraction(self) -> float:
        """How much of this budget is spent, from 0 to 1."""
        whole = self._stop - self._start
        return min(1.0, (self._now() - self._start) / whole) if whole > 0 else 1.0
