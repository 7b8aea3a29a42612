"""A step as flat arrays, for any placement: units, items and what runs of them.

Items are the edges of the step, then its shared weights: a weight is read by its users
and comes from its `source`. Tasks are numbered as in `simulator.step_graph`.

Arrays of records hold what belongs together, and scratch of one run of the event loop
beside it. A field that names a list holds where the list of its record begins; it ends
where that of the next record begins.
"""

from itertools import zip_longest
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from splitnet.planner.engine.compiler import compiled
from splitnet.planner.load_graph import Floats, Ints, owners, rows_of
from splitnet.planner.problem import Problem
from splitnet.simulator.step_graph import StepGraph

Records: TypeAlias = Any
"""An array of records, or one of them; numba and NumPy find its fields by name."""


def fields(integers: str, floats: str = "") -> np.dtype[np.void]:
    """The type of a record with these fields."""
    of_kind = (integers.split(), np.int64), (floats.split(), np.float64)
    return np.dtype([(name, kind) for names, kind in of_kind for name in names])


UNIT = fields(
    "group key calls has_backward has_update reads "  # a list of edges
    "where function spot before after leader",  # scratch: device, function, hops, sets
    "forward_tail backward_tail weights saved ahead back early given learned update "
    "returned",
)
"""Bytes: weights with slots, what is saved for the backward pass, what its forward and
backward tasks need while they run, what the backward task makes at its start, what the
caller holds beside if the unit is its function's last, gradients of weights, what the
update needs, and gradients of outputs inside of its function."""
_SPOT = fields("unit cut made ends low high")
"""Units in the order of functions: whether one ends here, edges of a run that begin and
end here, and a stack of runs to be cut. Before: lists of the units of runs."""
_FUNCTION = fields("first number backward")
_TASK = fields(
    "pending first_out last_out where cause", "seconds tail ready saved need most late"
)
"""Of a function: what it waits for, the list of what it gives to others, the task that
it waited for until it began, the least seconds from its end to that of the step, the
bytes that it saves or frees, and needs while it runs; `most` of those inside of it."""
ITEM = fields(
    "source view_of readers "  # an edge that this is a view of, or -1; a list of units
    "saved returned "  # by its source; whether there are gradients of it
    "function next_out last seen",  # scratch
    "bytes fixed",  # seconds of a copy, nan where the link decides
)
CONTRIBUTION = fields("unit to next_out", "row_bytes")
_READ = fields("unit source edge")  # an edge that a unit reads, and its source
_SUM = fields("missing wholes seen", "row_bytes ended held")
"""Of an item's gradients on a device: contributors that have not run, whole gradients,
the stamp of the run, bytes of the others' rows, when the last one ended, and bytes."""
_COPY = fields("moved source target by", "bytes")
_EVENT = fields("key", "time")
_COUNTED = fields("events sent stamp edges whole")
"""Events of all runs, copies of the last one, the last stamp, how many items are edges,
and whether each unit is a function."""
_DEVICE = fields("sent latest", "call free left held peak until beside going gone")
"""What calling a function costs, and of one run: the last item that was sent there, the
last task, when it is free, the seconds that are left, bytes now and at the peak, what
the last backward task needs, gradients that leave, and until when they do."""
_LINK = fields("", "latency gap per_byte overhead free")


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
    reads: Records
    readers: Ints
    saves: Ints  # whether a reader saves what it reads
    seconds: Floats  # per device and task of a unit
    critical: Ints
    counted: Records


def records(fields: np.dtype[np.void], /, *shape: int, **values: Any) -> Records:
    """Records of zeros but for some values, whose first ones are those."""
    found = np.zeros(shape, fields).view(np.recarray)
    for name, value in values.items():
        found[name][: len(value)] = value
    return found


