"""Does a model that no worker of 2 GB can train, train on two of them?

Two branches, each with some 700 MB of weights, gradients and Adam's slots. Every
process may have 2 GB of resident memory and no more, which the kernel enforces.
Attempts, each in a fresh process: plain Keras alone; plain Keras with the FAQ's
`tf.device` around each branch, on two workers; both branches planned for one worker;
one branch on each. Then a transformer with as many weights, for which nobody declares
anything: plain Keras alone, and `strategy="auto"` on two workers.

    python benchmarks/too_large.py [--limit "2 GB"]
"""

import argparse
import dataclasses
import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

from common import heading

WIDTH, DEPTH, BATCH, STEPS = 3300, 4, 32, 4
ATTEMPTS = ("plain", "faq", "one worker", "two workers", "plain blocks", "auto")
BLOCKS, UNITS, TOKENS = 9, 896, 8


def branch(keras, name):
    """The layers of a branch: WIDTH x WIDTH floats each."""
    return [
        keras.layers.Dense(WIDTH, "relu", name=f"{name}_{i}") for i in range(DEPTH)
    ] + [keras.layers.Dense(8, name=f"{name}_out")]


def plain(keras, scope):
    """Both branches as plain Keras builds them, each within `scope(branch)`."""
    x = keras.Input((WIDTH,))
    sides = []
    for index, name in enumerate(("left", "right")):
        side = x
        with scope(index):
            for layer in branch(keras, name):
                side = layer(side)
        sides.append(side)
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Concatenate()(sides)))


def declared(sn, keras, homes):
    """The same as a net."""
    net = sn.Net("large")
    x = net.input("x", (WIDTH,))
    sides = [
        net.branch(name, x, branch(keras, name), on=home)
        for name, home in zip(("left", "right"), homes)
    ]
    joined = net.merge("join", sides, keras.layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, keras.layers.Dense(1), on="cpu:0"))
    return net


def transformer(keras):
    """Blocks of attention and two wide layers, as plain Keras builds them."""
    layers = keras.layers
    x = entry = keras.Input((TOKENS, UNITS))
    for _ in range(BLOCKS):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(8, UNITS // 8)(y, y)])
        y = layers.Dense(4 * UNITS, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(UNITS)(y)])
    return keras.Model(entry, layers.Dense(1)(layers.Flatten()(x)))


def fit(model):
    """Train a few steps; returns the losses of the first and the last."""
    import keras
    import numpy as np

    model.compile(keras.optimizers.Adam(1e-5), "mse")
    shape = (BATCH, *model.input_shape[1:])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = np.ones((BATCH, 1), "float32")
    history = model.fit(x, y, batch_size=BATCH, epochs=STEPS, shuffle=False, verbose=0)
    return history.history["loss"]


def peak_bytes(pid):
    """The highest resident memory of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


def attempt(which, limit):
    """One attempt, in a process of its own; prints what came of it."""
    import splitnet as sn
    from splitnet.core.errors import parse_bytes
    from splitnet.tf.workers.start import limit_memory

    limited = parse_bytes(limit, "limit")
    if which.startswith("plain"):
        import contextlib

        import keras

        limit_memory(limited)
        nowhere = contextlib.nullcontext()
        made = (
            transformer(keras) if "blocks" in which else plain(keras, lambda _: nowhere)
        )
        said(fit(made), [os.getpid()])
        return
    with sn.local_workers(2, pin=True, memory_limit=limit) as workers:
        sn.connect(workers.cluster)
        import keras
        import tensorflow as tf

        limit_memory(limited)

        pids = [os.getpid(), *(workers.processes[i].pid for i in range(2))]
        target = "/job:worker/replica:0/task:{}/device:CPU:0"
        if which == "auto":
            build = functools.partial(transformer, keras)
            own = {"memory_bytes": limited // 10}  # this process is for the data
            home, *others = workers.cluster
            box = dataclasses.replace(
                workers.cluster, devices=(dataclasses.replace(home, **own), *others)
            )
            plan = sn.plan(build, box, batch=BATCH, strategy="auto")
            print(plan.verdict.strategies, file=sys.stderr)
            model = sn.emit(build, plan)
        elif which == "faq":
            model = plain(keras, lambda index: tf.device(target.format(index)))
        else:
            second = 0 if which == "one worker" else 1
            homes = ("worker:0/cpu:0", f"worker:{second}/cpu:0")
            net = declared(sn, keras, homes)
            model = sn.emit(net, sn.plan(net, workers.cluster, batch=BATCH))
        said(fit(model), pids)


def said(losses, pids):
    """Print the losses and where the memory was."""
    peaks = ", ".join(f"{peak_bytes(pid) / 1e9:.2f}" for pid in pids)
    print(f"RESULT trains: loss {losses[0]:.3f} to {losses[-1]:.3f}; peaks {peaks} GB")


def outcome(done):
    """What came of an attempt, in a line."""
    for line in done.stdout.splitlines():
        if line.startswith("RESULT "):
            return line.removeprefix("RESULT ")
    if done.returncode < 0:
        return f"fails: ended by {signal.Signals(-done.returncode).name}"
    words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    signs = ("OOM when", "does not fit", "Error: ", "MemoryError")
    why = next((w for sign in signs for w in words if sign in w), words[-1][:150])
    return f"fails: {why[:150]}"


def main():
    """Print a row for each attempt."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("attempts", nargs="*", default=ATTEMPTS)
    parser.add_argument("--limit", default="2 GB")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        attempt(options.attempts[0], options.limit)
        return
    heading(__doc__.splitlines()[0])
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for which in options.attempts:
        command = [sys.executable, __file__, "--here", "--limit", options.limit, which]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=240
        )
        print(f"  {which:12} {outcome(done)}", flush=True)


if __name__ == "__main__":
    main()
