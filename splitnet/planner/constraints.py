"""Placement constraints: `on=`, `near=`, `apart=` and pins, resolved for one cluster.

Each part requests devices in order of preference, in its declaration or by a pin. The
result says for every group of parts that share a device which devices it may use.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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

_RANGE_RANK = 50
"""Of a range of calls: less specific than a call, more so than a layer's name."""
_MOST_UNKNOWN = 12


@dataclass(frozen=True, slots=True)
class Constraint:
    """The devices that one part may use on a cluster, and why.

    `reason` is a `Placement.reason`, or "" where the planner is free to choose.
    `preferred` are the devices of the first request that is available; a substitute has
    none. `unavailable` is a first request that is not, and `detail` says what is used
    instead, and why.
    """

    part: Part
    allowed: tuple[str, ...]
    reason: str
    preferred: tuple[str, ...] = ()
    unavailable: str = ""
    detail: str = ""


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
    missing: str = "fallback",
    whole_lists: bool = False,
) -> tuple[dict[str, Constraint], list[Group]]:
    """Turn requests into devices of this cluster, part by part and group by group.

    Args:
        graph: Its parts carry the requests; see `with_pins`.
        cluster: The available devices.
        load_of: Seconds that a part takes on a device, to find the least loaded.
        missing: What to do if no requested device is available: "fallback" (a
            substitute, recorded) or "error".
        whole_lists: Allow every device of a preference list, not only the first that is
            available. Used when the first is full.

    Raises:
        DeviceError: missing devices under `missing="error"`, or constraints that
            contradict each other; all of them at once.
    """
    found = {
        part.name: _constraint(graph, cluster, part, whole_lists)
        for part in graph.parts
    }
    substitutes = [
        one for one in found.values() if one.reason == "fallback" and not one.preferred
    ]
    if substitutes and missing == "error" and not whole_lists:
        names = ", ".join(device.name for device in cluster)
        headline = (
            f"not every requested device is available (available: {names}). Change "
            "on=, or use missing='fallback'."
        )
        faults = (
            f"part {one.part.name!r} requests {', '.join(one.part.on)}"
            for one in substitutes
        )
        raise DeviceError(listed(headline, faults))
    members = near_groups(graph.parts)
    if not whole_lists:
        _choose_substitutes(substitutes, found, members, load_of)
    return found, _groups(graph, found, members)


def with_pins(graph: Graph, pins: Pins | None) -> Graph:
    """The graph whose parts request what pins say; a pin beats the declaration.

    Pins are a table of names and patterns, a function of the part, or a plan: the
    devices of its parts, or of its calls if its parts are others.

    Raises:
        DeclarationError: pins of another type, or as `select`.
        DeviceError: an impossible device name.
    """
    inputs = {part.name for part in graph.parts if part.kind == "input"}
    if isinstance(pins, DeviceOf):
        pins = pins.plan
    table: dict[str, On] = {}
    if isinstance(pins, Plan):
        table = dict(pins.device_of)
        if not graph.part.keys() - inputs <= table.keys():
            table = {call.name: table[call.part] for call in pins.graph.calls}
        table = {name: on for name, on in table.items() if name not in inputs}
    elif callable(pins):
        wanted = {p.name: pins(p) for p in graph.parts if p.name not in inputs}
        table = {name: on for name, on in wanted.items() if on is not None}
    elif isinstance(pins, Mapping | None):
        table = {
            name: on
            for name, on in (pins or {}).items()
            if name not in inputs or not str(on).startswith("cpu")
        }
    else:
        raise DeclarationError(
            "pins= must be a table of patterns, such as {'block1_*': 'gpu:0'}, a "
            f"function of a part, or a plan or its file. Received: {pins!r}."
        )
    keys = {name: name for name in table} if callable(pins) else select(graph, table)
    on_of: dict[str, tuple[str, ...]] = {}
    for part, key in keys.items():
        try:
            on_of[part] = preferences(table[key])
        except DeviceError as error:
            raise DeviceError(f"pin {key!r}: {error}") from None
    parts = tuple(replace(p, on=on_of.get(p.name, p.on)) for p in graph.parts)
    return replace(graph, parts=parts) if on_of else graph


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
    patterns = [key for key in table if set("*?[") & set(str(key))]
    used: set[str] = set()
    selected: dict[str, str] = {}
    faults: list[str] = []
    for part, known in names.items():
        exact = {key: rank for key, rank in known.items() if key in table}
        like = [key for key in patterns if any(fnmatchcase(n, key) for n in known)]
        used.update(exact, like)
        best = [key for key in exact if exact[key] == min(exact.values())]
        if len({str(table[key]) for key in best}) > 1:
            faults.append(
                f"part {part!r} is placed whole, but {' and '.join(best)} in it have "
                "different devices"
            )
        for key in (best or like)[:1]:
            selected[part] = key
    unknown = [key for key in table if key not in used]
    faults += [_unknown(graph, names, str(key)) for key in unknown[:_MOST_UNKNOWN]]
    if faults:
        raise DeclarationError(listed("these names cannot be placed:", faults))
    return selected


def _names(graph: Graph, table: Iterable[str]) -> dict[str, dict[str, int]]:
    """The names that mean each part, ranges among the keys of a table included."""
    names = {p.name: names_of(graph, p) for p in graph.parts if p.kind != "input"}
    for key in table:
        first, _, last = str(key).partition(" .. ")
        if key not in names and {first, last} <= graph.call.keys():
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
        return f"range {key!r} holds no call: no way leads from its first to its last"
    known = list(dict.fromkeys(name for each in names.values() for name in each))
    folded = {name.casefold(): name for name in reversed(known)}
    close = difflib.get_close_matches(key.casefold(), folded, n=3, cutoff=0.5)
    if close:
        hint = f"did you mean {' or '.join(repr(folded[name]) for name in close)}?"
    else:
        hint = f"the parts are {', '.join(known[:8])}{' ...' * (len(known) > 8)}"
    return f"pattern {key!r} matches no part, call or layer; {hint}"


