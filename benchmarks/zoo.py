"""Ask whether models that nobody declared stay themselves when they are split.

Every architecture of `keras.applications` (small inputs, random weights), cut into a
pipeline over 2 and 4 stand-ins and held against the plain model: outputs, two training
steps, audit. One process per row, so that a large model leaves nothing behind.

    python benchmarks/zoo.py                      # one architecture of each family
    python benchmarks/zoo.py --all                # all of them; takes hours
    python benchmarks/zoo.py ResNet50 --devices 2
"""

import argparse
import json
import os
import subprocess
import sys
import time

SIZES = {
    "InceptionResNetV2": 75,
    "InceptionV3": 75,
    "NASNetLarge": 96,
    "Xception": 71,
}
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
COLUMNS = (
    ("model", "model"),
    ("devices", "devices"),
    ("calls", "calls"),
    ("parts", "parts"),
    ("used", "used"),
    ("cut_bytes", "cut bytes"),
    ("outputs", "max diff, outputs"),
    ("losses", "max diff, losses"),
    ("weights", "max diff, weights"),
    ("audit", "audit"),
    ("plan_seconds", "plan s"),
    ("emit_seconds", "emit s"),
)


def main() -> None:
    """Print the table as Markdown, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names in keras.applications")
    parser.add_argument("--all", action="store_true", help="every architecture")
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        print("ROW " + json.dumps(row(arguments.row, arguments.devices[0])))
        return
    names = arguments.models or (everything() if arguments.all else FAMILIES)
    print("| " + " | ".join(title for _, title in COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for name in names:
        for devices in arguments.devices:
            found = in_a_process(name, devices)
            cells = (str(found.get(key, "")) for key, _ in COLUMNS)
            print("| " + " | ".join(cells) + " |", flush=True)


def everything() -> list[str]:
    """The names of all architectures."""
    import keras

    return sorted(
        name
        for name, value in vars(keras.applications).items()
        if callable(value) and name[0].isupper()
    )


def in_a_process(name: str, devices: int) -> dict[str, object]:
    """One row; what failed stands in the audit column."""
    command = [sys.executable, __file__, "--row", name, "--devices", str(devices)]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            found: dict[str, object] = json.loads(line[4:])
            return found
    why = (done.stderr.strip().splitlines() or ["killed"])[-1]
    return {"model": name, "devices": devices, "audit": f"FAILED: {why}"}


def row(name: str, devices: int) -> dict[str, object]:
    """Split one architecture and hold it against itself."""
    import keras
    import numpy as np
    import tensorflow as tf

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=devices)
    # Bit for bit needs sums in one order; see docs/placement.md.
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})
    keras.utils.set_random_seed(0)
    size = SIZES.get(name, 32)
    shape = (size, size, 3)
    build = getattr(keras.applications, name)
    source = build(weights=None, input_shape=shape, classes=10)

    start = time.perf_counter()
    plan = sn.plan(
        source, cluster, batch=4, objective="throughput", contiguity="pipeline"
    )
    planned = time.perf_counter()
    placed = sn.emit(source, plan)
    emitted = time.perf_counter()
    plain = sn.unplace(placed)

    images = np.random.default_rng(0).random((4, *shape), dtype="float32")
    labels = np.arange(4)
    outputs = difference(placed(images), plain(images))
    losses = []
    for model in (placed, plain):
        model.compile("adam", "sparse_categorical_crossentropy")
        keras.utils.set_random_seed(1)
        losses.append([float(model.train_on_batch(images, labels)) for _ in range(2)])
    weights = max(map(difference, placed.weights, plain.weights))
    audit = sn.audit(placed, plan, (images, labels))
    return {
        "model": name,
        "devices": devices,
        "calls": len(plan.graph.calls),
        "parts": len(plan.graph.parts),
        "used": len(set(plan.device_of.values())),
        "cut_bytes": sum(t.bytes for t in plan.transfers),
        "outputs": outputs,
        "losses": difference(*losses),
        "weights": weights,
        "audit": "clean" if audit.ok else f"{len(audit.findings)} findings",
        "plan_seconds": round(planned - start, 2),
        "emit_seconds": round(emitted - planned, 2),
    }


def difference(one: object, other: object) -> float:
    """The largest absolute difference of two arrays."""
    import numpy as np

    return float(np.max(np.abs(np.asarray(one) - np.asarray(other))))


if __name__ == "__main__":
    main()
