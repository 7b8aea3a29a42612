"""The layers of slices: some heads of an attention layer, and what joins slices.

    x --+-- heads 0 to 3 (gpu:0) --+-- sum -- what the whole layer gives
        +-- heads 4 to 7 (gpu:1) --+

Each head reads all inputs and adds its share to every output, so slices are summed.
The output's bias belongs to no head: the first slice has it.
"""

import functools
import json
from typing import Any

import keras

from splitnet.tf.internals import keras_api

ATTENTION = {
    kind.__name__: kind
    for kind in (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
}


def _slice_class(whole: Any) -> Any:
    """The class of a slice of an attention layer of class `whole`."""

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
            seen = keras.tree.flatten((args, kwargs))
            masks = [(t, keras_api.mask_of(t)) for t in seen]
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


HEAD_SLICES = {name: _slice_class(kind) for name, kind in ATTENTION.items()}


@keras.saving.register_keras_serializable("splitnet")
class SliceJoin(keras.layers.Layer):
    """What joins the slices of a layer, with the mask that each of them hands on.

    They are put side by side along an axis, or summed without one. `whole` is the layer
    as Keras saves it, without its name, for plans are matched with models of other
    names. Its `activation` is here if it looks at several outputs at once.
    """

    def __init__(
        self, *, whole: str, axis: int | None, activation: Any = None, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.whole, self.axis = whole, axis
        self.activation = keras.activations.get(activation)
        self.supports_masking = True

    def whole_layer(self) -> Any:
        """The layer that was cut, not yet built."""
        whole = keras.saving.deserialize_keras_object(json.loads(self.whole))
        whole.name = self.name.removesuffix("_join")
        return whole

    def call(self, inputs: Any) -> Any:
        """Join the slices in their order."""
        if self.axis is None:
            return functools.reduce(keras.ops.add, inputs)
        return self.activation(keras.ops.concatenate(inputs, self.axis))

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the first slice: they all have the same."""
        return mask[0] if isinstance(mask, list | tuple) else mask

    def get_config(self) -> dict[str, Any]:
        """Its arguments."""
        activation = keras.activations.serialize(self.activation)
        own = {"whole": self.whole, "axis": self.axis, "activation": activation}
        return super().get_config() | own
