"""What TensorFlow must be told before it starts: each thing, and whether it is so."""

import os
from collections.abc import Callable
from typing import Any

from splitnet.core.settings import Settings
from splitnet.core.units import format_bytes
from splitnet.tf.context import started
from splitnet.tf.nvml import cards

__all__ = ["cpu_devices", "early_steps", "make_cpu_devices"]

MIB = 2**20
# A CUDA context takes memory beside the limit that TensorFlow keeps; without a reserve
# two jobs of one half each would not fit one card.
CONTEXT_BYTES = 640 * MIB

Step = tuple[str, Callable[[], bool], Callable[[], None]]


def early_steps(settings: Settings) -> tuple[list[Step], list[str]]:
    """What must be told before the start: (words, is it so already, make it so)."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    visible = settings["visible"]
    faults = []
    if isinstance(visible, tuple):
        missing = [i for i in visible if i >= len(gpus)]
        if missing:
            faults.append(
                f"visible={visible} ({_from(settings, 'visible')}): there is no GPU "
                f"{', '.join(map(str, missing))}; {_here(gpus)}"
            )
        gpus = [gpus[i] for i in visible if i < len(gpus)]
    steps: list[Step] = []
    if isinstance(visible, tuple):
        steps.append(
            (
                f"visible={visible} ({_from(settings, 'visible')})",
                lambda: tf.config.get_visible_devices("GPU") == gpus,
                lambda: tf.config.set_visible_devices(gpus, "GPU"),
            )
        )
    if not faults:
        steps += _memory_steps(settings, gpus, faults)
    return [*steps, *_cpu_steps(settings)], faults


def _here(gpus: list[Any]) -> str:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    under = "" if hidden is None else f" under CUDA_VISIBLE_DEVICES={hidden!r}"
    if not gpus:
        return f"TensorFlow finds no GPU{under}"
    return f"TensorFlow finds GPU 0 to {len(gpus) - 1}{under}"


def _from(settings: Settings, name: str) -> str:
    return settings.of(name).source


def _memory_steps(settings: Settings, gpus: list[Any], faults: list[str]) -> list[Step]:
    """Growth, limits and logical GPUs; all GPUs alike, as TensorFlow demands."""
    import tensorflow as tf

    growth = settings["memory_growth"]
    if growth is None:
        faults += _uneven_growth(gpus)
    steps: list[Step] = []
    for number, gpu in enumerate(gpus):
        if growth is not None:
            steps.append(_growth_step(settings, gpu, growth is True, faults))
        limit = _limit_mib(settings, number, faults)
        if limit is None:
            continue
        if tf.config.experimental.get_memory_growth(gpu) and not started():
            faults.append(
                f"a memory limit and memory growth exclude each other, and {gpu.name} "
                "has been given growth elsewhere in this program, or by "
                "TF_FORCE_GPU_ALLOW_GROWTH; drop one of them"
            )
        count = settings["logical_gpus"]
        wanted = [limit] * (count if isinstance(count, int) else 1)
        steps.append(_limit_step(settings, gpu, wanted))
    return steps


def _uneven_growth(gpus: list[Any]) -> list[str]:
    """Growth that other code gave to some GPUs: TensorFlow would refuse to start."""
    import tensorflow as tf

    grows = [tf.config.experimental.get_memory_growth(gpu) for gpu in gpus]
    if started() or all(grows) or not any(grows):
        return []
    with_it = ", ".join(gpu.name for gpu, own in zip(gpus, grows) if own)
    without = ", ".join(gpu.name for gpu, own in zip(gpus, grows) if not own)
    return [
        f"{with_it} has memory growth, set elsewhere in this program, and {without} "
        "has not; TensorFlow wants all visible GPUs alike. Say memory_growth=True or "
        "False for all, or hide the others with visible="
    ]


def _growth_step(settings: Settings, gpu: Any, growth: bool, faults: list[str]) -> Step:
    import tensorflow as tf

    if growth and tf.config.get_logical_device_configuration(gpu):
        faults.append(
            f"memory growth and a memory limit exclude each other, and {gpu.name} has "
            "been given logical devices elsewhere in this program; drop one of them"
        )
    return (
        f"memory_growth={growth} ({_from(settings, 'memory_growth')}) for {gpu.name}",
        lambda: bool(tf.config.experimental.get_memory_growth(gpu)) == growth,
        lambda: tf.config.experimental.set_memory_growth(gpu, growth),
    )


def _limit_mib(settings: Settings, number: int, faults: list[str]) -> int | None:
    """What each logical GPU of a card may use, in MiB; None if nothing limits it."""
    count = settings["logical_gpus"]
    parts = count if isinstance(count, int) else 1
    limit, fraction = settings["memory_limit"], settings["memory_fraction"]
    if isinstance(limit, int):
        return limit // MIB
    if not isinstance(fraction, float):
        return None
    known = {card.index: card for card in cards()}
    card = known.get(_card_index(settings, number))
    if card is None:
        if number == 0:
            faults.append(
                f"memory_fraction={fraction} ({_from(settings, 'memory_fraction')}) "
                "needs the size of the card, which TensorFlow does not tell: "
                "pip install nvidia-ml-py, or say memory_limit='8 GiB' instead"
            )
        return None
    usable = fraction * card.memory_bytes - CONTEXT_BYTES
    if usable < MIB * parts:
        faults.append(
            f"memory_fraction={fraction} of {card.name} "
            f"({format_bytes(card.memory_bytes)}) leaves nothing "
            f"beside the {format_bytes(CONTEXT_BYTES)} of its context"
        )
        return None
    return int(usable // parts // MIB)


def _card_index(settings: Settings, number: int) -> int:
    visible = settings["visible"]
    return visible[number] if isinstance(visible, tuple) else number


def _limit_step(settings: Settings, gpu: Any, wanted: list[int]) -> Step:
    import tensorflow as tf

    name = "memory_limit" if settings["memory_limit"] else "memory_fraction"

    def limits() -> list[float]:
        logical = tf.config.get_logical_device_configuration(gpu) or []
        return [one.memory_limit for one in logical]

    def limit() -> None:
        tf.config.set_logical_device_configuration(
            gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=m) for m in wanted]
        )

    return (
        f"{name}={settings[name]} ({_from(settings, name)}) for {gpu.name}",
        lambda: limits() == wanted,
        limit,
    )


def _cpu_steps(settings: Settings) -> list[Step]:
    import tensorflow as tf

    threading = tf.config.threading
    steps: list[Step] = []
    within, across = settings["cpu_threads"], settings["inter_op_threads"]
    if within is not None:

        def limit() -> None:
            os.environ["OMP_NUM_THREADS"] = str(within)
            threading.set_intra_op_parallelism_threads(within)

        steps.append(
            (
                f"cpu_threads={within} ({_from(settings, 'cpu_threads')})",
                lambda: threading.get_intra_op_parallelism_threads() == within,
                limit,
            )
        )
    name = "cpu_threads" if across is None else "inter_op_threads"
    threads = within if across is None else across
    if threads is not None:
        steps.append(
            (
                f"{name}={threads} ({_from(settings, name)}), across operations",
                lambda: threading.get_inter_op_parallelism_threads() == threads,
                lambda: threading.set_inter_op_parallelism_threads(threads),
            )
        )
    count = settings["cpu_devices"]
    if isinstance(count, int):
        steps.append(
            (
                f"cpu_devices={count} ({_from(settings, 'cpu_devices')})",
                lambda: cpu_devices() >= count,
                lambda: make_cpu_devices(count),
            )
        )
    return steps


def cpu_devices() -> int:
    """How many CPU devices there are, or will be once TensorFlow starts."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    return len(tf.config.get_logical_device_configuration(cpu) or [None])


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into so many devices; TensorFlow must not have started."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)]
    )
