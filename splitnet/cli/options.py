"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

TARGET_HELP = (
    "file.py:name, package.module:name (a Net, a Keras model, or a function without "
    "arguments that returns one), model.keras, or a JSON file (plan, graph, workload)."
)
Target = Annotated[str, Argument(metavar="TARGET", help=TARGET_HELP)]
SavedPlan = Annotated[str, Argument(metavar="PLAN.json", help="A saved plan.")]

Batch = Annotated[int, Option(metavar="N", help="Samples per step.")]
Contiguity = Annotated[
    Literal["free", "convex", "pipeline"] | None,
    Option(help="Which sets of calls may share a device."),
]
Costs = Annotated[str | None, Option(metavar="FILE", help="Measured costs.")]
Inference = Annotated[bool, Option("--inference", help="Forward pass only.")]
Json = Annotated[bool, Option("--json", help="Machine-readable output.")]
Missing = Annotated[
    Literal["fallback", "warn", "error"] | None,
    Option(help="If a requested device does not exist: replace it, or refuse."),
]
Objective = Annotated[
    Literal["latency", "throughput", "memory"] | None,
    Option(help="Optimise one step, a pipeline, or the fullest device."),
]
Optimizer = Annotated[str | None, Option(metavar="NAME", help="Whose slots count.")]
Other = Annotated[
    str | None, Option(metavar="PLAN.json", help="Show what moved since this plan.")
]
Out = Annotated[Path | None, Option("--out", "-o", metavar="FILE", help="Save here.")]
Pin = Annotated[
    list[str] | None,
    Option(metavar="PATTERN=DEVICE", help="Keep parts on a device; repeatable."),
]
Seed = Annotated[int | None, Option(metavar="N", help="Of the search (0).")]
TimeLimit = Annotated[float | None, Option(metavar="S", help="Search at most (5).")]

ClusterName = Annotated[
    str | None, Option(metavar="WHAT", help="Machine: box.toml, or '2*gpu,cpu'.")
]
Preset = Annotated[
    str | None, Option(metavar="CARD", help="GPUs of --cluster: A100, H100 ...")
]
GpuMemory = Annotated[
    str | None, Option(metavar="SIZE", help="Memory of each of its GPUs: '16 GiB'.")
]
LinkSpeed = Annotated[
    str | None, Option(metavar="SPEED", help="Between its devices: '25 GB/s'.")
]
StandIns = Annotated[
    int, Option(metavar="N", help="Let N CPU devices here stand in for GPUs.")
]

AllowRemote = Annotated[
    bool, Option("--allow-remote", help="Allow a network that others can reach.")
]
MemoryLimit = Annotated[str | None, Option(metavar="SIZE", help="Refuse more: '2 GB'.")]
Program = Annotated[list[str] | None, Argument(metavar="-- COMMAND ...")]
Threads = Annotated[int | None, Option(metavar="N", help="Threads of TensorFlow.")]
TfLog = Annotated[bool, Option("--tf-log", help="Show TensorFlow's start-up lines.")]
