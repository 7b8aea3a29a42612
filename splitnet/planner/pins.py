"""What is asked of each part: its declaration, or a pin of the planner's caller."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import networkx as nx

from splitnet.core.errors import DeclarationError, DeviceError, listed
from splitnet.core.graph import Graph, Part
from splitnet.core.net import preferences

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["Pins", "asked_of", "near_groups", "pins_of"]

On = str | Sequence[str]
Pins = Mapping[str, On] | Callable[[Part], On | None]


def asked_of(
    graph: Graph, pins: Pins | None
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The wish of every part, and whether it is a pin of the planner's caller.

    Raises:
        DeclarationError: pins of another kind, patterns that match nothing or the same.
        DeviceError: no name of a device.
    """
    declared = {
        part.name: (_wishes("part", part.name, part.on), False) for part in graph.parts
    }
    if pins is None:
        return declared
    if callable(pins):
        for part in graph.parts:
            on = pins(part)
            if on is not None:
                declared[part.name] = (_wishes("pin", part.name, on), True)
        return declared
    if not isinstance(pins, Mapping):
        raise DeclarationError(
            "pins= must be a table of patterns, such as {'block1_*': 'gpu:0'}, a "
            f"function of a part, or a plan or its file. Received: {pins!r}."
        )
    matched: dict[str, list[str]] = {}
    faults: list[str] = []
    for pattern, on in pins.items():
        hits = _hits(graph, str(pattern))
        if not hits:
            faults.append(_no_match(graph, str(pattern)))
        for name in hits:
            own = _own_names(graph, graph.part[name])
            if any(n in pins for n in own) and not _any_fits(own, str(pattern)):
                continue  # another call of the layer or model, with a pin of its own
            matched.setdefault(name, []).append(str(pattern))
            declared[name] = (_wishes("pin", str(pattern), on), True)
    faults += [
        f"part {name!r} is matched by {' and '.join(map(repr, patterns))}; write "
        "patterns of which one matches"
        for name, patterns in matched.items()
        if len(patterns) > 1
    ]
    if faults:
        raise DeclarationError(listed("these pins cannot be kept.", faults))
    return declared


def pins_of(plan: "Plan", graph: Graph) -> Pins:
    """The devices of another plan as pins: of its parts, or else of its calls.

    A part of the graph that the other plan does not have is free.

    Raises:
        DeclarationError: the plan has names that the graph does not have.
    """
    mine = [part.name for part in graph.parts if part.kind != "input"]
    inputs = [part.name for part in graph.parts if part.kind == "input"]
    table = dict(plan.device_of)
    if not all(name in table for name in mine):
        table = {call.name: table[call.part] for call in plan.graph.calls}
    here = {name: name for name in [*mine, *inputs]}
    faults = [_no_match(graph, name) for name in table if name not in here]
    if faults:
        raise DeclarationError(
            listed(f"the plan of {plan.graph.name!r} cannot be kept.", faults[:12])
        )
    return lambda part: None if part.kind == "input" else table.get(part.name)


def _wishes(what: str, name: str, on: On) -> tuple[str, ...]:
    try:
        return preferences(on)
    except DeviceError as error:
        raise DeviceError(f"{what} {name!r}: {error}") from None


def _hits(graph: Graph, pattern: str) -> list[str]:
    """Parts of which a name matches; not inputs."""
    return [
        part.name
        for part in graph.parts
        if part.kind != "input" and _any_fits(_names_of(graph, part), pattern)
    ]


def _any_fits(names: list[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _names_of(graph: Graph, part: Part) -> list[str]:
    """Names of a part, its calls, their layers, and the opened models they are in."""
    calls = graph.calls_of[part.name]
    own = _own_names(graph, part)
    bare = ["/".join(s.partition("@")[0] for s in name.split("/")) for name in own[1:]]
    names = [*own, *(c.name for c in calls), *(c.layer for c in calls), *bare]
    return [name for name in dict.fromkeys(names) if name]


def _own_names(graph: Graph, part: Part) -> list[str]:
    """A part's name, and the opened models, call by call, that it is in."""
    names = [part.name]
    for call in graph.calls_of[part.name]:
        steps = call.name.split("/")
        names += ["/".join(steps[:end]) for end in range(1, len(steps))]
    return list(dict.fromkeys(names))


def _no_match(graph: Graph, pattern: str) -> str:
    names = [
        n
        for part in graph.parts
        if part.kind != "input"
        for n in _names_of(graph, part)
    ]
    names = list(dict.fromkeys(names))
    folded = {name.casefold(): name for name in reversed(names)}
    close = difflib.get_close_matches(pattern.casefold(), folded, n=3, cutoff=0.5)
    close = [folded[name] for name in close]
    if any(p.name == pattern for p in graph.parts):
        return f"{pattern!r} is an input; inputs are fed from the host, never pinned"
    hint = (
        f"did you mean {' or '.join(map(repr, close))}?"
        if close
        else (f"the parts are {', '.join(names[:8])}{' ...' if len(names) > 8 else ''}")
    )
    return f"pattern {pattern!r} matches no part, call or layer; {hint}"


def near_groups(graph: Graph) -> list[tuple[str, ...]]:
    """Parts bound by near=, in order of declaration."""
    bound = nx.utils.UnionFind([part.name for part in graph.parts])
    for part in graph.parts:
        for other in part.near:
            bound.union(part.name, other)
    members: dict[str, list[str]] = {}
    for part in graph.parts:
        members.setdefault(bound[part.name], []).append(part.name)
    return [tuple(parts) for parts in members.values()]
