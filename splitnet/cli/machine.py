"""Commands about this machine: devices, config, run."""

import os
import runpy
import sys
import time
from argparse import REMAINDER, Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

from splitnet.cli.screen import hush, show, show_json, show_rows
from splitnet.core.errors import ConfigError, format_bytes, format_count, listed
from splitnet.core.settings import OPTIONS, Setting, Settings, config_file, resolve

__all__ = ["add_commands"]


def add_commands(commands: Any) -> None:
    """Add the machine's commands to the parser."""
    devices = commands.add_parser("devices", help="what is here: memory, use, links")
    devices.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=2.0,
        metavar="S",
        help="look again every S seconds (2)",
    )
    devices.add_argument(
        "--stand-ins",
        type=int,
        default=0,
        metavar="N",
        help="let N CPU devices stand in for GPUs",
    )
    devices.add_argument("--json", action="store_true", help="for a program")
    devices.set_defaults(do=run_devices)

    config = commands.add_parser(
        "config",
        help="every runtime setting, its value, its origin, its TensorFlow call",
    )
    config.add_argument("--json", action="store_true", help="for a program")
    config.add_argument(
        "--check",
        action="store_true",
        help="hold the settings against this machine's GPUs and driver",
    )
    config.set_defaults(do=run_config)

    run = commands.add_parser(
        "run",
        help="run a script under runtime settings",
        description="Run any TensorFlow script under settings. A flag here counts as "
        "an environment variable SPLITNET_*; what the script itself says to "
        "sn.configure() beats it.",
    )
    run.add_argument("--gpus", metavar="0,1", help="use these GPUs only")
    run.add_argument("--cpu", action="store_true", help="use no GPU")
    run.add_argument("--memory-fraction", metavar="F", help="share of each GPU: 0.5")
    run.add_argument("--memory-limit", metavar="SIZE", help="of each GPU: '4 GiB'")
    run.add_argument("--memory-growth", action="store_true", help="take as needed")
    run.add_argument("--cpu-threads", metavar="N", help="threads of the CPU")
    run.add_argument("--cpu-devices", metavar="N", help="divide the CPU into N devices")
    run.add_argument(
        "--log-placement",
        choices=("branches", "ops"),
        help="say where each branch, or each operation, is put",
    )
    run.add_argument(
        "--determinism", action="store_true", help="the same bits in every run"
    )
    run.add_argument(
        "--tf-log", action="store_true", help="show TensorFlow's start-up lines"
    )
    run.add_argument("script", metavar="SCRIPT.py")
    run.add_argument("arguments", nargs=REMAINDER, metavar="...")
    run.set_defaults(do=run_script)


def run_devices(arguments: Namespace) -> int:
    """Show every device, once or again and again."""
    while True:
        rows = _device_rows(arguments.stand_ins)
        if arguments.json:
            show_json(rows)
        else:
            if arguments.watch and sys.stdout.isatty():
                show("\033[H\033[2J")
            show_rows([_device_line(row) for row in rows], _HEADS)
        if not arguments.watch:
            return 0
        sys.stdout.flush()
        time.sleep(max(arguments.watch, 0.1))


def _device_rows(stand_ins: int) -> list[dict[str, Any]]:
    hush()
    from splitnet.tf.runtime.devices import gpu_details, host_details, local_cluster
    from splitnet.tf.runtime.nvml import cards

    cluster = local_cluster(stand_in_gpus=stand_ins)
    details = {} if stand_ins else gpu_details(cards())
    host = host_details()
    details |= {device.name: host for device in cluster if device.kind == "cpu"}
    return [
        {
            "name": device.name,
            "kind": device.kind,
            "target": device.target,
            "stand_in": device.stand_in,
            "free_bytes": device.memory_bytes,
            "flops_per_second": device.flops_per_second,
            **details.get(device.name, _NOTHING_MORE),
        }
        for device in cluster
    ]


_NOTHING_MORE: dict[str, Any] = {
    "model": "",
    "capability": "",
    "memory_bytes": None,
    "busy": None,
    "watts": None,
    "used_by": [],
    "links": [],
}
_HEADS = ("device", "model", "free", "total", "busy", "speed", "used by", "reaches")


