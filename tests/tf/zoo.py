"""Nets with data, one for each thing that placement could break.

Each case declares a net over two or three stand-ins and a CPU, brings a batch that is
cut unevenly (13 samples in steps of 5), and says how to compile. Sizes are small: what
is proven is where and how things run, never how fast.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import layers

import splitnet as sn

__all__ = [
    "BATCH",
    "OPTIMIZERS",
    "ZOO",
    "Case",
    "numbers",
    "two_branches",
    "words",
]

BATCH = 5
SAMPLES = 13


@dataclass(frozen=True)
class Case:
    """A net, its data, and what to compile it with, made anew for every model."""

    net: sn.Net
    x: Any
    y: Any
    compilation: Callable[[], dict[str, Any]] = lambda: {
        "optimizer": keras.optimizers.SGD(0.1, momentum=0.9),
        "loss": "mse",
    }
    weights: Any = None
    fit: dict[str, Any] = field(default_factory=dict)


ZOO: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    """Register a case under its function's name."""
    ZOO[build.__name__] = build
    return build


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal numbers, the same for the same seed."""
    made = np.random.default_rng(seed).standard_normal((SAMPLES, *shape))
    return made.astype("float32")


def words(length: int, count: int = 11, seed: int = 0) -> np.ndarray:
    """Whole numbers below `count`; the later half of the odd rows is padding."""
    made = np.random.default_rng(seed).integers(1, count, (SAMPLES, length))
    made[1::2, length // 2 :] = 0
    return made.astype("int32")


def classes(count: int, seed: int = 0) -> np.ndarray:
    """A class for each sample."""
    return np.random.default_rng(seed).integers(0, count, SAMPLES).astype("int32")


def two_branches(left: Any, right: Any, head: Any = None, *, shape: Any = (6,)) -> Case:
    """One input, two bodies on two devices, a sum on the CPU, a head on the second."""
    net = sn.Net("two_branches")
    x = net.input("x", shape)
    a = net.branch("left", x, left, on="gpu:0")
    b = net.branch("right", x, right, on="gpu:1")
    both = net.merge("both", [a, b], layers.Add())
    net.output(net.branch("head", both, head or layers.Dense(2), on="gpu:1"))
    return Case(net, numbers(*shape), numbers(2, seed=1))


# --- what is shared, and what is wide -----------------------------------------------


@case
def shared_lstm() -> Case:
    """The example of the Keras FAQ: one LSTM reads two tweets on two devices."""
    net = sn.Net("siamese")
    tweet_a, tweet_b = net.input("tweet_a", (7, 4)), net.input("tweet_b", (7, 4))
    encoder = layers.LSTM(6)
    left = net.branch("left", tweet_a, encoder, on="gpu:0")
    right = net.branch("right", tweet_b, encoder, on="gpu:1")
    joined = net.merge("join", [left, right], layers.Concatenate())
    head = layers.Dense(1, activation="sigmoid")
    net.output(net.branch("verdict", joined, head, on="cpu"))
    return Case(
        net,
        [numbers(7, 4), numbers(7, 4, seed=1)],
        classes(2).astype("float32"),
        lambda: {
            "optimizer": "adam",
            "loss": "binary_crossentropy",
            "metrics": ["accuracy"],
        },
    )


@case
def triplet() -> Case:
    """One encoder on three devices, and a merge that is a function."""
    net = sn.Net("triplet")
    inputs = [net.input(name, (5,)) for name in ("anchor", "near", "far")]
    encoder = keras.Sequential([layers.Dense(8, activation="tanh"), layers.Dense(4)])
    towers = [
        net.branch(f"see_{i}", ref, encoder, on=f"gpu:{i}")
        for i, ref in enumerate(inputs)
    ]

    def margin(anchor: Any, near: Any, far: Any) -> Any:
        ops = keras.ops
        closer = ops.sum(ops.square(anchor - near), axis=-1, keepdims=True)
        return closer - ops.sum(ops.square(anchor - far), axis=-1, keepdims=True)

    net.output(net.merge("margin", towers, margin))
    x = [numbers(5, seed=seed) for seed in range(3)]
    return Case(
        net, x, numbers(1, seed=4), lambda: {"optimizer": "adam", "loss": "mse"}
    )


@case
def cnn_two_tower() -> Case:
    """Convolutions, BatchNorm, pooling and Dropout in two towers of their own."""

    def tower(width: int) -> list[layers.Layer]:
        return [
            layers.Conv2D(width, 3, padding="same"),
            layers.BatchNormalization(),
            layers.Activation("relu"),
            layers.MaxPooling2D(),
            layers.Dropout(0.3),
            layers.GlobalAveragePooling2D(),
        ]

    net = sn.Net("cnn_two_tower")
    image, depth = net.input("image", (8, 8, 3)), net.input("depth", (8, 8, 1))
    a = net.branch("see", image, tower(4), on="gpu:0")
    b = net.branch("feel", depth, tower(5), on="gpu:1")
    both = net.merge("both", [a, b], layers.Concatenate(), on="gpu:2")
    net.output(net.branch("head", both, layers.Dense(3), near=both))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return Case(
        net,
        {"image": numbers(8, 8, 3), "depth": numbers(8, 8, 1)},
        classes(3),
        lambda: {"optimizer": "adam", "loss": loss, "metrics": ["accuracy"]},
    )


@case
def wide_and_deep() -> Case:
    """An embedding on the CPU, whose gradient must stay sparse, beside dense layers."""
    net = sn.Net("wide_and_deep")
    ids, facts = net.input("ids", (6,), dtype="int32"), net.input("facts", (5,))
    rows = net.branch("rows", ids, layers.Embedding(50, 4), on="cpu")
    deep = net.branch(
        "deep", rows, [layers.Flatten(), layers.Dense(7, activation="relu")], on="gpu:0"
    )
    wide = net.branch("wide", facts, layers.Dense(7), on="gpu:1")
    both = net.merge("both", [deep, wide], layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="gpu:0"))
    return Case(net, [words(6, 50), numbers(5)], numbers(1, seed=2))


@case
def inception() -> Case:
    """One tensor read on three devices, whose gradients meet again."""
    net = sn.Net("inception")
    image = net.input("image", (6, 6, 3))
    stem = net.branch("stem", image, layers.Conv2D(4, 3, activation="relu"), on="gpu:0")
    ways = [
        net.branch("one", stem, layers.Conv2D(3, 1), on="gpu:0"),
        net.branch("three", stem, layers.Conv2D(3, 3, padding="same"), on="gpu:1"),
        net.branch(
            "pool",
            stem,
            [layers.AveragePooling2D(3, 1, padding="same"), layers.Conv2D(3, 1)],
            on="gpu:2",
        ),
    ]
    both = net.merge("mixed", ways, layers.Concatenate(), on="gpu:1")
    head = [layers.GlobalAveragePooling2D(), layers.Dense(2)]
    net.output(net.branch("head", both, head, on="gpu:1"))
    return Case(net, numbers(6, 6, 3), numbers(2, seed=1))


@case
def residual_chain() -> Case:
    """A chain with skips, cut in three: sums of gradients lie on both sides of cuts.

    At a rate of 0.1 its training diverges, and rounding with it.
    """

    def block(mix: Any, norm: Any) -> Callable[[Any], Any]:
        return lambda t: t + norm(mix(t))

    net = sn.Net("residual")
    x = net.input("x", (6,))
    last = net.branch("enter", x, layers.Dense(8), on="gpu:0")
    for i in range(3):
        body = block(layers.Dense(8, activation="relu"), layers.LayerNormalization())
        last = net.branch(f"block_{i}", last, body, on=f"gpu:{i}")
    net.output(net.branch("leave", last, layers.Dense(2), on="gpu:2"))

    def slow() -> dict[str, Any]:
        return {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9), "loss": "mse"}

    return Case(net, numbers(6), numbers(2, seed=1), slow)


@case
def many_inputs_and_outputs() -> Case:
    """Two inputs, three outputs by name, a loss and weight each, names with spaces."""
    net = sn.Net("many 入出")
    a, b = net.input("a", (4,)), net.input("b", (3,))

    def body(p: Any, q: Any) -> dict[str, Any]:
        mixed = layers.Dense(5, activation="tanh", name="mix")(
            layers.Concatenate(name="glue")([p, q])
        )
        return {"mixed": mixed, "raw": p * 2.0}

    both = net.branch("stem of both", {"p": a, "q": b}, body, on="gpu:0")
    parts = dict(both)
    kind = layers.Dense(3, activation="softmax", name="kind_probabilities")
    net.output(net.branch("kind", parts["mixed"], kind, on="gpu:1"), "kind")
    net.output(net.branch("größe", parts["mixed"], layers.Dense(1), on="gpu:2"), "size")
    net.output(net.branch("echo", parts["raw"], layers.Dense(1), on="gpu:0"), "echo")
    return Case(
        net,
        {"a": numbers(4), "b": numbers(3, seed=1)},
        {"kind": classes(3), "size": numbers(1), "echo": numbers(1, seed=3)},
        lambda: {
            "optimizer": "adam",
            "loss": {
                "kind": "sparse_categorical_crossentropy",
                "size": "mse",
                "echo": "mae",
            },
            "loss_weights": {"kind": 1.0, "size": 0.5, "echo": 0.25},
            "metrics": {"kind": ["accuracy"]},
        },
    )


@case
def tuples() -> Case:
    """A body that returns a tuple, taken apart, and one part of it read twice."""
    net = sn.Net("tuples")
    x = net.input("x", (6,))
    split = lambda t: (t[:, :2], t[:, 2:])  # noqa: E731  # a body without a name
    head, tail = net.branch("split", x, split, on="gpu:0")
    a = net.branch("a", tail, layers.Dense(2), on="gpu:1")
    b = net.branch("b", tail, layers.Dense(2), on="gpu:2")
    net.output(net.merge("sum", [head, a, b], layers.Add()))
    return Case(net, numbers(6), numbers(2, seed=1))


# --- what has state or chance ------------------------------------------------------


@case
def dropout_shared() -> Case:
    """One Dropout, one seed, on two devices: its state advances in plain order."""
    net = sn.Net("dropout_shared")
    x = net.input("x", (6,))
    drop = layers.Dropout(0.5, seed=3)
    a = net.branch("left", x, [layers.Dense(5), drop], on="gpu:0")
    b = net.branch("right", x, [layers.Dense(5), drop], on="gpu:1")
    net.output(net.merge("sum", [a, b], layers.Add()))
    return Case(net, numbers(6), numbers(5, seed=1))


@case
def batchnorm_shared() -> Case:
    """One BatchNorm called on two devices: both calls update its averages, in order."""
    net = sn.Net("batchnorm_shared")
    x = net.input("x", (6,))
    norm = layers.BatchNormalization(momentum=0.7)
    a = net.branch("left", x, [layers.Dense(5), norm], on="gpu:0")
    b = net.branch("right", x, [layers.Dense(5), norm], on="gpu:1")
    net.output(net.merge("sum", [a, b], layers.Add()))
    return Case(net, numbers(6), numbers(5, seed=1))


@case
def shared_function() -> Case:
    """One function, with a layer in its closure, is the body of two branches."""
    net = sn.Net("shared_function")
    x = net.input("x", (6,))
    inner = layers.Dense(4, activation="relu")

    def body(t: Any) -> Any:
        return layers.Dense(3, name="outer")(inner(t))

    a = net.branch("left", x, body, on="gpu:0")
    b = net.branch("right", x, body, on="gpu:1")
    net.output(net.merge("sum", [a, b], layers.Subtract()))
    return Case(net, numbers(6), numbers(3, seed=1))


@case
def nested_models() -> Case:
    """Models as bodies: a Sequential that holds a functional one, shared by two."""
    inside = keras.Input((4,))
    inner = keras.Model(inside, layers.Dense(4)(inside) + inside, name="inner")
    body = keras.Sequential([layers.Dense(4), inner, layers.Dropout(0.2)], name="body")
    return two_branches(body, [body, layers.Dense(4)])


# --- masks and attention -----------------------------------------------------------


@case
def masks_across_a_cut() -> Case:
    """An embedding's mask reaches an LSTM, and a pooling, on other devices."""
    net = sn.Net("masks")
    ids = net.input("ids", (8,), dtype="int32")
    rows = net.branch("rows", ids, layers.Embedding(11, 4, mask_zero=True), on="gpu:0")
    read = net.branch("read", rows, layers.LSTM(5, return_sequences=True), on="gpu:1")
    mean = net.branch("mean", rows, layers.GlobalAveragePooling1D(), on="gpu:2")
    last = net.branch("last", read, layers.GRU(4), on="gpu:2")
    net.output(net.merge("both", [last, mean], layers.Add()))
    return Case(net, words(8), numbers(4, seed=1))


