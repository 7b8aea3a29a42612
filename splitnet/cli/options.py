"""Arguments and options that several commands share, and what a target means.

Options that belong together are the fields of a dataclass. A command takes such a value
as one parameter; `with_groups` makes options of its fields.
"""

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
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
StandIns = Annotated[
    int, Option(metavar="N", min=0, help="Use N CPU devices here in place of GPUs.")
]


@dataclass(frozen=True)
class Machine:
    """The machine to plan for; without options, this one."""

    cluster: Annotated[
        str | None, Option(metavar="WHAT", help="A machine: box.toml, or '2*gpu,cpu'.")
    ] = None
    gpus: Annotated[
        int | None, Option(metavar="N", min=1, help="Short for --cluster 'N*gpu,cpu'.")
    ] = None
    preset: Annotated[
        str | None, Option(metavar="CARD", help="Model of its GPUs: A100, H100 ...")
    ] = None
    memory: Annotated[
        str | None, Option(metavar="SIZE", help="Memory of each of its GPUs: '16 GiB'.")
    ] = None
    link: Annotated[
        str | None,
        Option(metavar="SPEED", help="Bandwidth between its devices: '25 GB/s'."),
    ] = None
    stand_ins: StandIns = 0

    @property
    def names(self) -> str | None:
        """Its devices, such as "2*gpu,cpu"; None if they are in a file, or here."""
        if self.cluster is None:
            return f"{self.gpus}*gpu,cpu" if self.gpus else None
        return None if self.cluster.endswith(".toml") else self.cluster

    def described(self) -> Cluster | None:
        """The cluster that the options describe; None if there are none.

        Raises:
            DeviceError: there is no such machine, or the options describe two.
        """
        if sum(map(bool, (self.cluster, self.gpus, self.stand_ins))) > 1:
            raise DeviceError(
                "--cluster, --gpus and --stand-ins name different machines; give one "
                "of them."
            )
        if self.names is None and (self.preset or self.memory or self.link):
            raise DeviceError(
                "--preset, --memory and --link belong to --gpus or to a list: "
                "--cluster '2*gpu,cpu'."
            )
        if self.stand_ins:
            return local_devices(self.stand_ins)
        if self.names is None:
            return None if self.cluster is None else Cluster.load(self.cluster)
        names = [name for name in self.names.split(",") if name.strip()]
        return Cluster.of(
            *names, preset=self.preset, memory=self.memory, link=self.link
        )


