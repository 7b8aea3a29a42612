"""List execution of a step in virtual time: the reference of the compiled search.

    gpu:0   |== a ==|           |== a' ==|
    link            |~ a->b ~|  ^         ~ copy   ' backward
    gpu:1                    |= b =|= b' =|

Every device runs one task at a time and every direction of a link carries one copy at a
time, both in the order in which tasks and copies became ready. TensorFlow's executor
does so with one stream per device. Ties are broken by the number of the task; a copy
goes before a task. Tasks of zero seconds occupy nothing. Of the latency of a copy only
the gap occupies the link (Culler et al., "LogP", 1993; Alexandrov et al., "LogGP",
1995).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt

from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import (
    ACTIVATION,
    GRADIENT,
    WEIGHTS,
    GradientReduction,
)

_COPIES_FIRST = 2**62


@dataclass(slots=True)
class Moved:
    """One copy: `kind` indexes COPY_KINDS, `item` the edges or the shared weights."""

    kind: int
    item: int
    source: int
    target: int
    bytes: int
    start: float = 0.0
    stop: float = 0.0


@dataclass(slots=True)
class StepRun:
    """Start and end of every task: n forward, then n backward, then n update tasks.

    Unlike in a `TaskGraph`, backward tasks are in the order of the units.
    """

    start: list[float]
    stop: list[float]
    ran: list[bool]
    copies: list[Moved] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The makespan."""
        last_copy = max((copy.stop for copy in self.copies), default=0.0)
        return max(max(self.stop, default=0.0), last_copy)


def run_step(step: StepGraph, device: Sequence[int]) -> StepRun:
    """Run the step with unit u on device number `device[u]`.

    O((units + edges) log units). Deterministic.
    """
    loop = _Loop(step, device)
    loop.run()
    n = step.count
    columns: tuple[list[Any], ...] = loop.start, loop.stop, loop.ran
    for column in columns:
        column[n : 2 * n] = reversed(column[n : 2 * n])
    return StepRun(loop.start, loop.stop, loop.ran, loop.copies)


