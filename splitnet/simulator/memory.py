"""What follows from a placement: the step in time, and the memory of every device.

Memory is that of tensors, as intervals of bytes, added up:

    weights          at home, for the whole step
    slots            of the optimizer, beside trained weights
    gradients        of weights, from the backward task that makes them to their update
    activations      outputs while they are read, and what is saved for backward tasks:
                     a function holds all of it until its backward pass ends
    receive buffers  copies of tensors, weights and gradients from other devices
    workspace        temporaries of tasks, and gradients of activations

While a task runs TensorFlow starts the next one of that device if its inputs are there,
so two tasks side by side hold what they need. Where they are backward tasks of two
micro-batches, gradients of weights are made last, so that what they are made of stays.
Updates run beside other tasks, one variable after the other: their temporaries are
those of the largest, and without slots there are none; rows of a table may be copied.
What TensorFlow's allocator holds beside its tensors is not counted.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from splitnet.core.cluster import Cluster
from splitnet.core.graph import grouped
from splitnet.core.timeline import PHASES, Copy, Memory, Task, Timeline
from splitnet.simulator.event_loop import Moved, StepRun, run_step
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.tensors import Item
from splitnet.simulator.units import function_runs

_WEIGHTS, _GRADIENTS, _SLOTS, _ACTIVATIONS, _RECEIVED, _WORKSPACE = range(6)

_Interval = tuple[int, int, float, float, int]
"""Kind, the unit whose bytes they are, seconds from and to, bytes."""


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """What one device holds over a step: `intervals`, added up.

    `held` has the bytes after each of the `times`, kinds as the fields of `Memory`.
    """

    times: npt.NDArray[np.float64]
    held: npt.NDArray[np.int64]
    intervals: Sequence[_Interval]

    @property
    def curve(self) -> tuple[tuple[float, int], ...]:
        """Bytes in use after each moment."""
        return tuple(zip(self.times.tolist(), self.held.sum(axis=1).tolist()))

    @property
    def peak(self) -> Memory:
        """Bytes of each kind at the fullest moment."""
        return Memory(*self.held[self.held.sum(axis=1).argmax()].tolist())

    def largest(self, parts: Sequence[str], most: int) -> list[tuple[int, str, int]]:
        """What is largest at the fullest moment, as (kind, part, bytes)."""
        peak = self.times[self.held.sum(axis=1).argmax()]
        sizes = Counter[tuple[int, str]]()
        for kind, unit, start, stop, size in self.intervals:
            if start <= peak < stop:
                sizes[kind, parts[unit]] += size
        return [(*key, size) for key, size in sizes.most_common(most)]


def memory_of(step: StepGraph, on: Sequence[int], run: StepRun) -> list[DeviceMemory]:
    """Each device's memory, with unit u on `on[u]`. O((units + edges) log units)."""
    found = []
    for intervals in _Held(step, on, run).intervals:
        kinds, _, starts, stops, sizes = zip(*(intervals or [(0, 0, 0.0, 0.0, 0)]))
        times, at = np.unique([*starts, *stops], return_inverse=True)
        held = np.zeros((len(times), 6), np.int64)
        np.add.at(held, (at[: len(sizes)], kinds), sizes)
        np.subtract.at(held, (at[len(sizes) :], kinds), sizes)
        found.append(DeviceMemory(times, held.cumsum(axis=0), intervals))
    return found


def functions_of(step: StepGraph, device: Sequence[Hashable]) -> list[Sequence[int]]:
    """The units of each function, with unit u on `device[u]`, a number or a name."""
    reads = [[(step.edges[i].source, i) for i in own] for own in step.reads]
    return function_runs(reads, device, [unit.calls for unit in step.units])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a placement: the step, and each device's fullest moment."""

    timeline: Timeline
    memory: Mapping[str, Memory]


