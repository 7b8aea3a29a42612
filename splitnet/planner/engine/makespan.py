"""Makespan of a step: the simulator's event loop, compiled.

The same rules as `splitnet.simulator.event_loop`, which the tests compare it with. The
calls of a model are first cut into the functions that run (`cutting.py`). A run ends
early if it must take longer than a limit: a device has too much left to do, or the
longest chain behind a task is too long.
"""

from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.cutting import (
    Calls,
    Scratch,
    calls_of,
    cut_functions,
    pop,
    push,
    scratch_of,
)
from splitnet.planner.problem import Bools, Floats, Ints, Problem, rows_of
from splitnet.simulator.task_graph import GRADIENT

__all__ = ["Tasks", "makespan", "tasks_of"]

_OUTPUT, _SUM, _WEIGHT = 0, 1, 2
_COPIES_FIRST = 1 << 62


class Tasks(NamedTuple):
    """The lists of a step graph as flat arrays; see `StepGraph` and `TaskGraph`.

    Rows of lists are `items[start[i]:start[i + 1]]`. `group` is the group of each unit,
    `seconds` is per device and task of a unit, `part_seconds` what a function costs
    each device. `edge_seconds` is nan where the link decides. Sums are those of edges,
    `sum_of_edge`, and then of weights: `sum_unit` makes the edge or is the weight's
    home, `contributors` are units, `row_bytes` is for each of them.
    """

    group: Ints
    seconds: Floats
    part_seconds: Floats
    tail: Floats
    has_backward: Bools
    has_update: Bools
    edge_bytes: Floats
    edge_seconds: Floats
    view_of: Ints
    sum_of_edge: Ints
    sum_unit: Ints
    sum_edge: Ints
    sum_bytes: Floats
    contributor_start: Ints
    contributors: Ints
    contributes_to: Ints
    row_bytes: Floats
    user_start: Ints
    users: Ints
    weight_bytes: Floats
    latency: Floats
    gap: Floats
    seconds_per_byte: Floats
    calls: Calls
    scratch: Scratch


def tasks_of(problem: Problem) -> Tasks:
    """Flat arrays of a problem's step."""
    step = problem.step
    assert step is not None, "a makespan is that of a step"
    edges, reductions = step.edges, step.tasks.reductions
    last, rule = 2 * step.count - 1, problem.functions
    known = [np.nan if edge.seconds is None else edge.seconds for edge in edges]
    views = [-1 if edge.view_of is None else edge.view_of for edge in edges]
    sum_of_edge = np.full(len(edges), -1)
    for number, one in enumerate(reductions):
        if one.kind == GRADIENT:
            sum_of_edge[one.item] = number
    units = [
        last - one.task if one.kind == GRADIENT else one.task - last - 1
        for one in reductions
    ]
    contributors = [[last - task for task in one.contributors] for one in reductions]
    rows = [one.row_bytes or [0] * len(one.contributors) for one in reductions]
    return Tasks(
        problem.group_of_unit,
        np.array(step.task_seconds, np.float64),
        np.zeros(step.device_count) if rule is None else rule.part_seconds,
        np.array(step.tails, np.float64),
        np.array(step.has_backward, np.bool_),
        np.array(step.has_update, np.bool_),
        np.array([edge.bytes for edge in edges], np.float64),
        np.array(known, np.float64),
        np.array(views, np.int64),
        sum_of_edge,
        np.array(units, np.int64),
        np.array([r.item if r.kind == GRADIENT else -1 for r in reductions], np.int64),
        np.array([one.bytes for one in reductions], np.float64),
        *rows_of(contributors),
        np.repeat(np.arange(len(reductions)), [len(c) for c in contributors]),
        np.array([size for row in rows for size in row], np.float64),
        *rows_of(weight.users for weight in step.weights),
        np.array([weight.bytes for weight in step.weights], np.float64),
        np.array(step.latency, np.float64),
        np.array(step.gap, np.float64),
        np.array(step.seconds_per_byte, np.float64),
        calls_of(problem),
        scratch_of(problem),
    )


