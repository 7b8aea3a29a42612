"""Commands about plans and this machine; those of several are `worker_commands`."""

import os
import runpy
import statistics
import sys
import time
import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta
from typer import Argument, Option

import splitnet as sn
import splitnet.cli.options as cli
from splitnet.cli.console import answer, import_tensorflow, local_devices, progress
from splitnet.cli.worker_commands import run_with_workers
from splitnet.core.checks import Count, Positive
from splitnet.core.errors import format_bytes, format_count, format_seconds, percent
from splitnet.core.serialization import check_place, decode, load_file, write_cluster
from splitnet.core.settings import OPTIONS, config_file, resolve
from splitnet.core.timeline import SCHEDULES

_PYTHON_SHOWS = warnings.showwarning  # with file and line
_MOST_CALLS = 2_000  # of a graph for which `plan` says the largest batch
_MOST_SAMPLES = 1 << 20  # of that batch


def plan(
    target: cli.TargetName = "",
    out: Annotated[Path, "Save the plan in this file."] = None,
    json_: cli.Json = False,
    warm_up: Annotated[bool, "Compile the search loops in advance."] = False,
    **options: Annotated[Any, cli.SEARCH | cli.MACHINE],
) -> None:
    """Choose a device for every part, and show what it costs."""
    if warm_up:
        if not target and (out or json_ or {*options.values()} - {None, 0}):
            raise sn.DeclarationError("--warm-up without TARGET takes no other option.")
        from splitnet.planner.engine.solve import warm_up as warm_up_search

        with progress("compiling the search"):
            warm_up_search()
        if not target:
            return
    if out:
        check_place(out, "plan")
    source, cluster, held, search = cli.opened(target, options)
    began = time.perf_counter()
    made = planned(source, cluster, search)
    figures = _figures(made) | {"seconds": time.perf_counter() - began}
    with progress("comparing strategies"):
        text = [sn.table(made)]
    if isinstance(held, sn.Plan):
        change = held.compare(made)
        figures["moved"] = change.moved
        text.append(f"since {target}: {change}")
    if made.objective != "throughput" and len(made.graph.calls) <= _MOST_CALLS:
        how = {name: getattr(made, name) for name in ("optimizer", "training")}
        how |= {"device_of": made, "most": _MOST_SAMPLES}
        figures["largest_batch"] = most = sn.largest_batch(made.graph, cluster, **how)
        more = " or more" * (most == _MOST_SAMPLES)
        text.append(f"largest batch that fits this placement: {most}{more}")
    if out:
        made.save(out)
        text.append(f"saved to {out}")
    answer(figures, "\n\n".join(text), for_program=json_)


def planned(source: Any, cluster: sn.Cluster, options: dict[str, Any]) -> "sn.Plan":
    """Plan with a bar that shows the best value so far."""
    written = format_bytes if options.get("objective") == "memory" else format_seconds
    with progress("planning", total=1.0) as bar:
        options["on_progress"] = lambda done, best: bar(done, f"best {written(best)}")
        return sn.plan(source, cluster, **options)


def _figures(plan: "sn.Plan") -> dict[str, Any]:
    names = ("objective", "value", "bound", "gap", "strategy", "batch")
    return {name: getattr(plan, name) for name in (*names, "transfer_bytes")} | {
        "execution": asdict(plan.execution),
        "device_of": dict(plan.device_of),
        "fallbacks": [asdict(fallback) for fallback in plan.fallbacks],
        "memory_bytes": {name: used.total for name, used in plan.memory.items()},
        "step_seconds": plan.timeline.seconds,
    }


def estimate(
    target: cli.TargetName,
    json_: cli.Json = False,
    **options: Annotated[Any, cli.ESTIMATE | cli.MACHINE],
) -> int:
    """What fits, and how: one device, branches, towers, pipelines.

    Exit code 1 if nothing fits.
    """
    source, cluster, _, search = cli.opened(target, options)
    with progress("comparing strategies"):
        found = sn.compare_strategies(source, cluster, **search)
    answer([asdict(one) for one in found.all], sn.table(found), for_program=json_)
    return 0 if found.best.fits else 1


_PLACEMENT = '{"part": "gpu:0", ...}, a saved plan, or the split of a workload.'


