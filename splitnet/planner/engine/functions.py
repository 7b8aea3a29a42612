"""Which units of a step run as one function, and units merged.

The rules are those of `simulator.units`: units on one device that are connected, with
the same number of hops before them and after them, are a run; long runs are cut at
seams. Functions are numbered in the order in which they run, as
`planner.problem.functions_called` sorts its parts.
"""

import numpy as np

from splitnet.planner.engine import tasks as arrays
from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.tasks import Records, Tasks, append, pop, push, records
from splitnet.planner.load_graph import Floats, Ints, last_of, owners, rows
from splitnet.simulator.units import CALLS

LONG, _NEVER = float(2 * CALLS), 1e300  # calls from which a run is cut


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@compiled
def find_runs(units: Records, spots: Records, reads: Records) -> None:
    """Sort the units by run into spots; mark the last one of each run by `cut`.

    `leader` is the parent in the set of units, `high` of a root's spot the first unit
    of its run, `low` of a unit's the next one.
    """
    count, at, leaders = len(units) - 1, 0, units.leader
    for u in range(count):
        unit = units[u]
        unit.before = unit.after = 0
        unit.leader, spots[u].high = u, -1
    for i in range(len(reads)):
        unit, other = units[reads[i].unit], units[reads[i].source]
        unit.before = max(unit.before, other.before + (other.where != unit.where))
    for i in range(len(reads) - 1, -1, -1):
        unit, other = units[reads[i].unit], units[reads[i].source]
        other.after = max(other.after, unit.after + (other.where != unit.where))
    for i in range(len(reads)):
        u, v = reads[i].unit, reads[i].source
        unit, other = units[u], units[v]
        alike = other.before == unit.before and other.after == unit.after
        if alike and other.where == unit.where:
            leaders[root_of(leaders, u)] = root_of(leaders, v)
    for u in range(count - 1, -1, -1):
        root = spots[root_of(leaders, u)]
        spots[u].low, root.high = root.high, u
    for u in range(count):
        v = spots[u].high
        while v >= 0:
            spots[at].unit, spots[at].cut, units[v].spot = v, 0, at
            v, at = spots[v].low, at + 1
            if v < 0:
                spots[at - 1].cut = 1


@compiled
def cut_run(tasks: Tasks, low: int, high: int, long: float) -> None:
    """Cut the run between two spots at seams, and what is long again."""
    units, items, spots, top = tasks.units, tasks.items, tasks.spots, 1
    spots[0].low, spots[0].high = low, high
    while top:
        top -= 1
        low, high = spots[top].low, spots[top].high
        spots[high - 1].cut = 1
        done = passing = left = 0
        for i in range(low, high):
            left += units[spots[i].unit].calls
        if left < long:
            continue
        tasks.counted.stamp += 1
        for i in range(low, high):
            spot = spots[i]
            spot.made = spot.ends = 0
            for e in range(units[spot.unit].reads, units[spot.unit + 1].reads):
                item = items[tasks.reads[e].edge]
                p = units[item.source].spot
                if p < low or p >= high:
                    continue
                if item.seen == tasks.counted.stamp:
                    spots[item.last].ends -= 1
                else:
                    spots[p].made += 1
                item.seen, item.last = tasks.counted.stamp, i
                spot.ends += 1
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
def sort_functions(tasks: Tasks, count: int) -> None:
    """Sort functions topologically (Kahn 1962); they give edges to those that wait."""
    units, items, functions = tasks.units, tasks.items, tasks.functions
    queue, waiting, turn = tasks.queue, tasks.tasks, 0
    queue[0].key = 0  # a run that ended early left its events
    for f in range(count):
        waiting[f].pending, waiting[f].first_out = 0, -1
    for edge in range(tasks.counted.edges):
        f, leaves = units[items[edge].source].function, False
        for r in range(items[edge].readers, items[edge + 1].readers):
            g = units[tasks.readers[r]].function
            waiting[g].pending += g != f
            leaves |= g != f
        if leaves:
            append(waiting[f], items, edge)
    for f in range(count):
        if waiting[f].pending == 0:
            push(queue, float(functions[f].first), f)
    while queue[0].key:
        _, f = pop(queue)
        functions[f].number = turn
        turn += 1
        edge = waiting[f].first_out
        while edge >= 0:
            for r in range(items[edge].readers, items[edge + 1].readers):
                g = units[tasks.readers[r]].function
                if g != f:
                    waiting[g].pending -= 1
                    if waiting[g].pending == 0:
                        push(queue, float(functions[g].first), g)
            edge = items[edge].next_out
    for u in range(len(units) - 1):
        units[u].function = functions[units[u].function].number


