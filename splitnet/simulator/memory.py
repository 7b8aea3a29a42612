"""Memory of every device over a step: tensors as intervals of bytes, added up.

    weights          at home, for the whole step
    slots            of the optimizer, beside trained weights
    gradients        of weights, from the backward task that makes them to the end
    activations      outputs while they are read, and what is saved for backward tasks:
                     a function holds all of it until its backward pass ends
    receive buffers  copies of tensors, weights and gradients from other devices
    workspace        temporaries of tasks, and gradients of activations

Optimizer updates run one variable after the other: their temporaries are those of the
largest. The memory of a device is that of its fullest moment, so it is the peak of its
curve. TensorFlow's allocator holds more than its tensors need; that is not counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from splitnet.core.timeline import Memory
from splitnet.simulator.event_loop import StepRun
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import (
    ACTIVATION,
    GRADIENT,
    WEIGHTS,
    WEIGHTS_GRADIENT,
    SharedWeight,
)
from splitnet.simulator.units import cut_run

__all__ = ["Curve", "MemoryDetail", "functions_of", "memory_detail", "memory_of"]

_WEIGHTS, _GRADIENTS, _SLOTS, _ACTIVATIONS, _RECEIVED, _WORKSPACE = range(6)

Interval = tuple[int, int, float, float, int, int]
"""Device, kind, seconds from and to, bytes, and the unit whose they are."""

Times = np.ndarray[tuple[int], np.dtype[np.float64]]
Held = np.ndarray[tuple[int, int], np.dtype[np.int64]]

Curve = tuple[tuple[float, int], ...]
"""Bytes in use after each moment at which they change."""


class MemoryDetail(NamedTuple):
    """One device's memory over time by kind, and the largest at its fullest moment.

    `curve` holds moments and the bytes of each kind after them, in the order of the
    fields of `Memory`; `largest` holds (kind, part, bytes).
    """

    curve: list[tuple[float, list[int]]]
    largest: list[tuple[int, str, int]]


def memory_of(
    step: StepGraph, device: Sequence[int], run: StepRun
) -> tuple[list[Memory], list[Curve]]:
    """Each device's memory at its fullest moment, and its bytes in use over time.

    O((units + edges) log units).
    """
    sums = [_sum(intervals) for intervals in _by_device(step, device, run)]
    return (
        [Memory(*held[int(held.sum(axis=1).argmax())].tolist()) for _, held in sums],
        [tuple(zip(times.tolist(), held.sum(axis=1).tolist())) for times, held in sums],
    )


def memory_detail(
    step: StepGraph, device: Sequence[int], run: StepRun, most: int
) -> list[MemoryDetail]:
    """What each device holds when, and at most `most` of the largest at its peak."""
    found = []
    for intervals in _by_device(step, device, run):
        times, held = _sum(intervals)
        peak = times[int(held.sum(axis=1).argmax())]
        sizes: dict[tuple[int, str], int] = {}
        for _, kind, start, stop, size, unit in intervals:
            if start <= peak < stop:
                key = kind, step.parts[unit]
                sizes[key] = sizes.get(key, 0) + size
        largest = sorted(sizes, key=lambda key: -sizes[key])[:most]
        found.append(
            MemoryDetail(
                list(zip(times.tolist(), held.tolist())),
                [(*key, sizes[key]) for key in largest],
            )
        )
    return found


def _by_device(
    step: StepGraph, device: Sequence[int], run: StepRun
) -> list[list[Interval]]:
    found: list[list[Interval]] = [[] for _ in range(step.device_count)]
    for one in _Intervals(step, device, run).all():
        if one[4] > 0 and one[3] > one[2]:
            found[one[0]].append(one)
    return found


def functions_of(step: StepGraph, device: Sequence[int]) -> list[list[int]]:
    """The units of each function, with unit u on device number `device[u]`.

    Units of a function are connected on one device and have the same number of hops
    before them and after them. O(units + edges).
    """
    n = step.count
    sources: list[list[int]] = [[] for _ in range(n)]
    reads: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    readers = {reader for edge in step.edges for reader in edge.readers}
    for number, edge in enumerate(step.edges):
        if edge.source in readers or step.forward[0][edge.source]:
            for reader in edge.readers:  # an input of the model is no function
                sources[reader].append(edge.source)
                reads[reader].append((edge.source, number))
    before, after, leader = [0] * n, [0] * n, list(range(n))
    for unit in range(n):
        for source in sources[unit]:
            hops = before[source] + (device[source] != device[unit])
            before[unit] = max(before[unit], hops)
    for unit in reversed(range(n)):
        for source in sources[unit]:
            hops = after[unit] + (device[source] != device[unit])
            after[source] = max(after[source], hops)

    def find(unit: int) -> int:
        while leader[unit] != unit:
            leader[unit] = unit = leader[leader[unit]]
        return unit

    rank = list(zip(device, before, after))
    for unit in range(n):
        for source in sources[unit]:
            if rank[source] == rank[unit]:
                leader[find(unit)] = find(source)
    runs: dict[int, list[int]] = {}
    for unit in range(n):
        runs.setdefault(find(unit), []).append(unit)
    sizes = dict(enumerate(step.calls))
    return [
        list(function)
        for run in runs.values()
        for function in cut_run(run, {unit: reads[unit] for unit in run}, sizes)
    ]


def _sum(intervals: Sequence[Interval]) -> tuple[Times, Held]:
    """The moments at which bytes change, and the bytes of each kind after each."""
    if not intervals:
        return np.zeros(1), np.zeros((1, 6), dtype=np.int64)
    _, kinds, starts, stops, sizes, _ = zip(*intervals)
    count = len(intervals)
    times = np.array([*starts, *stops])
    changes = np.zeros((2 * count, 6), dtype=np.int64)
    changes[np.arange(count), kinds] = sizes
    changes[np.arange(count, 2 * count), kinds] = -np.array(sizes, dtype=np.int64)
    order = np.argsort(times, kind="stable")
    times, held = times[order], np.cumsum(changes[order], axis=0)
    last = np.append(times[1:] != times[:-1], True)  # of the changes at one moment
    return times[last], held[last]


class _Intervals:
    """All tensors of one run: where, when and how large they are."""

    def __init__(self, step: StepGraph, device: Sequence[int], run: StepRun) -> None:
        self.step, self.device, self.run, self.n = step, device, run, step.count
        self.end = run.seconds
        self.sent = {  # when the copy of a gradient has left its device
            (copy.kind, copy.item, copy.source): copy.stop
            for copy in run.copies
            if copy.kind in (GRADIENT, WEIGHTS_GRADIENT)
        }
        self.begins, self.ends = self._functions()
        self.last_read = self._last_reads()

    def all(self) -> Iterator[Interval]:
        """Every interval of every device."""
        yield from self._units()
        yield from self._outputs()
        yield from self._activation_gradients()
        for number, weight in enumerate(self.step.weights):
            yield from self._shared_gradients(number, weight)
        yield from self._received()

    def _forward(self, unit: int) -> tuple[float, float]:
        return self.run.start[unit], self.run.stop[unit]

    def _backward(self, unit: int) -> tuple[float, float]:
        return self.run.start[self.n + unit], self.run.stop[self.n + unit]

    def _functions(self) -> tuple[list[float], list[float]]:
        """Per unit, when the backward pass of its function begins and ends."""
        begins, ends = list(self.run.start[self.n :]), list(self.run.stop[self.n :])
        for units in functions_of(self.step, self.device):
            back = [u for u in units if self.run.ran[self.n + u]]
            begin = min((self.run.start[self.n + u] for u in back), default=0.0)
            end = max((self.run.stop[self.n + u] for u in back), default=0.0)
            for u in back:
                begins[u], ends[u] = begin, end
        return begins, ends

    def _units(self) -> Iterator[Interval]:
        """What belongs to units: weights, slots, gradients, saved and passing bytes."""
        step, n, end = self.step, self.n, self.end
        own = [0] * n
        for weight in step.all_weights:
            if len(weight.users) == 1:
                own[weight.users[0]] += weight.gradient_bytes
        for u, where in enumerate(self.device):
            trained = step.trained_bytes[u]
            yield where, _WEIGHTS, 0.0, end, step.weight_bytes[u], u
            yield where, _SLOTS, 0.0, end, trained * step.slot_copies, u
            yield where, _WORKSPACE, *self._forward(u), step.forward_workspace[u], u
            if self.run.ran[n + u]:
                back = self._backward(u)
                yield (
                    where,
                    _ACTIVATIONS,
                    self.run.start[u],
                    self.ends[u],
                    step.saved_bytes[u],
                    u,
                )
                early = step.early_workspace[u]
                yield where, _WORKSPACE, self.begins[u], back[0], early, u
                yield where, _WORKSPACE, *back, step.backward_workspace[u], u
                yield where, _GRADIENTS, back[0], end, own[u], u
            if self.run.ran[2 * n + u]:
                times = self.run.start[2 * n + u], self.run.stop[2 * n + u]
                yield where, _WORKSPACE, *times, step.largest_update[u], u

    def _last_reads(self) -> list[dict[int, float]]:
        """Per edge and device, when its bytes are read for the last time."""
        found: list[dict[int, float]] = []
        for edge in self.step.edges:
            last = {self.device[edge.source]: self.run.stop[edge.source]}
            reads = [(r, self.run.stop[r]) for r in edge.readers]
            reads += [(u, self.ends[u]) for u in edge.saved_by]
            for unit, time in reads:
                where = self.device[unit]
                last[where] = max(last.get(where, 0.0), time)
            found.append(last)
        for copy in self.run.copies:
            if copy.kind == ACTIVATION:
                last = found[copy.item]
                last[copy.source] = max(last[copy.source], copy.stop)
        return found

    def _outputs(self) -> Iterator[Interval]:
        """Outputs of units on the device that makes them."""
        for edge, last in zip(self.step.edges, self.last_read):
            where = self.device[edge.source]
            start = self.run.start[edge.source]
            yield where, _ACTIVATIONS, start, last[where], edge.bytes, edge.source

    def _activation_gradients(self) -> Iterator[Interval]:
        """Gradients of edges: of every reader until they are summed, then the sum."""
        for number, edge in enumerate(self.step.edges):
            for where, units in self._by_device(edge.gradients_from).items():
                times = [self._backward(unit) for unit in units]
                summed = max(stop for _, stop in times)
                gone = self.sent.get(
                    (GRADIENT, number, where), self._backward(edge.source)[1]
                )
                for start, _ in times:
                    yield where, _WORKSPACE, start, summed, edge.bytes, edge.source
                yield where, _WORKSPACE, summed, gone, edge.bytes, edge.source

    def _shared_gradients(
        self, number: int, weight: SharedWeight
    ) -> Iterator[Interval]:
        """Gradients of a weight of several units: one sum per device that makes some.

        Further contributions are temporaries of the backward tasks that make them; but
        rows are put side by side, in one copy when the last are there.
        """
        owner = weight.users[0]
        home = self.device[owner]
        for where, units in self._by_device(weight.gradients_from).items():
            times = sorted(self._backward(unit) for unit in units)
            gone = self.sent.get((WEIGHTS_GRADIENT, number, where), self.end)
            kind = _GRADIENTS if where == home else _WORKSPACE
            if weight.has_rows:
                rows = dict(zip(weight.gradients_from, weight.row_bytes))
                for unit in units:
                    yield where, kind, self._backward(unit)[0], gone, rows[unit], owner
                if len(units) > 1:
                    every = sum(rows[unit] for unit in units)
                    yield where, _WORKSPACE, *times[-1], every, owner
                continue
            yield where, kind, times[0][0], gone, weight.bytes, owner
            for start, stop in times[1:]:
                yield where, _WORKSPACE, start, stop, weight.bytes, owner

    def _received(self) -> Iterator[Interval]:
        """Copies, on the device that receives them, until they are read there."""
        for copy in self.run.copies:
            if copy.kind in (ACTIVATION, GRADIENT):
                owner = self.step.edges[copy.item].source
                gone = self._backward(owner)[1]
                if copy.kind == ACTIVATION:
                    gone = self.last_read[copy.item][copy.target]
            else:
                users = self.step.weights[copy.item].users
                owner = users[0]
                gone = self.run.stop[2 * self.n + owner]
                if copy.kind == WEIGHTS:
                    here = [u for u in users if self.device[u] == copy.target]
                    gone = max(self.run.stop[t] for u in here for t in (u, self.n + u))
            yield copy.target, _RECEIVED, copy.start, gone, copy.bytes, owner

    def _by_device(self, units: Iterable[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for unit in units:
            found.setdefault(self.device[unit], []).append(unit)
        return found
