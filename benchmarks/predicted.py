"""Is the predicted step time, from measured costs, within 20 % of the measured one?

Two worker processes, a core and a thread each. Each model is placed three ways by hand:
all on worker 0, the first half of its calls there and the second on worker 1, and its
calls in turn on both. Inputs are the client's. The three run in turn, epoch by epoch
of plain `fit`, and between the rounds the calls are measured one by one (`sn.measure`):
a machine may be slower by half within seconds, so a round is held against the mean of
what was predicted just before and just after it. A row has the medians over the rounds,
the ratio with its least and most; of measured steps, from the end of one to the end of
the next, the quartiles. What an epoch costs before its first step is not in. "drift" is
how far apart two predictions of the same step were, the largest over the least.

    python benchmarks/predicted.py [MODEL ...] [--rounds N]
"""

import argparse
from statistics import median

from common import heading, order_of, quartiles, undisturbed

WORKERS = ("worker:0/cpu:0", "worker:1/cpu:0")
STEPS, EPOCHS = 8, 2


def build(name):
    """A plain Keras model and its batch."""
    import keras
    from keras import layers

    x = entry = keras.Input((384,))

    def chain(x, width, depth):
        for _ in range(depth):
            x = layers.Dense(width, "relu")(x)
        return x

    if name == "two_branches":
        x = layers.Concatenate()([chain(x, 384, 8), chain(x, 384, 8)])
        return keras.Model(entry, layers.Dense(1)(x)), 256
    if name == "uneven_branches":
        x = layers.Concatenate()([chain(x, 512, 8), chain(x, 256, 4), chain(x, 384, 4)])
        return keras.Model(entry, layers.Dense(1)(x)), 256
    if name == "chain":
        return keras.Model(entry, layers.Dense(1)(chain(x, 512, 12))), 256
    if name == "residual":
        for _ in range(6):
            x = layers.LayerNormalization()(layers.Add()([x, chain(x, 384, 2)]))
        return keras.Model(entry, layers.Dense(1)(x)), 256
    if name == "conv":
        x = entry = keras.Input((32, 32, 8))
        sides = []
        for size in (3, 5):
            side = layers.Conv2D(16, size, padding="same", activation="relu")(x)
            side = layers.MaxPooling2D()(side)
            side = layers.Conv2D(32, size, padding="same", activation="relu")(side)
            sides.append(layers.GlobalAveragePooling2D()(side))
        return keras.Model(entry, layers.Dense(1)(layers.Concatenate()(sides))), 64
    if name != "attention":
        return build_more(name)
    x = entry = keras.Input((64, 64))
    for _ in range(3):
        x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)])
        x = layers.LayerNormalization()(layers.Dense(64, "gelu")(x))
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(entry, layers.Dense(1)(x)), 64


def build_more(name):
    """Models that nothing here was made for, and their batch."""
    import keras
    from keras import layers

    x = entry = keras.Input((256,))
    if name == "batch_norm":
        for _ in range(5):
            x = layers.ReLU()(layers.BatchNormalization()(layers.Dense(512)(x)))
        return keras.Model(entry, layers.Dense(1)(x)), 256
    if name == "four_branches":
        ends = []
        for width, depth in ((256, 6), (512, 3), (384, 4), (256, 2)):
            x = entry
            for _ in range(depth):
                x = layers.Dense(width, "tanh")(x)
            ends.append(layers.Dense(64)(x))
        return keras.Model(entry, layers.Dense(1)(layers.Add()(ends))), 512
    if name == "autoencoder":
        for width in (768, 384, 96, 384, 768, 256):
            x = layers.Dense(width, "elu")(x)
        return keras.Model(entry, layers.Dense(1)(x)), 384
    if name == "grus":
        entry = keras.Input((20, 32))
        sides = [layers.GRU(64)(entry) for _ in range(2)]
        return keras.Model(entry, layers.Dense(1)(layers.Concatenate()(sides))), 128
    if name == "text_cnn":
        entry = keras.Input((60, 48))
        sides = []
        for size in (3, 4, 5):
            side = layers.Conv1D(96, size, activation="relu")(entry)
            sides.append(layers.GlobalMaxPooling1D()(side))
        x = layers.Dense(128, "relu")(layers.Concatenate()(sides))
        return keras.Model(entry, layers.Dense(1)(x)), 128
    if name == "separable":
        x = entry = keras.Input((32, 32, 8))
        for filters in (16, 32, 32, 64):
            x = layers.SeparableConv2D(filters, 3, padding="same", activation="relu")(x)
        return keras.Model(entry, layers.Dense(1)(layers.GlobalMaxPooling2D()(x))), 64
    raise SystemExit(f"no model {name!r}; there are {', '.join(MODELS)}")


