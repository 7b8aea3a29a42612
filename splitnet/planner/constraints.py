"""Placement constraints: `on=`, `near=`, `apart=` and pins, resolved for one cluster.

Each part requests devices in order of preference, in its declaration or by a pin. The
result says for every group of parts that share a device which devices it may use.
Nothing here knows seconds or bytes, except when the least loaded substitute for a
missing device is chosen.
"""

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import networkx as nx

from splitnet.core.cluster import KINDS, Cluster
from splitnet.core.errors import DeclarationError, DeviceError, format_bytes, listed
from splitnet.core.graph import Graph, Part, conflicts, in_all, names_of, near_groups
from splitnet.core.net import preferences
from splitnet.core.plan import DeviceOf, Fallback, Plan

On = str | Sequence[str]
Pins = Mapping[str, On] | Callable[[Part], On | None] | Plan


@dataclass(frozen=True, slots=True)
class Constraint:
    """What one part requests, and the devices it may use on this cluster.

    `reason` is a `Placement.reason`, or "" where the planner is free to choose.
    `unavailable` is the requested device that cannot be used, and `detail` says why and
    what is used instead. `preferred` are the devices of the first request that is
    available; a substitute has none.
    """

    part: str
    requested: str
    allowed: tuple[str, ...]
    reason: str = ""
    unavailable: str = ""
    detail: str = ""
    preferred: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """Parts bound to one device by `near=`, and the devices that they may use.

    `apart` holds the numbers of the groups that must be on other devices.
    """

    parts: tuple[str, ...]
    allowed: tuple[str, ...]
    apart: tuple[int, ...] = ()


def resolve(
    graph: Graph,
    cluster: Cluster,
    load_of: Callable[[str, str], float],
    *,
    pins: Pins | None = None,
    missing: str = "fallback",
    whole_lists: bool = False,
) -> tuple[dict[str, Constraint], list[Group]]:
    """Turn requests into devices of this cluster, part by part and group by group.

    Args:
        graph: Its parts carry the declared requests.
        cluster: The available devices.
        load_of: Seconds that a part takes on a device, to find the least loaded.
        pins: Names or patterns -> `on=`, or a function of the part; see `requests_of`.
        missing: What to do if no requested device is available: "fallback" (a
            substitute, recorded) or "error".
        whole_lists: Allow every device of a preference list, not only the first that is
            available. Used when the first is full.

    Raises:
        DeclarationError: pins that match nothing or contradict each other.
        DeviceError: missing devices under `missing="error"`, or constraints that
            contradict each other; all of them at once.
    """
    requests = requests_of(graph, pins)
    found = {
        part.name: _constraint(graph, cluster, part, *requests[part.name], whole_lists)
        for part in graph.parts
    }
    members = near_groups(graph.parts)
    if not whole_lists:
        if missing == "error":
            _refuse_missing(found, cluster)
        _choose_substitutes(cluster, found, members, load_of)
    return found, _groups(graph, found, members)