@dataclass(frozen=True)
class Costing:
    """What the time and memory of a placement depend on."""

    batch: Annotated[
        int | None, Option(metavar="N", help="Batch size: samples per step (32).")
    ] = None
    objective: Annotated[
        Literal["latency", "throughput", "memory"] | None,
        Option(help="Shortest step, fastest pipeline, or lowest memory peak."),
    ] = None
    optimizer: Annotated[
        str | None,
        Option(metavar="NAME", help="Keras optimizer, for the memory of its slots."),
    ] = None
    costs: Annotated[
        str | None, Option(metavar="FILE", help="Costs from `splitnet measure`.")
    ] = None

    def given(self) -> dict[str, Any]:
        """What was given, by the library's names; its defaults hold for the rest."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Search(Costing):
    """What a plan is searched with."""

    pin: Annotated[
        list[str] | None,
        Option(
            metavar="PATTERN=DEVICE",
            help="Keep parts on a device; repeatable. Or as_built: by variables.",
        ),
    ] = None
    missing: Annotated[
        Literal["fallback", "warn", "error"] | None,
        Option(help="If a requested device does not exist: replace it, warn, or fail."),
    ] = None
    contiguity: Annotated[
        Literal["free", "convex", "pipeline"] | None,
        Option(help="Which sets of calls may share a device; for workloads."),
    ] = None
    strategy: Annotated[
        Literal["auto"] | None,
        Option(help="Choose towers, micro-batches and recomputation as well."),
    ] = None
    microbatches: Annotated[
        int | None, Option(metavar="M", help="With --strategy auto: so many pieces.")
    ] = None
    recompute: Annotated[
        bool | None, Option(help="With --strategy auto: recompute activations, or not.")
    ] = None
    towers: Annotated[
        int | None,
        Option(metavar="N", help="With --strategy auto: so many copies."),
    ] = None
    time_limit: Annotated[
        float | None, Option(metavar="S", help="Seconds to search at most (5).")
    ] = None
    seed: Annotated[
        int | None, Option(metavar="N", help="Random seed of the search (0).")
    ] = None

    def given(self) -> dict[str, Any]:
        """What was given, with pins by their patterns.

        Raises:
            DeviceError: a pin that is none.
        """
        values = super().given()
        pins: dict[str, Any] = {}
        texts = values.pop("pin", [])
        if texts == ["as_built"]:
            return values | {"pins": "as_built"}
        for text in texts:
            pattern, equals, device = text.rpartition("=")
            if not equals or not pattern or not device:
                raise DeviceError(
                    f"--pin {text!r}: write a name or pattern, = and a device, such as "
                    "'block1_*=gpu:0'; several in order of preference: "
                    "'head=gpu:1,cpu'."
                )
            devices = device.split(",")
            pins[pattern] = devices if len(devices) > 1 else device
        return values | ({"pins": pins} if pins else {})


def with_groups(command: Callable[..., int]) -> Callable[..., int]:
    """Make options of the fields of each parameter that is a dataclass.

    Those of `**more: Annotated[..., table]` are in that table: name -> type.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[Parameter] = []
    for one in signature(command).parameters.values():
        members = {one.name: (hints[one.name], one.default)}
        if one.name in groups:
            group = groups[one.name]
            kinds = get_type_hints(group, include_extras=True)
            members = {f.name: (kinds[f.name], f.default) for f in fields(group)}
        elif one.kind is Parameter.VAR_KEYWORD:
            table = hints[one.name].__metadata__[0]
            members = {name: (kind, None) for name, kind in table.items()}
        parameters += [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for name, (kind, default) in members.items()
        ]

    @wraps(command)
    def run(**values: Any) -> int:
        for name, group in groups.items():
            members = {f.name: values.pop(f.name) for f in fields(group)}
            values[name] = group(**members)
        return command(**values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


class Target:
    """A program, a model, or what a JSON file holds: a plan or a workload.

    `kind` is "plan", "workload" or, for what has to be imported, "model".
    `value` is what the file holds, None for a model.

    Raises:
        DeclarationError: it cannot be found.
        PlanFileError: a JSON file that is none of them.
    """

    def __init__(self, text: str) -> None:
        self.text, self.kind, self.value = text, "model", None
        if text.endswith(".json"):
            self.kind, self.value = load_json(text, "file", self._saved)
        else:
            check_target(text)

    def _saved(self, values: Any) -> tuple[str, Any]:
        """Tell files apart by their fields."""
        found = set(values) if isinstance(values, dict) else set()
        if "splitnet_plan" in found:
            from splitnet.planner.plan_file import plan_from_dict

            return "plan", plan_from_dict(values)
        if found & {"nodes", "maxFPGAs"}:
            from splitnet.planner.workloads import workload_of

            return "workload", workload_of(values, name=Path(self.text).stem)
        raise PlanFileError(
            "it is neither a plan nor a workload: it has none of the fields "
            "'splitnet_plan', 'nodes'."
        )

    def opened(
        self, machine: Machine, costing: Costing, *, empty: bool = False
    ) -> tuple[Any, Cluster]:
        """What to plan and for which machine; of a saved file the source is a Graph.

        Args:
            machine: Which machine.
            costing: The batch and the costs.
            empty: Whether a model that a function builds needs no memory for weights.

        Raises:
            DeclarationError: another batch than that of a saved file.
            DeviceError: there is no machine, or there are two.
        """
        if costing.batch is not None and self.kind != "model":
            raise DeclarationError(
                f"{self.text!r} has its own batch; leave --batch out, or name the "
                "program of the model."
            )
        cluster = machine.described()
        if self.kind == "model":
            # The machine first: stand-ins must be made before a program builds layers.
            cluster = cluster or local_devices()
            return load_source(self.text, empty=empty), cluster
        if self.kind == "plan":
            return self.value.graph, cluster or self.value.cluster
        if cluster is not None:
            raise DeviceError(
                "a workload file includes its machine; leave --cluster out."
            )
        from splitnet.planner.workloads import graph_of_workload

        return graph_of_workload(self.value)


def check_target(target: str) -> None:
    """Name a program or model that cannot be found, before TensorFlow is imported.

    Raises:
        DeclarationError: it is no file, no module, or nothing of the kind.
    """
    if target.endswith(".json"):
        raise DeclarationError(
            f"this command runs a model, and the JSON file {target!r} has none; name "
            "the model or its program."
        )
    place, colon, name = target.rpartition(":")
    file = target if target.endswith((".keras", ".h5")) else place
    if file is place and not (colon and place and name.isidentifier()):
        raise DeclarationError(f"cannot tell what {target!r} is. Give {TARGET_HELP}")
    if file.endswith((".keras", ".h5", ".py")):
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

    Raises:
        DeclarationError: there is none, or it is something else.
    """
    import_tensorflow()
    with progress(f"loading {target}"):
        return _loaded(target, empty)


def _loaded(target: str, empty: bool) -> Any:
    if target.endswith((".keras", ".h5")):
        return _saved_model(target)
    place, _, name = target.rpartition(":")
    try:
        value = _named(_module(place), name, place)
        if not _is_source(value) and callable(value):
            from splitnet.tf.reading.source import built_by

            value = built_by(value) if empty else value()
    except SplitnetError:
        raise
    except Exception as error:  # the program of the user may raise anything
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        raise DeclarationError(
            f"{target!r} raised {type(error).__name__}: {error}\n{where}"
        ) from None
    if not _is_source(value):
        raise DeclarationError(
            f"{target!r} is neither a Net, a Keras model nor a Graph, nor a function "
            f"without arguments that returns one. Found: {type(value).__name__}."
        )
    return value


def _named(module: ModuleType, name: str, place: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    names = [n for n, v in vars(module).items() if _is_source(v)]
    known = f" It has: {', '.join(names)}." if names else ""
    raise DeclarationError(f"{place!r} has no name {name!r}.{known}")


def _is_source(value: Any) -> bool:
    import keras

    return isinstance(value, sn.Net | sn.Graph | keras.Model)


def _saved_model(path: str) -> Any:
    import keras

    try:
        return keras.models.load_model(path)
    except (ValueError, TypeError, OSError) as error:
        raise DeclarationError(
            f"Keras cannot load {path!r}: {error}\nFor a model with layers of its own, "
            "name the program that has them: file.py:name."
        ) from None


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
