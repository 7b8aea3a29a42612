"""A step as flat arrays, and which of its calls run as one function.

Rows of lists are `items[start[i]:start[i + 1]]`. Items are the edges of the step, then
its shared weights: a weight is read by its users and comes from `users[0]`. Tasks are
numbered as in `simulator.task_graph`.

The rules of `simulator.units`: calls on one device that are connected, with the same
number of hops before them and after them, are a run; long runs are cut at seams.
Functions are numbered in the order in which they run, as
`planner.partitioning.functions` sorts its parts.
"""

from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.load_graph import Bools, Floats, Ints, rows, rows_of
from splitnet.planner.problem import Problem
from splitnet.simulator.task_graph import GRADIENT
from splitnet.simulator.units import CALLS

EVENTS, SENT = range(2)
"""Numbers of `Scratch.counted`."""


class Scratch(NamedTuple):
    """Arrays that one run after the other uses; `counted` by EVENTS and SENT."""

    # For each unit.
    device: Ints
    function: Ints
    member: Ints  # units in the order of functions
    at: Ints  # the place of each unit in it
    before: Ints  # hops; then where runs to be cut begin
    after: Ints  # hops; then where those end
    leader: Ints  # of sets of units, while they are found
    number: Ints
    start: Ints
    made: Ints  # edges of a run that begin at each place in it
    ends: Ints  # and that end there
    cut: Ints  # whether a run ends at a place of `member`
    backward: Ints  # whether a function has a backward task
    critical: Ints  # groups of the units on the critical path, their number behind
    # For each item.
    copied_as: Ints  # the item that is copied instead: this one is a view of it
    views: Ints  # the next view that is copied as the same item
    leaves: Ints  # whether another function reads it
    next_item: Ints  # the next one that leaves the same function
    last: Ints  # the last reader in a run
    seen: Ints  # stamps
    missing: Ints  # per device, contributors that have not run
    summed: Floats  # per device, when the last contributor ended
    next_sum: Ints  # for each contributor, the next sum of the same task
    # For each task of a function.
    pending: Ints
    first_item: Ints  # ends of the list of what it sends: items, or sums
    last_item: Ints
    place: Ints
    cause: Ints  # the task that it waited for until it began
    seconds: Floats
    tail: Floats
    ready: Floats
    # For each task and copy.
    queue_time: Floats
    queue_key: Ints
    # For each copy.
    copies: Ints  # item, source, target, and the task that sends it; -1 for weights
    copy_bytes: Floats
    # For each device.
    link_free: Floats
    sent: Ints  # the last item that was sent there
    latest: Ints  # the last task that ran there
    free: Floats
    left: Floats
    counted: Ints


class Tasks(NamedTuple):
    """What a step does, for any placement."""

    group: Ints  # of each unit
    whole: bool  # whether each unit is a function
    key: Ints  # units of one key may be one function
    calls: Ints
    seconds: Floats  # per device and task of a unit
    part_seconds: Floats  # what calling a function costs each device
    tail: Floats  # the least seconds from the end of a task to the end of the step
    has_backward: Bools
    has_update: Bools
    read_start: Ints  # edges that a unit reads, those of inputs left out
    reads: Ints
    output_start: Ints
    outputs: Ints
    source: Ints  # of each item
    reader_start: Ints
    readers: Ints
    bytes: Floats
    fixed: Floats  # seconds of a copy of an item; nan where the link decides
    view_of: Ints  # per edge, that which it is a view of, or -1
    contributor_start: Ints  # units that contribute to the gradient of an item
    contributors: Ints
    contributes_to: Ints  # the item, for each of them
    row_bytes: Floats  # as in `SharedWeight`, for each of them
    latency: Floats
    gap: Floats
    seconds_per_byte: Floats
    scratch: Scratch


