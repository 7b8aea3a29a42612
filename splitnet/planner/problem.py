"""The placement problem as flat arrays.

A *group* is what must be on one device. A *net* is what one group sends, its pins are
the producer and the groups that read it. Times are in seconds (or any one unit), sizes
in bytes. An assignment is the number of a device for every group.

    load of a device = seconds of its groups + seconds of every net that crosses its
                       border, once, in either direction

This is the load of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020), with any number of kinds of device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

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
    contracted,
    rows_of,
)
from splitnet.planner.partitioning import running_order
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.tensors import Item


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

    Unit u of the step belongs to group `group_of_unit[u]`; with `functions`, several
    units run as one. `cut_penalty` is the fraction of the value that one cross-device
    transfer costs.
    """

    graph: LoadGraph
    forward: ForwardGraph
    step: StepGraph
    group_of_unit: Ints
    functions: Functions | None = None
    cut_penalty: float = 0.0

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
        devices: list[int] = np.asarray(assignment)[self.group_of_unit].tolist()
        if self.functions is None:
            return self.step, devices
        return self.functions.step_of(devices)

    def step_costs(self, assignment: npt.ArrayLike) -> tuple[float, int]:
        """Makespan of the step, and bytes of its copies."""
        run = run_step(*self.as_run(assignment))
        return run.seconds, sum(copy.bytes for copy in run.copies)

    def step_seconds(self, assignment: npt.ArrayLike) -> float:
        """Makespan of the step."""
        return self.step_costs(assignment)[0]

    def held_bytes(self, assignment: npt.ArrayLike) -> Floats:
        """Bytes of every device at its peak."""
        step, devices = self.as_run(assignment)
        held = memory_of(step, devices, run_step(step, devices))
        return np.array([one.peak.total for one in held], np.float64)


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

    A CPU, where the data is anyway, pays nothing for transfers. Contiguity does not
    constrain backward calls, nor calls that may run on one device only and read
    something: whatever else is there, data comes back to them. `capacity` has the bytes
    of every device, its memory by default.
    """
    device = {one.name: i for i, one in enumerate(cluster)}
    home = device[cluster.home.name]
    ends = [home] * len(device)  # of the link that a device pays for
    ends[home] = next((d for d in device.values() if d != home), home)
    keys = [
        (
            id(step.task_seconds[d]),
            cluster.devices[d].kind == "cpu",
            step.latency[d][end],
            step.seconds_per_byte[d][end],
        )
        for d, end in enumerate(ends)
    ]
    kinds = list(dict.fromkeys(keys))
    kind = np.array([kinds.index(key) for key in keys], np.int64)

    def paid(edge: Item) -> list[float]:
        """What a device of each kind pays if an edge and its gradient cross."""
        each = [
            latency + edge.bytes * per_byte if edge.seconds is None else edge.seconds
            for _, _, latency, per_byte in kinds
        ]
        passes = (1 + bool(edge.gradients_from)) * (len(device) > 1)
        return [passes * one * (not key[1]) for one, key in zip(each, kinds)]

    sends = [edge for edge in step.edges if edge.readers]
    reads = {reader for edge in sends for reader in edge.readers}
    unseen = [
        late or (unit in reads and len(groups[group_of_unit[unit]].allowed) == 1)
        for unit, late in enumerate(u.explicit_backward for u in step.units)
    ]
    after: list[dict[int, None]] = [{} for _ in unseen]
    before: list[dict[int, None]] = [{} for _ in unseen]
    for edge in sends:
        for reader in edge.readers:
            if not unseen[edge.source] and not unseen[reader]:
                after[edge.source][reader] = before[reader][edge.source] = None
    order = [unit for unit in running_order(before, after) if not unseen[unit]]
    numbers = np.array(group_of_unit, np.int64)
    forward = ForwardGraph(np.array(order, np.int64), *rows_of(after), numbers)
    times = np.array([step.unit_seconds[keys.index(key)] for key in kinds]).T
    # Sums of these are below what devices hold: gradients go as they are used.
    held = [
        u.weight_bytes + step.slot_copies * u.trained_bytes + u.saved_floor
        for u in step.units
    ]
    none = rows_of([[]] * step.count)
    units = LoadGraph(
        np.ascontiguousarray(times, np.float64),
        np.array(held, np.float64),
        np.ones((step.count, len(device)), np.bool_),
        np.array(capacity or [one.memory_bytes for one in cluster], np.float64),
        kind,
        *rows_of([edge.source, *edge.readers] for edge in sends),
        np.array([paid(edge) for edge in sends]).reshape(len(sends), len(kinds)),
        np.ones(len(sends), np.int64),
        *none,
        forward.successor_start,
        forward.successors,
        *none,
        *none,
    )
    start, apart = rows_of(group.apart for group in groups)
    allowed = [[name in one.allowed for name in device] for one in groups]
    graph = contracted(units, numbers, len(groups))._replace(
        allowed=np.array(allowed, np.bool_).reshape(len(groups), len(device)),
        apart_start=start,
        apart=apart,
    )
    return Problem(graph, forward, step, numbers, functions, cut_penalty)


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
    if contiguity != "convex":
        return contiguity == "free" or device_line(problem, place) is not None
    forward = problem.forward
    where: list[int] = place[forward.group].tolist()
    start, after = forward.successor_start.tolist(), forward.successors.tolist()
    for device in set(where):
        left = [False] * len(where)  # whether a path from the device leads there
        for call in forward.order.tolist():
            if where[call] == device or left[call]:
                for reader in after[start[call] : start[call + 1]]:
                    if where[reader] != device:
                        left[reader] = True
                    elif left[call]:
                        return False
    return True


def equivalent_devices(problem: Problem) -> list[int]:
    """Number devices so that interchangeable ones share a number.

    They have equal times, memory and links, and every group may use both or neither.
    """
    graph, step = problem.graph, problem.step
    columns = (column.tobytes() for column in graph.allowed.T)
    keys = list(zip(graph.kind.tolist(), graph.capacity_bytes.tolist(), columns))
    found: list[int] = []
    for d, key in enumerate(keys):
        same = (
            found[e] for e in range(d) if keys[e] == key and _same_links(step, e, d)
        )
        found.append(next(same, max(found, default=-1) + 1))
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
    return step.task_seconds[a] is step.task_seconds[b] and all(
        table[a][b] == table[b][a]
        and all(table[a][d] == table[b][d] for d in others)
        and all(table[d][a] == table[d][b] for d in others)
        for table in (step.latency, step.gap, step.seconds_per_byte)
    )