@compiled
def arrive(scratch: Scratch, size: int, task: int, time: float, by: int) -> int:
    """Note that something of a task is there for another; the queue's new size."""
    ready, pending, times = scratch.ready, scratch.pending, scratch.queue_time
    if time >= ready[task]:
        ready[task] = time
        scratch.cause[task] = by
    pending[task] -= 1
    if pending[task] > 0:
        return size
    return push(times, scratch.queue_key, size, ready[task], task)


@compiled
def note(
    copies: Ints, number: int, kind: int, item: int, source: int, target: int, by: int
) -> int:
    """Write down what a copy carries, between which devices, by which task; its key."""
    copies[number, 0] = kind
    copies[number, 1] = item
    copies[number, 2] = source
    copies[number, 3] = target
    copies[number, 4] = by
    return number - _COPIES_FIRST


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
def sum_of(
    contributes_to: Ints,
    sum_edge: Ints,
    sum_of_edge: Ints,
    copied_as: Ints,
    contributor: int,
) -> int:
    """The number of the sum that an entry of `contributors` goes into."""
    number: int = contributes_to[contributor]
    edge: int = sum_edge[number]
    if edge < 0 or copied_as[edge] == edge:
        return number
    root: int = sum_of_edge[copied_as[edge]]
    return root


@compiled
def sum_bytes_from(
    contributors: Ints, row_bytes: Floats, where: Ints, device: int, whole: float
) -> float:
    """Bytes of a sum from a device: of the rows of a table, if all send only rows."""
    amount, wholes, count = 0.0, 0, 0
    for unit, size in zip(contributors, row_bytes):
        if where[unit] == device:
            amount += size
            count += 1
            wholes += size == 0
    return amount if count and not wholes else amount + whole


@compiled
def set_up(tasks: Tasks, count: int) -> None:
    """Tasks of the functions: seconds, what they wait for, what they give to others.

    Forward task f, backward task 2 * count - 1 - f and update task 2 * count + f.
    """
    calls, scratch = tasks.calls, tasks.scratch
    function, where, source = calls.function, calls.place, calls.source
    reader_start, readers = calls.reader_start, calls.readers
    took, tails, view_of = tasks.seconds, tasks.tail, tasks.view_of
    has_backward, has_update = tasks.has_backward, tasks.has_update
    part_seconds, left = tasks.part_seconds, scratch.left
    seconds, tail, ready = scratch.seconds, scratch.tail, scratch.ready
    pending = scratch.pending
    place, backward, leaves = scratch.place, scratch.backward, scratch.leaves
    copied_as, views, missing = scratch.copied_as, scratch.views, scratch.missing
    first, last, when = scratch.first, scratch.last, scratch.when
    units, back, edges = len(function), 2 * count - 1, len(source)
    for f in range(count):
        backward[f] = False
        place[f] = place[back - f] = place[2 * count + f] = where[f]
    for task in range(3 * count):
        seconds[task] = ready[task] = 0.0
        scratch.cause[task] = -1
        pending[task] = 0
        tail[task] = -1.0
        first[task] = -1
    for u in range(units):
        f = function[u]
        here, update = where[f], 2 * count + f
        seconds[f] += took[here, u]
        seconds[back - f] += took[here, 2 * units - 1 - u]
        seconds[update] += took[here, 2 * units + u]
        tail[f] = tails[u]  # of the last unit
        if tail[back - f] < 0.0:
            tail[back - f] = tails[2 * units - 1 - u]  # of the first
        tail[update] = 0.0
        if has_backward[u]:
            backward[f] = True
            pending[back - f] = 1
        if has_update[u]:
            pending[update] = 1
    for task in range(2 * count if count < units else 0):
        if seconds[task] > 0.0:
            seconds[task] += part_seconds[place[task]]
            left[place[task]] += part_seconds[place[task]]
    for edge in range(edges):
        f, root = function[source[edge]], edge
        while view_of[root] >= 0 and function[source[root]] == f:
            root = view_of[root]
        copied_as[edge] = root if function[source[root]] == f else edge
        leaves[edge] = False
        views[edge] = -1
    for edge in range(edges):
        f, root, out = function[source[edge]], copied_as[edge], False
        for r in range(reader_start[edge], reader_start[edge + 1]):
            g = function[readers[r]]
            pending[g] += g != f
            out |= g != f
        if out:
            leaves[root] = True
            if root != edge:
                views[edge] = views[root]
                views[root] = edge
    after, along = scratch.after, scratch.along
    for edge in range(edges):
        if leaves[edge]:
            append(first, last, after, function[source[edge]], edge)
    contributes_to, contributors = tasks.contributes_to, tasks.contributors
    sum_edge, sum_unit, sum_of_edge = tasks.sum_edge, tasks.sum_unit, tasks.sum_of_edge
    for number in range(len(sum_unit)):
        for device in range(len(left)):
            missing[number, device] = 0
            when[number, device] = 0.0
    for e in range(len(contributors)):
        number = sum_of(contributes_to, sum_edge, sum_of_edge, copied_as, e)
        f, g = function[sum_unit[number]], function[contributors[e]]
        weight = sum_edge[number] < 0
        if weight or f != g:
            task = 2 * count + f if weight else back - f
            pending[task] += missing[number, where[g]] == 0
            missing[number, where[g]] += 1
            append(first, last, along, back - g, e)