def _device_line(row: dict[str, Any]) -> list[str]:
    if row["stand_in"]:
        model = f"stand-in: {row['target']}"
    else:
        model = row["model"] or row["target"]
    users = [f"{pid} ({format_bytes(used)})" for pid, used in row["used_by"]]
    return [
        row["name"],
        f"{model} (cc {row['capability']})" if row["capability"] else model,
        format_bytes(row["free_bytes"]),
        "-" if row["memory_bytes"] is None else format_bytes(row["memory_bytes"]),
        "-" if row["busy"] is None else f"{row['busy']:.0%}",
        f"{format_count(row['flops_per_second'])}FLOP/s",
        ", ".join(users) or "-",
        ", ".join(f"gpu:{i}" for i in row["links"]) or "-",
    ]


def run_config(arguments: Namespace) -> int:
    """Show every setting with its origin; applies none.

    Only a check needs TensorFlow, which does not start.
    """
    settings = resolve({}, os.environ, Path.cwd())
    notes = _check_here(settings) if arguments.check else ()
    if arguments.json:
        show_json([_setting_row(setting) for setting in settings])
        return 0
    show_rows(
        [(s.name, _value(s), _origin(s), OPTIONS[s.name].call) for s in settings],
        ("option", "value", "origin", "TensorFlow call"),
    )
    path = config_file(os.environ, Path.cwd())
    show(f"\nsettings file: {path or 'none (splitnet.toml, or [tool.splitnet])'}")
    for note in notes:
        show(note)
    return 0


def _check_here(settings: Settings) -> tuple[str, ...]:
    """Refuse what this machine cannot do; what has no effect here or is set twice."""
    hush()
    from splitnet.tf.runtime.configure import check_settings

    check = check_settings(settings)
    if check.faults:
        raise ConfigError(
            listed("the settings do not suit this machine.", check.faults)
        )
    return check.notes


def _setting_row(setting: Setting) -> dict[str, Any]:
    option = OPTIONS[setting.name]
    row = asdict(setting)
    return row | {"call": option.call, "late": option.late, "about": option.about}


def _value(setting: Setting) -> str:
    if setting.value is None:
        return "TensorFlow's own"
    if setting.name == "visible" and isinstance(setting.value, tuple):
        return ",".join(map(str, setting.value)) or "none"
    if setting.name == "memory_limit" and isinstance(setting.value, int):
        return format_bytes(setting.value)
    return str(setting.value)


def _origin(setting: Setting) -> str:
    origin = "default" if setting.origin == "default" else setting.source
    return f"{origin}, set aside: {setting.set_aside}" if setting.set_aside else origin


def run_script(arguments: Namespace) -> int:
    """Run a script as `python script.py` would, under settings."""
    script = Path(arguments.script)
    if not script.is_file():
        raise ConfigError(f"there is no script {arguments.script!r}.")
    os.environ.update(_variables(arguments))
    hush(loud=arguments.tf_log, level="2")
    from splitnet.tf.runtime.configure import configure

    configure()
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path[0] = str(script.resolve().parent)
    runpy.run_path(str(script), run_name="__main__")
    return 0


def _variables(arguments: Namespace) -> dict[str, str]:
    """The flags as SPLITNET_* variables, so that child processes see them too."""
    if arguments.cpu and arguments.gpus:
        raise ConfigError("--cpu and --gpus exclude each other; say one of them.")
    given = {
        "visible": "none" if arguments.cpu else arguments.gpus,
        "memory_fraction": arguments.memory_fraction,
        "memory_limit": arguments.memory_limit,
        "memory_growth": "true" if arguments.memory_growth else None,
        "cpu_threads": arguments.cpu_threads,
        "cpu_devices": arguments.cpu_devices,
        "log_placement": arguments.log_placement,
        "determinism": "true" if arguments.determinism else None,
    }
    named = {OPTIONS[k].variable: v for k, v in given.items() if v is not None}
    if arguments.cpu_threads:
        # Read when a library is loaded, which is before any setting is applied.
        named["OMP_NUM_THREADS"] = arguments.cpu_threads
    return named
