"""What was asked of each part, against what the machine has: pins, fallbacks, groups.

The result says for every group of parts which devices it may use. Nothing here knows
seconds or bytes but the choice of the least loaded device for a wish that failed.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from splitnet.core.cluster import KINDS, Cluster, is_kind
from splitnet.core.errors import DeclarationError, DeviceError, listed
from splitnet.core.graph import Graph, Part
from splitnet.planner.pins import Pins, asked_of, near_groups

__all__ = ["MISSING", "Group", "Pins", "Wish", "asked_of", "resolve"]

MISSING = ("fallback", "warn", "error")


@dataclass(frozen=True, slots=True)
class Wish:
    """What one part asked for and may get; `reason` says why it is not what it asked.

    `missing` is the device that was asked and is not here, `why` a
    `Placement.reason`, or "" where the planner is free to choose. `first` are the
    devices of the first wish that can be granted, `second` says whether more wishes
    follow it.
    """

    part: str
    asked: str
    allowed: tuple[str, ...]
    why: str = ""
    missing: str = ""
    reason: str = ""
    first: tuple[str, ...] = ()
    second: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Parts bound to one device by `near`, the devices they may use, and their foes.

    `apart` holds the numbers of the groups that must be elsewhere.
    """

    parts: tuple[str, ...]
    allowed: tuple[str, ...]
    apart: tuple[int, ...] = ()


def resolve(
    graph: Graph,
    cluster: Cluster,
    *,
    pins: Pins | None = None,
    missing: str = "fallback",
    load_of: Callable[[str, str], float] | None = None,
    whole_lists: bool = False,
) -> tuple[dict[str, Wish], list[Group]]:
    """Turn every wish into devices of this cluster, group by group.

    Args:
        graph: Its parts carry the declared wishes.
        cluster: What is here.
        pins: Patterns over the names of parts, calls and layers -> `on=`; or a function
            of the part. A pin beats the declaration.
        missing: What to do about a device that is not here.
        load_of: Seconds that a part takes on a device, to find the least loaded.
        whole_lists: Allow every device of a list of preferences, not only the first
            that is here: for when the first has no room.

    Raises:
        DeclarationError: pins that match twice or nothing.
        DeviceError: a device that is not here and `missing="error"`, or wishes that
            contradict each other; all of them at once.
    """
    if missing not in MISSING:
        raise DeclarationError(
            f"missing= must be one of {', '.join(MISSING)}. Received: {missing!r}."
        )
    asked = asked_of(graph, pins)
    found = {
        part.name: _granted(graph, cluster, part, *asked[part.name], whole_lists)
        for part in graph.parts
    }
    _report(found, cluster, missing)
    members = near_groups(graph)
    if whole_lists:
        found = {name: _with_room(wish) for name, wish in found.items()}
    else:
        found = _share_fallbacks(cluster, found, members, load_of)
    return found, _groups(graph, found, members)


def _granted(
    graph: Graph,
    cluster: Cluster,
    part: Part,
    on: tuple[str, ...],
    pinned: bool,
    whole_lists: bool,
) -> Wish:
    """The first wish that this cluster can grant, before near= is looked at."""
    asked = ", ".join(on)
    if part.kind == "input":
        return Wish(part.name, asked, (cluster.home.name,), "input")
    grants = [(name, *_grant(cluster, name, pinned, part.kind)) for name in on]
    here = [grant for grant in grants if grant[1]]
    if not here:
        return _with_kernels(graph, cluster, part, _orphan(cluster, part, on))
    name, first, why = here[0]
    allowed = first
    if whole_lists:
        allowed = tuple(dict.fromkeys(d for _, devices, _ in here for d in devices))
        why = why if allowed == first else ""
    wish = Wish(part.name, asked, allowed, why, first=first, second=len(here) > 1)
    if grants[0] is not here[0]:
        reason = f"{on[0]} is not here; {name} is next in the list"
        wish = replace(wish, why="fallback", missing=on[0], reason=reason)
    return _with_kernels(graph, cluster, part, wish)


def _orphan(cluster: Cluster, part: Part, on: tuple[str, ...]) -> Wish:
    """Nothing that was asked is here: the same kind takes it, else the CPU."""
    asked, first = ", ".join(on), on[0]
    kind = first if is_kind(first) else first.rpartition("/")[2].partition(":")[0]
    same = tuple(device.name for device in cluster.of_kind(kind))
    if same:
        reason = f"{first} is not here; the least loaded {kind} takes it"
        return Wish(
            *(part.name, asked, same, "fallback", first, reason), second=len(same) > 1
        )
    reason = f"there is no {kind} here"
    return Wish(part.name, asked, (cluster.home.name,), "fallback", first, reason)


def _grant(
    cluster: Cluster, name: str, pinned: bool, kind: str
) -> tuple[tuple[str, ...], str]:
    """The devices that one word of a wish means here, and why a part would be there."""
    if name == "auto":
        return tuple(device.name for device in cluster), ""
    if name in KINDS:
        same = tuple(device.name for device in cluster.of_kind(name))
        default = kind == "merge" and not pinned and name == "cpu"
        return same, ("merge" if default else "preference") if len(same) == 1 else ""
    return ((name,) if name in cluster else ()), "pin"


