"""Makespan of a step: the simulator's event loop, compiled.

The same rules as `splitnet.simulator.event_loop`, which the tests compare it with. The
calls of a model are first cut into the functions that run (`functions.py`). A run ends
early if it must take longer than a limit: a device has too much left to do, or the
longest chain behind a task is too long.
"""

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.functions import LONG, append, cut_functions
from splitnet.planner.engine.load_graph import Ints
from splitnet.planner.engine.tasks import EDGES, EVENTS, SENT, Tasks, pop, push

_COPIES_FIRST = 1 << 62


@compiled
def set_up(tasks: Tasks, count: int) -> None:
    """Tasks of the functions: seconds, what they wait for, what they give to others."""
    units, items, edges = tasks.units, tasks.items, tasks.counted[EDGES]
    functions, total, last = tasks.functions, len(units) - 1, 2 * count - 1
    for number in range(3 * count):
        task = tasks.tasks[number]
        task.seconds = task.ready = 0.0
        task.tail = -1.0
        task.cause = task.first_out = -1
        task.pending = 0
    for f in range(count):
        functions[f].backward = 0
    for u in range(total):
        unit, f = units[u], units[u].function
        ahead, back = tasks.tasks[f], tasks.tasks[last - f]
        update = tasks.tasks[2 * count + f]
        ahead.where = back.where = update.where = unit.where
        ahead.seconds += tasks.seconds[unit.where, u]
        back.seconds += tasks.seconds[unit.where, 2 * total - 1 - u]
        update.seconds += tasks.seconds[unit.where, 2 * total + u]
        ahead.tail = unit.forward_tail  # of the last unit
        if back.tail < 0.0:
            back.tail = unit.backward_tail  # of the first
        update.tail = 0.0
        if unit.has_backward:
            functions[f].backward = back.pending = 1
        if unit.has_update:
            update.pending = 1
    for number in range(2 * count if count < total else 0):
        task = tasks.tasks[number]
        if task.seconds > 0.0:
            task.seconds += tasks.devices[task.where].call
            tasks.devices[task.where].left += tasks.devices[task.where].call
    for i in range(len(items) - 1):
        item, root, f = items[i], i, units[items[i].source].function
        while i < edges and items[root].view_of >= 0:
            if units[items[root].source].function != f:
                break
            root = items[root].view_of
        item.copied_as = root if units[items[root].source].function == f else i
        item.leaves = 0
        item.next_view = -1
        for device in range(len(tasks.devices)):
            sums = tasks.sums[i, device]
            sums.missing = sums.wholes = 0
            sums.row_bytes = sums.ended = 0.0
    for edge in range(edges):
        item, out = items[edge], False
        f, root = units[item.source].function, item.copied_as
        for r in range(item.readers, items[edge + 1].readers):
            g = units[tasks.readers[r]].function
            tasks.tasks[g].pending += g != f
            out |= g != f
        if out:
            items[root].leaves = 1
            if root != edge:
                item.next_view = items[root].next_view
                items[root].next_view = edge
    for edge in range(edges):
        if items[edge].leaves:
            append(tasks.tasks[units[items[edge].source].function], items, edge)
    for e in range(len(tasks.contributions)):
        given = tasks.contributions[e]
        to, g = items[given.to].copied_as, units[given.unit].function
        if to >= edges or units[items[to].source].function != g:
            sums = tasks.sums[to, tasks.tasks[g].where]
            tasks.tasks[summing(tasks, to, count)].pending += sums.missing == 0
            sums.missing += 1
            sums.wholes += given.row_bytes == 0.0
            sums.row_bytes += given.row_bytes
            append(tasks.tasks[last - g], tasks.contributions, e)


@compiled
def summing(tasks: Tasks, item: int, count: int) -> int:
    """The task that waits for the sum of an item's gradients."""
    function = tasks.units[tasks.items[item].source].function
    if item < tasks.counted[EDGES]:
        return int(2 * count - 1 - function)
    return int(2 * count + function)


@compiled
def arrive(tasks: Tasks, number: int, time: float, by: int) -> None:
    """Note that something of a task is there for another."""
    task = tasks.tasks[number]
    if time >= task.ready:
        task.ready = time
        task.cause = by
    task.pending -= 1
    if task.pending == 0:
        push(tasks.queue, task.ready, number)


@compiled
def send(
    tasks: Tasks, time: float, item: int, source: int, target: int, size: float, by: int
) -> None:
    """Queue a copy of an item, or of its gradients' sum if `by` is a backward task."""
    number = tasks.counted[SENT]
    tasks.counted[SENT] += 1
    copy = tasks.copies[number]
    copy.moved, copy.source, copy.target, copy.by = item, source, target, by
    copy.bytes = size
    push(tasks.queue, time, number - _COPIES_FIRST)


