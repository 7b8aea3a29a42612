"""Makespan of a step: the simulator's event loop, compiled.

The same rules as `splitnet.simulator.event_loop`, which the tests compare it with. The
calls of a model are first cut into the functions that run (`tasks.py`). A run ends
early if it must take longer than a limit: a device has too much left to do, or the
longest chain behind a task is too long.
"""

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.load_graph import Ints
from splitnet.planner.engine.tasks import (
    EVENTS,
    SENT,
    Scratch,
    Tasks,
    cut_functions,
    pop,
    push,
)

_COPIES_FIRST = 1 << 62


@compiled
def append(first: Ints, last: Ints, links: Ints, task: int, item: int) -> None:
    """Add an item to the list of a task."""
    if first[task] < 0:
        first[task] = item
    else:
        links[last[task]] = item
    last[task] = item
    links[item] = -1


@compiled
def summing(tasks: Tasks, item: int, count: int) -> int:
    """The task that waits for the sum of an item's gradients."""
    function = tasks.scratch.function[tasks.source[item]]
    if item < len(tasks.view_of):
        return int(2 * count - 1 - function)
    return int(2 * count + function)


@compiled
def set_up(tasks: Tasks, count: int) -> None:
    """Tasks of the functions: seconds, what they wait for, what they give to others."""
    s, units, last = tasks.scratch, len(tasks.group), 2 * count - 1
    function, reader_start = s.function, tasks.reader_start
    for f in range(count):
        s.backward[f] = 0
        s.place[last - f] = s.place[2 * count + f] = s.place[f]
    for task in range(3 * count):
        s.seconds[task] = s.ready[task] = 0.0
        s.tail[task] = -1.0
        s.cause[task] = s.first_item[task] = -1
        s.pending[task] = 0
    for u in range(units):
        f = function[u]
        here, update = s.place[f], 2 * count + f
        s.seconds[f] += tasks.seconds[here, u]
        s.seconds[last - f] += tasks.seconds[here, 2 * units - 1 - u]
        s.seconds[update] += tasks.seconds[here, 2 * units + u]
        s.tail[f] = tasks.tail[u]  # of the last unit
        if s.tail[last - f] < 0.0:
            s.tail[last - f] = tasks.tail[2 * units - 1 - u]  # of the first
        s.tail[update] = 0.0
        if tasks.has_backward[u]:
            s.backward[f] = s.pending[last - f] = 1
        if tasks.has_update[u]:
            s.pending[update] = 1
    for task in range(2 * count if count < units else 0):
        if s.seconds[task] > 0.0:
            s.seconds[task] += tasks.part_seconds[s.place[task]]
            s.left[s.place[task]] += tasks.part_seconds[s.place[task]]
    for item in range(len(tasks.source)):
        root, f = item, function[tasks.source[item]]
        viewing = item < len(tasks.view_of)
        while (
            viewing and tasks.view_of[root] >= 0 and function[tasks.source[root]] == f
        ):
            root = tasks.view_of[root]
        s.copied_as[item] = root if function[tasks.source[root]] == f else item
        s.leaves[item] = 0
        s.views[item] = -1
        for device in range(len(s.free)):
            s.missing[item, device] = 0
            s.summed[item, device] = 0.0
    for edge in range(len(tasks.view_of)):
        f, root, out = function[tasks.source[edge]], s.copied_as[edge], False
        for r in range(reader_start[edge], reader_start[edge + 1]):
            g = function[tasks.readers[r]]
            s.pending[g] += g != f
            out |= g != f
        if out:
            s.leaves[root] = 1
            if root != edge:
                s.views[edge] = s.views[root]
                s.views[root] = edge
    for edge in range(len(tasks.view_of)):
        if s.leaves[edge]:
            f = function[tasks.source[edge]]
            append(s.first_item, s.last_item, s.next_item, f, edge)
    for e in range(len(tasks.contributors)):
        item, g = s.copied_as[tasks.contributes_to[e]], function[tasks.contributors[e]]
        if item >= len(tasks.view_of) or function[tasks.source[item]] != g:
            s.pending[summing(tasks, item, count)] += s.missing[item, s.place[g]] == 0
            s.missing[item, s.place[g]] += 1
            append(s.first_item, s.last_item, s.next_sum, last - g, e)


@compiled
def arrive(s: Scratch, size: int, task: int, time: float, by: int) -> int:
    """Note that something of a task is there for another; the queue's new size."""
    if time >= s.ready[task]:
        s.ready[task] = time
        s.cause[task] = by
    s.pending[task] -= 1
    if s.pending[task] > 0:
        return size
    return push(s.queue_time, s.queue_key, size, s.ready[task], task)


@compiled
def send(
    s: Scratch,
    size: int,
    time: float,
    item: int,
    link: tuple[int, int],
    amount: float,
    by: int,
) -> int:
    """Queue a copy of an item, or of its gradients' sum if `by` is a backward task."""
    number = s.counted[SENT]
    s.counted[SENT] += 1
    s.copies[number, 0] = item
    s.copies[number, 1] = link[0]
    s.copies[number, 2] = link[1]
    s.copies[number, 3] = by
    s.copy_bytes[number] = amount
    key = number - _COPIES_FIRST
    return push(s.queue_time, s.queue_key, size, time, key)


