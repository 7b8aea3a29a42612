"""Two encoders on two GPUs and a merge on the CPU classify digits.

Each encoder reads one half of a handwritten digit (scikit-learn's, 8 x 8 pixels). Runs
on two GPUs, or on two CPU devices that stand in for them.
"""

import keras
from keras import layers
from sklearn.datasets import load_digits

import splitnet as sn


def encoder() -> list[layers.Layer]:
    """New layers for each call: the two encoders share none."""
    return [
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(64, activation="relu"),
    ]


def declare() -> sn.Net:
    """The net: `splitnet plan two_halves.py:declare --stand-ins 2` plans it too."""
    net = sn.Net("two_halves")
    left_half = net.input("left_half", (8, 4, 1))
    right_half = net.input("right_half", (8, 4, 1))
    left = net.branch("left", left_half, encoder(), on="gpu:0")
    right = net.branch("right", right_half, encoder(), on="gpu:1")
    both = net.merge("both", [left, right], layers.Concatenate())
    digit = net.branch("digit", both, layers.Dense(10, activation="softmax"), on="cpu")
    net.output(digit)
    return net


def main() -> None:
    """Plan, draw, train and audit."""
    cluster = sn.local_cluster(stand_in_gpus=2)  # without the argument: the real GPUs
    net = declare()
    plan = sn.plan(net, cluster, batch=128)
    print(sn.table(plan))
    sn.draw(plan, "two_halves.svg")

    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    halves = [images[:, :, :4], images[:, :, 4:]]

    keras.utils.set_random_seed(0)
    model = sn.emit(net, plan)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(halves, digits, batch_size=128, epochs=8, validation_split=0.2, verbose=2)

    audit = sn.audit(model, plan, ([half[:128] for half in halves], digits[:128]))
    print(sn.table(audit))
    audit.check()


if __name__ == "__main__":
    main()
