"""Are towers as fast as tf.distribute.MirroredStrategy over the same stand-ins?

One process, two CPU devices that stand in for GPUs; the same convolutional model, seed
and data; plain `fit` in turn. Stand-ins share one pool of threads, so this compares the
two ways, not the devices. Uneven batches are compared as well: the losses of both
against the model that is not split.

    python benchmarks/towers.py [--rounds N] [--batch 64]
"""

import argparse

from common import heading, paired, spread, undisturbed

TWO = ["gpu:0", "gpu:1"]


def build():
    """A small convolutional classifier, the same each time."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    x = keras.Input((32, 32, 3))
    y = layers.Conv2D(32, 3, activation="relu")(x)
    y = layers.Conv2D(32, 3, activation="relu")(layers.MaxPooling2D()(y))
    y = layers.Dense(128, activation="relu")(layers.Flatten()(y))
    return keras.Model(x, layers.Dense(10, activation="softmax")(y))


def main():
    """Print seconds per step, and the losses on uneven batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    options = parser.parse_args()

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    import numpy as np
    import tensorflow as tf

    heading(__doc__.splitlines()[0])
    rng = np.random.default_rng(0)
    count = options.batch * options.steps
    x = rng.normal(size=(count, 32, 32, 3)).astype("float32")
    y = rng.integers(0, 10, count)
    compilation = ("sgd", "sparse_categorical_crossentropy")
    strategy = tf.distribute.MirroredStrategy(["CPU:1", "CPU:2"])
    with strategy.scope():
        mirrored = build()
        mirrored.compile(*compilation)
    plain = build()
    plain.compile(*compilation)
    towers = sn.data_parallel(build(), cluster, devices=TWO, batch=options.batch)
    towers.compile(*compilation)

    def run(model):
        fit = {"batch_size": options.batch, "shuffle": False, "verbose": 0}
        model.fit(x, y, **fit)
        return lambda: model.fit(x, y, **fit)

    runs = [run(mirrored), run(towers)]
    with undisturbed():
        theirs, mine = paired(*runs, rounds=options.rounds)
    ratios = [a / b for a, b in zip(theirs, mine)]
    print(
        f"  MirroredStrategy, s a step  {spread([s / options.steps for s in theirs])}"
    )
    print(f"  towers, s a step            {spread([s / options.steps for s in mine])}")
    print(f"  times faster                {spread(ratios)}", flush=True)

    print("  samples  loss, plain  towers       MirroredStrategy")
    for size in (options.batch, 7, 3, 1):
        losses = []
        for model in (plain, towers, mirrored):
            model.set_weights(build().get_weights())
            fit = {"batch_size": size, "shuffle": False, "verbose": 0}
            try:
                losses.append(
                    f"{model.fit(x[:size], y[:size], **fit).history['loss'][0]:.7f}"
                )
            except tf.errors.OpError as error:
                losses.append(type(error).__name__)
        print(f"  {size:7}  " + "    ".join(losses), flush=True)


if __name__ == "__main__":
    main()
