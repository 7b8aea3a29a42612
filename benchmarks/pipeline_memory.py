"""How much memory does each schedule of a pipeline take, simulated and measured?

Two worker processes and three models of two stages, an equal one on each: Dense layers,
Dense layers with normalization, and convolutions. Activations are far larger than
weights. A row is a process with workers of its own: the most resident memory of each
worker beyond what it had after it trained a small other model, beside what the
simulator says of the step. Asked for: within 15 %.

    python benchmarks/pipeline_memory.py [MODEL ...] [--microbatches 16]
"""

import argparse
import subprocess
import sys

from common import heading
from memory import resident, start

HOMES = ("worker:0/cpu:0", "worker:1/cpu:0")
WAYS = ("whole", "gpipe", "1f1b")
# model -> the shape of a sample, batch
MODELS = {
    "dense": ((256,), 32768),
    "normalized": ((384,), 16384),
    "convolutions": ((16, 16, 24), 2048),
}


def body(model):
    """The layers of a stage."""
    from keras import layers

    if model == "convolutions":
        return [
            layers.Conv2D(24, 3, padding="same", activation="relu") for _ in range(4)
        ]
    if model == "normalized":
        pairs = [
            (layers.Dense(384, "gelu"), layers.LayerNormalization()) for _ in range(3)
        ]
        return [layer for pair in pairs for layer in pair]
    return [layers.Dense(256, "relu") for _ in range(6)]


def declare(sn, model):
    """Two stages of equal layers."""
    from keras import layers

    net = sn.Net("two_stages")
    made = net.input("x", MODELS[model][0])
    for stage, home in enumerate(HOMES):
        made = net.branch(f"stage{stage}", made, body(model), on=home)
    pool = [layers.GlobalAveragePooling2D()] * (model == "convolutions")
    net.output(net.branch("head", made, [*pool, layers.Dense(1)], on=HOMES[1]))
    return net


def train(model, way, count):
    """Two steps in one way; a line of simulated and measured megabytes a worker."""
    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        sn.connect(workers.cluster)
        import numpy as np

        pids = [workers.pid(index) for index in range(2)]
        idle = start(sn, workers.cluster, pids)
        shape, batch = MODELS[model]
        net = declare(sn, model)
        plan = sn.plan(net, workers.cluster, batch=batch, optimizer="sgd")
        cut = {} if way == "whole" else {"microbatches": count, "schedule": way}
        made = sn.emit(net, plan, **cut)
        made.compile("sgd", "mse")
        x = np.zeros((2 * batch, *shape), "float32")
        y = np.zeros((2 * batch, 1), "float32")
        made.fit(x, y, batch_size=batch, shuffle=False, verbose=0)
        said = sn.simulate(plan, **cut).peak_bytes
        for index, home in enumerate(HOMES):
            took = resident(pids[index], "VmHWM") - idle[index]
            print(
                f"  {model:12}  {way:6}  {index}  {said[home] / 1e6:12.0f}  "
                f"{took / 1e6:11.0f}  {said[home] / took:6.2f}",
                flush=True,
            )


def main():
    """Print two rows for each model and way: a row per worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--only", choices=WAYS)
    options = parser.parse_args()
    if options.only:
        train(*options.models, options.only, options.microbatches)
        return
    heading(__doc__.splitlines()[0])
    print("  model         way     worker  simulated, MB  measured, MB  ratio")
    more = ["--microbatches", str(options.microbatches)]
    for model in options.models:
        for way in WAYS:
            done = subprocess.run(
                [sys.executable, __file__, model, "--only", way, *more],
                capture_output=True,
                text=True,
                check=False,
            )
            print(done.stdout.rstrip() or done.stderr[-300:], flush=True)


if __name__ == "__main__":
    main()