def tasks_of(problem: Problem) -> Tasks:
    """Flat arrays of a problem's step."""
    step, rule = problem.step, problem.functions
    assert step is not None, "a makespan is that of a step"
    edges, weights, units = step.edges, step.weights, step.count
    read = {reader for edge in edges for reader in edge.readers}
    reads: list[list[int]] = [[] for _ in range(units)]
    for number, edge in enumerate(edges):
        if edge.source in read or step.forward[0][edge.source]:
            for reader in edge.readers:
                reads[reader].append(number)
    contributors: list[list[int]] = [[] for _ in (*edges, *weights)]
    row_bytes = list[int]()
    for one in step.tasks.reductions:
        item = one.item if one.kind == GRADIENT else len(edges) + one.item
        contributors[item] = [2 * units - 1 - task for task in one.contributors]
        row_bytes += one.row_bytes or [0] * len(one.contributors)
    start, users = rows_of(contributors)
    readers = [*(e.readers for e in edges), *(w.users for w in weights)]
    known = chain((edge.seconds for edge in edges), (None for _ in weights))
    return Tasks(
        problem.group_of_unit,
        rule is None,
        np.zeros(units, np.int64) if rule is None else rule.key,
        np.array(step.calls, np.int64),
        np.array(step.task_seconds, np.float64),
        np.zeros(step.device_count) if rule is None else rule.part_seconds,
        np.array(step.tails, np.float64),
        np.array(step.has_backward, np.bool_),
        np.array(step.has_update, np.bool_),
        *rows_of(reads),
        *rows_of(step.tasks.outputs),
        np.array([e.source for e in edges] + [w.users[0] for w in weights], np.int64),
        *rows_of(readers),
        np.array([e.bytes for e in edges] + [w.bytes for w in weights], np.float64),
        np.array([np.nan if one is None else one for one in known], np.float64),
        np.array([-1 if e.view_of is None else e.view_of for e in edges], np.int64),
        start,
        users,
        np.repeat(np.arange(len(start) - 1), np.diff(start)),
        np.array(row_bytes, np.float64),
        np.array(step.latency, np.float64),
        np.array(step.gap, np.float64),
        np.array(step.seconds_per_byte, np.float64),
        _scratch(units, step.device_count, rows_of(readers)[0], start),
    )