class _Loop:
    """The state of one run; tasks are numbered as in `task_graph`."""

    def __init__(self, step: StepGraph, device: Sequence[int]) -> None:
        count = 3 * step.count
        self.step, self.tasks = step, step.tasks
        self.place = [*device, *reversed(device), *device]
        self.start, self.stop = [0.0] * count, [0.0] * count
        self.ran = [False] * count
        self.ready = [0.0] * count
        self.pending = list(step.tasks.pending)
        self.device_free = [0.0] * step.device_count
        self.link_free: dict[tuple[int, int], float] = {}
        self.copies: list[Moved] = []
        self.receivers: list[Sequence[int]] = []  # tasks that wait for each copy
        self.queue: list[tuple[float, int]] = []
        # Per reduction, how many contributors on each device have not run yet.
        self.missing: list[dict[int, int]] = []

    def run(self) -> None:
        """Start what is ready until nothing is left."""
        for reduction in self.tasks.reductions:
            left: dict[int, int] = {}
            for task in reduction.contributors:
                left[self.place[task]] = left.get(self.place[task], 0) + 1
            self.pending[reduction.task] += len(left)
            self.missing.append(left)
        for number, weight in enumerate(self.step.weights):
            home = weight.users[0]
            for user in weight.users:
                self.pending[user] += self.place[user] != self.place[home]
            self._deliver(WEIGHTS, number, home, weight.users, weight.bytes, 0.0)
        ready = (u for u in range(self.step.count) if not self.pending[u])
        self.queue += [(0.0, unit) for unit in ready]
        heapify(self.queue)
        while self.queue:
            time, task = heappop(self.queue)
            if task < 0:
                self._copy(task + _COPIES_FIRST, time)
            else:
                self._execute(task, time)

    def _arrive(self, task: int, time: float) -> None:
        """Note that something the task depends on is there."""
        self.ready[task] = max(self.ready[task], time)
        self.pending[task] -= 1
        if not self.pending[task]:
            heappush(self.queue, (self.ready[task], task))

    def _deliver(
        self,
        kind: int,
        item: int,
        owner: int,
        readers: Sequence[int],
        size: int,
        time: float,
    ) -> None:
        """Give what a unit has to its readers: here at once, elsewhere by one copy."""
        where, away = self.place[owner], dict[int, list[int]]()
        for reader in readers:
            if self.place[reader] != where:
                away.setdefault(self.place[reader], []).append(reader)
            elif kind == ACTIVATION:
                self._arrive(reader, time)
        for target, some in away.items():
            self._send(Moved(kind, item, where, target, size), some, time)

    def _send(self, copy: Moved, receivers: Sequence[int], time: float) -> None:
        heappush(self.queue, (time, len(self.copies) - _COPIES_FIRST))
        self.copies.append(copy)
        self.receivers.append(receivers)

    def _copy(self, number: int, time: float) -> None:
        copy, step = self.copies[number], self.step
        link = copy.source, copy.target
        known = step.edges[copy.item].seconds if copy.kind < WEIGHTS else None
        overlap = 0.0  # how long before its end the next copy may start
        if known is None:
            known = step.latency[link[0]][link[1]]
            overlap = known - step.gap[link[0]][link[1]]
            known += copy.bytes * step.seconds_per_byte[link[0]][link[1]]
        copy.start = max(time, self.link_free.get(link, 0.0))
        copy.stop = copy.start + known
        self.link_free[link] = copy.stop - overlap
        for task in self.receivers[number]:
            self._arrive(task, copy.stop)

    def _execute(self, task: int, time: float) -> None:
        where = self.place[task]
        seconds = self.step.task_seconds[where][task]
        if seconds > 0.0:
            time = max(time, self.device_free[where])
            self.device_free[where] = time + seconds
        self.start[task] = time
        self.stop[task] = time = time + seconds
        self.ran[task] = True
        for successor in self.tasks.successors[task]:
            self._arrive(successor, time)
        if task < self.step.count:
            for number in self.tasks.outputs[task]:
                edge = self.step.edges[number]
                self._deliver(ACTIVATION, number, task, edge.readers, edge.bytes, time)
        else:
            self._contribute(task)

    def _contribute(self, task: int) -> None:
        """Send each sum of gradients home when its last contributor here has run."""
        where = self.place[task]
        for number in self.tasks.contributes[task]:
            reduction = self.tasks.reductions[number]
            self.missing[number][where] -= 1
            if self.missing[number][where]:
                continue
            here = [self.place[one] == where for one in reduction.contributors]
            last = max(self.stop[t] for t, h in zip(reduction.contributors, here) if h)
            home = self.place[reduction.task]
            if home == where:
                self._arrive(reduction.task, last)
            else:
                size = reduction.bytes_from(here)
                copy = Moved(reduction.kind, reduction.item, where, home, size)
                self._send(copy, (reduction.task,), last)


class Traffic:
    """What the copies of a step carry, as a function of where its units are."""

    def __init__(self, step: StepGraph) -> None:
        last = 2 * step.count - 1
        ends: list[tuple[int, Iterable[int], int]] = [
            *((one.source, one.readers, one.bytes) for one in step.edges),
            *((one.users[0], one.users, one.bytes) for one in step.weights),
        ]
        self.rows: list[tuple[int, list[int], GradientReduction]] = []
        for one in step.tasks.reductions:
            home = last - one.task if one.kind == GRADIENT else one.task - last - 1
            units = [last - task for task in one.contributors]
            if one.row_bytes:
                self.rows.append((home, units, one))
            else:
                ends.append((home, units, one.bytes))
        self.home = np.array([home for home, _, _ in ends], np.int64)
        self.sizes = np.array([size for _, _, size in ends], np.int64)
        pairs = [(item, unit) for item, one in enumerate(ends) for unit in one[1]]
        self.item, self.unit = np.array(pairs, np.int64).reshape(-1, 2).T

    def bytes(self, where: npt.NDArray[np.int64], devices: int) -> int:
        """Bytes of all copies with unit u on device `where[u]` of so many."""
        away = np.zeros((len(self.sizes), devices), np.bool_)
        away[self.item, where[self.unit]] = True
        away[np.arange(len(self.sizes)), where[self.home]] = False
        total = int(away.sum(axis=1) @ self.sizes)
        for home, units, one in self.rows:
            for device in {int(where[unit]) for unit in units} - {int(where[home])}:
                total += one.bytes_from([where[unit] == device for unit in units])
        return total
