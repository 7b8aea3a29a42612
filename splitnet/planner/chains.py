"""Cut one topological order into runs, a device each: exact for a chain."""

from collections.abc import Iterator, Sequence
from math import inf

from splitnet.planner.board import Assignment, Board

__all__ = ["chain_cuts"]

_MOST_STEPS = 300_000
"""Transitions of the dynamic program: a third of a second."""


def chain_cuts(board: Board) -> Iterator[Assignment]:
    """Yield the best cut of the graph's order into runs on devices that have room.

    State: the first i units are placed, on a set of devices taken in order of
    declaration. A run costs its compute seconds, and the copies of what enters it,
    there and back. For a chain without overlap the sum of both is the step, so the
    result is the optimum over orders of devices; elsewhere it is one candidate more,
    and where memory forces a cut usually a good one. O(units^2 x devices), so units are
    taken in strides where there are many. (Dynamic programming over a linear order, as
    in PipeDream, Harlap et al., 2018.)
    """
    devices = [d for d in range(len(board.capacity)) if board.capacity[d] > 0]
    count = board.units.count
    points = _points(count, len(devices))
    if len(points) < 2 or not devices:
        return
    program = _Program(board, points)
    for order in _orders(board, devices):
        chosen = program.solve(order)
        if chosen is not None:
            yield chosen


def _points(count: int, devices: int) -> list[int]:
    """Where the order may be cut: everywhere, or at even strides."""
    most = max(2, int((_MOST_STEPS / max(1, devices)) ** 0.5))
    stride = max(1, -(-count // most))
    return [*range(0, count, stride), count]


def _orders(board: Board, devices: list[int]) -> list[list[int]]:
    """Fastest devices first, and as declared."""
    times = board.units.unit_seconds
    total = {d: sum(times[d]) for d in devices}
    orders = [sorted(devices, key=lambda d: (total[d], d)), devices]
    return orders if orders[0] != orders[1] else orders[:1]


class _Program:
    """Prefix sums over the order, so that a run's cost is a few subtractions."""

    def __init__(self, board: Board, points: list[int]) -> None:
        self.board, self.points = board, points
        units = board.units
        self.seconds = [_prefix(row) for row in board.units.unit_seconds]
        per_trained = 1 + units.slot_copies if units.training else 0
        self.held = _prefix(
            [
                own + per_trained * trained + kept
                for own, trained, kept in zip(
                    units.own_bytes, units.own_trained, units.activation_bytes
                )
            ]
        )
        self.forbidden = self._forbidden()
        self.entering = self._entering()

    def _forbidden(self) -> list[list[float]]:
        """How many of the first i units may not be on each device."""
        rows = []
        for device in range(len(self.board.capacity)):
            rows.append(
                _prefix(
                    [
                        float(
                            len(self.board.allowed[g]) > 1
                            and device not in self.board.allowed[g]
                        )
                        for g in self.board.group_of_unit
                    ]
                )
            )
        return rows

    def _entering(self) -> list[float]:
        """Bytes alive across each cut: made before it and read after it."""
        units = self.board.units
        change = [0.0] * (units.count + 1)
        for net in units.nets:
            weight = net.bytes * (2.0 if net.backward else 1.0)
            change[net.source + 1] += weight
            change[max(net.readers) + 1 if net.readers else net.source + 1] -= weight
        return _prefix(change)[1:]

    def solve(self, order: list[int]) -> Assignment | None:
        """The cheapest cut with runs on devices in `order`, each at most once."""
        points, count = self.points, len(self.points)
        best = [0.0] + [inf] * (count - 1)
        back: list[list[int]] = []
        previous = -1
        for device in order:
            road = self._road(previous, device)
            latest, came = list(best), list(range(count))
            for j in range(1, count):
                for i in range(j - 1, -1, -1):
                    if best[i] == inf:
                        continue
                    if not self._may(points[i], points[j], device):
                        break
                    cost = best[i] + self._cost(points[i], points[j], device, road)
                    if cost < latest[j]:
                        latest[j], came[j] = cost, i
            back.append(came)
            best, previous = latest, device
        if best[-1] == inf:
            return None
        return self._assignment(order, back)

    def _road(self, a: int, b: int) -> tuple[float, float]:
        if a < 0:
            return 0.0, 0.0
        units = self.board.units
        return units.latency[a][b], units.seconds_per_byte[a][b]

    def _may(self, start: int, stop: int, device: int) -> bool:
        row = self.forbidden[device]
        held = self.held[stop] - self.held[start]
        return row[stop] == row[start] and held <= self.board.capacity[device]

    def _cost(
        self, start: int, stop: int, device: int, road: tuple[float, float]
    ) -> float:
        compute = self.seconds[device][stop] - self.seconds[device][start]
        if not start:
            return compute
        return compute + road[0] + road[1] * self.entering[start]

    def _assignment(self, order: list[int], back: list[list[int]]) -> Assignment:
        """Walk back from the end; pinned groups keep their only device."""
        where = [-1] * self.board.units.count
        j = len(self.points) - 1
        for device, came in zip(reversed(order), reversed(back)):
            i = came[j]
            for unit in range(self.points[i], self.points[j]):
                where[unit] = device
            j = i
        chosen = [devices[0] for devices in self.board.allowed]
        taken: dict[int, None] = {}
        for unit, group in enumerate(self.board.group_of_unit):
            allowed = self.board.allowed[group]
            if group not in taken and len(allowed) > 1 and where[unit] in allowed:
                chosen[group] = where[unit]
                taken[group] = None
        return tuple(chosen)


def _prefix(values: Sequence[float]) -> list[float]:
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return sums
