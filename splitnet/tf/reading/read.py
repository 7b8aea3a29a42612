"""Read a source as a graph: names, sizes and costs of every call; nothing runs.

A plan is matched with the source that it is used for by structure and shapes. Names
that Keras counts on (`dense_3`, `not_equal_4`) differ each time a model is built, so
calls are matched by their order, what they are, and what they read.
"""

import difflib
import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any

import keras

from splitnet.core.checks import Positive
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Tensor, Weights
from splitnet.core.net import raise_faults
from splitnet.core.plan import NESTED, Plan
from splitnet.core.replication import batch_shares, expand, fold
from splitnet.tf.internals.keras_api import norms_of, sublayers, tables_of, variables_of
from splitnet.tf.reading.call_cost import cost_of, settings_of, size_of
from splitnet.tf.reading.flatten import Blueprint, Site, counted, is_sparse
from splitnet.tf.reading.source import blueprint_of, resolved, sized
from splitnet.tf.reading.traced import Work, bytes_of

_SAME = {one.name for one in fields(Work)} & {one.name for one in fields(Call)}
_SAME = _SAME - {"inner_bytes", "fused_kernels"} | {"forward_flops"}
"""Fields of a call that are those of its `Work`."""
_SAID = 12  # differences in an error


def read(
    source: Any,
    batch: Positive = 32,
    *,
    nested: Annotated[str, NESTED] = "expand",
    training: bool = True,
) -> Graph:
    """Read a net or a Keras model as a graph of calls for one batch.

    Nothing is run and no variable is given memory. For a net the parts are its
    branches, for a Keras model its calls. Dimensions that inputs leave open, beside the
    batch, are given a size, which is logged: 224 for the sides of images, else 128.

    Args:
        source: a `Net`, a functional or Sequential `keras.Model`, or a `Graph`.
        batch: samples per step, a whole number of at least 1.
        nested: functional and Sequential models inside a Keras model: "expand" to have
            their calls, named "model/layer", "keep" to have each as one call. One
            that changes its inputs before its first call, by a cast or another rank, is
            kept, and so is one with a `call` of its own.
        training: False for what calls cost when a model predicts: Dropout nothing,
            BatchNormalization no mean.

    Raises:
        DeclarationError: with every fault of the declaration, or because the model
            has no graph of calls to read.
    """
    if isinstance(source, Graph):
        return source
    return graph_of(blueprint_of(resolved(source), nested), batch, training=training)


def graph_of(blueprint: Blueprint, batch: int, *, training: bool = True) -> Graph:
    """Read a blueprint; see `read`. Towers are parts of their own."""
    fixed = fixed_batches(blueprint.model)
    if fixed and batch not in fixed:
        raise DeclarationError(
            f"model {blueprint.name!r} has a fixed batch size of "
            f"{', '.join(map(str, fixed))}, and batch={batch} was asked for or is the "
            f"default. Say batch={fixed[0]}, or build it without that size."
        )
    raise_faults(blueprint.name, list(dict.fromkeys(_unsplittable(blueprint))))

    settings = [settings_of(site.node.operation) for site in blueprint.sites]
    needed = needed_gradients(blueprint.sites)

    def priced(batch: int) -> Graph:
        known, other = sized(blueprint, batch), sized(blueprint, batch + 1)
        given = zip(known.sites, settings, needed)
        works = [cost_of(s.node, batch, *its, training=training) for s, *its in given]
        if not fixed:
            works = [*map(_with_fixed_outputs, works, known.sites, other.sites)]
        return _structure_of(known, batch, settings, works)

    towers = blueprint.towers
    counts = {n for one in towers.values() for n in batch_shares(batch, one.count)}
    smaller = {n: priced(n) for n in sorted({max(1, n) for n in counts})}
    return replace(expand(priced(batch), smaller, towers), training=training)


def needed_gradients(sites: Sequence[Site]) -> list[list[bool]]:
    """Whether each input of each call needs a gradient: a trained weight is behind."""
    found, reached = list[list[bool]](), set[int]()
    for site in sites:
        node, kind = site.node, type(site.node.operation).__name__
        known = set[int]() if kind == "StopGradient" else reached
        found.append([id(tensor) in known for tensor in node.input_tensors])
        if any(found[-1]) or any(v.trainable for v in variables_of(node.operation)):
            reached.update(map(id, node.outputs))
    return found


def _with_fixed_outputs(work: Work, site: Site, other: Site) -> Work:
    """The outputs whose size is the same for another batch."""
    pairs = enumerate(zip(site.node.outputs, other.node.outputs))
    same = (i for i, (a, b) in pairs if a.shape == b.shape and None not in a.shape)
    return replace(work, fixed_outputs=tuple(same))


