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

Batch = Annotated[int, Option(metavar="N", help="Batch size: samples per step.")]
Contiguity = Annotated[
    Literal["free", "convex", "pipeline"] | None,
    Option(help="Which sets of calls may share a device; for workloads."),
]
Costs = Annotated[
    str | None, Option(metavar="FILE", help="Costs from `splitnet measure`.")
]
Inference = Annotated[bool, Option("--inference", help="Forward pass only.")]
Json = Annotated[bool, Option("--json", help="Machine-readable output.")]
Missing = Annotated[
    Literal["fallback", "warn", "error"] | None,
    Option(help="If a requested device does not exist: replace it, warn, or fail."),
]
Objective = Annotated[
    Literal["latency", "throughput", "memory"] | None,
    Option(help="Shortest step, fastest pipeline, or lowest memory peak."),
]
Optimizer = Annotated[
    str | None,
    Option(metavar="NAME", help="Keras optimizer, for the memory of its slots."),
]
Other = Annotated[
    str | None, Option(metavar="PLAN.json", help="Show what moved since this plan.")
]
Out = Annotated[
    Path | None, Option("--out", "-o", metavar="FILE", help="Save the plan here.")
]
Pin = Annotated[
    list[str] | None,
    Option(metavar="PATTERN=DEVICE", help="Keep parts on a device; repeatable."),
]
Seed = Annotated[int | None, Option(metavar="N", help="Random seed of the search (0).")]
TimeLimit = Annotated[
    float | None, Option(metavar="S", help="Seconds to search at most (5).")
]

ClusterName = Annotated[
    str | None, Option(metavar="WHAT", help="The machine: box.toml, or '2*gpu,cpu'.")
]
Preset = Annotated[
    str | None, Option(metavar="CARD", help="Model of its GPUs: A100, H100 ...")
]
GpuMemory = Annotated[
    str | None, Option(metavar="SIZE", help="Memory of each of its GPUs: '16 GiB'.")
]
LinkSpeed = Annotated[
    str | None,
    Option(metavar="SPEED", help="Bandwidth between its devices: '25 GB/s'."),
]
StandIns = Annotated[
    int, Option(metavar="N", help="Use N CPU devices here in place of GPUs.")
]

AllowRemote = Annotated[
    bool, Option("--allow-remote", help="Allow a network that others can reach.")
]
MemoryLimit = Annotated[
    str | None, Option(metavar="SIZE", help="Memory limit of each worker: '2 GB'.")
]
Program = Annotated[list[str] | None, Argument(metavar="-- COMMAND ...")]
Threads = Annotated[int | None, Option(metavar="N", help="TensorFlow threads.")]
TfLog = Annotated[bool, Option("--tf-log", help="Show TensorFlow's start-up lines.")]
