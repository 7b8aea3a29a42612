"""The placement problem as flat arrays.

A *group* is what must be on one device. A *net* is what one group sends, its pins are
the producer and the groups that read it. Times are in seconds (or any one unit), sizes
in bytes. An assignment is the number of a device for every group.

    load of a device = seconds of its groups + seconds of every net that crosses its
                       border, once, in either direction

This is the load of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020), with any number of kinds of device.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import networkx as nx
import numpy as np
import numpy.typing as npt

from splitnet.core.cluster import Cluster
from splitnet.planner.constraints import Group
from splitnet.planner.engine.load_graph import (
    Floats,
    ForwardGraph,
    Ints,
    LoadGraph,
    bytes_per_device,
    contracted,
    rows_of,
)
from splitnet.planner.partitioning import is_convex, running_order
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import Edge


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """How the units of a step run: several as one function, if they may.

    Attributes:
        key: Per unit; those of unlike keys are never one function.
        part_seconds: Per device, what calling a function costs it.
        step_of: Gives the step of the functions, and the device of each, for the device
            of every unit.
    """

    key: Ints
    part_seconds: Floats
    step_of: Callable[[list[int]], tuple[StepGraph, list[int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What to place and under which constraints.

    `cut_penalty` is the fraction of the value that one cross-device transfer costs.
    With `step`, whose unit u belongs to group `group_of_unit[u]`, makespan and memory
    of a step are known, too; with `functions` those of the functions that then run.
    """

    graph: LoadGraph
    forward: ForwardGraph
    cut_penalty: float = 0.0
    step: StepGraph | None = None
    group_of_unit: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    functions: Functions | None = None

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self.graph.size_bytes)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.graph.capacity_bytes)

    def as_run(self, assignment: npt.ArrayLike) -> tuple[StepGraph, list[int]]:
        """The step as it runs, and the device of each of its units."""
        assert self.step is not None, "only a step runs"
        devices: list[int] = np.asarray(assignment)[self.group_of_unit].tolist()
        if self.functions is None:
            return self.step, devices
        return self.functions.step_of(devices)

    def step_seconds(self, assignment: npt.ArrayLike) -> float:
        """Makespan of the step."""
        return run_step(*self.as_run(assignment)).seconds

    def held_bytes(self, assignment: npt.ArrayLike) -> Floats:
        """Bytes of every device at its peak; of its groups if there is no step."""
        place = np.asarray(assignment)
        if self.step is None:
            return bytes_per_device(self.graph, place)
        step, devices = self.as_run(place)
        held = memory_of(step, devices, run_step(step, devices))
        return np.array([one.peak.total for one in held], np.float64)


Send = tuple[int, Sequence[int], Sequence[float]]
"""A call, those that read its output, and the seconds that a device of each kind pays
if it crosses its border."""


