"""Split layers: one wide layer as narrower ones on several devices.

A layer whose outputs do not read one another is cut along its output axis, and an
attention layer by its heads. Each slice is a layer with its part of the weights; their
outputs are put side by side, or summed, since each head adds its share to every output.
The output's bias belongs to no head: the first slice has it.
`tf/parallel/splitting.py` makes one layer of them again.

    x --+-- heads 0 to 3 (gpu:0) --+-- sum -- what the whole layer gives
        +-- heads 4 to 7 (gpu:1) --+
"""

import functools
import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import SplitnetError
from splitnet.core.replication import batch_shares
from splitnet.tf.internals import keras_api
from splitnet.tf.reading.rebuild import config_of

_TABLE = tomllib.loads(Path(__file__).with_name("slices.toml").read_text("utf-8"))
_WIDTHS = _TABLE["widths"]
_ELEMENTWISE, _BY_NUMBER = map(str.split, _TABLE["by_number"].values())


def _slice_of(whole: Any, axis: int, start: int, size: int) -> Any:
    """A slice of a value, cut on the host: the whole may have no room on a device."""
    # Scopes merge: without None, a worker's CPU would be the host.
    with tf.device(None), tf.device("/device:CPU:0"):
        value = tf.convert_to_tensor(whole.value)
        return value[(*[slice(None)] * axis, slice(start, start + size))]


def cut_layer(
    layer: Any, count: int, copies: Any, call: Callable[[Any], Any]
) -> tuple[list[Any], Any]:
    """Cut a layer into slices without values, call them, and join what they give.

    Their values are those of the whole layer, or of its initializers. `copies` is a
    cloner of layers without values, `call` calls one with the inputs. Returns the
    outputs of the slices and of the join; a SplitnetError says what prevents that.
    """
    kind, config = type(layer).__name__, _checked_config(layer)
    attends, who = kind in HEAD_SLICES, f"{kind} {layer.name!r}"
    axis = _axis_of(layer, config, count)
    width = _extent(config[_WIDTHS[kind][0]], axis)
    if width < count:
        what = f"{width} {'heads' if attends else 'outputs'}, which cannot be cut"
        raise SplitnetError(f"{who} has {what} over {count} devices.")
    whole = copies.of(layer)
    if not isinstance(call(whole), keras.KerasTensor):
        why = "gives several outputs, which slices cannot"
        raise SplitnetError(f"{who} {why}; use net.branch.")
    source = layer if layer.built else whole
    activation = getattr(layer, "activation", None)
    known = activation and keras_api.from_keras(activation)
    if known and getattr(activation, "__name__", "") in _ELEMENTWISE:
        activation = None  # each slice has it; any other must see all outputs
    start, parts = 0, []
    for number, size in enumerate(batch_shares(width, count)):
        changed = {**config, "name": f"{layer.name}_slice{number}"}
        for key in _WIDTHS[kind]:
            if isinstance(config[key], list | tuple):
                changed[key] = list(config[key])
                changed[key][axis] = size
            else:  # in proportion to the first
                changed[key] = config[key] * size // width
        if isinstance(changed.get("seed"), int):
            changed["seed"] += number  # else all slices would drop the same
        if activation is not None:
            changed["activation"] = "linear"
        if attends:
            changed |= {"slice_number": number, "slice_count": count}
        clone = HEAD_SLICES.get(kind, type(layer)).from_config(changed)
        parts.append(call(clone))
        _give_slices(layer, source, clone, (start, size, width))
        start += size
    saved = keras.saving.serialize_keras_object(layer)
    saved.pop("build_config", None)
    del saved["config"]["name"]
    how = {"name": f"{layer.name}_join", "dtype": layer.dtype_policy}
    how |= {"axis": None if attends else axis, "activation": activation}
    return parts, SliceJoin(whole=json.dumps(saved), **how)(parts)