def tasks_with(
    units: Records,
    items: Records,
    contributions: Records,
    devices: Records,
    links: Records,
    reads: Ints,
    readers: Ints,
    saves: Ints,
    seconds: Floats,
    **counted: list[int],
) -> Tasks:
    """Tasks with scratch that is large enough for any placement."""
    count, item_count = len(units) - 1, len(items) - 1
    given = np.bincount(contributions.to, minlength=item_count)
    most = np.minimum([np.diff(items.readers), given], len(devices))
    copies, unit = 1 + int(most.sum()), owners(units.reads)
    read = records(_READ, len(reads), unit=unit, source=items.source[reads], edge=reads)
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
        *(devices, links, read, readers, saves, seconds),
        np.zeros(count + 1, np.int64),
        records(_COUNTED, 1, **counted)[0],
    )


def _bytes_of(step: StepGraph) -> dict[str, list[int]]:
    units, slots = step.units, step.slot_copies
    own = [[w for w in one.trained if len(w.readers) == 1] for one in units]
    found = {
        "weights": [one.weight_bytes + slots * one.trained_bytes for one in units],
        "saved": [one.memory.saved * one.has_backward for one in units],
        "ahead": [one.memory.forward for one in units],
        "back": [one.memory.backward + one.memory.learned for one in units],
        "early": [one.memory.early for one in units],
        "given": [one.memory.given * one.has_backward for one in units],
        "learned": [sum(weight.gradient_bytes for weight in its) for its in own],
        "update": [slots * max((w.bytes for w in u.trained), default=0) for u in units],
    }
    for item in step.items:
        if item.is_weight:  # its gradients are summed where it is
            found["weights"][item.source] += item.bytes * bool(item.gradients_from)
            continue
        for unit in (item.source, *item.readers):
            found["ahead"][unit] += item.bytes * (not units[unit].has_backward)
    return found


def tasks_of(problem: Problem) -> Tasks:
    """Flat arrays of a problem's step."""
    step, rule = problem.step, problem.functions
    edges, items, count = step.edges, step.items, step.count
    given = [
        (user, number, size)
        for number, one in enumerate(items)
        for user, size in zip_longest(one.gradients_from, one.row_bytes, fillvalue=0)
    ]
    by, to, row_bytes = np.array(given, np.int64).reshape(-1, 3).T
    read_start, read_edges = rows_of(step.reads)
    reader_start, readers = rows_of([one.readers for one in items])
    saves = [r in one.saved_by or one.is_weight for one in items for r in one.readers]
    tails, devices = np.array(step.tails), step.device_count
    return tasks_with(
        records(
            *(UNIT, count + 1),
            group=problem.group_of_unit,
            key=[] if rule is None else rule.key,
            calls=[unit.calls for unit in step.units],
            has_backward=[unit.has_backward for unit in step.units],
            has_update=[bool(unit.trained) for unit in step.units],
            reads=read_start,
            forward_tail=tails[:count],
            backward_tail=tails[count : 2 * count][::-1],
            **_bytes_of(step),
        ),
        records(
            *(ITEM, len(items) + 1),
            source=[one.source for one in items],
            view_of=[-1 if e.view_of is None else e.view_of for e in edges],
            readers=reader_start,
            saved=[one.source in one.saved_by for one in items],
            returned=[bool(one.gradients_from) for one in items],
            bytes=[one.bytes for one in items],
            fixed=[np.nan if o.seconds is None else o.seconds for o in items],
        ),
        records(CONTRIBUTION, len(by), unit=by, to=to, row_bytes=row_bytes),
        records(_DEVICE, devices, call=[] if rule is None else rule.part_seconds),
        records(
            *(_LINK, devices, devices),
            latency=step.latency,
            gap=step.gap,
            per_byte=step.seconds_per_byte,
            overhead=step.overhead,
        ),
        *(read_edges, readers, np.array(saves, np.int64)),
        np.array(step.task_seconds, np.float64),
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
def pop(queue: Records) -> tuple[float, int]:
    """Remove the first event of the heap; its time and key."""
    first, size, i, j = (queue[1].time, queue[1].key), queue[0].key, 1, 2
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
    return first


@compiled
def append(task: Records, given: Records, number: int) -> None:
    """Add an item, or a contribution, to the list of what a task gives to others."""
    if task.first_out < 0:
        task.first_out = number
    else:
        given[task.last_out].next_out = number
    task.last_out = number
    given[number].next_out = -1