@entry
def makespan(tasks: Tasks, device_of: Ints, limit: float) -> float:
    """Seconds of the step with group g on `device_of[g]`; infinite above the limit."""
    calls, scratch, group, took = tasks.calls, tasks.scratch, tasks.group, tasks.seconds
    free, left, link_free = scratch.free, scratch.left, scratch.link_free
    seen = scratch.seen
    where, work, units = calls.device, scratch.work, len(group)
    last, size, copied, stamp = 0.0, 0, 0, 0
    limit *= 1 + 1e-9  # times and what is left are added up in different orders
    for device in range(len(free)):
        left[device] = free[device] = 0.0
        seen[device] = 0
        for other in range(len(free)):
            link_free[device, other] = 0.0
    for unit in range(units):
        device = device_of[group[unit]]
        where[unit] = device
        left[device] += took[device, unit]
        left[device] += took[device, 2 * units - 1 - unit]
        left[device] += took[device, 2 * units + unit]
    work[0] += units
    for device in range(len(free)):
        if left[device] > limit:
            return np.inf
    count = cut_functions(calls)
    set_up(tasks, count)
    work[0] += 2 * units
    function, reader_start, readers = calls.function, calls.reader_start, calls.readers
    seconds, tail = scratch.seconds, scratch.tail
    pending, place, backward = scratch.pending, scratch.place, scratch.backward
    times, keys, copies = scratch.queue_time, scratch.queue_key, scratch.copies
    copy_bytes, missing = scratch.copy_bytes, scratch.missing
    copied_as = scratch.copied_as
    first, after, along = scratch.first, scratch.after, scratch.along
    views = scratch.views
    summed, gap, latency = scratch.when, tasks.gap, tasks.latency
    cause, latest, end = scratch.cause, scratch.latest, -1
    seconds_per_byte, edge_seconds = tasks.seconds_per_byte, tasks.edge_seconds
    edge_bytes, weight_bytes = tasks.edge_bytes, tasks.weight_bytes
    sum_bytes = tasks.sum_bytes
    user_start, users, sum_unit = tasks.user_start, tasks.users, tasks.sum_unit
    contributes_to, sum_edge = tasks.contributes_to, tasks.sum_edge
    sum_of_edge = tasks.sum_of_edge
    contributor_start, contributors = tasks.contributor_start, tasks.contributors
    row_bytes = tasks.row_bytes
    for weight in range(len(weight_bytes)):
        home = where[users[user_start[weight]]]
        stamp += 1
        for e in range(user_start[weight], user_start[weight + 1]):
            device = where[users[e]]
            if device == home:
                continue
            pending[function[users[e]]] += 1
            if seen[device] != stamp:
                seen[device] = stamp
                copy_bytes[copied] = weight_bytes[weight]
                key = note(copies, copied, _WEIGHT, weight, home, device, -1)
                size = push(times, keys, size, 0.0, key)
                copied += 1
    for f in range(count):
        if pending[f] == 0:
            size = push(times, keys, size, 0.0, f)
    while size:
        time, key = times[0], keys[0]
        size = pop(times, keys, size)
        work[0] += 1
        if key < 0:
            number = key + _COPIES_FIRST
            kind, item = copies[number, 0], copies[number, 1]
            source, target = copies[number, 2], copies[number, 3]
            by = copies[number, 4]
            known, overlap = np.nan, 0.0
            if kind == _OUTPUT:
                known = edge_seconds[item]
            elif kind == _SUM and sum_edge[item] >= 0:
                known = edge_seconds[sum_edge[item]]
            if np.isnan(known):
                known = latency[source, target]
                overlap = known - gap[source, target]
                known += copy_bytes[number] * seconds_per_byte[source, target]
            time = max(time, link_free[source, target]) + known
            link_free[source, target] = time - overlap
            if time > last:
                last, end = time, by
            if kind == _SUM:
                f = function[sum_unit[item]]
                task = 2 * count + f if sum_edge[item] < 0 else 2 * count - 1 - f
                size = arrive(scratch, size, task, time, by)
                continue
            while item >= 0:
                begin, waiting = reader_start, readers
                if kind == _WEIGHT:
                    begin, waiting = user_start, users
                for e in range(begin[item], begin[item + 1]):
                    if where[waiting[e]] == target:
                        task = function[waiting[e]]
                        size = arrive(scratch, size, task, time, by)
                item = views[item] if kind == _OUTPUT else -1
            continue
        device, takes = place[key], seconds[key]
        if takes > 0:
            if time < free[device]:
                time = free[device]
                cause[key] = latest[device]
            if time + left[device] > limit or time + takes + tail[key] > limit:
                return np.inf
            left[device] -= takes
            free[device] = time + takes
            latest[device] = key
        time += takes
        if time > last:
            last, end = time, key
        item = first[key]
        if key < count:
            if backward[key]:
                task = 2 * count - 1 - key
                size = arrive(scratch, size, task, time, key)
            while item >= 0:
                edge = item
                stamp += 1
                while edge >= 0:
                    for e in range(reader_start[edge], reader_start[edge + 1]):
                        task = function[readers[e]]
                        target = place[task]
                        if target == device:
                            if task != key:
                                size = arrive(scratch, size, task, time, key)
                        elif seen[target] != stamp:
                            seen[target] = stamp
                            copy_bytes[copied] = edge_bytes[item]
                            copy = note(
                                copies, copied, _OUTPUT, item, device, target, key
                            )
                            size = push(times, keys, size, time, copy)
                            copied += 1
                    edge = views[edge]
                item = after[item]
        elif key < 2 * count:
            update = 4 * count - 1 - key
            if pending[update] > 0:
                size = arrive(scratch, size, update, time, key)
            while item >= 0:
                number = sum_of(contributes_to, sum_edge, sum_of_edge, copied_as, item)
                item = along[item]
                missing[number, device] -= 1
                summed[number, device] = max(summed[number, device], time)
                if missing[number, device]:
                    continue
                when, f = summed[number, device], function[sum_unit[number]]
                task = 2 * count + f if sum_edge[number] < 0 else 2 * count - 1 - f
                if place[task] == device:
                    size = arrive(scratch, size, task, when, key)
                    continue
                start, end = contributor_start[number], contributor_start[number + 1]
                own, rows = contributors[start:end], row_bytes[start:end]
                whole = sum_bytes[number]
                copy_bytes[copied] = sum_bytes_from(own, rows, where, device, whole)
                target = place[task]
                copy = note(copies, copied, _SUM, number, device, target, key)
                size = push(times, keys, size, when, copy)
                copied += 1
    if last > limit:
        return np.inf
    note_critical(tasks, count, end)
    return last


@compiled
def note_critical(tasks: Tasks, count: int, end: int) -> None:
    """List the groups of the tasks that each waited for the one before, to the last."""
    scratch, function = tasks.scratch, tasks.calls.function
    critical, on_path, size = scratch.critical, scratch.backward, 0
    for f in range(count):
        on_path[f] = False
    while end >= 0:
        f = end if end < count else 2 * count - 1 - end
        on_path[f if f >= 0 else end - 2 * count] = True
        end = scratch.cause[end]
    for u in range(len(function)):
        if on_path[function[u]]:
            critical[size] = tasks.group[u]
            size += 1
    critical[len(function)] = size