def score(
    target: cli.TargetName,
    placement: Annotated[str, Argument(metavar="PLACEMENT.json", help=_PLACEMENT)],
    json_: cli.Json = False,
    **options: Annotated[Any, cli.SCORE | cli.MACHINE],
) -> int:
    """Evaluate your own placement.

    Exit code 1 if it breaks a constraint: near, apart, memory, or no GPU kernel.
    """
    from splitnet.planner.constraints import violations
    from splitnet.planner.workloads import device_of_split

    given = load_file(placement, "placement", lambda values: values)
    if isinstance(given, dict) and "device_of" in given:  # of a plan, or `plan --json`
        given = sn.load_plan(placement) if "graph" in given else given["device_of"]
    elif isinstance(given, dict) and {"fpgas", "cpus"} & set(given):
        given = device_of_split(given)
    if not isinstance(given, sn.Plan):
        what = f"{placement!r}, which must be {_PLACEMENT[:-1]}"
        given = decode(given, dict[str, str], what)
    source, cluster, _, search = cli.opened(target, options)
    scored = sn.score(source, cluster, given, **search)
    broken = violations(scored)
    text = "\n".join([sn.table(scored), *(f"broken: {line}" for line in broken)])
    answer(_figures(scored) | {"violations": broken}, text, for_program=json_)
    return 1 if broken else 0


def simulate(
    plan: cli.SavedPlan,
    trace: Annotated[Path, "Write a Perfetto trace (JSON) into this file."] = None,
    microbatches: Annotated[int, "Micro-batches, if not the plan's."] = None,
    schedule: Annotated[Literal[SCHEDULES], "Their order, if not the plan's."] = None,
    recompute: Annotated[bool, "Recompute activations in the backward pass."] = False,
    json_: cli.Json = False,
) -> None:
    """Simulate one step of a saved plan."""
    how = {"microbatches": microbatches, "schedule": schedule}
    timeline = sn.simulate(sn.load_plan(plan), recompute=recompute or None, **how)
    text = sn.chart(timeline)
    if trace:
        sn.trace(timeline, trace)
        text += f"\n\ntrace written to {trace}; open it in ui.perfetto.dev"
    names = ("seconds", "compute_seconds", "utilization", "peak_bytes")
    figures = {name: getattr(timeline, name) for name in names}
    figures |= {n: [*map(asdict, getattr(timeline, n))] for n in ("tasks", "copies")}
    answer(figures, text, for_program=json_)


def draw(
    plan: cli.SavedPlan,
    out: Annotated[Path, ".svg, .png, .pdf or .dot."] = Path("placement.svg"),
    other: Annotated[str, "Show what moved since this saved plan."] = None,
    timeline: Annotated[bool, "Draw the timeline instead of the placement."] = False,
) -> None:
    """Draw a saved plan as SVG, PNG, PDF or DOT."""
    made, old = sn.load_plan(plan), sn.load_plan(other) if other else None
    shown, beside = (made.timeline, old and old.timeline) if timeline else (made, old)
    with progress("drawing"):
        sn.draw(shown, out, other=beside)
    print(out)


def report(
    plan: cli.SavedPlan, out: Annotated[Path, "The file."] = Path("report.html")
) -> None:
    """Write one HTML page about a saved plan."""
    with progress("writing the report"):
        sn.report(sn.load_plan(plan), out)
    print(out)


def devices(stand_ins: cli.StandIns = 0, json_: cli.Json = False) -> None:
    """List the devices of this machine: memory, use, links."""
    cluster = local_devices(stand_ins)
    from splitnet.tf.runtime.devices import Details, details_of

    details = details_of(cluster)
    rows, lines = [], []
    for one in cluster:
        own = details.get(one.name, Details())
        more = {"kind": one.kind, "free_bytes": one.memory_bytes}
        rows.append(asdict(one) | asdict(own) | more)
        model = own.model or "stand-in: " * one.stand_in + one.target
        users = (f"{pid} ({format_bytes(used)})" for pid, used in own.used_by)
        cells = {
            "device": one.name,
            "model": model + (f" (cc {own.capability})" if own.capability else ""),
            "free": format_bytes(one.memory_bytes),
            "total": own.memory_bytes and format_bytes(own.memory_bytes),
            "utilization": "" if own.busy is None else percent(own.busy),
            "speed": f"{format_count(one.flops_per_second)}FLOP/s",
            "used by": ", ".join(users),
            "links": ", ".join(f"gpu:{other}" for other in own.links),
        }
        lines.append({head: cell or "-" for head, cell in cells.items()})
    answer(rows, lines, for_program=json_)


