"""Placement constraints: `on=`, `near=`, `apart=` and pins, resolved for one cluster.

Each part requests devices in order of preference, in its declaration or by a pin.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from itertools import chain
from typing import Any

import networkx as nx

from splitnet.core.cluster import KINDS, Cluster
from splitnet.core.errors import DeclarationError, DeviceError, collected, format_bytes
from splitnet.core.graph import Graph, Part, conflicts, in_all, names_of, near_groups
from splitnet.core.net import preferences
from splitnet.core.plan import Fallback, Plan
from splitnet.simulator.memory import lacking_bytes

On = str | Sequence[str]
Pins = Mapping[str, On] | Callable[[Part], On | None] | Plan

_RANGE_RANK = 50  # a range is less specific than a call, more so than a layer's name
_MOST_UNKNOWN = 12


@dataclass(frozen=True, slots=True)
class Group:
    """Parts bound to one device by `near=`, and the devices that they may use.

    `apart` holds the numbers of the groups that must be on other devices.
    """

    parts: tuple[str, ...]
    allowed: tuple[str, ...]
    apart: tuple[int, ...] = ()


class Request:
    """The devices that a part requests: `lists` has those for each name in its `on=`.

    `here` are the names that have any, `others` the devices to use if none has. A call
    without a GPU kernel keeps its part on a CPU.
    """

    def __init__(self, graph: Graph, cluster: Cluster, part: Part) -> None:
        self.part, self.first, self.graph = part, (part.on or ("auto",))[0], graph
        self.kind = self.first.rpartition("/")[2].partition(":")[0]
        calls, home = graph.calls_of[part.name], cluster.home.name
        self.bound = next((call for call in calls if call.cpu_only), None)
        usable = [d.name for d in cluster if d.kind == "cpu" or not self.bound]
        if self.bound and not usable:
            call = f"a call without a GPU kernel ({self.bound.name}, {self.bound.kind})"
            lacks = f"there is no CPU among {', '.join(cluster.names)}"
            fault = f"part {part.name!r} has {call}, and {lacks}"
            raise DeviceError(f"{fault}. Add 'cpu' to the cluster.")

        def devices(name: str) -> tuple[str, ...]:
            those = cluster.of_kind(name) if name in KINDS else ()
            those = cluster.free_devices if name == "auto" else those
            meant = [device.name for device in those] or [name] * (name in cluster)
            return tuple(device for device in meant if device in usable)

        self.lists = {name: devices(name) for name in (self.first, *part.on)}
        if part.kind == "input":
            self.lists = {self.first: (home,)}
        self.here = [name for name in self.lists if self.lists[name]]
        spare = devices("auto") or tuple(usable)
        spare = (home,) if home in spare and not (self.bound or part.apart) else spare
        self.others = devices(self.kind) or spare
        # A merge on the CPU by default yields to near=.
        self.yields = part.kind == "merge" and part.on == ("cpu",)

    def allowed(self, *, in_full: bool = False) -> tuple[str, ...]:
        """The devices of the first name that has any, or of all names."""
        names = self.here if in_full else self.here[:1]
        devices = dict.fromkeys(d for name in names for d in self.lists[name])
        return tuple(devices) or self.others

    def reason(self, device: str) -> tuple[str, str]:
        """The reason of a placement, "" where all is free, and that of a fallback."""
        first, devices = self.first, self.lists[self.first]
        if self.part.kind == "input":
            return "input", ""
        if self.bound and self.kind != "cpu":
            text = f"{self.bound.kind} {self.bound.name!r} has no GPU kernel"
            return "no kernel", text if self.kind == "gpu" else ""
        if device in devices and first not in (*KINDS, "auto"):
            return "pin", ""
        if device in devices:
            usual = "merge" if self.yields else "preference"
            return usual if len(devices) == 1 and first in KINDS else "", ""
        if self.yields:
            return "near", ""
        listed = [name for name in self.here if device in self.lists[name]]
        if devices:  # not listed: the client's CPU, where a strategy joins towers
            ties = ((p.name, *p.near, *p.apart) for p in self.graph.parts)
            tied = any(self.part.name in names for names in ties if len(names) > 1)
            why = "is full" + " or ruled out by near= or apart=" * tied
            return "", f"{first} {why}; {device} is next in the list" * bool(listed)
        text = f"there is no {self.kind} available"
        if device.rpartition("/")[2].startswith(self.kind):
            text = f"{first} is not available; another {self.kind} is used"
        if listed:
            text = f"{first} is not available; {listed[0]} is next in the list"
        return "fallback", text


def resolve(
    graph: Graph, cluster: Cluster, *, missing: str = "fallback", in_full: bool = False
) -> list[Group]:
    """Turn the requests of parts into devices that groups of parts may use.

    If no requested device is available, `missing` is "fallback" (others of its kind) or
    "error". With `in_full`, for when first requests are full or conflict, every
    device of a list is allowed, and what requested one missing device may be apart.
    """
    requests = {part.name: Request(graph, cluster, part) for part in graph.parts}
    allowed = {n: one.allowed(in_full=in_full) for n, one in requests.items()}
    lacking = {name: one.first for name, one in requests.items() if not one.here}
    if lacking and missing == "error":
        available = ", ".join(cluster.names)
        fault = f"not every requested device is available (available: {available})."
        faults = (f"part {n!r} requests {', '.join(graph.part[n].on)}" for n in lacking)
        raise DeviceError(f"{fault} Change on=, or use missing='fallback'.", faults)
    lone = {p: d for p, d in lacking.items() if d and d not in KINDS and not in_full}
    first = {device: part for part, device in reversed(lone.items())}
    near = {part: (first[device],) for part, device in lone.items()}
    bound = [replace(p, near=(*p.near, *near.get(p.name, ()))) for p in graph.parts]
    members = near_groups(bound)
    for group in members:
        if not in_all([allowed[name] for name in group]):
            for name in filter(lambda name: requests[name].yields, group):
                del allowed[name]
    if broken := list(conflicts(bound, allowed)):
        if not in_full:
            return resolve(graph, cluster, missing=missing, in_full=True)
        raise DeviceError("conflicting placement constraints:", broken)
    number = {name: i for i, parts in enumerate(members) for name in parts}
    apart: list[dict[int, None]] = [{} for _ in members]
    for a, b in ((number[p.name], number[q]) for p in graph.parts for q in p.apart):
        apart[a][b] = apart[b][a] = None
    common = (in_all([allowed[p] for p in its if p in allowed]) for its in members)
    return [Group(p, on, tuple(a)) for p, on, a in zip(members, common, apart)]


def with_pins(graph: Graph, pins: Pins | None) -> Graph:
    """The graph whose parts request what pins say; a pin beats the declaration.

    Pins are a table of names and patterns, a function of the part, or a plan: the
    devices of its parts, or of its calls if its parts are others.
    """
    inputs = {part.name for part in graph.parts if part.kind == "input"}
    table: dict[str, Any]
    if isinstance(pins, Plan):
        table = dict(pins.device_of)
        if not graph.part.keys() - inputs <= table.keys():
            if pins.graph.towers:
                why = "parts of this plan are towers. Emit or score it, or use towers=N"
                raise DeclarationError(f"pins=: a pin has one device, and {why}.")
            its = pins.graph  # maybe of the same model, built before
            own = graph if its.uncounted == graph.uncounted else its
            table = {a.name: table[b.part] for a, b in zip(own.calls, its.calls)}
    elif callable(pins):
        asked = ((p.name, pins(p)) for p in graph.parts if p.name not in inputs)
        table = {name: on for name, on in asked if on is not None}
    else:
        table = dict(pins or {})
    for name in inputs & table.keys():  # an input may be pinned to where it is
        if isinstance(pins, Plan) or str(table[name]).startswith("cpu"):
            del table[name]
    keys = dict(zip(table, table)) if callable(pins) else select(graph, table)
    requests, faults = dict[str, Any](), list[str]()
    for part, key in keys.items():
        with collected(faults, f"pin {key!r}: "):
            requests[part] = {"on": preferences(table[key]), "pinned": True}
    if faults:
        raise DeviceError("these pins cannot be used:", dict.fromkeys(faults))
    parts = tuple(replace(p, **requests.get(p.name, {})) for p in graph.parts)
    return replace(graph, parts=parts) if requests else graph


def select(graph: Graph, table: Mapping[str, object]) -> dict[str, str]:
    """The key of a table of names and patterns that applies to each part but inputs.

    A name beats a pattern, and a more specific name a less specific one: a part, then a
    call, a model inside the model, a range of calls "a, b .. c" (those on paths from a
    or b to c; ".. c": from any), what names of calls begin with ("block1" of
    "block1_conv") if nothing else has that name, a layer; of patterns the first match.
    """
    names = {p.name: names_of(graph, p) for p in graph.parts if p.kind != "input"}
    taken, order = {*chain(*names.values())}, cache(graph.networkx)
    for key in (key for key in table if key not in taken):
        begun = {call for call in graph.call if call.startswith(f"{key}_")}
        for call in _in_range(order, str(key)) or begun:
            names.get(graph.call[call].part, {})[key] = _RANGE_RANK
    patterns = [key for key in table if set("*?[") & set(str(key))]
    used, selected, faults = set[str](), dict[str, str](), list[str]()
    for part, known in names.items():
        exact = {key: rank for key, rank in known.items() if key in table}
        like = [key for key in patterns if any(fnmatchcase(n, key) for n in known)]
        used.update(exact, like)
        best = [key for key in exact if exact[key] == min(exact.values())]
        if len({str(table[key]) for key in best}) > 1:
            its = f"{' and '.join(best)} in it have different devices"
            faults.append(f"part {part!r} is placed whole, but {its}")
        for key in (best or like)[:1]:
            selected[part] = key
    unknown = [key for key in table if key not in used]
    faults += [_unknown(graph, names, str(key)) for key in unknown[:_MOST_UNKNOWN]]
    if faults:
        raise DeclarationError("these names cannot be placed:", faults)
    return selected


def _in_range(order: Callable[[], "nx.DiGraph[str]"], key: str) -> set[str]:
    """The calls of a range, or a list; none if the name is not that of such calls."""
    sides = f" {key} ".split(" .. ")
    if len(sides) != 2:
        ends = {*key.split(", ")}
        return ends if len(ends) > 1 and ends <= order().nodes.keys() else set()
    graph = order()
    found = {*graph}
    for side, reach in zip(sides, (nx.descendants, nx.ancestors)):
        ends = {name for name in side.strip().split(", ") if name}
        if not ends <= graph.nodes.keys():
            return set()
        found &= ends.union(*(reach(graph, end) for end in ends)) or {*graph}
    return found


def _unknown(graph: Graph, names: Mapping[str, Mapping[str, int]], key: str) -> str:
    """A name or pattern that matches no part, with what may have been meant."""
    if key in graph.part:
        return f"{key!r} is an input; inputs are fed from the host, never pinned"
    if " .. " in f" {key} ":
        ends = map(str.strip, key.replace("..", ",").split(","))
        lacks = [end for end in ends if end and end not in graph.call]
        why = f"there is no call {lacks[0]!r}" if lacks else "no path joins its ends"
        return f"range {key!r} holds no call: {why}"
    known = dict.fromkeys(name for each in names.values() for name in each)
    folded = {name.casefold(): name for name in reversed(known)}
    close = difflib.get_close_matches(key.casefold(), folded, n=3, cutoff=0.5)
    hint = f"the names are {', '.join([*known][:8])}{' ...' * (len(known) > 8)}"
    if close:
        hint = f"did you mean {' or '.join(repr(folded[name]) for name in close)}?"
    return f"pattern {key!r} matches no part, call or layer; {hint}"


def fallbacks_of(
    graph: Graph, cluster: Cluster, device_of: Mapping[str, str]
) -> tuple[Fallback, ...]:
    """Every part that is not on its first request, in order of declaration."""
    return tuple(
        Fallback(part.name, part.on[0], device_of[part.name], text)
        for part in graph.parts
        if (text := Request(graph, cluster, part).reason(device_of[part.name])[1])
    )


def violations(plan: Plan) -> list[str]:
    """The user's constraints that a placement breaks, a line for each."""
    graph, device_of, cluster = plan.graph, plan.device_of, plan.cluster
    kernels = (
        f"{call.kind} {call.name!r} has no GPU kernel, but is on {device_of[call.part]}"
        for call in graph.calls
        if call.cpu_only and cluster[device_of[call.part]].kind == "gpu"
    )
    room = (
        f"{name} needs {format_bytes(plan.memory[name].total)}, has "
        f"{format_bytes(cluster[name].memory_bytes)}"
        for name in lacking_bytes(cluster, plan.memory)
    )
    here = {name: (device,) for name, device in device_of.items()}
    return [*conflicts(graph.parts, here), *kernels, *room]