def lacking_bytes(cluster: Cluster, memory: Mapping[str, Memory]) -> dict[str, int]:
    """What each device lacks that holds more than it has room for."""
    excess = {d.name: memory[d.name].total - d.memory_bytes for d in cluster}
    return {name: count for name, count in excess.items() if count > 0}


def outcome_of(cluster: Cluster, step: StepGraph, where: Mapping[str, str]) -> Outcome:
    """Simulate a step graph with parts on the devices `where`."""
    names, number = [*cluster.names], cluster.number
    device = [number[where[part]] for part in step.parts]
    run = run_step(step, device)
    held = dict(zip(names, memory_of(step, device, run)))
    ran = (task for task, ran in enumerate(run.ran) if ran)
    tasks = [
        Task(
            part=step.parts[unit],
            device=names[device[unit]],
            phase=PHASES[phase or step.units[unit].explicit_backward],
            start=run.start[task],
            stop=run.stop[task],
            microbatch=unit * step.microbatches // step.count,
        )
        for task, (phase, unit) in ((task, divmod(task, step.count)) for task in ran)
    ]
    # Ties stand as forward, backward, update, then unit.
    tasks.sort(key=lambda task: (task.start, task.stop))
    copies = sorted(run.copies, key=attrgetter("start", "stop", "source", "target"))
    timeline = Timeline(
        tasks=tuple(tasks),
        copies=tuple(_copy(step, names, device, moved) for moved in copies),
        devices=tuple(names),
        memory={name: one.curve for name, one in held.items()},
    )
    return Outcome(timeline, {name: one.peak for name, one in held.items()})


def _copy(step: StepGraph, names: list[str], device: list[int], moved: Moved) -> Copy:
    """A copy; it leaves one unit, and the first unit that it serves reads it."""
    item, back = step.items[moved.item], moved.is_gradient
    away = moved.source if back else moved.target
    others = item.gradients_from if back else item.readers
    other = next(unit for unit in others if device[unit] == away)
    rows = sum(n for u, n in zip(others, item.row_bytes) if device[u] == away)
    source, target = (other, item.source) if back else (item.source, other)
    kind = "weights" if item.is_weight else "" if back else "activation"
    return Copy(
        source=step.parts[source],
        target=step.parts[target],
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=f"{kind} gradient".strip() if back else kind,
        phase=PHASES[back or step.units[target].explicit_backward],
        bytes=moved.bytes,
        start=moved.start,
        stop=moved.stop,
        microbatch=source * step.microbatches // step.count,
        batch_bytes=back * rows if item.is_weight else moved.bytes * (not item.fixed),
    )


