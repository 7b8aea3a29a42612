"""Ask whether models that nobody declared stay themselves when they are split.

Every architecture of `keras.applications` (small inputs, random weights) and the models
of `tests/tf/zoo/models.py`, cut into a pipeline over 2 and 4 stand-ins and held against
the very model that was given: outputs, gradients, two training steps, audit. A process
for each, so that a large one leaves nothing behind and trains itself only once.

    python benchmarks/zoo.py                      # one architecture of each family
    python benchmarks/zoo.py --all                # all of them; takes hours
    python benchmarks/zoo.py --others             # transformers, recurrence, graphs ...
    python benchmarks/zoo.py ResNet50 my_models:build --devices 2
    python benchmarks/zoo.py --all --save rows.jsonl   # rows that are there are kept

Differences are the largest, as shares of the largest value of their tensor; up to 1e-6,
or 1e-5 of more than 50 layers, is rounding. Normalization over few values amplifies
rounding; `--float64` tells it from a fault. If weights differ by more, those whose
gradient is measured as 0 in float64 are left out, and counted ("silent"): Adam makes a
whole step of the noise that they have in float32. Differences are taken without
TensorFlow's graph optimizer; the audit is of what runs by default.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

_ROUNDING = 1e-5

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

FAMILIES = (
    "ConvNeXtTiny",
    "DenseNet121",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Small",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "VGG16",
    "Xception",
)
COLUMNS = {
    "model": "model",
    "devices": "stand-ins",
    "calls": "calls",
    "parts": "parts",
    "used": "devices used",
    "cut_bytes": "cut bytes",
    "outputs": "outputs",
    "gradients": "gradients",
    "losses": "losses",
    "weights": "weights",
    "silent": "silent",
    "audit": "audit",
    "plan_seconds": "plan s",
    "emit_seconds": "emit s",
}


def main() -> None:
    """Print the table as Markdown, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", help="of keras.applications, of the tests, or module:name"
    )
    parser.add_argument("--all", action="store_true", help="every architecture")
    parser.add_argument(
        "--others", action="store_true", help="every model of the tests"
    )
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--minutes", type=float, default=30, help="for a row at most")
    parser.add_argument(
        "--save", type=Path, help="a file to keep rows in, and find them"
    )
    parser.add_argument(
        "--float64", action="store_true", help="compute in double precision"
    )
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        if arguments.float64:
            import keras

            keras.config.set_floatx("float64")
        for found in rows(arguments.row, arguments.devices):
            print("ROW " + json.dumps(found), flush=True)
        return
    from benchmarks.common import heading

    heading(__doc__.splitlines()[0])
    known = saved(arguments.save)
    print("| " + " | ".join(COLUMNS.values()) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name in arguments.models or names(arguments):
        new = [n for n in arguments.devices if (name, n) not in known]
        made = in_a_process(name, new, arguments) if new else {}
        for devices in arguments.devices:
            found = made.get(devices) or known[name, devices]
            if arguments.save and devices in made:
                with arguments.save.open("a") as file:
                    file.write(json.dumps(found) + "\n")
            print("| " + " | ".join(map(cell, cells_of(found))) + " |", flush=True)


def names(arguments: argparse.Namespace) -> tuple[str, ...]:
    """The models that are asked for in bulk."""
    if not arguments.all and not arguments.others:
        return FAMILIES
    import keras

    from tests.tf.zoo.models import MODELS

    architectures = (
        name
        for name, value in sorted(vars(keras.applications).items())
        if callable(value) and name[0].isupper()
    )
    asked = architectures if arguments.all else ()
    return (*asked, *(MODELS if arguments.others else ()))


def saved(path: Path | None) -> dict[tuple[str, int], dict[str, object]]:
    """The rows of an earlier run, the last of each model and number of devices."""
    if path is None or not path.exists():
        return {}
    rows = map(json.loads, path.read_text().splitlines())
    return {(found["model"], found["devices"]): found for found in rows}


def cells_of(found: dict[str, object]) -> list[object]:
    """The values of a row in the order of the columns."""
    return [found.get(key, "") for key in COLUMNS]


def cell(value: object) -> str:
    """A value as it stands in the table."""
    if isinstance(value, float):
        return f"{value:.2g}" if value < 1 else f"{value:.1f}"
    return str(value)


def in_a_process(
    name: str, devices: list[int], arguments: argparse.Namespace
) -> dict[int, dict[str, object]]:
    """The rows of one model; what failed stands in the audit column."""
    minutes = arguments.minutes
    command = [sys.executable, __file__, "--row", name, "--devices", *map(str, devices)]
    command += ["--float64"] if arguments.float64 else []
    environment = os.environ | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",  # sums in one order
    }
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=environment,
            timeout=60 * minutes * len(devices),
        )
        out, why = done.stdout, (done.stderr.strip().splitlines() or ["killed"])[-1]
    except subprocess.TimeoutExpired as late:
        out = bytes(late.stdout or b"").decode()
        why = f"not within {minutes * len(devices):g} minutes"
    found = [json.loads(line[4:]) for line in out.splitlines() if line[:4] == "ROW "]
    failed = {"model": name, "audit": f"FAILED: {why}"}
    return {n: failed | {"devices": n} for n in devices} | {
        row["devices"]: row for row in found
    }


def rows(name: str, devices: list[int]) -> Iterator[dict[str, object]]:
    """Split one model in several ways and hold each against the model itself."""
    import keras
    import tensorflow as tf

    import splitnet as sn
    from benchmarks.sameness import difference, figures, numbers, silent, subject

    sn.local_cluster(stand_in_gpus=max(devices))
    keras.utils.set_random_seed(0)
    source, x, y, loss = subject(name)
    x, y = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
    ways = [(count, *split(source, count)) for count in devices]
    begin, marked = numbers(source.weights), []
    its = figures(source, x, y, loss)
    del source
    while ways:
        count, plan, placed, seconds = ways.pop(0)
        mine = figures(placed, x, y, loss)
        audit = sn.audit(placed, plan, (x, y))
        found = {what: difference(mine[what], its[what]) for what in mine}
        if found["weights"] > _ROUNDING:
            marked = marked or silent(name, begin)
            found["weights"] = difference(mine["weights"], its["weights"], marked)
            share = sum(int(m.sum()) for m in marked) / sum(m.size for m in marked)
            found["silent"] = share
        yield {
            "model": name,
            "devices": count,
            "calls": len(plan.graph.calls),
            "parts": len(plan.graph.parts),
            "used": len(dict.fromkeys(plan.device_of.values())),
            "cut_bytes": sum(t.bytes for t in plan.transfers),
            **found,
            "audit": "clean" if audit.ok else f"{len(audit.findings)} findings",
            "findings": [str(finding) for finding in audit.findings],
            **seconds,
        }
        del placed


def split(source: object, devices: int) -> tuple[object, object, dict[str, float]]:
    """A model's plan over so many stand-ins, the model placed, and seconds for both."""
    import splitnet as sn
    from benchmarks.sameness import BATCH

    cluster = sn.local_cluster(stand_in_gpus=devices)
    start = time.perf_counter()
    plan = sn.plan(
        source, cluster, batch=BATCH, objective="throughput", contiguity="pipeline"
    )
    planned = time.perf_counter()
    placed = sn.emit(source, plan)
    emitted = time.perf_counter()
    return (
        plan,
        placed,
        {
            "plan_seconds": round(planned - start, 2),
            "emit_seconds": round(emitted - planned, 2),
        },
    )


if __name__ == "__main__":
    main()