@case
def attention() -> Case:
    """Causal self-attention, and cross-attention over a masked memory."""
    net = sn.Net("attention")
    ids, query = net.input("ids", (6,), dtype="int32"), net.input("query", (5, 8))
    memory = net.branch(
        "memory", ids, layers.Embedding(11, 8, mask_zero=True), on="gpu:0"
    )
    itself = layers.MultiHeadAttention(2, 4, dropout=0.1, name="itself")
    cross = layers.MultiHeadAttention(2, 4, name="cross")
    own = net.branch(
        "own", query, lambda q: itself(q, q, use_causal_mask=True) + q, on="gpu:1"
    )
    seen = net.branch("seen", [own, memory], lambda q, m: cross(q, m) + q, on="gpu:2")
    net.output(net.branch("head", seen, layers.Dense(2), on="gpu:0"))
    return Case(net, [words(6), numbers(5, 8)], numbers(5, 2, seed=1))


# --- losses ------------------------------------------------------------------------


@case
def saturated_softmax() -> Case:
    """A branch ends in a saturated softmax: the loss must see its logits."""
    bias = keras.initializers.Constant([60.0, -60.0, 0.0])
    head = layers.Dense(3, activation="softmax", bias_initializer=bias)
    built = two_branches(layers.Dense(4), layers.Dense(4), head)
    return Case(
        built.net,
        built.x,
        np.ones(SAMPLES, "int32"),
        lambda: {
            "optimizer": keras.optimizers.SGD(0.1),
            "loss": "sparse_categorical_crossentropy",
        },
    )


