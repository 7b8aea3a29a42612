"""What no call knows alone: who keeps a tensor first, and when memory is fullest.

conv -> batch norm -> relu -> conv        o  kept: batch norm and conv read their
     o             .       o                 input again, relu its output
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from splitnet.tf.costs.value import CallCost, size_of

__all__ = ["Made", "kept_among", "peak_bytes", "settle"]

Made = tuple[CallCost, Sequence[Any], Sequence[Any]]
"""A call's cost, its inputs and its outputs; a tensor is known by its identity."""


def settle(
    calls: Sequence[Made], batch: int, *, differentiable: Sequence[Any] = ()
) -> list[CallCost]:
    """Correct the costs of calls by what only all of them together show.

    A kept tensor is charged once, to the call that made it (or to the first that
    keeps it, if its maker is not here or has no backward pass). Where nothing upstream
    is trained there is no gradient to compute for the inputs; a call that is not
    trained either keeps nothing and has no backward pass.

    Args:
        calls: in an order in which they may run. Tensors are the same if they are the
            same object.
        batch: as given to `cost_of`.
        differentiable: tensors from outside that need a gradient.

    Returns:
        One cost per call, in order, with `activation_bytes` and `backward_flops`
        corrected.
    """
    held = _held(calls, batch, differentiable)
    kept = list(held.inner)
    for one in held.tensors.values():
        kept[one.owner] += one.bytes
    return [
        replace(_without_gradient(call[0], flows), activation_bytes=count)
        for call, flows, count in zip(calls, held.flows, kept)
    ]


@dataclass(slots=True)
class _Tensor:
    """A kept tensor: who pays, and the first of the calls that keep it."""

    bytes: int
    owner: int
    first: int


@dataclass(frozen=True, slots=True)
class _Held:
    """Per call: bytes of its own that it keeps, whether a gradient flows through it."""

    inner: list[int]
    flows: list[bool]
    tensors: dict[int, _Tensor]

    def active(self, calls: Sequence[Made], index: int) -> bool:
        """Whether a call has a backward pass."""
        return self.flows[index] or calls[index][0].trainable


def _held(calls: Sequence[Made], batch: int, differentiable: Sequence[Any]) -> _Held:
    root, maker = _roots(calls), _makers(calls)
    active = {id(tensor) for tensor in differentiable}
    held = _Held([], [], {})
    for index, (cost, inputs, outputs) in enumerate(calls):
        flows = any(id(tensor) in active for tensor in inputs)
        held.flows.append(flows)
        held.inner.append(cost.inner_bytes if flows or cost.trainable else 0)
        if not flows and not cost.trainable:
            continue
        active.update(id(t) for t in outputs if size_of(t, batch).differentiable)
        for tensor in _saved(cost, inputs, outputs):
            key = root.get(id(tensor), id(tensor))
            size = size_of(tensor, batch).bytes
            owner = maker.get(key, index)
            if owner < index and not held.active(calls, owner):
                owner = index
            held.tensors.setdefault(key, _Tensor(size, owner, index))
    return held


def _without_gradient(cost: CallCost, flows: bool) -> CallCost:
    if flows:
        return cost
    if not cost.trainable:
        return replace(cost, backward_flops=0.0, input_gradient_flops=0.0)
    spared = cost.backward_flops - cost.input_gradient_flops
    return replace(cost, backward_flops=spared, input_gradient_flops=0.0)


def kept_among(calls: Sequence[Made], tensors: Sequence[Any]) -> tuple[int, ...]:
    """Positions of those tensors that some call keeps."""
    root = _roots(calls)
    kept = {
        root.get(id(tensor), id(tensor))
        for cost, inputs, outputs in calls
        for tensor in _saved(cost, inputs, outputs)
    }
    return tuple(i for i, t in enumerate(tensors) if root.get(id(t), id(t)) in kept)


