"""How do planning and emission grow with a model's calls?

First, chains of residual blocks of more and more calls are read, planned for two
stand-ins and emitted, a process each; "grown" is the rise of the process's highest
resident memory. Then models of some 1,000 layers are built by plain Keras and emitted
by a plan, in turn. All seconds are of the process's CPU, all its threads together, so
that other programs count little and a second core helps nothing.

    python benchmarks/big.py [--calls N ...] [--rounds N]

Keras walks a graph by recursion, so that a deep model needs a higher recursion limit
when plain Keras builds it; it is raised here.
"""

import argparse
import gc
import os
import resource
import subprocess
import sys
import time

from common import heading, spread

LAYERS = 1000


def main():
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, nargs="*", default=[1000, 2000, 5000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        sys.setrecursionlimit(100_000)
        if arguments.row.isdigit():
            grow(int(arguments.row))
        else:
            compare(arguments.row, arguments.rounds)
        return
    heading(__doc__.splitlines()[0])
    print(
        f"{'calls':>8}{'read':>9}{'plan':>9}{'emit':>9}{'all':>9}{'grown':>9}{'each':>9}"
    )
    for calls in arguments.calls:
        in_a_process(str(calls), arguments.rounds)
    print(f"{'model':16}{'layers':>8}{'Keras':>9}{'emit':>9}  emit / Keras")
    for name in MODELS:
        in_a_process(name, arguments.rounds)


def in_a_process(row, rounds):
    """Print one row from a process of its own."""
    subprocess.run(
        [sys.executable, __file__, "--row", row, "--rounds", str(rounds)],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
    )


def grow(calls):
    """One row of the first table."""
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    residual(40)  # what is made once does not count
    model = residual(calls)
    before = highest()
    marks = [time.process_time()]
    graph = sn.read(model, batch=8)
    marks.append(time.process_time())
    plan = sn.plan(model, cluster, batch=8)
    marks.append(time.process_time())
    sn.emit(model, plan)
    marks.append(time.process_time())
    seconds = [b - a for a, b in zip(marks, marks[1:])] + [marks[-1] - marks[0]]
    grown, count = highest() - before, len(graph.calls)
    print(
        f"{count:8}" + "".join(f"{s:7.1f} s" for s in seconds),
        f"{grown / 1e6:5.0f} MB {grown / count / 1e3:5.0f} kB",
        flush=True,
    )


def compare(name, rounds):
    """One row of the second table."""
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    build = MODELS[name]
    model = build(LAYERS)
    plan = sn.plan(model, cluster, batch=8)
    sn.emit(model, plan)
    built, emitted = [], []
    for _ in range(rounds):
        built.append(seconds_of(lambda: build(LAYERS)))
        emitted.append(seconds_of(lambda: sn.emit(model, plan)))
    ratios = [b / a for a, b in zip(built, emitted)]
    print(
        f"{name:16}{len(model.layers):8}{sorted(built)[rounds // 2]:7.2f} s"
        f"{sorted(emitted)[rounds // 2]:7.2f} s  {spread(ratios)}",
        flush=True,
    )


def seconds_of(act):
    """Seconds of CPU of a function, with nothing left over from before."""
    gc.collect()
    began = time.process_time()
    act()
    return time.process_time() - began


def highest():
    """The most resident memory so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def residual(calls):
    """Blocks of dense, activation, dense and sum."""
    import keras
    from keras import layers

    first = x = keras.Input((16,))
    for _ in range(calls // 4):
        y = layers.Activation("relu")(layers.Dense(16)(x))
        x = layers.Add()([x, layers.Dense(16)(y)])
    return keras.Model(first, layers.Dense(2)(x))


def dense(calls):
    """A chain of dense layers."""
    import keras
    from keras import layers

    first = x = keras.Input((16,))
    for _ in range(calls):
        x = layers.Dense(16, activation="relu")(x)
    return keras.Model(first, x)


def convolutions(calls):
    """Blocks of two convolutions side by side, normalization, activation and sum."""
    import keras
    from keras import layers

    first = x = keras.Input((8, 8, 8))
    for _ in range(calls // 5):
        y = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
        y = layers.ReLU()(layers.BatchNormalization()(y))
        z = layers.DepthwiseConv2D(3, padding="same")(x)
        x = layers.Add()([x, y, z])
    return keras.Model(first, layers.Dense(2)(layers.Flatten()(x)))


MODELS = {"residual": residual, "dense": dense, "convolutions": convolutions}


if __name__ == "__main__":
    main()
