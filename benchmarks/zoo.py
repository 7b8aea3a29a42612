"""Ask whether models that nobody declared stay themselves when they are split.

Every architecture of `keras.applications` (small inputs, random weights) and the models
of `tests/tf/models`, cut into a pipeline over 2 and 4 stand-ins and held against the
very model that was given: outputs, gradients, two training steps, audit. One process
per model, so that a large one leaves nothing behind and trains itself only once.

    python benchmarks/zoo.py                      # one architecture of each family
    python benchmarks/zoo.py --all                # all of them; takes hours
    python benchmarks/zoo.py --others             # transformers, recurrence, graphs ...
    python benchmarks/zoo.py ResNet50 my_models:build --devices 2
    python benchmarks/zoo.py --all --save rows.jsonl   # rows that are there are kept

Differences are the largest absolute ones. They are taken with sums in the order in
which they were written (see docs/placement.md); the audit is of what runs by default.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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
    "audit": "audit",
    "plan_seconds": "plan s",
    "emit_seconds": "emit s",
}
BATCH = 4


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
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
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
        made = in_a_process(name, new, arguments.minutes) if new else {}
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

    from tests.tf.models import MODELS

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
    name: str, devices: list[int], minutes: float
) -> dict[int, dict[str, object]]:
    """The rows of one model; what failed stands in the audit column."""
    command = [sys.executable, __file__, "--row", name, "--devices", *map(str, devices)]
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

    sn.local_cluster(stand_in_gpus=max(devices))
    keras.utils.set_random_seed(0)
    source, x, y, loss = subject(name)
    x, y = keras.tree.map_structure(tf.convert_to_tensor, (x, y))
    ways = [(count, *split(source, count)) for count in devices]
    its = figures(source, x, y, loss)
    del source
    while ways:
        count, plan, placed, seconds = ways.pop(0)
        mine = figures(placed, x, y, loss)
        audit = sn.audit(placed, plan, (x, y))
        yield {
            "model": name,
            "devices": count,
            "calls": len(plan.graph.calls),
            "parts": len(plan.graph.parts),
            "used": len(dict.fromkeys(plan.device_of.values())),
            "cut_bytes": sum(t.bytes for t in plan.transfers),
            **{what: difference(mine[what], its[what]) for what in mine},
            "audit": "clean" if audit.ok else f"{len(audit.findings)} findings",
            "findings": [str(finding) for finding in audit.findings],
            **seconds,
        }
        del placed


def split(source: object, devices: int) -> tuple[object, object, dict[str, float]]:
    """A model's plan over so many stand-ins, the model placed, and seconds for both."""
    import splitnet as sn

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


def subject(name: str) -> tuple[object, object, object, object]:
    """A model, a batch for it, and its loss."""
    import keras
    import numpy as np

    from tests.tf.models import MODELS, made_up

    if name in MODELS:
        one = MODELS[name]()
        return one.model, one.x, one.y, one.loss
    if ":" in name:
        import importlib

        module, _, function = name.partition(":")
        one = made_up(getattr(importlib.import_module(module), function)(), BATCH)
        return one.model, one.x, one.y, one.loss
    model = architecture(getattr(keras.applications, name))
    shape = (BATCH, *model.input.shape[1:])
    images = np.random.default_rng(0).random(shape, dtype="float32")
    return model, images, np.arange(BATCH), "sparse_categorical_crossentropy"


def architecture(build: object) -> object:
    """An architecture for the smallest images it takes, from 32 upwards."""
    for size in (32, 71, 75):
        try:
            return build(weights=None, input_shape=(size, size, 3), classes=10)
        except ValueError:  # it refuses so small an image
            continue
    return build(weights=None, input_shape=(96, 96, 3), classes=10)


def figures(model: object, x: object, y: object, loss: object) -> dict[str, object]:
    """Outputs, the gradients of the first training step, the losses of two, weights.

    With `beta_1=0` the first slot of Adam is the gradient.
    """
    import keras
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    outputs = numbers(model(x))
    model.compile(keras.optimizers.Adam(1e-3, beta_1=0.0), loss)
    model.optimizer.build(model.trainable_variables)  # else a step is traced twice
    keras.utils.set_random_seed(1)
    losses = [model.train_on_batch(x, y)]
    gradients = numbers(
        slot for slot in model.optimizer.variables if slot.path.endswith("momentum")
    )
    losses.append(model.train_on_batch(x, y))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    return {
        "outputs": outputs,
        "gradients": gradients,
        "losses": numbers(losses),
        "weights": numbers(model.variables),
    }


def numbers(values: object) -> list[object]:
    """Copies of a structure of numbers, flat."""
    import keras
    import numpy as np

    values = values if isinstance(values, dict) else list(values)
    return [np.array(value) for value in keras.tree.flatten(values)]


def difference(one: object, other: object) -> float:
    """The largest absolute difference between two structures of numbers.

    NaN equals NaN, and differs from every number by infinity.
    """
    import keras
    import numpy as np

    largest = 0.0
    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True)
    for mine, its in pairs:
        mine, its = (np.ravel(np.asarray(v)).astype("float64") for v in (mine, its))
        apart = np.abs(mine - its)
        apart[np.isnan(mine) & np.isnan(its)] = 0.0
        largest = max(largest, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
    return largest


if __name__ == "__main__":
    main()
