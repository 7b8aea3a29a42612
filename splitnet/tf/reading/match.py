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
from splitnet.core.graph import Call, Graph
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


def planned_sites(blueprint: Blueprint, plan: Plan) -> tuple[Site, ...]:
    """The source's calls under the names and parts that the plan gave them.

    Raises:
        DeclarationError: the plan was made from another model; says what differs.
    """
    graph = plan.graph
    calls, plain = fold(graph), collapse(graph)
    source = structure_of(sized(blueprint), graph.batch)
    # Towers of a whole model have no branches.
    same = blueprint.declared and (blueprint.towers or not graph.towers)
    branches = ({*plain.part, *source.part} - {*graph.towers}) if same else ()
    planned, planned_lines = _described(calls, plain, branches)
    here, own_lines = _described(source.calls, source, branches)
    if planned != here:
        sides = {"-": "in the plan only", "+": "in the model only"}
        changes = difflib.unified_diff(planned_lines, own_lines, n=0, lineterm="")
        faults = [f"{sides[x[0]]}: {x[1:]}" for x in [*changes][2:] if x[0] in sides]
        more = [f"and {len(faults) - _SAID} more"] if len(faults) > _SAID else []
        raise DeclarationError(
            listed(
                f"the plan of {graph.name!r} was not made from model "
                f"{blueprint.name!r}: plan it again, or emit what was planned.",
                [*faults[:_SAID], *more] or ["its calls are connected otherwise"],
            )
        )
    return tuple(
        Site(call.name, call.part, site.node)
        for call, site in zip(calls, blueprint.sites, strict=True)
    )


def _described(
    calls: Sequence[Call], graph: Graph, branches: Container[str]
) -> tuple[list[Any], list[str]]:
    """What each call is and reads, whatever its batch: to compare, and as a line.

    Also the branch it is in, with its constraints, if that is one of `branches`. Lines
    name calls without the numbers that Keras counts.
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
        if call.part in branches:
            part = graph.part[call.part]
            asked = {"branch": [part.name]}
            asked |= {what: getattr(part, what) for what in ("on", "near", "apart")}
            text += "".join(f", {k} {', '.join(v)}" for k, v in asked.items() if v)
        given = sorted(reads[call.name])
        read = ", ".join(names[source] for source, _ in given)
        keys.append((text, given))
        lines.append(f"{name!r}: {text}" + (f", reads {read}" if read else ""))
    return keys, lines
