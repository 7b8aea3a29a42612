"""Run one step on one placement: the event loop under the simulator and the searches.

    gpu:0   |== a ==|           |== a' ==|
    link            |~ a->b ~|  ^         ~ copy   ' backward
    gpu:1                    |= b =|= b' =|

Every device and every direction of every link serves one thing at a time, in the order
in which things became ready, ties in order of the graph; a unit of zero seconds
occupies nothing. So does TensorFlow's executor with one stream per device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from splitnet.core.step import Net, Shared, Step

__all__ = ["COPY_KINDS", "Moved", "Run", "run_step"]

COPY_KINDS = ("activation", "gradient", "weights", "weights gradient")


@dataclass(slots=True)
class Moved:
    """One copy: `kind` indexes COPY_KINDS, `item` the nets or the shared weights."""

    kind: int
    item: int
    source: int
    target: int
    bytes: int
    start: float = 0.0
    stop: float = 0.0


@dataclass(slots=True)
class Run:
    """When all tasks ran: n forward, then n backward, then n update, for n units."""

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

    O((units + edges) log units). Deterministic. The searches live on this function, so
    its state is in local variables and not in an object.
    """
    n, nets, shared, wires = step.count, step.nets, step.shared, step.wires
    tables = (step.forward, step.backward, step.update)
    start, stop, ran = [0.0] * (3 * n), [0.0] * (3 * n), [False] * (3 * n)
    ready = [0.0] * (3 * n)
    pending = list(wires.pending)
    copies: list[Moved] = []
    waiting: list[Sequence[int]] = []
    heap: list[tuple[float, int]] = []
    free = [0.0] * step.device_count
    link_free: dict[tuple[int, int], float] = {}

    def arrive(task: int, time: float) -> None:
        if time > ready[task]:
            ready[task] = time
        pending[task] -= 1
        if not pending[task]:
            # Backward starts from the end: among equals the last declared goes first.
            key = 3 * n - 1 - task if n <= task < 2 * n else task
            heappush(heap, (ready[task], key))

    def send(time: float, copy: Moved, tasks: Sequence[int]) -> None:
        heappush(heap, (time, 3 * n + len(copies)))
        copies.append(copy)
        waiting.append(tasks)

    def send_output(number: int, where: int, time: float) -> None:
        net = nets[number]
        groups: dict[int, list[int]] = {}
        for reader in net.readers:
            groups.setdefault(device[reader], []).append(reader)
        for target, readers in groups.items():
            if target != where:
                send(time, Moved(0, number, where, target, net.bytes), readers)
                continue
            for reader in readers:
                arrive(reader, time)

    def send_gradient(
        kind: int, number: int, where: int, item: Net | Shared, owner: int
    ) -> None:
        """Once the last of a device's readers is done; `kind` is 1 or 3."""
        left = counts[kind, number]
        left[where] -= 1
        if left[where]:
            return
        time = max(stop[n + s] for s in item.backward if device[s] == where)
        home = device[owner]
        task = owner + (n if kind == 1 else 2 * n)
        if home == where:
            arrive(task, time)
        else:
            send(time, Moved(kind, number, where, home, item.bytes), (task,))

    held: dict[int, list[int]] = {}
    for unit, other in step.waits:
        held.setdefault(other, []).append(unit)
    counts = _senders(step, device, pending)
    for number, home, target, users in _away(step, device, pending):
        copy = Moved(2, number, home, target, shared[number].bytes)
        send(0.0, copy, users)
    heap += [(0.0, unit) for unit in range(n) if not pending[unit]]
    heapify(heap)

    while heap:
        time, key = heappop(heap)
        if key >= 3 * n:
            copy = copies[key - 3 * n]
            a, b = copy.source, copy.target
            known = nets[copy.item].seconds if copy.kind < 2 else None
            if known is None:
                known = step.latency[a][b] + copy.bytes * step.seconds_per_byte[a][b]
            copy.start = max(time, link_free.get((a, b), 0.0))
            copy.stop = link_free[a, b] = copy.start + known
            for task in waiting[key - 3 * n]:
                arrive(task, copy.stop)
            continue
        phase, unit = divmod(key, n)
        if phase == 1:
            unit = n - 1 - unit
        where, task = device[unit], phase * n + unit
        seconds = tables[phase][where][unit]
        if seconds > 0.0:
            if free[where] > time:
                time = free[where]
            free[where] = time + seconds
        start[task] = time
        stop[task] = time = time + seconds
        ran[task] = True
        if phase == 0:
            if step.has_backward[unit]:
                arrive(n + unit, time)
            for number in wires.outgoing[unit]:
                send_output(number, where, time)
        elif phase == 1:
            for waiter in held.get(unit, ()):
                arrive(waiter, time)
            if step.has_update[unit]:
                arrive(2 * n + unit, time)
            for number in wires.net_feedback[unit]:
                net = nets[number]
                send_gradient(1, number, where, net, net.source)
            for number in wires.weight_feedback[unit]:
                weight = shared[number]
                send_gradient(3, number, where, weight, weight.users[0])
    return Run(start, stop, ran, copies)


Counts = dict[tuple[int, int], dict[int, int]]


def _senders(step: Step, device: Sequence[int], pending: list[int]) -> Counts:
    """How many of a device's readers still owe a gradient, per net and shared weight.

    Whoever gets the gradients waits for one per device.
    """
    n = step.count
    counts: Counts = {}
    for number, net in enumerate(step.nets):
        if net.backward:
            left: dict[int, int] = {}
            for reader in net.backward:
                left[device[reader]] = left.get(device[reader], 0) + 1
            counts[1, number] = left
            pending[n + net.source] += len(left)
    for number, weight in enumerate(step.shared):
        left = {}
        for user in weight.backward:
            left[device[user]] = left.get(device[user], 0) + 1
        counts[3, number] = left
        pending[2 * n + weight.users[0]] += len(left)
    return counts


def _away(
    step: Step, device: Sequence[int], pending: list[int]
) -> list[tuple[int, int, int, list[int]]]:
    """The copies of shared weights: number, home, target device, the users there."""
    found = []
    for number, weight in enumerate(step.shared):
        home = device[weight.users[0]]
        away: dict[int, list[int]] = {}
        for user in weight.users:
            if device[user] != home:
                away.setdefault(device[user], []).append(user)
                pending[user] += 1
        found += [(number, home, target, users) for target, users in away.items()]
    return found
