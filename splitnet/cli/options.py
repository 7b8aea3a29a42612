"""Arguments and options that several commands share, each declared once.

Options that belong together are the fields of a dataclass. A command takes such a value
as one parameter; `with_groups` makes options of its fields.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from splitnet.cli.console import local_devices
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeviceError

TARGET_HELP = (
    "file.py:name, package.module:name (a Net, a Keras model, or a function without "
    "arguments that returns one), model.keras, or a JSON file (plan, graph, workload)."
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
        Option(metavar="PATTERN=DEVICE", help="Keep parts on a device; repeatable."),
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
        for text in values.pop("pin", ()):
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