def config(check: Annotated[bool, "Check them on this machine."] = False) -> None:
    """Show every runtime setting with its value and its origin."""
    settings, notes = resolve({}, os.environ, Path.cwd()), []
    if check:
        import_tensorflow()
        from splitnet.tf.runtime.configure import check_settings, idle_settings

        check_settings(settings)
        notes = idle_settings(settings, OPTIONS)
    rows = []
    for one in settings:
        value = "TensorFlow's own" if one.value is None else one.value
        if isinstance(value, tuple):  # visible GPUs
            value = ",".join(map(str, value)) or "none"
        elif one.name == "memory_limit" and one.value:
            value = format_bytes(value)
        origin = "default" if one.origin == "default" else one.source
        row = {"option": one.name, "value": str(value), "origin": origin}
        rows.append(row | {"meaning": OPTIONS[one.name][1]})
    answer(None, rows)
    none = "none (splitnet.toml, or [tool.splitnet] of pyproject.toml)"
    file = config_file(os.environ, Path.cwd()) or none
    print(f"\nsettings file: {file}", *notes, sep="\n")


_SETTINGS: cli.Table = {
    name: Annotated[bool if kind is bool else str, about]
    for name, (kind, about) in OPTIONS.items()
} | {"visible": Annotated[str, Option("--gpus", help=OPTIONS["visible"][1])]}


def run(
    script: Annotated[str, Argument(metavar="SCRIPT.py", help="The script.")],
    arguments: Annotated[list[str], Argument(help="Its arguments.")] = None,
    workers: Annotated[Positive, "Run a command with N private workers."] = None,
    max_restarts: Annotated[Count, "Starts after a failure, with --workers."] = 0,
    **settings: Annotated[Any, _SETTINGS],
) -> int | None:
    """Run any TensorFlow script under runtime settings.

    A setting counts as an environment variable SPLITNET_*; sn.configure() in the script
    overrides it. With --workers, a command is run instead of a script, and it and lost
    workers are started again after a failure.
    """
    if workers is None and not Path(script).is_file():
        usage = "The usage is: splitnet run [OPTIONS] SCRIPT.py [ARGUMENTS]"
        raise sn.ConfigError(f"there is no script {script!r}. {usage}")
    if workers is None and max_restarts:
        raise sn.ConfigError("--max-restarts needs --workers N -- python SCRIPT.py.")
    # Variables, so that child processes of the script see the settings too.
    given = {name: str(one) for name, one in settings.items() if one is not None}
    os.environ.update({f"SPLITNET_{name.upper()}": one for name, one in given.items()})
    if threads := given.get("cpu_threads"):
        os.environ["OMP_NUM_THREADS"] = threads  # read when a library is loaded
    command = [script, *(arguments or ())]
    if workers is not None:
        return run_with_workers(command, workers, max_restarts=max_restarts)
    import_tensorflow(level="2")
    sn.configure()
    warnings.showwarning = _PYTHON_SHOWS
    sys.argv, sys.path[0] = command, str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:  # whatever the script raises is shown as Python does
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename != script:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return 1
    return None


def measure(
    target: cli.ModelName = None,
    out: Annotated[Path, "Save the costs in this file (costs.json)."] = None,
    batch: Annotated[Positive, "Samples per step (32)."] = None,
    optimizer: Annotated[str, "Keras optimizer whose update is timed (adam)."] = None,
    stand_ins: cli.StandIns = 0,
    links: Annotated[Path, "Measure the links of this cluster file instead."] = None,
    allow_remote: cli.AllowRemote = False,
) -> None:
    """Measure calls and links on this machine, for `plan --costs`."""
    if links is not None:
        given = {"TARGET": target, "--out": out, "--batch": batch}
        given |= {"--optimizer": optimizer, "--stand-ins": stand_ins}
        if more := ", ".join(name for name, value in given.items() if value):
            what = "--links measures the links of a cluster file and saves them there"
            raise sn.ConfigError(f"{what}; leave {more} out.")
        cluster = sn.Cluster.load(links)
        with sn.connect(cluster, allow_remote=allow_remote):
            from splitnet.tf.profiling.measure import measure_links

            measured = replace(cluster, links=measure_links(cluster))
        write_cluster(measured, links)
        print(f"{sn.table(measured)}\nsaved in {links}")
        return
    if target is None:
        raise sn.ConfigError("name what to measure: TARGET, or --links FILE.toml.")
    if allow_remote:
        raise sn.ConfigError("--allow-remote belongs to --links; leave it out.")
    check_place(out := out or Path("costs.json"), "cost table")
    source, cluster = cli.load_source(target, lambda: local_devices(stand_ins))
    how = {"batch": batch or 32, "optimizer": optimizer or "adam"}
    with progress("measuring", total=1.0) as bar:
        found = sn.measure(source, cluster, **how, on_progress=bar)
    sn.save_costs(found, out)
    print(f"{len(found.calls)} rows of costs are in {out}")
    print(f"plan with them: splitnet plan TARGET --costs {out}")


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

    outcome = demo.run(out, epochs, gpus, say=print)
    print(outcome.summary())
    return 0 if outcome.ok else 1


