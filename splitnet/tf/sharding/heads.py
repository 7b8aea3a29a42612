"""The layers of slices: some heads of an attention layer, and what joins slices.

    x --+-- heads 0 to 3 (gpu:0) --+-- sum -- what the whole layer gives
        +-- heads 4 to 7 (gpu:1) --+

Each head reads all inputs and adds its share to every output, so slices are summed.
The output's bias belongs to no head: the first slice has it.
"""

import functools
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
            self,
            *args: Any,
            slice_number: int = 0,
            slice_count: int = 1,
            **kwargs: Any,
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
class SideBySide(keras.layers.Concatenate):
    """The slices' outputs next to each other, with the mask that each hands on."""

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the first slice: they all have the same."""
        return mask[0] if isinstance(mask, list | tuple) else mask


@keras.saving.register_keras_serializable("splitnet")
class HeadSum(keras.layers.Layer):
    """The sum of what the slices give, with the mask that each of them hands on."""

    def __init__(self, *, name: str | None = None, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.supports_masking = True

    def call(self, inputs: Any) -> Any:
        """Sum the slices in their order, as tensors of one shape."""
        return functools.reduce(keras.ops.add, inputs)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """The mask of the first slice: they all have the same."""
        return mask[0] if isinstance(mask, list | tuple) else mask

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of each slice's output."""
        return tuple(input_shape[0])

    def get_config(self) -> dict[str, Any]:
        """Its name and number format."""
        policy = keras.dtype_policies.serialize(self.dtype_policy)
        return {"name": self.name, "dtype": policy}
