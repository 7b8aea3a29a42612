"""Do random models, placed at random, stay equal to plain Keras, with a true audit?

Each round builds a random functional model (dense, convolutional and recurrent layers,
attention, normalisation, dropout, shared and nested layers, skips), places its calls at
random or by the planner on CPU stand-ins, and emits it with a random strategy. It holds
that

- outputs, losses and weights after some uneven steps equal those of the plain model,
- the audit agrees with its own plan, and names every part of a plan with parts moved,
- the plan's file and the model's file load again, on fewer devices too.

    python benchmarks/soak.py [--minutes 60] [--rounds N] [--seed 0]

A fault is printed with the seed that repeats it: `--seed SEED --rounds 1`. Ends with 1
if there was any.
"""

import argparse
import collections
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from common import heading

BATCH, SAMPLES = 6, 16
STRATEGIES = (
    {},
    {},
    {"recompute": True},
    {"microbatches": 2},
    {"microbatches": 3, "schedule": "1f1b"},
    {"microbatches": 2, "recompute": True},
)


class Builder:
    """Grow a random model of tensors with features, and with steps and features."""

    def __init__(self, draw):
        """`draw` is a `random.Random`."""
        self.draw = draw
        self.shared = {}

    def model(self):
        """A functional model with one or two inputs and one output."""
        import keras
        from keras import layers

        draw = self.draw
        entries = [keras.Input((8,), name="flat"), keras.Input((5, 6), name="steps")]
        entries = draw.choice([entries[:1], entries[1:], entries])
        pool = list(entries)
        for _ in range(draw.randint(3, 14)):
            pool.append(self.grow(draw.choice(pool[-4:])))
            if len(pool) > 3 and draw.random() < 0.3:
                pool.append(self.join(draw.choice(pool), pool[-1]))
        consumed = [
            self.flat(x) for x in {id(x): x for x in pool[-3:] + entries}.values()
        ]
        x = layers.Concatenate()(consumed) if len(consumed) > 1 else consumed[0]
        return keras.Model(entries, layers.Dense(1, name="head")(x))

    def grow(self, x):
        """One more layer, of a kind that fits."""
        from keras import layers

        draw, steps = self.draw, len(x.shape) == 3
        kinds = ["dense", "norm", "drop", "shared", "nested", "act"]
        kinds += ["rnn", "conv", "attend", "reshape", "pool"] if steps else ["repeat"]
        kind = draw.choice(kinds)
        width = draw.choice((4, 6, 8))
        if kind == "dense":
            rule = draw.choice((None, "l2"))
            return layers.Dense(width, "tanh", kernel_regularizer=rule)(x)
        if kind == "norm":
            made = (layers.BatchNormalization, layers.LayerNormalization)
            return draw.choice(made)()(x)
        if kind == "drop":
            return layers.Dropout(0.3, seed=draw.randint(0, 99))(x)
        if kind == "act":
            return draw.choice((layers.ReLU(), layers.Activation("gelu")))(x)
        if kind == "shared":
            key = (len(x.shape), x.shape[-1])
            if key not in self.shared:
                self.shared[key] = layers.Dense(width, "relu")
            return self.shared[key](x)
        if kind == "nested":
            return self.nested(x, width)
        if kind == "rnn":
            cell = draw.choice((layers.LSTM, layers.GRU, layers.SimpleRNN))
            both = layers.Bidirectional if draw.random() < 0.3 else (lambda one: one)
            return both(cell(width, return_sequences=draw.random() < 0.5))(x)
        if kind == "conv":
            return layers.Conv1D(width, 3, padding="same", activation="relu")(x)
        if kind == "attend":
            return layers.MultiHeadAttention(2, 4)(x, x)
        if kind == "reshape":
            return layers.Flatten()(x)
        if kind == "pool":
            return layers.GlobalAveragePooling1D()(x)
        return layers.RepeatVector(3)(x)

    def nested(self, x, width):
        """A model inside the model, Sequential or functional."""
        import keras
        from keras import layers

        entry = keras.Input(x.shape[1:])
        y = layers.Dense(width, "relu")(entry)
        y = layers.Dense(width, "tanh")(y)
        return keras.Model(entry, y)(x)

    def join(self, one, other):
        """Two tensors in one: added where their shapes agree, else side by side."""
        from keras import layers

        if one.shape == other.shape and one is not other:
            kinds = (layers.Add, layers.Multiply, layers.Concatenate)
            return self.draw.choice(kinds)()([one, other])
        return layers.Concatenate()([self.flat(one), self.flat(other)])

    def flat(self, x):
        """Without the axis of steps."""
        from keras import layers

        return x if len(x.shape) == 2 else layers.GlobalMaxPooling1D()(x)


def placements(draw, model, cluster):
    """A random plan, random by calls or chosen under random pins."""
    import splitnet as sn

    devices = [device.name for device in cluster]
    graph = sn.read(model, BATCH)
    parts = [part.name for part in graph.parts if part.kind != "input"]
    if draw.random() < 0.5:
        where = {name: draw.choice(devices) for name in parts}
        return sn.score(model, cluster, where, batch=BATCH)
    pins = {name: draw.choice(devices) for name in parts if draw.random() < 0.3}
    return sn.plan(model, cluster, pins=pins, batch=BATCH, time_limit=0.2)


