"""Which calls of a step run as one function, compiled.

The rules of `simulator.units`: calls on one device that are connected, with the same
number of hops before them and after them, are a run; long runs are cut at seams.
Functions are numbered in the order in which they run, as
`planner.partitioning.functions` sorts its parts.
"""

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.load_graph import Floats, Ints, rows
from splitnet.planner.engine.tasks import EDGES, STAMP, Tasks, made, pop, push
from splitnet.simulator.units import CALLS


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@compiled
def cut_functions(tasks: Tasks) -> int:
    """Find the function of each unit, with units on devices; how many there are."""
    count = len(tasks.units) - 1
    if not tasks.whole:
        find_runs(tasks)
        low = 0 * count  # a literal would be compiled for once more
        for i in range(count):
            if tasks.spots[i].cut:
                cut_run(tasks, low, i + 1)
                low = i + 1
        return number_functions(tasks)
    for u in range(count):
        tasks.units[u].function = u
        tasks.tasks[u].where = tasks.units[u].where
    return count


@entry
def merge_units(tasks: Tasks, label: Ints) -> int:
    """Find the runs of units of one label, as if labels were devices; their number."""
    for u in range(len(label)):
        tasks.units[u].where = label[u]
    find_runs(tasks)
    return number_functions(tasks)


def merged(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks with the units of a cluster of groups merged, as far as they are one run.

    Values are those of larger functions, so about the same, and take less time.
    """
    units, items, edges = tasks.units[:-1], tasks.items[:-1], int(tasks.counted[EDGES])
    count = merge_units(tasks, cluster[units.group])
    unit = units.function.copy()
    source, given = unit[items.source], tasks.contributions

    def rows_in(start: Ints) -> Ints:
        return np.repeat(np.arange(len(start) - 1), np.diff(start))

    def sums(values: Ints | Floats) -> Floats:
        return np.bincount(unit, values, count).astype(np.float64)

    def last(values: Ints | Floats) -> Floats:
        """The value of each cluster's last unit."""
        found = np.zeros(count)
        found[unit] = values
        return found

    # Edges that no other unit reads are left out.
    weight = np.arange(len(source)) >= edges
    item, reader = rows_in(tasks.items.readers), unit[tasks.readers]
    away = (reader != source[item]) | weight[item]
    kept = weight | (np.bincount(item[away], minlength=len(source)) > 0)
    number, left, edge = np.cumsum(kept) - 1, int(kept.sum()), kept[:edges].nonzero()[0]
    view = items.view_of[edge]
    reader_start, readers = rows(number[item[away]], reader[away], left)
    by, to = unit[given.unit], given.to
    out = kept[to] & ((by != source[to]) | weight[to])
    by, to = by[out], number[to[out]]
    start, contributors = rows(to, by, left)
    to_item = rows_in(start)
    keys = to_item * count + contributors
    row_bytes = np.bincount(
        np.searchsorted(keys, to * count + by), given.row_bytes[out], len(keys)
    )
    reads, by = tasks.reads, rows_in(tasks.units.reads)
    into = kept[reads] & (unit[by] != source[reads])
    read_start, reads = rows(unit[by[into]], number[reads[into]], count)
    output_start, outputs = rows(source[edge], np.arange(len(edge)), count)
    seconds = []
    for row in tasks.seconds:
        ahead, back, update = row.reshape(3, len(units))
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
            "outputs": output_start,
            "forward_tail": last(units.forward_tail),
            "backward_tail": first,
        },
        {
            "source": source[kept],
            "view_of": np.where((view >= 0) & kept[view], number[view], -1),
            "readers": reader_start,
            "contributions": start,
            "bytes": items.bytes[kept],
            "fixed": items.fixed[kept],
        },
        {"unit": contributors, "to": to_item, "row_bytes": row_bytes},
        {"call": tasks.devices.call},
        {name: tasks.links[name] for name in ("latency", "gap", "per_byte")},
        np.array(seconds, np.float64),
        *(reads, outputs, readers),
    )


@compiled
def find_runs(tasks: Tasks) -> None:
    """Sort the units by run into spots; mark the last one of each run by `cut`.

    `leader` is the parent in the set of units, `key` of a run in `functions`.
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
        root = root_of(leaders, u)
        if runs[root].number < 0:
            runs[root].number = found
            runs[found].start = 0
            found += 1
        runs[runs[root].number].start += 1
    for run in range(found):
        total += runs[run].start
        runs[run].start = total
        spots[total - 1].cut = 1
    for u in range(count - 1, -1, -1):
        run = runs[root_of(leaders, u)].number
        runs[run].start -= 1
        units[u].spot = runs[run].start
        spots[units[u].spot].unit = u


@compiled
def cut_run(tasks: Tasks, low: int, high: int) -> None:
    """Cut the run in `spots[low:high]` at seams, and what is long again."""
    units, items, spots = tasks.units, tasks.items, tasks.spots
    spots[0].low, spots[0].high, top = low, high, 1
    while top:
        top -= 1
        low, high = spots[top].low, spots[top].high
        spots[high - 1].cut = 1
        done = passing = left = 0
        for i in range(low, high):
            left += units[spots[i].unit].calls
        if left < 2 * CALLS:
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
    count, total = 0 * len(units), len(units) - 1
    first = count
    for i in range(total):
        u = spots[i].unit
        if i == 0 or spots[i - 1].cut or units[u].key != units[spots[i - 1].unit].key:
            functions[count].number = -1
            functions[count].start = i
            count += 1
        units[u].function = count - 1
    functions[count].start = total
    for u in range(total):  # the first call of each decides
        function = functions[units[u].function]
        if function.number < 0:
            function.number = first
            functions[first].leader = units[u].function
            first += 1
        units[u].function = function.number
        tasks.tasks[function.number].where = units[u].where
    for edge in range(tasks.counted[EDGES]):
        f = units[tasks.items[edge].source].function
        for r in range(tasks.items[edge].readers, tasks.items[edge + 1].readers):
            if units[tasks.readers[r]].function < f:
                sort_functions(tasks, count)
                return count
    return count


@compiled
def sort_functions(tasks: Tasks, count: int) -> None:
    """Sort functions by Kahn's algorithm; `leader` and `start` tell their members."""
    units, items, functions = tasks.units, tasks.items, tasks.functions
    queue, size, turn = tasks.queue, 0, 0
    for f in range(count):
        functions[f].backward = 0  # how many edges it waits for
    for edge in range(tasks.counted[EDGES]):
        f = units[items[edge].source].function
        for r in range(items[edge].readers, items[edge + 1].readers):
            g = units[tasks.readers[r]].function
            functions[g].backward += g != f
    for f in range(count):
        if functions[f].backward == 0:
            size = push(queue, size, 0.0, f)
    while size:
        f = queue[0].key
        size = pop(queue, size)
        functions[f].number = turn
        turn += 1
        begin = functions[f].leader
        for i in range(functions[begin].start, functions[begin + 1].start):
            u = tasks.spots[i].unit
            for o in range(units[u].outputs, units[u + 1].outputs):
                edge = tasks.outputs[o]
                for r in range(items[edge].readers, items[edge + 1].readers):
                    g = units[tasks.readers[r]].function
                    if g != f:
                        functions[g].backward -= 1
                        if functions[g].backward == 0:
                            size = push(queue, size, 0.0, g)
    for u in range(len(units) - 1):
        units[u].function = functions[units[u].function].number
        tasks.tasks[units[u].function].where = units[u].where
