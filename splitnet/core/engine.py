"""Run one step on one placement: the event loop under the simulator and the searches.

    gpu:0   |== a ==|           |== a' ==|
    link            |~ a->b ~|  ^         ~ copy   ' backward
    gpu:1                    |= b =|= b' =|

Every device and every direction of every link serves one thing at a time, in the order
in which things became ready, ties in order of the graph; a unit of zero seconds occupies
nothing. That is what TensorFlow's executor does with one stream per device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from splitnet.core.step import Step

__all__ = ["COPY_KINDS", "Moved", "Run", "run_step"]

COPY_KINDS = ("activation", "gradient", "weights", "weights gradient")


@dataclass(slots=True)
class Moved:
    """One copy: `kind` indexes COPY_KINDS; `item` is a net's or a shared weight's number."""

    kind: int
    item: int
    source: int
    target: int
    bytes: int
    start: float = 0.0
    stop: float = 0.0


@dataclass(slots=True)
class Run:
    """When everything ran. Task t of n units: t < n forward, < 2n backward, else update."""

    start: list[float]
    stop: list[float]
    ran: list[bool]
    copies: list[Moved] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return max(max(self.stop, default=0.0), self.last_copy)

    @property
    def last_copy(self) -> float:
        """When the last copy arrives."""
        return max((copy.stop for copy in self.copies), default=0.0)


def run_step(step: Step, device: Sequence[int]) -> Run:
    """Play the step with unit u on device number `device[u]`.

    O((units + edges) log units). Deterministic.
    """
    return _Engine(step, device).play()


class _Engine:
    """The state of one play; a class so that the event handlers stay small."""

    def __init__(self, step: Step, device: Sequence[int]) -> None:
        n = step.count
        self.step, self.device, self.n = step, device, n
        self.pending = [0] * (3 * n)
        self.ready = [0.0] * (3 * n)
        self.run = Run([0.0] * (3 * n), [0.0] * (3 * n), [False] * (3 * n))
        self.free: list[float] = [0.0] * step.device_count
        self.link_free: dict[int, float] = {}
        self.outgoing: list[list[int]] = [[] for _ in range(n)]
        self.feedback: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self.groups: list[dict[int, list[int]]] = []
        self.net_left: list[dict[int, int]] = []
        self.weight_left: list[dict[int, int]] = []
        self.waiting: list[Sequence[int]] = []
        self.heap: list[tuple[float, int]] = []
        self._link_nets()
        self._link_weights()

    def _link_nets(self) -> None:
        """Count what each task waits for, and group readers by device."""
        device, pending, n = self.device, self.pending, self.n
        for number, net in enumerate(self.step.nets):
            groups: dict[int, list[int]] = {}
            for reader in net.readers:
                pending[reader] += 1
                groups.setdefault(device[reader], []).append(reader)
            self.groups.append(groups)
            self.outgoing[net.source].append(number)
            left: dict[int, int] = {}
            for reader in net.backward:
                left[device[reader]] = left.get(device[reader], 0) + 1
                self.feedback[reader].append((0, number))
            pending[n + net.source] += len(left)
            self.net_left.append(left)
        for unit, flows in enumerate(self.step.has_backward):
            pending[n + unit] += 1 if flows else 0

    def _link_weights(self) -> None:
        """A weight goes to every device that uses it but its home, its gradient back."""
        device, pending, n, step = self.device, self.pending, self.n, self.step
        for unit in range(n):
            if step.has_update[unit]:
                pending[2 * n + unit] += 1 if step.has_backward[unit] else 0
        for number, weight in enumerate(step.shared):
            owner = weight.users[0]
            home = device[owner]
            away: dict[int, list[int]] = {}
            for user in weight.users:
                if device[user] != home:
                    away.setdefault(device[user], []).append(user)
                    pending[user] += 1
            for target, users in away.items():
                self._send(0.0, Moved(2, number, home, target, weight.bytes), users)
            left: dict[int, int] = {}
            for user in weight.backward:
                left[device[user]] = left.get(device[user], 0) + 1
                self.feedback[user].append((1, number))
            self.weight_left.append(left)
            pending[2 * n + owner] += len(left)

    def _send(self, ready: float, copy: Moved, waiting: Sequence[int]) -> None:
        """Queue a copy; `waiting` are the tasks that need it."""
        heappush(self.heap, (ready, 3 * self.n + len(self.run.copies)))
        self.run.copies.append(copy)
        self.waiting.append(waiting)

    def play(self) -> Run:
        """Serve whatever became ready first, until nothing is left."""
        n, pending, heap = self.n, self.pending, self.heap
        heap += [(0.0, unit) for unit in range(n) if not pending[unit]]
        heapify(heap)
        while heap:
            ready, key = heappop(heap)
            if key >= 3 * n:
                self._copy(ready, key - 3 * n)
            else:
                self._task(ready, key)
        return self.run

    def _task(self, ready: float, key: int) -> None:
        n, step = self.n, self.step
        phase, place = divmod(key, n)
        # Backward starts from the end: among equals the last declared goes first.
        unit = place if phase != 1 else n - 1 - place
        where = self.device[unit]
        table = (step.forward, step.backward, step.update)[phase]
        seconds = table[where][unit]
        start = ready
        if seconds > 0.0:
            start = max(ready, self.free[where])
            self.free[where] = start + seconds
        stop = start + seconds
        task = phase * n + unit
        self.run.start[task], self.run.stop[task] = start, stop
        self.run.ran[task] = True
        if phase == 0:
            self._forward_done(unit, where, stop)
        elif phase == 1:
            self._backward_done(unit, where, stop)

    def _copy(self, ready: float, number: int) -> None:
        copy = self.run.copies[number]
        step, a, b = self.step, copy.source, copy.target
        known = step.nets[copy.item].seconds if copy.kind < 2 else None
        if known is None:
            known = step.latency[a][b] + copy.bytes * step.seconds_per_byte[a][b]
        link = a * step.device_count + b
        copy.start = max(ready, self.link_free.get(link, 0.0))
        copy.stop = self.link_free[link] = copy.start + known
        for task in self.waiting[number]:
            self._arrive(task, copy.stop)

    def _arrive(self, task: int, time: float) -> None:
        if time > self.ready[task]:
            self.ready[task] = time
        self.pending[task] -= 1
        if not self.pending[task]:
            n = self.n
            key = 3 * n - 1 - task if n <= task < 2 * n else task
            heappush(self.heap, (self.ready[task], key))

    def _forward_done(self, unit: int, where: int, stop: float) -> None:
        step, n = self.step, self.n
        if step.has_backward[unit]:
            self._arrive(n + unit, stop)
        for number in self.outgoing[unit]:
            for target, readers in self.groups[number].items():
                if target == where:
                    for reader in readers:
                        self._arrive(reader, stop)
                else:
                    size = step.nets[number].bytes
                    self._send(stop, Moved(0, number, where, target, size), readers)

    def _backward_done(self, unit: int, where: int, stop: float) -> None:
        """Pass gradients on, one per device: what its last reader finishes is sent."""
        step, n = self.step, self.n
        if step.has_update[unit]:
            self._arrive(2 * n + unit, stop)
        for is_weight, number in self.feedback[unit]:
            if is_weight:
                left, task = self.weight_left[number], 2 * n
                weight = step.shared[number]
                owner, size, senders = weight.users[0], weight.bytes, weight.backward
            else:
                left, task = self.net_left[number], n
                net = step.nets[number]
                owner, size, senders = net.source, net.bytes, net.backward
            left[where] -= 1
            if left[where]:
                continue
            if len(senders) > 1:
                device, stops = self.device, self.run.stop
                stop = max(stops[n + s] for s in senders if device[s] == where)
            home = self.device[owner]
            if home == where:
                self._arrive(task + owner, stop)
            else:
                copy = Moved(1 + 2 * is_weight, number, where, home, size)
                self._send(stop, copy, (task + owner,))