def data(model, seed):
    """Inputs and targets."""
    import numpy as np

    numbers = np.random.default_rng(seed)
    x = [
        numbers.normal(size=(SAMPLES, *entry.shape[1:])).astype("float32")
        for entry in model.inputs
    ]
    return x if len(x) > 1 else x[0], numbers.normal(size=(SAMPLES, 1)).astype("f4")


def apart(one, other):
    """The largest difference, as a share of the largest value of its tensor."""
    import numpy as np

    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)]
    return max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-3))
        for a, b in pairs
        if a.size
    )


def trained(model, x, y, epochs):
    """Outputs, then losses and weights after some steps."""
    import keras

    keras.utils.set_random_seed(1)
    model.compile(keras.optimizers.SGD(0.01), "mse")
    outputs = model.predict(x, batch_size=BATCH, verbose=0)
    fit = {"batch_size": BATCH, "epochs": epochs, "shuffle": False, "verbose": 0}
    losses = model.fit(x, y, **fit).history["loss"]
    return [outputs], [losses], model.get_weights()


def one_round(seed, cluster, folder):
    """Build, place, train, audit, move. Returns the strategy; raises on a fault."""
    import keras
    import numpy as np

    import splitnet as sn

    draw = random.Random(seed)
    keras.utils.set_random_seed(seed % 2**31)
    model = Builder(draw).model()
    plan = placements(draw, model, cluster)
    options = draw.choice(STRATEGIES)
    if draw.random() < 0.15:
        placed = sn.data_parallel(model, cluster, devices=2, batch=BATCH)
        options, plan = {"towers": 2}, sn.plan_of(placed)
    else:
        placed = sn.emit(model, plan, **options)
    random_kinds = ("Dropout", "BatchNormalization")
    pieces = any(key in options for key in ("microbatches", "towers"))
    exact = not (pieces and any(c.kind in random_kinds for c in plan.graph.calls))
    x, y = data(model, seed)
    found = [trained(one, x, y, epochs=2) for one in (placed, model)]
    for name, mine, its in zip(("outputs", "losses", "weights"), *found, strict=True):
        if name != "outputs" and not exact:
            continue  # pieces are normalised, and draw, by themselves
        if (far := apart(mine, its)) > 5e-6:
            raise AssertionError(f"{name} differ by {far:.1e} ({options})")
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    sn.audit(placed, sn.plan_of(placed), batch).check()
    stray_must_ring(draw, placed, cluster, batch)
    keras.utils.set_random_seed(1)
    placed.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    again = sn.place(loaded, sn.Cluster(cluster.devices[-2:]), time_limit=0.1)
    values = [one.predict(x, verbose=0) for one in (placed, again)]
    if not np.allclose(*values, rtol=1e-5, atol=1e-6):
        raise AssertionError(f"loaded on one device, outputs differ ({options})")
    sn.plan_of(placed).save(folder / "plan.json")
    if sn.load_plan(folder / "plan.json").device_of != sn.plan_of(placed).device_of:
        raise AssertionError("the plan's file names other devices")
    return str(options)


def stray_must_ring(draw, placed, cluster, batch):
    """Audit against a plan with one part moved: the audit must name it."""
    import splitnet as sn

    plan = sn.plan_of(placed)
    trainable = {w.name for w in plan.graph.weights if w.trainable}
    held = [c.part for c in plan.graph.calls if trainable & set(c.weights)]
    if not held or any(part.kind == "tower" for part in plan.graph.parts):
        return
    part = draw.choice(held)
    here = plan.device_of[part]
    there = draw.choice([d.name for d in cluster if d.name != here])
    other = sn.score(plan.graph, cluster, dict(plan.device_of) | {part: there})
    found = sn.audit(placed, other, batch)
    if found.ok or not any(part in str(finding) for finding in found.findings):
        raise AssertionError(f"the audit did not name {part!r}, moved to {there}")


def main():
    """Run rounds until the time is over; print faults and a summary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=3)
    heading(__doc__.splitlines()[0])
    ends = time.monotonic() + 60 * given.minutes
    passed, faults = collections.Counter(), []
    import keras

    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.rounds):
            if time.monotonic() > ends:
                break
            try:
                passed[one_round(seed, cluster, Path(folder))] += 1
            except Exception as error:  # a fault of any kind is what is looked for
                faults.append(seed)
                kind = type(error).__name__
                print(f"  seed {seed}: {kind}: {str(error)[:400]}", flush=True)
                if not isinstance(error, AssertionError | sn.SplitnetError):
                    traceback.print_exc()
            keras.backend.clear_session()
    for strategy, count in sorted(passed.items()):
        print(f"  {count:5} passed  {strategy}")
    print(f"  {len(faults):5} failed  {faults}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
