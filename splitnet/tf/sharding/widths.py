"""Which layers can be cut, along which axis, and how wide they are there."""

from typing import Any

import keras

from splitnet.core.errors import SplitnetError

__all__ = ["COUNTED", "axis_of", "checked_config", "extent", "resized"]

# What says how wide a layer is: the first is cut, the others by the same proportion.
COUNTED = {
    "Conv1D": ("filters",),
    "Conv2D": ("filters",),
    "Conv3D": ("filters",),
    "Conv1DTranspose": ("filters",),
    "Conv2DTranspose": ("filters",),
    "Conv3DTranspose": ("filters",),
    "Dense": ("units",),
    "EinsumDense": ("output_shape",),
    "Embedding": ("output_dim",),
    "GroupedQueryAttention": ("num_key_value_heads", "num_query_heads"),
    "MultiHeadAttention": ("num_heads",),
}


def checked_config(layer: Any) -> dict[str, Any]:
    """A layer's configuration.

    Raises:
        SplitnetError: it cannot be cut; the reason.
    """
    kind = type(layer).__name__
    if kind not in COUNTED or not type(layer).__module__.startswith("keras."):
        raise SplitnetError(
            f"its body is {layer!r}, which cannot be cut along its outputs. net.split "
            f"takes one layer of {', '.join(sorted(COUNTED))}."
        )
    config = layer.get_config()
    if config.get("groups", 1) != 1 or config.get("lora_rank"):
        raise SplitnetError(
            f"{kind} {layer.name!r} has groups or a low-rank adaptation, which tie its "
            "outputs together; use net.branch."
        )
    if any(
        getattr(layer, name, None) is not None
        for name in ("activity_regularizer", "_activity_regularizer")
    ):
        raise SplitnetError(
            f"{kind} {layer.name!r} has an activity_regularizer, which reads all "
            "outputs at once; add keras.layers.ActivityRegularization after the split "
            "instead."
        )
    if getattr(layer, "quantization_mode", None):
        raise SplitnetError(
            f"{kind} {layer.name!r} is quantized to {layer.quantization_mode}, which "
            "its slices would not be; use net.branch."
        )
    activation = getattr(layer, "activation", None)
    if (
        isinstance(activation, keras.layers.Layer)
        and type(activation).build is not keras.layers.Layer.build
    ):
        raise SplitnetError(
            f"{kind} {layer.name!r} has an activation with weights of its own, "
            f"{activation.name!r}; make that a branch behind the split."
        )
    return config


def axis_of(layer: Any, config: dict[str, Any], count: int) -> int:
    """The axis of the output that is cut, from its end.

    That of an einsum must come from the kernel alone, and the bias must have it: the
    last such axis that is wide enough.

    Raises:
        SplitnetError: there is none.
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
    return next((a for a in axes if extent(shape, a) >= count), axes[0])


def extent(value: Any, axis: int) -> int:
    """How wide a layer is, by the first figure that counts it."""
    return int(value[axis] if isinstance(value, list | tuple) else value)


def resized(value: Any, first: Any, size: int, axis: int) -> Any:
    """A figure for a slice of `size`, in proportion to the first."""
    if isinstance(value, list | tuple):
        shape = list(value)
        shape[axis] = size
        return shape
    return size if isinstance(first, list | tuple) else value * size // first
