"""Runtime settings, applied: every fault is named before TensorFlow's bare error.

Nothing here makes TensorFlow start.
"""

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splitnet.core.errors import ConfigError, listed
from splitnet.core.plan import Plan
from splitnet.core.settings import Settings, resolve
from splitnet.tf.context import started, starter, watch
from splitnet.tf.early import early_steps
from splitnet.tf.quiet import hushed

__all__ = ["announce", "configure", "current", "force_cpu"]

_said: dict[str, object] = {}


def current(said: Mapping[str, object] | None = None) -> Settings:
    """Every setting as it stands, with its origin; applies nothing.

    Raises:
        ConfigError: unknown names, impossible values and contradictions.
    """
    return resolve(_said | dict(said or {}), os.environ, Path.cwd())


@hushed()
def configure(**options: Any) -> Settings:
    """Tell TensorFlow how to use this machine; call it before anything is built.

    What is not said here comes from `SPLITNET_*` variables, then from `splitnet.toml`
    or `[tool.splitnet]` of `pyproject.toml`, and else is left as TensorFlow has it.
    Calls add up, and the same call twice does no harm.

    Args:
        **options: `visible` (GPU indices, "all", "none"), `memory_fraction` (0 to 1),
            `memory_limit` (bytes, or "4 GiB"), `memory_growth`, `logical_gpus`,
            `cpu_devices`, `cpu_threads`, `inter_op_threads`, `soft_placement`,
            `log_placement` ("branches" or "ops") and `determinism`.

    Returns:
        Every setting with its value and origin.

    Raises:
        ConfigError: a setting is unknown, impossible, contradicts another, or comes too
            late; all of them at once, and nothing is applied.
    """
    settings = current(options)
    steps, faults = early_steps(settings)
    if faults:
        raise ConfigError(listed("the runtime settings cannot be applied.", faults))
    late = [text for text, done, _ in steps if not done()] if started() else []
    if late:
        raise ConfigError(
            listed(
                f"too late: TensorFlow has already started; {starter()}.",
                [
                    *late,
                    "call sn.configure() before the first layer, tensor or dataset is "
                    "made, or set SPLITNET_* before the program begins; in a notebook, "
                    "restart the kernel first",
                ],
            )
        )
    for _, done, act in steps:
        if not done():
            act()
    _apply_any_time(settings)
    _said.update(options)
    watch()
    return settings


def force_cpu() -> Settings:
    """Use no GPU, though there may be some: `configure(visible="none")`.

    Raises:
        ConfigError: TensorFlow has already claimed a GPU.
    """
    return configure(visible="none")


def announce(plan: Plan) -> None:
    """Log where each branch goes, a line each, if `log_placement` asks for it."""
    if current()["log_placement"] != "branches":
        return
    log = logging.getLogger("splitnet.placement")
    if not log.hasHandlers():
        log.addHandler(logging.StreamHandler())
    log.setLevel(logging.INFO)
    for placed in plan.placements:
        target = plan.cluster[placed.device].target
        log.info("%s: %s (%s), %s", placed.part, placed.device, target, placed.reason)


def _apply_any_time(settings: Settings) -> None:
    import tensorflow as tf

    soft = settings["soft_placement"]
    if soft is not None:
        tf.config.set_soft_device_placement(soft)
    if settings["log_placement"] is not None:
        tf.debugging.set_log_device_placement(settings["log_placement"] == "ops")
    if settings["determinism"]:
        tf.config.experimental.enable_op_determinism()
