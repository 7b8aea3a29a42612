"""Apply runtime settings to TensorFlow before it initialises, and check them.

Nothing here initialises TensorFlow.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from splitnet.core.errors import ConfigError, format_bytes, listed, warn
from splitnet.core.settings import Settings, resolve
from splitnet.tf.runtime.logging import log_filter
from splitnet.tf.runtime.nvml import cards

MIB = 2**20
# A CUDA context takes memory beside the limit that TensorFlow keeps; without a reserve
# two jobs of one half each would not fit one card.
CONTEXT_BYTES = 640 * MIB
_GPU_SETTINGS = ("visible", "memory_growth", "memory_limit") + (
    "memory_fraction",
    "logical_gpus",
)
_given: dict[str, object] = {}  # what calls of configure() have set so far


@dataclass(frozen=True, slots=True)
class Step:
    """A call of `put(wanted)` before TensorFlow initialises, unless `get()` is that."""

    text: str
    wanted: Any
    get: Callable[[], Any]
    put: Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class Check:
    """Settings held against this machine: calls to make, faults and remarks."""

    steps: tuple[Step, ...]
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def started() -> bool:
    """Whether TensorFlow has claimed its devices; neither loads nor starts it.

    From then on most settings are closed.
    """
    if "tensorflow.python.eager.context" not in sys.modules:
        return False
    from splitnet.tf.internals import tf_api

    return tf_api.started()


def current(options: Mapping[str, object] | None = None) -> Settings:
    """Every setting as it stands, with its origin; applies nothing."""
    return resolve(_given | dict(options or {}), os.environ, Path.cwd())


def configure(
    *,
    visible: str | int | Sequence[int] | None = None,
    memory_growth: bool | None = None,
    memory_limit: str | float | None = None,
    memory_fraction: float | None = None,
    logical_gpus: int | None = None,
    cpu_devices: int | None = None,
    cpu_threads: int | None = None,
    inter_op_threads: int | None = None,
    soft_placement: bool | None = None,
    log_placement: bool | None = None,
    determinism: bool | None = None,
) -> Settings:
    """Tell TensorFlow how to use this machine; call it before anything is built.

    What is not set here comes from `SPLITNET_*` variables, then from `splitnet.toml`
    or `[tool.splitnet]` of `pyproject.toml`, and else is left as TensorFlow has it.
    Calls add up, and repeating a call is harmless.

    Args:
        visible: GPUs to use, counted under CUDA_VISIBLE_DEVICES: indices, "0,1", "all"
            or "none".
        memory_growth: take GPU memory as it is needed; all visible GPUs alike.
        memory_limit: memory of each GPU that may be used: bytes, or "4 GiB".
        memory_fraction: the same as a share of each card, 0 to 1; needs nvidia-ml-py.
        logical_gpus: cut each GPU into so many; needs a memory limit or fraction.
        cpu_devices: how many CPU devices; stand-ins for GPUs are made of them.
        cpu_threads: threads within an operation, and across unless said otherwise.
        inter_op_threads: threads across operations.
        soft_placement: whether TensorFlow may silently use another device if one is
            missing.
        log_placement: print a line of TensorFlow's for every op.
        determinism: the same bits in every run; slower.

    Returns:
        Every setting with its value and origin.

    Raises:
        ConfigError: a setting is impossible, contradicts another, or comes too late;
            all of them at once, and nothing is applied.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    settings = apply_settings(options)
    idle = [name for name in _idle(settings) if name in options]
    if idle:
        warn(f"{', '.join(idle)}: no effect, TensorFlow finds no GPU here.")
    return settings


def force_cpu() -> Settings:
    """Use no GPU, even if there are some: `configure(visible="none")`.

    Raises:
        ConfigError: TensorFlow has already claimed a GPU.
    """
    return apply_settings({"visible": "none"})


def apply_settings(options: Mapping[str, object] | None = None) -> Settings:
    """Apply all settings, these `options` of a call and those of before."""
    settings = current(options)
    with log_filter():
        check = check_settings(settings)
        if check.faults:
            raise ConfigError(
                listed("the runtime settings cannot be applied.", check.faults)
            )
        due = [step for step in check.steps if step.get() != step.wanted]
        if due and started():
            raise ConfigError(
                listed(
                    "too late: TensorFlow has already started. Call sn.configure() "
                    "before the first layer, tensor or dataset is made, or set "
                    "SPLITNET_* before the program begins; in a notebook, restart the "
                    "kernel first.",
                    [step.text for step in due],
                )
            )
        for step in due:
            step.put(step.wanted)
        import tensorflow as tf

        # These may change at any time.
        soft, log = settings["soft_placement"], settings["log_placement"]
        if soft is not None:
            tf.config.set_soft_device_placement(soft)
        if log is not None:
            tf.debugging.set_log_device_placement(log)
        if settings["determinism"]:
            tf.config.experimental.enable_op_determinism()
    _given.update(options or {})
    return settings


def check_settings(settings: Settings) -> Check:
    """Hold settings against this machine's GPUs, driver and environment."""
    faults: list[str] = []
    steps = (*_gpu_steps(settings, faults), *_cpu_steps(settings))
    return Check(steps, tuple(faults), tuple(_notes(settings)))


