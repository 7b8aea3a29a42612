"""Do random models and nets, placed at random, stay equal to plain Keras and audited?

Each round builds a random functional model or net (dense, convolutional and recurrent
layers, attention, normalisation, dropout, shared and nested layers, skips, towers),
places its calls at random or by the planner on CPU stand-ins, and emits it with a
random strategy. It holds that

- outputs and losses of some uneven steps equal those of the plain model, also where
  training was interrupted by a fault and went on; so do the weights in every other
  round, in float64, where a gradient that cancels is no mere rounding,
- the audit agrees with its own plan, and names every part of a plan with parts moved,
- the plan's file and the model's file load again, on fewer devices too.

With --audit a round trains nothing: the audit of a placed model must be clean; against
a plan with a part moved, and at times of the unplaced model, it must name what is
elsewhere. The summary says how long audits took in the time of a step's tracing.

    python benchmarks/soak.py [--minutes 60] [--rounds N] [--seed 0] [--audit]

A fault is printed with the seed that repeats it: `--seed SEED --rounds 1`. Ends with 1
if there was any.
"""

import argparse
import collections
import contextlib
import random
import statistics
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

    def __init__(self, draw, most=12):
        """`draw` is a `random.Random`, `most` how many layers a model has."""
        self.draw, self.most = draw, most
        self.shared = {}

    def model(self):
        """A functional model with one or two inputs and one output."""
        import keras
        from keras import layers

        draw = self.draw
        entries = [keras.Input((8,), name="flat"), keras.Input((5, 6), name="steps")]
        entries = draw.choice([entries[:1], entries[1:], entries])
        pool = list(entries)
        for _ in range(draw.randint(3, self.most)):
            pool.append(self.grow(draw.choice(pool[-4:])))
            if len(pool) > 3 and draw.random() < 0.3:
                pool.append(self.join(draw.choice(pool), pool[-1]))
        x = self.side_by_side({id(x): x for x in pool[-3:] + entries}.values())
        return keras.Model(entries, layers.Dense(1, name="head")(x))

    def net(self, cluster):
        """A declared net: branches, merges and at times towers, on random devices."""
        import keras
        from keras import layers

        import splitnet as sn

        draw, devices = self.draw, cluster.names
        net = sn.Net("random")
        real = {"dtype": keras.config.floatx()}  # else layers compute in float32
        pool = [net.input("flat", (8,), **real), net.input("steps", (5, 6), **real)]
        open_ends = list(pool)
        for i in range(draw.randint(2, self.most // 2)):
            source = draw.choice(pool[-3:])
            wish = draw.choice(("auto", draw.choice(devices), draw.sample(devices, 2)))
            made = net.branch(f"b{i}", source, self.body(), on=wish)
            open_ends = [ref for ref in open_ends if ref is not source] + [made]
            pool.append(made)
            if draw.random() < 0.3 and len(pool) > 3:
                pair = draw.sample(pool, 2)
                pool.append(net.merge(f"m{i}", pair, self.side_by_side))
                open_ends.append(pool[-1])
        if draw.random() < 0.2:
            body, two = [layers.Dense(4, "tanh")], draw.sample(devices, 2)
            flat = net.branch("flattened", pool[-1], layers.Flatten())
            open_ends.append(net.towers("towers", flat, body, on=two))
        last = net.merge("joined", open_ends, self.side_by_side)
        net.output(net.branch("head", last, [layers.Flatten(), layers.Dense(1)]))
        return net

    def body(self):
        """A function of some layers, the same at each call of it."""
        seed, count = self.draw.random(), self.draw.randint(1, 3)

        def body(x):
            inner = Builder(random.Random(seed))
            for _ in range(count):
                x = inner.grow(x)
            return x

        return body

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

    def side_by_side(self, tensors):
        """Tensors of any shape in one."""
        from keras import layers

        flat = [self.flat(x) for x in tensors]
        return layers.Concatenate()(flat) if len(flat) > 1 else flat[0]

    def flat(self, x):
        """Without the axis of steps."""
        from keras import layers

        return x if len(x.shape) == 2 else layers.GlobalMaxPooling1D()(x)


def placements(draw, model, cluster):
    """A random plan, random by parts or chosen under random pins."""
    import splitnet as sn

    devices = cluster.names
    graph = sn.read(model, BATCH)
    parts = [part.name for part in graph.parts if part.kind != "input"]
    if draw.random() < 0.5:
        where = {name: draw.choice(devices) for name in parts}
        return sn.score(model, cluster, where, batch=BATCH)
    pins = {name: draw.choice(devices) for name in parts if draw.random() < 0.3}
    return sn.plan(model, cluster, pins=pins, batch=BATCH, time_limit=0.2)


def data(model, seed):
    """Inputs and targets."""
    import keras
    import numpy as np

    numbers = np.random.default_rng(seed)
    x = [
        numbers.normal(size=(SAMPLES, *entry.shape[1:])).astype(keras.config.floatx())
        for entry in model.inputs
    ]
    y = numbers.normal(size=(SAMPLES, 1)).astype(keras.config.floatx())
    return x if len(x) > 1 else x[0], y


def apart(one, other):
    """The largest difference, as a share of the largest value of its tensor."""
    import numpy as np

    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(one, other, strict=True)]
    return max(
        float(np.abs(a - b).max() / max(np.abs(a).max(), np.abs(b).max(), 1e-3))
        for a, b in pairs
        if a.size
    )


class InterruptionError(Exception):
    """A fault in the middle of training."""


def trained(model, x, y, fault, *, eager):
    """Outputs, then losses and weights after some steps, interrupted at a batch.

    The plain model runs eagerly: TensorFlow's graph optimizer breaks some models. Where
    Keras' own eager and compiled steps differ, a placed one may agree with either.
    """
    import keras

    def fail(batch, logs):
        if batch == fault:
            raise InterruptionError

    keras.utils.set_random_seed(1)
    model.compile(keras.optimizers.SGD(0.01), "mse", run_eagerly=eager)
    outputs = model.predict(x, batch_size=BATCH, verbose=0)
    fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
    with contextlib.suppress(InterruptionError):
        model.fit(
            x,
            y,
            callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)],
            **fit,
        )
    losses = model.fit(x, y, **fit).history["loss"]
    return [outputs], [losses], model.get_weights()


