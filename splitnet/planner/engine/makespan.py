"""Makespan of a step: the simulator's event loop, compiled.

The same rules as `splitnet.simulator.event_loop`, which the tests compare it with. A
run ends early if it must take longer than a limit: a device has too much left to do, or
the longest chain behind a task is too long.
"""

from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.problem import Bools, Floats, Ints, rows_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import GRADIENT

__all__ = ["Tasks", "makespan", "tasks_of"]

_OUTPUT, _SUM, _WEIGHT = 0, 1, 2
_COPIES_FIRST = 1 << 62


class Scratch(NamedTuple):
    """Arrays that one run after the other uses; per task, in the queue, per copy.

    `work` counts the events of all runs, and the tasks that were set up.
    """

    stop: Floats
    ready: Floats
    pending: Ints
    place: Ints
    queue_time: Floats
    queue_key: Ints
    copies: Ints
    copy_bytes: Floats
    missing: Ints
    link_free: Floats
    seen: Ints
    free: Floats
    left: Floats
    work: Ints


class Tasks(NamedTuple):
    """The lists of a step graph as flat arrays; see `StepGraph` and `TaskGraph`.

    Rows of lists are `items[start[i]:start[i + 1]]`. `group` is the group of each unit,
    `seconds` is per device and task. `edge_seconds` and `sum_seconds` are nan where the
    link decides. `row_bytes` is per contributor of a reduction.
    """

    group: Ints
    seconds: Floats
    tail: Floats
    pending: Ints
    successor_start: Ints
    successors: Ints
    output_start: Ints
    outputs: Ints
    reader_start: Ints
    readers: Ints
    edge_bytes: Floats
    edge_seconds: Floats
    contribute_start: Ints
    contributes: Ints
    contributor_start: Ints
    contributors: Ints
    row_bytes: Floats
    sum_task: Ints
    sum_bytes: Floats
    sum_seconds: Floats
    sum_has_rows: Bools
    user_start: Ints
    users: Ints
    weight_bytes: Floats
    latency: Floats
    gap: Floats
    seconds_per_byte: Floats
    scratch: Scratch


def tasks_of(step: StepGraph, group: Ints) -> Tasks:
    """Flat arrays of a step, with the group of each unit."""
    tasks, edges = step.tasks, step.edges
    reductions = tasks.reductions

    def known(seconds: float | None) -> float:
        return np.nan if seconds is None else seconds

    return Tasks(
        np.asarray(group, np.int64),
        np.array(step.task_seconds, np.float64),
        np.array(step.tails, np.float64),
        np.array(tasks.pending, np.int64),
        *rows_of(tasks.successors),
        *rows_of(tasks.outputs),
        *rows_of(edge.readers for edge in edges),
        np.array([edge.bytes for edge in edges], np.float64),
        np.array([known(edge.seconds) for edge in edges], np.float64),
        *rows_of(tasks.contributes),
        *rows_of(one.contributors for one in reductions),
        np.array(
            [
                size
                for one in reductions
                for size in one.row_bytes or [0] * len(one.contributors)
            ],
            np.float64,
        ),
        np.array([one.task for one in reductions], np.int64),
        np.array([one.bytes for one in reductions], np.float64),
        np.array(
            [
                known(edges[one.item].seconds if one.kind == GRADIENT else None)
                for one in reductions
            ],
            np.float64,
        ),
        np.array([bool(one.row_bytes) for one in reductions], np.bool_),
        *rows_of(weight.users for weight in step.weights),
        np.array([weight.bytes for weight in step.weights], np.float64),
        np.array(step.latency, np.float64),
        np.array(step.gap, np.float64),
        np.array(step.seconds_per_byte, np.float64),
        _scratch(step),
    )