@case
def saturated_sigmoid() -> Case:
    """The same for a sigmoid that is a layer of its own on another device's cut."""
    head = [layers.Dense(1, bias_initializer=keras.initializers.Constant(60.0))]
    head.append(layers.Activation("sigmoid"))
    built = two_branches(layers.Dense(4), layers.Dense(4), head)
    return Case(
        built.net,
        built.x,
        np.zeros((SAMPLES, 1), "float32"),
        lambda: {"optimizer": "adam", "loss": "binary_crossentropy"},
    )


class Pressed(layers.Layer):
    """A user's own layer that adds a loss."""

    def call(self, inputs: Any) -> Any:
        """Return the inputs, and press them towards zero."""
        self.add_loss(0.3 * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


@case
def losses_inside() -> Case:
    """add_loss, activity and kernel regularizers inside branches, one shared."""
    shared = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")
    left = [shared, Pressed(), layers.Dense(4, bias_regularizer="l2")]
    return two_branches(left, shared)


@case
def regularized_everywhere() -> Case:
    """Penalties of weights on every device meet in one loss."""
    return two_branches(
        layers.Dense(4, kernel_regularizer=keras.regularizers.L1L2(0.1, 0.2)),
        layers.Dense(4, kernel_regularizer=keras.regularizers.OrthogonalRegularizer()),
        layers.Dense(2, kernel_regularizer="l2"),
    )


# --- loops -------------------------------------------------------------------------


@case
def recurrent_loops() -> Case:
    """GRU into LSTM, Bidirectional, TimeDistributed and a loop of operations."""
    net = sn.Net("loops")
    x = net.input("x", (6, 4))
    first = net.branch("gru", x, layers.GRU(5, return_sequences=True), on="gpu:0")
    both_ways = layers.Bidirectional(layers.LSTM(3, return_sequences=True))
    second = net.branch("bi", first, both_ways, on="gpu:1")
    each = net.branch("each", x, layers.TimeDistributed(layers.Dense(6)), on="gpu:2")

    def scan(t: Any) -> Any:
        return keras.ops.map(lambda row: keras.ops.tanh(row), t)

    third = net.branch("scan", each, scan, on="gpu:0")
    joined = net.merge("sum", [second, third], layers.Add())
    net.output(net.branch("last", joined, layers.SimpleRNN(2), on="gpu:1"))
    return Case(net, numbers(6, 4), numbers(2, seed=1))


# --- precision ---------------------------------------------------------------------


def _mixed(policy: str) -> Case:
    dtype = keras.DTypePolicy(policy)
    net = sn.Net("mixed")
    x = net.input("x", (6,))
    a = net.branch(
        "left", x, layers.Dense(5, activation="relu", dtype=dtype), on="gpu:0"
    )
    b = net.branch("right", x, layers.Dense(5, dtype=dtype), on="gpu:1")
    both = net.merge("both", [a, b], layers.Concatenate(dtype=dtype))
    net.output(net.branch("head", both, layers.Dense(2, dtype="float32"), on="gpu:0"))
    return Case(net, numbers(6), numbers(2, seed=1))


@case
def mixed_bfloat16() -> Case:
    """Cuts in bfloat16, weights in float32."""
    return _mixed("mixed_bfloat16")


@case
def mixed_float16() -> Case:
    """Cuts in float16 under a loss scale that doubles on the way."""
    built = _mixed("mixed_float16")
    return Case(
        built.net,
        built.x,
        built.y,
        lambda: {
            "optimizer": keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam(0.01), initial_scale=8.0, dynamic_growth_steps=2
            ),
            "loss": "mse",
        },
    )


