"""Which activations are kept for the backward pass, and which surely together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitnet.core.costs.roofline import VIEWS
from splitnet.core.graph import Call, Tensor
from splitnet.simulator.wires import Net

__all__ = ["Keeps", "keeps_of", "keeps_of_group", "kept_at_once"]


@dataclass(frozen=True, slots=True)
class Keeps:
    """What a unit's backward pass reads of what the unit made, in bytes.

    `inner` are neither its inputs nor its outputs, `output` those of its outputs.
    `view` says that its output is its input's memory.
    """

    inner: int = 0
    output: int = 0
    view: bool = False


def keeps_of(call: Call, has_backward: bool) -> Keeps:
    """What a call keeps of its own; where nobody says, its outputs count first."""
    view = call.kind in VIEWS and not call.kind.startswith("Input")
    if not has_backward:
        return Keeps(view=view)
    if call.inner_bytes is None:
        output = min(call.activation_bytes, call.output_bytes)
        return Keeps(call.activation_bytes - output, output, view)
    return Keeps(call.inner_bytes, call.output_bytes * call.keeps_output, view)


def keeps_of_group(
    calls: Sequence[Call], readers: Mapping[str, Sequence[Tensor]]
) -> tuple[int | None, frozenset[str]]:
    """What calls that run as one keep between them, and whose outputs are in that.

    Args:
        calls: in running order.
        readers: name of a call -> its tensors on their way to others of the group.

    Returns:
        Bytes, each tensor once, inputs of the group left out; None where a call does
        not say. Names of the calls whose outputs are kept.
    """
    kept: set[str] = set()
    views = {call.name for call in calls if call.kind in VIEWS}
    total = 0
    for call in reversed(calls):
        if call.inner_bytes is None:
            return None, frozenset()
        total += call.inner_bytes
        read = {
            tensor.index: tensor.bytes
            for tensor in readers.get(call.name, ())
            if tensor.kept or (tensor.target in views and tensor.target in kept)
        }
        if read or call.keeps_output:
            kept.add(call.name)
            whole = call.keeps_output or call.name in views
            size = call.output_bytes if whole else sum(read.values())
            total += 0 if call.name in views else size
    return total, frozenset(kept)


def kept_at_once(
    nets: Sequence[Net], has_backward: Sequence[bool], activation_bytes: Sequence[int]
) -> list[int]:
    """The bytes of each unit's activations that are surely held at one moment.

    A backward pass begins at an end of the graph when its forward pass is over, and all
    that leads there waits for it. Several ends may begin one after the other, so that
    only what the fullest of them keeps is certain. Units stand in running order.
    """
    count = len(has_backward)
    readers: list[list[int]] = [[] for _ in range(count)]
    for net in nets:
        readers[net.source] += net.backward
    leads_to = [0] * count  # a bit for each end
    held: list[int] = []
    for unit in reversed(range(count)):
        if not has_backward[unit]:
            continue
        if not readers[unit]:
            leads_to[unit] = 1 << len(held)
            held.append(0)
        for reader in readers[unit]:
            leads_to[unit] |= leads_to[reader]
        rest = leads_to[unit]
        while rest:
            lowest = rest & -rest
            held[lowest.bit_length() - 1] += activation_bytes[unit]
            rest ^= lowest
    fullest = 1 << held.index(max(held)) if held else 0
    return [
        size if reached & fullest else 0
        for reached, size in zip(leads_to, activation_bytes)
    ]
