"""Is the memory that a plan predicts for a worker what its process then takes?

Two fresh worker processes for each model, its first half on worker 0 and its second on
worker 1, Adam, plain `fit`. Measured is the highest resident memory of each worker
(VmHWM) above what it held after it had trained a small model: then TensorFlow, oneDNN
and the network are loaded and started. Asked for: within 15 %.

    python benchmarks/memory.py [MODEL ...]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from activations import build as build_other
from common import heading

STEPS = 4
LARGER = {  # batches
    "u_net": 4,
    "transformer": 3,
    "lstm": 2,
    "wide_mlp": 4,
    "text_conv": 8,
}
MODELS = (
    "wide_dense",
    "resnet50",
    "mobilenet_v2",
    "u_net",
    "transformer",
    "lstm",
    "wide_mlp",
    "recommender",
    "densenet121",
    "text_conv",
)


def build(name):
    """A model and its batch."""
    import keras
    from keras import layers

    if name == "wide_dense":  # nearly all of it weights, gradients and slots
        x = entry = keras.Input((2048,))
        for _ in range(8):
            x = layers.Dense(2048, "relu")(x)
        return keras.Model(entry, layers.Dense(1)(x)), 64
    if name == "recommender":  # tables, which Adam updates as dense ones
        entry = keras.Input((8,), dtype="int32")
        wide = layers.Flatten()(layers.Embedding(200_000, 64)(entry))
        for width in (1024, 1024):
            wide = layers.Dense(width, "relu")(wide)
        return keras.Model(entry, layers.Dense(1)(wide)), 512
    model, batch = build_other(name)
    return model, batch * LARGER.get(name, 1)


def halves(graph):
    """Part -> worker: the first half of the calls, and the second."""
    rest = [part.name for part in graph.parts if part.kind != "input"]
    place = {part.name: "cpu:0" for part in graph.parts if part.kind == "input"}
    for index, part in enumerate(rest):
        place[part] = f"worker:{int(index >= len(rest) // 2)}/cpu:0"
    return place


def resident(pid, key):
    """VmRSS or VmHWM of a process, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise LookupError(key)


def train(sn, model, graph, cluster, batch):
    """Fit a few steps on both workers; returns the plan."""
    from splitnet.tf.profiling.synthetic import synthetic_batch

    plan = sn.score(graph, cluster, halves(graph), optimizer="adam")
    made = sn.emit(model, plan)
    made.compile("adam", "mse")
    inputs, targets = synthetic_batch(made, batch * STEPS)
    made.fit(inputs, targets, batch_size=batch, shuffle=False, verbose=0)
    return plan


def start(sn, cluster, pids):
    """Train a small model, so that all is loaded; what each process holds then."""
    import keras

    little = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Conv2D(4, 3), keras.layers.Flatten()]
        + [keras.layers.Dense(8), keras.layers.Dense(1)]
    )
    train(sn, little, sn.read(little, 8), cluster, 8)
    for pid in pids:
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the highest
    return [resident(pid, "VmRSS") for pid in pids]


def compare(name):
    """Print a row for each worker."""
    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        sn.connect(workers.cluster)
        pids = [workers.pid(index) for index in range(2)]
        idle = start(sn, workers.cluster, pids)
        model, batch = build(name)
        plan = train(sn, model, sn.read(model, batch), workers.cluster, batch)
        for index, pid in enumerate(pids):
            took = resident(pid, "VmHWM") - idle[index]
            memory = plan.memory[f"worker:{index}/cpu:0"]
            print(
                f"  {name:14}{batch:6}   worker {index}{memory.total / 1e6:12.0f}"
                f"{took / 1e6:12.0f}{memory.total / took:8.2f}",
                flush=True,
            )


def main():
    """Print the table, a fresh process per model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        compare(*options.models)
        return
    heading(__doc__.splitlines()[0])
    print("  model          batch   on        predicted, MB  measured, MB   ratio")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for name in options.models:
        command = [sys.executable, __file__, "--here", name]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