def requests_of(
    graph: Graph, pins: Pins | None
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The devices that each part requests, and whether a pin requests them.

    A pin beats the declaration; `select` says which pin a part gets.

    Raises:
        DeclarationError: pins of another type, or as `select`.
        DeviceError: an impossible device name.
    """
    if isinstance(pins, DeviceOf):
        pins = pins.plan
    if isinstance(pins, Plan):
        pins = pins_of(pins, graph)
    chosen: dict[str, On | None] = {}
    if callable(pins):
        chosen = {part.name: pins(part) for part in graph.parts}
        key_of = {name: name for name, on in chosen.items() if on is not None}
    elif isinstance(pins, Mapping | None):
        at_home = {p.name for p in graph.parts if p.kind == "input"}
        chosen.update(
            (key, on)
            for key, on in (pins or {}).items()
            if key not in at_home or not str(on).startswith("cpu")
        )
        key_of = select(graph, chosen)
    else:
        raise DeclarationError(
            "pins= must be a table of patterns, such as {'block1_*': 'gpu:0'}, a "
            f"function of a part, or a plan or its file. Received: {pins!r}."
        )
    requests = {}
    for part in graph.parts:
        key = key_of.get(part.name)
        try:
            on = part.on if key is None else chosen[key] or ()
            requests[part.name] = preferences(on), key is not None
        except DeviceError as error:
            what = f"part {part.name!r}" if key is None else f"pin {key!r}"
            raise DeviceError(f"{what}: {error}") from None
    return requests


def select(graph: Graph, table: Mapping[str, object]) -> dict[str, str]:
    """The key of a table of names and patterns that applies to each part.

    An exact name beats a pattern, and a more specific name a less specific one: a part,
    then a call, a model inside the model, a range of calls "a .. b" (all on the ways
    from a to b), a layer. Among patterns the first that matches wins. Inputs are on the
    host and are never matched.

    Raises:
        DeclarationError: keys that match nothing, or two layers of one part with unlike
            values; all of them at once.
    """
    names = _names(graph, table)
    used: set[str] = set()
    selected: dict[str, str] = {}
    faults: list[str] = []
    for part, known in names.items():
        exact = sorted(
            (known[key], i, key) for i, key in enumerate(table) if key in known
        )
        like = [key for key in table if any(fnmatchcase(name, key) for name in known)]
        used.update(like, (key for _, _, key in exact))
        if exact:
            selected[part] = exact[0][2]
            rivals = [key for rank, _, key in exact if rank == exact[0][0]]
            if any(table[key] != table[rivals[0]] for key in rivals):
                faults.append(
                    f"part {part!r} is placed whole, but {' and '.join(rivals)} in it "
                    "have different devices"
                )
        elif like:
            selected[part] = like[0]
    faults += [_unknown(graph, names, key) for key in table if key not in used]
    if faults:
        raise DeclarationError(listed("these names cannot be placed:", faults))
    return selected


_RANGE_RANK = 50
"""Of a range of calls: less specific than a call, more so than a layer's name."""


def _names(graph: Graph, table: Iterable[str]) -> dict[str, dict[str, int]]:
    """The names that mean each part, ranges among the keys of a table included.

    Raises:
        DeclarationError: a key is no text.
    """
    names = {p.name: names_of(graph, p) for p in graph.parts if p.kind != "input"}
    for key in table:
        if not isinstance(key, str):
            raise DeclarationError(f"names of parts are text. Received: {key!r}.")
        first, dots, last = key.partition(" .. ")
        if key in names or not dots or not {first, last} <= graph.call.keys():
            continue
        order = graph.networkx()
        after = nx.descendants(order, first) | {first}
        for call in after & (nx.ancestors(order, last) | {last}):
            names.get(graph.call[call].part, {}).setdefault(key, _RANGE_RANK)
    return names


def _unknown(graph: Graph, names: Mapping[str, Mapping[str, int]], key: str) -> str:
    """A name or pattern that matches no part, with what may have been meant."""
    if key in graph.part:
        return f"{key!r} is an input; inputs are fed from the host, never pinned"
    if " .. " in key:
        return (
            f"range {key!r} holds no call: no way leads from its first to its last. Of "
            "a part with several ends, name the layers; or give the plan itself"
        )
    known = list(dict.fromkeys(name for each in names.values() for name in each))
    folded = {name.casefold(): name for name in reversed(known)}
    close = difflib.get_close_matches(key.casefold(), folded, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {' or '.join(repr(folded[name]) for name in close)}?"
    else:
        more = " ..." if len(known) > 8 else ""
        hint = f"the parts are {', '.join(known[:8])}{more}"
    return f"pattern {key!r} matches no part, call or layer; {hint}"


def pins_of(plan: Plan, graph: Graph) -> Callable[[Part], str | None]:
    """The devices of another plan as pins: of its parts, or else of its calls.

    A part of the graph that the other plan does not have is free.

    Raises:
        DeclarationError: the plan has names that the graph does not have.
    """
    mine = {p.name: names_of(graph, p) for p in graph.parts if p.kind != "input"}
    table = dict(plan.device_of)
    if not mine.keys() <= table.keys():
        table = {call.name: table[call.part] for call in plan.graph.calls}
    faults = [_unknown(graph, mine, name) for name in table if name not in graph.part]
    if faults:
        raise DeclarationError(
            listed(f"the plan of {plan.graph.name!r} cannot be kept.", faults[:12])
        )
    return lambda part: None if part.kind == "input" else table.get(part.name)


def fallbacks_of(
    constraints: Mapping[str, Constraint], device_of: Mapping[str, str]
) -> tuple[Fallback, ...]:
    """Every part that is not on its first request, in order of declaration."""
    fallbacks = []
    for one in constraints.values():
        assigned = device_of[one.part]
        if one.unavailable:
            fallbacks.append(Fallback(one.part, one.unavailable, assigned, one.detail))
        elif one.preferred and assigned not in one.preferred:
            first = one.requested.partition(", ")[0]
            reason = f"{first} is full; {assigned} is next in the list"
            fallbacks.append(Fallback(one.part, first, assigned, reason))
    return tuple(fallbacks)


def _constraint(
    graph: Graph,
    cluster: Cluster,
    part: Part,
    on: tuple[str, ...],
    pinned: bool,
    whole_lists: bool,
) -> Constraint:
    """What the requests of one part allow, before near= is considered."""
    requested = ", ".join(on)
    if part.kind == "input":
        return Constraint(part.name, requested, (cluster.home.name,), "input")
    meant = {
        name: tuple(d.name for d in (cluster.free_devices if name == "auto" else same))
        for name in on
        for same in [cluster.of_kind(name) if name in KINDS else ()]
    }
    for name in on:
        if name not in KINDS and name in cluster:
            meant[name] = (name,)
    available = [name for name in on if meant[name]]
    if not available:
        kind = on[0] if on[0] in KINDS else on[0].rpartition("/")[2].partition(":")[0]
        same = tuple(device.name for device in cluster.of_kind(kind))
        detail = f"{on[0]} is not available; a {kind} with enough memory is used"
        if not same:
            same, detail = (cluster.home.name,), f"there is no {kind} available"
        one = Constraint(part.name, requested, same, "fallback", on[0], detail)
        return _with_kernels(graph, cluster, one)
    first, reason = meant[available[0]], ""
    if available[0] in KINDS and len(first) == 1:
        default = part.kind == "merge" and not pinned and available[0] == "cpu"
        reason = "merge" if default else "preference"
    elif available[0] not in (*KINDS, "auto"):
        reason = "pin"
    allowed = first
    if whole_lists:
        allowed = tuple(dict.fromkeys(d for name in available for d in meant[name]))
        reason = reason if allowed == first else ""
    one = Constraint(part.name, requested, allowed, reason, preferred=first)
    if available[0] != on[0]:
        detail = f"{on[0]} is not available; {available[0]} is next in the list"
        one = replace(one, reason="fallback", unavailable=on[0], detail=detail)
    return _with_kernels(graph, cluster, one)


def _with_kernels(graph: Graph, cluster: Cluster, one: Constraint) -> Constraint:
    """A call without a GPU kernel keeps its part on a CPU."""
    bound = next((call for call in graph.calls_of[one.part] if call.cpu_only), None)
    if bound is None:
        return one
    cpus = tuple(device.name for device in cluster.of_kind("cpu"))
    if not cpus:
        raise DeviceError(
            f"part {one.part!r} has a call without a GPU kernel ({bound.name}, "
            f"{bound.kind}), and there is no CPU among "
            f"{', '.join(d.name for d in cluster)}. Add 'cpu' to the cluster."
        )
    kept = tuple(name for name in one.allowed if name in cpus)
    wants_gpu = "gpu" in one.requested
    if kept and not wants_gpu:
        reason = one.reason or "no kernel"
        return replace(one, allowed=kept, reason=reason, preferred=())
    detail = f"{bound.kind} {bound.name!r} has no GPU kernel"
    first = one.requested.partition(", ")[0] if wants_gpu else ""
    return Constraint(one.part, one.requested, kept or cpus, "no kernel", first, detail)


def _refuse_missing(found: Mapping[str, Constraint], cluster: Cluster) -> None:
    """Refuse parts none of whose requested devices is available."""
    faults = [
        f"part {one.part!r} requests {one.requested}"
        for one in found.values()
        if one.reason == "fallback" and not one.preferred
    ]
    if faults:
        available = ", ".join(device.name for device in cluster)
        headline = (
            f"not every requested device is available (available: {available}). "
            "Change on=, or use missing='fallback'."
        )
        raise DeviceError(listed(headline, faults))


def _choose_substitutes(
    cluster: Cluster,
    found: dict[str, Constraint],
    members: Sequence[tuple[str, ...]],
    seconds: Callable[[str, str], float],
) -> None:
    """Give each missing device one substitute: the least loaded device of its kind.

    Parts that requested the same device stay together, near what near= binds to them.
    """
    load = {device.name: 0.0 for device in cluster}
    near = {name: parts for parts in members for name in parts}
    waiting: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in found.values():
        substituted = one.reason == "fallback" and not one.preferred
        if len(one.allowed) == 1:
            load[one.allowed[0]] += seconds(one.part, one.allowed[0])
        elif substituted and one.unavailable not in KINDS:
            waiting.setdefault((one.unavailable, one.allowed), []).append(one.part)
    before = dict(found)
    for (device, allowed), parts in waiting.items():
        neighbours = [before[other].allowed for part in parts for other in near[part]]
        fixed = [one[0] for one in neighbours if len(one) == 1 and one[0] in allowed]
        substitute = fixed[0] if fixed else min(allowed, key=load.__getitem__)
        kind = substitute.rpartition("/")[2].partition(":")[0]
        detail = f"{device} is not available; the least loaded {kind} is used"
        for part in parts:
            load[substitute] += seconds(part, substitute)
            found[part] = replace(found[part], allowed=(substitute,), detail=detail)


def _groups(
    graph: Graph, found: Mapping[str, Constraint], members: Sequence[tuple[str, ...]]
) -> list[Group]:
    """Intersect what the members of each group may use; nothing left is a conflict."""
    allowed = {name: one.allowed for name, one in found.items()}
    for names in members:
        if not in_all([allowed[name] for name in names]):
            for name in names:  # a merge's default device yields to near=
                if graph.part[name].kind == "merge" and found[name].reason == "merge":
                    del allowed[name]
    if faults := list(conflicts(graph.parts, allowed)):
        raise DeviceError(listed("conflicting placement constraints:", faults))
    number = {name: i for i, parts in enumerate(members) for name in parts}
    apart: list[dict[int, None]] = [{} for _ in members]
    for part in graph.parts:
        for other in part.apart:
            a, b = number[part.name], number[other]
            apart[a][b] = apart[b][a] = None
    return [
        Group(parts, in_all([allowed[p] for p in parts if p in allowed]), tuple(those))
        for parts, those in zip(members, apart)
    ]


def violations(plan: Plan) -> list[str]:
    """Constraints that a placement breaks which a person gave: a line for each."""
    graph, device_of = plan.graph, plan.device_of
    here = {name: (device,) for name, device in device_of.items()}
    broken = list(conflicts(graph.parts, here))
    broken += [
        f"{call.kind} {call.name!r} has no GPU kernel, but is on {device_of[call.part]}"
        for call in graph.calls
        if call.cpu_only and plan.cluster[device_of[call.part]].kind == "gpu"
    ]
    broken += [
        f"{device.name} needs {format_bytes(plan.memory[device.name].total)}, has "
        f"{format_bytes(device.memory_bytes)}"
        for device in plan.cluster
        if plan.memory[device.name].total > device.memory_bytes
    ]
    return broken
