"""Are strategies and placements ordered as two real workers order them?

Two worker processes, a core and a thread each. Each model is measured twice call by
call (`sn.measure`). Placed by hand (all on one worker; halves; calls in turn), by each
strategy of two workers and by `strategy="auto"`, it is simulated with both costs, built
and trained with plain `fit`, all in turn. A step is timed from the end of one to the
end of the next within an epoch. Two rows have an order where both costs agree on one
and the middle halves of their steps lie apart.

    python benchmarks/strategy_order.py [MODEL ...] [--rounds N] [--minutes M]

No round of a model begins when its share of the minutes is over, but for the first two.
"""

import argparse
import time

from common import heading, order_of, quartiles, step_times, undisturbed

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


def placements(sn, model, cluster, **options):
    """Three placements by hand: name and plan."""
    graph = sn.read(model, options["batch"])
    inputs = [part.name for part in graph.parts if part.kind == "input"]
    rest = [part.name for part in graph.parts if part.kind != "input"]
    one = dict.fromkeys(inputs, "cpu:0") | dict.fromkeys(rest, WORKERS[0])
    half = dict.fromkeys(rest[len(rest) // 2 :], WORKERS[1])
    turns = dict.fromkeys(rest[1::2], WORKERS[1])
    for name, moved in (("one worker", {}), ("halves", half), ("in turn", turns)):
        yield name, sn.score(model, cluster, one | moved, **options)


def alternatives(sn, model, cluster, **options):
    """Name and emitted model of each placement and strategy.

    Strategies run on the two workers; the client only feeds them.
    """
    for name, plan in placements(sn, model, cluster, **options):
        yield name, sn.emit(model, plan)
        if name == "halves":
            halves = plan
    towers = {"devices": list(WORKERS), "weights_on": WORKERS[0]}
    made = sn.data_parallel(model, cluster, **towers, **options)
    yield "towers", made
    for schedule in ("gpipe", "1f1b"):
        made = sn.emit(model, halves, microbatches=4, schedule=schedule)
        yield schedule, made
    plan = sn.plan(model, cluster, strategy="auto", **options)
    yield "auto", sn.emit(model, plan)


def main():
    """Print a row for each alternative of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=30.0, help="for all models")
    given = parser.parse_args()

    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        cluster, pids = workers.cluster, [workers.processes[i].pid for i in range(2)]
        sn.connect(cluster)
        import numpy as np

        from splitnet.planner.evaluate import replayed

        print("  model             alternative  predicted, twice  measured, ms")
        for name in given.models:
            ends = time.monotonic() + 60 * given.minutes / len(given.models)
            model, batch = build(name)
            with undisturbed(*pids):
                tables = [
                    sn.measure(model, cluster, batch, optimizer="sgd") for _ in range(2)
                ]
            options = {"batch": batch, "costs": tables[0], "optimizer": "sgd"}
            rows = list(alternatives(sn, model, cluster, **options))
            shape = (batch * STEPS, *model.inputs[0].shape[1:])
            x = np.random.default_rng(0).normal(size=shape).astype("float32")
            y = np.zeros((batch * STEPS, 1), "float32")
            fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
            for _, made in rows:
                made.compile("sgd", "mse")
                made.fit(x, y, **fit)
            seconds = [[] for _ in rows]
            with undisturbed(*pids):
                for number in range(given.rounds):
                    if number >= 2 and time.monotonic() > ends:
                        break
                    for (_, made), took in zip(rows, seconds):
                        times = step_times()
                        made.fit(x, y, callbacks=[times], **fit)
                        took += times.seconds
            judged = []
            for (kind, made), took in zip(rows, seconds):
                plan, measured = sn.plan_of(made), quartiles(took)
                predicted = [replayed(plan, costs=one).seconds for one in tables]
                judged.append((kind, predicted, measured))
                low, middle, high = (1e3 * one for one in measured)
                print(
                    f"  {name:16}  {kind:11}  {1e3 * predicted[0]:7.1f}"
                    f"  {1e3 * predicted[1]:7.1f}"
                    f"  {middle:8.1f} ({low:.1f} to {high:.1f})",
                    flush=True,
                )
            print(f"  {name:16}  {order_of(judged)}", flush=True)


if __name__ == "__main__":
    main()