def _checked_config(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    if kind not in _WIDTHS or not keras_api.from_keras(layer):
        fault = f"its body is {layer!r}, which cannot be cut along its outputs"
        raise SplitnetError(f"{fault}; these can: {', '.join(sorted(_WIDTHS))}.")
    config = config_of(layer)
    activation = getattr(layer, "activation", None)
    obstacles = {
        "groups": config.get("groups", 1) != 1,
        "a low-rank adaptation": config.get("lora_rank"),
        "an activity_regularizer": config.get("activity_regularizer"),
        "quantized weights": getattr(layer, "quantization_mode", None),
        "an activation with weights": isinstance(activation, keras.layers.Layer)
        and type(activation).build is not keras.layers.Layer.build,
    }
    if found := [what for what, has in obstacles.items() if has]:
        why = "which its slices cannot have each for itself; use net.branch"
        raise SplitnetError(f"{kind} {layer.name!r} has {' and '.join(found)}, {why}.")
    return config


def _axis_of(layer: Any, config: dict[str, Any], count: int) -> int:
    """The axis of the output that is cut; of an einsum the last that is wide enough."""
    if type(layer).__name__ != "EinsumDense":
        return 1 if getattr(layer, "data_format", None) == "channels_first" else -1
    given, made = config["equation"].replace(" ", "").split("->")
    read, kernel = given.split(",")
    own, bias = set(kernel) - set(read), config["bias_axes"] or kernel
    ends = made[1:].rpartition("...")[2]  # the first is the batch
    axes = [-i for i in range(1, len(ends) + 1) if ends[-i] in own & set(bias)]
    if not axes:
        raise SplitnetError(
            f"EinsumDense {layer.name!r} computes {config['equation']!r}, where no "
            "axis of the output, seen from its end, comes from kernel and bias alone; "
            "use net.branch."
        )
    shape = config["output_shape"]
    return next((a for a in axes if _extent(shape, a) >= count), axes[0])


def _extent(value: Any, axis: int) -> int:
    return int(value[axis] if isinstance(value, list | tuple) else value)


def _give_slices(layer: Any, whole: Any, part: Any, cut: tuple[int, int, int]) -> None:
    """Give a slice its part of each variable of the whole layer, frozen alike."""
    start, size, width = cut
    keras_api.freeze_alike(part, whole)
    for mine, its in matched(whole, part):
        its.trainable = mine.trainable
        if its.name == "seed_generator_state":
            continue
        if (axis := cut_axis(mine, its)) is not None:
            _check_rules(layer, mine, axis)
            each = mine.shape[axis] // width
            value = functools.partial(_slice_of, mine, axis, start * each, size * each)
            keras_api.borrow_value(its, value)
        elif not start and type(layer).__name__ in HEAD_SLICES:
            keras_api.copy_value(its, mine)
        else:
            raise SplitnetError(
                f"layer {layer.name!r} has weights that all of its outputs read "
                f"({mine.path}), so no device can hold a part of them; use net.branch."
            )


def matched(whole: Any, clone: Any) -> list[tuple[Any, Any]]:
    """Each variable of a slice with the whole layer's; a slice may lack the last."""
    rest = iter(whole.variables)
    return [(next(x for x in rest if x.name == v.name), v) for v in clone.variables]


def cut_axis(whole: Any, part: Any) -> int | None:
    """The axis along which a variable was cut; None if it was not."""
    differ = [i for i, (a, b) in enumerate(zip(whole.shape, part.shape)) if a != b]
    return differ[0] if len(differ) == 1 else None


def _check_rules(layer: Any, variable: Any, axis: int) -> None:
    """Refuse a regularizer or constraint that may look from one slice into another."""
    for rule in (variable.regularizer, variable.constraint):
        along = keras.tree.flatten(getattr(rule, "axis", axis))
        across = axis in (one % len(variable.shape) for one in along)
        if across and type(rule).__name__ not in _BY_NUMBER:
            raise SplitnetError(
                f"{type(layer).__name__} {layer.name!r}: {type(rule).__name__} of "
                f"{variable.name!r} looks along axis {axis}, which is cut; use "
                "net.branch, or another rule."
            )


def _slice_class(whole: Any) -> Any:
    class HeadSlice(whole):
        def __init__(
            self, *args: Any, slice_number: int = 0, slice_count: int = 1, **kwargs: Any
        ) -> None:
            super().__init__(*args, **kwargs)
            self.slice_number, self.slice_count = slice_number, slice_count

        @functools.wraps(whole.build)
        def build(self, *args: Any, **kwargs: Any) -> None:
            super().build(*args, **kwargs)
            output = self._output_dense
            if self.slice_number and output.bias is not None:
                del output.bias
                output.bias, output.bias_axes = None, None

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Attention takes the masks off what it reads; so may the last slice."""
            flat = keras.tree.flatten((args, kwargs))
            masks = [(tensor, keras_api.mask_of(tensor)) for tensor in flat]
            made = super().__call__(*args, **kwargs)
            if self.slice_number < self.slice_count - 1:
                for tensor, mask in masks:
                    if mask is not None:
                        keras_api.set_mask(tensor, mask)
            return made

        def get_config(self) -> dict[str, Any]:
            own = {"slice_number": self.slice_number, "slice_count": self.slice_count}
            return super().get_config() | own

    HeadSlice.__name__ = HeadSlice.__qualname__ = f"{whole.__name__}Slice"
    return keras.saving.register_keras_serializable("splitnet")(HeadSlice)


HEAD_SLICES = {
    kind.__name__: _slice_class(kind)
    for kind in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
}
"""The class of slices of each attention layer, by its name."""


@keras.saving.register_keras_serializable("splitnet")
class SliceJoin(keras.layers.Layer):
    """What joins the slices of a layer: side by side along an axis, or their sum.

    `whole` is the layer as Keras saves it, without its name, for plans are matched with
    models of other names. Its `activation` is here if it looks at several outputs.
    """

    def __init__(
        self, *, whole: str, axis: int | None, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.whole, self.axis = whole, axis
        self.activation = keras.activations.get(activation)
        self.supports_masking = True  # that of the first slice; all have the same

    def call(self, inputs: Any) -> Any:
        """Join the slices in their order."""
        if self.axis is None:
            return functools.reduce(keras.ops.add, inputs)
        return self.activation(keras.ops.concatenate(inputs, self.axis))

    def get_config(self) -> dict[str, Any]:
        """Its arguments."""
        activation = keras.activations.serialize(self.activation)
        own = {"whole": self.whole, "axis": self.axis, "activation": activation}
        return super().get_config() | own
