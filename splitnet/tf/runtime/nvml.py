"""GPUs as the NVIDIA driver describes them, by nvidia-ml-py; needs no TensorFlow.

Without that package or without a driver there are none: an empty tuple.
"""

import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU as its driver describes it; `index` counts under CUDA_VISIBLE_DEVICES.

    `used_by` pairs a process id with its bytes; `busy` is a share, 0 to 1, or None;
    `links` names the other cards it reaches without the CPU.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int
    free_bytes: int
    busy: float | None = None
    watts: float | None = None
    used_by: tuple[tuple[int, int], ...] = ()
    links: tuple[int, ...] = ()


def cards() -> tuple[Card, ...]:
    """The cards that CUDA_VISIBLE_DEVICES leaves, in its order."""
    try:
        import pynvml
    except ImportError:
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        handles = _visible_handles(pynvml)
        return tuple(_card(pynvml, i, h, handles) for i, h in enumerate(handles))
    finally:
        pynvml.nvmlShutdown()


def _visible_handles(pynvml: ModuleType) -> list[Any]:
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())
    ]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = []
    for word in (part.strip() for part in wanted.split(",")):
        named = [i for i, uuid in enumerate(uuids) if word and uuid.startswith(word)]
        named += [i for i in range(len(handles)) if word == str(i)]
        if not named:  # CUDA stops at the first entry that names no card
            break
        chosen.append(handles[named[0]])
    return chosen


def _card(pynvml: ModuleType, index: int, handle: Any, handles: list[Any]) -> Card:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)

    def told(ask: str, *arguments: Any) -> Any:
        """What a query answers; None where this card or driver does not know."""
        try:
            return getattr(pynvml, ask)(handle, *arguments)
        except pynvml.NVMLError:
            return None

    busy = told("nvmlDeviceGetUtilizationRates")
    milliwatts = told("nvmlDeviceGetPowerUsage")
    processes = told("nvmlDeviceGetComputeRunningProcesses") or []
    return Card(
        index=index,
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        busy=None if busy is None else busy.gpu / 100,
        watts=None if milliwatts is None else milliwatts / 1000,
        used_by=tuple((int(p.pid), int(p.usedGpuMemory or 0)) for p in processes),
        links=tuple(
            other
            for other, peer in enumerate(handles)
            if other != index
            and told("nvmlDeviceGetP2PStatus", peer, pynvml.NVML_P2P_CAPS_INDEX_READ)
            == 0
        ),
    )
