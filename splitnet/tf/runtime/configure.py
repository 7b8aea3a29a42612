"""Apply runtime settings to TensorFlow before it initialises, and check them.

Nothing here initialises TensorFlow.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

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
# Variables that others read as well, and the setting that each concerns.
_SHARED = {
    "CUDA_VISIBLE_DEVICES": "visible",
    "TF_FORCE_GPU_ALLOW_GROWTH": "memory_growth",
    "OMP_NUM_THREADS": "cpu_threads",
}
_given: dict[str, object] = {}  # what calls of configure() have set so far


class _Step(NamedTuple):
    """A call of `put(wanted)` before TensorFlow initialises, unless `get()` is that."""

    text: str
    wanted: Any
    get: Callable[[], Any]
    put: Callable[[Any], None]


def started() -> bool:
    """Whether TensorFlow has claimed its devices; neither loads nor starts it.

    From then on most settings are closed.
    """
    if "tensorflow.python.eager.context" not in sys.modules:
        return False
    from splitnet.tf.internals import tf_api

    return tf_api.started()


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
    Calls add up, and repeating a call is harmless. `splitnet config` prints the meaning
    of each.

    Returns:
        Every setting with its value and origin.

    Raises:
        ConfigError: a setting is impossible, contradicts another, or comes too late;
            all of them at once, and nothing is applied.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    settings = apply_settings(options)
    if idle := [name for name in _idle(settings) if name in options]:
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
    settings = resolve(_given | dict(options or {}), os.environ, Path.cwd())
    with log_filter():
        import tensorflow as tf

        due = [step for step in _steps(settings) if step.get() != step.wanted]
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
        if settings["cpu_threads"]:
            os.environ["OMP_NUM_THREADS"] = str(settings["cpu_threads"])
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


def check_settings(settings: Settings) -> list[str]:
    """Hold settings against this machine's GPUs, driver and environment.

    Returns:
        Remarks: settings without effect here, and variables that others read as well.

    Raises:
        ConfigError: settings that cannot be applied; all of them.
    """
    _steps(settings)
    notes = [
        f"{_said(settings, name)} has no effect: TensorFlow finds no GPU"
        for name in _idle(settings)
    ]
    return notes + [
        f"{variable}={os.environ[variable]!r} of the environment counts beside "
        f"{_said(settings, name)}"
        for variable, name in _SHARED.items()
        if variable in os.environ
    ]


def cpu_devices() -> int:
    """How many CPU devices there are, or will be once TensorFlow starts."""
    return len(_limits(_tf_config().list_physical_devices("CPU")[0])) or 1


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into so many devices; TensorFlow must not have started."""
    _divide(_tf_config().list_physical_devices("CPU")[0], [None] * count)


def _idle(settings: Settings) -> list[str]:
    """Settings of GPUs on a machine without any."""
    if _tf_config().list_physical_devices("GPU"):
        return []
    return [name for name in _GPU_SETTINGS if settings[name]]


def _said(settings: Settings, name: str) -> str:
    """A setting as it was given and where: "memory_limit=4096 (splitnet.toml)"."""
    return f"{name}={settings[name]} ({settings.of(name).source})"


def _steps(settings: Settings) -> list[_Step]:
    """The calls that apply settings; ConfigError for what this machine cannot do."""
    faults: list[str] = []
    steps = [*_gpu_steps(settings, faults), *_cpu_steps(settings)]
    if faults:
        raise ConfigError(listed("the runtime settings cannot be applied.", faults))
    return steps


def _gpu_steps(settings: Settings, faults: list[str]) -> Iterator[_Step]:
    """Visible GPUs, then growth, limits and logical GPUs of each.

    They are the same for all GPUs, as TensorFlow demands.
    """
    config = _tf_config()
    gpus = list(enumerate(config.list_physical_devices("GPU")))
    visible, growth = settings["visible"], settings["memory_growth"]
    if isinstance(visible, tuple):
        if missing := [str(i) for i in visible if i >= len(gpus)]:
            faults.append(
                f"{_said(settings, 'visible')}: there is no GPU {', '.join(missing)}; "
                f"TensorFlow finds {len(gpus)}, with CUDA_VISIBLE_DEVICES="
                f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
            )
            return
        gpus = [gpus[i] for i in visible]
        get = partial(config.get_visible_devices, "GPU")
        put = partial(config.set_visible_devices, device_type="GPU")
        yield _Step(_said(settings, "visible"), [gpu for _, gpu in gpus], get, put)
    name = "memory_limit" if settings["memory_limit"] else "memory_fraction"
    for index, gpu in gpus:
        if growth is not None:
            get = partial(config.experimental.get_memory_growth, gpu)
            put = partial(config.experimental.set_memory_growth, gpu)
            said = f"{_said(settings, 'memory_growth')} for {gpu.name}"
            yield _Step(said, growth, get, put)
        if settings[name] is not None:
            said = f"{_said(settings, name)} for {gpu.name}"
            limit = settings["memory_limit"] or _share(settings, index, faults)
            wanted = [limit // MIB] * (settings["logical_gpus"] or 1)
            yield _Step(said, wanted, partial(_limits, gpu), partial(_divide, gpu))


def _share(settings: Settings, index: int, faults: list[str]) -> int:
    """The bytes of each logical device of a GPU that `memory_fraction` allows."""
    said = _said(settings, "memory_fraction")
    card = next((card for card in cards() if card.index == index), None)
    if card is None:
        faults.append(
            f"{said} needs the size of GPU {index}, which TensorFlow does not tell: "
            "pip install nvidia-ml-py, or set memory_limit='8 GiB' instead"
        )
        return 0
    usable = int(settings["memory_fraction"] * card.memory_bytes) - CONTEXT_BYTES
    each = usable // (settings["logical_gpus"] or 1)
    if each < MIB:
        faults.append(
            f"{said} of {card.model} ({format_bytes(card.memory_bytes)}) leaves "
            f"nothing beside the {format_bytes(CONTEXT_BYTES)} of its context"
        )
    return each


def _limits(device: Any) -> list[float]:
    """The memory limits of a device's logical ones, in MiB."""
    logical = _tf_config().get_logical_device_configuration(device) or []
    return [one.memory_limit for one in logical]


def _divide(device: Any, limits: Sequence[float | None]) -> None:
    """Divide a device into logical ones with these limits, in MiB."""
    config = _tf_config()
    config.set_logical_device_configuration(
        device, [config.LogicalDeviceConfiguration(memory_limit=m) for m in limits]
    )


def _cpu_steps(settings: Settings) -> Iterator[_Step]:
    """Threads and CPU devices."""
    across = "inter_op_threads" if settings["inter_op_threads"] else "cpu_threads"
    for name, kind in (("cpu_threads", "intra"), (across, "inter")):
        if settings[name]:
            get, put = (
                getattr(_tf_config().threading, f"{verb}_{kind}_op_parallelism_threads")
                for verb in ("get", "set")
            )
            yield _Step(_said(settings, name), settings[name], get, put)
    if count := settings["cpu_devices"]:
        said = _said(settings, "cpu_devices")  # more of them do no harm
        yield _Step(said, count, lambda: min(cpu_devices(), count), make_cpu_devices)


def _tf_config() -> Any:
    """`tf.config`; TensorFlow is imported when it is first needed."""
    import tensorflow as tf

    return tf.config