def merged(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks with the units of a cluster of groups merged, as far as they are one run.

    Values are those of larger functions, so about the same, and take less time.
    """
    units, edges = len(tasks.group), len(tasks.view_of)
    count = merge_units(tasks, cluster[tasks.group])
    unit = tasks.scratch.function[:units].copy()
    source = unit[tasks.source]

    def rows_in(start: Ints) -> Ints:
        return np.repeat(np.arange(len(start) - 1), np.diff(start))

    def sums(values: Ints | Floats | Bools) -> Floats:
        return np.bincount(unit, values, count).astype(np.float64)

    def member(values: Ints) -> Ints:
        found = np.zeros(count, np.int64)
        found[unit] = values
        return found

    # Edges that no other unit reads are left out.
    weight = np.arange(len(source)) >= edges
    item, reader = rows_in(tasks.reader_start), unit[tasks.readers]
    away = (reader != source[item]) | weight[item]
    kept = weight | (np.bincount(item[away], minlength=len(source)) > 0)
    number, left, edge = np.cumsum(kept) - 1, int(kept.sum()), kept[:edges].nonzero()[0]
    view = tasks.view_of[edge]
    reader_start, readers = rows(number[item[away]], reader[away], left)
    by, to = unit[tasks.contributors], tasks.contributes_to
    out = kept[to] & ((by != source[to]) | weight[to])
    by, to = by[out], number[to[out]]
    contributor_start, contributors = rows(to, by, left)
    contributes_to = rows_in(contributor_start)
    keys = contributes_to * count + contributors
    row_bytes = np.bincount(
        np.searchsorted(keys, to * count + by), tasks.row_bytes[out], len(keys)
    )
    reads, by = tasks.reads, rows_in(tasks.read_start)
    into = kept[reads] & (unit[by] != source[reads])
    read_start, reads = rows(unit[by[into]], number[reads[into]], count)
    output_start, outputs = rows(source[edge], np.arange(len(edge)), count)
    seconds = []
    for row in tasks.seconds:
        ahead, back, update = row.reshape(3, units)
        seconds.append([*sums(ahead), *sums(back[::-1])[::-1], *sums(update)])
    tail = np.zeros(3 * count)
    tail[unit] = tasks.tail[:units]  # of the last unit
    tail[2 * count - 1 - unit[::-1]] = tasks.tail[units : 2 * units]  # of the first
    return tasks._replace(
        group=member(cluster[tasks.group]),
        key=member(tasks.key),
        calls=sums(tasks.calls).astype(np.int64),
        seconds=np.array(seconds, np.float64),
        tail=tail,
        has_backward=sums(tasks.has_backward) > 0,
        has_update=sums(tasks.has_update) > 0,
        read_start=read_start,
        reads=reads,
        output_start=output_start,
        outputs=outputs,
        source=source[kept],
        reader_start=reader_start,
        readers=readers,
        bytes=tasks.bytes[kept],
        fixed=tasks.fixed[kept],
        view_of=np.where((view >= 0) & kept[view], number[view], -1),
        contributor_start=contributor_start,
        contributors=contributors,
        contributes_to=contributes_to,
        row_bytes=row_bytes.astype(np.float64),
        scratch=_scratch(count, len(tasks.latency), reader_start, contributor_start),
    )


def _scratch(
    units: int, devices: int, reader_start: Ints, contributor_start: Ints
) -> Scratch:
    """Arrays that are large enough for any placement."""
    items, tasks, integers = len(reader_start) - 1, 3 * units, np.int64
    each = np.concatenate([np.diff(reader_start), np.diff(contributor_start)])
    copies = 1 + int(np.minimum(each, devices).sum())
    arrays: list[Any] = [
        *np.zeros((14, units + 1), integers),
        *np.zeros((6, items + 1), integers),
        np.zeros((items, devices), integers),
        np.zeros((items, devices)),
        np.zeros(contributor_start[-1], integers),
        *np.zeros((5, tasks), integers),
        *np.zeros((3, tasks)),
        np.zeros(tasks + copies),
        np.zeros(tasks + copies, integers),
        np.zeros((copies, 4), integers),
        np.zeros(copies),
        np.zeros((devices, devices)),
        *np.zeros((2, devices), integers),
        *np.zeros((2, devices)),
        np.zeros(2, integers),
    ]
    return Scratch(*arrays)


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


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
def cut_functions(tasks: Tasks) -> int:
    """Find the function of each unit, with units on devices; how many there are."""
    s, units = tasks.scratch, len(tasks.group)
    for u in range(units):
        s.function[u] = u
        s.place[u] = s.device[u]
    if tasks.whole:
        return units
    find_runs(tasks)
    low = 0 * units  # literals would be compiled for once more
    for i in range(units):
        if s.cut[i]:
            if i > low:
                cut_run(tasks, low, i + 1)
            low = i + 1
    return number_functions(tasks)


@entry
def merge_units(tasks: Tasks, label: Ints) -> int:
    """Find the runs of units of one label, as if labels were devices; their number."""
    for u in range(len(tasks.group)):
        tasks.scratch.device[u] = label[u]
    find_runs(tasks)
    return number_functions(tasks)


@compiled
def number_functions(tasks: Tasks) -> int:
    """Number the runs in running order; how many there are."""
    s, units = tasks.scratch, len(tasks.group)
    count = first = 0 * units
    for i in range(units):
        u = s.member[i]
        if i == 0 or s.cut[i - 1] or tasks.key[u] != tasks.key[s.member[i - 1]]:
            s.number[count] = -1
            s.start[count] = i
            count += 1
        s.function[u] = count - 1
    s.start[count] = units
    for u in range(units):  # the first call of each decides
        f = s.function[u]
        if s.number[f] < 0:
            s.number[f] = first
            s.leader[first] = f
            first += 1
        s.function[u] = s.number[f]
        s.place[s.number[f]] = s.device[u]
    for edge in range(len(tasks.view_of)):
        f = s.function[tasks.source[edge]]
        for r in range(tasks.reader_start[edge], tasks.reader_start[edge + 1]):
            if s.function[tasks.readers[r]] < f:
                sort_functions(tasks, count)
                return count
    return count


@compiled
def find_runs(tasks: Tasks) -> None:
    """Sort the units by run into `member`; mark the last unit of each run in `cut`."""
    s, read_start = tasks.scratch, tasks.read_start
    device, before, after = s.device, s.before, s.after
    units, runs, total = len(tasks.group), 0, 0
    for u in range(units):
        before[u] = after[u] = s.cut[u] = 0
        s.number[u] = -1
        s.leader[u] = u
        for i in range(read_start[u], read_start[u + 1]):
            v = tasks.source[tasks.reads[i]]
            before[u] = max(before[u], before[v] + (device[v] != device[u]))
    for u in range(units - 1, -1, -1):
        for i in range(read_start[u], read_start[u + 1]):
            v = tasks.source[tasks.reads[i]]
            after[v] = max(after[v], after[u] + (device[v] != device[u]))
    for u in range(units):
        for i in range(read_start[u], read_start[u + 1]):
            v = tasks.source[tasks.reads[i]]
            alike = before[v] == before[u] and after[v] == after[u]
            if alike and device[v] == device[u]:
                s.leader[root_of(s.leader, u)] = root_of(s.leader, v)
    for u in range(units):
        root = root_of(s.leader, u)
        if s.number[root] < 0:
            s.number[root] = runs
            s.start[runs] = 0
            runs += 1
        s.start[s.number[root]] += 1
    for run in range(runs):
        total += s.start[run]
        s.start[run] = total
        s.cut[total - 1] = 1
    for u in range(units - 1, -1, -1):
        run = s.number[root_of(s.leader, u)]
        s.start[run] -= 1
        s.at[u] = s.start[run]
        s.member[s.at[u]] = u


@compiled
def cut_run(tasks: Tasks, low: int, high: int) -> None:
    """Cut the run in `member[low:high]` at seams, and what is long again."""
    s, read_start = tasks.scratch, tasks.read_start
    lows, highs = s.before, s.after
    lows[0], highs[0], top = low, high, 1
    while top:
        top -= 1
        low, high = lows[top], highs[top]
        s.cut[high - 1] = 1
        done = passing = left = 0
        for i in range(low, high):
            left += tasks.calls[s.member[i]]
        if left < 2 * CALLS:
            continue
        stamp = s.seen[-1] = s.seen[-1] + 1
        for i in range(low, high):
            s.made[i] = s.ends[i] = 0
            u = s.member[i]
            for e in range(read_start[u], read_start[u + 1]):
                edge = tasks.reads[e]
                p = s.at[tasks.source[edge]]
                if p < low or p >= high:
                    continue
                if s.seen[edge] == stamp:
                    s.ends[s.last[edge]] -= 1
                else:
                    s.made[p] += 1
                s.seen[edge] = stamp
                s.last[edge] = i
                s.ends[i] += 1
        first = low
        for i in range(low, high - 1):
            calls = tasks.calls[s.member[i]]
            passing += s.made[i] - s.ends[i]
            done += calls
            left -= calls
            if done >= CALLS and left >= CALLS and passing <= 1:
                lows[top], highs[top] = first, i + 1
                top += 1
                first, done = i + 1, 0
        if first > low:
            lows[top], highs[top] = first, high
            top += 1


@compiled
def sort_functions(tasks: Tasks, count: int) -> None:
    """Number functions in topological order, the first call decides between several.

    Kahn (1962). `leader` and `start` tell the members of each.
    """
    s, waits, size, turn = tasks.scratch, tasks.scratch.ends, 0, 0
    for f in range(count):
        waits[f] = 0
    for edge in range(len(tasks.view_of)):
        f = s.function[tasks.source[edge]]
        for r in range(tasks.reader_start[edge], tasks.reader_start[edge + 1]):
            waits[s.function[tasks.readers[r]]] += s.function[tasks.readers[r]] != f
    for f in range(count):
        if waits[f] == 0:
            size = push(s.queue_time, s.queue_key, size, 0.0, f)
    while size:
        f = s.queue_key[0]
        size = pop(s.queue_time, s.queue_key, size)
        s.number[f] = turn
        turn += 1
        for i in range(s.start[s.leader[f]], s.start[s.leader[f] + 1]):
            u = s.member[i]
            for o in range(tasks.output_start[u], tasks.output_start[u + 1]):
                edge = tasks.outputs[o]
                for r in range(tasks.reader_start[edge], tasks.reader_start[edge + 1]):
                    g = s.function[tasks.readers[r]]
                    if g != f:
                        waits[g] -= 1
                        if waits[g] == 0:
                            size = push(s.queue_time, s.queue_key, size, 0.0, g)
    for u in range(len(tasks.group)):
        s.function[u] = s.number[s.function[u]]
        s.place[s.function[u]] = s.device[u]
