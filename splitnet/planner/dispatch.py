"""List scheduling as a step runs: each group gets its device when its inputs are there.

What runs on a device runs in the order in which it became ready, as in `engine`, so the
forward pass that is played afterwards goes as it did here. A schedule that reckons with
another order is soon followed no better than a random one where many lanes share a few
devices.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from splitnet.planner.board import Assignment, Board
from splitnet.planner.schedule import decided, undecided

__all__ = ["dispatched"]

_READY, _START = 0, 1


def dispatched(board: Board) -> Assignment:
    """Play the forward pass, and put each unit where it would finish first.

    A unit chooses when the last of its inputs is made, among devices with room (as in
    Baechi, Jeon et al., SoCC 2020), counting what is on its way to each; a group goes
    where its first unit goes. Copies to one device are made once and queue per link.
    O((units + edges) x devices + units log units).
    """
    return _Dispatch(board).play()


class _Dispatch:
    def __init__(self, board: Board) -> None:
        units = board.units
        self.board, self.units = board, units
        self.chosen, self.foes, self.room = undecided(board)
        self.need = board.group_bytes
        self.inputs: list[list[int]] = [[] for _ in range(units.count)]
        self.readers: list[list[int]] = [[] for _ in range(units.count)]
        for number, net in enumerate(units.nets):
            self.readers[net.source] += net.readers
            for reader in net.readers:
                self.inputs[reader].append(number)
        self.finish = [0.0] * units.count
        self.free = [0.0] * units.device_count
        self.coming = [0.0] * units.device_count
        self.link_free: dict[tuple[int, int], float] = {}
        self.arrived: dict[tuple[int, int], float] = {}

    def play(self) -> Assignment:
        waits = [len(inputs) for inputs in self.inputs]
        made = [0.0] * len(waits)
        heap = [(0.0, unit, _READY) for unit, count in enumerate(waits) if not count]
        heapify(heap)
        while heap:
            time, unit, what = heappop(heap)
            if what == _READY:
                heappush(heap, (max(time, self._settle(unit)), unit, _START))
                continue
            device = self.chosen[self.board.group_of_unit[unit]]
            seconds = self.units.forward[device][unit]
            self.coming[device] -= seconds
            if seconds > 0.0:
                time = self.free[device] = max(time, self.free[device]) + seconds
            self.finish[unit] = time
            for reader in self.readers[unit]:
                made[reader] = max(made[reader], time)
                waits[reader] -= 1
                if not waits[reader]:
                    heappush(heap, (made[reader], reader, _READY))
        return decided(self.board, self.chosen)

    def _settle(self, unit: int) -> float:
        """Give the unit's group a device if it has none; when the inputs are there."""
        inputs: Sequence[int] = self.inputs[unit]
        if len(inputs) > 1:
            nets = self.units.nets
            inputs = sorted(inputs, key=lambda net: self.finish[nets[net].source])
        group = self.board.group_of_unit[unit]
        if self.chosen[group] < 0:
            self.chosen[group] = self._best(unit, group, inputs)
            self.room[self.chosen[group]] -= self.need[group]
        device = self.chosen[group]
        self.coming[device] += self.units.forward[device][unit]
        return self._inputs_ready(inputs, device, keep=True)

    def _best(self, unit: int, group: int, inputs: Sequence[int]) -> int:
        """Least by (apart kept, memory kept, finish); ties to the first allowed."""
        best, key = -1, (2, 0, 0.0)
        for device in self.board.allowed[group]:
            clash = int(any(self.chosen[foe] == device for foe in self.foes[group]))
            lack = max(0, self.need[group] - self.room[device])
            start = self.free[device] + self.coming[device]
            start = max(start, self._inputs_ready(inputs, device, keep=False))
            found = (clash, lack, start + self.units.forward[device][unit])
            if best < 0 or found < key:
                best, key = device, found
        return best

    def _inputs_ready(self, inputs: Sequence[int], device: int, *, keep: bool) -> float:
        """When the inputs, the oldest first, are on a device; `keep` books copies."""
        units, ready = self.units, 0.0
        links: dict[tuple[int, int], float] = {}
        now = self.finish[units.nets[inputs[-1]].source] if inputs else 0.0
        for number in inputs:
            net = units.nets[number]
            home = self.chosen[self.board.group_of_unit[net.source]]
            made = self.finish[net.source]
            if home != device:
                arrived = self.arrived.get((number, device))
                if arrived is None:
                    road, seconds = (home, device), net.seconds
                    if seconds is None:
                        seconds = units.latency[home][device]
                        seconds += net.bytes * units.seconds_per_byte[home][device]
                    arrived = made + seconds
                    if arrived > now:  # else it left before others took the road
                        free = links.get(road, self.link_free.get(road, 0.0))
                        arrived = links[road] = max(free, made) + seconds
                    if keep:
                        self.arrived[number, device] = arrived
                made = arrived
            ready = max(ready, made)
        if keep:
            self.link_free.update(links)
        return ready