def load_problem(
    *,
    seconds: npt.ArrayLike,
    size_bytes: npt.ArrayLike,
    sends: Sequence[Send],
    kind: npt.ArrayLike,
    capacity_bytes: npt.ArrayLike,
    group: Sequence[int] | None = None,
    backward: Sequence[bool] | None = None,
    allowed: Mapping[int, Sequence[int]] | None = None,
    apart: Iterable[tuple[int, int]] = (),
    cut_penalty: float = 0.0,
) -> Problem:
    """Make a problem of calls with times, sizes and what they send; an acyclic graph.

    Args:
        seconds: Per call and kind; infinite if the kind cannot run the call.
        size_bytes: What each call holds on any device.
        sends: What is read of each call.
        kind: Kind of each device.
        capacity_bytes: Memory of each device.
        group: Group of each call, numbered from 0; a group per call by default.
        backward: Marks backward calls, which contiguity does not constrain.
        allowed: Group -> devices it may use; all others may use any.
        apart: Pairs of groups that may not share a device.
        cut_penalty: See `Problem`.
    """
    times, kinds = np.asarray(seconds, np.float64), np.asarray(kind, np.int64)
    count, allowed = len(times), allowed or {}
    group_of = np.array(range(count) if group is None else group, np.int64)
    pairs = dict.fromkeys((u, reader) for u, read, _ in sends for reader in read)
    unseen = backward or [False] * count
    after: list[list[int]] = [[] for _ in range(count)]
    before: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        if not unseen[source] and not unseen[target]:
            after[source].append(target)
            before[target].append(source)
    order = [call for call in running_order(before, after) if not unseen[call]]
    forward = ForwardGraph(np.array(order, np.int64), *rows_of(after), group_of)
    groups = max([int(group_of.max(initial=-1)) + 1, *(g + 1 for g in allowed)])
    costs = [cost for _, _, cost in sends]
    none = rows_of([[]] * count)
    calls = LoadGraph(
        times,
        np.asarray(size_bytes, np.float64),
        np.isfinite(times)[:, kinds],
        np.asarray(capacity_bytes, np.float64),
        kinds,
        *rows_of([source, *readers] for source, readers, _ in sends),
        np.array(costs, np.float64).reshape(len(costs), times.shape[1]),
        np.ones(len(costs), np.int64),
        *none,
        forward.successor_start,
        forward.successors,
        *none,
        *none,
    )
    graph = contracted(calls, group_of, groups)
    for number, devices in allowed.items():
        chosen = np.zeros(len(kinds), np.bool_)
        chosen[list(devices)] = True
        graph.allowed[number] &= chosen
    others: list[dict[int, None]] = [{} for _ in range(groups)]
    for a, b in apart:
        others[a][b] = others[b][a] = None
    start, items = rows_of(others)
    graph = graph._replace(apart_start=start, apart=items)
    return Problem(graph, forward, cut_penalty)


def problem_of(
    step: StepGraph,
    cluster: Cluster,
    groups: Sequence[Group],
    *,
    group_of_unit: Sequence[int],
    capacity: Sequence[float] | None = None,
    cut_penalty: float = 0.0,
    functions: Functions | None = None,
) -> Problem:
    """Make the problem of a step and the groups that its units belong to.

    A CPU, where the data is anyway, pays nothing for transfers. Calls that may run on
    one device only and read something do not count for contiguity: whatever else is
    there, data comes back to them.

    Args:
        step: Units and what is between them.
        cluster: The machine.
        groups: With the names of allowed devices, and the groups to be apart from.
        group_of_unit: The group of every unit.
        capacity: Bytes of every device; their memory by default.
        cut_penalty: See `Problem`.
        functions: How units run; each by itself by default.
    """
    device = {one.name: i for i, one in enumerate(cluster)}
    home = device[cluster.home.name]
    kind_of: dict[Hashable, int] = {}  # by times and the link to home
    kind: list[int] = []
    first: list[int] = []
    ends: list[int] = []
    for d, one in enumerate(cluster):
        end = home if d != home else next((e for e in device.values() if e != d), d)
        link = step.latency[d][end], step.seconds_per_byte[d][end]
        key = (id(step.forward[d]), one.kind == "cpu", link)
        if key not in kind_of:
            kind_of[key] = len(first)
            first.append(d)
            ends.append(end)
        kind.append(kind_of[key])

    def paid(edge: Edge, d: int, end: int) -> float:
        """Seconds that a device pays if an edge, and its gradient, cross its border."""
        if cluster.devices[d].kind == "cpu" or len(device) == 1:
            return 0.0
        seconds = edge.seconds
        if seconds is None:
            seconds = step.latency[d][end] + edge.bytes * step.seconds_per_byte[d][end]
        return seconds * (2 if edge.gradients_from else 1)

    reads = {reader for edge in step.edges for reader in edge.readers}
    problem = load_problem(
        seconds=np.array([step.unit_seconds[d] for d in first], np.float64).T,
        size_bytes=_held_bytes(step),
        sends=[
            (edge.source, edge.readers, [paid(edge, d, e) for d, e in zip(first, ends)])
            for edge in step.edges
            if edge.readers
        ],
        kind=kind,
        capacity_bytes=capacity or [one.memory_bytes for one in cluster],
        group=group_of_unit,
        backward=[
            late or (unit in reads and len(groups[group_of_unit[unit]].allowed) == 1)
            for unit, late in enumerate(step.explicit_backward)
        ],
        allowed={g: [device[n] for n in one.allowed] for g, one in enumerate(groups)},
        apart=[(g, other) for g, one in enumerate(groups) for other in one.apart],
        cut_penalty=cut_penalty,
    )
    numbers = np.array(group_of_unit, np.int64)
    return replace(problem, step=step, group_of_unit=numbers, functions=functions)


