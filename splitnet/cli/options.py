"""Options of the commands, and what their target means.

Commands annotate a parameter with its help: `batch: Annotated[int, "Batch size."]`.
Options that belong together are a table: name -> annotation. A command takes those of a
table as `**options: Annotated[Any, TABLE]`; an option that was not given is None.
"""

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_type_hints

from msgspec import Meta
from typer import Argument, Option

import splitnet as sn
from splitnet.cli.console import import_tensorflow, local_devices, progress, say
from splitnet.core.checks import Count, Positive
from splitnet.core.plan import CONTIGUITIES, MISSING, OBJECTIVES
from splitnet.core.serialization import load_file
from splitnet.core.timeline import SCHEDULES

_MODEL = (
    "file.py:name, package.module:name (a Net, a Keras model, or a function without "
    "arguments that returns one), or model.keras"
)
_TARGET = f"{_MODEL}; or a JSON file (plan, workload)."
TargetName = Annotated[str, Argument(metavar="TARGET", help=_TARGET)]
ModelName = Annotated[str, Argument(metavar="TARGET", help=f"{_MODEL}.")]
SavedPlan = Annotated[str, Argument(metavar="PLAN.json", help="A saved plan.")]
Json = Annotated[bool, "Machine-readable output."]
AllowRemote = Annotated[bool, "Allow a network that others can reach."]
StandIns = Annotated[Count, "Use N CPU devices here in place of GPUs."]
Table = Mapping[str, Any]

MACHINE: Table = {
    "cluster": Annotated[str, "A machine: box.toml, or '2*gpu,cpu'."],
    "gpus": Annotated[Positive, "Short for --cluster 'N*gpu,cpu'."],
    "preset": Annotated[str, "Model of its GPUs: A100, H100 ..."],
    "memory": Annotated[str, "Memory of each of its GPUs: '16 GiB'."],
    "link": Annotated[str, "Bandwidth between its devices: '25 GB/s'."],
    "stand_ins": StandIns,
}
"""The machine to plan for; without options, this one."""

_AUTO = "With --strategy auto:"
SEARCH: Table = {
    "batch": Annotated[Positive, "Batch size: samples per step (32)."],
    "objective": Annotated[
        Literal[OBJECTIVES], "Shortest step, fastest pipeline, or lowest memory peak."
    ],
    "optimizer": Annotated[str, "Keras optimizer, for the memory of its slots."],
    "costs": Annotated[str, "File of costs from `splitnet measure`."],
    "pin": Annotated[list[str], "PATTERN=DEVICE; repeatable. Or as_built."],
    "missing": Annotated[Literal[MISSING], "For a device that is missing (fallback)."],
    "contiguity": Annotated[Literal[CONTIGUITIES], "Which calls may share a device."],
    "strategy": Annotated[Literal["auto"], "Choose towers, pipelines ... as well."],
    "microbatches": Annotated[Positive, f"{_AUTO} number of micro-batches."],
    "schedule": Annotated[Literal[SCHEDULES], f"{_AUTO} order of micro-batches."],
    "recompute": Annotated[bool, f"{_AUTO} recompute activations or not."],
    "towers": Annotated[Positive, f"{_AUTO} number of copies."],
    "split": Annotated[list[str], f"{_AUTO} slices, LAYER=N; repeatable. Or none."],
    "time_limit": Annotated[float, "Seconds to search at most (5)."],
    "seed": Annotated[int, "Random seed of the search (0)."],
    "inference": Annotated[bool, "Forward pass only."],
}
"""What a plan is searched with."""

_STEP = "batch", "optimizer", "costs", "inference"
ESTIMATE: Table = {n: SEARCH[n] for n in (*_STEP, "time_limit")}
SCORE: Table = {n: SEARCH[n] for n in (*_STEP, "objective")}