def fixed_batches(source: Any) -> list[int]:
    """The batch sizes of a model whose inputs are fixed to them; else none."""
    tensors = source.inputs if isinstance(source, keras.Model) else ()
    found = {tensor.shape[0] for tensor in tensors or () if len(tensor.shape)}
    return [] if None in found else sorted(found)


def _unsplittable(blueprint: Blueprint) -> Iterator[str]:
    """A fault for each input or output of towers that cannot be split by samples."""
    wheres = {part.name: part.where for part in blueprint.parts}
    makers = {id(t): site.part for site in blueprint.sites for t in site.node.outputs}
    read = ((id(t), s.part) for s in blueprint.sites for t in s.node.input_tensors)
    crossing = {(tensor, part) for tensor, part in read if makers[tensor] != part}
    counts = {part: towers.count for part, towers in blueprint.towers.items()}
    leaving = {id(tensor) for tensor in blueprint.flow.outputs}
    leaving |= {t for t, by in crossing if counts.get(by) != counts.get(makers[t])}
    for site in [one for one in blueprint.sites if one.part in blueprint.towers]:
        who = f"{wheres[site.part]}: towers {site.part!r}: call {site.call!r}"
        who = who.removeprefix(": ")
        whole = "use net.branch" if wheres[site.part] else "place the model whole"
        for tensor in site.node.input_tensors:
            if (id(tensor), site.part) in crossing and is_sparse(tensor):
                why = "reads a sparse tensor, which cannot be split by samples"
                yield f"{who} {why}; make it dense, or {whole}."
        for tensor in site.node.outputs:
            if id(tensor) in leaving and (*tensor.shape, 1)[0] is not None:
                why = f"of shape {tensor.shape}, whose first axis is not the batch"
                yield f"{who} gives a tensor {why}, so towers cannot share it; {whole}."
        inside = {*norms_of(site.node.operation)} - {site.node.operation}
        if inside and blueprint.towers[site.part].batch_norm == "synchronised":
            why = "batch_norm='synchronised' cannot reach"
            how = "list its layers in the body, or say 'per_tower'"
            yield f"{who} holds a BatchNormalization, which {why}; {how}."


def _structure_of(
    blueprint: Blueprint, batch: int, settings: Sequence[str], works: Sequence[Work]
) -> Graph:
    """The calls as they stand in the source, for one batch."""
    sites = blueprint.sites
    made_by = {  # of each tensor: the call, and which of its outputs it is
        id(t): (one.call, i) for one in sites for i, t in enumerate(one.node.outputs)
    }
    weights: dict[int, Weights] = {}  # each variable by its id, named by its path
    taken: Counter[str] = Counter()
    tensors, calls = dict[tuple[str, str, int], Tensor](), list[Call]()
    kept_bytes = _kept_bytes(sites, works, batch)
    layers = [one for site in sites for one in sublayers(site.node.operation)]
    compiled = all(layer.supports_jit for layer in layers)  # with XLA, on a GPU
    compiled &= all(work.sequential_steps == 1 for work in works)  # else cuDNN runs it
    for site, text, work, kept in zip(sites, settings, works, kept_bytes):
        operation = site.node.operation
        norm = isinstance(operation, keras.layers.BatchNormalization)
        own = variables_of(operation)
        for variable in own:
            if id(variable) not in weights:
                size = size_of(variable, batch)
                form = bytes_of(size), tuple(size.shape), size.dtype.name
                learns = bool(variable.trainable and blueprint.model.trainable)
                name = counted(variable.path, taken)
                weights[id(variable)] = Weights(name, *form, learns)
        for position, tensor in enumerate(site.node.input_tensors):
            size, (maker, index) = size_of(tensor, batch), made_by[id(tensor)]
            key = maker, site.call, index
            again = position in work.saves_inputs  # one of several reads is enough
            again |= key in tensors and tensors[key].kept
            form = tuple(size.shape), size.dtype.name, bytes_of(size)
            tensors[key] = Tensor(*key, *form, again)
        outputs = [size_of(tensor, batch) for tensor in site.node.outputs]
        keeps_output = len(work.saves_outputs) == len(outputs)
        some = () if keeps_output else work.saves_outputs
        calls.append(
            Call(
                name=site.call,
                part=site.part,
                kind=type(operation).__name__,
                layer=operation.name if isinstance(operation, keras.Layer) else "",
                output_shapes=tuple(tuple(size.shape) for size in outputs),
                output_dtypes=tuple(size.dtype.name for size in outputs),
                output_bytes=bytes_of(*outputs),
                activation_bytes=kept,
                inner_bytes=work.inner_bytes + bytes_of(*(outputs[i] for i in some)),
                keeps_output=keeps_output,
                weights=tuple(weights[id(v)].name for v in own),
                lookups=tuple(weights[id(v)].name for v in tables_of(operation)),
                settings=_digest(operation, text),
                batch_moments=norm and operation.trainable,
                fused_kernels=work.fused_kernels * compiled,
                **{name: getattr(work, name) for name in _SAME},
            )
        )
    return Graph(
        name=blueprint.name,
        batch=batch,
        calls=tuple(calls),
        tensors=tuple(tensors.values()),
        weights=tuple(weights.values()),
        parts=blueprint.parts,
        outputs=tuple(dict.fromkeys(made_by[id(t)][0] for t in blueprint.flow.outputs)),
    )


