"""How long a search goes on: a count of steps, and the clock as its limit.

A step is work of about a microsecond on a typical core. Steps are counted, so that a
search which ends by them gives the same answer on every machine.
"""

import math
from collections.abc import Callable
from time import monotonic

STEPS_PER_SECOND = 1_000_000


class Budget:
    """Steps that are left, until the clock's time is `end` (`ended_by_clock` then)."""

    def __init__(
        self,
        time_limit: float,
        effort: int | None = None,
        *,
        on_progress: Callable[[float, float], None] | None = None,
        until_found: bool = False,
    ) -> None:
        """By default the steps of the time limit; `until_found`: to the first value."""
        if effort is None:
            effort = math.ceil(min(time_limit, 1e9) * STEPS_PER_SECOND)
        self.effort, self.spent, self.ended_by_clock = effort, 0, False
        self.end, self.until_found = monotonic() + time_limit, until_found
        self._on_progress = on_progress

    @property
    def left(self) -> int:
        """Steps that are left; 0 when the clock has ended the search."""
        left = max(0, self.effort - self.spent)
        if left and monotonic() > self.end:
            self.ended_by_clock = True
        return 0 if self.ended_by_clock else left

    def spend(self, steps: float) -> None:
        """Count steps, at least one, so that every loop ends."""
        self.spent += max(1, int(steps))

    def report(self, value: float) -> None:
        """Report the fraction of the search that is done, and the best value."""
        if self._on_progress is not None and value < math.inf:
            self._on_progress(min(1.0, self.spent / max(1, self.effort)), value)
        if self.until_found and value < math.inf:
            self.effort = 0
