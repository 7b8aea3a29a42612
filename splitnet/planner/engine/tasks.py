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
    "group key calls has_backward has_update reads outputs "  # lists of edges
    "where function spot before after leader",  # scratch: its device, its function,
    "forward_tail backward_tail",  # hops and sets of units while those are found
)
_SPOT = _fields("unit cut made ends low high")
"""Units in the order of functions: whether one ends here, edges of a run that begin and
end here, and a stack of runs to be cut."""
_FUNCTION = _fields("number start leader backward")
_TASK = _fields("pending first_out last_out where cause", "seconds tail ready")
"""Of a function: what it waits for, the list of what it gives to others, the task that
it waited for until it began, and the least seconds from its end to that of the step."""
_ITEM = _fields(
    "source view_of readers contributions "  # an edge that this is a view of, or -1
    "copied_as next_view leaves next_out last seen",  # scratch
    "bytes fixed",  # seconds of a copy, nan where the link decides
)
_CONTRIBUTION = _fields("unit to next_out", "row_bytes")
_SUM = _fields("missing", "ended")
"""Of an item's gradients on a device: contributors that have not run, and when the last
one ended."""
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
    outputs: Ints
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
    devices: dict[str, Any],
    links: dict[str, Any],
    seconds: Floats,
    reads: Ints,
    outputs: Ints,
    readers: Ints,
) -> Tasks:
    """Tasks with scratch that is large enough for any placement."""
    count, devices_count = len(units["group"]), len(seconds)
    item_count = len(items["source"])
    each = np.concatenate([np.diff(items["readers"]), np.diff(items["contributions"])])
    copies = 1 + int(np.minimum(each, devices_count).sum())
    counted = np.zeros(4, np.int64)
    counted[EDGES] = len(items["view_of"])
    return Tasks(
        whole,
        _records(_UNIT, count + 1, **units),
        _records(_SPOT, count + 1),
        _records(_FUNCTION, count + 1),
        _records(_TASK, 3 * count),
        _records(_ITEM, item_count + 1, **items),
        _records(_CONTRIBUTION, len(contributions["unit"]), **contributions),
        _records(_SUM, item_count, devices_count),
        _records(_COPY, copies),
        _records(_EVENT, 3 * count + copies),
        _records(_DEVICE, devices_count, **devices),
        _records(_LINK, devices_count, devices_count, **links),
        reads,
        outputs,
        readers,
        seconds,
        np.zeros(count + 1, np.int64),
        counted,
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
    start, users = rows_of([one.gradients_from for one in items])
    row_bytes = [
        size for one in items for size in one.row_bytes or [0] * len(one.gradients_from)
    ]
    read_start, read_edges = rows_of(reads)
    output_start, outputs = rows_of(step.outputs)
    reader_start, readers = rows_of([one.readers for one in items])
    tails = np.array(step.tails)
    return made(
        rule is None,
        {
            "group": problem.group_of_unit,
            "key": np.zeros(count) if rule is None else rule.key,
            "calls": [unit.calls for unit in step.units],
            "has_backward": [unit.has_backward for unit in step.units],
            "has_update": [bool(unit.trained) for unit in step.units],
            "reads": read_start,
            "outputs": output_start,
            "forward_tail": tails[:count],
            "backward_tail": tails[count : 2 * count][::-1],
        },
        {
            "source": [one.source for one in items],
            "view_of": [-1 if e.view_of is None else e.view_of for e in edges],
            "readers": reader_start,
            "contributions": start,
            "bytes": [one.bytes for one in items],
            "fixed": [np.nan if o.seconds is None else o.seconds for o in items],
        },
        {
            "unit": users,
            "to": np.repeat(np.arange(len(start) - 1), np.diff(start)),
            "row_bytes": row_bytes,
        },
        {} if rule is None else {"call": rule.part_seconds},
        {"latency": step.latency, "gap": step.gap, "per_byte": step.seconds_per_byte},
        np.array(step.task_seconds, np.float64),
        *(read_edges, outputs, readers),
    )


def no_tasks(devices: int) -> Tasks:
    """A step without tasks, for what has no step."""
    none = np.zeros(0, np.int64)
    start = np.zeros(1, np.int64)
    return made(
        True,
        {"group": none},
        {"source": none, "view_of": none, "readers": start, "contributions": start},
        {"unit": none},
        {},
        {},
        np.zeros((devices, 0)),
        *(none, none, none),
    )


def queue_of(size: int) -> Records:
    """An empty queue for `push` and `pop`."""
    return _records(_EVENT, size)


@compiled
def push(queue: Records, size: int, time: float, key: int) -> int:
    """Add to a binary heap that is ordered by time, then key; its new size."""
    i = size
    while i:
        above = queue[(i - 1) >> 1]
        if above.time < time or (above.time == time and above.key < key):
            break
        queue[i].time = above.time
        queue[i].key = above.key
        i = (i - 1) >> 1
    queue[i].time = time
    queue[i].key = key
    return size + 1


@compiled
def pop(queue: Records, size: int) -> int:
    """Remove the first of the heap, which the caller has read; its new size."""
    size -= 1
    time, key, i, j = queue[size].time, queue[size].key, 0, 1
    while j < size:
        k = min(j + 1, size - 1)
        first, other = queue[j], queue[k]
        if other.time < first.time or (
            other.time == first.time and other.key < first.key
        ):
            j, first = k, other
        if time < first.time or (time == first.time and key < first.key):
            break
        queue[i].time = first.time
        queue[i].key = first.key
        i, j = j, 2 * j + 1
    queue[i].time = time
    queue[i].key = key
    return size
