"""Is the strategy that `strategy="auto"` chooses as good as trying all of them?

For six architectures on 2, 4 and 8 GPUs, with room and with a share of the memory that
one device needs, the chosen strategy is set against combinations of the following, all
simulated: the placements that were considered, more cuts into stages drawn at random,
1 to 32 micro-batches, both schedules, and recomputation nowhere and everywhere. Those
that cannot win are left out, and none begins after `--seconds`. Nothing is trained.

    python benchmarks/strategies.py [MODEL ...] [--gpus 2 4 8] [--share 0.4]

A row has the predicted step of one device and of each kind of strategy that fits, the
choice, its ratio to the best of all that was tried, how long choosing took, and how
many placements were tried of all.
"""

import argparse
import functools
import random
import time
from dataclasses import replace

from common import heading

COUNTS = (1, 2, 4, 8, 16, 32)
MODELS = {
    "siamese_cnn": 256,
    "fusion": 256,
    "transformer": 64,
    "lstm": 64,
    "wide_embedding": 4096,
    "inception": 64,
}
"""Samples in a batch of each."""
DRAWN = 6
"""Random cuts into stages, for each number of stages."""


def build(name):
    """A Keras model."""
    import keras
    from keras import layers

    if name == "siamese_cnn":
        body = keras.Sequential([keras.Input((128, 128, 3))], name="encoder")
        for width in (64, 128, 256, 256):
            body.add(layers.Conv2D(width, 3, padding="same", activation="relu"))
            body.add(layers.MaxPooling2D())
        body.add(layers.GlobalAveragePooling2D())
        sides = [keras.Input((128, 128, 3)) for _ in range(2)]
        ends = layers.Concatenate()([body(side) for side in sides])
        return keras.Model(sides, layers.Dense(1)(ends))
    if name == "fusion":
        image, audio = keras.Input((96, 96, 3)), keras.Input((400, 40))
        words, table = keras.Input((64,), dtype="int32"), keras.Input((200,))
        a = image
        for width in (64, 128, 256):
            a = layers.Conv2D(width, 3, 2, padding="same", activation="relu")(a)
        a = layers.GlobalAveragePooling2D()(a)
        b = audio
        for width in (128, 256, 256):
            b = layers.Conv1D(width, 5, 2, activation="relu")(b)
        b = layers.GlobalAveragePooling1D()(b)
        c = layers.Embedding(20_000, 256)(words)
        c = layers.GlobalAveragePooling1D()(layers.Dense(512, "gelu")(c))
        d = layers.Dense(1024, "relu")(layers.Dense(1024, "relu")(table))
        joined = layers.Concatenate()([a, b, c, d])
        last = layers.Dense(10)(layers.Dense(512, "relu")(joined))
        return keras.Model([image, audio, words, table], last)
    if name == "transformer":
        x = entry = keras.Input((128, 768))
        for _ in range(24):
            y = layers.LayerNormalization()(x)
            x = layers.Add()([x, layers.MultiHeadAttention(12, 64)(y, y)])
            y = layers.Dense(3072, "gelu")(layers.LayerNormalization()(x))
            x = layers.Add()([x, layers.Dense(768)(y)])
        return keras.Model(entry, layers.Dense(1)(x))
    if name == "lstm":
        source = keras.Input((60,), dtype="int32")
        target = keras.Input((60,), dtype="int32")
        x = layers.Embedding(30_000, 512)(source)
        x = layers.LSTM(1024, return_sequences=True)(x)
        x, *state = layers.LSTM(1024, return_state=True)(x)
        y = layers.Embedding(30_000, 512)(target)
        y = layers.LSTM(1024, return_sequences=True)(y, initial_state=state)
        y = layers.LSTM(1024, return_sequences=True)(y)
        return keras.Model([source, target], layers.Dense(30_000)(y))
    if name == "wide_embedding":
        ids = [keras.Input((20,), dtype="int32") for _ in range(4)]
        tables = [layers.Embedding(2_000_000, 64)(one) for one in ids]
        x = layers.Concatenate()([layers.Flatten()(one) for one in tables])
        for width in (2048, 1024, 512):
            x = layers.Dense(width, "relu")(x)
        return keras.Model(ids, layers.Dense(1)(x))
    if name == "inception":
        x = entry = keras.Input((75, 75, 32))
        for _ in range(6):
            sides = [layers.Conv2D(64, 1, activation="relu")(x)]
            for size in (3, 5):
                y = layers.Conv2D(64, 1, activation="relu")(x)
                y = layers.Conv2D(96, size, padding="same", activation="relu")(y)
                sides.append(y)
            y = layers.MaxPooling2D(3, 1, padding="same")(x)
            sides.append(layers.Conv2D(64, 1, activation="relu")(y))
            x = layers.Concatenate()(sides)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(entry, layers.Dense(100)(x))
    raise SystemExit(f"no model {name!r}; there are {', '.join(MODELS)}")