def differing(mine, its, kinds):
    """What differs by more than rounding, and by how much; "" if nothing does."""
    import keras

    most = {"float32": 5e-6, "float64": 1e-10}[keras.config.floatx()]
    for name, one, other in zip(("outputs", "losses", "weights"), mine, its):
        if name in kinds and (far := apart(one, other)) > most:
            return f"{name} differ by {far:.1e}"
    return ""


def emitted(seed, cluster, most):
    """A random placed model, its net or model, and the options of its emission."""
    import keras

    import splitnet as sn

    draw = random.Random(seed)
    keras.utils.set_random_seed(seed % 2**31)
    keras.config.set_floatx("float64" if seed % 2 else "float32")
    build = Builder(draw, most)
    source = build.net(cluster) if draw.random() < 0.4 else build.model()
    options = draw.choice(STRATEGIES)
    if not isinstance(source, sn.Net) and draw.random() < 0.15:
        placed = sn.data_parallel(source, cluster, devices=2, batch=BATCH)
        return draw, placed, source, {"towers": 2}
    placed = sn.emit(source, placements(draw, source, cluster), **options)
    return draw, placed, source, options


def one_round(seed, cluster, folder):
    """Build, place, train, audit, move. Returns the strategy; raises on a fault."""
    import keras
    import numpy as np

    import splitnet as sn

    draw, placed, model, options = emitted(seed, cluster, most=12)
    if isinstance(model, sn.Net):
        model = sn.unplace(placed)
    plan = sn.plan_of(placed)
    random_kinds = ("Dropout", "BatchNormalization")
    exact = not (
        (towers_in(plan) or "microbatches" in options)
        and any(call.kind in random_kinds for call in plan.graph.calls)
    )
    x, y = data(model, seed)
    fault = draw.choice((None, 0, 1, 2))
    before = [variable.numpy() for variable in model.variables]
    mine, its = (trained(m, x, y, fault, eager=m is model) for m in (placed, model))
    kinds = ["outputs"] + ["losses"] * exact  # else pieces are normalised by themselves
    if keras.config.floatx() == "float64":
        kinds += ["weights"] * exact
    if far := differing(mine, its, kinds):
        for variable, value in zip(model.variables, before, strict=True):
            variable.assign(value)
        if differing(mine, trained(model, x, y, fault, eager=False), kinds):
            raise AssertionError(f"{far} ({options})")
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    sn.audit(placed, plan, batch).check()
    stray_must_ring(draw, placed, cluster, batch)
    keras.utils.set_random_seed(1)
    placed.save(folder / "model.keras")
    loaded = keras.models.load_model(folder / "model.keras")
    again = sn.place(loaded, sn.Cluster(cluster.devices[-2:]), time_limit=0.1)
    values = [one.predict(x, verbose=0) for one in (placed, again)]
    if not np.allclose(*values, rtol=1e-5, atol=1e-6):
        raise AssertionError(f"loaded on one device, outputs differ ({options})")
    plan.save(folder / "plan.json")
    if sn.load_plan(folder / "plan.json").device_of != plan.device_of:
        raise AssertionError("the plan's file names other devices")
    return str(options)


