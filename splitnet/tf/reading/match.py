"""Match a plan with the source that it is used for, by structure and shapes.

Names that Keras counts on (`dense_3`, `not_equal_4`) differ each time a model is built,
so calls are matched by their position, or by name where that fits better. A source of
another structure is refused with what differs.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from splitnet.core.errors import DeclarationError, listed
from splitnet.core.graph import Call, Graph
from splitnet.core.plan import Plan
from splitnet.core.replication import fold, towers_in
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import size_of
from splitnet.tf.reading.source import Blueprint, Site, blueprint_of, sized
from splitnet.tf.reading.variables import variables_of

__all__ = ["planned_blueprint", "planned_sites", "settings_of"]

_SAID = 12  # differences in an error
_IGNORED = ("name", "seed", "trainable", "dtype", "build_config", "registered_name")
_COUNTED = ("keras_tensor", "shared_object_id", "module", "batch_shape", "sparse")


def planned_blueprint(source: Any, plan: Plan) -> Blueprint:
    """The source's blueprint, its nested models expanded as the plan's calls are."""
    expanded = any("/" in call.name for call in fold(plan.graph, bare=True))
    return blueprint_of(source, "expand" if expanded else "keep")


def planned_sites(blueprint: Blueprint, plan: Plan) -> list[Site]:
    """The source's calls under the names and parts that the plan gave them.

    Raises:
        DeclarationError: the plan was made from another model; says what differs.
    """
    graph, sites = plan.graph, sized(blueprint).sites
    own = {id(a.node): b.node for a, b in zip(sites, blueprint.sites)}
    whole = bool(towers_in(graph)) and not blueprint.towers
    calls = fold(graph, bare=whole)
    faults = [] if whole else [*_part_faults(blueprint, graph)]
    if len(calls) != len(sites):
        faults += _name_faults(calls, sites)
        faults = faults or [f"it has {len(sites)} calls, the plan {len(calls)}"]
        raise _refused(blueprint, graph, faults)
    pairs, differences = _same_structure(calls, sites, graph), []
    if pairs is None:
        by_name = {site.call: site for site in sites}
        matchings = [list(zip(calls, sites))]
        if all(call.name in by_name for call in calls):
            matchings.insert(0, [(call, by_name[call.name]) for call in calls])
        ranked = [(_differences(pairs, graph), pairs) for pairs in matchings]
        differences, pairs = min(ranked, key=lambda one: len(one[0]))
    if faults or differences:
        raise _refused(blueprint, graph, [*faults, *differences])
    return [Site(call.name, call.part, own[id(site.node)]) for call, site in pairs]


def _same_structure(
    calls: Sequence[Call], sites: Sequence[Site], graph: Graph
) -> list[tuple[Call, Site]] | None:
    """Each call with the site that is described alike and reads and feeds alike.

    Calls are taken in running order; of several sites that fit, the one of the same
    name or else the first is taken. None if some call has no site, or with towers,
    whose inner connections a plan does not have.
    """
    if towers_in(graph):
        return None
    shapes = {weight.name: weight.shape for weight in graph.weights}
    planned = {c.name: repr(_described(c, shapes)) for c in calls}
    here = {id(s.node): repr(_described_site(s)) for s in sites}
    reads = {c.name: [] for c in calls} | _readers(graph)
    own_reads = {id(s.node): _reads(s) for s in sites}
    fed = _fed_by(planned, reads), _fed_by(here, own_reads)
    waiting: dict[Any, list[Site]] = {}
    for site in sites:
        key = here[id(site.node)], fed[1][id(site.node)]
        waiting.setdefault(key, []).append(site)
    site_of: dict[str, int] = {}
    found = []
    for call in calls:
        wanted = sorted((site_of[name], index) for name, index in reads[call.name])
        fitting = [
            site
            for site in waiting.get((planned[call.name], fed[0][call.name]), ())
            if own_reads[id(site.node)] == wanted
        ]
        if not fitting:
            return None
        site = next((one for one in fitting if one.call == call.name), fitting[0])
        waiting[planned[call.name], fed[0][call.name]].remove(site)
        site_of[call.name] = id(site.node)
        found.append((call, site))
    return found


def _fed_by(
    described: Mapping[Any, str], reads: Mapping[Any, list[tuple[Any, int]]]
) -> dict[Any, int]:
    """A number for what depends on each call, equal where that is described alike."""
    readers: dict[Any, list[tuple[Any, int]]] = {key: [] for key in described}
    for key, sources in reads.items():
        for source, index in sources:
            readers[source].append((key, index))
    found: dict[Any, int] = {}
    for key in reversed(list(described)):
        after = sorted((described[r], i, found[r]) for r, i in readers[key])
        found[key] = hash((described[key], tuple(after)))
    return found


def _refused(
    blueprint: Blueprint, graph: Graph, faults: Sequence[str]
) -> DeclarationError:
    more = [f"and {len(faults) - _SAID} more"] if len(faults) > _SAID else []
    return DeclarationError(
        listed(
            f"the plan of {graph.name!r} was not made from model {blueprint.name!r}: "
            "plan it again, or emit what was planned.",
            [*faults[:_SAID], *more],
        )
    )


def _name_faults(calls: Sequence[Call], sites: Sequence[Site]) -> list[str]:
    planned, here = {c.name for c in calls}, {s.call for s in sites}
    faults = [
        f"{s.call!r} is in the model only" for s in sites if s.call not in planned
    ]
    return faults + [
        f"{c.name!r} is in the plan only" for c in calls if c.name not in here
    ]


def _part_faults(blueprint: Blueprint, graph: Graph) -> Iterator[str]:
    """What differs in the declaration of a net's branches."""
    if not blueprint.declared:
        return
    planned = {part.name: part for part in graph.parts}
    here = {part.name: part for part in blueprint.parts}
    towers = set(towers_in(graph))
    for name in here:
        if name not in planned:
            yield f"branch {name!r} is in the net only"
    for name, part in planned.items():
        mine = here.get(name)
        if mine is None:
            if part.kind not in ("tower", "weights"):
                yield f"branch {name!r} is in the plan only"
        elif name not in towers and part.kind == mine.kind:
            for what in ("on", "near", "apart"):
                asked, now = getattr(part, what), getattr(mine, what)
                if asked != now:
                    yield (
                        f"branch {name!r} has {what}={_said(now)}, planned with "
                        f"{what}={_said(asked)}"
                    )