_TRAINING: cli.Table = {
    "plan": Annotated[str, "A saved plan of TARGET; else one is made here."],
    "batch": cli.SEARCH["batch"],
    "optimizer": Annotated[str, "A Keras optimizer by name (the plan's, or adam)."],
    "loss": Annotated[str, "A Keras loss by name (mse)."],
    "stand_ins": cli.StandIns,
}


def audit(
    target: cli.ModelName, json_: cli.Json = False, **options: Annotated[Any, _TRAINING]
) -> int:
    """Run one training step and check that it ran as planned.

    The data are synthetic. The devices are read back from the graphs that TensorFlow
    executed. Exit code 1 if anything ran elsewhere.
    """
    made, model, data = _placed(target, options)
    with progress("running a step"):
        found = sn.audit(model, made, data)
    figures = {"ok": found.ok, "findings": [finding.text for finding in found.findings]}
    answer(figures, sn.table(found), for_program=json_)
    return 0 if found.ok else 1


def bench(
    target: cli.ModelName,
    steps: Annotated[int, Meta(ge=2), "Steps of each model that are timed."] = 20,
    json_: cli.Json = False,
    **options: Annotated[Any, _TRAINING],
) -> None:
    """Time steps as planned and on one device, in turn: of training, or forward.

    The data are synthetic. The one device is the first GPU, or else the CPU.
    """
    made, placed, data = _placed(target, options)
    kind, step = ("training", "train") if made.training else ("inference", "predict")
    with progress("timing", total=2 * steps + 2) as advance:
        both = sn.unplace(placed), placed
        seconds: tuple[list[float], list[float]] = ([], [])
        for turn in range(2 * steps + 2):
            began = time.perf_counter()
            getattr(both[turn % 2], f"{step}_on_batch")(*data[: 1 + made.training])
            seconds[turn % 2].append(time.perf_counter() - began)
            advance(turn + 1)
    ratios = [one / other for one, other in zip(*seconds)][1:]  # the first is traced
    low, ratio, high = statistics.quantiles(ratios, n=4, method="inclusive")
    alone, took = (statistics.median(times[1:]) for times in seconds)
    figures = {"one_device_seconds": alone, "plan_seconds": took, "times_faster": ratio}
    ran = sn.plan_of(placed)  # on what is here
    figures |= {"predicted_seconds": ran.seconds, "middle_half": [low, high]}
    one, planned, said = map(format_seconds, (alone, took, ran.seconds))
    text = [
        f"{made.graph.name}: batch {made.batch}, medians of {steps} {kind} steps",
        f"one device  {one}\nas planned  {planned}, predicted {said}",
        f"pairs: {ratio:.2f} times as fast, middle half {low:.2f} to {high:.2f}",
    ]
    if any(device.stand_in for device in ran.cluster):
        text.append("stand-ins share one thread pool: they show placement, not speed")
    answer(figures, "\n".join(text), for_program=json_)


def _placed(target: str, options: dict[str, Any]) -> "tuple[sn.Plan, Any, Any]":
    """A model by a saved plan, or by one for this machine, with synthetic data."""
    made = options["plan"] and sn.load_plan(options["plan"])
    if made and options["batch"] is not None:
        raise sn.DeclarationError("a saved plan has its own batch; leave --batch out.")
    stand_ins = options["stand_ins"] or made and sum(d.stand_in for d in made.cluster)
    source, cluster = cli.load_source(target, lambda: local_devices(stand_ins or 0))
    made = made or planned(source, cluster, cli.search_options(options))
    from splitnet.tf.profiling import measure

    with progress("emitting"):
        model = sn.emit(source, made)
    if model.compiled:
        if options["optimizer"] or options["loss"]:
            fault = f"{target!r} is compiled with an optimizer and a loss of its own"
            raise sn.DeclarationError(f"{fault}; leave --optimizer and --loss out.")
        return made, model, measure.synthetic_batch(model, made.batch)
    optimizer, loss = options["optimizer"] or made.optimizer, options["loss"] or "mse"
    optimizer = measure.optimizer_of(optimizer)
    try:
        model.compile(optimizer, loss)
        x, y = measure.synthetic_batch(model, made.batch)
        model.compute_loss(x, y, measure.synthetic(model.output, made.batch))
    except Exception as error:  # whatever a loss raises
        what = f"--loss {loss!r} cannot be computed with targets shaped as the outputs"
        why = f"of {target!r}: {type(error).__name__}: {error}".partition("\n")[0]
        raise sn.DeclarationError(f"{what} {why}. Give another --loss.") from None
    return made, model, (x, y)
