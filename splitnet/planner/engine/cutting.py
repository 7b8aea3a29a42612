"""Which calls run as one function, compiled: the rules of `simulator.units`.

Calls on one device that are connected, with the same number of hops before them and
after them, are a run; long runs are cut at seams. Functions are numbered in the order
in which they run, as `planner.partitioning.functions` sorts its parts.
"""

from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import compiled
from splitnet.planner.problem import Bools, Floats, Ints, Problem, rows_of
from splitnet.simulator.units import CALLS

__all__ = [
    "Calls",
    "Scratch",
    "calls_of",
    "cut_functions",
    "pop",
    "push",
    "root_of",
    "scratch_of",
]


class Calls(NamedTuple):
    """What decides where functions begin and end, and scratch for one placement.

    `reads` are the edges that a unit reads, those of inputs left out; `source` and
    `readers` are per edge. Units of unlike `key` are never one function. If `whole`,
    each unit is one. `device` is that of each unit. Results are the `function` of each
    unit, and the `place` of each function.
    """

    whole: bool
    source: Ints
    reader_start: Ints
    readers: Ints
    output_start: Ints
    outputs: Ints
    read_start: Ints
    reads: Ints
    key: Ints
    size: Ints
    device: Ints
    function: Ints
    place: Ints
    before: Ints
    after: Ints
    leader: Ints
    number: Ints
    member: Ints
    at: Ints
    start: Ints
    made: Ints
    ends: Ints
    cut: Ints
    last: Ints
    seen: Ints
    queue_time: Floats
    queue_key: Ints