def peak_bytes(
    calls: Sequence[Made],
    batch: int,
    *,
    differentiable: Sequence[Any] = (),
    gradients: bool = True,
    outside: Sequence[Any] = (),
) -> int:
    """The most that is held at one moment when the calls run one after another.

    Forward in order, then backward in reverse. A kept tensor stays until the backward
    pass of the first call that keeps it, an output that nobody keeps until its last
    reader, the gradient of a tensor from its reader's backward pass to its maker's.

    Args:
        calls: in running order, settled or not.
        batch: as given to `cost_of`.
        differentiable: tensors from outside that need a gradient.
        gradients: whether weights' gradients count, from their call's backward pass on.
        outside: tensors that somebody else pays for, and their gradients.
    """
    held = _held(calls, batch, differentiable)
    root, maker = _roots(calls), _makers(calls)
    size = {
        id(tensor): size_of(tensor, batch).bytes
        for _, inputs, outputs in calls
        for tensor in (*inputs, *outputs)
    }
    for tensor in outside:
        size[id(tensor)] = 0
        held.tensors.pop(id(tensor), None)
    forward, kept = _forward_peak(calls, held, size, root)
    backward = _backward_peak(calls, held, kept, size, root, maker, gradients)
    return max(forward, backward)


def _forward_peak(
    calls: Sequence[Made], held: _Held, size: dict[int, int], root: dict[int, int]
) -> tuple[int, int]:
    """The fullest moment, and what is left when the last call is done."""
    last = {
        root.get(id(t), id(t)): index
        for index, (_, inputs, outputs) in enumerate(calls)
        for t in (*outputs, *inputs)
    }
    gone: dict[int, list[int]] = {}
    for key, index in last.items():
        gone.setdefault(index, []).append(key)
    made: set[int] = set()
    now = fullest = 0
    for index, (cost, inputs, outputs) in enumerate(calls):
        now += held.inner[index]
        for key in dict.fromkeys(id(t) for t in (*inputs, *outputs)):
            if (
                key not in made
                and key not in root
                and (key in held.tensors or any(id(t) == key for t in outputs))
            ):
                made.add(key)
                now += size[key]
        fullest = max(fullest, now + cost.workspace_bytes)
        for key in gone.get(index, ()):
            if key in made and key not in held.tensors:
                now -= size[key]
    return fullest, now


def _backward_peak(
    calls: Sequence[Made],
    held: _Held,
    kept: int,
    size: dict[int, int],
    root: dict[int, int],
    maker: dict[int, int],
    gradients: bool,
) -> int:
    freed: dict[int, int] = {}
    for tensor in held.tensors.values():
        freed[tensor.first] = freed.get(tensor.first, 0) + tensor.bytes
    fullest = weights = 0
    pending: dict[int, int] = {}
    for index in reversed(range(len(calls))):
        cost, inputs, outputs = calls[index]
        if held.flows[index]:
            for tensor in inputs:
                key = root.get(id(tensor), id(tensor))
                if key in maker:
                    pending.setdefault(key, size[id(tensor)])
        if held.flows[index] or cost.trainable:
            weights += cost.trained_bytes if gradients else 0
            flowing = kept + sum(pending.values()) + weights
            fullest = max(fullest, flowing + cost.workspace_bytes)
        kept -= held.inner[index] + freed.get(index, 0)
        for tensor in outputs:
            pending.pop(id(tensor), None)
    return fullest


def _saved(cost: CallCost, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    return [inputs[i] for i in cost.saves_inputs] + [
        outputs[i] for i in cost.saves_outputs
    ]


def _roots(calls: Sequence[Made]) -> dict[int, int]:
    """For each output that is a view, the tensor whose memory it shares."""
    root: dict[int, int] = {}
    for cost, inputs, outputs in calls:
        if cost.views and inputs:
            for tensor in outputs:
                root[id(tensor)] = root.get(id(inputs[0]), id(inputs[0]))
    return root


def _makers(calls: Sequence[Made]) -> dict[int, int]:
    """The call that made each tensor, views left out."""
    maker: dict[int, int] = {}
    for index, (cost, _, outputs) in enumerate(calls):
        if not cost.views:
            for tensor in outputs:
                maker.setdefault(id(tensor), index)
    return maker
