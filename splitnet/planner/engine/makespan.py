"""Makespan of a step: the simulator's event loop, compiled.

The same rules as `splitnet.simulator.event_loop`, which the tests compare it with. The
calls of a model are first cut into the functions that run (`functions.py`). A run ends
early if it must take longer than a limit: a device has too much left to do, or the
longest chain behind a task is too long.

Peaks of devices are estimated on the way, by the main rules of `simulator.memory`: a
function holds what is saved, here or by a reader of what it sent, until its backward
task ends; that needs as much as its unit that needs most, with gradients that wait or
are on their way. For steps of Keras models most peaks are exact.
"""

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.functions import LONG, cut_functions
from splitnet.planner.engine.tasks import Records, Tasks, append, pop, push
from splitnet.planner.load_graph import Ints

_COPIES_FIRST = 1 << 62


@compiled
def set_up(tasks: Tasks, count: int) -> None:
    """Tasks of the functions: seconds, bytes, what they wait for and give to others."""
    units, items, edges = tasks.units, tasks.items, tasks.counted.edges
    tasks.counted.stamp += 1
    run, functions = tasks.tasks, tasks.functions
    total, last = len(units) - 1, 2 * count - 1
    for number in range(3 * count):
        task = run[number]
        task.seconds = task.ready = task.saved = task.need = task.most = task.late = 0.0
        task.tail = -1.0
        task.cause = task.first_out = -1
        task.pending = functions[number // 3].backward = 0
    for u in range(total):
        unit, f = units[u], units[u].function
        ahead, back, update = run[f], run[last - f], run[2 * count + f]
        ahead.where = back.where = update.where = unit.where
        seconds = tasks.seconds[unit.where]
        ahead.seconds += seconds[u]
        back.seconds += seconds[2 * total - 1 - u]
        ahead.saved += unit.saved
        ahead.need = max(ahead.need, unit.ahead)
        back.saved += unit.early + unit.given - back.late
        back.late = unit.given  # of the last unit
        unit.returned = 0.0
        update.seconds += seconds[2 * total + u]
        update.saved += unit.learned
        update.need = max(update.need, unit.update)
        ahead.tail = unit.forward_tail  # of the last unit
        if back.tail < 0.0:
            back.tail = unit.backward_tail  # of the first
        update.tail = 0.0
        if unit.has_backward:
            functions[f].backward = back.pending = 1
        if unit.has_update:
            update.pending = 1
    for number in range(2 * count if count < total else 0):
        task = run[number]
        if task.seconds > 0.0:
            device = tasks.devices[task.where]
            task.seconds += device.call
            device.left += device.call
    for i in range(len(items) - 1):
        item, f = items[i], units[items[i].source].function
        item.last, item.function, whole = -1, f, item.view_of
        renamed = whole >= 0 and units[items[whole].source].function == f
        out, keeps = False, item.saved > 0
        for r in range(item.readers, items[i + 1].readers if i < edges else 0):
            g = units[tasks.readers[r]].function
            run[g].pending += g != f
            out |= g != f
            keeps |= tasks.saves[r] > 0 and run[g].where == run[f].where
            if g != f and item.returned and item.last != g and i < edges:
                run[last - g].need += item.bytes
                item.last = g
        if i < edges and keeps and not renamed:
            run[f].saved += item.bytes
        if out:
            append(run[f], items, i)
            item.seen = tasks.counted.stamp + 1  # its gradients are not inside
    add_gradients(tasks, last)
    for f in range(count):
        back = run[last - f]
        back.need += back.most
        back.saved = run[f].saved
    for e in range(len(tasks.contributions)):
        given = tasks.contributions[e]
        f, g = items[given.to].function, units[given.unit].function
        if f != g or given.to >= edges:
            sums = tasks.sums[given.to, run[g].where]
            if sums.seen != tasks.counted.stamp:
                sums.seen, sums.missing, sums.wholes = tasks.counted.stamp, 0, 0
                sums.row_bytes = sums.ended = sums.held = 0.0
            run[summing(tasks, given.to, count)].pending += sums.missing == 0
            sums.missing += 1
            sums.wholes += given.row_bytes == 0.0
            sums.row_bytes += given.row_bytes
            append(run[last - g], tasks.contributions, e)


@compiled
def add_gradients(tasks: Tasks, last: int) -> None:
    """Find what backward tasks need at most: what is made first, and gradients inside.

    Units are passed from the last one on. A gradient is there from the last reader to
    its unit, or one unit longer if weights' gradients are made of it beside that.
    """
    units, items, stamp = tasks.units, tasks.items, tasks.counted.stamp + 1
    tasks.counted.stamp = stamp
    for u in range(len(units) - 2, -1, -1):
        unit = units[u]
        back = tasks.tasks[last - unit.function]
        back.saved -= unit.early  # until here what is there while the unit runs
        for e in range(unit.reads, units[u + 1].reads):
            item = items[tasks.reads[e].edge]
            source = units[item.source]
            inside = item.returned and source.function == unit.function
            if inside and item.seen != stamp:
                item.seen = stamp
                source.returned += item.bytes
                back.saved += item.bytes
        back.most = max(back.most, back.saved + unit.back)
        back.saved += unit.learned - back.late
        back.late = unit.returned * unit.has_update
        back.saved -= unit.returned - back.late


@compiled
def summing(tasks: Tasks, item: int, count: int) -> int:
    """The task that waits for the sum of an item's gradients."""
    function: int = tasks.items[item].function
    is_edge = item < tasks.counted.edges
    return 2 * count - 1 - function if is_edge else 2 * count + function


@compiled
def arrive(run: Records, queue: Records, number: int, time: float, by: int) -> None:
    """Note that something of a task is there for another."""
    task = run[number]
    if time >= task.ready:
        task.ready, task.cause = time, by
    task.pending -= 1
    if task.pending == 0:
        push(queue, task.ready, number)


@compiled
def send(
    tasks: Tasks, time: float, item: int, source: int, target: int, size: float, by: int
) -> None:
    """Queue a copy of an item, or of its gradients' sum if `by` is a backward task."""
    number = tasks.counted.sent
    tasks.counted.sent += 1
    copy = tasks.copies[number]
    copy.moved, copy.source, copy.target, copy.by = item, source, target, by
    copy.bytes = size
    push(tasks.queue, time, number - _COPIES_FIRST)


@compiled
def give(tasks: Tasks, item: int, time: float, key: int) -> None:
    """Give an item to its readers; weights have a task below 0."""
    items, run = tasks.items, tasks.tasks
    here = tasks.units[items[item].source].where
    for r in range(items[item].readers, items[item + 1].readers):
        number = tasks.units[tasks.readers[r]].function
        there = run[number].where
        if there != here:
            run[number].pending += key < 0
            if tasks.devices[there].sent != item:
                tasks.devices[there].sent = item
                send(tasks, time, item, here, there, items[item].bytes, key)
        elif key >= 0 and number != key:
            arrive(run, tasks.queue, number, time, key)


@entry
def makespan(tasks: Tasks, device_of: Ints, limit: float) -> float:
    """Seconds of the step with group g on `device_of[g]`; infinite above the limit.

    Else `tasks.devices.peak` gets about the bytes of each device at its peak.
    """
    units, items, devices, run = tasks.units, tasks.items, tasks.devices, tasks.tasks
    queue, edges, counted = tasks.queue, tasks.counted.edges, tasks.counted
    count = total = len(units) - 1
    last, end, nobody = 0.0, -1, -1 - count  # a literal would be compiled for anew
    limit *= 1 + 1e-9  # times and what is left are added up in different orders
    counted.sent = queue[0].key = 0
    for number in range(len(devices)):
        device = devices[number]
        device.left = device.free = device.held = device.until = device.gone = 0.0
        device.sent = device.latest = -1
        for other in range(len(devices)):
            tasks.links[number, other].free = 0.0
    for u in range(total):
        where = device_of[units[u].group]
        units[u].where, units[u].function = where, u
        seconds = tasks.seconds[where]
        later = seconds[2 * total - 1 - u] + seconds[2 * total + u]
        devices[where].left += seconds[u] + later
        devices[where].held += units[u].weights
    counted.events += total
    for number in range(len(devices)):
        devices[number].peak = devices[number].held
        if devices[number].left > limit:
            return np.inf
    if not counted.whole:
        count = cut_functions(tasks, LONG)
    set_up(tasks, count)
    counted.events += 2 * total
    for weight in range(edges, len(items) - 1):
        give(tasks, weight, 0.0, nobody)
    for f in range(count):
        if run[f].pending == 0:
            push(queue, 0.0, f)
    while queue[0].key:
        time, key = pop(queue)
        counted.events += 1
        if key < 0:
            copy = tasks.copies[key + _COPIES_FIRST]
            link, moved, by = tasks.links[copy.source, copy.target], copy.moved, copy.by
            seconds, overlap = items[moved].fixed, 0.0
            if np.isnan(seconds):
                busy = copy.bytes * link.overhead
                overlap = link.latency - link.gap + busy
                seconds = link.latency + copy.bytes * link.per_byte + busy
                for place in (copy.source, copy.target):
                    if busy > 0.0:
                        devices[place].free = max(devices[place].free, time) + busy
            time = max(time, link.free) + seconds
            link.free = time - overlap
            if time > last:
                last, end = time, by
            if by >= count:
                number = summing(tasks, moved, count)
                if moved < edges:
                    device, size = devices[copy.target], items[moved].bytes
                    device.held += copy.bytes
                    beside = device.beside * (time - seconds < device.until)
                    device.peak = max(device.peak, device.held + beside)
                    run[number].saved += copy.bytes
                    device = devices[copy.source]
                    device.held -= size
                    size += device.going * (time - seconds < device.gone)
                    device.going, device.gone = size, max(device.gone, time)
                arrive(run, queue, number, time, by)
                continue
            kept = False  # by a reader, until its backward task ends
            for r in range(items[moved].readers, items[moved + 1].readers):
                unit = units[tasks.readers[r]]
                if unit.where == copy.target:
                    if tasks.saves[r] and not kept:
                        kept = True
                        devices[copy.target].held += copy.bytes
                        run[2 * count - 1 - unit.function].saved += copy.bytes
                    arrive(run, queue, unit.function, time, by)
            continue
        task = run[key]
        device = devices[task.where]
        if key < count:
            device.held += task.saved
        need, back = task.need, count <= key < 2 * count
        if back and time < device.until:
            need += device.beside  # of the backward task that still runs
        need += device.going * (time < device.gone)  # gradients that still leave
        device.peak = max(device.peak, device.held + need)
        holds = device.held + task.need
        device.held -= task.saved * (key >= count)
        if back:
            device.until = max(time, device.free) + task.seconds
            device.held += run[4 * count - 1 - key].saved  # weights' gradients
        if task.seconds > 0:
            if time < device.free:
                time, task.cause = device.free, device.latest
            if time + max(device.left, task.seconds + task.tail) > limit:
                return np.inf
            device.left -= task.seconds
            device.free = time + task.seconds
            device.latest = key
        time += task.seconds
        if time > last:
            last, end = time, key
        at, follower = task.first_out, 2 * count - 1 - key
        if key < count:
            if tasks.functions[key].backward:
                arrive(run, queue, follower, time, key)
            while at >= 0:
                give(tasks, at, time, key)
                at = items[at].next_out
        elif key < 2 * count:
            follower += 2 * count
            if run[follower].pending > 0:
                arrive(run, queue, follower, time, key)
            while at >= 0:
                given = tasks.contributions[at]
                item, at = given.to, given.next_out
                sums = tasks.sums[item, task.where]
                sums.missing -= 1
                sums.ended = max(sums.ended, time)
                size = items[item].bytes * (item < edges)
                if sums.missing:
                    device.held += size
                    sums.held += size
                    continue
                device.held += size - sums.held
                number = summing(tasks, item, count)
                if run[number].where == task.where:
                    run[number].saved += size
                    arrive(run, queue, number, sums.ended, key)
                    continue
                # Rows of a table are sent side by side, a whole gradient once.
                size = sums.row_bytes + items[item].bytes * (sums.wholes > 0)
                send(tasks, sums.ended, item, task.where, run[number].where, size, key)
            device.beside = holds - device.held
    if last > limit:
        return np.inf
    note_critical(tasks, count, end)
    return last


@compiled
def note_critical(tasks: Tasks, count: int, end: int) -> None:
    """List the groups of the tasks that each waited for the one before, to the last."""
    functions, critical, size = tasks.functions, tasks.critical, 0
    for f in range(count):
        functions[f].backward = 0
    while end >= 0:
        f = end if end < count else 2 * count - 1 - end
        functions[f if f >= 0 else end - 2 * count].backward = 1
        end = tasks.tasks[end].cause
    for u in range(len(tasks.units) - 1):
        if functions[tasks.units[u].function].backward:
            critical[size] = tasks.units[u].group
            size += 1
    critical[-1] = size