@entry
def cut_functions(tasks: Tasks, long: float) -> int:
    """Find the function of each unit, with units on devices; how many there are.

    Runs of at least so many calls are cut at seams. Functions are numbered in
    topological order; the first call decides between several.
    """
    units, spots = tasks.units, tasks.spots
    functions, total = tasks.functions, len(units) - 1
    find_runs(units, spots, tasks.reads)
    count = first = 0 * total  # a literal would be compiled for anew
    for i in range(total):
        if spots[i].cut:
            cut_run(tasks, first, i + 1, long)
            first = i + 1
    for i in range(total):
        unit = units[spots[i].unit]
        if i == 0 or spots[i - 1].cut or unit.key != units[spots[i - 1].unit].key:
            functions[count].first = spots[i].unit
            count += 1
        unit.function = count - 1
    sort_functions(tasks, count)
    return count


def regrouped(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks whose units move with their cluster and run one by one, as before."""
    units = tasks.units.copy()
    units.group[:-1] = cluster[units.group[:-1]]
    return tasks._replace(units=units)


def merged(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks with a cluster's units merged as far as they are one run; approximate."""
    units, items, given = tasks.units[:-1], tasks.items[:-1], tasks.contributions
    units.where[:] = cluster[units.group]
    count, edges = cut_functions(tasks, _NEVER), int(tasks.counted.edges)
    unit = units.function.copy()
    source, weight = unit[items.source], np.arange(len(items)) >= edges

    def most(values: Floats) -> Floats:
        found = np.zeros(count)
        np.maximum.at(found, unit, values)
        return found

    def sums(values: Ints | Floats) -> Floats:
        return np.bincount(unit, values, count).astype(np.float64)

    # Edges that no other unit reads are left out.
    item, reader = owners(tasks.items.readers), unit[tasks.readers]
    away = (reader != source[item]) | weight[item]
    kept = weight | (np.bincount(item[away], minlength=len(items)) > 0)
    number, left = np.cumsum(kept) - 1, int(kept.sum())
    keeps = np.bincount(item, tasks.saves * ~away, len(items)) + items.saved > 0
    whole = items.bytes * keeps * (items.view_of < 0) * ~kept
    inside = np.bincount(source, whole, count)
    gradients, of = items.bytes * items.returned * ~kept, tasks.reads
    around = np.bincount(items.source, gradients, len(units))
    around += np.bincount(of.unit, gradients[of.edge], len(units))
    view = items.view_of[:edges][kept[:edges]]
    pairs = number[item[away]] * count + reader[away]
    pairs, at = np.unique(pairs, return_inverse=True)
    saves, readers = np.bincount(at, tasks.saves[away], len(pairs)), pairs % count
    reader_start = np.searchsorted(pairs, np.arange(left + 1) * count)
    by, to = unit[given.unit], given.to
    out = kept[to] & ((by != source[to]) | weight[to])
    pairs, at = np.unique(number[to[out]] * count + by[out], return_inverse=True)
    reads, by = tasks.reads.edge, unit[tasks.reads.unit]
    into = kept[reads] & (by != source[reads])
    read_start, reads = rows(by[into], number[reads[into]], count)
    times = tasks.seconds.reshape(-1, 3, len(units))
    seconds = [[*sums(a), *sums(b[::-1])[::-1], *sums(u)] for a, b, u in times]
    return arrays.tasks_with(
        records(
            *(arrays.UNIT, count + 1),
            group=last_of(unit, count, cluster[units.group]),
            key=last_of(unit, count, units.key),
            has_backward=sums(units.has_backward) > 0,
            has_update=sums(units.has_update) > 0,
            reads=read_start,
            forward_tail=last_of(unit, count, units.forward_tail),
            backward_tail=last_of(unit[::-1], count, units.backward_tail[::-1]),
            saved=sums(units.saved) + inside,
            ahead=most(units.ahead),
            back=most(units.back + around),
            given=last_of(unit, count, units.given),
            update=most(units.update),
            **{n: sums(units[n]) for n in ("calls", "weights", "early", "learned")},
        ),
        records(
            *(arrays.ITEM, left + 1),
            source=source[kept],
            view_of=np.where((view >= 0) & kept[view], number[view], -1),
            readers=reader_start,
            saved=keeps[kept],
            **{name: items[name][kept] for name in ("returned", "bytes", "fixed")},
        ),
        records(
            *(arrays.CONTRIBUTION, len(pairs)),
            unit=pairs % count,
            to=pairs // count,
            row_bytes=np.bincount(at, given.row_bytes[out], len(pairs)),
        ),
        *(tasks.devices, tasks.links, reads, readers),
        *((saves > 0).astype(np.int64), np.array(seconds)),
        edges=[len(view)],
        whole=[tasks.counted.whole],
    )
