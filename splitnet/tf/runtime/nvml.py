"""GPUs as the NVIDIA driver describes them, by nvidia-ml-py; needs no TensorFlow."""

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
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in order; none without a driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # it is not installed, or finds no driver
        return []
    try:
        count = pynvml.nvmlDeviceGetCount()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
        chosen = handles if wanted is None else []
        for word in map(str.strip, (wanted or "none").split(",")):
            starts = [pynvml.nvmlDeviceGetUUID(h)[: len(word)] for h in handles]
            named = [h for i, h in enumerate(handles) if word in (str(i), starts[i])]
            if not (word and named):  # CUDA stops at the first that names no card
                break
            chosen.append(named[0])
        return [_details(pynvml, i, chosen) for i in range(len(chosen))]
    finally:
        pynvml.nvmlShutdown()


def _details(pynvml: Any, index: int, handles: list[Any]) -> Details:
    def told(ask: str, *arguments: Any) -> Any:
        """What a query answers; None where this card or driver does not know."""
        try:
            return getattr(pynvml, f"nvmlDeviceGet{ask}")(handles[index], *arguments)
        except pynvml.NVMLError:
            return None

    memory, busy = told("MemoryInfo"), told("UtilizationRates")
    kind = 0  # read; pynvml 13 has its constant in a tuple
    running = told("ComputeRunningProcesses") or ()
    reached = [told("P2PStatus", peer, kind) == 0 for peer in handles]
    return Details(
        model=told("Name"),
        memory_bytes=int(memory.total),
        free_bytes=int(memory.free),
        busy=None if busy is None else busy.gpu / 100,
        used_by=tuple((one.pid, int(one.usedGpuMemory or 0)) for one in running),
        links=tuple(i for i, near in enumerate(reached) if near and i != index),
        index=index,
        uuid=told("UUID"),
    )
