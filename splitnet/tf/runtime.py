"""The machine at hand: its GPUs and CPUs, or stand-ins for GPUs where there are none.

Finding devices starts nothing and claims no memory.
"""

import os
import time
from pathlib import Path
from typing import Any

from splitnet.core.cluster import Cluster, Device
from splitnet.core.devices import PRESETS
from splitnet.core.errors import ConfigError, DeviceError
from splitnet.tf.config import configure, force_cpu
from splitnet.tf.context import started, starter, watch
from splitnet.tf.early import cpu_devices, make_cpu_devices
from splitnet.tf.nvml import Card, cards
from splitnet.tf.quiet import hushed, import_frameworks

__all__ = [
    "configure",
    "force_cpu",
    "gpu_details",
    "host_details",
    "local_cluster",
]

MIB = 2**20
_MOST_STAND_INS = 256
# Free memory as it was before TensorFlow took its own share: card -> bytes.
_free_before: dict[str, int] = {}


def local_cluster(stand_in_gpus: int = 0) -> Cluster:
    """Describe this machine: every GPU that TensorFlow may use, and the CPU.

    Settings of the environment and of the settings file are applied first. Without
    stand-ins TensorFlow is not started, and no memory of any device is claimed.

    Args:
        stand_in_gpus: make so many CPU devices stand in for gpu:0, gpu:1 and so on.
            Real GPUs are then hidden. Stand-ins prove where things run, never how fast:
            they share the processor's threads, and a plan reckons them as if they were
            plain GPUs with a share of the host's memory. Asking twice does no harm.

    Returns:
        A cluster whose device memory (bytes) is what is free now, or the limit set.

    Raises:
        ConfigError: TensorFlow has already started with too few CPU devices, or a
            setting cannot be applied.
        DeviceError: an impossible number of stand-ins.
    """
    if isinstance(stand_in_gpus, bool) or not isinstance(stand_in_gpus, int):
        raise DeviceError(
            f"stand_in_gpus is a whole number. Received: {stand_in_gpus!r}."
        )
    if not 0 <= stand_in_gpus <= _MOST_STAND_INS:
        raise DeviceError(
            f"stand_in_gpus must be between 0 and {_MOST_STAND_INS}. "
            f"Received: {stand_in_gpus}."
        )
    with hushed():
        configure()
        import_frameworks()
    if stand_in_gpus:
        return _stand_ins(stand_in_gpus)
    watch()
    return Cluster((*_real_gpus(), *_cpus()))


def _stand_ins(count: int) -> Cluster:
    import tensorflow as tf

    if cpu_devices() < count + 1:
        if started():
            raise ConfigError(
                f"too late for {count} stand-in GPUs: they need {count + 1} CPU "
                f"devices, TensorFlow has already started with {cpu_devices()}, and "
                f"{starter()}. "
                f"Call sn.local_cluster(stand_in_gpus={count}) before the first layer, "
                "tensor or dataset is made; in a notebook, restart the kernel first."
            )
        make_cpu_devices(count + 1)
    if tf.config.get_visible_devices("GPU") and not started():
        tf.config.set_visible_devices([], "GPU")
    watch()
    share = host_memory_bytes() // (count + 1)
    return Cluster(
        (
            *(
                Device.of(
                    f"gpu:{i}",
                    memory=share,
                    target=f"/device:CPU:{i + 1}",
                    stand_in=True,
                )
                for i in range(count)
            ),
            _cpu(0, share),
        )
    )


def _real_gpus() -> list[Device]:
    """A device for each GPU, or for each part of one that is cut into logical GPUs."""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    known = {card.index: card for card in cards()}
    devices: list[Device] = []
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        name = str(details.get("device_name", ""))
        card = _card_of(known, physical.index(gpu), name)
        logical = tf.config.get_logical_device_configuration(gpu) or [None]
        for part in logical:
            devices.append(
                Device.of(
                    f"gpu:{len(devices)}",
                    memory=_gpu_memory(part, card, name),
                    preset=_preset(name),
                )
            )
    return devices


def _card_of(known: dict[int, Card], index: int, name: str) -> Card | None:
    """The driver's card for one of TensorFlow's; the two may count differently."""
    card = known.get(index)
    if card is None or not name or card.name == name:
        return card
    return next((other for other in known.values() if other.name == name), card)


