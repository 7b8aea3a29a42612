"""What a worker's process holds beside the tensors of a step."""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from splitnet.simulator.arena import SMALLEST_BYTES, arena_bytes
from splitnet.simulator.engine import Run
from splitnet.simulator.step import Step

__all__ = [
    "Held",
    "messages",
    "peak_bytes",
    "resident_bytes",
    "running_bytes",
]

Held = tuple[float, float, int]
"""Seconds from and to, bytes."""

# Measured on CPU workers: what is loaded and generated once.
_PROCESS_BYTES = 4_000_000


def running_bytes(step: Step, device: Sequence[int], where: int) -> int:
    """What a worker's processor needs to run its calls at all; 0 on other devices."""
    if not step.deep_first or not step.deep_first[where]:
        return 0
    here = [unit for unit, home in enumerate(device) if home == where]
    if not here:
        return 0
    return _PROCESS_BYTES + sum(step.code_bytes[unit] for unit in here)


def messages(step: Step, run: Run, where: int) -> list[Held]:
    """What arrives at a worker: whole before its tensor is made, so it is there twice.

    It comes in small pieces, and those of all that are on one road by turns.
    """
    if not step.deep_first or not step.deep_first[where]:
        return []
    return [
        (
            run.stop[step.nets[c.item].source] if c.kind == 0 else c.start,
            c.stop,
            c.bytes,
        )
        for c in run.copies
        if c.target == where
    ]


def resident_bytes(tensors: Sequence[Held], beside: Sequence[Held]) -> int:
    """What a process holds at the end of a step, as allocators give nothing back.

    Large tensors have an arena of their own; small ones and messages share the C
    library's heap, each as large as it ever had to be.
    """
    large = [held for held in tensors if held[2] >= SMALLEST_BYTES]
    small = [held for held in tensors if held[2] < SMALLEST_BYTES]
    return arena_bytes(large) + peak_bytes([*small, *beside])


def peak_bytes(held: Iterable[Held]) -> int:
    """The most bytes at one moment; what goes makes room for what comes then."""
    changes = [
        change
        for start, stop, size in held
        for change in ((start, size), (stop, -size))
    ]
    # Negative bytes come first where moments are equal.
    return max(accumulate(size for _, size in sorted(changes)), default=0)