@compiled
def give(tasks: Tasks, size: int, item: int, time: float, key: int) -> int:
    """Give an item of a forward task, and its views, to all readers.

    Weights come from task -1.
    """
    s, view = tasks.scratch, item
    here = s.device[tasks.source[item]]
    while view >= 0:
        for r in range(tasks.reader_start[view], tasks.reader_start[view + 1]):
            task = s.function[tasks.readers[r]]
            there = s.place[task]
            if there == here:
                if key >= 0 and task != key:
                    size = arrive(s, size, task, time, key)
                continue
            s.pending[task] += key < 0
            if s.sent[there] != item:
                s.sent[there] = item
                link, amount = (here, there), tasks.bytes[item]
                size = send(s, size, time, item, link, amount, key)
        view = s.views[view]
    return size


@compiled
def bytes_from(tasks: Tasks, item: int, device: int) -> float:
    """Bytes of a sum from a device: of the rows of a table, if all send only rows."""
    amount, wholes, count = 0.0, 0, 0
    for e in range(tasks.contributor_start[item], tasks.contributor_start[item + 1]):
        if tasks.scratch.device[tasks.contributors[e]] == device:
            amount += tasks.row_bytes[e]
            count += 1
            wholes += tasks.row_bytes[e] == 0
    return amount if count and not wholes else amount + tasks.bytes[item]


@entry
def makespan(tasks: Tasks, device_of: Ints, limit: float) -> float:
    """Seconds of the step with group g on `device_of[g]`; infinite above the limit."""
    s, units, last, end, size = tasks.scratch, len(tasks.group), 0.0, -1, 0
    limit *= 1 + 1e-9  # times and what is left are added up in different orders
    s.counted[SENT] = 0
    for device in range(len(s.free)):
        s.left[device] = s.free[device] = 0.0
        s.sent[device] = -1
        for other in range(len(s.free)):
            s.link_free[device, other] = 0.0
    for unit in range(units):
        device = device_of[tasks.group[unit]]
        s.device[unit] = device
        s.left[device] += tasks.seconds[device, unit]
        s.left[device] += tasks.seconds[device, 2 * units - 1 - unit]
        s.left[device] += tasks.seconds[device, 2 * units + unit]
    s.counted[EVENTS] += units
    for device in range(len(s.free)):
        if s.left[device] > limit:
            return np.inf
    count = cut_functions(tasks)
    set_up(tasks, count)
    s.counted[EVENTS] += 2 * units
    for weight in range(len(tasks.view_of), len(tasks.source)):
        size = give(tasks, size, weight, 0.0, -1)
    for f in range(count):
        if s.pending[f] == 0:
            size = push(s.queue_time, s.queue_key, size, 0.0, f)
    while size:
        time, key = s.queue_time[0], s.queue_key[0]
        size = pop(s.queue_time, s.queue_key, size)
        s.counted[EVENTS] += 1
        if key < 0:
            number = key + _COPIES_FIRST
            item, by = s.copies[number, 0], s.copies[number, 3]
            a, b = s.copies[number, 1], s.copies[number, 2]
            seconds, overlap = tasks.fixed[item], 0.0
            if np.isnan(seconds):
                seconds = tasks.latency[a, b]
                overlap = seconds - tasks.gap[a, b]
                seconds += s.copy_bytes[number] * tasks.seconds_per_byte[a, b]
            time = max(time, s.link_free[a, b]) + seconds
            s.link_free[a, b] = time - overlap
            if time > last:
                last, end = time, by
            if by >= count:
                size = arrive(s, size, summing(tasks, item, count), time, by)
                continue
            while item >= 0:
                for r in range(tasks.reader_start[item], tasks.reader_start[item + 1]):
                    if s.device[tasks.readers[r]] == b:
                        task = s.function[tasks.readers[r]]
                        size = arrive(s, size, task, time, by)
                item = s.views[item]
            continue
        device, seconds = s.place[key], s.seconds[key]
        if seconds > 0:
            if time < s.free[device]:
                time = s.free[device]
                s.cause[key] = s.latest[device]
            if time + s.left[device] > limit or time + seconds + s.tail[key] > limit:
                return np.inf
            s.left[device] -= seconds
            s.free[device] = time + seconds
            s.latest[device] = key
        time += seconds
        if time > last:
            last, end = time, key
        at = s.first_item[key]
        if key < count:
            if s.backward[key]:
                size = arrive(s, size, 2 * count - 1 - key, time, key)
            while at >= 0:
                size = give(tasks, size, at, time, key)
                at = s.next_item[at]
        elif key < 2 * count:
            if s.pending[4 * count - 1 - key] > 0:
                size = arrive(s, size, 4 * count - 1 - key, time, key)
            while at >= 0:
                item, at = s.copied_as[tasks.contributes_to[at]], s.next_sum[at]
                s.missing[item, device] -= 1
                s.summed[item, device] = max(s.summed[item, device], time)
                if s.missing[item, device]:
                    continue
                when, task = s.summed[item, device], summing(tasks, item, count)
                if s.place[task] == device:
                    size = arrive(s, size, task, when, key)
                    continue
                link, amount = (device, s.place[task]), bytes_from(tasks, item, device)
                size = send(s, size, when, item, link, amount, key)
    if last > limit:
        return np.inf
    note_critical(tasks, count, end)
    return last


@compiled
def note_critical(tasks: Tasks, count: int, end: int) -> None:
    """List the groups of the tasks that each waited for the one before, to the last."""
    s, on_path, size = tasks.scratch, tasks.scratch.backward, 0
    for f in range(count):
        on_path[f] = 0
    while end >= 0:
        f = end if end < count else 2 * count - 1 - end
        on_path[f if f >= 0 else end - 2 * count] = 1
        end = s.cause[end]
    for u in range(len(tasks.group)):
        if on_path[s.function[u]]:
            s.critical[size] = tasks.group[u]
            size += 1
    s.critical[-1] = size