@compiled
def give(tasks: Tasks, item: int, time: float, key: int) -> None:
    """Give an item of a forward task, and its views, to all readers.

    Weights come from a task below 0.
    """
    items, view = tasks.items, item
    here = tasks.units[items[item].source].where
    while view >= 0:
        for r in range(items[view].readers, items[view + 1].readers):
            number = tasks.units[tasks.readers[r]].function
            there = tasks.tasks[number].where
            if there == here:
                if key >= 0 and number != key:
                    arrive(tasks, number, time, key)
                continue
            tasks.tasks[number].pending += key < 0
            if tasks.devices[there].sent != item:
                tasks.devices[there].sent = item
                send(tasks, time, item, here, there, items[item].bytes, key)
        view = items[view].next_view


@entry
def makespan(tasks: Tasks, device_of: Ints, limit: float) -> float:
    """Seconds of the step with group g on `device_of[g]`; infinite above the limit."""
    units, items, devices = tasks.units, tasks.items, tasks.devices
    count = total = len(units) - 1
    last, end, nobody = 0.0, -1, -1 - count  # a literal would be compiled for anew
    limit *= 1 + 1e-9  # times and what is left are added up in different orders
    tasks.counted[SENT] = tasks.queue[0].key = 0
    for number in range(len(devices)):
        devices[number].left = devices[number].free = 0.0
        devices[number].sent = -1
        for other in range(len(devices)):
            tasks.links[number, other].free = 0.0
    for u in range(total):
        where = device_of[units[u].group]
        units[u].where = where
        units[u].function = u
        devices[where].left += tasks.seconds[where, u]
        devices[where].left += tasks.seconds[where, 2 * total - 1 - u]
        devices[where].left += tasks.seconds[where, 2 * total + u]
    tasks.counted[EVENTS] += total
    for number in range(len(devices)):
        if devices[number].left > limit:
            return np.inf
    if not tasks.whole:
        count = cut_functions(tasks, LONG)
    set_up(tasks, count)
    tasks.counted[EVENTS] += 2 * total
    for weight in range(tasks.counted[EDGES], len(items) - 1):
        give(tasks, weight, 0.0, nobody)
    for f in range(count):
        if tasks.tasks[f].pending == 0:
            push(tasks.queue, 0.0, f)
    while tasks.queue[0].key:
        time, key = tasks.queue[1].time, tasks.queue[1].key
        pop(tasks.queue)
        tasks.counted[EVENTS] += 1
        if key < 0:
            copy = tasks.copies[key + _COPIES_FIRST]
            link = tasks.links[copy.source, copy.target]
            seconds, overlap, view = items[copy.moved].fixed, 0.0, copy.moved
            if np.isnan(seconds):
                overlap = link.latency - link.gap
                seconds = link.latency + copy.bytes * link.per_byte
            time = max(time, link.free) + seconds
            link.free = time - overlap
            if time > last:
                last, end = time, copy.by
            if copy.by >= count:
                arrive(tasks, summing(tasks, view, count), time, copy.by)
                continue
            while view >= 0:
                for r in range(items[view].readers, items[view + 1].readers):
                    unit = units[tasks.readers[r]]
                    if unit.where == copy.target:
                        arrive(tasks, unit.function, time, copy.by)
                view = items[view].next_view
            continue
        task = tasks.tasks[key]
        device = devices[task.where]
        if task.seconds > 0:
            if time < device.free:
                time = device.free
                task.cause = device.latest
            later = max(device.left, task.seconds + task.tail)
            if time + later > limit:
                return np.inf
            device.left -= task.seconds
            device.free = time + task.seconds
            device.latest = key
        time += task.seconds
        if time > last:
            last, end = time, key
        at = task.first_out
        if key < count:
            if tasks.functions[key].backward:
                arrive(tasks, 2 * count - 1 - key, time, key)
            while at >= 0:
                give(tasks, at, time, key)
                at = items[at].next_out
        elif key < 2 * count:
            if tasks.tasks[4 * count - 1 - key].pending > 0:
                arrive(tasks, 4 * count - 1 - key, time, key)
            while at >= 0:
                given = tasks.contributions[at]
                item, at = items[given.to].copied_as, given.next_out
                sums = tasks.sums[item, task.where]
                sums.missing -= 1
                sums.ended = max(sums.ended, time)
                if sums.missing:
                    continue
                number, ended = summing(tasks, item, count), sums.ended
                target = tasks.tasks[number].where
                if target == task.where:
                    arrive(tasks, number, ended, key)
                    continue
                # Rows of a table are sent side by side, a whole gradient once.
                size = sums.row_bytes + items[item].bytes * (sums.wholes > 0)
                send(tasks, ended, item, task.where, target, size, key)
    if last > limit:
        return np.inf
    note_critical(tasks, count, end)
    return last


@compiled
def note_critical(tasks: Tasks, count: int, end: int) -> None:
    """List the groups of the tasks that each waited for the one before, to the last."""
    functions, size = tasks.functions, 0
    for f in range(count):
        functions[f].backward = 0
    while end >= 0:
        f = end if end < count else 2 * count - 1 - end
        functions[f if f >= 0 else end - 2 * count].backward = 1
        end = tasks.tasks[end].cause
    for u in range(len(tasks.units) - 1):
        if functions[tasks.units[u].function].backward:
            tasks.critical[size] = tasks.units[u].group
            size += 1
    tasks.critical[-1] = size
