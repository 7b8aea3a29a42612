"""A step as flat arrays, for any placement: units, items and what runs of them.

Items are the edges of the step, then its shared weights: a weight is read by its users
and comes from its `source`. Tasks are numbered as in `simulator.step_graph`.

Arrays of records hold what belongs together, and scratch of one run of the event loop
beside it. A field that names a list holds where the list of its record begins; it ends
where that of the next record begins.

Which units run as one function follows the rules of `simulator.units`: those on one
device that are connected, with the same number of hops before them and after them, are
a run; long runs are cut at seams. Functions are numbered in the order in which they
run, as `planner.problem.functions_called` sorts its parts.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from splitnet.planner.engine.compiler import compiled, entry
from splitnet.planner.engine.load_graph import Floats, Ints, owners, rows, rows_of
from splitnet.planner.problem import Problem
from splitnet.simulator.units import CALLS

Records: TypeAlias = Any
"""An array of records, or one of them; numba and NumPy find its fields by name."""


def fields(integers: str, floats: str = "") -> np.dtype[np.void]:
    """The type of a record with these fields."""
    of_kind = (integers.split(), np.int64), (floats.split(), np.float64)
    return np.dtype([(name, kind) for names, kind in of_kind for name in names])


_UNIT = fields(
    "group key calls has_backward has_update reads "  # a list of edges
    "where function spot before after leader",  # scratch: its device, its function,
    "forward_tail backward_tail",  # hops and sets of units while those are found
)
_SPOT = fields("unit cut made ends low high")
"""Units in the order of functions: whether one ends here, edges of a run that begin and
end here, and a stack of runs to be cut. Before: lists of the units of runs."""
_FUNCTION = fields("number backward")
_TASK = fields("pending first_out last_out where cause", "seconds tail ready")
"""Of a function: what it waits for, the list of what it gives to others, the task that
it waited for until it began, and the least seconds from its end to that of the step."""
_ITEM = fields(
    "source view_of readers "  # an edge that this is a view of, or -1; a list of units
    "copied_as next_view leaves next_out last seen",  # scratch
    "bytes fixed",  # seconds of a copy, nan where the link decides
)
_CONTRIBUTION = fields("unit to next_out", "row_bytes")
_SUM = fields("missing wholes", "row_bytes ended")
"""Of an item's gradients on a device: contributors that have not run, those that do not
send rows of a table only, bytes of the others' rows, and when the last one ended."""
_COPY = fields("moved source target by", "bytes")
_EVENT = fields("key", "time")
_COUNTED = fields("events sent stamp edges whole")
"""Events of all runs, copies of the last one, the last stamp, how many items are edges,
and whether each unit is a function."""
_DEVICE = fields("sent latest", "call free left")
"""What calling a function costs, and of one run: the last item that was sent there, the
last task, when it is free, and the seconds that are left."""
_LINK = fields("", "latency gap per_byte free")


class Tasks(NamedTuple):
    """What a step does, for any placement.

    `critical` gets the groups of the units on the critical path, their number behind.
    """

    units: Records
    spots: Records
    functions: Records
    tasks: Records
    items: Records
    contributions: Records
    sums: Records
    copies: Records
    queue: Records
    devices: Records
    links: Records
    reads: Ints
    readers: Ints
    seconds: Floats  # per device and task of a unit
    critical: Ints
    counted: Records


def records(fields: np.dtype[np.void], *shape: int, **values: Any) -> Records:
    """Records of zeros but for some values, whose first ones are those."""
    found = np.zeros(shape, fields).view(np.recarray)
    for name, value in values.items():
        found[name][: len(value)] = value
    return found


def _tasks_with(
    units: Records,
    items: Records,
    contributions: Records,
    devices: Records,
    links: Records,
    reads: Ints,
    readers: Ints,
    seconds: Floats,
    **counted: list[int],
) -> Tasks:
    """Tasks with scratch that is large enough for any placement."""
    count, item_count = len(units) - 1, len(items) - 1
    given = np.bincount(contributions.to, minlength=item_count)
    most = np.minimum([np.diff(items.readers), given], len(devices))
    copies = 1 + int(most.sum())
    return Tasks(
        units,
        records(_SPOT, count + 1),
        records(_FUNCTION, count + 1),
        records(_TASK, 3 * count),
        items,
        contributions,
        records(_SUM, item_count, len(devices)),
        records(_COPY, copies),
        records(_EVENT, 3 * count + copies + 1),
        *(devices, links, reads, readers, seconds),
        np.zeros(count + 1, np.int64),
        records(_COUNTED, 1, **counted)[0],
    )


