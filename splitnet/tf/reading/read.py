"""Read a source as a graph: names, sizes and costs of every call; nothing runs."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import keras

from splitnet.core.checks import Positive
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Tensor, Weights
from splitnet.core.net import raise_faults
from splitnet.core.plan import NESTED
from splitnet.core.replication import batch_shares, expand
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.call_cost import configuration, cost_of, kept_bytes, size_of
from splitnet.tf.reading.flatten import Blueprint, Site, counted, is_sparse
from splitnet.tf.reading.source import blueprint_of, sized
from splitnet.tf.reading.traced import Size, Work
from splitnet.tf.reading.variables import tables_of, variables_of

_IGNORED = ("trainable", "dtype", "registered_name", "keras_tensor", "module")
_IGNORED += ("batch_shape", "sparse")


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
    return graph_of(blueprint_of(source, nested), batch, training=training)


def graph_of(blueprint: Blueprint, batch: int, *, training: bool = True) -> Graph:
    """Read a blueprint; see `read`. Towers are parts of their own.

    Raises:
        DeclarationError: another batch than the model's inputs are fixed to, or towers
            whose inputs or outputs cannot be split.
    """
    fixed = fixed_batches(blueprint.model)
    if fixed and batch not in fixed:
        raise DeclarationError(
            f"model {blueprint.name!r} has a fixed batch size of "
            f"{', '.join(map(str, fixed))}, and batch={batch} was asked for or is the "
            f"default. Say batch={fixed[0]}, or build the model with "
            "keras.Input(shape), without batch_shape= or batch_size=."
        )
    blueprint = sized(blueprint)
    raise_faults(blueprint.name, list(dict.fromkeys(_unsplittable(blueprint))))

    def priced(batch: int) -> Graph:
        nodes = [site.node for site in blueprint.sites]
        costs = [cost_of(node, batch, training=training) for node in nodes]
        return structure_of(blueprint, batch, costs)

    towers = blueprint.towers
    counts = {n for one in towers.values() for n in batch_shares(batch, one.count)}
    smaller = {n: priced(n) for n in sorted({max(1, n) for n in counts})}
    return expand(priced(batch), smaller, towers)


def fixed_batches(source: Any) -> list[int]:
    """The batch sizes of a model whose inputs are fixed to them; else none."""
    tensors = source.inputs if isinstance(source, keras.Model) else ()
    found = {tensor.shape[0] for tensor in tensors or () if len(tensor.shape)}
    return [] if None in found else sorted(found)


def _unsplittable(blueprint: Blueprint) -> Iterator[str]:
    """A fault for each input or output of towers that cannot be split by samples."""
    wheres = {part.name: part.where for part in blueprint.parts}
    makers = {id(t): site.part for site in blueprint.sites for t in site.node.outputs}
    leaving = {id(tensor) for tensor in blueprint.flow.outputs}
    leaving |= {
        id(tensor)
        for site in blueprint.sites
        for tensor in site.node.input_tensors
        if makers[id(tensor)] != site.part
    }
    for site in [one for one in blueprint.sites if one.part in blueprint.towers]:
        where, operation = wheres[site.part], site.node.operation
        who = f"{where + ': ' if where else ''}towers {site.part!r}"
        for tensor in site.node.input_tensors:
            if makers[id(tensor)] != site.part and is_sparse(tensor):
                yield (
                    f"{who}: call {site.call!r} reads a sparse tensor, which cannot be "
                    "split by samples; make it dense, or use net.branch."
                )
        for tensor in site.node.outputs:
            if id(tensor) in leaving and (*tensor.shape, 1)[0] is not None:
                yield (
                    f"{who}: call {site.call!r} gives a tensor of shape "
                    f"{tuple(tensor.shape)}, whose first axis is not the batch, so the "
                    "towers' outputs cannot be put together; use net.branch for it."
                )
        if blueprint.towers[site.part].batch_norm == "synchronised" and any(
            isinstance(layer, keras.layers.BatchNormalization)
            for layer in keras_api.sublayers(operation)[1:]
        ):
            yield (
                f"{who}: batch_norm='synchronised' cannot reach into "
                f"{operation.name!r}, which holds a BatchNormalization of its own; "
                "list its layers in the body, or say batch_norm='per_tower'."
            )


def structure_of(
    blueprint: Blueprint, batch: int, costs: list[Work] | None = None
) -> Graph:
    """The calls as they stand in the source, for one batch; costs of each, or none."""
    sites = blueprint.sites
    works = [*zip([site.node for site in sites], costs or [Work()] * len(sites))]
    weights = _weights(sites)
    call_of = {id(site.node): site.call for site in sites}
    made = [call_of[id(keras_api.producer(t))] for t in blueprint.flow.outputs]
    return Graph(
        name=blueprint.name,
        batch=batch,
        calls=tuple(
            _call(site, batch, work, kept, weights)
            for site, (_, work), kept in zip(sites, works, kept_bytes(works, batch))
        ),
        tensors=_tensors(works, call_of, batch),
        weights=tuple(weights.values()),
        parts=blueprint.parts,
        outputs=tuple(dict.fromkeys(made)),
    )


def _call(
    site: Site, batch: int, work: Work, kept: int, weights: dict[int, Weights]
) -> Call:
    operation = site.node.operation
    outputs = [size_of(tensor, batch) for tensor in site.node.outputs]
    keeps_output = len(work.saves_outputs) == len(outputs)
    some = () if keeps_output else work.saves_outputs
    return Call(
        name=site.call,
        part=site.part,
        kind=type(operation).__name__,
        layer=operation.name if isinstance(operation, keras.layers.Layer) else "",
        output_shapes=tuple(size.shape for size in outputs),
        output_dtypes=tuple(size.dtype for size in outputs),
        output_bytes=sum(size.bytes for size in outputs),
        activation_bytes=kept,
        inner_bytes=work.inner_bytes + sum(outputs[i].bytes for i in some),
        keeps_output=keeps_output,
        weights=tuple(weights[id(v)].name for v in variables_of(operation)),
        lookups=tuple(weights[id(v)].name for v in tables_of(operation)),
        settings=_settings_of(operation),
        batch_moments=isinstance(operation, keras.layers.BatchNormalization),
        **{name: getattr(work, name) for name in _SAME},
    )


_SAME = ("forward_flops", "backward_flops", "moved_bytes", "workspace_bytes")
_SAME += ("early_bytes", "cpu_only", "sequential_steps", "efficiency", "kernels")
"""What a call costs is what its work says."""


def _settings_of(operation: Any) -> str:
    """The activation of a layer and a digest of its configuration; "" if unknown.

    Names, seeds and types are left out: models that are built twice differ in them.
    """
    known = isinstance(operation, keras.layers.Layer)
    if not known or isinstance(operation, keras.Model | keras.layers.Lambda):
        return ""
    text = configuration(operation, _IGNORED, lambda value: type(value).__name__)
    name = getattr(getattr(operation, "activation", None), "__name__", "")
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name} #{digest}".lstrip() if text else ""


def _weights(sites: tuple[Site, ...]) -> dict[int, Weights]:
    """Each variable by its id, named uniquely: by its path, and counted if need be."""
    found: dict[int, Weights] = {}
    taken: Counter[str] = Counter()
    for operation in [site.node.operation for site in sites]:
        for variable in variables_of(operation):
            if id(variable) in found:
                continue
            size = Size(tuple(variable.shape), str(variable.dtype))
            found[id(variable)] = Weights(
                counted(variable.path, taken),
                size.bytes,
                size.shape,
                size.dtype,
                bool(variable.trainable) and bool(operation.trainable),
            )
    return found


def _tensors(
    works: list[tuple[Any, Work]], call_of: dict[int, str], batch: int
) -> tuple[Tensor, ...]:
    """An edge for each output that a call reads; kept if one of its reads keeps it."""
    found: dict[tuple[str, str, int], Tensor] = {}
    for node, work in works:
        for position, tensor in enumerate(node.input_tensors):
            maker = keras_api.producer(tensor)
            index = next(i for i, t in enumerate(maker.outputs) if t is tensor)
            key = call_of[id(maker)], call_of[id(node)], index
            kept = position in work.saves_inputs or (key in found and found[key].kept)
            size = size_of(tensor, batch)
            found[key] = Tensor(*key, size.shape, size.dtype, size.bytes, kept)
    return tuple(found.values())
