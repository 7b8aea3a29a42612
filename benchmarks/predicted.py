"""Is the predicted step time, from measured costs, within 20 % of the measured one?

Two worker processes, a core and a thread each. Each model is measured once call by call
(`sn.measure`), then placed three ways by hand: all on worker 0, the first half of its
calls there and the second on worker 1, and its calls in turn on both. Inputs are the
client's. The three are run in turn, epoch by epoch of plain `fit`. A row is the median
of all steps, from the end of one to the end of the next; what an epoch costs before its
first step is not in. Then the calls are measured again: "later" is what the prediction
would be by then, so how far it is off tells how much the machine itself changed.

    python benchmarks/predicted.py [MODEL ...] [--rounds N]
"""

import argparse

from common import heading, order_of, quartiles, undisturbed

WORKERS = ("worker:0/cpu:0", "worker:1/cpu:0")
STEPS = 8


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


def measured(sn, model, chosen, batch, pids, rounds):
    """Quartiles of the seconds of a step for each of some plans, run in turn."""
    import numpy as np

    from splitnet.tf.whole import StepTimes

    shape = (batch * STEPS, *model.inputs[0].shape[1:])
    x = np.random.default_rng(0).normal(size=shape).astype("float32")
    y = np.zeros((batch * STEPS, 1), "float32")
    fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
    models = [sn.emit(model, plan) for plan in chosen]
    for made in models:
        made.compile("sgd", "mse")
        made.fit(x, y, **fit)
    seconds = [[] for _ in models]
    with undisturbed(*pids):
        for _ in range(rounds):
            for made, took in zip(models, seconds):
                times = StepTimes()
                made.fit(x, y, callbacks=[times], **fit)
                took += times.seconds
    return [quartiles(took) for took in seconds]


def rows(sn, name, cluster, pids, rounds):
    """Print three rows for a model, and whether their order is right."""
    model, batch = build(name)
    with undisturbed(*pids):
        costs = sn.measure(model, cluster, batch, optimizer="sgd")
    before = list(plans(sn, model, batch, cluster, costs))
    chosen = [plan for _, plan in before]
    found = measured(sn, model, chosen, batch, pids, rounds)
    with undisturbed(*pids):
        costs = sn.measure(model, cluster, batch, optimizer="sgd")
    after = plans(sn, model, batch, cluster, costs)
    judged = []
    for (which, plan), (_, later), took in zip(before, after, found):
        expected = plan.timeline.seconds
        low, middle, high = (1e3 * seconds for seconds in took)
        print(
            f"  {name:16} {which:12} {1e3 * expected:10.1f}    "
            f"{middle:7.1f} ({low:.0f} to {high:.0f})".ljust(64)
            + f"{1e3 * expected / middle:6.2f}"
            f"{later.timeline.seconds / expected:8.2f}",
            flush=True,
        )
        judged.append((which, expected, took))
    print(f"  {name:16} {order_of(judged)}", flush=True)


def main():
    """Print three rows for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        cluster, pids = workers.cluster, [workers.pid(i) for i in range(2)]
        sn.connect(cluster)
        print(
            "  model            plan         predicted, ms  measured, ms       "
            "ratio  later"
        )
        for name in options.models:
            rows(sn, name, cluster, pids, options.rounds)


if __name__ == "__main__":
    main()
