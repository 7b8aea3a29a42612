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

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf

__all__ = [
    "Assignment",
    "Device",
    "Net",
    "Nodes",
    "Problem",
    "check",
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