class _Held:
    """The intervals of one run, per device. Tasks are numbered as in `StepRun`."""

    def __init__(self, step: StepGraph, device: Sequence[int], run: StepRun) -> None:
        self.step, self.device, self.n = step, device, step.count
        self.start, self.stop, self.end = run.start, run.stop, run.seconds
        self.piece = step.count // step.microbatches  # units of a micro-batch
        self.intervals: list[list[_Interval]] = [[] for _ in range(step.device_count)]
        self.beside = [False] * step.count  # another backward task of the unit
        self.begin = self._begin(run)
        # When the backward pass of the function of each unit begins and ends.
        self.done = [self._done(unit) for unit in range(self.n)]
        self.opens, self.closes = self.begin[self.n :], list(self.done)
        for units in functions_of(step, device) if step.microbatches > 1 else ():
            back = [u for u in units if step.units[u].has_backward]
            opens = min((self.begin[self.n + u] for u in back), default=0.0)
            closes = max((self.done[u] for u in back), default=0.0)
            for u in back:
                self.opens[u], self.closes[u] = opens, closes
        for unit in range(self.n):
            self._unit(unit)
        copies = grouped(run.copies, lambda copy: (copy.item, copy.is_gradient))
        for number, item in enumerate(step.items):
            both = (copies.get((number, back), []) for back in (False, True))
            (self._shared if item.is_weight else self._edge)(item, *both)

    def _hold(
        self, where: int, kind: int, unit: int, start: float, stop: float, size: int
    ) -> None:
        if size > 0 and stop > start:
            self.intervals[where].append((kind, unit, start, stop, size))

    def _begin(self, run: StepRun) -> list[float]:
        """When each forward and backward task begins to hold what it needs.

        That is when its inputs exist and the task before it on its device has begun. A
        backward task may begin together with that of the micro-batch before, if its
        forward task and the gradients that its device makes are done.
        """
        n, device = self.n, self.device
        begin = list(self.start)
        latest = [0.0] * self.step.device_count
        for task in sorted(range(2 * n), key=lambda task: (self.start[task], task)):
            if self.stop[task] > self.start[task]:
                where = device[task % n]
                begin[task] = min(begin[task], max(run.ready[task], latest[where]))
                latest[where] = self.start[task]
        givers: list[list[int]] = [[] for _ in range(n)]
        for edge in self.step.edges:
            here = device[edge.source]
            givers[edge.source] += [r for r in edge.gradients_from if device[r] == here]
        for u in sorted(range(self.piece, n), key=lambda u: (self.start[n + u], -u)):
            before = n + u - self.piece
            ready = self.stop[u] - (self.start[u] - begin[u])
            for r in givers[u]:  # those of its gradients that are made here
                ready = max(ready, begin[n + r] + self.stop[n + r] - self.start[n + r])
            begin[n + u] = min(begin[n + u], max(self.start[before], ready))
            if begin[n + u] < self.stop[before]:
                self.beside[u] = self.beside[u - self.piece] = True
        return begin

    def _done(self, unit: int) -> float:
        """When the backward function of a unit ends; sums behind it take an update."""
        start, stop = self.start[self.n + unit], self.stop[self.n + unit]
        update = 2 * self.n + unit % self.piece
        sums = min(self.stop[update] - self.start[update], (stop - start) / 2)
        return stop - sums * (unit >= self.piece)

    def _updated(self, weight: Item, ready: float) -> float:
        """When a weight is updated whose gradient is there: beside other tasks."""
        task = 2 * self.n + weight.source
        return ready + self.stop[task] - self.start[task]

    def _unit(self, u: int) -> None:
        step, n, unit = self.step, self.n, self.step.units[u]

        def hold(kind: int, start: float, stop: float, size: int) -> None:
            self._hold(self.device[u], kind, u, start, stop, size)

        ahead, back, inside = self.begin[u], self.begin[n + u], unit.memory
        hold(_WEIGHTS, 0.0, self.end, unit.weight_bytes)
        hold(_SLOTS, 0.0, self.end, unit.trained_bytes * step.slot_copies)
        hold(_WORKSPACE, ahead, self.stop[u] - (self.start[u] - ahead), inside.forward)
        if unit.has_backward:
            done, first = self.done[u], self.opens[u] == back
            hold(_ACTIVATIONS, ahead, self.closes[u], inside.saved)
            hold(_WORKSPACE, self.opens[u], back, inside.early)
            more = inside.waiting * self.beside[u] + inside.given * first
            hold(_WORKSPACE, back, done, inside.backward + more)
            # They arise one after the other: most of them in the second half.
            hold(_GRADIENTS, (back + done) / 2, done, inside.learned)
            # Slots need squares of rows; a lookup that begins a function's backward
            # pass returns what it is given, which the caller holds as well.
            copied = step.slot_copies > 0 or unit.calls == 1 and first
            for weight in (one for one in unit.trained if len(one.readers) == 1):
                end, size = self._updated(weight, self.closes[u]), weight.gradient_bytes
                hold(_GRADIENTS, done, end, size)
                hold(_WORKSPACE, done, end, size * (weight.has_rows and copied))
        span = self.start[2 * n + u], self.stop[2 * n + u]
        largest = max((weight.bytes for weight in unit.trained), default=0)
        hold(_WORKSPACE, *span, step.slot_copies * largest)

    def _edge(self, edge: Item, received: list[Moved], sent: list[Moved]) -> None:
        """The copies of an output; its gradients on a device stay until summed."""
        device, n, owner = self.device, self.n, edge.source
        home, size = device[owner], edge.bytes
        gone = {home: max([self.stop[owner], *(copy.stop for copy in received)])}
        reads = [(r, self.stop[r]) for r in edge.readers]
        for unit, time in reads + [(u, self.closes[u]) for u in edge.saved_by]:
            gone[device[unit]] = max(gone.get(device[unit], 0.0), time)
        view = [] if edge.view_of is None else [self.step.edges[edge.view_of].source]
        own = size * (view != [owner])  # a view of the unit's own output has its memory
        self._hold(home, _ACTIVATIONS, owner, self.begin[owner], gone[home], own)
        read = self.stop[n + owner]
        for copy in received + sent:
            last = read if copy.is_gradient else gone[copy.target]
            self._hold(copy.target, _RECEIVED, owner, copy.start, last, copy.bytes)
        left = {copy.source: copy.stop for copy in sent}
        for where, units in grouped(edge.gradients_from, device.__getitem__).items():
            summed = max(self.stop[n + u] for u in units)
            spans = [(self.begin[n + u], summed) for u in units]
            for span in [*spans, (summed, left.get(where, read))]:
                self._hold(where, _WORKSPACE, owner, *span, size)

    def _shared(self, weight: Item, received: list[Moved], sent: list[Moved]) -> None:
        """The copies of a weight, and one sum of its gradients per device.

        Further contributions are temporaries of the tasks that make them, or wait until
        a function adds them (`StepGraph.sums_behind`). Rows stay until they are sent.
        """
        device, n, owner, size = self.device, self.n, weight.source, weight.bytes
        home, givers = device[owner], grouped(weight.gradients_from, device.__getitem__)
        times = [max(self.closes[u], self.stop[n + u]) for u in givers.get(home, ())]
        ready = max([*times, *(copy.stop for copy in sent)], default=0.0)
        updated = self._updated(weight, ready)
        users = grouped(weight.readers, device.__getitem__)
        for copy in received + sent:
            last = updated
            if not copy.is_gradient:
                tasks = (task for u in users[copy.target] for task in (u, n + u))
                last = max(self.stop[task] for task in tasks)
            self._hold(copy.target, _RECEIVED, owner, copy.start, last, copy.bytes)
        left = {copy.source: copy.stop for copy in sent}
        rows = dict(zip(weight.gradients_from, weight.row_bytes))
        # If each micro-batch has one user, its task holds what it makes till then.
        alone = len(weight.readers) <= self.step.microbatches
        for where, units in givers.items():
            spans = sorted((self.begin[n + u], self.stop[n + u], u) for u in units)
            gone = left.get(where, updated)
            kind = _GRADIENTS if where == home else _WORKSPACE
            if weight.has_rows:
                for _, stop, u in spans:
                    self._hold(where, kind, owner, stop, gone, rows[u])
                if where != home or len(spans) > 1:
                    every = sum(rows[u] for u in units)
                    self._hold(where, kind, owner, spans[-1][1], gone, every)
                continue
            begin = self.done[spans[0][2]] if alone else spans[0][0]
            self._hold(where, kind, owner, begin, gone, size)
            for start, stop, _ in () if alone else spans[1:]:
                self._hold(where, _WORKSPACE, owner, start, stop, size)
            later = [u for *_, u in spans[1:] if alone]
            adding = later[self.step.sums_behind :] + later[-1:] * len(later)
            sums = ((by, by) for by in dict.fromkeys(adding))
            for u, by in (*zip(later, adding), *sums):
                span = self.done[u], self.stop[n + by]
                self._hold(where, _WORKSPACE, owner, *span, size)
