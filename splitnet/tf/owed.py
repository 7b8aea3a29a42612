"""What gradients a traced step can send between devices, by what its parts read.

An op that reads a tensor from another device has one gradient for it at most. It goes
to where the tensor was made; and where that was an addition, which hands its gradient
on without an op, it may go at once to what was added, unless other devices read the sum
too.

    a (gpu:0) --+
                +-- sum (cpu) -- op (gpu:1)      gpu:1 owes to cpu, gpu:0 and gpu:2
    b (gpu:2) --+
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from splitnet.tf.audit.partition_graphs import Names, count_of
from splitnet.tf.marks import PASSING, where

__all__ = ["owed_bytes"]

Road = tuple[str, str, str]


def owed_bytes(
    graphs: Sequence[Any], names: Names, batch: int
) -> dict[Road, float] | None:
    """The most bytes of gradients over each road: (reader, maker, kind); None unknown.

    What has no known size is infinite. O(operations + edges), but for chains of
    additions on other devices, which each reader follows.
    """
    if not graphs:
        return None
    owed: Counter[Road] = Counter()
    for graph in graphs:
        readers = [
            (tensor, here)
            for op in graph.get_operations()
            if _has_gradient(op) and (here := _place(op, names))
            for tensor in op.inputs
            if tensor.dtype.is_floating
        ]
        users: dict[int, dict[str, None]] = {}
        for tensor, here in readers:
            for one in _copies(tensor):
                users.setdefault(id(one), {})[here] = None
        known: dict[tuple[int, str], dict[tuple[str, str], None]] = {}
        for tensor, here in readers:
            count = count_of(tensor, batch)
            size = float("inf") if count is None else count * tensor.dtype.size
            for maker, kind in _makers(tensor, here, users, names, known):
                owed[here, maker, kind] += size
    return dict(owed)


def _has_gradient(op: Any) -> bool:
    """Whether it is of the forward pass, and makes numbers that may have gradients."""
    forward = "gradient_tape/" not in op.name and op.type != "Identity"
    return forward and any(made.dtype.is_floating for made in op.outputs)


def _place(op: Any, names: Names) -> str:
    """Where an op's part is; of one of no part, where it was put; "" if unknown."""
    put = names.device(op.device) if op.device else ""
    return names.planned(op.name) or put


def _copies(tensor: Any) -> Iterator[Any]:
    """The tensor, and what it is a copy of."""
    yield tensor
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
        yield tensor


def _makers(
    tensor: Any,
    here: str,
    users: dict[int, dict[str, None]],
    names: Names,
    known: dict[tuple[int, str], dict[tuple[str, str], None]],
) -> Iterable[tuple[str, str]]:
    """The other devices on the way back of a gradient, each once, and its kind."""
    found: dict[tuple[str, str], None] = {}
    todo = [tensor]
    while todo:
        first = todo.pop()
        if (id(first), here) in known:
            found |= known[id(first), here]
            continue
        for one in _copies(first):
            device, kind = _made_on(one, names)
            if device and device != here:
                found[device, kind] = None
        if one.op.type in PASSING and list(users.get(id(one), ())) == [here]:
            todo += one.op.inputs
    known[id(tensor), here] = found
    return found


def _made_on(tensor: Any, names: Names) -> tuple[str, str]:
    if tensor.op.type == "ReadVariableOp":
        return names.device(where(tensor)), "weights gradient"
    return names.planned(tensor.op.name), "gradient"
