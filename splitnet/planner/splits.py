"""Score a split of a benchmark workload: which node is on which device.

Walks the original nodes, not the contracted problem, so that it can judge what the
search reports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import fsum, inf
from typing import Any

from splitnet.core.errors import PlanFileError
from splitnet.planner.walks import adjacent, cycle_in, running_order
from splitnet.planner.workload import Workload
from splitnet.planner.workload_fields import kind_of

__all__ = ["Score", "score_split"]


@dataclass(frozen=True, slots=True)
class Score:
    """What a split costs; `violations` is empty for a feasible split.

    `call_latency` is infinite when calls wait for one another in a circle.
    """

    max_load: float
    call_latency: float
    convex: bool
    pipeline: bool
    violations: tuple[str, ...]


def score_split(
    workload: Workload, split: Mapping[str, Any], *, cpu_limit: bool = True
) -> Score:
    """Score a split on the original nodes; `cpu_limit=False` for `call_latency`.

    An accelerator of the split has `nodes`, which are cut into calls by the rule, or
    `subgraphs`: its calls, lists of ids, which it makes in the order they are listed.
    """
    where, told, faults = _places(workload, split)
    used: dict[str, set[tuple[str, int]]] = {"gpu": set(), "cpu": set()}
    for place in where.values():
        used[place[0]].add(place)
    faults += _violations(workload, where, used, cpu_limit=cpu_limit)
    if len(where) < len(workload.nodes):
        return Score(inf, inf, False, False, tuple(faults))
    device = [where[index] for index in range(len(workload.nodes))]
    successors = adjacent(len(workload.nodes), workload.edges)
    return Score(
        max_load=_score_max_load(workload, device, successors),
        call_latency=_score_latency(workload, device, successors, told),
        convex=_score_convex(workload, device, successors),
        pipeline=_score_pipeline(workload, device),
        violations=tuple(faults),
    )


def _places(
    workload: Workload, split: Mapping[str, Any]
) -> tuple[dict[int, tuple[str, int]], dict[int, int], list[str]]:
    """Return the device of each node, its call where the split says so, and faults."""
    position = {node.id: index for index, node in enumerate(workload.nodes)}
    where: dict[int, tuple[str, int]] = {}
    told: dict[int, int] = {}
    faults = []
    for field, kind in (("fpgas", "gpu"), ("cpus", "cpu")):
        entries = split.get(field, [])
        if not isinstance(entries, list):
            raise PlanFileError(f"{field}: expected a list, found {kind_of(entries)}")
        for number, entry in enumerate(entries):
            for label, call, key in _ids(f"{field}[{number}]", entry, kind):
                index = position.get(key) if isinstance(key, int) else None
                if index is None:
                    faults.append(f"{label}: no node has id {key!r}")
                elif index in where:
                    faults.append(f"node {key} is placed twice")
                else:
                    where[index] = (kind, number)
                    if call is not None:
                        told[index] = call
    faults += [
        f"node {node.id} is not placed"
        for index, node in enumerate(workload.nodes)
        if index not in where
    ]
    return where, told, faults


def _ids(where: str, entry: object, kind: str) -> Iterator[tuple[str, int | None, Any]]:
    """Yield every id of a device with its field and, in `subgraphs`, its call."""
    row = entry if isinstance(entry, dict) else {}
    if kind == "gpu" and "subgraphs" in row:
        calls = row["subgraphs"]
        if not isinstance(calls, list) or not all(isinstance(c, list) for c in calls):
            raise PlanFileError(f"{where}.subgraphs: expected a list of lists of ids")
        for number, call in enumerate(calls):
            for key in call:
                yield f"{where}.subgraphs[{number}]", number, key
        return
    ids = row.get("nodes")
    if not isinstance(ids, list):
        raise PlanFileError(f"{where}.nodes: expected a list of ids")
    for key in ids:
        yield f"{where}.nodes", None, key


def _violations(
    workload: Workload,
    where: Mapping[int, tuple[str, int]],
    used: Mapping[str, set[tuple[str, int]]],
    *,
    cpu_limit: bool,
) -> list[str]:
    faults = []
    if len(used["gpu"]) > workload.accelerators:
        faults.append(
            f"{len(used['gpu'])} accelerators used, {workload.accelerators} allowed"
        )
    if cpu_limit and len(used["cpu"]) > workload.cpus:
        faults.append(f"{len(used['cpu'])} CPU cores used, {workload.cpus} allowed")
    sizes: dict[tuple[str, int], list[float]] = {}
    home: dict[int, tuple[str, int]] = {}
    for index, node in enumerate(workload.nodes):
        if index not in where:
            continue
        place = where[index]
        if place[0] == "gpu":
            sizes.setdefault(place, []).append(node.size_bytes)
            if not node.supported:
                faults.append(f"node {node.id} is not supported on accelerators")
        pool = place if place[0] == "gpu" or cpu_limit else ("cpu", 0)
        if node.color is not None and home.setdefault(node.color, pool) != pool:
            faults.append(f"colour class {node.color} is on two devices")
    for (kind, number), parts in sorted(sizes.items()):
        if fsum(parts) > workload.memory_bytes * (1 + 1e-12):
            faults.append(
                f"{kind}:{number} needs {fsum(parts):.12g} bytes, has "
                f"{workload.memory_bytes:.12g}"
            )
    return faults


def _score_max_load(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
) -> float:
    parts: dict[tuple[str, int], list[float]] = {}
    for index, node in enumerate(workload.nodes):
        here = device[index]
        time = node.accelerator if here[0] == "gpu" else node.cpu
        parts.setdefault(here, []).append(time)
        guests = {device[target] for target in successors[index]} - {here}
        for place in {here} | guests if guests else ():
            if place[0] == "gpu":
                parts.setdefault(place, []).append(node.transfer)
    return max((fsum(part) for part in parts.values()), default=0.0)


def _score_latency(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
    told: Mapping[int, int],
) -> float:
    """Cut each accelerator's nodes into calls and take the longest chain of units.

    Calls that the split itself names, `told`, wait for the one before on their device.
    """
    order = running_order(successors)
    predecessors = adjacent(len(order), [(t, s) for s, t in workload.edges])
    unit: dict[int, tuple[str, int, int]] = {}
    for place in {d for d in device if d[0] == "gpu"}:
        call = [0] * len(order)
        for node in order:
            inside = device[node] == place
            call[node] = max(
                (call[u] + (inside and device[u] != place) for u in predecessors[node]),
                default=0,
            )
            if inside:
                call[node] = max(call[node], 1)
                unit[node] = (*place, told.get(node, call[node]))
    for node in order:
        unit.setdefault(node, ("cpu", node, 0))
    seconds: dict[tuple[str, int, int], list[float]] = {}
    after: dict[tuple[str, int, int], set[tuple[str, int, int]]] = {}
    for index in order:
        data, here = workload.nodes[index], unit[index]
        time = data.cpu if here[0] == "cpu" else data.accelerator
        seconds.setdefault(here, []).append(time)
        guests = {unit[target] for target in successors[index]} - {here}
        after.setdefault(here, set()).update(guests)
        for other in {here} | guests if guests else ():
            if other[0] == "gpu":
                seconds.setdefault(other, []).append(data.transfer)
    ordered = sorted({unit[node] for node in told})
    for one, following in pairwise(ordered):
        if one[:2] == following[:2]:
            after[one].add(following)
    return _longest({u: fsum(parts) for u, parts in seconds.items()}, after)


def _longest(
    seconds: Mapping[tuple[str, int, int], float],
    after: Mapping[tuple[str, int, int], set[tuple[str, int, int]]],
) -> float:
    waiting = dict.fromkeys(seconds, 0)
    for targets in after.values():
        for target in targets:
            waiting[target] += 1
    start = dict.fromkeys(seconds, 0.0)
    ready = [unit for unit, number in waiting.items() if number == 0]
    best = 0.0
    for unit in ready:
        stop = start[unit] + seconds[unit]
        best = max(best, stop)
        for target in after.get(unit, ()):
            start[target] = max(start[target], stop)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return best if len(ready) == len(seconds) else inf


def _score_convex(
    workload: Workload,
    device: Sequence[tuple[str, int]],
    successors: Sequence[Sequence[int]],
) -> bool:
    """Whether no path of forward nodes leaves a device and comes back."""
    order = running_order(successors)

    def forward(node: int) -> bool:
        return not workload.nodes[node].backward

    for place in sorted(set(device)):
        left = set()
        for node in filter(forward, order):
            if device[node] == place or node in left:
                for target in filter(forward, successors[node]):
                    if device[target] != place:
                        left.add(target)
                    elif node in left:
                        return False
    return True


def _score_pipeline(workload: Workload, device: Sequence[tuple[str, int]]) -> bool:
    """Whether the devices can be ordered so that forward edges never go back."""
    number = {place: index for index, place in enumerate(sorted(set(device)))}
    edges = {
        (number[device[a]], number[device[b]])
        for a, b in workload.edges
        if not (workload.nodes[a].backward or workload.nodes[b].backward)
        and device[a] != device[b]
    }
    return not cycle_in(len(number), sorted(edges))