def tasks_of(problem: Problem) -> Tasks:
    """Flat arrays of a problem's step."""
    step, rule = problem.step, problem.functions
    edges, items, count = step.edges, step.items, step.count
    read = {reader for edge in edges for reader in edge.readers}
    reads: list[list[int]] = [[] for _ in range(count)]
    for number, edge in enumerate(edges):
        if edge.source in read or step.task_seconds[0][edge.source]:
            for reader in edge.readers:
                reads[reader].append(number)
    given = [
        (user, number, size)
        for number, one in enumerate(items)
        for user, size in zip(
            one.gradients_from, one.row_bytes or [0] * len(one.gradients_from)
        )
    ]
    by, to, row_bytes = np.array(given, np.int64).reshape(-1, 3).T
    read_start, read_edges = rows_of(reads)
    reader_start, readers = rows_of([one.readers for one in items])
    tails, devices = np.array(step.tails), step.device_count
    return _tasks_with(
        records(
            *(_UNIT, count + 1),
            group=problem.group_of_unit,
            key=[] if rule is None else rule.key,
            calls=[unit.calls for unit in step.units],
            has_backward=[unit.has_backward for unit in step.units],
            has_update=[bool(unit.trained) for unit in step.units],
            reads=read_start,
            forward_tail=tails[:count],
            backward_tail=tails[count : 2 * count][::-1],
        ),
        records(
            *(_ITEM, len(items) + 1),
            source=[one.source for one in items],
            view_of=[-1 if e.view_of is None else e.view_of for e in edges],
            readers=reader_start,
            bytes=[one.bytes for one in items],
            fixed=[np.nan if o.seconds is None else o.seconds for o in items],
        ),
        records(_CONTRIBUTION, len(by), unit=by, to=to, row_bytes=row_bytes),
        records(_DEVICE, devices, call=[] if rule is None else rule.part_seconds),
        records(
            *(_LINK, devices, devices),
            latency=step.latency,
            gap=step.gap,
            per_byte=step.seconds_per_byte,
        ),
        *(read_edges, readers, np.array(step.task_seconds, np.float64)),
        edges=[len(edges)],
        whole=[rule is None],
    )


@compiled
def is_after(event: Records, time: float, key: int) -> bool:
    """Whether an event is later, or as late with a larger key."""
    return bool(event.time > time or (event.time == time and event.key > key))


@compiled
def push(queue: Records, time: float, key: int) -> None:
    """Add an event to a binary heap."""
    i = queue[0].key + 1
    queue[0].key = i
    while i > 1 and is_after(queue[i >> 1], time, key):
        queue[i] = queue[i >> 1]
        i >>= 1
    queue[i].time, queue[i].key = time, key


@compiled
def pop(queue: Records) -> None:
    """Remove the first event of the heap, which the caller has read."""
    size, i, j = queue[0].key, 1, 2
    queue[0].key = size - 1
    last = queue[size]
    while j < size:
        if j + 1 < size and is_after(queue[j], queue[j + 1].time, queue[j + 1].key):
            j += 1
        if is_after(queue[j], last.time, last.key):
            break
        queue[i] = queue[j]
        i, j = j, 2 * j
    queue[i] = last


LONG, _NEVER = float(2 * CALLS), 1e300  # calls from which a run is cut


@compiled
def root_of(parent: Ints, x: int) -> int:
    """Representative of a set, with the path halved (Tarjan and van Leeuwen 1984)."""
    while parent[x] != x:
        parent[x] = parent[parent[x]]
        x = parent[x]
    return x


@compiled
def append(task: Records, given: Records, number: int) -> None:
    """Add an item, or a contribution, to the list of what a task gives to others."""
    if task.first_out < 0:
        task.first_out = number
    else:
        given[task.last_out].next_out = number
    task.last_out = number
    given[number].next_out = -1


