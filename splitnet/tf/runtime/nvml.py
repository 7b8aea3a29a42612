"""GPUs as the NVIDIA driver describes them, by nvidia-ml-py; needs no TensorFlow.

Without that package or without a driver there are none: an empty list.
"""

import os
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Details:
    """What is known of a GPU, or of the processor, that a plan need not know.

    `index` counts under CUDA_VISIBLE_DEVICES; `busy` is a share, 0 to 1; `used_by`
    pairs a process id with its bytes; `links` counts GPUs reached without the CPU.
    """

    model: str = ""
    capability: str = ""
    memory_bytes: int | None = None
    free_bytes: int = 0
    busy: float | None = None
    used_by: tuple[tuple[int, int], ...] = ()
    links: tuple[int, ...] = ()
    index: int = 0
    uuid: str = ""


def cards() -> list[Details]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order."""
    try:
        import pynvml
    except ImportError:
        return []
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = _visible_handles(pynvml)
        return [_details(pynvml, i, handles) for i in range(len(handles))]
    finally:
        pynvml.nvmlShutdown()


def _visible_handles(pynvml: Any) -> list[Any]:
    count = pynvml.nvmlDeviceGetCount()
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return handles
    uuids = [pynvml.nvmlDeviceGetUUID(handle) for handle in handles]
    chosen = []
    for word in map(str.strip, wanted.split(",")):
        named = [
            handle
            for i, (handle, uuid) in enumerate(zip(handles, uuids))
            if word and (uuid.startswith(word) or word == str(i))
        ]
        if not named:  # CUDA stops at the first entry that names no card
            break
        chosen.append(named[0])
    return chosen


def _details(pynvml: Any, index: int, handles: list[Any]) -> Details:
    def told(ask: str, *arguments: Any) -> Any:
        """What a query answers; None where this card or driver does not know."""
        try:
            return getattr(pynvml, ask)(handles[index], *arguments)
        except pynvml.NVMLError:
            return None

    memory, busy, processes = (
        told(f"nvmlDeviceGet{what}")
        for what in ("MemoryInfo", "UtilizationRates", "ComputeRunningProcesses")
    )
    kind = pynvml.NVML_P2P_CAPS_INDEX_READ
    reached = [told("nvmlDeviceGetP2PStatus", peer, kind) == 0 for peer in handles]
    return Details(
        model=told("nvmlDeviceGetName"),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        busy=None if busy is None else busy.gpu / 100,
        used_by=tuple((p.pid, int(p.usedGpuMemory or 0)) for p in processes or ()),
        links=tuple(i for i, near in enumerate(reached) if near and i != index),
        index=index,
        uuid=told("nvmlDeviceGetUUID"),
    )
