"""Contract nodes that must share a device, and groups that a search keeps together."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import fsum, inf

from splitnet.planner.search.problem import Device, Net, Nodes, Problem

__all__ = ["build_problem", "contract"]


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