def _gpu_memory(part: Any, card: Card | None, name: str) -> int | str:
    """Bytes that may be planned with: the limit, what is free, or the model's size."""
    if part is not None and part.memory_limit:
        return int(part.memory_limit) * MIB
    if card is None:
        return PRESETS[_preset(name)][0]
    if not started():
        _free_before[card.uuid] = card.free_bytes
    own = sum(used for pid, used in card.used_by if pid == os.getpid())
    return _free_before.get(card.uuid, card.free_bytes + own)


def _preset(name: str) -> str:
    """The figures for a GPU of that name; a plain GPU's if it is not known.

    >>> _preset("NVIDIA H100 80GB HBM3"), _preset("Tesla K80")
    ('H100', 'gpu')
    """
    return next((p for p in PRESETS if p[0].isupper() and p in name), "gpu")


def _cpus() -> list[Device]:
    count = cpu_devices()
    share = host_memory_bytes() // count
    return [_cpu(i, share) for i in range(count)]


def _cpu(index: int, memory_bytes: int) -> Device:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    cores = cores or os.cpu_count() or 1
    return Device.of(
        f"cpu:{index}",
        memory=memory_bytes,
        speed=f"{50 * cores} GFLOP/s",
        bandwidth=f"{min(10 * cores, 100)} GB/s",
    )


def host_memory_bytes() -> int:
    """Memory of the host that is free to use, in bytes, within a container's limit.

    Rounded down to 256 MiB, so that two plans made in a row are for the same machine.
    """
    free = _meminfo_bytes("MemAvailable")
    if not free:
        free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _number_in("/sys/fs/cgroup/memory.max")
    if limit is not None:
        used = _number_in("/sys/fs/cgroup/memory.current") or 0
        free = min(free, limit - used)
    return max(free // (256 * MIB), 1) * 256 * MIB


def _meminfo_bytes(key: str) -> int:
    words = _first_value("/proc/meminfo", key).split()
    return int(words[0]) * 1024 if words else 0


def _number_in(path: str) -> int | None:
    try:
        text = Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def gpu_details(known: tuple[Card, ...]) -> dict[str, dict[str, Any]]:
    """What else is known of each real GPU, by device name, as plain values."""
    import tensorflow as tf

    physical = tf.config.list_physical_devices("GPU")
    found: dict[str, dict[str, Any]] = {}
    for gpu in tf.config.get_visible_devices("GPU"):
        details = tf.config.experimental.get_device_details(gpu)
        name = str(details.get("device_name", ""))
        card = _card_of({c.index: c for c in known}, physical.index(gpu), name)
        capability = details.get("compute_capability", ())
        row = {
            "model": name,
            "capability": ".".join(map(str, capability)),
            "memory_bytes": card.memory_bytes if card else None,
            "busy": card.busy if card else None,
            "watts": card.watts if card else None,
            "used_by": [list(pair) for pair in card.used_by] if card else [],
            "links": list(card.links) if card else [],
        }
        for _ in tf.config.get_logical_device_configuration(gpu) or [None]:
            found[f"gpu:{len(found)}"] = row
    return found


def host_details() -> dict[str, Any]:
    """What else is known of the processor, which all CPU devices share; takes 0.1 s."""
    total = _meminfo_bytes("MemTotal") or None
    limit = _number_in("/sys/fs/cgroup/memory.max")
    return {
        "model": _first_value("/proc/cpuinfo", "model name"),
        "capability": "",
        "memory_bytes": min(filter(None, (total, limit)), default=None),
        "busy": _busy(0.1),
        "watts": None,
        "used_by": [],
        "links": [],
    }


def _busy(seconds: float) -> float | None:
    """The share of the processor's time that was used while this waits."""
    before = _ticks()
    time.sleep(seconds)
    passed = [after - earlier for earlier, after in zip(before, _ticks())]
    if not sum(passed):
        return None
    return 1 - sum(passed[3:5]) / sum(passed)  # idle, and waiting for a disk


def _ticks() -> list[int]:
    """What the processor did since its start, in ticks, by kind."""
    try:
        line = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    except OSError:
        return []
    return [int(word) for word in line.split()[1:9]]


def _first_value(path: str, key: str) -> str:
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    found = next((line for line in lines if line.startswith(key)), "")
    return found.partition(":")[2].strip()