MODELS = (
    "two_branches",
    "uneven_branches",
    "chain",
    "residual",
    "conv",
    "attention",
    "batch_norm",
    "four_branches",
    "autoencoder",
    "grus",
    "text_cnn",
    "separable",
)


def plans(sn, model, batch, cluster, costs):
    """Three plans by name."""
    graph = sn.read(model, batch)
    inputs = [part.name for part in graph.parts if part.kind == "input"]
    rest = [part.name for part in graph.parts if part.kind != "input"]
    at_home = dict.fromkeys(inputs, "cpu:0")
    options = {"batch": batch, "costs": costs, "optimizer": "sgd"}
    half = len(rest) // 2
    one = at_home | dict.fromkeys(rest, WORKERS[0])
    two = one | dict.fromkeys(rest[half:], WORKERS[1])
    yield "one worker", sn.score(model, cluster, one, **options)
    yield "halves", sn.score(model, cluster, two, **options)
    turns = one | dict.fromkeys(rest[1::2], WORKERS[1])
    yield "in turn", sn.score(model, cluster, turns, **options)


def runner(sn, model, chosen, batch):
    """A function that runs some plans in turn; the seconds of the steps of each."""
    import numpy as np

    from splitnet.tf.profiling.timing import StepTimes

    shape = (batch * STEPS, *model.inputs[0].shape[1:])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = np.zeros((batch * STEPS, 1), "float32")
    fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
    models = [sn.emit(model, plan) for plan in chosen]
    for made in models:
        made.compile("sgd", "mse")
        made.fit(x, y, **fit)

    def run():
        seconds = [[] for _ in models]
        for _ in range(EPOCHS):
            for made, took in zip(models, seconds):
                times = StepTimes()
                made.fit(x, y, callbacks=[times], **fit)
                took += times.seconds
        return seconds

    return run


def rows(sn, name, cluster, pids, rounds):
    """Print three rows for a model, and whether their order is right."""
    model, batch = build(name)

    def predicted():
        with undisturbed(*pids):
            costs = sn.measure(model, cluster, batch, optimizer="sgd")
        return dict(plans(sn, model, batch, cluster, costs))

    chosen = predicted()
    run = runner(sn, model, list(chosen.values()), batch)
    said, took = [[plan.timeline.seconds for plan in chosen.values()]], []
    for _ in range(rounds):
        with undisturbed(*pids):
            took.append(run())
        said.append([plan.timeline.seconds for plan in predicted().values()])
    judged = []
    for i, which in enumerate(chosen):
        mine = [each[i] for each in said]
        expected = [(a + b) / 2 for a, b in zip(mine, mine[1:])]
        steps = [each[i] for each in took]
        ratios = [e / median(s) for e, s in zip(expected, steps)]
        low, middle, high = quartiles([second for each in steps for second in each])
        print(
            f"  {name:16} {which:12} {1e3 * median(expected):10.1f}    "
            f"{1e3 * middle:7.1f} ({1e3 * low:.0f} to {1e3 * high:.0f})".ljust(64)
            + f"{median(ratios):6.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            f"{max(mine) / min(mine):8.2f}",
            flush=True,
        )
        judged.append((which, median(expected), (low, middle, high)))
    print(f"  {name:16} {order_of(judged)}", flush=True)


def main():
    """Print three rows for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()

    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        cluster, pids = workers.cluster, [workers.pid(i) for i in range(2)]
        sn.connect(cluster)
        print(
            "  model            plan         predicted, ms  measured, ms       "
            "ratio                 drift"
        )
        for name in options.models:
            rows(sn, name, cluster, pids, options.rounds)


if __name__ == "__main__":
    main()