def cpu_devices() -> int:
    """How many CPU devices there are, or will be once TensorFlow starts."""
    config = _tf_config()
    cpu = config.list_physical_devices("CPU")[0]
    return len(config.get_logical_device_configuration(cpu) or [None])


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into so many devices; TensorFlow must not have started."""
    _divide(_tf_config().list_physical_devices("CPU")[0], [None] * count)


def _notes(settings: Settings) -> Iterator[str]:
    """Settings without effect here, and variables that others read as well."""
    for name in _idle(settings):
        yield f"{_said(settings, name)} has no effect: TensorFlow finds no GPU"
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        yield f"CUDA_VISIBLE_DEVICES={hidden!r} applies before 'visible' does"
    growth = os.environ.get("TF_FORCE_GPU_ALLOW_GROWTH")
    if growth is not None:
        said = f"TF_FORCE_GPU_ALLOW_GROWTH={growth!r} decides memory growth"
        if settings["memory_growth"] is not None:
            said += ", whatever memory_growth says; unset one of them"
        yield said
    threads, wanted = os.environ.get("OMP_NUM_THREADS"), settings["cpu_threads"]
    if threads is not None and threads != str(wanted):
        said = f"OMP_NUM_THREADS={threads!r} limits threads within an operation"
        if wanted:
            said += f"; {_said(settings, 'cpu_threads')} replaces it, too late for "
            said += "libraries that are loaded already"
        yield said


def _idle(settings: Settings) -> list[str]:
    """Settings of GPUs on a machine without any."""
    if _tf_config().list_physical_devices("GPU"):
        return []
    return [name for name in _GPU_SETTINGS if settings[name]]


def _said(settings: Settings, name: str) -> str:
    """A setting as it was given and where: "memory_limit=4096 (splitnet.toml)"."""
    return f"{name}={settings[name]} ({settings.of(name).source})"


def _gpu_steps(settings: Settings, faults: list[str]) -> Iterator[Step]:
    """Visible GPUs, then growth, limits and logical GPUs of each.

    They are the same for all GPUs, as TensorFlow demands.
    """
    config = _tf_config()
    gpus = config.list_physical_devices("GPU")
    visible, growth = settings["visible"], settings["memory_growth"]
    if isinstance(visible, tuple):
        if missing := [i for i in visible if i >= len(gpus)]:
            hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
            found = f"GPU 0 to {len(gpus) - 1}" if gpus else "no GPU"
            faults.append(
                f"{_said(settings, 'visible')}: there is no GPU "
                f"{', '.join(map(str, missing))}; TensorFlow finds {found}"
                + ("" if hidden is None else f" under CUDA_VISIBLE_DEVICES={hidden!r}")
            )
            return
        gpus = [gpus[i] for i in visible]
        get = partial(config.get_visible_devices, "GPU")
        put = partial(config.set_visible_devices, device_type="GPU")
        yield Step(_said(settings, "visible"), gpus, get, put)
    name = "memory_limit" if settings["memory_limit"] else "memory_fraction"
    for number, gpu in enumerate(gpus):
        if growth is not None:
            get = partial(config.experimental.get_memory_growth, gpu)
            put = partial(config.experimental.set_memory_growth, gpu)
            said = f"{_said(settings, 'memory_growth')} for {gpu.name}"
            yield Step(said, growth, get, put)
        limits = _limits_mib(settings, number, faults)
        if limits:
            said = f"{_said(settings, name)} for {gpu.name}"
            yield Step(said, limits, partial(_limits, gpu), partial(_divide, gpu))


def _limits_mib(settings: Settings, number: int, faults: list[str]) -> list[int]:
    """Memory limits of the logical GPUs of a card, in MiB; none for no limit."""
    count = settings["logical_gpus"] or 1
    limit, fraction = settings["memory_limit"], settings["memory_fraction"]
    if limit is not None:
        return [limit // MIB] * count
    if fraction is None:
        return []
    index = (settings["visible"] or range(number + 1))[number]
    card = next((card for card in cards() if card.index == index), None)
    if card is None:
        if number == 0:
            faults.append(
                f"{_said(settings, 'memory_fraction')} needs the size of the card, "
                "which TensorFlow does not tell: pip install nvidia-ml-py, or set "
                "memory_limit='8 GiB' instead"
            )
        return []
    usable = fraction * card.memory_bytes - CONTEXT_BYTES
    if usable < MIB * count:
        faults.append(
            f"memory_fraction={fraction} of {card.name} "
            f"({format_bytes(card.memory_bytes)}) leaves nothing "
            f"beside the {format_bytes(CONTEXT_BYTES)} of its context"
        )
        return []
    return [int(usable // count // MIB)] * count


def _limits(device: Any) -> list[float]:
    """The memory limits of a card's logical devices, in MiB."""
    logical = _tf_config().get_logical_device_configuration(device) or []
    return [one.memory_limit for one in logical]


def _divide(device: Any, limits: Sequence[float | None]) -> None:
    """Divide a device into logical ones with these limits, in MiB."""
    config = _tf_config()
    config.set_logical_device_configuration(
        device, [config.LogicalDeviceConfiguration(memory_limit=m) for m in limits]
    )


def _cpu_steps(settings: Settings) -> Iterator[Step]:
    """Threads and CPU devices."""
    threading = _tf_config().threading
    within, count = settings["cpu_threads"], settings["cpu_devices"]
    if within is not None:

        def limit(count: int) -> None:
            os.environ["OMP_NUM_THREADS"] = str(count)
            threading.set_intra_op_parallelism_threads(count)

        get = threading.get_intra_op_parallelism_threads
        yield Step(_said(settings, "cpu_threads"), within, get, limit)
    name = "inter_op_threads" if settings["inter_op_threads"] else "cpu_threads"
    if settings[name] is not None:
        get = threading.get_inter_op_parallelism_threads
        put = threading.set_inter_op_parallelism_threads
        said = f"{_said(settings, name)}, across operations"
        yield Step(said, settings[name], get, put)
    if count is not None:

        def enough() -> int:
            return min(cpu_devices(), count)  # more do no harm

        yield Step(_said(settings, "cpu_devices"), count, enough, make_cpu_devices)


def _tf_config() -> Any:
    """`tf.config`; TensorFlow is imported when it is first needed."""
    import tensorflow as tf

    return tf.config
