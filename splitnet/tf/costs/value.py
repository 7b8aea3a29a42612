"""The words the formulas speak: sizes in, work out, one cost at the end.

A formula only says what is special about its layer (`Work`). What every layer has in
common (bytes of its tensors, the factor of the backward pass, the notes) is added
once, in `finish`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "UNKNOWN_EXTENT",
    "CallCost",
    "Case",
    "Size",
    "Work",
    "finish",
    "kernel_shape",
    "keras_class",
    "notes_of",
    "size_of",
    "total_bytes",
    "weight_sizes",
]

UNKNOWN_EXTENT = 128
"""Stands for a dimension other than the batch that the model leaves open (None)."""

_ITEM_BYTES = {
    "bool": 1,
    "int4": 1,
    "complex64": 8,
    "complex128": 16,
    "string": 16,
    "bfloat16": 2,
}


@dataclass(frozen=True, slots=True)
class CallCost:
    """What one call costs for one batch; FLOPs count a multiply-add as two.

    `matrix_flops` is the share of `forward_flops` in matrix products and
    convolutions, the number that papers print (twice their "multiply-adds").
    `input_gradient_flops` is the share of `backward_flops` that is spared when no
    input needs a gradient. `moved_bytes` is what the forward pass reads and writes,
    weights included. `workspace_bytes` lives only while the call, or its backward pass,
    runs: temporaries; outputs, and gradients of inputs and outputs, are not in it.

    Kept until the backward pass: the inputs `saves_inputs`, the outputs
    `saves_outputs` and `inner_bytes` of its own. `activation_bytes` is the sum, right
    for the call alone; two calls may keep one tensor, and `settle` counts it once.
    `views` says that the outputs share the memory of the first input; `trained_bytes`
    are the trainable weights, and so the gradient that its backward pass leaves.
    """

    forward_flops: float = 0.0
    backward_flops: float = 0.0
    moved_bytes: float = 0.0
    activation_bytes: int = 0
    workspace_bytes: int = 0
    cpu_only: bool = False
    matrix_flops: float = 0.0
    input_gradient_flops: float = 0.0
    inner_bytes: int = 0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: tuple[int, ...] = ()
    views: bool = False
    trained_bytes: int = 0
    note: str = ""

    @property
    def trainable(self) -> bool:
        """Whether it has weights that are trained."""
        return self.trained_bytes > 0


@dataclass(frozen=True, slots=True)
class Size:
    """A tensor's shape, every dimension known, and its dtype."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    guessed: bool = False

    @property
    def elements(self) -> int:
        """Number of elements, 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def item_bytes(self) -> int:
        """Bytes of one element; a string counts 16, its header."""
        if self.dtype in _ITEM_BYTES:
            return _ITEM_BYTES[self.dtype]
        digits = "".join(c for c in self.dtype.partition("_")[0] if c.isdigit())
        return max(int(digits[:2] or 32) // 8, 1)

    @property
    def bytes(self) -> int:
        """Bytes of the whole tensor."""
        return self.elements * self.item_bytes

    @property
    def differentiable(self) -> bool:
        """Whether a gradient can come back through it."""
        return "float" in self.dtype or "complex" in self.dtype


@dataclass(frozen=True, slots=True)
class Case:
    """One call as a formula sees it; `args` are None if they are not known."""

    operation: Any
    inputs: tuple[Size, ...]
    outputs: tuple[Size, ...]
    batch: int
    args: tuple[Any, ...] | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def input(self) -> Size:
        """The first input, or a scalar if the call has none."""
        return self.inputs[0] if self.inputs else Size(())

    @property
    def output(self) -> Size:
        """The first output, or a scalar if the call has none."""
        return self.outputs[0] if self.outputs else Size(())


@dataclass(frozen=True, slots=True)
class Work:
    """What a formula found.

    `matrix_flops` multiply by weights, `product_flops` tensors by tensors (both sides
    need a gradient), `other_flops` is everything else. `inner_bytes` are kept until
    the backward pass, `transient_bytes` are neither kept nor input nor output.
    `weight_bytes` overrides the bytes of weights that are read.
    """

    matrix_flops: float = 0.0
    product_flops: float = 0.0
    other_flops: float = 0.0
    saves_inputs: tuple[int, ...] = ()
    saves_outputs: tuple[int, ...] = ()
    inner_bytes: int = 0
    transient_bytes: int = 0
    weight_bytes: int | None = None
    moved_bytes: float | None = None
    views: bool = False
    cpu_only: bool = False
    note: str = ""


def size_of(tensor: Any, batch: int) -> Size:
    """Fill in the open dimensions: the first with `batch`, others with a stand-in."""
    shape = tuple(tensor.shape)
    filled = tuple(
        (batch if axis == 0 else UNKNOWN_EXTENT) if extent is None else int(extent)
        for axis, extent in enumerate(shape)
    )
    dtype = tensor.dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", str(dtype))
    return Size(filled, name, any(extent is None for extent in shape[1:]))


def keras_class(operation: Any) -> str:
    """The Keras class whose `call` it runs; "" if somebody else wrote that `call`."""
    lineage = type(operation).__mro__
    owner = next((cls for cls in lineage if "call" in vars(cls)), object)
    if not _from_keras(owner):
        return ""
    return next(cls.__name__ for cls in lineage if _from_keras(cls))


def _from_keras(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == "keras"


def kernel_shape(layer: Any) -> tuple[int, ...]:
    """Shape of the kernel's variable, which `kernel` may wrap (LoRA)."""
    variable = getattr(layer, "_kernel", None)
    if variable is None:
        variable = layer.kernel
    return tuple(int(extent) for extent in variable.shape)


