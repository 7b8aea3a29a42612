"""Match a plan with the source that it is used for, by structure and shapes.

Names that Keras counts on (`dense_3`, `not_equal_4`) differ each time a model is built,
so calls are matched by what they are, read and feed. A source of another structure is
refused with what differs.
"""

import difflib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, listed
from splitnet.core.graph import Call, Graph, Part
from splitnet.core.plan import Plan
from splitnet.core.replication import fold, towers_in
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import size_of
from splitnet.tf.reading.rebuild import without
from splitnet.tf.reading.source import Blueprint, Site, blueprint_of, sized
from splitnet.tf.reading.variables import variables_of

__all__ = ["planned_blueprint", "planned_sites", "settings_of"]

_SAID = 12  # differences in an error
_IGNORED = ("name", "seed", "trainable", "dtype", "build_config", "registered_name")
_COUNTED = ("keras_tensor", "shared_object_id", "module", "batch_shape", "sparse")


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call of a plan or of a model; `reads` are (number of a call, its output)."""

    name: str
    text: str
    reads: list[tuple[int, int]]


def planned_blueprint(source: Any, plan: Plan) -> Blueprint:
    """The source's blueprint, its nested models expanded as the plan's calls are."""
    expanded = any("/" in call.name for call in fold(plan.graph, bare=True))
    return blueprint_of(source, "expand" if expanded else "keep")


def planned_sites(blueprint: Blueprint, plan: Plan) -> list[Site]:
    """The source's calls under the names and parts that the plan gave them.

    Raises:
        DeclarationError: the plan was made from another model; says what differs.
    """
    graph = plan.graph
    whole = bool(towers_in(graph)) and not blueprint.towers
    calls = fold(graph, bare=whole)
    planned, here = _in_plan(calls, graph), _in_model(sized(blueprint).sites, graph)
    faults = []
    if blueprint.declared and not whole:
        towers = towers_in(graph)
        faults = _changes(
            _branches(graph.parts, towers), _branches(blueprint.parts, towers)
        )
    numbers = _same_structure(planned, here)
    if numbers is None:
        faults += _differences(planned, here) or ["its calls are connected otherwise"]
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
        fitting = [n for n in waiting[key] if sorted(here[n].reads) == wanted]
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


def _differences(planned: Sequence[_Seen], here: Sequence[_Seen]) -> list[str]:
    """The calls that either side has alone, named without their numbers."""

    def lines(seen: Sequence[_Seen]) -> list[str]:
        names = [re.sub(r"_\d+\b", "", one.name) for one in seen]
        reads = [", ".join(names[source] for source, _ in one.reads) for one in seen]
        return [
            f"{name!r}: {one.text}" + (f", reads {given}" if given else "")
            for name, one, given in zip(names, seen, reads)
        ]

    return _changes(lines(planned), lines(here))


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


def _in_plan(calls: Sequence[Call], graph: Graph) -> list[_Seen]:
    """The calls of a plan, which does not have the connections inside of towers."""
    shapes = {weight.name: weight.shape for weight in graph.weights}
    number = {call.name: i for i, call in enumerate(calls)}
    reads: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for tensor in () if towers_in(graph) else graph.tensors:
        reads[tensor.target].add((number[tensor.source], tensor.index))
    return [
        _Seen(
            call.name,
            _text(
                call.kind,
                call.settings,
                zip(call.output_dtypes, call.output_shapes),
                [shapes[name] for name in call.weights],
            ),
            sorted(reads[call.name]),
        )
        for call in calls
    ]


def _in_model(sites: Sequence[Site], graph: Graph) -> list[_Seen]:
    """The calls of a model, connected as far as those of a plan's graph are."""
    number = {id(site.node): i for i, site in enumerate(sites)}
    found = []
    for site in sites:
        node, operation = site.node, site.node.operation
        sizes = [size_of(tensor, 1) for tensor in node.outputs]
        text = _text(
            type(operation).__name__,
            settings_of(operation),
            [(size.dtype, size.shape) for size in sizes],
            [variable.shape for variable in variables_of(operation)],
        )
        given = () if towers_in(graph) else node.input_tensors
        makers = {id(tensor): keras_api.producer(tensor) for tensor in given}
        reads = {
            (number[id(maker)], [id(t) for t in maker.outputs].index(key))
            for key, maker in makers.items()
        }
        found.append(_Seen(site.call, text, sorted(reads)))
    return found


def _text(kind: str, settings: str, outputs: Any, weights: Sequence[Any]) -> str:
    """What a call is, whatever its batch."""
    made = ", ".join(f"{dtype}{tuple(shape[1:])}" for dtype, shape in outputs)
    own = ", ".join(str(tuple(shape)) for shape in sorted(map(tuple, weights)))
    kind = f"{kind} {settings}".rstrip()
    return f"{kind}, outputs {made}" + (f", weights {own}" if own else "")


def settings_of(operation: Any) -> str:
    """The activation of a layer and a digest of its configuration; "" if unknown.

    Names, seeds and types are left out: models that are built twice differ in them.
    """
    if not isinstance(operation, keras.layers.Layer):
        return ""
    if isinstance(operation, keras.Model | keras.layers.Lambda):
        return ""
    try:
        config = without(operation.get_config(), (*_IGNORED, *_COUNTED))
        text = json.dumps(config, sort_keys=True, default=lambda v: type(v).__name__)
    except Exception:  # a user's get_config may raise anything, or have any keys
        return ""
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", "")
    return f"{name} #{digest}" if name else f"#{digest}"