def _kept_bytes(sites: Sequence[Site], works: Sequence[Work], batch: int) -> list[int]:
    """Bytes kept for the backward pass; of a tensor by the first call that does so."""
    nodes = [site.node for site in sites]
    memory: dict[int, Any] = {}  # the tensor whose memory a view shares
    for node, work in zip(nodes, works):
        if work.views and node.input_tensors:
            first = node.input_tensors[0]
            whole = memory.get(id(first), first)
            memory |= {id(tensor): whole for tensor in node.outputs}
    found = [work.inner_bytes for work in works]
    known: set[int] = set()
    for saves in ("saves_outputs", "saves_inputs"):
        for number, (node, work) in enumerate(zip(nodes, works)):
            mine = node.outputs if saves == "saves_outputs" else node.input_tensors
            for place in getattr(work, saves):
                tensor = memory.get(id(mine[place]), mine[place])
                if id(tensor) not in known:
                    known.add(id(tensor))
                    found[number] += bytes_of(size_of(tensor, batch))
    return found


def _digest(operation: Any, settings: str) -> str:
    """The activation of a layer and a digest of its settings; "" if unknown."""
    plain = not isinstance(operation, keras.Model | keras.layers.Lambda)
    if not (plain and settings and isinstance(operation, keras.Layer)):
        return ""
    name = getattr(getattr(operation, "activation", None), "__name__", "")
    return f"{name} #{hashlib.sha256(settings.encode()).hexdigest()[:8]}".lstrip()


def planned_blueprint(source: Any, plan: Plan) -> Blueprint:
    """The source's blueprint, its nested models expanded as the plan's calls are."""
    calls, kept = fold(plan.graph), blueprint_of(source)
    kinds = [type(site.node.operation).__name__ for site in kept.sites]
    nested = any("/" in call.name for call in calls)  # or branches have such names
    if nested and kinds != [call.kind for call in calls]:
        return blueprint_of(source, "expand")
    return kept


def planned_sites(blueprint: Blueprint, plan: Plan) -> tuple[Site, ...]:
    """The source's calls under the names and parts that the plan gave them."""
    graph = plan.graph
    calls, plain = fold(graph), graph.plain or graph
    settings = [settings_of(site.node.operation) for site in blueprint.sites]
    works = [Work()] * len(settings)
    source = _structure_of(blueprint, graph.batch, settings, works)
    # Towers of a whole model have no branches, and a pin beats what a branch says.
    same = blueprint.declared and (blueprint.towers or not graph.towers)
    free = {*plain.part, *source.part} - {p.name for p in plain.parts if p.pinned}
    branches = (free - {*graph.towers}) if same else ()
    planned, planned_lines = _described(calls, plain, branches)
    here, own_lines = _described(source.calls, source, branches)
    if planned != here:  # by sizes that are open, or those that the batch gives
        known = sized(blueprint, graph.batch)
        source = _structure_of(known, graph.batch, settings, works)
        here, own_lines = _described(source.calls, source, branches)
    if planned != here:
        sides = {"-": "in the plan only", "+": "in the model only"}
        changes = difflib.unified_diff(planned_lines, own_lines, n=0, lineterm="")
        faults = [f"{sides[x[0]]}: {x[1:]}" for x in [*changes][2:] if x[0] in sides]
        more = [f"and {len(faults) - _SAID} more"] if len(faults) > _SAID else []
        told = [*faults[:_SAID], *more] or ["its calls are connected otherwise"]
        fault = f"the plan of {graph.name!r} was not made from model {blueprint.name!r}"
        raise DeclarationError(f"{fault}: plan it, or emit what was planned.", told)
    pairs = zip(calls, blueprint.sites, strict=True)
    return tuple(Site(call.name, call.part, site.node) for call, site in pairs)


def _described(
    calls: Sequence[Call], graph: Graph, branches: Container[str]
) -> tuple[list[Any], list[str]]:
    """What calls are and read, and rules of `branches`: to compare, and as lines."""
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
            asked = {"branch": [part.name], "on": part.on}
            asked |= {"near": part.near, "apart": part.apart}
            text += "".join(f", {k} {', '.join(v)}" for k, v in asked.items() if v)
        given = sorted(reads[call.name])
        read = ", ".join(names[source] for source, _ in given)
        keys.append((text, given))
        lines.append(f"{name!r}: {text}" + (f", reads {read}" if read else ""))
    return keys, lines