def weight_sizes(operation: Any, trainable_only: bool = False) -> list[Size]:
    """Sizes of a layer's variables; their values are never touched."""
    name = "trainable_weights" if trainable_only else "weights"
    found: Iterable[Any] = getattr(operation, name, None) or ()
    return [Size(tuple(int(n) for n in w.shape), str(w.dtype)) for w in found]


def total_bytes(sizes: Sequence[Size]) -> int:
    """Sum of the bytes of all."""
    return sum(size.bytes for size in sizes)


def finish(case: Case, work: Work) -> CallCost:
    """Add to a formula's finding what all calls have in common.

    The backward pass of a matrix product costs one product of the same size for the
    weights' gradient (if any weight is trainable) and one for the input's; everything
    else costs as much backward as forward (Rumelhart et al. 1986; the usual "backward
    is twice forward").
    """
    trained = total_bytes(weight_sizes(case.operation, trainable_only=True))
    trainable = trained > 0
    differentiable = any(size.differentiable for size in case.inputs)
    forward = work.matrix_flops + work.product_flops + work.other_flops
    through = work.matrix_flops if trainable else 0.0
    rest = work.product_flops * 2 + work.other_flops
    to_input = work.matrix_flops + (0.0 if trainable else rest)
    if not differentiable:
        to_input = 0.0
    own = through + (rest if trainable else 0.0)
    read = total_bytes(weight_sizes(case.operation))
    if work.weight_bytes is not None:
        read = work.weight_bytes
    inputs, outputs = total_bytes(case.inputs), total_bytes(case.outputs)
    moved = work.moved_bytes
    if moved is None:
        touched = 0 if work.views else inputs + outputs
        moved = touched + read + 2 * (work.inner_bytes + work.transient_bytes)
    backward = own + to_input
    kept = (
        work.inner_bytes
        + sum(case.inputs[i].bytes for i in work.saves_inputs)
        + sum(case.outputs[i].bytes for i in work.saves_outputs)
    )
    return CallCost(
        forward_flops=float(forward),
        backward_flops=float(backward),
        moved_bytes=float(moved),
        activation_bytes=kept,
        workspace_bytes=work.transient_bytes,
        cpu_only=work.cpu_only or _has_strings(case),
        matrix_flops=float(work.matrix_flops + work.product_flops),
        input_gradient_flops=float(to_input),
        inner_bytes=work.inner_bytes,
        saves_inputs=work.saves_inputs,
        saves_outputs=work.saves_outputs,
        views=work.views,
        trained_bytes=trained,
        note=notes_of(case, work.note),
    )


def _has_strings(case: Case) -> bool:
    return any(size.dtype == "string" for size in (*case.inputs, *case.outputs))


def notes_of(case: Case, *notes: str) -> str:
    """What was guessed, joined; says if a dimension had to be."""
    found = [note for note in notes if note]
    if any(size.guessed for size in (*case.inputs, *case.outputs)):
        found.append(f"open dimensions counted as {UNKNOWN_EXTENT}")
    return "; ".join(dict.fromkeys(found))
