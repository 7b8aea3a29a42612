"""How much faster are two equal branches on two workers than on one of them?

Two TensorFlow worker processes, each pinned to a core with one thread; a client that is
pinned to nothing, with one thread for each operation; plain `fit`. Four models with the
same two branches, on the same workers:

    two      planned and emitted, one branch on each worker: each row's measure
    one      the same net, both branches on worker 0: the limit is 2
    faq      the Keras FAQ's recipe: each branch built under `tf.device` of its worker
    layer    a layer with a device: each branch a layer that calls under `tf.device`

Each is run in turn with "two"; a row is the median over the pairs. Workers and client
live in a private network namespace.

    python benchmarks/two_processes.py [--rounds N] [--batches 256 1024]
"""

import argparse
from functools import partial

from common import heading, paired, quartiles, spread, undisturbed

WIDTH, DEPTH = 512, 16
HOMES = ("worker:0/cpu:0", "worker:1/cpu:0")


def branch(name):
    """The layers of a branch, with a small output."""
    from keras import layers

    return [
        *(layers.Dense(WIDTH, "relu", name=f"{name}_{i}") for i in range(DEPTH)),
        layers.Dense(32, name=f"{name}_out"),
    ]


def planned(sn, cluster, homes, batch):
    """Two branches where they are wanted; the merge is on the client."""
    from keras import layers

    net = sn.Net("two_branches")
    x = net.input("x", (WIDTH,))
    sides = [
        net.branch(name, x, branch(name), on=home)
        for name, home in zip(("left", "right"), homes)
    ]
    joined = net.merge("join", sides, layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, layers.Dense(1), on="cpu:0"))
    plan = sn.plan(net, cluster, batch=batch)
    return sn.emit(net, plan), plan


def recipe(cluster, side_of):
    """Plain Keras: `side_of(name, x, device)` makes a branch."""
    import keras

    x = keras.Input((WIDTH,))
    sides = [
        side_of(name, x, cluster[home].target)
        for name, home in zip(("left", "right"), HOMES)
    ]
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.Concatenate()(sides)))


def faq_side(name, x, device):
    """As the FAQ has it: build and call the layers under the device."""
    import tensorflow as tf

    with tf.device(device):
        for layer in branch(name):
            x = layer(x)
    return x


def layer_side(name, x, device):
    """A layer that opens the device itself, whenever it is called."""
    import keras
    import tensorflow as tf

    class OnDevice(keras.layers.Layer):
        def __init__(self):
            super().__init__(name=name)
            self.body = branch(name)

        def build(self, shape):
            with tf.device(device):
                for layer in self.body:
                    layer.build(shape)
                    shape = layer.compute_output_shape(shape)

        def call(self, x):
            with tf.device(device):
                for layer in self.body:
                    x = layer(x)
            return x

    return OnDevice()(x)


def models(sn, cluster, batch, data):
    """The four models by name, compiled; the planned ones are audited."""
    found = {}
    for name, homes in (("two", HOMES), ("one", HOMES[:1] * 2)):
        found[name], plan = planned(sn, cluster, homes, batch)
        found[name].compile("sgd", "mse")
        x, y = data
        sn.audit(found[name], plan, (x[:batch], y[:batch])).check()
    for name, side in (("faq", faq_side), ("layer", layer_side)):
        found[name] = recipe(cluster, side)
        found[name].compile("sgd", "mse", jit_compile=False)
    return found


def main():
    """Print a row for each model and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 1024])
    options = parser.parse_args()

    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        sn.configure(cpu_threads=1)
        sn.connect(workers.cluster)
        pids = [workers.processes[i].pid for i in range(2)]
        print("  batch  model   a step, ms           two, ms             two is faster")
        for batch in options.batches:
            rows(sn, workers.cluster, pids, batch, options)


def rows(sn, cluster, pids, batch, options):
    """Hold each model against the one on two workers."""
    import numpy as np

    rng = np.random.default_rng(0)
    count = batch * options.steps
    x = rng.normal(size=(count, WIDTH)).astype("float32")
    y = rng.normal(size=(count, 1)).astype("float32")
    runs = {
        name: partial(m.fit, x, y, batch_size=batch, shuffle=False, verbose=0)
        for name, m in models(sn, cluster, batch, (x, y)).items()
    }
    for run in runs.values():
        run()
    two = runs.pop("two")
    for name, run in runs.items():
        with undisturbed(*pids):
            slow, fast = paired(run, two, rounds=options.rounds)
        ratios = [a / b for a, b in zip(slow, fast)]
        times = [_ms([1e3 * s / options.steps for s in each]) for each in (slow, fast)]
        print(
            f"  {batch:5}  {name:6}  {'  '.join(times)}  {spread(ratios)}", flush=True
        )


def _ms(values):
    low, middle, high = quartiles(values)
    return f"{middle:6.1f} ({low:.0f} to {high:.0f})".ljust(18)


if __name__ == "__main__":
    main()
