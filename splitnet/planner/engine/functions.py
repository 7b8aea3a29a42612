"""Which calls of a step run as one function, compiled.

The rules of `simulator.units`: calls on one device that are connected, with the same
number of hops before them and after them, are a run; long runs are cut at seams.
Functions are numbered in the order in which they run, as
`planner.problem.functions_called` sorts its parts.
"""

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.load_graph import Floats, Ints, rows
from splitnet.planner.engine.tasks import EDGES, STAMP, Records, Tasks, made, pop, push
from splitnet.simulator.units import CALLS

LONG, _NEVER = float(2 * CALLS), 1e300
"""Calls from which a run is cut."""


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@compiled
def append(task: Records, records: Records, number: int) -> None:
    """Add an item, or a contribution, to the list of what a task gives to others."""
    if task.first_out < 0:
        task.first_out = number
    else:
        records[task.last_out].next_out = number
    task.last_out = number
    records[number].next_out = -1


@entry
def cut_functions(tasks: Tasks, long: float) -> int:
    """Find the function of each unit, with units on devices; how many there are.

    Runs of at least so many calls are cut at seams.
    """
    find_runs(tasks)
    for i in range(len(tasks.units) - 1):
        if tasks.spots[i].cut:
            cut_run(tasks, i, long)
    return number_functions(tasks)