def spelled_out(command: Callable[..., int | None]) -> Callable[..., int | None]:
    """Give a command the signature that typer reads, from its annotations."""
    hints, found = get_type_hints(command, include_extras=True), []
    for name, one in signature(command).parameters.items():
        table, usual = {name: hints[name]}, one.default
        if one.kind is Parameter.VAR_KEYWORD:
            table, usual = hints[name].__metadata__[0], None
        for option, hint in table.items():
            how = {"default": usual, "annotation": _for_typer(option, hint, usual)}
            found.append(Parameter(option, Parameter.KEYWORD_ONLY, **how))
    command.__signature__ = Signature(found)  # type: ignore[attr-defined]  # typer's
    command.__annotations__ = {one.name: one.annotation for one in found}
    return command


def _for_typer(name: str, hint: Any, default: Any) -> Any:
    """An annotation with typer's own description, of help and range."""
    kind, *notes = get_args(hint)
    its = {type(note): note for note in notes}
    optional = kind | None if default is None else kind
    if str not in its:  # typer's own already
        return Annotated[optional, notes[0]]
    if default is Parameter.empty:
        return Annotated[kind, Argument(help=its[str])]
    words = ["--out", "-o"] if name == "out" else []
    if kind is bool and default is False:  # not --no-json as well
        words = ["--" + name.strip("_").replace("_", "-")]
    about = Option(*words, help=its[str], min=its[Meta].ge if Meta in its else None)
    return Annotated[optional, about]


def search_options(options: Table) -> dict[str, Any]:
    """The options of `SEARCH` that were given, by the library's names."""
    given = {n: v for n, v in options.items() if n in SEARCH and v is not None}
    if (inference := given.pop("inference", None)) is not None:
        given["training"] = not inference
    slices, pins = given.pop("split", None), given.pop("pin", None)
    if slices:
        slices = [] if slices == ["none"] else slices
        counts = _table("--split", slices, "LAYER=N, such as 'wide=2', or none")
        given["split"] = {n: int(c) if c.isdigit() else c for n, c in counts.items()}
    if pins == ["as_built"]:
        given["pins"] = "as_built"
    elif pins:
        form = "PATTERN=DEVICE, or several devices: 'block1_*=gpu:1,cpu'"
        lists = {n: on.split(",") for n, on in _table("--pin", pins, form).items()}
        given["pins"] = {n: on if on[1:] else on[0] for n, on in lists.items()}
    return given


def _table(option: str, texts: list[str], form: str) -> dict[str, str]:
    if wrong := [text for text in texts if not re.fullmatch(".+=.+", text)]:
        raise sn.DeclarationError(f"{option} {wrong[0]!r}: write {form}.")
    table = dict(text.rsplit("=", 1) for text in texts)
    if len(table) < len(texts):
        raise sn.DeclarationError(f"{option} has a name twice: {', '.join(texts)}.")
    return table


def _machine_of(options: Table) -> sn.Cluster | None:
    file, gpus, stand_ins = (options[n] for n in ("cluster", "gpus", "stand_ins"))
    if sum(one not in (None, 0) for one in (file, gpus, stand_ins)) > 1:
        raise sn.DeviceError("give one of --cluster, --gpus and --stand-ins.")
    figures = {name: options[name] for name in ("preset", "memory", "link")}
    names = f"{gpus}*gpu,cpu" if gpus else file
    if names is not None and not names.lower().endswith(".toml"):
        if figures["preset"] is None and "gpu" in names.lower():
            say("figures of typical GPUs are assumed; name yours: --preset A100")
        if "gpu" not in names.lower() and (figures["preset"] or figures["memory"]):
            raise sn.DeviceError(f"--preset and --memory are of GPUs; none in {names}.")
        return sn.Cluster.of(*filter(str.strip, names.split(",")), **figures)
    if any(figures.values()):
        where = "belong to --gpus or to a list: --cluster '2*gpu,cpu'."
        raise sn.DeviceError(f"--preset, --memory and --link {where}")
    return local_devices(stand_ins) if stand_ins else names and sn.Cluster.load(names)