def audit_round(seed, cluster):
    """Audit as planned, with a part moved, and unplaced.

    Returns the time of an audit over that of a step that is traced, at times.
    """
    import keras

    import splitnet as sn

    draw, placed, source, _ = emitted(seed, cluster, most=6)
    plan = sn.plan_of(placed)
    optimizers = keras.optimizers
    compiled = draw.choice(
        (
            lambda: optimizers.SGD(0.01, momentum=0.9),
            lambda: optimizers.Adam(global_clipnorm=1.0),
            lambda: optimizers.AdamW(gradient_accumulation_steps=2),
            lambda: optimizers.Lion(use_ema=True, clipvalue=0.5),
            lambda: optimizers.RMSprop(weight_decay=0.01),
        )
    )
    x, y = data(placed, seed)
    batch = keras.tree.map_structure(lambda a: a[:BATCH], (x, y))
    placed.compile(compiled(), "mse")
    seconds = []
    if seed % 5 == 0:  # a step is traced, and then once more for its audit
        placed.fit(*batch, verbose=0)
        placed.train_function = None
        seconds.append(time.process_time())
        placed.fit(*batch, batch_size=BATCH, verbose=0)
    seconds.append(time.process_time())
    audit = sn.audit(placed, plan, batch)
    seconds.append(time.process_time())
    audit.check()
    stray_must_ring(draw, placed, cluster, batch)
    if seed % 5 == 1 and isinstance(source, keras.Model) and not towers_in(plan):
        source.compile(compiled(), "mse")
        named = {finding.part for finding in sn.audit(source, plan, batch).findings}
        away = {part for part in holders(plan) if plan.device_of[part] != "cpu:0"}
        if away - named:
            raise AssertionError(f"nothing said of {away - named} in the plain model")
    traced, audited = seconds[-2] - seconds[0], seconds[-1] - seconds[-2]
    return audited / traced if traced else None


def towers_in(plan):
    """Whether any part shares its batch with others."""
    return any(part.kind == "tower" for part in plan.graph.parts)


def holders(plan):
    """Parts that hold trainable weights of their own and hear of the loss."""
    trainable = {w.name for w in plan.graph.weights if w.trainable}
    first = {w: parts[0] for w, parts in plan.graph.parts_of_weights.items()}
    return sorted({first[w] for w in trainable})


def stray_must_ring(draw, placed, cluster, batch):
    """Audit against a plan with one part moved: the audit must name it."""
    import splitnet as sn

    plan = sn.plan_of(placed)
    held = holders(plan)
    if not held or towers_in(plan):
        return
    part = draw.choice(held)
    here = plan.device_of[part]
    there = draw.choice([name for name in cluster.names if name != here])
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
    parser.add_argument("--audit", action="store_true")
    given = parser.parse_args()

    import keras

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=3)
    heading(__doc__.splitlines()[0])
    ends = time.monotonic() + 60 * given.minutes
    passed, ratios, faults = collections.Counter(), [], []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.rounds):
            if time.monotonic() > ends:
                break
            try:
                if given.audit:
                    ratios.append(audit_round(seed, cluster))
                    passed["audit"] += 1
                else:
                    passed[one_round(seed, cluster, Path(folder))] += 1
            except Exception as error:  # a fault of any kind is what is looked for
                faults.append(seed)
                kind = type(error).__name__
                print(f"  seed {seed}: {kind}: {str(error)[:400]}", flush=True)
                if not isinstance(error, AssertionError | sn.SplitnetError):
                    traceback.print_exc()
            keras.backend.clear_session()
            if (done := seed + 1 - given.seed) % 50 == 0:
                print(f"  {done} rounds, {len(faults)} failed", flush=True)
    for strategy, count in sorted(passed.items()):
        print(f"  {count:5} passed  {strategy}")
    if ratios := [one for one in ratios if one is not None]:
        half, most = statistics.median(ratios), max(ratios)
        print(f"  an audit takes {half:.2f} times the seconds of a step that is traced")
        print(f"  (median of {len(ratios)}), at most {most:.2f} times")
    print(f"  {len(faults):5} failed  {faults}")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
