"""What does placement cost a step, and the first call, on a single machine?

Three models of the same net: plain Keras, placed with everything on one device, and
placed on stand-ins of a CPU. Stand-ins share one pool of threads, so they prove where
things run and never how fast: placed on two of them is compared at equal threads.
Rounds of steps are run in turn through `fit`; a row is the median ratio over the
pairs. "First" is the first `fit` of a fresh model, tracing included, each in a process
of its own; planning and emission come before it and are not counted.

    python benchmarks/step_overhead.py [MODEL ...]
"""

import argparse
import os
import subprocess
import sys
import time

from common import heading, paired, quartiles, spread, undisturbed

MODELS = ("dense", "conv", "towers", "lstm", "attention")


def build(name):
    """A plain Keras model and its batch; a step takes 10 ms or more."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)

    def chain(x, *body):
        for layer in body:
            x = layer(x)
        return x

    if name == "dense":
        x = entry = keras.Input((512,))
        x = chain(x, *(layers.Dense(512, "relu") for _ in range(8)))
        return keras.Model(entry, layers.Dense(10)(x)), 256
    if name == "conv":
        x = entry = keras.Input((32, 32, 3))
        for filters in (16, 32, 32):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.MaxPooling2D()(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.Dropout(0.2)(layers.Flatten()(x))
        return keras.Model(entry, layers.Dense(10)(x)), 64
    if name == "towers":
        x = entry = keras.Input((384,))
        sides = [
            chain(x, *(layers.Dense(384, "relu") for _ in range(6))) for _ in range(2)
        ]
        return keras.Model(entry, layers.Dense(10)(layers.Concatenate()(sides))), 256
    if name == "lstm":
        x = entry = keras.Input((20, 64))
        x = layers.LSTM(64)(layers.LSTM(64, return_sequences=True)(x))
        return keras.Model(entry, layers.Dense(10)(x)), 64
    x = entry = keras.Input((64, 64))
    for _ in range(2):
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)])
        x = layers.LayerNormalization()(layers.Dense(64, "gelu")(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(entry, layers.Dense(10)(x)), 32


def placed(model, batch, devices):
    """The model on one device, or its parts dealt out over several."""
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    graph = sn.read(model, batch)
    names = [part.name for part in graph.parts if part.kind != "input"]
    cut = -(-len(names) // len(devices))
    homes = {name: devices[i // cut] for i, name in enumerate(names)}
    return sn.emit(model, sn.score(model, cluster, homes, batch=batch))


def ready(name, devices):
    """A compiled model and its data, on a machine that is set up alike for all."""
    import keras
    import numpy as np

    import splitnet as sn

    sn.local_cluster(stand_in_gpus=2)
    model, batch = build(name)
    if devices:
        model = placed(model, batch, devices)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *model.inputs[0].shape[1:])).astype("float32")
    return model, x, rng.integers(0, 10, size=batch)


def warm_up():
    """Let Keras and TensorFlow load what they load late, at no model's cost."""
    import keras
    import numpy as np

    small = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    small.compile("adam", "mse")
    small.fit(np.zeros((2, 2)), np.zeros((2, 1)), verbose=0)


def first_seconds(name, devices):
    """Seconds of the first step of a fresh model in a fresh process."""
    command = [sys.executable, __file__, "--first", name, *devices]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def row(name, devices, rounds):
    """Print one line of the table."""
    pair = [ready(name, []), ready(name, devices)]
    for model, x, y in pair:
        model.fit(x, y, batch_size=len(x), verbose=0)
    began = time.perf_counter()
    model, x, y = pair[0]
    many = [[_repeated(a, 8) for a in (x, y)] for _, x, y in pair]
    model.fit(*many[0], batch_size=len(x), verbose=0)
    steps = max(8, int(8 * 0.35 / (time.perf_counter() - began)) // 8 * 8)
    many = [[_repeated(a, steps) for a in (x, y)] for _, x, y in pair]
    runs = [
        lambda m=m, data=data: m.fit(*data, batch_size=len(x), shuffle=False, verbose=0)
        for (m, _, _), data in zip(pair, many)
    ]
    with undisturbed():
        plain, other = paired(*runs, rounds=rounds)
    ratios = [b / a for a, b in zip(plain, other)]
    milliseconds = 1e3 * quartiles(plain)[1] / steps
    where = " + ".join(dict.fromkeys(devices))
    print(f"  {name:10}{where:16}{milliseconds:9.1f}   {spread(ratios)}", flush=True)


def _repeated(array, count):
    import numpy as np

    return np.concatenate([array] * count)


def main():
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--first", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.first:
        name, *devices = options.first
        model, x, y = ready(name, devices)
        warm_up()
        with undisturbed():
            began = time.perf_counter()
            model.fit(x, y, batch_size=len(x), verbose=0)
            print(time.perf_counter() - began)
        return
    heading(__doc__.splitlines()[0])
    print("  model     placed on      plain, ms   times plain")
    for name in options.models:
        row(name, ["cpu:0"], options.rounds)
        row(name, ["gpu:0", "gpu:1"], options.rounds)
    print("  model     placed on      plain, s    first call, times plain")
    for name in options.models:
        for devices in (["cpu:0"], ["gpu:0", "gpu:1"]):
            pairs = [
                (first_seconds(name, []), first_seconds(name, devices)) for _ in "12"
            ]
            ratio = min(b for _, b in pairs) / min(a for a, _ in pairs)
            plain = min(a for a, _ in pairs)
            where = " + ".join(devices)
            print(f"  {name:10}{where:16}{plain:9.2f}   {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
