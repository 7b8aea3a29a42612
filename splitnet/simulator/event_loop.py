"""List execution of a step in virtual time: the reference of the compiled search.

    gpu:0   |== a ==|           |== a' ==|
    link            |~ a->b ~|  ^         ~ copy   ' backward
    gpu:1                    |= b =|= b' =|

Every device runs one task at a time and every direction of a link carries one copy at a
time, both in the order in which tasks and copies became ready. TensorFlow's executor
does so with one stream per device. Ties are broken by the number of the task; a copy
goes before a task. Tasks of zero seconds occupy nothing. Of the latency of a copy only
the gap occupies the link (Culler et al., "LogP", 1993; Alexandrov et al., "LogGP",
1995); its overhead occupies the devices instead ("LogGOPS", Hoefler et al. 2010).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, compress
from typing import Any

from splitnet.simulator.step_graph import StepGraph

_COPIES_FIRST = 2**62


@dataclass(slots=True)
class Moved:
    """One copy of an item of the step, or of the sum of its gradients, for tasks."""

    item: int
    is_gradient: bool
    source: int
    target: int
    bytes: int
    tasks: Sequence[int]
    start: float = 0.0
    stop: float = 0.0


@dataclass(slots=True)
class StepRun:
    """Times of every task: n forward, then n backward, then n update tasks.

    Unlike in a `StepGraph`, backward tasks are in the order of the units. A task is
    `ready` when all is there that it depends on; `stop` is 0 if it does not run.
    """

    ready: list[float]
    start: list[float]
    stop: list[float]
    ran: list[bool]
    copies: list[Moved]

    @property
    def seconds(self) -> float:
        """The makespan."""
        return max([0.0, *self.stop, *(copy.stop for copy in self.copies)])


def run_step(step: StepGraph, device: Sequence[int]) -> StepRun:
    """Run the step with unit u on device `device[u]`; O((units + edges) log units)."""
    return _Loop(step, device).run()


class _Loop:
    def __init__(self, step: StepGraph, device: Sequence[int]) -> None:
        count = 3 * step.count
        self.step, self.items = step, step.items
        self.place = [*device, *reversed(device), *device]
        self.start, self.stop = [0.0] * count, [0.0] * count
        self.ran = [False] * count
        self.ready, self.turn = [0.0] * count, [0.0] * count
        # Per task those that wait for it, and whether they depend on it.
        self.after = [[(task, True) for task in each] for each in step.successors]
        for task, other in step.assumed:
            self.after[other].append((task, False))
        self.pending = [0] * count  # what each task waits for
        for task, _ in chain(*self.after):
            self.pending[task] += 1
        self.device_free = [0.0] * step.device_count
        self.link_free: dict[tuple[int, int], float] = {}
        self.copies: list[Moved] = []
        self.queue: list[tuple[float, int]] = []
        # Per item and device, how many that make its gradient there have not run yet.
        makers = (item.gradients_from for item in self.items)
        self.missing = [Counter(self.place[unit] for unit in each) for each in makers]

    def run(self) -> StepRun:
        for number, item in enumerate(self.items):
            self.pending[self.step.sum_task(item)] += len(self.missing[number])
            for reader in item.readers:
                away = self.place[reader] != self.place[item.source]
                self.pending[reader] += away or not item.is_weight
            if item.is_weight:
                self._give(number, 0.0)
        for unit in range(self.step.count):
            if not self.pending[unit]:
                heappush(self.queue, (0.0, unit))
        while self.queue:
            time, task = heappop(self.queue)
            if task < 0:
                self._copy(task + _COPIES_FIRST, time)
            else:
                self._execute(task, time)
        n = self.step.count
        columns: tuple[list[Any], ...] = self.ready, self.start, self.stop, self.ran
        for column in columns:
            column[n : 2 * n] = reversed(column[n : 2 * n])
        return StepRun(self.ready, self.start, self.stop, self.ran, self.copies)

    def _arrive(self, task: int, time: float, needed: bool = True) -> None:
        """Note that something the task waits for is there; it may be needed."""
        self.turn[task] = max(self.turn[task], time)
        if needed:
            self.ready[task] = max(self.ready[task], time)
        self.pending[task] -= 1
        if not self.pending[task]:
            heappush(self.queue, (self.turn[task], task))

    def _give(self, number: int, time: float) -> None:
        """Give an item to its readers: here at once, elsewhere by one copy."""
        item = self.items[number]
        where, away = self.place[item.source], dict[int, list[int]]()
        for reader in item.readers:
            if self.place[reader] != where:
                away.setdefault(self.place[reader], []).append(reader)
            elif not item.is_weight:
                self._arrive(reader, time)
        for target, readers in away.items():
            self._send(Moved(number, False, where, target, item.bytes, readers), time)

    def _send(self, copy: Moved, time: float) -> None:
        heappush(self.queue, (time, len(self.copies) - _COPIES_FIRST))
        self.copies.append(copy)

    def _copy(self, number: int, time: float) -> None:
        copy, step = self.copies[number], self.step
        a, b = link = copy.source, copy.target
        seconds = self.items[copy.item].seconds
        overlap = 0.0  # how long before its end the next copy may start
        if seconds is None:
            latency, busy = step.latency[a][b], copy.bytes * step.overhead[a][b]
            overlap = latency - step.gap[a][b] + busy
            seconds = latency + copy.bytes * step.seconds_per_byte[a][b] + busy
            for end in link if busy else ():
                self.device_free[end] = max(self.device_free[end], time) + busy
        copy.start = max(time, self.link_free.get(link, 0.0))
        copy.stop = copy.start + seconds
        self.link_free[link] = copy.stop - overlap
        for task in copy.tasks:
            self._arrive(task, copy.stop)

    def _execute(self, task: int, time: float) -> None:
        where, n = self.place[task], self.step.count
        seconds = self.step.task_seconds[where][task]
        if seconds > 0.0:
            time = max(time, self.device_free[where])
            self.device_free[where] = time + seconds
        self.start[task] = time
        self.stop[task] = time = time + seconds
        self.ran[task] = True
        for other, needed in self.after[task]:
            self._arrive(other, time, needed)
        for number in self.step.outputs[task] if task < n else ():
            self._give(number, time)
        back = n <= task < 2 * n
        for number in self.step.contributes[2 * n - 1 - task] if back else ():
            self.missing[number][where] -= 1
            if not self.missing[number][where]:
                self._send_sum(number, where)

    def _send_sum(self, number: int, where: int) -> None:
        """Send the sum of gradients home whose last contributor here has run."""
        item, last = self.items[number], 2 * self.step.count - 1
        here = [self.place[unit] == where for unit in item.gradients_from]
        time = max(self.stop[last - u] for u in compress(item.gradients_from, here))
        task, home = self.step.sum_task(item), self.place[item.source]
        if home == where:
            self._arrive(task, time)
        else:
            size = item.sum_bytes(here)
            self._send(Moved(number, True, where, home, size, [task]), time)
