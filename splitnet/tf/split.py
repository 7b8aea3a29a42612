"""Split layers: one wide layer as narrower ones on several devices, and whole again.

A layer whose outputs do not read one another is cut along its output axis: each slice
is a layer of the same class with its part of the weights, and their outputs are put
side by side. So each device holds its part of weights, gradients and slots, and what is
placed, planned and audited are ordinary layers. `join_slices` makes them whole.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import SplitnetError
from splitnet.core.shares import shares
from splitnet.tf import private
from splitnet.tf.copying import Copies, copy_input, functional, replay
from splitnet.tf.optimizer import all_optimizers, slots_of

__all__ = ["Slices", "join_slices", "slices_of", "split_outputs"]

_WIDTH = {
    "Conv1D": "filters",
    "Conv2D": "filters",
    "Conv3D": "filters",
    "Conv1DTranspose": "filters",
    "Conv2DTranspose": "filters",
    "Conv3DTranspose": "filters",
    "Dense": "units",
    "EinsumDense": "output_shape",
    "Embedding": "output_dim",
}
# Activations that look at one output at a time; any other runs on all, where they join.
_ELEMENTWISE = frozenset(
    {"celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "hard_tanh"}
    | {"leaky_relu", "linear", "log_sigmoid", "mish", "relu", "relu6", "selu"}
    | {"sigmoid", "silu", "softplus", "softsign", "tanh"}
)


@dataclass(frozen=True)
class Slices:
    """The slices of a layer, the axis of their outputs, and what runs on all."""

    layers: tuple[Any, ...]
    axis: int
    activation: Any


class _SliceOf:
    """What stands for a slice of a variable's value, or of its initializer's."""

    def __init__(self, whole: Any, axis: int, start: int, size: int) -> None:
        self._whole, self._axis, self._start, self._size = whole, axis, start, size

    @property
    def value(self) -> Any:
        """The slice, cut on the host: the whole may have no room on a device."""
        with tf.device("/device:CPU:0"):
            whole = tf.convert_to_tensor(self._whole.value)
            rows = tf.range(self._start, self._start + self._size)
            return tf.gather(whole, rows, axis=self._axis)


def slices_of(layer: Any, count: int, inputs: Any, copies: Copies) -> Slices:
    """Cut a layer along its output axis into slices without values.

    The slices begin with the values that the whole layer has or would be initialized
    with. To be called where layers are built without values.

    Raises:
        SplitnetError: a layer that cannot be cut so.
    """
    width, config = _width(layer)
    if width < count:
        raise SplitnetError(
            f"{type(layer).__name__} {layer.name!r} has {width} outputs, which cannot "
            f"be cut over {count} devices."
        )
    whole = copies.of(layer)
    whole.build(keras.tree.flatten(inputs)[0].shape)
    activation = _apart(layer)
    start, made = 0, []
    for number, size in enumerate(shares(width, count)):
        twin = _slice(layer, config, number, size, keep=activation is None)
        twin.build(keras.tree.flatten(inputs)[0].shape)
        source = layer if layer.built else whole
        _give_slices(layer.name, source, twin, start, size, count)
        made.append(twin)
        start += size
    channels_first = getattr(layer, "data_format", None) == "channels_first"
    return Slices(tuple(made), 1 if channels_first else -1, activation)


def _width(layer: Any) -> tuple[int, dict[str, Any]]:
    """How many outputs a layer has, and its configuration."""
    kind = type(layer).__name__
    if kind not in _WIDTH or not type(layer).__module__.startswith("keras."):
        raise SplitnetError(
            f"its body is {layer!r}, which cannot be cut along its outputs. net.split "
            f"takes one layer of {', '.join(sorted(_WIDTH))}."
        )
    config = layer.get_config()
    if config.get("groups", 1) != 1 or config.get("lora_rank"):
        raise SplitnetError(
            f"{kind} {layer.name!r} has groups or a low-rank adaptation, which tie its "
            "outputs together; use net.branch."
        )
    if layer.activity_regularizer is not None:
        raise SplitnetError(
            f"{kind} {layer.name!r} has an activity_regularizer, which reads all "
            "outputs at once; add keras.layers.ActivityRegularization after the split "
            "instead."
        )
    value = config[_WIDTH[kind]]
    if kind == "EinsumDense":
        shape = value if isinstance(value, list | tuple) else (value,)
        return int(shape[-1]), config
    return int(value), config


def _apart(layer: Any) -> Any:
    """The activation that must see all outputs; None if there is none."""
    activation = getattr(layer, "activation", None)
    if activation is None or getattr(activation, "__name__", "") in _ELEMENTWISE:
        return None
    return activation


def _slice(
    layer: Any, config: dict[str, Any], number: int, size: int, *, keep: bool
) -> Any:
    key = _WIDTH[type(layer).__name__]
    value: Any = size
    if key == "output_shape":
        old = config[key]
        value = [*old[:-1], size] if isinstance(old, list | tuple) else size
    changed = {**config, key: value, "name": f"{layer.name}_slice{number}"}
    changed.pop("build_config", None)
    if not keep:
        changed["activation"] = "linear"
    twin = type(layer).from_config(changed)
    twin.trainable = layer.trainable
    return twin


def _give_slices(
    name: str, whole: Any, twin: Any, start: int, size: int, count: int
) -> None:
    """Let a slice's variables stand for their part of the whole layer's."""
    cut = 0
    for mine, its in zip(whole.variables, twin.variables, strict=True):
        axis = _cut_axis(mine, its)
        if axis is None:
            continue
        cut += 1
        private.borrow_value(its, _SliceOf(mine, axis, start, size))
    if cut != len(twin.variables):
        raise SplitnetError(
            f"layer {name!r} has weights that all of its outputs read, so {count} "
            "devices cannot hold a part each; use net.branch."
        )


def _cut_axis(whole: Any, part: Any) -> int | None:
    """The axis along which a variable was cut; None if it was not."""
    differ = [i for i, (a, b) in enumerate(zip(whole.shape, part.shape)) if a != b]
    return differ[0] if len(differ) == 1 else None


def split_outputs(layer: Any, slices: Slices, inputs: Any) -> tuple[list[Any], Any]:
    """Call all slices and put their outputs side by side, under the layer's own name.

    Returns:
        The outputs of the slices, and what the whole layer would give.
    """
    parts = [one(inputs) for one in slices.layers]
    joined = keras.layers.Concatenate(axis=slices.axis, name=f"{layer.name}_join")(
        parts
    )
    if slices.activation is not None:
        made = keras.layers.Activation(slices.activation, name=f"{layer.name}_act")
        joined = made(joined)
    return parts, joined


def join_slices(model: Any, names: Mapping[str, int], device: str) -> Any:
    """A copy of a plain model with whole layers in the place of slices.

    Values, compilation and the optimizer's state are the model's own, put together.

    Args:
        model: a model without a placement.
        names: the name of each layer that was cut, and into how many.
        device: where the values are born.
    """
    layers = {layer.name: layer for layer in model.layers}
    slices = {n: [layers[f"{n}_slice{i}"] for i in range(k)] for n, k in names.items()}
    with private.same_random_state():
        wholes = {n: _joined(n, found, layers) for n, found in slices.items()}
        stand_in: dict[int, Any] = {}
        for name, found in slices.items():
            gone = [*found[1:], layers[f"{name}_join"], layers.get(f"{name}_act")]
            stand_in |= {id(layer): _first_of for layer in gone if layer is not None}
            stand_in[id(found[0])] = wholes[name]
        copies = Copies()
        with private.without_values():
            inputs = keras.tree.map_structure(copy_input, model._inputs_struct)
            outputs, _ = replay(
                model, inputs, lambda one: stand_in.get(id(one)) or copies.of(one)
            )
            made = functional(model, inputs, outputs)
    parts = {id(its): [mine] for mine, its in copies.pairs()}
    for name, found in slices.items():
        for number, variable in enumerate(wholes[name].variables):
            parts[id(variable)] = [one.variables[number] for one in found]
    for variable in made.variables:
        if not private.has_value(variable):
            own = [one.value for one in parts[id(variable)]]
            private.give_value(variable, _Joined(own, tuple(variable.shape)), device)
    copies.carry_assets()
    if model.compiled:
        made.compile(**private.compile_arguments(model))
        _join_state(model.optimizer, made, parts)
    return made


class _Joined:
    """What stands for a whole value, made of its slices."""

    def __init__(self, slices: list[Any], shape: tuple[int, ...]) -> None:
        self.value = _put_together(slices, shape)


def _put_together(slices: list[Any], shape: tuple[int, ...]) -> Any:
    """Slices of a value side by side; one alone is the value."""
    axis = _cut_axis(tf.zeros(shape), slices[0]) if len(slices) > 1 else None
    return tf.convert_to_tensor(slices[0]) if axis is None else tf.concat(slices, axis)


def _join_state(source: Any, model: Any, parts: Mapping[int, list[Any]]) -> None:
    """Give the whole model's optimizer the slots of the slices', put together."""
    if source is None or not source.built:
        return
    model.optimizer.build(model.trainable_variables)
    theirs, mine = all_optimizers(source), all_optimizers(model.optimizer)
    for old, new in zip(theirs, mine, strict=True):
        found: dict[int, list[Any]] = {}
        for slot, variable in slots_of(old):
            found.setdefault(id(variable), []).append(slot.value)
        turn: dict[int, int] = {}
        moved: set[int] = set()
        for slot, variable in slots_of(new):
            kind = turn[id(variable)] = turn.get(id(variable), -1) + 1
            own = [found[id(part)][kind] for part in parts[id(variable)]]
            slot.assign(_put_together(own, tuple(slot.shape)))
            moved.add(id(slot))
        plain = [v for v in new.variables if id(v) not in moved]
        slots = {id(slot) for slot, _ in slots_of(old)}
        rest = [v for v in old.variables if id(v) not in slots]
        for one, other in zip(plain, rest, strict=True):
            one.assign(other.value)


def _joined(name: str, slices: list[Any], layers: Mapping[str, Any]) -> Any:
    """The whole layer that slices came from, not yet built."""
    config = slices[0].get_config()
    key = _WIDTH[type(slices[0]).__name__]
    sizes = [one.get_config()[key] for one in slices]
    if key == "output_shape" and isinstance(sizes[0], list | tuple):
        config[key] = [*sizes[0][:-1], sum(size[-1] for size in sizes)]
    else:
        config[key] = sum(sizes)
    activation = layers.get(f"{name}_act")
    if activation is not None:
        config["activation"] = activation.get_config()["activation"]
    config["name"] = name
    config.pop("build_config", None)
    whole = type(slices[0]).from_config(config)
    whole.trainable = slices[0].trainable
    return whole


def _first_of(given: Any, *_: Any, **__: Any) -> Any:
    """What stands where other slices and their join were: it hands a tensor on."""
    return given[0] if isinstance(given, list | tuple) else given
