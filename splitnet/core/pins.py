"""What is asked of each part: its declaration, or a pin of the planner's caller."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase

import networkx as nx

from splitnet.core.declare import wishes
from splitnet.core.errors import DeclarationError, DeviceError, listed
from splitnet.core.graph import Graph, Part

__all__ = ["Pins", "asked_of", "near_groups"]

On = str | Sequence[str]
Pins = Mapping[str, On] | Callable[[Part], On | None]


def asked_of(
    graph: Graph, pins: Pins | None
) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The wish of every part, and whether it is a pin of the planner's caller."""
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
    matched: dict[str, list[str]] = {}
    faults: list[str] = []
    for pattern, on in pins.items():
        hits = _hits(graph, str(pattern))
        if not hits:
            faults.append(_no_match(graph, str(pattern)))
        for name in hits:
            if name in pins and not fnmatchcase(name, str(pattern)):
                continue  # another call of the layer, that has a pin of its own
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


def _wishes(what: str, name: str, on: On) -> tuple[str, ...]:
    try:
        return wishes(on)
    except DeviceError as error:
        raise DeviceError(f"{what} {name!r}: {error}") from None


def _hits(graph: Graph, pattern: str) -> list[str]:
    """Parts of which the name, a call's name or a layer's name matches; not inputs."""
    return [
        part.name
        for part in graph.parts
        if part.kind != "input"
        and any(fnmatchcase(name, pattern) for name in _names_of(graph, part))
    ]


def _names_of(graph: Graph, part: Part) -> list[str]:
    calls = graph.calls_of[part.name]
    names = [part.name, *(c.name for c in calls), *(c.layer for c in calls)]
    return [name for name in dict.fromkeys(names) if name]


def _no_match(graph: Graph, pattern: str) -> str:
    names = [
        n
        for part in graph.parts
        if part.kind != "input"
        for n in _names_of(graph, part)
    ]
    names = list(dict.fromkeys(names))
    close = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
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
