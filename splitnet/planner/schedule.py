"""List scheduling: give each group its device as its turn comes, never looking back."""

from collections.abc import Sequence

from splitnet.planner.board import Assignment, Board

__all__ = ["decided", "earliest_finish", "one_device", "ranks", "undecided"]


def one_device(board: Board, device: int) -> Assignment:
    """Put everything that may be there on one device, the rest on its first choice."""
    return tuple(
        device if device in allowed else allowed[0] for allowed in board.allowed
    )


def ranks(board: Board) -> list[float]:
    """Seconds from the start of each unit to the end of the step, communication in.

    HEFT's upward rank, with times averaged over the devices a group may use, and the
    backward pass mirrored onto the forward one.
    """
    units = board.units
    times = board.units.unit_seconds
    mean = [
        sum(times[d][u] for d in board.allowed[g]) / len(board.allowed[g])
        for u, g in enumerate(board.group_of_unit)
    ]
    k = units.device_count
    off = [(a, b) for a in range(k) for b in range(k) if a != b]
    latency = sum(units.latency[a][b] for a, b in off) / max(1, len(off))
    per_byte = sum(units.seconds_per_byte[a][b] for a, b in off) / max(1, len(off))
    rank = list(mean)
    outgoing: list[list[int]] = [[] for _ in range(units.count)]
    for number, net in enumerate(units.nets):
        outgoing[net.source].append(number)
    for unit in reversed(range(units.count)):
        best = 0.0
        for number in outgoing[unit]:
            net = units.nets[number]
            copy = 0.0
            if k > 1:
                copy = _copy_seconds(net.seconds, net.bytes, latency, per_byte)
                copy *= 2.0 if net.backward else 1.0
            best = max(best, *(copy + rank[reader] for reader in net.readers))
        rank[unit] += best
    return rank


def _copy_seconds(
    known: float | None, size: int, latency: float, per_byte: float
) -> float:
    return latency + size * per_byte if known is None else known


def undecided(board: Board) -> tuple[list[int], list[list[int]], list[int]]:
    """What a list scheduler begins with, per group and device.

    The device of each group that has one choice (else -1), the groups that it must be
    apart from, and the bytes left on each device.
    """
    chosen = [-1 if len(a) > 1 else a[0] for a in board.allowed]
    foes: list[list[int]] = [[] for _ in board.allowed]
    for a, b in board.apart:
        foes[a].append(b)
        foes[b].append(a)
    room = list(board.capacity)
    for group, device in enumerate(chosen):
        if device >= 0:
            room[device] -= board.group_bytes[group]
    return chosen, foes, room


def decided(board: Board, chosen: Sequence[int]) -> Assignment:
    """The choices, and the first allowed device for groups that no unit is of."""
    return tuple(
        device if device >= 0 else allowed[0]
        for device, allowed in zip(chosen, board.allowed)
    )


def earliest_finish(
    board: Board, order: Sequence[int], *, patience: float = 0.0
) -> Assignment:
    """Place units in `order` where each would finish first, memory permitting.

    ETF (Hwang et al., 1989) with Baechi's memory constraint (Jeon et al., SoCC 2020):
    a device without room is passed over; if none has room the one with most is taken.
    A group goes where its first unit goes. Copies to one device are made once and queue
    per link. `patience` in [0, 1] weighs what a choice would later cost its readers in
    communication. O(units x devices + edges x devices).
    """
    return _EarliestFinish(board, patience).play(order)


class _EarliestFinish:
    def __init__(self, board: Board, patience: float) -> None:
        units = board.units
        self.board, self.units, self.patience = board, units, patience
        self.times = board.units.unit_seconds
        self.finish = [0.0] * units.count
        self.free = [0.0] * units.device_count
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrived: dict[tuple[int, int], float] = {}
        self.inputs: list[list[int]] = [[] for _ in range(units.count)]
        for number, net in enumerate(units.nets):
            for reader in net.readers:
                self.inputs[reader].append(number)
        self.shared_of: list[list[int]] = [[] for _ in range(units.count)]
        for number, weight in enumerate(units.shared):
            for user in weight.users:
                self.shared_of[user].append(number)
        self.chosen, self.foes, self.room = undecided(board)
        self.need = board.group_bytes

    def play(self, order: Sequence[int]) -> Assignment:
        for unit in order:
            group = self.board.group_of_unit[unit]
            if self.chosen[group] < 0:
                self.chosen[group] = self._best(unit, group)
                self.room[self.chosen[group]] -= self.need[group]
            self._put(unit, self.chosen[group])
        return decided(self.board, self.chosen)

    def _best(self, unit: int, group: int) -> int:
        """Least by (apart kept, memory kept, finish); ties to the first allowed."""
        best, key = -1, (2, 0, 0.0)
        for device in self.board.allowed[group]:
            clash = any(self.chosen[foe] == device for foe in self.foes[group])
            lack = max(0, self.need[group] - self.room[device])
            start = max(self.free[device], self._inputs_ready(unit, device, False))
            finish = start + self.times[device][unit]
            if self.patience:
                finish += self.patience * self._pull(unit, device)
            if best < 0 or (int(clash), lack, finish) < key:
                best, key = device, (int(clash), lack, finish)
        return best

    def _pull(self, unit: int, device: int) -> float:
        """What this device would cost in copies of shared weights."""
        seconds = 0.0
        for number in self.shared_of[unit]:
            weight = self.units.shared[number]
            home = self.chosen[self.board.group_of_unit[weight.users[0]]]
            if home >= 0 and home != device:
                seconds += 2.0 * self._copy(weight.bytes, None, home, device)
        return seconds

    def _copy(self, size: int, known: float | None, a: int, b: int) -> float:
        units = self.units
        return _copy_seconds(
            known, size, units.latency[a][b], units.seconds_per_byte[a][b]
        )

    def _inputs_ready(self, unit: int, device: int, keep: bool) -> float:
        """When the inputs are on a device; `keep` books the copies that this takes."""
        ready = 0.0
        links: dict[tuple[int, int], float] = {}
        for number in self.inputs[unit]:
            net = self.units.nets[number]
            home = self.chosen[self.board.group_of_unit[net.source]]
            made = self.finish[net.source]
            if home != device:
                arrived = self.arrived.get((number, device))
                if arrived is None:
                    road = (home, device)
                    seconds = self._copy(net.bytes, net.seconds, home, device)
                    seconds *= 2.0 if net.backward else 1.0
                    free = links.get(road, self.link_free.get(road, 0.0))
                    arrived = links[road] = max(free, made) + seconds
                    if keep:
                        self.arrived[number, device] = arrived
                made = arrived
            ready = max(ready, made)
        if keep:
            self.link_free.update(links)
        return ready

    def _put(self, unit: int, device: int) -> None:
        ready = self._inputs_ready(unit, device, True)
        seconds = self.times[device][unit]
        start = max(ready, self.free[device]) if seconds > 0.0 else ready
        self.finish[unit] = start + seconds
        if seconds > 0.0:
            self.free[device] = self.finish[unit]