def calls_of(problem: Problem) -> Calls:
    """The calls of a problem's step."""
    step = problem.step
    assert step is not None, "functions are those of a step"
    units, edges, rule = step.count, step.edges, problem.functions
    read = {reader for edge in edges for reader in edge.readers}
    reads: list[list[int]] = [[] for _ in range(units)]
    for number, edge in enumerate(edges):
        if edge.source in read or step.forward[0][edge.source]:
            for reader in edge.readers:
                reads[reader].append(number)
    return Calls(
        rule is None,
        np.array([edge.source for edge in edges], np.int64),
        *rows_of(edge.readers for edge in edges),
        *rows_of(step.tasks.outputs),
        *rows_of(reads),
        np.zeros(units, np.int64) if rule is None else rule.key,
        np.array(step.calls, np.int64),
        np.zeros(units, np.int64),
        np.arange(units),
        np.zeros(units, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(units + 1, np.int64),
        np.zeros(len(edges), np.int64),
        np.zeros(len(edges) + 1, np.int64),
        np.zeros(units),
        np.zeros(units, np.int64),
    )


class Scratch(NamedTuple):
    """Arrays that one run after the other uses.

    Per task: seconds, the end of the run after it, and more. Per edge: the edge that is
    copied in its place, and the next one of that. `first` and `last` are the ends of
    lists: edges that leave a function, chained by `after`, then sums that its backward
    task contributes to, chained by `along`. `cause` is the task that each task waited
    for until it began, `latest` the last one of each device. After a whole run
    `critical` lists the group of each unit on the critical path, its length behind.
    `work` counts the events of all runs, and the tasks that were set up.
    """

    seconds: Floats
    tail: Floats
    ready: Floats
    pending: Ints
    place: Ints
    backward: Bools
    copied_as: Ints
    views: Ints
    leaves: Bools
    first: Ints
    last: Ints
    after: Ints
    along: Ints
    queue_time: Floats
    queue_key: Ints
    copies: Ints
    copy_bytes: Floats
    missing: Ints
    when: Floats
    link_free: Floats
    seen: Ints
    free: Floats
    left: Floats
    cause: Ints
    latest: Ints
    critical: Ints
    work: Ints


def scratch_of(problem: Problem) -> Scratch:
    """Arrays that are large enough for any placement."""
    step = problem.step
    assert step is not None, "a makespan is that of a step"
    count, devices, edges = 3 * step.count, step.device_count, len(step.edges)
    reductions = step.tasks.reductions
    pairs = sum(len(one.contributors) for one in reductions)
    most = 1 + devices * len(step.weights)
    most += sum(min(devices, len(edge.readers)) for edge in step.edges)
    most += sum(min(devices, len(one.contributors)) for one in reductions)
    integers = np.int64
    return Scratch(
        np.zeros(count),
        np.zeros(count),
        np.zeros(count),
        np.zeros(count, integers),
        np.zeros(count, integers),
        np.zeros(step.count, np.bool_),
        np.zeros(edges, integers),
        np.zeros(edges, integers),
        np.zeros(edges, np.bool_),
        np.zeros(count, integers),
        np.zeros(count, integers),
        np.zeros(edges, integers),
        np.zeros(pairs, integers),
        np.zeros(count + most),
        np.zeros(count + most, integers),
        np.zeros((most, 5), integers),
        np.zeros(most),
        np.zeros((len(reductions), devices), integers),
        np.zeros((len(reductions), devices)),
        np.zeros((devices, devices)),
        np.zeros(devices, integers),
        np.zeros(devices),
        np.zeros(devices),
        np.zeros(count, integers),
        np.zeros(devices, integers),
        np.zeros(1 + len(problem.group_of_unit), integers),
        np.zeros(1, integers),
    )


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
def find_runs(calls: Calls) -> None:
    """Sort the units by run into `member`; mark the last unit of each run in `cut`."""
    before, after, leader = calls.before, calls.after, calls.leader
    device = calls.device
    source, start, number, cut = calls.source, calls.start, calls.number, calls.cut
    read_start, reads, member = calls.read_start, calls.reads, calls.member
    at = calls.at
    units, runs, total = len(device), 0, 0
    for u in range(units):
        before[u] = after[u] = cut[u] = 0
        number[u] = -1
        leader[u] = u
        for i in range(read_start[u], read_start[u + 1]):
            s = source[reads[i]]
            before[u] = max(before[u], before[s] + (device[s] != device[u]))
    for u in range(units - 1, -1, -1):
        for i in range(read_start[u], read_start[u + 1]):
            s = source[reads[i]]
            after[s] = max(after[s], after[u] + (device[s] != device[u]))
    for u in range(units):
        for i in range(read_start[u], read_start[u + 1]):
            s = source[reads[i]]
            alike = before[s] == before[u] and after[s] == after[u]
            if alike and device[s] == device[u]:
                leader[root_of(leader, u)] = root_of(leader, s)
    for u in range(units):
        root = root_of(leader, u)
        if number[root] < 0:
            number[root] = runs
            start[runs] = 0
            runs += 1
        start[number[root]] += 1
    for run in range(runs):
        total += start[run]
        start[run] = total
        cut[total - 1] = 1
    for u in range(units - 1, -1, -1):
        run = number[root_of(leader, u)]
        start[run] -= 1
        member[start[run]] = u
        at[u] = start[run]


@compiled
def cut_run(calls: Calls, low: int, high: int) -> None:
    """Cut the run in `member[low:high]` at seams, and what is long again."""
    member, size, made, ends = calls.member, calls.size, calls.made, calls.ends
    lows, highs, seen, last = calls.before, calls.after, calls.seen, calls.last
    read_start, reads, at = calls.read_start, calls.reads, calls.at
    source = calls.source
    cut, lows[0], highs[0], top = calls.cut, low, high, 1
    while top:
        top -= 1
        low, high = lows[top], highs[top]
        cut[high - 1] = 1
        done = passing = left = 0
        for i in range(low, high):
            left += size[member[i]]
        if left < 2 * CALLS:
            continue
        stamp = seen[len(last)] = seen[len(last)] + 1
        for i in range(low, high):
            made[i] = ends[i] = 0
            u = member[i]
            for e in range(read_start[u], read_start[u + 1]):
                edge = reads[e]
                p = at[source[edge]]
                if p < low or p >= high:
                    continue
                if seen[edge] == stamp:
                    ends[last[edge]] -= 1
                else:
                    made[p] += 1
                seen[edge] = stamp
                last[edge] = i
                ends[i] += 1
        first = low
        for i in range(low, high - 1):
            passing += made[i] - ends[i]
            done += size[member[i]]
            left -= size[member[i]]
            if done >= CALLS and left >= CALLS and passing <= 1:
                lows[top], highs[top] = first, i + 1
                top += 1
                first, done = i + 1, 0
        if first > low:
            lows[top], highs[top] = first, high
            top += 1


@compiled
def cut_functions(calls: Calls) -> int:
    """Find the function of each unit, with units on devices; how many there are."""
    device, place, units = calls.device, calls.place, len(calls.device)
    if calls.whole:
        for u in range(units):
            place[u] = device[u]
        return units
    find_runs(calls)
    function, number, member = calls.function, calls.number, calls.member
    start, chosen, cut, key = calls.start, calls.leader, calls.cut, calls.key
    source, reader_start, readers = calls.source, calls.reader_start, calls.readers
    low = count = first = 0 * units  # literals would be compiled for once more
    for i in range(units):
        if cut[i]:
            if i > low:
                cut_run(calls, low, i + 1)
            low = i + 1
    for i in range(units):
        u = member[i]
        if i == 0 or cut[i - 1] or key[u] != key[member[i - 1]]:
            number[count] = -1
            start[count] = i
            count += 1
        function[u] = count - 1
    start[count] = units
    for u in range(units):
        f = function[u]
        if number[f] < 0:
            number[f] = first
            chosen[first] = f
            first += 1
        function[u] = number[f]
        place[number[f]] = device[u]
    in_order = True
    for edge in range(len(source)):
        f = function[source[edge]]
        for r in range(reader_start[edge], reader_start[edge + 1]):
            in_order &= function[readers[r]] >= f
    if not in_order:
        sort_functions(calls, count)
        for u in range(units):
            function[u] = number[function[u]]
            place[function[u]] = device[u]
    return count


@compiled
def sort_functions(calls: Calls, count: int) -> None:
    """Number functions in topological order, the first call decides between several.

    Kahn (1962). `leader` and `start` tell the members of each; `number` is the result.
    """
    function, waits, number, size, turn = calls.function, calls.ends, calls.number, 0, 0
    times, keys, leader = calls.queue_time, calls.queue_key, calls.leader
    start = calls.start
    source, reader_start, readers = calls.source, calls.reader_start, calls.readers
    output_start, outputs, member = calls.output_start, calls.outputs, calls.member
    for f in range(count):
        waits[f] = 0
    for edge in range(len(source)):
        f = function[source[edge]]
        for r in range(reader_start[edge], reader_start[edge + 1]):
            waits[function[readers[r]]] += function[readers[r]] != f
    for f in range(count):
        if waits[f] == 0:
            size = push(times, keys, size, 0.0, f)
    while size:
        f = keys[0]
        size = pop(times, keys, size)
        number[f] = turn
        turn += 1
        for i in range(start[leader[f]], start[leader[f] + 1]):
            u = member[i]
            for o in range(output_start[u], output_start[u + 1]):
                edge = outputs[o]
                for r in range(reader_start[edge], reader_start[edge + 1]):
                    g = function[readers[r]]
                    if g != f:
                        waits[g] -= 1
                        if waits[g] == 0:
                            size = push(times, keys, size, 0.0, g)
