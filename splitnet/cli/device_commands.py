"""Commands about this machine: devices, config, run, measure."""

import os
import runpy
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Argument, Option

import splitnet as sn
import splitnet.cli.options as opt
from splitnet.cli.console import (
    import_tensorflow,
    progress,
    show_json,
    show_rows,
)
from splitnet.cli.targets import check_target, load_source
from splitnet.core.errors import ConfigError, format_bytes, format_count, listed
from splitnet.core.settings import OPTIONS, Setting, Settings, config_file, resolve

__all__ = ["config", "devices", "measure", "run"]

_HEADS = ("device", "model", "free", "total", "busy", "speed", "used by", "reaches")
_NO_DETAILS: dict[str, Any] = {
    "model": "",
    "capability": "",
    "memory_bytes": None,
    "busy": None,
    "watts": None,
    "used_by": [],
    "links": [],
}


def devices(
    watch: Annotated[bool, Option("--watch", help="Repeat until Ctrl-C.")] = False,
    every: Annotated[float, Option(metavar="S", help="Seconds between repeats.")] = 2.0,
    stand_ins: opt.StandIns = 0,
    json_: opt.Json = False,
) -> int:
    """List the devices of this machine: memory, use, links."""
    while True:
        rows = _device_rows(stand_ins)
        if json_:
            show_json(rows)
        else:
            if watch and sys.stdout.isatty():
                print("\033[H\033[2J")
            show_rows(_HEADS, [_device_line(row) for row in rows])
        if not watch:
            return 0
        sys.stdout.flush()
        time.sleep(max(every, 0.1))


def _device_rows(stand_ins: int) -> list[dict[str, Any]]:
    import_tensorflow()
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
            **details.get(device.name, _NO_DETAILS),
        }
        for device in cluster
    ]


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


def config(
    json_: opt.Json = False,
    check: Annotated[
        bool,
        Option("--check", help="Check the settings against this machine."),
    ] = False,
) -> int:
    """Show every runtime setting with its value and its origin."""
    settings = resolve({}, os.environ, Path.cwd())
    notes = _check_here(settings) if check else ()
    if json_:
        show_json([_setting_row(setting) for setting in settings])
        return 0
    rows = [(s.name, _value(s), _origin(s), OPTIONS[s.name].call) for s in settings]
    show_rows(("option", "value", "origin", "TensorFlow call"), rows)
    path = config_file(os.environ, Path.cwd())
    print(f"\nsettings file: {path or 'none (splitnet.toml, or [tool.splitnet])'}")
    for note in notes:
        print(note)
    return 0


def _check_here(settings: Settings) -> tuple[str, ...]:
    """Refuse what this machine cannot do; return what has no effect or is set twice."""
    import_tensorflow()
    from splitnet.tf.runtime.configure import check_settings

    found = check_settings(settings)
    if found.faults:
        raise ConfigError(
            listed("the settings do not suit this machine.", found.faults)
        )
    return found.notes


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


def run(
    script: Annotated[str, Argument(metavar="SCRIPT.py", help="The script.")],
    arguments: Annotated[
        list[str] | None, Argument(metavar="...", help="Its arguments.")
    ] = None,
    gpus: Annotated[
        str | None, Option(metavar="0,1", help="Use these GPUs only.")
    ] = None,
    cpu: Annotated[bool, Option("--cpu", help="Use no GPU.")] = False,
    memory_fraction: Annotated[
        str | None, Option(metavar="F", help="Share of each GPU's memory: 0.5.")
    ] = None,
    memory_limit: Annotated[
        str | None, Option(metavar="SIZE", help="Memory of each GPU: '4 GiB'.")
    ] = None,
    memory_growth: Annotated[
        bool, Option("--memory-growth", help="Take memory as needed.")
    ] = False,
    cpu_threads: Annotated[
        str | None, Option(metavar="N", help="Threads of the CPU.")
    ] = None,
    cpu_devices: Annotated[
        str | None, Option(metavar="N", help="Divide the CPU into N devices.")
    ] = None,
    log_placement: Annotated[
        Literal["branches", "ops"] | None,
        Option(help="Log where each branch, or each operation, is placed."),
    ] = None,
    determinism: Annotated[
        bool, Option("--determinism", help="Make operations deterministic.")
    ] = False,
    tf_log: opt.TfLog = False,
) -> int:
    """Run any TensorFlow script under runtime settings.

    An option counts as an environment variable SPLITNET_*; sn.configure() in the script
    overrides it.
    """
    if not Path(script).is_file():
        raise ConfigError(f"there is no script {script!r}.")
    if cpu and gpus:
        raise ConfigError("--cpu and --gpus exclude each other; give one of them.")
    given = {
        "visible": "none" if cpu else gpus,
        "memory_fraction": memory_fraction,
        "memory_limit": memory_limit,
        "memory_growth": "true" if memory_growth else None,
        "cpu_threads": cpu_threads,
        "cpu_devices": cpu_devices,
        "log_placement": log_placement,
        "determinism": "true" if determinism else None,
    }
    # Variables, so that child processes of the script see the settings too.
    os.environ.update(
        {OPTIONS[k].variable: v for k, v in given.items() if v is not None}
    )
    if cpu_threads:
        # Read when a library is loaded, which is before any setting is applied.
        os.environ["OMP_NUM_THREADS"] = cpu_threads
    import_tensorflow(verbose=tf_log, level="2")
    from splitnet.tf.runtime.configure import configure

    configure()
    sys.argv = [script, *(arguments or ())]
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


def measure(
    target: opt.Target,
    out: Annotated[
        Path, Option("--out", "-o", metavar="FILE", help="Save the costs here.")
    ] = Path("costs.json"),
    batch: opt.Batch = 32,
    optimizer: Annotated[
        str, Option(metavar="NAME", help="Keras optimizer whose update is timed.")
    ] = "adam",
    stand_ins: opt.StandIns = 0,
) -> int:
    """Measure calls and links on this machine, for `plan --costs`."""
    check_target(target)
    import_tensorflow()
    from splitnet.tf.runtime.devices import local_cluster

    cluster = local_cluster(stand_in_gpus=stand_ins)
    source = load_source(target)
    with progress("measuring", total=1.0) as advance:
        found = sn.measure(
            source, cluster, batch, optimizer=optimizer, on_progress=advance
        )
    sn.save_costs(found, out)
    print(f"{len(found.forward)} rows of costs are in {out}")
    print(f"plan with them: splitnet plan TARGET --costs {out}")
    return 0
