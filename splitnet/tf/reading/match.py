"""Match a plan with the source that it is used for, by structure and shapes.

Names that Keras counts on (`dense_3`, `not_equal_4`) differ each time a model is built,
so calls are matched by their order, what they are, and what they read. A source of
another structure is refused with what differs.
"""

import difflib
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from typing import Any

from splitnet.core.errors import DeclarationError, listed
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.plan import Plan
from splitnet.core.replication import collapse, fold
from splitnet.tf.reading.flatten import Blueprint, Site
from splitnet.tf.reading.read import structure_of
from splitnet.tf.reading.source import blueprint_of, sized

_SAID = 12  # differences in an error


def planned_blueprint(source: Any, plan: Plan) -> Blueprint:
    """The source's blueprint, its nested models expanded as the plan's calls are."""
    expanded = any("/" in call.name for call in fold(plan.graph))
    return blueprint_of(source, "expand" if expanded else "keep")


def planned_sites(blueprint: Blueprint, plan: Plan) -> list[Site]:
    """The source's calls under the names and parts that the plan gave them.

    Raises:
        DeclarationError: the plan was made from another model; says what differs.
    """
    graph, towers = plan.graph, plan.graph.towers
    whole = bool(towers) and not blueprint.towers
    calls = fold(graph)
    source = structure_of(sized(blueprint), graph.batch)
    planned, lines = _described(calls, collapse(graph))
    here, own = _described(source.calls, source)
    faults = []
    if blueprint.declared and not whole:
        faults = _changes(
            _branches(graph.parts, towers), _branches(blueprint.parts, towers)
        )
    if planned != here:
        faults += _changes(lines, own) or ["its calls are connected otherwise"]
    if faults:
        more = [f"and {len(faults) - _SAID} more"] if len(faults) > _SAID else []
        raise DeclarationError(
            listed(
                f"the plan of {graph.name!r} was not made from model "
                f"{blueprint.name!r}: plan it again, or emit what was planned.",
                [*faults[:_SAID], *more],
            )
        )
    return [
        Site(call.name, call.part, site.node)
        for call, site in zip(calls, blueprint.sites, strict=True)
    ]


def _described(calls: Sequence[Call], graph: Graph) -> tuple[list[Any], list[str]]:
    """What each call is and reads, whatever its batch: to compare, and as a line.

    Lines name calls without the numbers that Keras counts.
    """
    shapes = {weight.name: weight.shape for weight in graph.weights}
    number = {call.name: i for i, call in enumerate(calls)}
    names = [re.sub(r"_\d+\b", "", call.name) for call in calls]
    reads: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for tensor in graph.tensors:
        reads[tensor.target].add((number[tensor.source], tensor.index))
    keys, lines = [], []
    for call, name in zip(calls, names):
        outputs = zip(call.output_dtypes, call.output_shapes)
        made = ", ".join(f"{dtype}{tuple(shape[1:])}" for dtype, shape in outputs)
        own = ", ".join(map(str, sorted(shapes[name] for name in call.weights)))
        text = f"{f'{call.kind} {call.settings}'.rstrip()}, outputs {made}"
        text += f", weights {own}" if own else ""
        given = sorted(reads[call.name])
        keys.append((text, given))
        read = ", ".join(names[source] for source, _ in given)
        lines.append(f"{name!r}: {text}" + (f", reads {read}" if read else ""))
    return keys, lines


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
