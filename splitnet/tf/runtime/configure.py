"""Runtime settings, checked and applied; nothing here initialises TensorFlow."""

import os
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from splitnet.core.errors import ConfigError, format_bytes, warn
from splitnet.core.settings import Settings, resolve
from splitnet.tf.runtime.logging import log_filter
from splitnet.tf.runtime.nvml import cards

MIB = 2**20
# A CUDA context takes memory beside the limit that TensorFlow keeps; without a reserve
# two jobs of one half each would not fit one card.
CONTEXT_BYTES = 640 * MIB
_GPU_SETTINGS = ("visible", "memory_growth", "memory_limit", "memory_fraction")
EARLIER = (
    "Do it before the first layer, tensor or dataset is made; in a notebook, restart "
    "the kernel first."
)
_given: dict[str, object] = {}  # what calls of configure() have set so far
_tf = partial(import_module, "tensorflow")  # when it is first needed
_Step = tuple[str, Callable[[], object]]  # a setting as it was given, what applies it


def started() -> bool:
    """Whether TensorFlow has claimed its devices; neither loads nor starts it."""
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
            all of them at once.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    settings = apply_settings(options)
    for said in idle_settings(settings, options):
        warn(said)
    return settings


def force_cpu() -> Settings:
    """Use no GPU, even if there are some: `configure(visible="none")`."""
    return apply_settings({"visible": "none"})


def apply_settings(options: Mapping[str, object] | None = None) -> Settings:
    """Apply all settings, these `options` of a call and those of before."""
    settings = resolve(_given | dict(options or {}), os.environ, Path.cwd())
    late = []
    with log_filter():
        for said, put in check_settings(settings):
            try:  # TensorFlow ignores what changes nothing, and refuses the rest late
                put()
            except RuntimeError:
                late.append(said)
    if late:
        fault = f"too late: TensorFlow has already started. {EARLIER}"
        raise ConfigError(fault, dict.fromkeys(late))
    _given.update(options or {})
    return settings


def check_settings(settings: Settings) -> list[_Step]:
    """The calls that apply settings here, for all GPUs alike, as TensorFlow demands."""
    tf = _tf()
    config = tf.config
    faults, steps = list[str](), list[_Step]()
    gpus = list(enumerate(config.list_physical_devices("GPU")))
    if isinstance(visible := settings["visible"], tuple):
        if missing := [str(i) for i in visible if i >= len(gpus)]:
            faults.append(
                f"{_said(settings, 'visible')}: there is no GPU {', '.join(missing)}; "
                f"TensorFlow finds {len(gpus)}, with CUDA_VISIBLE_DEVICES="
                f"{os.environ.get('CUDA_VISIBLE_DEVICES')!r}"
            )
        gpus = [gpus[i] for i in visible if not missing]
        put = partial(config.set_visible_devices, [gpu for _, gpu in gpus], "GPU")
        steps.append((_said(settings, "visible"), put))
    name = "memory_limit" if settings["memory_limit"] else "memory_fraction"
    growth = settings["memory_growth"]
    for index, gpu in gpus:
        if growth is not None:
            said = f"{_said(settings, 'memory_growth')} for {gpu.name}"
            put = partial(config.experimental.set_memory_growth, gpu, growth)
            steps.append((said, put))
        if settings[name] is not None:
            limit = settings["memory_limit"] or _share(settings, index, faults)
            limits = [limit // MIB] * (settings["logical_gpus"] or 1)
            said = f"{_said(settings, name)} for {gpu.name}"
            steps.append((said, partial(_divide, gpu, limits)))
    if faults:
        raise ConfigError("the runtime settings cannot be applied.", faults)
    across = "inter_op_threads" if settings["inter_op_threads"] else "cpu_threads"
    for name, put in (
        ("cpu_devices", lambda n: cpu_devices() < n and make_cpu_devices(n)),
        ("cpu_threads", config.threading.set_intra_op_parallelism_threads),
        (across, config.threading.set_inter_op_parallelism_threads),
        ("cpu_threads", lambda n: os.environ.update(OMP_NUM_THREADS=str(n))),
        ("soft_placement", config.set_soft_device_placement),
        ("log_placement", tf.debugging.set_log_device_placement),
        ("determinism", lambda on: on and config.experimental.enable_op_determinism()),
    ):
        if settings[name] is not None:
            steps.append((_said(settings, name), partial(put, settings[name])))
    return steps


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


def idle_settings(settings: Settings, names: Container[str]) -> list[str]:
    """A remark for each of these settings that is of GPUs, where there are none."""
    gpus = _tf().config.list_physical_devices("GPU")
    idle = [n for n in _GPU_SETTINGS if n in names and settings[n] and not gpus]
    why = "has no effect: TensorFlow finds no GPU here"
    return [f"{_said(settings, name)} {why}" for name in idle]


def _said(settings: Settings, name: str) -> str:
    """A setting as it was given and where: "memory_limit=4096 (splitnet.toml)"."""
    return f"{name}={settings[name]} ({settings.all[name].source})"


def cpu_devices() -> int:
    """How many CPU devices there are, or will be once TensorFlow starts."""
    config = _tf().config
    cpu = config.list_physical_devices("CPU")[0]
    return len(config.get_logical_device_configuration(cpu) or [None])


def make_cpu_devices(count: int) -> None:
    """Divide the CPU into so many devices; TensorFlow must not have started."""
    _divide(_tf().config.list_physical_devices("CPU")[0], [None] * count)


def _divide(device: Any, limits: Sequence[float | None]) -> None:
    """Divide a device into logical ones with these limits, in MiB."""
    config = _tf().config
    made = [config.LogicalDeviceConfiguration(memory_limit=m) for m in limits]
    config.set_logical_device_configuration(device, made)