def merged(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks with the units of a cluster of groups merged, as far as they are one run.

    Values are those of larger functions, so about the same, and take less time.
    """
    units, items = tasks.units[:-1], tasks.items[:-1]
    units.where[:] = cluster[units.group]
    count = cut_functions(tasks, _NEVER)
    unit, given = units.function.copy(), tasks.contributions
    source, edges = unit[items.source], int(tasks.counted[EDGES])
    weight = np.arange(len(source)) >= edges

    def owners(start: Ints) -> Ints:
        return np.repeat(np.arange(len(start) - 1), np.diff(start))

    def sums(values: Ints | Floats) -> Floats:
        return np.bincount(unit, values, count).astype(np.float64)

    def last(values: Ints | Floats) -> Floats:
        """The value of each cluster's last unit."""
        found = np.zeros(count)
        found[unit] = values
        return found

    # Edges that no other unit reads are left out.
    item, reader = owners(tasks.items.readers), unit[tasks.readers]
    away = (reader != source[item]) | weight[item]
    kept = weight | (np.bincount(item[away], minlength=len(source)) > 0)
    number, left = np.cumsum(kept) - 1, int(kept.sum())
    view = items.view_of[:edges][kept[:edges]]
    reader_start, readers = rows(number[item[away]], reader[away], left)
    by, to = unit[given.unit], given.to
    out = kept[to] & ((by != source[to]) | weight[to])
    pairs = number[to[out]] * count + by[out]
    pairs, at = np.unique(pairs, return_inverse=True)
    reads, by = tasks.reads, unit[owners(tasks.units.reads)]
    into = kept[reads] & (by != source[reads])
    read_start, reads = rows(by[into], number[reads[into]], count)
    seconds = []
    for ahead, back, update in tasks.seconds.reshape(-1, 3, len(units)):
        seconds.append([*sums(ahead), *sums(back[::-1])[::-1], *sums(update)])
    first = np.zeros(count)
    first[unit[::-1]] = units.backward_tail[::-1]
    return made(
        tasks.whole,
        {
            "group": last(cluster[units.group]),
            "key": last(units.key),
            "calls": sums(units.calls),
            "has_backward": sums(units.has_backward) > 0,
            "has_update": sums(units.has_update) > 0,
            "reads": read_start,
            "forward_tail": last(units.forward_tail),
            "backward_tail": first,
        },
        {
            "source": source[kept],
            "view_of": np.where((view >= 0) & kept[view], number[view], -1),
            "readers": reader_start,
            "bytes": items.bytes[kept],
            "fixed": items.fixed[kept],
        },
        {
            "unit": pairs % count,
            "to": pairs // count,
            "row_bytes": np.bincount(at, given.row_bytes[out], len(pairs)),
        },
        *(tasks.devices, tasks.links),
        np.array(seconds, np.float64),
        *(reads, readers),
    )


@compiled
def find_runs(tasks: Tasks) -> None:
    """Sort the units by run into spots; mark the last one of each run by `cut`.

    `leader` is the parent in the set of units; `number` of a leader that of its run,
    `start` of a run where it begins.
    """
    units, items, spots, runs = tasks.units, tasks.items, tasks.spots, tasks.functions
    count, total, found = len(units) - 1, 0, 0
    for u in range(count):
        unit = units[u]
        unit.before = unit.after = spots[u].cut = 0
        unit.leader = u
        runs[u].number = -1
        for i in range(unit.reads, units[u + 1].reads):
            other = units[items[tasks.reads[i]].source]
            unit.before = max(unit.before, other.before + (other.where != unit.where))
    for u in range(count - 1, -1, -1):
        unit = units[u]
        for i in range(unit.reads, units[u + 1].reads):
            other = units[items[tasks.reads[i]].source]
            other.after = max(other.after, unit.after + (other.where != unit.where))
    leaders = units.leader
    for u in range(count):
        unit = units[u]
        for i in range(unit.reads, units[u + 1].reads):
            v = items[tasks.reads[i]].source
            other = units[v]
            alike = other.before == unit.before and other.after == unit.after
            if alike and other.where == unit.where:
                leaders[root_of(leaders, u)] = root_of(leaders, v)
    for u in range(count):
        root = runs[root_of(leaders, u)]
        if root.number < 0:
            root.number = found
            runs[found].start = 0
            found += 1
        runs[root.number].start += 1
    for run in range(found):
        total += runs[run].start
        runs[run].start = total
        spots[total - 1].cut = 1
    for u in range(count - 1, -1, -1):
        run = runs[runs[root_of(leaders, u)].number]
        run.start -= 1
        units[u].spot = run.start
        spots[run.start].unit = u


@compiled
def cut_run(tasks: Tasks, last: int, long: float) -> None:
    """Cut the run that ends at this spot at seams, and what is long again."""
    units, items, spots = tasks.units, tasks.items, tasks.spots
    low, top = last, 1
    while low > 0 and not spots[low - 1].cut:
        low -= 1
    spots[0].low, spots[0].high = low, last + 1
    while top:
        top -= 1
        low, high = spots[top].low, spots[top].high
        spots[high - 1].cut = 1
        done = passing = left = 0
        for i in range(low, high):
            left += units[spots[i].unit].calls
        if left < long:
            continue
        tasks.counted[STAMP] += 1
        for i in range(low, high):
            spots[i].made = spots[i].ends = 0
            u = spots[i].unit
            for e in range(units[u].reads, units[u + 1].reads):
                item = items[tasks.reads[e]]
                p = units[item.source].spot
                if p < low or p >= high:
                    continue
                if item.seen == tasks.counted[STAMP]:
                    spots[item.last].ends -= 1
                else:
                    spots[p].made += 1
                item.seen = tasks.counted[STAMP]
                item.last = i
                spots[i].ends += 1
        first = low
        for i in range(low, high - 1):
            calls = units[spots[i].unit].calls
            passing += spots[i].made - spots[i].ends
            done += calls
            left -= calls
            if done >= CALLS and left >= CALLS and passing <= 1:
                spots[top].low, spots[top].high = first, i + 1
                top += 1
                first, done = i + 1, 0
        if first > low:
            spots[top].low, spots[top].high = first, high
            top += 1


@compiled
def number_functions(tasks: Tasks) -> int:
    """Number functions in topological order, the first call decides between several.

    Most are in the order of their first calls; else by the algorithm of Kahn (1962).
    """
    units, spots, functions = tasks.units, tasks.spots, tasks.functions
    total = len(units) - 1
    count = first = 0 * total  # a literal would be compiled for anew
    for i in range(total):
        unit = units[spots[i].unit]
        if i == 0 or spots[i - 1].cut or unit.key != units[spots[i - 1].unit].key:
            functions[count].number = -1
            count += 1
        unit.function = count - 1
    for u in range(total):
        function = functions[units[u].function]
        if function.number < 0:
            function.number = first
            first += 1
        units[u].function = function.number
    for edge in range(tasks.counted[EDGES]):
        f = units[tasks.items[edge].source].function
        for r in range(tasks.items[edge].readers, tasks.items[edge + 1].readers):
            if units[tasks.readers[r]].function < f:
                sort_functions(tasks, count)
                return count
    return count


@compiled
def sort_functions(tasks: Tasks, count: int) -> None:
    """Sort functions by Kahn's algorithm; they give edges to those that wait."""
    units, items, functions = tasks.units, tasks.items, tasks.functions
    queue, turn = tasks.queue, 0
    for f in range(count):
        tasks.tasks[f].pending, tasks.tasks[f].first_out = 0, -1
    for edge in range(tasks.counted[EDGES]):
        f = units[items[edge].source].function
        append(tasks.tasks[f], items, edge)
        for r in range(items[edge].readers, items[edge + 1].readers):
            g = units[tasks.readers[r]].function
            tasks.tasks[g].pending += g != f
    for f in range(count):
        if tasks.tasks[f].pending == 0:
            push(queue, 0.0, f)
    while queue[0].key:
        f = queue[1].key
        pop(queue)
        functions[f].number = turn
        turn += 1
        edge = tasks.tasks[f].first_out
        while edge >= 0:
            for r in range(items[edge].readers, items[edge + 1].readers):
                g = units[tasks.readers[r]].function
                if g != f:
                    tasks.tasks[g].pending -= 1
                    if tasks.tasks[g].pending == 0:
                        push(queue, 0.0, g)
            edge = items[edge].next_out
    for u in range(len(units) - 1):
        units[u].function = functions[units[u].function].number