@compiled
def find_runs(units: Records, items: Records, spots: Records, reads: Ints) -> None:
    """Sort the units by run into spots; mark the last one of each run by `cut`.

    `leader` is the parent in the set of units, `high` of a root's spot the first unit
    of its run, `low` of a unit's the next one.
    """
    count, at, leaders = len(units) - 1, 0, units.leader
    for u in range(count):
        unit = units[u]
        unit.before = unit.after = 0
        unit.leader, spots[u].high = u, -1
        for i in range(unit.reads, units[u + 1].reads):
            other = units[items[reads[i]].source]
            unit.before = max(unit.before, other.before + (other.where != unit.where))
    for u in range(count - 1, -1, -1):
        unit = units[u]
        for i in range(unit.reads, units[u + 1].reads):
            other = units[items[reads[i]].source]
            other.after = max(other.after, unit.after + (other.where != unit.where))
    for u in range(count):
        unit = units[u]
        for i in range(unit.reads, units[u + 1].reads):
            v = items[reads[i]].source
            other = units[v]
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
                item = items[tasks.reads[e]]
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
    for f in range(count):
        waiting[f].pending, waiting[f].first_out = 0, -1
    for edge in range(tasks.counted.edges):
        f = units[items[edge].source].function
        append(waiting[f], items, edge)
        for r in range(items[edge].readers, items[edge + 1].readers):
            g = units[tasks.readers[r]].function
            waiting[g].pending += g != f
    for f in range(count):
        if waiting[f].pending == 0:
            push(queue, 0.0, f)
    while queue[0].key:
        f = queue[1].key
        pop(queue)
        functions[f].number = turn
        turn += 1
        edge = waiting[f].first_out
        while edge >= 0:
            for r in range(items[edge].readers, items[edge + 1].readers):
                g = units[tasks.readers[r]].function
                if g != f:
                    waiting[g].pending -= 1
                    if waiting[g].pending == 0:
                        push(queue, 0.0, g)
            edge = items[edge].next_out
    for u in range(len(units) - 1):
        units[u].function = functions[units[u].function].number


@entry
def cut_functions(tasks: Tasks, long: float) -> int:
    """Find the function of each unit, with units on devices; how many there are.

    Runs of at least so many calls are cut at seams. Functions are numbered in
    topological order, the first call decides between several: mostly that is the order
    of first calls.
    """
    units, items, spots = tasks.units, tasks.items, tasks.spots
    functions, total = tasks.functions, len(units) - 1
    find_runs(units, items, spots, tasks.reads)
    count = first = 0 * total  # a literal would be compiled for anew
    for i in range(total):
        if spots[i].cut:
            cut_run(tasks, first, i + 1, long)
            first = i + 1
    for i in range(total):
        unit = units[spots[i].unit]
        if i == 0 or spots[i - 1].cut or unit.key != units[spots[i - 1].unit].key:
            functions[count].number = -1
            count += 1
        unit.function = count - 1
    first = 0 * total
    for u in range(total):
        function = functions[units[u].function]
        if function.number < 0:
            function.number = first
            first += 1
        units[u].function = function.number
    for edge in range(tasks.counted.edges):
        f = units[items[edge].source].function
        for r in range(items[edge].readers, items[edge + 1].readers):
            if units[tasks.readers[r]].function < f:
                sort_functions(tasks, count)
                return count
    return count


def merged(tasks: Tasks, cluster: Ints) -> Tasks:
    """Tasks with the units of a cluster of groups merged, as far as they are one run.

    Values are those of larger functions, so about the same, and take less time.
    """
    units, items, given = tasks.units[:-1], tasks.items[:-1], tasks.contributions
    units.where[:] = cluster[units.group]
    count, edges = cut_functions(tasks, _NEVER), int(tasks.counted.edges)
    unit = units.function.copy()
    source, weight = unit[items.source], np.arange(len(items)) >= edges

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
    kept = weight | (np.bincount(item[away], minlength=len(items)) > 0)
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
    times = tasks.seconds.reshape(-1, 3, len(units))
    seconds = [[*sums(a), *sums(b[::-1])[::-1], *sums(u)] for a, b, u in times]
    first = np.zeros(count)
    first[unit[::-1]] = units.backward_tail[::-1]
    return _tasks_with(
        records(
            *(_UNIT, count + 1),
            group=last(cluster[units.group]),
            key=last(units.key),
            calls=sums(units.calls),
            has_backward=sums(units.has_backward) > 0,
            has_update=sums(units.has_update) > 0,
            reads=read_start,
            forward_tail=last(units.forward_tail),
            backward_tail=first,
        ),
        records(
            *(_ITEM, left + 1),
            source=source[kept],
            view_of=np.where((view >= 0) & kept[view], number[view], -1),
            readers=reader_start,
            bytes=items.bytes[kept],
            fixed=items.fixed[kept],
        ),
        records(
            *(_CONTRIBUTION, len(pairs)),
            unit=pairs % count,
            to=pairs // count,
            row_bytes=np.bincount(at, given.row_bytes[out], len(pairs)),
        ),
        *(tasks.devices, tasks.links, reads, readers, np.array(seconds)),
        edges=[len(view)],
        whole=[tasks.counted.whole],
    )
