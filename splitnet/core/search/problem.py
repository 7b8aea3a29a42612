"""The planner's problem as plain numbers, so that no algorithm meets a graph library.

Nodes that must share a device are contracted to *groups*; what a node sends is a *net*
from its group to the groups of its consumers. A device pays for a net once when the net
crosses its border, in either direction, however many consumers are on the other side:

    producer on d,     some consumer elsewhere     d pays (send)
    producer not on d, some consumer on d          d pays (receive)

Everything is in seconds (or any one unit of time) and bytes. The cost model is the one
of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph Operators"
(NeurIPS 2020), with any number of kinds of device instead of two.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf

__all__ = [
    "Assignment",
    "Device",
    "Net",
    "Nodes",
    "Problem",
    "build_problem",
    "check",
    "contract",
    "device_classes",
    "loads",
    "max_load",
]

Assignment = Sequence[int]
"""The index of a device for every group, in the order of the groups."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device: its kind is an index into every `seconds` tuple of the problem.

    `pooled` marks host cores: for `call_latency` all pooled devices are one pool of
    unlimited cores that run node by node, free of transfers.
    """

    name: str
    kind: int
    capacity_bytes: float = inf
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class Net:
    """What one group sends; `seconds[kind]` is paid by every device it crosses."""

    producer: int
    consumers: tuple[int, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Nodes:
    """The uncontracted graph; needed for convexity and for the latency of calls."""

    names: tuple[str, ...] = ()
    group: tuple[int, ...] = ()
    seconds: tuple[tuple[float, ...], ...] = ()
    transfer_seconds: tuple[tuple[float, ...], ...] = ()
    successors: tuple[tuple[int, ...], ...] = ()
    predecessors: tuple[tuple[int, ...], ...] = ()
    backward: tuple[bool, ...] = ()


@dataclass(frozen=True, slots=True)
class Problem:
    """Groups to place on devices; `allowed[g]` lists the devices group g may use.

    `seconds[g][kind]` is infinite where a kind cannot run the group. `forward` holds
    the edges between groups that come from forward nodes only.
    """

    names: tuple[str, ...]
    seconds: tuple[tuple[float, ...], ...]
    size_bytes: tuple[float, ...]
    nets: tuple[Net, ...]
    devices: tuple[Device, ...]
    allowed: tuple[tuple[int, ...], ...]
    forward: tuple[tuple[int, int], ...]
    nodes: Nodes

    @property
    def group_count(self) -> int:
        """The number of groups to place."""
        return len(self.seconds)

    @property
    def kind_count(self) -> int:
        """The number of kinds that `seconds` tells apart."""
        if self.seconds:
            return len(self.seconds[0])
        return 1 + max((device.kind for device in self.devices), default=-1)


def build_problem(
    names: Sequence[str],
    *,
    seconds: Sequence[Sequence[float]],
    size_bytes: Sequence[float],
    edges: Iterable[tuple[int, int]],
    transfer_seconds: Sequence[Sequence[float]],
    devices: Sequence[Device],
    together: Sequence[Hashable | None] | None = None,
    backward: Sequence[bool] | None = None,
    pins: Mapping[int, Sequence[int]] | None = None,
) -> Problem:
    """Contract nodes that share a key of `together` and merge equal nets.

    Args:
        names: One per node, for messages.
        seconds: Per node and kind; infinite where the kind cannot run the node.
        size_bytes: Memory of each node on any device.
        edges: Pairs (source, destination) of node indices; an acyclic graph.
        transfer_seconds: Per node and kind: what a device of that kind pays when the
            node's output crosses its border; 0 for kinds that pay nothing.
        devices: The machine.
        together: Nodes with equal keys share a device; None leaves a node alone.
        backward: Marks backward nodes, which contiguity does not test.
        pins: Node -> devices it may use; several pins in a group are intersected.
    """
    count = len(names)
    group = _number_groups(together, count)
    members: list[list[int]] = [[] for _ in range(1 + max(group, default=-1))]
    for node, owner in enumerate(group):
        members[owner].append(node)
    successors: list[dict[int, None]] = [{} for _ in range(count)]
    predecessors: list[dict[int, None]] = [{} for _ in range(count)]
    for source, target in edges:
        successors[source][target] = None
        predecessors[target][source] = None
    late = tuple(backward) if backward is not None else (False,) * count
    nodes = Nodes(
        names=tuple(names),
        group=tuple(group),
        seconds=tuple(tuple(row) for row in seconds),
        transfer_seconds=tuple(tuple(row) for row in transfer_seconds),
        successors=tuple(tuple(row) for row in successors),
        predecessors=tuple(tuple(row) for row in predecessors),
        backward=late,
    )
    kinds = range(len(seconds[0]) if count else 0)
    times = tuple(
        tuple(fsum(seconds[node][kind] for node in inside) for kind in kinds)
        for inside in members
    )
    return Problem(
        names=tuple(_group_name(names, inside) for inside in members),
        seconds=times,
        size_bytes=tuple(fsum(size_bytes[node] for node in m) for m in members),
        nets=_nets(
            (group[node], [group[other] for other in successors[node]], cost)
            for node, cost in enumerate(nodes.transfer_seconds)
        ),
        devices=tuple(devices),
        allowed=_allowed(times, devices, members, pins or {}),
        forward=tuple(
            {
                (group[node], group[other]): None
                for node in range(count)
                if not late[node]
                for other in successors[node]
                if not late[other] and group[node] != group[other]
            }
        ),
        nodes=nodes,
    )


def contract(problem: Problem, cluster: Sequence[int]) -> Problem:
    """Merge the groups that share a number in `cluster` (0, 1, ... without gaps).

    Any assignment of the result, spread over the members, has the same loads. The
    result carries no `nodes`: it serves algorithms that need nothing but loads.
    """
    count = 1 + max(cluster, default=-1)
    kinds = problem.kind_count
    times = [[0.0] * kinds for _ in range(count)]
    sizes = [0.0] * count
    allowed: list[tuple[int, ...] | None] = [None] * count
    names: list[str] = [""] * count
    for group, owner in enumerate(cluster):
        row = times[owner]
        for kind, value in enumerate(problem.seconds[group]):
            row[kind] += value
        sizes[owner] += problem.size_bytes[group]
        names[owner] = names[owner] or problem.names[group]
        here, before = problem.allowed[group], allowed[owner]
        if before is None or before is here or before == here:
            allowed[owner] = here
        else:
            allowed[owner] = tuple(device for device in before if device in here)
    return Problem(
        names=tuple(names),
        seconds=tuple(tuple(row) for row in times),
        size_bytes=tuple(sizes),
        nets=_nets(
            (cluster[net.producer], [cluster[c] for c in net.consumers], net.seconds)
            for net in problem.nets
        ),
        devices=problem.devices,
        allowed=tuple(row or () for row in allowed),
        forward=tuple(
            {
                (cluster[a], cluster[b]): None
                for a, b in problem.forward
                if cluster[a] != cluster[b]
            }
        ),
        nodes=Nodes(),
    )


def loads(problem: Problem, assignment: Assignment) -> list[float]:
    """Return the busy seconds of every device: compute, send and receive."""
    parts: list[list[float]] = [[] for _ in problem.devices]
    kind = [device.kind for device in problem.devices]
    for group, device in enumerate(assignment):
        parts[device].append(problem.seconds[group][kind[device]])
    for net in problem.nets:
        home = assignment[net.producer]
        guests = {assignment[consumer] for consumer in net.consumers}
        if guests == {home}:
            continue
        for device in sorted(guests | {home}):
            parts[device].append(net.seconds[kind[device]])
    return [fsum(part) for part in parts]


def max_load(problem: Problem, assignment: Assignment) -> float:
    """Return the load of the busiest device."""
    return max(loads(problem, assignment), default=0.0)


def check(problem: Problem, assignment: Assignment) -> list[str]:
    """List every violated constraint in words; an empty list means feasible."""
    if len(assignment) != problem.group_count:
        return [f"{len(assignment)} groups placed, {problem.group_count} expected"]
    faults = []
    parts: list[list[float]] = [[] for _ in problem.devices]
    for group, where in enumerate(assignment):
        name = problem.names[group]
        if not 0 <= where < len(problem.devices):
            faults.append(f"{name!r} is on unknown device {where}")
            continue
        parts[where].append(problem.size_bytes[group])
        if where not in problem.allowed[group]:
            faults.append(f"{name!r} may not use {problem.devices[where].name}")
    for device, sizes in zip(problem.devices, parts, strict=True):
        used = fsum(sizes)
        if used > device.capacity_bytes * (1 + 1e-12):
            faults.append(
                f"{device.name} needs {used:.12g} bytes, has "
                f"{device.capacity_bytes:.12g}"
            )
    return faults


def device_classes(problem: Problem) -> list[int]:
    """Number the devices so that interchangeable ones share a number.

    Two devices are interchangeable when kind, capacity and pooling are equal and every
    group may use both or neither.
    """
    masks: list[int] = [0] * len(problem.devices)
    seen: dict[tuple[int, ...], int] = {}
    for row in problem.allowed:
        if row not in seen:
            seen[row] = len(seen)
            for device in row:
                masks[device] |= 1 << seen[row]
    numbers: dict[tuple[int, float, bool, int], int] = {}
    return [
        numbers.setdefault((d.kind, d.capacity_bytes, d.pooled, masks[i]), len(numbers))
        for i, d in enumerate(problem.devices)
    ]


def _number_groups(together: Sequence[Hashable | None] | None, count: int) -> list[int]:
    if together is None:
        return list(range(count))
    numbers: dict[Hashable, int] = {}
    keys: list[Hashable] = [
        ("alone", node) if key is None else ("with", key)
        for node, key in enumerate(together)
    ]
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def _group_name(names: Sequence[str], inside: Sequence[int]) -> str:
    first = names[inside[0]]
    return first if len(inside) == 1 else f"{first} (+{len(inside) - 1})"


def _allowed(
    times: Sequence[Sequence[float]],
    devices: Sequence[Device],
    members: Sequence[Sequence[int]],
    pins: Mapping[int, Sequence[int]],
) -> tuple[tuple[int, ...], ...]:
    shared: dict[tuple[bool, ...], tuple[int, ...]] = {}
    rows = []
    for row, inside in zip(times, members, strict=True):
        able = tuple(value < inf for value in row)
        if able not in shared:
            shared[able] = tuple(i for i, d in enumerate(devices) if able[d.kind])
        here = shared[able]
        for node in inside if pins else ():
            if node in pins:
                here = tuple(device for device in here if device in pins[node])
        rows.append(here)
    return tuple(rows)


def _nets(
    rows: Iterable[tuple[int, Sequence[int], Sequence[float]]],
) -> tuple[Net, ...]:
    merged: dict[tuple[int, tuple[int, ...]], list[float]] = {}
    for producer, targets, cost in rows:
        if len(targets) == 1:
            outside: tuple[int, ...] = () if targets[0] == producer else (targets[0],)
        else:
            outside = tuple(sorted(set(targets) - {producer}))
        if not outside or not any(cost):
            continue
        have = merged.get((producer, outside))
        if have is None:
            merged[producer, outside] = list(cost)
        else:
            for kind, value in enumerate(cost):
                have[kind] += value
    return tuple(Net(p, c, tuple(cost)) for (p, c), cost in merged.items())
