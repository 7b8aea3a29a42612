"""Commands that use this machine: devices, config, run, measure, demo, audit, bench."""

import os
import runpy
import statistics
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta
from typer import Argument, Option

import splitnet as sn
from splitnet.cli.console import (
    import_tensorflow,
    local_devices,
    progress,
    show_json,
    show_rows,
)
from splitnet.cli.options import (
    SEARCH,
    AllowRemote,
    Json,
    StandIns,
    Table,
    TargetName,
    check_target,
    load_source,
    search_options,
)
from splitnet.cli.plan_commands import planned
from splitnet.cli.worker_commands import run_with_workers
from splitnet.core.checks import Count, Positive
from splitnet.core.errors import (
    ConfigError,
    DeclarationError,
    format_bytes,
    format_count,
    format_seconds,
)
from splitnet.core.serialization import write_cluster
from splitnet.core.settings import OPTIONS, config_file, resolve


def devices(stand_ins: StandIns = 0, json_: Json = False) -> int:
    """List the devices of this machine: memory, use, links."""
    rows = _device_rows(stand_ins)
    if json_:
        show_json(rows)
        return 0
    lines = []
    for row in rows:
        model = row["model"] or "stand-in: " * row["stand_in"] + row["target"]
        card = f" (cc {row['capability']})" if row["capability"] else ""
        total, busy = row["memory_bytes"], row["busy"]
        users = (f"{pid} ({format_bytes(used)})" for pid, used in row["used_by"])
        links = (f"gpu:{other}" for other in row["links"])
        cells = {
            "device": row["name"],
            "model": model + card,
            "free": format_bytes(row["free_bytes"]),
            "total": total and format_bytes(total),
            "utilization": "" if busy is None else f"{busy:.0%}",
            "speed": f"{format_count(row['flops_per_second'])}FLOP/s",
            "used by": ", ".join(users),
            "links": ", ".join(links),
        }
        lines.append({head: cell or "-" for head, cell in cells.items()})
    show_rows(lines)
    return 0


def _device_rows(stand_ins: int) -> list[dict[str, Any]]:
    cluster = local_devices(stand_ins)
    from splitnet.tf.runtime.devices import Details, details_of

    details = details_of(cluster)
    names = ("name", "kind", "target", "stand_in", "flops_per_second")
    return [
        asdict(details.get(device.name, Details()))
        | {name: getattr(device, name) for name in names}
        | {"free_bytes": device.memory_bytes}
        for device in cluster
    ]


def config(
    check: Annotated[bool, "Check the settings against this machine."] = False,
) -> int:
    """Show every runtime setting with its value and its origin."""
    settings = resolve({}, os.environ, Path.cwd())
    notes = []
    if check:
        import_tensorflow()
        from splitnet.tf.runtime.configure import check_settings, remarks

        check_settings(settings)
        notes = remarks(settings)
    rows = []
    for one in settings:
        value = one.value
        if value is None:
            value = "TensorFlow's own"
        elif isinstance(value, tuple):  # visible GPUs
            value = ",".join(map(str, value)) or "none"
        elif one.name == "memory_limit":
            value = format_bytes(value)
        origin = "default" if one.origin == "default" else one.source
        row = {"option": one.name, "value": str(value), "origin": origin}
        rows.append(row | {"meaning": OPTIONS[one.name].about})
    show_rows(rows)
    path = config_file(os.environ, Path.cwd())
    print(f"\nsettings file: {path or 'none (splitnet.toml, or [tool.splitnet])'}")
    for note in notes:
        print(note)
    return 0


_SETTINGS: Table = {
    name: Annotated[bool if option.type is bool else str, option.about]
    for name, option in OPTIONS.items()
} | {"visible": Annotated[str, Option("--gpus", help=OPTIONS["visible"].about)]}


def run(
    script: Annotated[str, Argument(metavar="SCRIPT.py", help="The script.")],
    arguments: Annotated[list[str], Argument(help="Its arguments.")] = None,
    workers: Annotated[Positive, "Run a command with N private workers."] = None,
    max_restarts: Annotated[Count, "Starts after a failure, with --workers."] = 0,
    **settings: Annotated[Any, _SETTINGS],
) -> int:
    """Run any TensorFlow script under runtime settings.

    A setting counts as an environment variable SPLITNET_*; sn.configure() in the script
    overrides it. With --workers, a command is run instead of a script, and it and lost
    workers are started again after a failure.
    """
    if workers is None and not Path(script).is_file():
        raise ConfigError(f"there is no script {script!r}.")
    # Variables, so that child processes of the script see the settings too.
    for name, value in settings.items():
        if value is not None:
            os.environ[f"SPLITNET_{name.upper()}"] = str(value)
    if settings["cpu_threads"]:
        # Read when a library is loaded, which is before any setting is applied.
        os.environ["OMP_NUM_THREADS"] = str(settings["cpu_threads"])
    command = [script, *(arguments or ())]
    if workers is not None:
        return run_with_workers(command, workers, max_restarts=max_restarts)
    import_tensorflow(level="2")
    sn.configure()
    sys.argv = command
    sys.path[0] = str(Path(script).resolve().parent)
    runpy.run_path(script, run_name="__main__")
    return 0


