"""Is a step faster or slower with `emit(xla=True)` on this machine?

A dense chain and a chain of convolutions, each emitted twice for the machine's first
device, with XLA and without; epochs of plain `fit` in turn. "First" is the first call,
which traces and, with XLA, compiles.

    python benchmarks/xla.py [--rounds N]
"""

import argparse
import statistics
import time

from common import heading, paired, spread

STEPS = 8


def build(name):
    """A model, its batch and the shape of a sample."""
    import keras
    from keras import layers

    if name == "dense chain":
        x = entry = keras.Input((384,))
        for _ in range(12):
            x = layers.Dense(512, "relu")(x)
        return keras.Model(entry, layers.Dense(1)(x)), 256, (384,)
    x = entry = keras.Input((32, 32, 8))
    for filters in (16, 32, 32, 64):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(entry, layers.Dense(1)(x)), 64, (32, 32, 8)


def row(sn, name, rounds):
    """Print a row for one model."""
    import keras
    import numpy as np

    model, batch, shape = build(name)
    plan = sn.plan(model, sn.local_cluster(), batch=batch)
    x = np.random.default_rng(0).normal(size=(STEPS * batch, *shape)).astype("float32")
    y = np.zeros((STEPS * batch, 1), "float32")
    fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
    runs, first = [], []
    for xla in (False, True):
        made = sn.emit(keras.models.clone_model(model), plan, xla=xla)
        made.compile("sgd", "mse")
        began = time.perf_counter()
        made.fit(x[:batch], y[:batch], **fit)
        first.append(time.perf_counter() - began)
        made.fit(x, y, **fit)
        runs.append(lambda made=made: made.fit(x, y, **fit))
    off, on = paired(*runs, rounds=rounds)
    ratios = spread([b / a for a, b in zip(off, on)])
    each = [1e3 * statistics.median(seconds) / STEPS for seconds in (off, on)]
    print(
        f"  {name:12}  {each[0]:7.1f}  {each[1]:6.1f}   {ratios}"
        f"     {first[0]:.1f}, {first[1]:.1f}",
        flush=True,
    )


def main():
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    import splitnet as sn

    heading(__doc__.splitlines()[0])
    print("  model         off, ms  on, ms   on / off                   first, s")
    for name in ("dense chain", "convolutions"):
        row(sn, name, options.rounds)


if __name__ == "__main__":
    main()
