"""Split layers: one wide layer as narrower ones on several devices.

A layer whose outputs do not read one another is cut along its output axis, and an
attention layer by its heads. Each slice is a layer with its part of the weights; their
outputs are put side by side, or summed. So each device holds its part of weights,
gradients and slots, and what is placed, planned and audited are ordinary layers.
`tf/parallel/unsharding.py` makes one layer of them again.
"""

import json
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import SplitnetError
from splitnet.core.replication import batch_shares
from splitnet.tf.internals import keras_api
from splitnet.tf.sharding.heads import ATTENTION, HEAD_SLICES, SliceJoin

# What says how wide a layer is: the first is cut, the others by the same proportion.
COUNTED = {
    **{f"Conv{n}D{t}": ("filters",) for n in (1, 2, 3) for t in ("", "Transpose")},
    "Dense": ("units",),
    "EinsumDense": ("output_shape",),
    "Embedding": ("output_dim",),
    "GroupedQueryAttention": ("num_key_value_heads", "num_query_heads"),
    "MultiHeadAttention": ("num_heads",),
}
# Activations that look at one output at a time; any other runs on all, where they join.
_ELEMENTWISE = frozenset(
    {"celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "hard_tanh"}
    | {"leaky_relu", "linear", "log_sigmoid", "mish", "relu", "relu6", "selu"}
    | {"sigmoid", "silu", "softplus", "softsign", "tanh"}
)
# Regularizers and constraints that look at one number at a time.
_BY_NUMBER = ("L1", "L2", "L1L2", "NoneType", "NonNeg")


class _SliceOf:
    """What stands for a slice of a variable's value, or of its initializer's."""

    def __init__(self, whole: Any, axis: int, start: int, size: int) -> None:
        self._whole, self._axis, self._start, self._size = whole, axis, start, size

    @property
    def value(self) -> Any:
        """The slice, cut on the host: the whole may have no room on a device.

        Scopes merge: without None, a worker's CPU would be the host.
        """
        with tf.device(None), tf.device("/device:CPU:0"):
            whole = tf.convert_to_tensor(self._whole.value)
            rows = slice(self._start, self._start + self._size)
            return whole[(*[slice(None)] * self._axis, rows)]


def cut_layer(
    layer: Any,
    count: int,
    inputs: Any,
    copies: Any,
    call: Callable[[Any, Any], Any],
) -> tuple[list[Any], Any]:
    """Cut a layer into slices without values, call them, and join what they give.

    The slices begin with the values that the whole layer has or would be initialized
    with. To be called where layers are built without values: `copies` is the cloner
    there, and `call` calls a layer with the inputs. Returns the outputs of the slices,
    and what the whole layer would give.

    Raises:
        SplitnetError: a layer that cannot be cut so.
    """
    kind = type(layer).__name__
    config = _checked_config(layer)
    axis = _axis_of(layer, config, count)
    width = _extent(config[COUNTED[kind][0]], axis)
    if width < count:
        what = "heads" if kind in ATTENTION else "outputs"
        raise SplitnetError(
            f"{kind} {layer.name!r} has {width} {what}, which cannot be cut "
            f"over {count} devices."
        )
    whole = copies.of(layer)
    if not isinstance(call(whole, inputs), keras.KerasTensor):
        raise SplitnetError(
            f"{kind} {layer.name!r} gives several outputs here, and slices "
            "are joined to one; use net.branch."
        )
    source = layer if layer.built else whole
    activation = getattr(layer, "activation", None)
    if getattr(activation, "__name__", "") in _ELEMENTWISE:
        activation = None  # each slice has it; any other must see all outputs
    start, parts = 0, []
    for number, size in enumerate(batch_shares(width, count)):
        changed = _config(layer, config, (number, count, size), axis)
        if activation is not None:
            changed["activation"] = "linear"
        clone = HEAD_SLICES.get(kind, type(layer)).from_config(changed)
        clone.trainable = layer.trainable
        parts.append(call(clone, inputs))
        _give_slices(layer, source, clone, (start, size, width))
        start += size
    saved = keras.saving.serialize_keras_object(layer)
    saved.pop("build_config", None)
    del saved["config"]["name"]
    joined = SliceJoin(
        whole=json.dumps(saved),
        axis=None if kind in ATTENTION else axis,
        activation=activation,
        name=f"{layer.name}_join",
        dtype=layer.dtype_policy,
    )
    return parts, joined(parts)


def _checked_config(layer: Any) -> dict[str, Any]:
    kind = type(layer).__name__
    if kind not in COUNTED or not keras_api.from_keras(layer):
        raise SplitnetError(
            f"its body is {layer!r}, which cannot be cut along its outputs. net.split "
            f"takes one layer of {', '.join(sorted(COUNTED))}."
        )
    config: dict[str, Any] = layer.get_config()
    activation = getattr(layer, "activation", None)
    trained = isinstance(activation, keras.layers.Layer) and (
        type(activation).build is not keras.layers.Layer.build
    )
    reads_all = ("activity_regularizer", "_activity_regularizer")
    obstacles = {
        "has groups or a low-rank adaptation, which tie its outputs together; use "
        "net.branch.": config.get("groups", 1) != 1 or config.get("lora_rank"),
        "has an activity_regularizer, which reads all outputs at once; add "
        "keras.layers.ActivityRegularization after the split instead.": any(
            getattr(layer, name, None) is not None for name in reads_all
        ),
        "is quantized, which its slices would not be; use net.branch.": getattr(
            layer, "quantization_mode", None
        ),
        "has an activation with weights of its own; make that a branch behind the "
        "split.": trained,
    }
    for why, found in obstacles.items():
        if found:
            raise SplitnetError(f"{kind} {layer.name!r} {why}")
    return config


def _axis_of(layer: Any, config: dict[str, Any], count: int) -> int:
    """The axis of the output that is cut.

    That of an einsum must come from the kernel alone, and the bias must have it: the
    last such axis that is wide enough.
    """
    if type(layer).__name__ != "EinsumDense":
        return 1 if getattr(layer, "data_format", None) == "channels_first" else -1
    given, made = config["equation"].replace(" ", "").split("->")
    read, kernel = given.split(",")
    own, bias = set(kernel) - set(read), config["bias_axes"] or kernel
    ends = made[1:].rpartition("...")[2]  # the first is the batch
    axes = [-i for i in range(1, len(ends) + 1) if ends[-i] in own & set(bias)]
    if not axes:
        raise SplitnetError(
            f"EinsumDense {layer.name!r} computes {config['equation']!r}"
            f"{' with a bias along ' + bias if config['bias_axes'] else ''}, where no "
            "axis of the output, seen from its end, comes from the weights alone; use "
            "net.branch."
        )
    shape = config["output_shape"]
    return next((a for a in axes if _extent(shape, a) >= count), axes[0])


def _extent(value: Any, axis: int) -> int:
    return int(value[axis] if isinstance(value, list | tuple) else value)


def _config(
    layer: Any, config: dict[str, Any], share: tuple[int, int, int], axis: int
) -> dict[str, Any]:
    """The configuration of slice `number` of `count`, with its share of outputs."""
    number, count, size = share
    kind = type(layer).__name__
    changed = {**config, "name": f"{layer.name}_slice{number}"}
    changed.pop("build_config", None)
    for key in COUNTED[kind]:
        if isinstance(config[key], list | tuple):
            changed[key] = list(config[key])
            changed[key][axis] = size
        else:  # in proportion to the first
            changed[key] = config[key] * size // _extent(config[COUNTED[kind][0]], axis)
    if isinstance(changed.get("seed"), int):
        changed["seed"] += number  # else all slices would drop the same
    if kind in ATTENTION:
        changed |= {"slice_number": number, "slice_count": count}
    return changed


def _give_slices(
    layer: Any, whole: Any, clone: Any, share: tuple[int, int, int]
) -> None:
    """Let a slice's variables stand for their part of the whole layer's."""
    start, size, width = share
    for mine, its in matched(whole, clone):
        if its.name == "seed_generator_state":
            continue
        axis = cut_axis(mine, its)
        if axis is not None:
            _check_rules(layer, mine, axis)
            each = mine.shape[axis] // width
            own = _SliceOf(mine, axis, start * each, size * each)
            keras_api.borrow_value(its, own)
        elif not start and type(layer).__name__ in ATTENTION:
            keras_api.borrow_value(its, mine)
        else:
            raise SplitnetError(
                f"layer {layer.name!r} has weights that all of its outputs read "
                f"({mine.path}), so no device can hold a part of them; use net.branch."
            )


def matched(whole: Any, clone: Any) -> list[tuple[Any, Any]]:
    """Each variable of a slice with the whole layer's; a slice may lack the last."""
    rest = iter(whole.variables)
    return [
        (next(mine for mine in rest if mine.name == its.name), its)
        for its in clone.variables
    ]


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
                f"{variable.name!r} looks along axis {axis}, which is cut, so no slice "
                "can follow it by itself; use net.branch, or another rule."
            )