def _held_bytes(step: StepGraph) -> Floats:
    """Bytes of every unit whose sums are lower bounds of what devices hold.

    Weights, slots and saved activations: gradients go as they are used.
    """
    trained = np.array(step.trained_bytes, np.float64) * step.training
    held = np.array(step.weight_bytes, np.float64) + step.slot_copies * trained
    return held + np.array(step.saved_floor, np.float64)


def contract(problem: Problem, cluster: Ints, count: int) -> Problem:
    """The problem of clusters of groups: its assignments have the same values."""
    forward = problem.forward
    return replace(
        problem,
        graph=contracted(problem.graph, cluster, count),
        forward=forward._replace(group=cluster[forward.group]),
        group_of_unit=cluster[problem.group_of_unit],
    )


def device_line(problem: Problem, place: Ints) -> Ints | None:
    """Place of each device in a line that no forward edge goes back on, if any."""
    forward = problem.forward
    where = place[forward.group]
    source = np.repeat(where, np.diff(forward.successor_start))
    target = where[forward.successors]
    away = source != target
    flow = nx.DiGraph(zip(source[away].tolist(), target[away].tolist()))
    flow.add_nodes_from(range(problem.device_count))
    if not nx.is_directed_acyclic_graph(flow):
        return None
    line = np.empty(problem.device_count, np.int64)
    line[list(nx.topological_sort(flow))] = np.arange(problem.device_count)
    return line


def is_contiguous(problem: Problem, place: Ints, contiguity: str) -> bool:
    """Whether an assignment is in a set: "free", "convex" or "pipeline".

    Convex: no path of forward calls leaves a device and comes back. Pipeline: devices
    can stand in a line so that every forward edge stays or goes on.
    """
    if contiguity == "free":
        return True
    if contiguity == "pipeline":
        return device_line(problem, place) is not None
    forward = problem.forward
    source = np.repeat(np.arange(len(forward.group)), np.diff(forward.successor_start))
    edges = list(zip(source.tolist(), forward.successors.tolist()))
    return is_convex(edges, dict(enumerate(place[forward.group].tolist())))


def equivalent_devices(problem: Problem) -> list[int]:
    """Number devices so that interchangeable ones share a number.

    They have equal times, memory and links, and every group may use both or neither.
    """
    graph, step = problem.graph, problem.step
    first: dict[Hashable, list[int]] = {}
    found: list[int] = []
    for d, capacity in enumerate(graph.capacity_bytes.tolist()):
        like = first.setdefault(
            (int(graph.kind[d]), capacity, graph.allowed[:, d].tobytes()), []
        )
        same = [e for e in like if step is None or _same_links(step, e, d)]
        found.append(found[same[0]] if same else max(found, default=-1) + 1)
        if not same:
            like.append(d)
    return found


def single_devices(problem: Problem) -> list[Ints]:
    """Everything on one device, as far as it may be there, for every sort of device."""
    allowed, sorts = problem.graph.allowed, equivalent_devices(problem)
    return [
        np.where(allowed[:, device], device, allowed.argmax(axis=1))
        for device in (sorts.index(sort) for sort in dict.fromkeys(sorts))
    ]


def _same_links(step: StepGraph, a: int, b: int) -> bool:
    """Whether times and links stay the same if two devices change names."""
    others = [d for d in range(step.device_count) if d not in (a, b)]
    return step.forward[a] is step.forward[b] and all(
        table[a][b] == table[b][a]
        and all(table[a][d] == table[b][d] for d in others)
        and all(table[d][a] == table[d][b] for d in others)
        for table in (step.latency, step.gap, step.seconds_per_byte)
    )