def opened(target: str, options: Table) -> tuple[Any, sn.Cluster, Any, dict[str, Any]]:
    """What to plan, for which machine, what a JSON file held, and how to search.

    A JSON file holds a `Plan`, or the graph and the cluster of a workload.
    """
    search = search_options(options)
    as_built = search.get("pins") == "as_built"  # which follows the variables
    if not target.lower().endswith(".json"):
        how = {"machine": lambda: _machine_of(options) or local_devices()}
        return *load_source(target, **how, empty=not as_built), None, search
    held = load_file(target, "file", lambda values: _held(values, target))
    if as_built:
        fault = "no variables; leave --pin as_built out, or name its program."
        raise sn.DeclarationError(f"{target!r} has {fault}")
    machine = _machine_of(options)
    if isinstance(held, sn.Plan):  # planned as it was, where nothing else is said
        asked = {"contiguity", *(["objective"] if "strategy" not in search else ())}
        names = {"optimizer", "training", "costs", "regroup", *(asked & options.keys())}
        search = {name: getattr(held, name) for name in names} | search
        return held.graph, machine or held.cluster, held, search
    if machine is not None:
        raise sn.DeviceError("a workload file includes its machine; drop --cluster.")
    return *held, held, {"objective": "throughput"} | search  # as the benchmark


def _held(values: Any, target: str) -> Any:
    from splitnet.planner.plan_file import plan_from_dict
    from splitnet.planner.workloads import workload_of

    found = set(values) if isinstance(values, dict) else set()
    if "splitnet_plan" in found:
        return plan_from_dict(values)
    if found & {"nodes", "maxFPGAs"}:
        return workload_of(values, name=Path(target).stem)
    why = "it has none of the fields 'splitnet_plan', 'nodes'."
    raise sn.PlanFileError(f"it is neither a plan nor a workload: {why}")


def load_source(
    target: str, machine: Callable[[], sn.Cluster], *, empty: bool = False
) -> tuple[Any, sn.Cluster]:
    """The Net, model or Graph that a program or a saved model has, and a machine.

    The machine is made before the program builds layers, as stand-ins must be. If
    `empty`, weights of a model that a function builds get no memory.
    """
    if target.lower().endswith(".json"):
        fault = f"this command runs a model, and the JSON file {target!r} has none"
        raise sn.DeclarationError(f"{fault}; name the model or its program.")
    saved = target.endswith((".keras", ".h5"))
    place, _, name = (target, "", "") if saved else target.rpartition(":")
    if not saved and not (place and name.isidentifier()):
        raise sn.DeclarationError(f"cannot tell what {target!r} is. Give {_TARGET}")
    kind = "file" if saved or place.endswith(".py") else "module"
    if kind == "module":
        sys.path.insert(0, str(Path.cwd()))
    root = place.partition(".")[0] or "-"
    if not (Path(place).is_file() if kind == "file" else find_spec(root)):
        raise sn.DeclarationError(f"there is no {kind} {place!r}.")
    cluster = machine()
    import_tensorflow()
    import keras

    from splitnet.tf.internals.keras_api import without_memory

    kinds = sn.Net | sn.Graph | keras.Model
    try:
        with progress(f"loading {target}"), redirect_stdout(sys.stderr):
            module = None if saved else _module(place)
            if module and not hasattr(module, name):
                has = ", ".join(n for n in dir(module) if n[0] != "_") or "nothing"
                raise sn.DeclarationError(f"{place} has no {name!r}. It has: {has}.")
            value = getattr(module, name) if module else keras.models.load_model(place)
            if callable(value) and not isinstance(value, kinds):
                value = without_memory(value) if empty else value()
    except sn.SplitnetError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's program raises
        ours = '  File "<frozen ', f'  File "{Path(sn.__file__).parent}'
        frames = traceback.format_tb(error.__traceback__)
        more = "".join([one for one in frames if not one.startswith(ours)][-3:])
        if saved:
            more = "For a model with layers of its own, name its program: file.py:name."
        raised = f"{target!r} raised {type(error).__name__}: {error}\n{more}".rstrip()
        raise sn.DeclarationError(raised) from None
    if not isinstance(value, kinds):
        wanted = "neither a Net, a Keras model nor a Graph, nor a function without"
        found = f"arguments that returns one. Found: {type(value).__name__}"
        raise sn.DeclarationError(f"{target!r} is {wanted} {found}.")
    return value, cluster


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