def _said(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _differences(pairs: Sequence[tuple[Call, Site]], graph: Graph) -> list[str]:
    """How each call of the model differs from the call of the plan beside it."""
    shapes = {weight.name: weight.shape for weight in graph.weights}
    readers = None if towers_in(graph) else _readers(graph)
    planned = {id(site.node): call.name for call, site in pairs}
    found = []
    for call, site in pairs:
        described = _described(call, shapes), _described_site(site)
        for what, asked, now in zip(_WHAT, *described):
            if asked != now and None not in (asked, now):
                found.append(f"call {site.call!r}: {what} {now}, planned {asked}")
                break
        else:
            reads = [(planned.get(maker, ""), i) for maker, i in _reads(site)]
            if readers is not None and readers.get(call.name, []) != sorted(reads):
                found.append(f"call {site.call!r} reads other calls than planned")
    return found


_WHAT = ("kind", "output shapes", "output types", "weights", "settings")


def _described(call: Call, shapes: Mapping[str, Any]) -> tuple[Any, ...]:
    return (
        call.kind,
        [tuple(shape[1:]) for shape in call.output_shapes],
        list(call.output_dtypes),
        sorted(tuple(shapes[name]) for name in call.weights),
        call.settings or None,
    )


def _described_site(site: Site) -> tuple[Any, ...]:
    operation = site.node.operation
    sizes = [size_of(tensor, 1) for tensor in site.node.outputs]
    return (
        type(operation).__name__,
        [tuple(size.shape[1:]) for size in sizes],
        [size.dtype for size in sizes],
        sorted(tuple(v.shape) for v in variables_of(operation)),
        settings_of(operation) or None,
    )


def _readers(graph: Graph) -> dict[str, list[tuple[str, int]]]:
    """What each call of a graph reads: (call, output) in order of names."""
    found: dict[str, set[tuple[str, int]]] = {}
    for tensor in graph.tensors:
        found.setdefault(tensor.target, set()).add((tensor.source, tensor.index))
    return {name: sorted(reads) for name, reads in found.items()}


def _reads(site: Site) -> list[tuple[int, int]]:
    """What a call of the model reads: (id of the node, output)."""
    found = set()
    for tensor in site.node.input_tensors:
        maker = keras_api.producer(tensor)
        index = next(i for i, t in enumerate(maker.outputs) if t is tensor)
        found.add((id(maker), index))
    return sorted(found)


def settings_of(operation: Any) -> str:
    """The activation of a layer and a digest of its configuration; "" if unknown.

    Names, seeds and types are left out: models that are built twice differ in them.
    """
    if not isinstance(operation, keras.layers.Layer):
        return ""
    if isinstance(operation, keras.Model | keras.layers.Lambda):
        return ""
    try:
        config = _plain(operation.get_config())
    except Exception:  # a user's get_config may raise anything
        return ""
    text = json.dumps(config, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    activation = getattr(operation, "activation", None)
    name = getattr(activation, "__name__", "")
    return f"{name} #{digest}" if name else f"#{digest}"


def _plain(value: Any) -> Any:
    """Numbers, texts and what holds them; of anything else the name of its class."""
    if isinstance(value, dict):
        ignored = (*_IGNORED, *_COUNTED)
        return {str(k): _plain(v) for k, v in value.items() if k not in ignored}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    return type(value).__name__