def fallbacks_of(
    constraints: Mapping[str, Constraint], device_of: Mapping[str, str]
) -> tuple[Fallback, ...]:
    """Every part that is not on its first request, in order of declaration."""
    fallbacks = []
    for name, one in constraints.items():
        assigned, first = device_of[name], one.part.on[0]
        if one.unavailable:
            fallbacks.append(Fallback(name, one.unavailable, assigned, one.detail))
        elif one.preferred and assigned not in one.preferred:
            reason = f"{first} is full; {assigned} is next in the list"
            fallbacks.append(Fallback(name, first, assigned, reason))
    return tuple(fallbacks)


def _constraint(
    graph: Graph, cluster: Cluster, part: Part, whole_lists: bool
) -> Constraint:
    """What the requests of one part allow, before near= is considered.

    A call without a GPU kernel keeps its part on a CPU.
    """
    home, first = (cluster.home.name,), (part.on or ("auto",))[0]
    if part.kind == "input":
        return Constraint(part, home, "input")
    bound = next((call for call in graph.calls_of[part.name] if call.cpu_only), None)
    usable = {d.name for d in cluster if d.kind == "cpu" or not bound}
    if bound and not usable:
        raise DeviceError(
            f"part {part.name!r} has a call without a GPU kernel ({bound.name}, "
            f"{bound.kind}), and there is no CPU among "
            f"{', '.join(d.name for d in cluster)}. Add 'cpu' to the cluster."
        )
    lists = {name: _devices(cluster, name, usable) for name in (first, *part.on)}
    here = [name for name in lists if lists[name]]
    kind = first.rpartition("/")[2].partition(":")[0]
    if here:
        preferred = allowed = lists[here[0]]
        if whole_lists:
            allowed = tuple(dict.fromkeys(d for name in here for d in lists[name]))
        detail = f"{first} is not available; {here[0]} is next in the list"
    else:
        preferred = ()
        allowed = _devices(cluster, "cpu" if bound else kind, usable) or home
        detail = f"{first} is not available; a {kind} with enough memory is used"
        if not _devices(cluster, kind, usable):
            detail = f"there is no {kind} available"
    if bound and kind != "cpu":
        detail = f"{bound.kind} {bound.name!r} has no GPU kernel"
        lacking = first if kind == "gpu" else ""
        return Constraint(part, allowed, "no kernel", (), lacking, detail)
    if first not in here:
        return Constraint(part, allowed, "fallback", preferred, first, detail)
    reason = ""
    if allowed == preferred and first not in (*KINDS, "auto"):
        reason = "pin"
    elif allowed == preferred and len(allowed) == 1 and first in KINDS:
        reason = "merge" if (part.kind, first) == ("merge", "cpu") else "preference"
    return Constraint(part, allowed, reason, preferred)


def _devices(cluster: Cluster, name: str, usable: Collection[str]) -> tuple[str, ...]:
    """The devices that a request means, none if there are no such devices."""
    if name == "auto":
        meant = [device.name for device in cluster.free_devices]
    elif name in KINDS:
        meant = [device.name for device in cluster.of_kind(name)]
    else:
        meant = [name] if name in cluster else []
    return tuple(device for device in meant if device in usable)


def _choose_substitutes(
    substitutes: Iterable[Constraint],
    found: dict[str, Constraint],
    members: Sequence[tuple[str, ...]],
    seconds: Callable[[str, str], float],
) -> None:
    """Give each missing device one substitute: the least loaded device of its kind.

    Parts that requested the same device stay together, near what near= binds to them.
    """
    load: dict[str, float] = {}
    for one in found.values():
        if len(one.allowed) == 1:
            [device] = one.allowed
            load[device] = load.get(device, 0.0) + seconds(one.part.name, device)
    near = {name: parts for parts in members for name in parts}
    waiting: dict[str, list[Constraint]] = {}
    for one in substitutes:
        if len(one.allowed) > 1 and one.unavailable not in KINDS:
            waiting.setdefault(one.unavailable, []).append(one)
    for device, those in waiting.items():
        allowed = those[0].allowed
        bound = [found[name].allowed for one in those for name in near[one.part.name]]
        fixed = [name for name, *others in bound if not others and name in allowed]
        substitute = [*fixed, min(allowed, key=lambda name: load.get(name, 0.0))][0]
        kind = substitute.rpartition("/")[2].partition(":")[0]
        detail = f"{device} is not available; the least loaded {kind} is used"
        for one in those:
            spent = seconds(one.part.name, substitute)
            load[substitute] = load.get(substitute, 0.0) + spent
            found[one.part.name] = replace(one, allowed=(substitute,), detail=detail)


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
    kernels = (
        f"{call.kind} {call.name!r} has no GPU kernel, but is on {device_of[call.part]}"
        for call in graph.calls
        if call.cpu_only and plan.cluster[device_of[call.part]].kind == "gpu"
    )
    room = (
        f"{device.name} needs {format_bytes(plan.memory[device.name].total)}, has "
        f"{format_bytes(device.memory_bytes)}"
        for device in plan.cluster
        if plan.memory[device.name].total > device.memory_bytes
    )
    here = {name: (device,) for name, device in device_of.items()}
    return [*conflicts(graph.parts, here), *kernels, *room]
