"""Options that several commands share, and what a target means.

Options that belong together are a table: name -> type. A command takes those of a table
as `**options: Annotated[Any, TABLE]`; an option that was not given is None.
"""

import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, signature
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

import splitnet as sn
from splitnet.cli.console import import_tensorflow, local_devices, progress
from splitnet.core.cluster import Cluster
from splitnet.core.errors import (
    DeclarationError,
    DeviceError,
    PlanFileError,
    SplitnetError,
)
from splitnet.core.serialization import load_json

TARGET_HELP = (
    "file.py:name, package.module:name (a Net, a Keras model, or a function without "
    "arguments that returns one), model.keras, or a JSON file (plan, workload)."
)
TargetName = Annotated[str, Argument(metavar="TARGET", help=TARGET_HELP)]
SavedPlan = Annotated[str, Argument(metavar="PLAN.json", help="A saved plan.")]
Json = Annotated[bool, Option("--json", help="Machine-readable output.")]
Inference = Annotated[bool, Option("--inference", help="Forward pass only.")]
AllowRemote = Annotated[
    bool, Option("--allow-remote", help="Allow a network that others can reach.")
]
StandIns = Annotated[
    int,
    Option(
        metavar="N", min=0, max=256, help="Use N CPU devices here in place of GPUs."
    ),
]
Table = Mapping[str, Any]
_MODELS = (".keras", ".h5")


def _option(kind: Any, metavar: str | None, text: str, **limits: Any) -> Any:
    return Annotated[kind | None, Option(metavar=metavar, help=text, **limits)]


MACHINE: Table = {
    "cluster": _option(str, "WHAT", "A machine: box.toml, or '2*gpu,cpu'."),
    "gpus": _option(int, "N", "Short for --cluster 'N*gpu,cpu'.", min=1),
    "preset": _option(str, "CARD", "Model of its GPUs: A100, H100 ..."),
    "memory": _option(str, "SIZE", "Memory of each of its GPUs: '16 GiB'."),
    "link": _option(str, "SPEED", "Bandwidth between its devices: '25 GB/s'."),
    "stand_ins": _option(int, "N", "Use N CPU devices here in place of GPUs.", min=0),
}
"""The machine to plan for; without options, this one."""

COSTING: Table = {
    "batch": _option(int, "N", "Batch size: samples per step (32)."),
    "objective": _option(
        Literal["latency", "throughput", "memory"],
        None,
        "Shortest step, fastest pipeline, or lowest memory peak.",
    ),
    "optimizer": _option(str, "NAME", "Keras optimizer, for the memory of its slots."),
    "costs": _option(str, "FILE", "Costs from `splitnet measure`."),
}
"""What the time and memory of a placement depend on."""

SEARCH: Table = {
    **COSTING,
    "pin": _option(
        list[str],
        "PATTERN=DEVICE",
        "Keep parts on a device; repeatable. Or as_built: by variables.",
    ),
    "missing": _option(
        Literal["fallback", "error"],
        None,
        "If a requested device does not exist: replace it, or fail.",
    ),
    "contiguity": _option(
        Literal["free", "convex", "pipeline"],
        None,
        "Which sets of calls may share a device; for workloads.",
    ),
    "strategy": _option(
        Literal["auto"],
        None,
        "Choose towers, micro-batches and recomputation as well.",
    ),
    "microbatches": _option(int, "M", "With --strategy auto: so many pieces."),
    "recompute": _option(
        bool, None, "With --strategy auto: recompute activations, or not."
    ),
    "towers": _option(int, "N", "With --strategy auto: so many copies."),
    "split": _option(
        list[str],
        "LAYER=N",
        "With --strategy auto: N slices of a layer; repeatable. Or none.",
    ),
    "time_limit": _option(float, "S", "Seconds to search at most (5)."),
    "seed": _option(int, "N", "Random seed of the search (0)."),
}
"""What a plan is searched with."""

ESTIMATE: Table = {n: SEARCH[n] for n in ("batch", "optimizer", "costs", "time_limit")}
"""What strategies are compared with."""


