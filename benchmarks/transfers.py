"""Do a step's copies between devices stay within the plan's own?

Planned bytes (activations and their gradients across cuts) against the bytes that the
partitioned graphs of one `fit` step sent, scalars left out; and the same with Keras'
own optimizer, which sends every gradient of every device through device 0. The column
`others` is what the plan does not know: weights, gradients of weights, slots and
updates on their way; 0 is the aim. On stand-ins; bytes are exact and need no quiet
machine.

    python benchmarks/transfers.py [NET ...]
"""

import argparse
import os

from common import heading

NETS = ("two_towers", "shared_lstm", "wide_and_deep", "residual_cut", "inception")
BATCH = 64


def build(name):
    """A plain Keras model, and which parts go to which of three devices by name."""
    import keras
    from keras import layers

    if name == "two_towers":
        a, b = keras.Input((256,), name="a"), keras.Input((256,), name="b")
        left = layers.Dense(128, "relu", name="left_1")(a)
        left = layers.Dense(64, "relu", name="left_2")(left)
        right = layers.Dense(128, "relu", name="right_1")(b)
        right = layers.Dense(64, "relu", name="right_2")(right)
        joined = layers.Concatenate(name="join")([left, right])
        return keras.Model([a, b], layers.Dense(1, name="head")(joined)), {
            "left": "gpu:0",
            "right": "gpu:1",
        }
    if name == "shared_lstm":
        a, b = keras.Input((20, 32), name="a"), keras.Input((20, 32), name="b")
        encoder = layers.LSTM(32, name="encoder")
        left, right = encoder(a), encoder(b)
        joined = layers.Concatenate(name="join")([left, right])
        return keras.Model([a, b], layers.Dense(1, name="head")(joined)), {
            "encoder:1": "gpu:1",
            "encoder": "gpu:0",
        }
    if name == "wide_and_deep":
        words = keras.Input((10,), dtype="int32", name="words")
        wide = keras.Input((64,), name="wide")
        deep = layers.Embedding(2000, 64, name="deep_words")(words)
        deep = layers.GlobalAveragePooling1D(name="deep_mean")(deep)
        deep = layers.Dense(64, "relu", name="deep_out")(deep)
        joined = layers.Concatenate(name="join")(
            [layers.Dense(8, name="side")(wide), deep]
        )
        return keras.Model([words, wide], layers.Dense(1, name="head")(joined)), {
            "deep": "gpu:0",
            "side": "gpu:1",
        }
    if name == "residual_cut":
        x = entry = keras.Input((128,), name="x")
        for i in range(6):
            inner = layers.Dense(128, "relu", name=f"s{i // 2}_dense{i}")(x)
            x = layers.Add(name=f"s{i // 2}_add{i}")([x, inner])
        return keras.Model(entry, layers.Dense(1, name="head")(x)), {
            "s0": "gpu:0",
            "s1": "gpu:1",
            "s2": "gpu:0",
        }
    x = entry = keras.Input((16, 16, 8), name="x")
    one = layers.Conv2D(8, 1, padding="same", name="one")(x)
    three = layers.Conv2D(8, 3, padding="same", name="three")(x)
    five = layers.Conv2D(8, 5, padding="same", name="five")(x)
    joined = layers.Concatenate(name="join")([one, three, five])
    head = layers.Dense(1, name="head")(layers.GlobalAveragePooling2D(name="p")(joined))
    return keras.Model(entry, head), {"three": "gpu:0", "five": "gpu:1"}


def placed(model, homes, cluster):
    """A plan that keeps these homes, the rest on the CPU, and its emitted model."""
    import splitnet as sn

    graph = sn.read(model, BATCH)
    device_of = {
        part.name: next(
            (d for p, d in homes.items() if part.name.startswith(p)), "cpu:0"
        )
        for part in graph.parts
    }
    plan = sn.score(model, cluster, device_of, batch=BATCH)
    made = sn.emit(model, plan)
    made.compile("adam", "mse")
    return plan, made


def funnel(optimizer):
    """Give an optimizer Keras' own methods back; its slots stay where they are."""
    for name in ("_all_reduce_sum_gradients", "update_step", "_backend_update_step"):
        vars(optimizer).pop(name, None)


def moved(audit):
    """Bytes by kind: those the plan knows, and the rest."""
    planned = sum(p for (*_, kind), (p, _) in audit.moved.items())
    known = ("activation", "gradient", "mask", "target")
    cuts = sum(a for (*_, kind), (_, a) in audit.moved.items() if kind in known)
    rest = sum(a for (*_, kind), (_, a) in audit.moved.items() if kind not in known)
    return planned, cuts, rest


def main():
    """Print a row for each net."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("nets", nargs="*", default=NETS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    import numpy as np

    heading(__doc__.splitlines()[0])
    print("  bytes of one step  planned   across cuts    others   audit")
    for name in options.nets:
        model, homes = build(name)
        rng = np.random.default_rng(0)
        x = [
            (
                rng.integers(0, 2000, size=(BATCH, *t.shape[1:])).astype("int32")
                if t.dtype == "int32"
                else rng.normal(size=(BATCH, *t.shape[1:])).astype("float32")
            )
            for t in model.inputs
        ]
        y = np.zeros((BATCH, 1), "float32")
        for which in ("splitnet", "keras"):
            plan, made = placed(model, homes, cluster)
            if which == "keras":
                made.optimizer.build(made.trainable_variables)
                funnel(made.optimizer)
            audit = sn.audit(made, plan, (x if len(x) > 1 else x[0], y))
            planned, cuts, rest = moved(audit)
            verdict = "ok" if audit.ok else f"{len(audit.findings)} findings"
            label = name if which == "splitnet" else "  Keras' optimizer"
            print(f"  {label:18}{planned:8}{cuts:14}{rest:10}   {verdict}", flush=True)


if __name__ == "__main__":
    main()