def _with_kernels(graph: Graph, cluster: Cluster, part: Part, wish: Wish) -> Wish:
    """A call without a GPU kernel keeps its part on a CPU."""
    stuck = [call for call in graph.calls_of[part.name] if call.cpu_only]
    if not stuck:
        return wish
    cpus = tuple(device.name for device in cluster.of_kind("cpu"))
    if not cpus:
        raise DeviceError(
            f"part {part.name!r} has a call without a GPU kernel ({stuck[0].name}, "
            f"{stuck[0].kind}), and there is no CPU among "
            f"{', '.join(d.name for d in cluster)}. Add 'cpu' to the cluster."
        )
    kept = tuple(name for name in wish.allowed if name in cpus)
    asked_gpu = "gpu" in wish.asked
    if kept and not asked_gpu:
        return replace(wish, allowed=kept, why=wish.why or "no kernel", first=())
    reason = f"{stuck[0].kind} {stuck[0].name!r} has no GPU kernel"
    missing = wish.asked.partition(", ")[0] if asked_gpu else ""
    return Wish(wish.part, wish.asked, kept or cpus, "no kernel", missing, reason)


def _report(found: Mapping[str, Wish], cluster: Cluster, missing: str) -> None:
    """Refuse, or warn about, devices that are not here."""
    gone = [w for w in found.values() if w.missing and w.why == "fallback"]
    if not gone or missing == "fallback":
        return
    here = ", ".join(device.name for device in cluster)
    if missing == "error":
        faults = [f"part {w.part!r} asks for {w.asked}" for w in gone]
        raise DeviceError(
            listed(
                f"not every device that is asked for is here (here: {here}). Change "
                "on=, or say missing='fallback'.",
                faults,
            )
        )
    parts = ", ".join(f"{w.part} ({w.missing})" for w in gone)
    warnings.warn(
        f"some parts ask for devices that are not here and fall back: {parts}. "
        f"Here: {here}.",
        stacklevel=4,
    )


def _with_room(wish: Wish) -> Wish:
    """A wish whose heir has no room may go to any of the kind."""
    reason = wish.reason.replace("the least loaded", "one with room of kind")
    return replace(wish, reason=reason)


def _share_fallbacks(
    cluster: Cluster,
    found: dict[str, Wish],
    members: Sequence[tuple[str, ...]],
    load_of: Callable[[str, str], float] | None,
) -> dict[str, Wish]:
    """Give each device that is not here one heir: the least loaded of its kind.

    Parts that asked for one device stay together, as their author meant them to be.
    """
    seconds = load_of or (lambda part, device: 1.0)
    load = {device.name: 0.0 for device in cluster}
    group = {name: parts for parts in members for name in parts}
    for wish in found.values():
        if len(wish.allowed) == 1:
            load[wish.allowed[0]] += seconds(wish.part, wish.allowed[0])
    orphans: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for wish in found.values():
        named = wish.missing and not is_kind(wish.missing)
        if named and len(wish.allowed) > 1 and "the least loaded" in wish.reason:
            orphans.setdefault((wish.missing, wish.allowed), []).append(wish.part)
    result = dict(found)
    for (_, allowed), parts in orphans.items():
        anchors = [
            found[other].allowed[0]
            for part in parts
            for other in group[part]
            if len(found[other].allowed) == 1 and found[other].allowed[0] in allowed
        ]
        heir = anchors[0] if anchors else min(allowed, key=load.__getitem__)
        for part in parts:
            load[heir] += seconds(part, heir)
            result[part] = replace(found[part], allowed=(heir,))
    return result


def _groups(
    graph: Graph,
    found: dict[str, Wish],
    members: Sequence[tuple[str, ...]],
) -> list[Group]:
    """Intersect what the members of each group may use; none is a contradiction."""
    number = {name: i for i, parts in enumerate(members) for name in parts}
    foes: list[dict[int, None]] = [{} for _ in members]
    faults: list[str] = []
    for part in graph.parts:
        for other in part.apart:
            a, b = number[part.name], number[other]
            foes[a][b] = foes[b][a] = None
            if a == b:
                faults.append(
                    f"{part.name!r} must be apart from {other!r}, but near= binds them"
                )
    groups = []
    for i, parts in enumerate(members):
        allowed = _common(graph, found, parts)
        if not allowed:
            wants = "; ".join(f"{p!r} on {', '.join(found[p].allowed)}" for p in parts)
            faults.append(f"near= binds parts that cannot share a device: {wants}")
        groups.append(Group(parts, allowed, tuple(foes[i])))
    faults += [
        f"{a.parts[0]!r} must be apart from {groups[j].parts[0]!r}, but both can only "
        f"be on {a.allowed[0]}"
        for i, a in enumerate(groups)
        for j in a.apart
        if i < j and len(a.allowed) == 1 and a.allowed == groups[j].allowed
    ]
    if faults:
        raise DeviceError(listed("these wishes contradict each other.", faults))
    return groups


def _common(
    graph: Graph, found: Mapping[str, Wish], parts: Sequence[str]
) -> tuple[str, ...]:
    """Devices that all members may use; a merge's default home yields to near=."""
    firm = [
        found[p].allowed
        for p in parts
        if not (graph.part[p].kind == "merge" and found[p].why == "merge")
    ]
    everyone = [found[p].allowed for p in parts]
    for lists in (everyone, firm):
        if lists:
            common = tuple(d for d in lists[0] if all(d in other for other in lists))
            if common:
                return common
    return ()