def everything(choice, seconds):
    """The shortest predicted step of all combinations that fit, and how many were."""
    from splitnet.core.timeline import SCHEDULES, Execution

    workers = [d.name for d in choice.evaluator.cluster.of_kind("gpu")]
    known = [(one.evaluator, one.device_of) for one in choice.found]
    for count in range(2, len(workers) + 1):
        known += drawn_cuts(choice, workers[:count])
    placements = {}
    for evaluator, device_of in known:
        key = (evaluator.graph.parts, tuple(device_of.items()))
        placements.setdefault(key, (evaluator, device_of))
    best = min((one.seconds for one in choice.found if one.fits), default=float("inf"))
    tried = sorted(placements.values(), key=lambda one: one[0].busiest(one[1]))
    until, done = time.monotonic() + seconds, 0
    for evaluator, device_of in tried:
        if evaluator.busiest(device_of) > best:
            done = len(tried)
            break  # no step is shorter than what the busiest device computes
        if time.monotonic() > until:
            break
        done += 1
        for count in COUNTS if choice.counts != [1] else (1,):
            for schedule in SCHEDULES if count > 1 else SCHEDULES[:1]:
                for again in ((), evaluator.cluster.names):
                    how = Execution(count, schedule, again)
                    found = replace(evaluator, execution=how).evaluate(device_of)
                    if found.fits:
                        best = min(best, found.value)
    return best, f"{done}/{len(tried)}"


def drawn_cuts(choice, devices):
    """Contiguous stages that start at random places."""
    from splitnet.planner.strategies.space import placed_apart

    draw, groups = random.Random(len(devices)), choice.groups
    for _ in range(DRAWN):
        starts = sorted(draw.sample(range(1, len(groups)), len(devices) - 1))
        wanted = [
            devices[sum(i >= start for start in starts)] for i in range(len(groups))
        ]
        yield from placed_apart(choice.evaluator, groups, wanted)


def row(sn, graph, gpus, share, seconds):
    """One line: a model on a cluster."""
    from splitnet.core.plan import PlanOptions
    from splitnet.planner.strategies.auto import Choice
    from splitnet.planner.strategies.candidates import choose

    box = sn.Cluster.of(f"{gpus}*gpu", "cpu", preset="A100", link="25 GB/s")
    if share < 1:
        whole = sn.score(graph, box, {"*": "gpu:0"}).memory["gpu:0"].total
        box = replace(
            box,
            devices=tuple(
                replace(d, memory_bytes=int(share * whole)) if d.kind == "gpu" else d
                for d in box
            ),
        )
    options = PlanOptions(strategy="auto", regroup=True, time_limit=2.0)
    began = time.perf_counter()
    choice = Choice(graph, box, options, {})
    took = time.perf_counter() - began
    one = choose(choice.found)
    best, tried = everything(choice, seconds)
    kinds = {}
    for other in choice.found:
        if other.fits:
            known = kinds.get(other.kind, other.seconds)
            kinds[other.kind] = min(known, other.seconds)
    cells = [
        f"{1e3 * kinds[kind]:9.2f}" if kind in kinds else f"{'-':>9}"
        for kind in ("one device", "placement", "towers", "pipeline")
    ]
    words = ", ".join([one.kind, *filter(None, [one.words])])
    return (
        f"{' '.join(cells)}  {one.seconds / best:5.3f}  {took:5.1f} {tried:>7}  {words}"
    )


def main():
    """Print a row for each model and cluster."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--gpus", type=int, nargs="*", default=[2, 4, 8])
    parser.add_argument("--share", type=float, nargs="*", default=[1.0, 0.4])
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    heading(__doc__.partition("\n")[0])
    import splitnet as sn

    print(
        f"  {'model':14} gpus memory  {'one':>9} {'branches':>9} {'towers':>9} "
        f"{'pipeline':>9}  ratio   took   tried  chosen (predicted steps in ms)"
    )
    for name in options.models:
        graph = sn.read(functools.partial(build, name), MODELS[name])
        for gpus in options.gpus:
            for share in options.share:
                said = row(sn, graph, gpus, share, options.seconds)
                print(f"  {name:14} {gpus:4} {share:6.0%}  {said}", flush=True)


if __name__ == "__main__":
    main()