# --- training's own arguments ------------------------------------------------------


@case
def sample_weights() -> Case:
    """Weights of samples, and of classes' losses, with weighted metrics."""
    built = two_branches(layers.Dense(4), layers.Dense(4))
    return Case(
        built.net,
        built.x,
        built.y,
        lambda: {"optimizer": "adam", "loss": "mse", "weighted_metrics": ["mae"]},
        weights=np.linspace(0.0, 2.0, SAMPLES).astype("float32"),
    )


@case
def steps_at_once() -> Case:
    """steps_per_execution=2: a loop of steps around everything."""
    built = two_branches([layers.Dense(4), layers.Dropout(0.3)], layers.Dense(4))
    return Case(
        built.net,
        built.x,
        built.y,
        lambda: {"optimizer": "adam", "loss": "mse", "steps_per_execution": 2},
    )


OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd_momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw_everything": lambda: keras.optimizers.AdamW(
        0.01,
        weight_decay=0.1,
        clipnorm=0.5,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=2,
    ),
    "global_clipnorm": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.1),
    "schedule": lambda: keras.optimizers.RMSprop(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5), centered=True
    ),
    "adafactor": lambda: keras.optimizers.Adafactor(0.05),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "lamb": lambda: keras.optimizers.Lamb(0.01),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "adadelta": lambda: keras.optimizers.Adadelta(0.5),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}