def _scratch(step: StepGraph) -> Scratch:
    """Arrays that are large enough for any placement."""
    count, devices = 3 * step.count, step.device_count
    most = 1 + devices * len(step.weights)
    most += sum(min(devices, len(edge.readers)) for edge in step.edges)
    most += sum(min(devices, len(r.contributors)) for r in step.tasks.reductions)
    return Scratch(
        np.zeros(count),
        np.zeros(count),
        np.zeros(count, np.int64),
        np.zeros(count, np.int64),
        np.zeros(count + most),
        np.zeros(count + most, np.int64),
        np.zeros((most, 4), np.int64),
        np.zeros(most),
        np.zeros((len(step.tasks.reductions), devices), np.int64),
        np.zeros((devices, devices)),
        np.zeros(devices, np.int64),
        np.zeros(devices),
        np.zeros(devices),
        np.zeros(1, np.int64),
    )


@compiled
def push(times: Floats, keys: Ints, size: int, time: float, key: int) -> int:
    """Add to a binary heap that is ordered by time, then key; its new size."""
    i = size
    while i:
        parent = (i - 1) >> 1
        if times[parent] < time or (times[parent] == time and keys[parent] < key):
            break
        times[i] = times[parent]
        keys[i] = keys[parent]
        i = parent
    times[i] = time
    keys[i] = key
    return size + 1


@compiled
def pop(times: Floats, keys: Ints, size: int) -> int:
    """Remove the first of the heap, which the caller has read; its new size."""
    size -= 1
    time, key, i = times[size], keys[size], 0
    while True:
        j = 2 * i + 1
        if j >= size:
            break
        k = j + 1
        if k < size and (
            times[k] < times[j] or (times[k] == times[j] and keys[k] < keys[j])
        ):
            j = k
        if time < times[j] or (time == times[j] and key < keys[j]):
            break
        times[i] = times[j]
        keys[i] = keys[j]
        i = j
    times[i] = time
    keys[i] = key
    return size


@compiled
def arrive(
    task: int,
    time: float,
    ready: Floats,
    pending: Ints,
    times: Floats,
    keys: Ints,
    size: int,
) -> int:
    """Note that something a task depends on is there; the queue's new size."""
    ready[task] = max(ready[task], time)
    pending[task] -= 1
    return push(times, keys, size, ready[task], task) if pending[task] == 0 else size


@compiled
def note(
    copies: Ints, number: int, kind: int, item: int, source: int, target: int
) -> None:
    """Write down what a copy carries, and between which devices."""
    copies[number, 0] = kind
    copies[number, 1] = item
    copies[number, 2] = source
    copies[number, 3] = target


