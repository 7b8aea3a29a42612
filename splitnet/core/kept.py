"""Which activations are held together, whatever the schedule."""

from collections.abc import Sequence

from splitnet.core.wires import Net

__all__ = ["kept_at_once"]


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
