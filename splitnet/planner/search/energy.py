"""What annealing of the busiest device goes by, and whether it takes a move."""

from collections.abc import Sequence
from math import exp
from random import Random

__all__ = ["Energy"]

FROZEN = 20.0


class Energy:
    """The sum of (load / busiest load) ** power at one temperature, as in `anneal`."""

    __slots__ = ("_heat", "_parts", "_power", "_scale")

    def __init__(self, loads: Sequence[float], power: float, hot: float) -> None:
        """Count every device; `hot` is the temperature as a fraction of the energy."""
        self._power, self._scale = power, 1.0 / (max(loads) or 1.0)
        self._parts = [self._part(load) for load in loads]
        self._heat = hot * (sum(self._parts) or 1.0)

    def takes(
        self, here: int, there: int, loads: tuple[float, float], random: Random
    ) -> bool:
        """Whether to let two devices have new `loads`: always if the energy falls."""
        rise = self._part(loads[0]) + self._part(loads[1])
        rise -= self._parts[here] + self._parts[there]
        if rise <= 0:
            return True
        return rise <= FROZEN * self._heat and random.random() < exp(-rise / self._heat)

    def settle(self, here: int, there: int, loads: tuple[float, float]) -> None:
        """Count the two devices with their new loads."""
        self._parts[here] = self._part(loads[0])
        self._parts[there] = self._part(loads[1])

    def _part(self, load: float) -> float:
        # Loads may be an ulp below zero after many moves.
        part: float = max(0.0, load * self._scale) ** self._power
        return part
