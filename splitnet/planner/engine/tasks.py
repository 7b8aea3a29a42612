"""A step as flat arrays, for any placement: units, items and what runs of them.

Items are the edges of the step, then its shared weights: a weight is read by its users
and comes from its `source`. Tasks are numbered as in `simulator.step_graph`.

Arrays of records hold what belongs together, and scratch of one run of the event loop
beside it. A field that names a list holds where the list of its record begins; it ends
where that of the next record begins.
"""

from typing import Any, NamedTuple, TypeAlias

import numpy as np

from splitnet.planner.engine.compiler import compiled
from splitnet.planner.engine.load_graph import Floats, Ints, rows_of
from splitnet.planner.problem import Problem

EVENTS, SENT, STAMP, EDGES = range(4)
"""Numbers of `Tasks.counted`."""

Records: TypeAlias = Any
"""An array of records, or one of them; numba and NumPy find its fields by name."""


def _fields(integers: str, floats: str = "") -> np.dtype[np.void]:
    of_kind = (integers.split(), np.int64), (floats.split(), np.float64)
    return np.dtype([(name, kind) for names, kind in of_kind for name in names])


_UNIT = _fields(
    "group key calls has_backward has_update reads "  # a list of edges
    "where function spot before after leader",  # scratch: its device, its function,
    "forward_tail backward_tail",  # hops and sets of units while those are found
)
_SPOT = _fields("unit cut made ends low high")
"""Units in the order of functions: whether one ends here, edges of a run that begin and
end here, and a stack of runs to be cut."""
_FUNCTION = _fields("number start backward")
_TASK = _fields("pending first_out last_out where cause", "seconds tail ready")
"""Of a function: what it waits for, the list of what it gives to others, the task that
it waited for until it began, and the least seconds from its end to that of the step."""
_ITEM = _fields(
    "source view_of readers "  # an edge that this is a view of, or -1; a list of units
    "copied_as next_view leaves next_out last seen",  # scratch
    "bytes fixed",  # seconds of a copy, nan where the link decides
)
_CONTRIBUTION = _fields("unit to next_out", "row_bytes")
_SUM = _fields("missing wholes", "row_bytes ended")
"""Of an item's gradients on a device: contributors that have not run, those that do not
send rows of a table only, bytes of the others' rows, and when the last one ended."""
_COPY = _fields("moved source target by", "bytes")
_EVENT = _fields("key", "time")
_DEVICE = _fields("sent latest", "call free left")
"""What calling a function costs, and of one run: the last item that was sent there, the
last task, when it is free, and the seconds that are left."""
_LINK = _fields("", "latency gap per_byte free")


class Tasks(NamedTuple):
    """What a step does, for any placement.

    `whole` says that each unit is a function. `critical` gets the groups of the units
    on the critical path, their number behind.
    """

    whole: bool
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
    counted: Ints


def _records(fields: np.dtype[np.void], *shape: int, **values: Any) -> Records:
    """Records of zeros but for some values, whose first ones are those."""
    made = np.zeros(shape, fields).view(np.recarray)
    for name, value in values.items():
        made[name][: len(value)] = value
    return made


def made(
    whole: bool,
    units: dict[str, Any],
    items: dict[str, Any],
    contributions: dict[str, Any],
    devices: Records,
    links: Records,
    seconds: Floats,
    reads: Ints,
    readers: Ints,
) -> Tasks:
    """Tasks with scratch that is large enough for any placement."""
    count, item_count = len(units["group"]), len(items["source"])
    given = np.bincount(contributions["to"], minlength=item_count)
    most = np.minimum([np.diff(items["readers"]), given], len(devices))
    copies = 1 + int(most.sum())
    return Tasks(
        whole,
        _records(_UNIT, count + 1, **units),
        _records(_SPOT, count + 1),
        _records(_FUNCTION, count + 1),
        _records(_TASK, 3 * count),
        _records(_ITEM, item_count + 1, **items),
        _records(_CONTRIBUTION, len(contributions["unit"]), **contributions),
        _records(_SUM, item_count, len(devices)),
        _records(_COPY, copies),
        queue_of(3 * count + copies),
        devices,
        links,
        reads,
        readers,
        seconds,
        np.zeros(count + 1, np.int64),
        np.array([0, 0, 0, len(items["view_of"])], np.int64),
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
    return made(
        rule is None,
        {
            "group": problem.group_of_unit,
            "key": np.zeros(count) if rule is None else rule.key,
            "calls": [unit.calls for unit in step.units],
            "has_backward": [unit.has_backward for unit in step.units],
            "has_update": [bool(unit.trained) for unit in step.units],
            "reads": read_start,
            "forward_tail": tails[:count],
            "backward_tail": tails[count : 2 * count][::-1],
        },
        {
            "source": [one.source for one in items],
            "view_of": [-1 if e.view_of is None else e.view_of for e in edges],
            "readers": reader_start,
            "bytes": [one.bytes for one in items],
            "fixed": [np.nan if o.seconds is None else o.seconds for o in items],
        },
        {"unit": by, "to": to, "row_bytes": row_bytes},
        _records(_DEVICE, devices, call=[] if rule is None else rule.part_seconds),
        _records(
            *(_LINK, devices, devices),
            latency=step.latency,
            gap=step.gap,
            per_byte=step.seconds_per_byte,
        ),
        np.array(step.task_seconds, np.float64),
        *(read_edges, readers),
    )


def queue_of(size: int) -> Records:
    """An empty queue for `push` and `pop`: its size is the key of its first record."""
    return _records(_EVENT, size + 1)


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