def measure(
    target: TargetName = None,
    out: Annotated[Path, "Save the costs in this file."] = Path("costs.json"),
    batch: Annotated[Positive, "Samples per step."] = 32,
    optimizer: Annotated[str, "Keras optimizer whose update is timed."] = "adam",
    stand_ins: StandIns = 0,
    links: Annotated[Path, "Measure the links of this cluster file instead."] = None,
    allow_remote: AllowRemote = False,
) -> int:
    """Measure calls and links on this machine, for `plan --costs`."""
    if links is not None:
        return _measure_links(links, allow_remote)
    if target is None:
        raise ConfigError("name what to measure: TARGET, or --links FILE.toml.")
    check_target(target)
    cluster = local_devices(stand_ins)
    source = load_source(target)
    how = {"optimizer": optimizer}
    with progress("measuring", total=1.0) as advance:
        found = sn.measure(source, cluster, batch, on_progress=advance, **how)
    sn.save_costs(found, out)
    print(f"{len(found.calls)} rows of costs are in {out}")
    print(f"plan with them: splitnet plan TARGET --costs {out}")
    return 0


def _measure_links(file: Path, allow_remote: bool) -> int:
    """Bandwidth and latency between every two hosts, and within each."""
    cluster = sn.Cluster.load(file)
    sn.connect(cluster, allow_remote=allow_remote).close()
    from splitnet.tf.profiling.links import measure_links

    measured = replace(cluster, links=measure_links(cluster))
    write_cluster(measured, file)
    print(sn.table(measured))
    print(f"saved in {file}")
    return 0


def demo(
    epochs: Annotated[Positive, "Passes over the training pairs."] = 5,
    gpus: Annotated[Count, "GPUs to use; CPU devices stand in for missing ones."] = 2,
    out: Annotated[Path, "Folder for pictures and plan."] = Path("demo"),
) -> int:
    """Train a shared encoder on two devices, and audit where it ran.

    Real handwritten digits and a siamese network on two GPUs, or on CPU devices that
    stand in for them: plan, draw, train, audit. Exit code 1 if the accuracy is too low
    or anything did not run as planned.
    """
    import_tensorflow()
    from splitnet import demo

    steps = epochs * -(-demo.TRAINING_PAIRS // demo.BATCH)
    with progress("training", total=steps) as advance:
        outcome = demo.run(out, epochs=epochs, gpus=gpus, say=print, on_step=advance)
    print(outcome.summary())
    return 0 if outcome.ok else 1


_TRAINING: Table = {
    "plan": Annotated[str, "A saved plan of TARGET; else one is made here."],
    "batch": SEARCH["batch"],
    "optimizer": Annotated[str, "A Keras optimizer by name (adam)."],
    "loss": Annotated[str, "A Keras loss by name (mse)."],
    "stand_ins": StandIns,
}


def audit(
    target: TargetName, json_: Json = False, **options: Annotated[Any, _TRAINING]
) -> int:
    """Run one training step and check that it ran as planned.

    The data are synthetic. The devices are read back from the graphs that TensorFlow
    executed. Exit code 1 if anything ran elsewhere.
    """
    made, model, data = _placed(target, options)
    with progress("running a step"):
        found = sn.audit(model, made, data)
    if json_:
        findings = [finding.text for finding in found.findings]
        show_json({"ok": found.ok, "findings": findings})
    else:
        print(sn.table(found))
    return 0 if found.ok else 1


def bench(
    target: TargetName,
    steps: Annotated[int, Meta(ge=2), "Steps of each model that are timed."] = 20,
    json_: Json = False,
    **options: Annotated[Any, _TRAINING],
) -> int:
    """Time training steps as planned and on one device, in turn.

    The data are synthetic. One device is what TensorFlow takes without splitnet: its
    first GPU, or the CPU.
    """
    made, placed, data = _placed(target, options)
    with progress("timing", total=2 * steps + 2) as advance:
        plain = _compiled(sn.unplace(placed), options)
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * steps + 2):
            began = time.perf_counter()
            (plain, placed)[turn % 2].train_on_batch(*data)
            seconds[turn % 2].append(time.perf_counter() - began)
            advance(turn + 1)
    ratios = [one / other for one, other in zip(*seconds)][1:]  # the first is traced
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    alone, taken = (statistics.median(times[1:]) for times in seconds)
    times = {"one_device_seconds": alone, "plan_seconds": taken}
    if json_:
        times |= {"predicted_seconds": made.seconds, "times_faster": ratio}
        show_json(times | {"middle_half": [low, high]})
        return 0
    one, planned, said = map(format_seconds, (alone, taken, made.seconds))
    print(f"{made.graph.name}: batch {made.batch}, median of {steps} training steps")
    print(f"one device  {one}\nas planned  {planned}, predicted {said}")
    print(f"{ratio:.2f} times as fast; middle half of pairs {low:.2f} to {high:.2f}")
    if any(device.stand_in for device in made.cluster):
        print("stand-ins share one thread pool: they show placement, not speed")
    return 0


def _placed(target: str, options: Table) -> "tuple[sn.Plan, Any, tuple[Any, Any]]":
    """A model by a saved plan, or by one for this machine, with synthetic data."""
    check_target(target)
    made = options["plan"] and sn.load_plan(options["plan"])
    if made and options["batch"] is not None:
        raise DeclarationError("a saved plan has its own batch; leave --batch out.")
    # Stand-ins of the plan must exist before the program builds its first layer.
    needed = sum(device.stand_in for device in made.cluster) if made else 0
    cluster = local_devices(options["stand_ins"] or needed)
    source = load_source(target)
    made = made or planned(source, cluster, search_options(options))[0]
    import keras

    from splitnet.tf.profiling.measure import synthetic_batch

    with progress("emitting"):
        model = _compiled(sn.emit(source, made), options)
    inputs, targets = synthetic_batch(model, made.batch)
    if (options["loss"] or "").startswith("sparse_"):  # takes class numbers
        targets = keras.tree.map_structure(lambda t: t.argmax(-1), targets)
    return made, model, (inputs, targets)


def _compiled(model: Any, options: Table) -> Any:
    if not model.compiled:
        model.compile(options["optimizer"] or "adam", options["loss"] or "mse")
    return model
