"""Match a plan with the source that it is used for, by structure and shapes.

Names that Keras counts on (`dense_3`, `not_equal_4`) differ each time a model is built,
so calls are matched by what they are, read and feed. A source of another structure is
refused with what differs.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

from splitnet.core.errors import DeclarationError, listed
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.plan import Plan
from splitnet.core.replication import fold, towers_in
from splitnet.tf.reading.flatten import Blueprint, Site
from splitnet.tf.reading.read import structure_of
from splitnet.tf.reading.source import blueprint_of, sized

_SAID = 12  # differences in an error


def planned_blueprint(source: Any, plan: Plan) -> Blueprint:
    """The source's blueprint, its nested models expanded as the plan's calls are."""
    expanded = any("/" in call.name for call in fold(plan.graph, bare=True))
    return blueprint_of(source, "expand" if expanded else "keep")


def planned_sites(blueprint: Blueprint, plan: Plan) -> list[Site]:
    """The source's calls under the names and parts that the plan gave them.

    Raises:
        DeclarationError: the plan was made from another model; says what differs.
    """
    graph, towers = plan.graph, towers_in(plan.graph)
    whole = bool(towers) and not blueprint.towers
    calls = fold(graph, bare=whole)
    source = structure_of(sized(blueprint), graph.batch)
    # A plan does not have the connections inside of towers.
    planned = _seen(calls, graph, connected=not towers)
    here = _seen(source.calls, source, connected=not towers)
    faults = []
    if blueprint.declared and not whole:
        faults = _changes(
            _branches(graph.parts, towers), _branches(blueprint.parts, towers)
        )
    numbers = _same_structure(planned, here)
    if numbers is None:
        faults += _changes(_lines(planned), _lines(here)) or [
            "its calls are connected otherwise"
        ]
    if faults:
        more = [f"and {len(faults) - _SAID} more"] if len(faults) > _SAID else []
        raise DeclarationError(
            listed(
                f"the plan of {graph.name!r} was not made from model "
                f"{blueprint.name!r}: plan it again, or emit what was planned.",
                [*faults[:_SAID], *more],
            )
        )
    nodes = [blueprint.sites[number].node for number in numbers or ()]
    return [Site(call.name, call.part, node) for call, node in zip(calls, nodes)]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call of a plan or of a model; `reads` are (number of a call, its output)."""

    name: str
    text: str
    reads: list[tuple[int, int]]


def _seen(calls: Sequence[Call], graph: Graph, *, connected: bool) -> list[_Seen]:
    """What each call is and reads, whatever its batch."""
    shapes = {weight.name: weight.shape for weight in graph.weights}
    number = {call.name: i for i, call in enumerate(calls)}
    reads: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for tensor in graph.tensors if connected else ():
        reads[tensor.target].add((number[tensor.source], tensor.index))
    found = []
    for call in calls:
        outputs = zip(call.output_dtypes, call.output_shapes)
        made = ", ".join(f"{dtype}{tuple(shape[1:])}" for dtype, shape in outputs)
        own = ", ".join(map(str, sorted(shapes[name] for name in call.weights)))
        text = f"{f'{call.kind} {call.settings}'.rstrip()}, outputs {made}"
        text += f", weights {own}" if own else ""
        found.append(_Seen(call.name, text, sorted(reads[call.name])))
    return found


def _same_structure(
    planned: Sequence[_Seen], here: Sequence[_Seen]
) -> list[int] | None:
    """For each planned call the number of that which is, reads and feeds the same.

    Calls are taken in running order; of several that fit, the one of the same name or
    else the first is taken. None if some call has no counterpart.
    """
    waiting: dict[int, list[int]] = defaultdict(list)
    for number, key in enumerate(_downstream(here)):
        waiting[key].append(number)
    found: list[int] = []
    for call, key in zip(planned, _downstream(planned)):
        wanted = sorted((found[source], index) for source, index in call.reads)
        fitting = [n for n in waiting[key] if here[n].reads == wanted]
        if not fitting:
            return None
        named = [n for n in fitting if here[n].name == call.name]
        found.append((named or fitting)[0])
        waiting[key].remove(found[-1])
    return found if len(found) == len(here) else None


def _downstream(seen: Sequence[_Seen]) -> list[int]:
    """A number for each call with what depends on it, equal where they are alike."""
    readers: list[list[tuple[int, int]]] = [[] for _ in seen]
    for number, one in enumerate(seen):
        for source, index in one.reads:
            readers[source].append((index, number))
    found = [0] * len(seen)
    for number in reversed(range(len(seen))):
        after = sorted((index, found[reader]) for index, reader in readers[number])
        found[number] = hash((seen[number].text, tuple(after)))
    return found


def _lines(seen: Sequence[_Seen]) -> list[str]:
    """A line for each call, named without the numbers that Keras counts."""
    names = [re.sub(r"_\d+\b", "", one.name) for one in seen]
    reads = [", ".join(names[source] for source, _ in one.reads) for one in seen]
    return [
        f"{name!r}: {one.text}" + (f", reads {given}" if given else "")
        for name, one, given in zip(names, seen, reads)
    ]


def _branches(parts: Sequence[Part], towers: Container[str]) -> list[str]:
    """A line for each branch of a net with its constraints, without towers."""
    return sorted(
        f"branch {part.name!r}"
        + "".join(
            f", {what}={', '.join(names)}"
            for what in ("on", "near", "apart")
            if (names := getattr(part, what))
        )
        for part in parts
        if part.name not in towers and part.kind not in ("tower", "weights")
    )


def _changes(planned: list[str], here: list[str]) -> list[str]:
    """The lines that one side has alone."""
    sides = {"-": "in the plan only", "+": "in the model only"}
    changes = [*difflib.unified_diff(planned, here, n=0, lineterm="")]
    return [f"{sides[x[0]]}: {x[1:]}" for x in changes[2:] if x[0] in sides]
