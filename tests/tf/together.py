"""Eight stand-ins: towers, branches, a split layer and micro-batches in one model.

Run by `test_together.py` in a process of its own: a process makes its devices once.
"""

import keras
import numpy as np
from keras import layers

import splitnet as sn


def declare() -> sn.Net:
    """Two branches, one of four towers; a split layer; a head."""
    net = sn.Net("together")
    image, words = net.input("image", (16, 16, 1)), net.input("words", (6,), "int32")
    see = net.towers(
        "see",
        image,
        [
            layers.Conv2D(4, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ],
        on=["gpu:0", "gpu:1", "gpu:2", "gpu:3"],
    )
    tell = net.branch(
        "tell", words, [layers.Embedding(11, 6), layers.LSTM(6)], on="gpu:4"
    )
    both = net.merge("both", [see, tell], layers.Concatenate())
    wide = net.split(
        "wide", both, layers.Dense(20, "relu"), on=["gpu:5", "gpu:6", "gpu:7"]
    )
    net.output(net.branch("head", wide, layers.Dense(4, "softmax"), on="gpu:0"))
    return net


def main() -> None:
    """Train placed and plain, compare, audit; say so."""
    cluster = sn.local_cluster(stand_in_gpus=8)
    keras.utils.set_random_seed(5)
    net = declare()
    plan = sn.plan(net, cluster, batch=12)
    placed = sn.emit(net, plan, microbatches=5, schedule="1f1b")
    plain = sn.unplace(placed)
    rng = np.random.default_rng(0)
    x = [
        rng.normal(size=(29, 16, 16, 1)).astype("float32"),
        rng.integers(0, 11, (29, 6)).astype("int32"),
    ]
    y = rng.integers(0, 4, 29)
    losses = []
    for model in (placed, plain):
        model.compile("adam", "sparse_categorical_crossentropy")
        made = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
        losses.append(made.history["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    np.testing.assert_allclose(
        placed.predict(x, verbose=0), plain.predict(x, verbose=0), atol=1e-5
    )
    print(sn.audit(placed, plan, ([part[:12] for part in x], y[:12])).check())


if __name__ == "__main__":
    main()