def spelled_out(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options of its tables, as typer reads them."""
    hints = get_type_hints(command, include_extras=True)
    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        members = {one.name: (hints[one.name], one.default)}
        if one.kind is Parameter.VAR_KEYWORD:
            table: Table = hints[one.name].__metadata__[0]
            members = {name: (kind, None) for name, kind in table.items()}
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in members.items()
        ]
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def search_options(options: Table) -> dict[str, Any]:
    """The options of `SEARCH` that were given, by the library's names."""
    given = {n: options[n] for n in SEARCH if options.get(n) is not None}
    slices, pins = given.pop("split", []), given.pop("pin", [])
    if slices:
        remedy = "write a layer, = and a number of slices, such as 'wide=2', or none"
        pairs = _pairs("--split", [] if slices == ["none"] else slices, r"\d+", remedy)
        given["split"] = {layer: int(count) for layer, count in pairs}
    if pins == ["as_built"]:
        given["pins"] = "as_built"
    elif pins:
        remedy = (
            "write a name or pattern, = and a device, such as 'block1_*=gpu:0'; "
            "several in order of preference: 'head=gpu:1,cpu'"
        )
        lists = [(n, on.split(",")) for n, on in _pairs("--pin", pins, ".+", remedy)]
        given["pins"] = {name: on if on[1:] else on[0] for name, on in lists}
    return given


def _pairs(
    option: str, texts: Sequence[str], right: str, remedy: str
) -> list[tuple[str, str]]:
    """The two sides of each text LEFT=RIGHT."""
    matches = [re.fullmatch(f"(.+)=({right})", text) for text in texts]
    for text, match in zip(texts, matches):
        if match is None:
            raise DeclarationError(f"{option} {text!r}: {remedy}.")
    return [(match[1], match[2]) for match in matches if match]


def device_list(options: Table) -> str | None:
    """The devices, such as "2*gpu,cpu"; None if they are in a file, or here."""
    cluster, gpus = options["cluster"], options["gpus"]
    if cluster is None:
        return f"{gpus}*gpu,cpu" if gpus else None
    return None if cluster.endswith(".toml") else cluster


def _machine_of(options: Table) -> Cluster | None:
    """The cluster that the options of `MACHINE` describe; None if there are none."""
    if sum(bool(options[name]) for name in ("cluster", "gpus", "stand_ins")) > 1:
        raise DeviceError(
            "--cluster, --gpus and --stand-ins name different machines; give one "
            "of them."
        )
    figures = {name: options[name] for name in ("preset", "memory", "link")}
    names = device_list(options)
    if names is not None:
        return Cluster.of(*filter(str.strip, names.split(",")), **figures)
    if any(figures.values()):
        raise DeviceError(
            "--preset, --memory and --link belong to --gpus or to a list: "
            "--cluster '2*gpu,cpu'."
        )
    if options["stand_ins"]:
        return local_devices(options["stand_ins"])
    return options["cluster"] and Cluster.load(options["cluster"])


def saved(target: str) -> Any:
    """What a JSON file holds; None for what is imported.

    A `Plan`, or the graph and the cluster of a workload.
    """

    def build(values: Any) -> Any:
        found = set(values) if isinstance(values, dict) else set()
        if "splitnet_plan" in found:
            from splitnet.planner.plan_file import plan_from_dict

            return plan_from_dict(values)
        if found & {"nodes", "maxFPGAs"}:
            from splitnet.planner.workloads import workload_of

            return workload_of(values, name=Path(target).stem)
        raise PlanFileError(
            "it is neither a plan nor a workload: it has none of the fields "
            "'splitnet_plan', 'nodes'."
        )

    if target.endswith(".json"):
        return load_json(target, "file", build)
    check_target(target)
    return None


def opened(target: str, held: Any, options: Table) -> tuple[Any, Cluster]:
    """What to plan and for which machine; of a saved file the source is a `Graph`.

    `held` is what `saved` found in the file. A model that a function builds needs no
    memory for weights, unless pins follow its variables.
    """
    if options["batch"] is not None and held is not None:
        raise DeclarationError(
            f"{target!r} has its own batch; leave --batch out, or name the program of "
            "the model."
        )
    cluster = _machine_of(options)
    if held is None:
        # The machine first: stand-ins must be made before a program builds layers.
        cluster = cluster or local_devices()
        empty = options.get("pin") != ["as_built"]
        return load_source(target, empty=empty), cluster
    if isinstance(held, sn.Plan):
        return held.graph, cluster or held.cluster
    if cluster is not None:
        raise DeviceError("a workload file includes its machine; leave --cluster out.")
    graph, cluster = held
    return graph, cluster


def check_target(target: str) -> None:
    """Name a program or model that cannot be found, before TensorFlow is imported."""
    if target.endswith(".json"):
        raise DeclarationError(
            f"this command runs a model, and the JSON file {target!r} has none; name "
            "the model or its program."
        )
    place, _, name = target.rpartition(":")
    file = target if target.endswith(_MODELS) else place
    if file is place and not (place and name.isidentifier()):
        raise DeclarationError(f"cannot tell what {target!r} is. Give {TARGET_HELP}")
    if file.endswith((*_MODELS, ".py")):
        if not Path(file).is_file():
            raise DeclarationError(f"there is no file {file!r}.")
        return
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.util.find_spec(place.partition(".")[0])
    except ValueError:
        found = None
    if found is None:
        raise DeclarationError(f"there is no module {place!r}.")


def load_source(target: str, *, empty: bool = False) -> Any:
    """The Net, model or Graph that a program or a saved model has.

    If `empty`, weights of a model that a function builds get no memory.
    """
    import_tensorflow()
    import keras

    kinds = sn.Net | sn.Graph | keras.Model
    place, _, name = target.rpartition(":")
    with progress(f"loading {target}"):
        try:
            if target.endswith(_MODELS):
                return keras.models.load_model(target)
            module = _module(place)
            if not hasattr(module, name):
                names = [n for n, v in vars(module).items() if isinstance(v, kinds)]
                known = f" It has: {', '.join(names)}." if names else ""
                raise DeclarationError(f"{place!r} has no name {name!r}.{known}")
            value = getattr(module, name)
            if callable(value) and not isinstance(value, kinds):
                from splitnet.tf.internals.keras_api import without_memory

                value = without_memory(value) if empty else value()
        except SplitnetError:
            raise
        except Exception as error:  # the program of the user may raise anything
            if target.endswith(_MODELS):
                raise DeclarationError(
                    f"Keras cannot load {target!r}: {error}\nFor a model with layers "
                    "of its own, name the program that has them: file.py:name."
                ) from None
            where = "".join(traceback.format_tb(error.__traceback__)[-3:])
            raise DeclarationError(
                f"{target!r} raised {type(error).__name__}: {error}\n{where}"
            ) from None
    if not isinstance(value, kinds):
        raise DeclarationError(
            f"{target!r} is neither a Net, a Keras model nor a Graph, nor a function "
            f"without arguments that returns one. Found: {type(value).__name__}."
        )
    return value


def _module(place: str) -> ModuleType:
    """Import a module by file or by dotted name."""
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    spec.loader.exec_module(module)
    return module