@entry
def makespan(tasks: Tasks, device_of: Ints, limit: float) -> float:
    """Seconds of the step with group g on `device_of[g]`; infinite above the limit."""
    scratch = tasks.scratch
    stop, ready = scratch.stop, scratch.ready
    pending, place = scratch.pending, scratch.place
    times, keys, copies = scratch.queue_time, scratch.queue_key, scratch.copies
    copy_bytes, missing, seen = scratch.copy_bytes, scratch.missing, scratch.seen
    free, left, link_free = scratch.free, scratch.left, scratch.link_free
    units, last, size, count = len(tasks.group), 0.0, 0, 0
    limit *= 1 + 1e-9  # times and what is left are added up in different orders
    for device in range(len(free)):
        left[device] = free[device] = 0.0
        seen[device] = 0
        for other in range(len(free)):
            link_free[device, other] = 0.0
    for unit in range(units):
        device = device_of[tasks.group[unit]]
        place[unit] = device
        place[2 * units - 1 - unit] = device
        place[2 * units + unit] = device
    for task in range(3 * units):
        left[place[task]] += tasks.seconds[place[task], task]
        ready[task] = 0.0
        stop[task] = 0.0
        pending[task] = tasks.pending[task]
    work = scratch.work
    work[0] += units
    for device in range(len(free)):
        if left[device] > limit:
            return np.inf
    for number in range(len(tasks.sum_task)):
        for device in range(len(free)):
            missing[number, device] = 0
        task, first = tasks.sum_task[number], tasks.contributor_start[number]
        for e in range(first, tasks.contributor_start[number + 1]):
            device = place[tasks.contributors[e]]
            pending[task] += missing[number, device] == 0
            missing[number, device] += 1
    stamp = 0
    for weight in range(len(tasks.weight_bytes)):
        first, end = tasks.user_start[weight], tasks.user_start[weight + 1]
        home = place[tasks.users[first]]
        stamp += 1
        for e in range(first, end):
            device = place[tasks.users[e]]
            if device == home:
                continue
            pending[tasks.users[e]] += 1
            if seen[device] != stamp:
                seen[device] = stamp
                note(copies, count, _WEIGHT, weight, home, device)
                copy_bytes[count] = tasks.weight_bytes[weight]
                size = push(times, keys, size, 0.0, count - _COPIES_FIRST)
                count += 1
    for unit in range(units):
        if pending[unit] == 0:
            size = push(times, keys, size, 0.0, unit)
    while size:
        time, key = times[0], keys[0]
        size = pop(times, keys, size)
        work[0] += 1
        if key < 0:
            number = key + _COPIES_FIRST
            kind, item = copies[number, 0], copies[number, 1]
            source, target = copies[number, 2], copies[number, 3]
            seconds, overlap = np.nan, 0.0
            if kind == _OUTPUT:
                seconds = tasks.edge_seconds[item]
            elif kind == _SUM:
                seconds = tasks.sum_seconds[item]
            if np.isnan(seconds):
                seconds = tasks.latency[source, target]
                overlap = seconds - tasks.gap[source, target]
                seconds += copy_bytes[number] * tasks.seconds_per_byte[source, target]
            time = max(time, link_free[source, target]) + seconds
            link_free[source, target] = time - overlap
            last = max(last, time)
            if kind == _SUM:
                task = tasks.sum_task[item]
                size = arrive(task, time, ready, pending, times, keys, size)
                continue
            start, waiting = tasks.reader_start, tasks.readers
            if kind == _WEIGHT:
                start, waiting = tasks.user_start, tasks.users
            for e in range(start[item], start[item + 1]):
                if place[waiting[e]] == target:
                    size = arrive(waiting[e], time, ready, pending, times, keys, size)
            continue
        device = place[key]
        seconds = tasks.seconds[device, key]
        if seconds > 0:
            time = max(time, free[device])
            if time + left[device] > limit or time + seconds + tasks.tail[key] > limit:
                return np.inf
            left[device] -= seconds
            free[device] = time + seconds
        time += seconds
        stop[key] = time
        last = max(last, time)
        for e in range(tasks.successor_start[key], tasks.successor_start[key + 1]):
            task = tasks.successors[e]
            size = arrive(task, time, ready, pending, times, keys, size)
        if key < units:
            for o in range(tasks.output_start[key], tasks.output_start[key + 1]):
                edge = tasks.outputs[o]
                stamp += 1
                for e in range(tasks.reader_start[edge], tasks.reader_start[edge + 1]):
                    task = tasks.readers[e]
                    target = place[task]
                    if target == device:
                        size = arrive(task, time, ready, pending, times, keys, size)
                    elif seen[target] != stamp:
                        seen[target] = stamp
                        note(copies, count, _OUTPUT, edge, device, target)
                        copy_bytes[count] = tasks.edge_bytes[edge]
                        size = push(times, keys, size, time, count - _COPIES_FIRST)
                        count += 1
            continue
        for o in range(tasks.contribute_start[key], tasks.contribute_start[key + 1]):
            number = tasks.contributes[o]
            missing[number, device] -= 1
            if missing[number, device]:
                continue
            when, amount, all_rows = 0.0, 0.0, True
            first = tasks.contributor_start[number]
            for e in range(first, tasks.contributor_start[number + 1]):
                if place[tasks.contributors[e]] == device:
                    when = max(when, stop[tasks.contributors[e]])
                    amount += tasks.row_bytes[e]
                    all_rows &= tasks.row_bytes[e] > 0
            task = tasks.sum_task[number]
            if place[task] == device:
                size = arrive(task, when, ready, pending, times, keys, size)
                continue
            if not tasks.sum_has_rows[number] or not all_rows:
                amount += tasks.sum_bytes[number]
            note(copies, count, _SUM, number, device, place[task])
            copy_bytes[count] = amount
            size = push(times, keys, size, when, count - _COPIES_FIRST)
            count += 1
    return last
