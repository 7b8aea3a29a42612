"""The devices of this machine; finding them starts nothing and claims no memory."""

import os
import platform
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import psutil
from msgspec import Meta

from splitnet.core.cluster import PRESETS, Cluster, Device
from splitnet.core.errors import ConfigError
from splitnet.tf.runtime import configure
from splitnet.tf.runtime.logging import import_frameworks
from splitnet.tf.runtime.nvml import Details, cards

_free_before: dict[str, int] = {}  # of each card: bytes, before TensorFlow's share


def local_cluster(stand_in_gpus: Annotated[int, Meta(ge=0, le=256)] = 0) -> Cluster:
    """Describe this machine: every GPU that TensorFlow may use, and the CPU.

    Settings of the environment and of the settings file are applied first. Without
    stand-ins TensorFlow is not started, and no memory of any device is claimed.

    Args:
        stand_in_gpus: so many CPU devices act as gpu:0, gpu:1 and so on. Real GPUs are
            hidden, and settings of GPUs do not apply. Stand-ins prove where things
            run, never how fast: they share the processor's threads, and a plan treats
            them as plain GPUs with a share of the host's memory. Asking twice is safe.

    Returns:
        A cluster whose device memory (bytes) is what is free now, or the limit set.

    Raises:
        ConfigError: TensorFlow has already started with too few CPU devices, or a
            setting cannot be applied.
    """
    import_frameworks()
    configure.apply_settings({"visible": "none"} if stand_in_gpus else None)
    gpus = [device for device, _ in _real_gpus()]
    count = 1 if stand_in_gpus else configure.cpu_devices()
    share = host_memory_bytes() // (stand_in_gpus + count)
    cores = len(psutil.Process().cpu_affinity())
    speed = {"speed": f"{50 * cores} GFLOP/s", "memory": share}
    speed["bandwidth"] = f"{min(10 * cores, 100)} GB/s"
    if configure.cpu_devices() <= stand_in_gpus:
        if configure.started():
            need = "they need a CPU device each and one more, and TensorFlow has"
            late = f"too late for {stand_in_gpus} stand-in GPUs: {need} started with"
            raise ConfigError(f"{late} {configure.cpu_devices()}. {configure.EARLIER}")
        configure.make_cpu_devices(stand_in_gpus + 1)
    for i in range(stand_in_gpus):
        target = f"/device:CPU:{i + 1}"
        gpus.append(Device.of(f"gpu:{i}", memory=share, target=target, stand_in=True))
    return Cluster((*gpus, *(Device.of(f"cpu:{i}", **speed) for i in range(count))))


def _real_gpus() -> Iterator[tuple[Device, Details]]:
    """A device for each GPU, or for each logical GPU of one that is divided."""
    import tensorflow as tf

    known, count = cards(), 0
    for gpu in tf.config.get_visible_devices("GPU"):
        told = tf.config.experimental.get_device_details(gpu)
        model = str(told.get("device_name", ""))
        index = tf.config.list_physical_devices("GPU").index(gpu)
        # The driver may count cards in another order than TensorFlow does.
        likely = sorted(known, key=lambda c: (c.model != model, c.index != index))
        capability = ".".join(map(str, told.get("compute_capability", ())))
        card = [*likely, Details(model)][0]
        named = (p for p in PRESETS if p[0].isupper())  # in "NVIDIA H100 80GB"
        preset = next((p for p in named if re.search(rf"\b{p}\b", card.model)), "gpu")
        memory = PRESETS[preset][0]
        if likely:  # what is free, and what TensorFlow has taken here
            if not configure.started():
                _free_before[card.uuid] = card.free_bytes
            own = sum(used for pid, used in card.used_by if pid == os.getpid())
            memory = _free_before.get(card.uuid, card.free_bytes + own)
        for part in tf.config.get_logical_device_configuration(gpu) or [None]:
            limit = part and part.memory_limit
            of_part = int(limit) * configure.MIB if limit else memory
            device = Device.of(f"gpu:{count}", memory=of_part, preset=preset)
            yield device, replace(card, capability=capability)
            count += 1


def host_memory_bytes() -> int:
    """Free bytes of the host or its container, in 256 MiB, so that plans are equal."""
    free = psutil.virtual_memory().available
    if (limit := _cgroup_bytes("memory.max")) is not None:
        free = min(free, limit - (_cgroup_bytes("memory.current") or 0))
    return max(free // (256 * configure.MIB), 1) * 256 * configure.MIB


def _cgroup_bytes(file: str) -> int | None:
    """A figure of this container's control group, in bytes; None without a limit."""
    try:
        text = Path("/sys/fs/cgroup", file).read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def details_of(cluster: Cluster) -> dict[str, Details]:
    """Details of each real GPU and of the processor, by device name; takes 0.1 s."""
    total = psutil.virtual_memory().total
    host = Details(
        model=platform.processor() or platform.machine(),
        memory_bytes=min(total, _cgroup_bytes("memory.max") or total),
        busy=psutil.cpu_percent(interval=0.1) / 100,
    )
    found = {device.name: host for device in cluster.of_kind("cpu")}
    return found | {device.name: details for device, details in _real_gpus()}
