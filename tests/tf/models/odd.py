"""Models that are hard to take apart: operations, control flow, nesting, sharing."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

from tests.tf.models.subject import Subject, model, numbers


class Messages(layers.Layer):
    """One round of messages along edges: gather at the source, sum at the target."""

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width
        self.dense = layers.Dense(width)

    def build(self, nodes_shape: Any, edges_shape: Any) -> None:
        """The dense layer sees both ends of an edge."""
        self.dense.build((None, 2 * nodes_shape[-1]))

    def call(self, nodes: Any, edges: Any) -> Any:
        """Nodes (n, w) and edges (e, 2) to nodes (n, width)."""
        ends = [ops.take(nodes, edges[:, i], axis=0) for i in (0, 1)]
        said = ops.relu(self.dense(ops.concatenate(ends, axis=-1)))
        heard = ops.segment_sum(said, edges[:, 1], num_segments=ops.shape(nodes)[0])
        return heard + nodes if nodes.shape[-1] == self.width else heard

    def compute_output_shape(self, nodes_shape: Any, edges_shape: Any) -> Any:
        """As many nodes as came."""
        return (nodes_shape[0], self.width)

    def get_config(self) -> dict[str, Any]:
        """With the width."""
        return super().get_config() | {"width": self.width}


@model
def graph_network() -> Any:
    """Gather and scatter in a layer with two inputs, three times over."""
    nodes = keras.Input((5,), name="nodes")
    edges = keras.Input((2,), dtype="int32", name="edges")
    x = layers.Dense(6)(nodes)
    for _ in range(3):
        x = Messages(6)(x, edges)
    pairs = np.array([[0, 1], [1, 2], [2, 3], [3, 0]], "int32")
    return Subject(
        keras.Model([nodes, edges], layers.Dense(2)(x)),
        [numbers(5), pairs],
        numbers(2),
    )


@model
def gathered_by_operations() -> Any:
    """The same without a layer of its own: raw operations, integers and slices."""
    rows = keras.Input((7, 4))
    which = keras.Input((3,), dtype="int32")
    taken = ops.take_along_axis(rows, ops.expand_dims(which, -1), axis=1)
    best = ops.argmax(ops.stop_gradient(rows), axis=1)
    marked = ops.one_hot(best, 7)
    kept = ops.where(rows > 0, rows, 0.1 * rows)
    mixed = ops.einsum("btw,bwt->bw", kept, marked)
    whole = layers.Concatenate()([layers.Flatten()(taken), mixed, rows[:, -1]])
    return keras.Model([rows, which], layers.Dense(3)(whole))


class Loops(layers.Layer):
    """A loop while something holds, a scan, a choice and a map, in one layer."""

    def build(self, shape: Any) -> None:
        """One matrix, read in every iteration."""
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, inputs: Any) -> Any:
        """Four kinds of control flow, one after the other."""
        _, x = ops.while_loop(
            lambda i, x: i < 3,
            lambda i, x: (i + 1, ops.tanh(x @ self.kernel)),
            (0, inputs),
        )
        total, _ = ops.scan(
            lambda carry, row: (carry + ops.sin(row), carry), x[0] * 0.0, x
        )
        x = ops.cond(ops.sum(total) > 0, lambda: x * 2.0, lambda: x @ self.kernel)
        x = ops.vectorized_map(lambda row: row * ops.sum(row), x)
        return x + ops.fori_loop(0, 2, lambda i, y: y * 0.5, total)


@model
def control_flow() -> Any:
    """Loops that read weights, before and after ordinary layers."""
    x = keras.Input((4,))
    y = Loops()(layers.Dense(4)(x))
    y = ops.map(ops.tanh, layers.Dense(4, activation="relu")(y))
    return keras.Model(x, Loops()(y))


class Pair(layers.Layer):
    """Several inputs, by place and by name, an argument, and two outputs by name."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.left, self.right = layers.Dense(5), layers.Dense(5)

    def build(self, a_shape: Any, b_shape: Any) -> None:
        """A dense layer for each."""
        self.left.build(a_shape)
        self.right.build(b_shape)

    def call(self, a: Any, b: Any, scale: float = 1.0, training: bool = False) -> Any:
        """A sum and a difference; the sum is scaled, more so in training."""
        left, right = self.left(a), self.right(b)
        factor = scale * (2.0 if training else 1.0)
        return {"sum": factor * (left + right), "apart": left - right}

    def compute_output_shape(self, a_shape: Any, b_shape: Any) -> Any:
        """Both as wide as the dense layers."""
        return {"sum": (*a_shape[:-1], 5), "apart": (*a_shape[:-1], 5)}


@model
def layers_with_several_inputs() -> Any:
    """A layer of the user's with names, numbers and dicts in its calls."""
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    first = Pair()(a, b=b, scale=0.5)
    pair = Pair()
    one = pair(first["sum"], first["apart"])
    two = pair(first["apart"], first["sum"], scale=3.0)
    made = layers.Subtract()([one["sum"], two["apart"]])
    return keras.Model({"a": a, "b": b}, {"made": made, "first": first["sum"]})


@model
def nested_models() -> Any:
    """Models in models in models, one of them shared, with dicts between them."""
    x = keras.Input((4,))
    inner = keras.Model(
        x, {"up": layers.Dense(6, activation="relu")(x), "same": x * 2.0}
    )
    middle_in = keras.Input((4,))
    parts = inner(middle_in)
    joined = layers.Concatenate()([parts["up"], parts["same"]])
    middle = keras.Model(middle_in, layers.BatchNormalization()(joined))
    tail = keras.Sequential([layers.Dense(4), layers.Dropout(0.2, seed=2)])
    a, b = keras.Input((4,)), keras.Input((4,))
    left, right = tail(middle(a)), middle(tail(b @ ops.ones((4, 10))))
    return keras.Model([a, b], [left, {"right": right}])


@model
def shared_everywhere() -> Any:
    """One layer called by everything: its weights tie the whole model together."""
    tied = layers.Dense(5, activation="tanh", kernel_regularizer="l2")
    norm = layers.LayerNormalization()
    x = a = keras.Input((5,))
    for _ in range(6):
        x = norm(tied(x) + x)
    shared = layers.Dense(5, use_bias=False)
    side = shared(layers.ActivityRegularization(l2=0.1)(tied(a)))
    return keras.Model(a, layers.Add()([shared(x), side]))


class Noise(layers.Layer):
    """Noise from a generator that others may draw from too."""

    def __init__(self, generator: Any, **options: Any) -> None:
        super().__init__(**options)
        self.generator = generator

    def call(self, inputs: Any) -> Any:
        """Add a draw."""
        drawn = keras.random.normal(ops.shape(inputs), seed=self.generator)
        return inputs + 0.1 * drawn

    def get_config(self) -> dict[str, Any]:
        """With the generator's own configuration, which does not say who shares it."""
        kept = keras.saving.serialize_keras_object(self.generator)
        return super().get_config() | {"generator": kept}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """A generator is made anew."""
        made = keras.saving.deserialize_keras_object(config.pop("generator"))
        return cls(made, **config)


@model
def shared_inside() -> Any:
    """A layer that is called and wrapped, and two layers that draw from one seed."""
    x, rows = keras.Input((5,)), keras.Input((3, 5))
    tied = layers.Dense(5, activation="tanh")
    generator = keras.random.SeedGenerator(11)
    left = Noise(generator)(tied(x))
    right = layers.TimeDistributed(tied)(rows)
    right = Noise(generator)(layers.GlobalAveragePooling1D()(right))
    return keras.Model([x, rows], layers.Dense(2)(left * right))


@model
def many_branches() -> Any:
    """Eight branches of unlike weight, that meet in twos and then all."""
    x = keras.Input((8,))
    branches = [
        layers.Dense(4)(layers.Dense(4 * (i + 1), activation="relu")(x))
        for i in range(8)
    ]
    pairs = [layers.Multiply()(branches[i : i + 2]) for i in range(0, 8, 2)]
    return keras.Model(x, layers.Average()([*pairs, *branches]))


@model
def densely_connected() -> Any:
    """Every call reads all that went before: no tensor stands alone anywhere."""
    seen = [keras.Input((6,))]
    for _ in range(7):
        whole = layers.Concatenate()(seen) if len(seen) > 1 else seen[0]
        seen.append(layers.Dense(3, activation="relu")(whole))
    return keras.Model(seen[0], layers.Concatenate()(seen))


@model
def outputs_along_the_way() -> Any:
    """Outputs from the middle, one twice, and one that is the input itself."""
    x = keras.Input((4,))
    a = layers.Dense(4, activation="sigmoid", name="a")(x)
    b = layers.Dense(4, name="b")(a)
    c = layers.Dense(2, name="c", trainable=False)(b)
    return keras.Model(x, [x, a, c, a, ops.sum(c, axis=-1, keepdims=True)])


@model
def numbers_of_other_kinds() -> Any:
    """Half precision, complex spectra, unsigned pictures and Python constants."""
    wave = keras.Input((8,))
    picture = keras.Input((4, 4, 1), dtype="uint8")
    real, imaginary = ops.rfft(wave)
    loud = ops.sqrt(ops.square(real) + ops.square(imaginary) + 1e-3)
    half = layers.Dense(6, dtype="mixed_bfloat16")(loud)
    seen = layers.Flatten()(ops.cast(picture, "float32") / 255.0)
    both = layers.Concatenate()([ops.cast(half, "float32"), seen, 3.0 - loud])
    clipped = ops.clip(layers.Dense(5)(both), -1.0, np.float32(0.7))
    return keras.Model([wave, picture], layers.Dense(2)(clipped))


@model
def sequential() -> Any:
    """The plainest of all, with a frozen layer and an augmentation before it."""
    stack = [
        layers.Input((6,)),
        layers.GaussianDropout(0.2, seed=1),
        layers.Dense(8, activation="relu"),
        layers.Dense(8, activation="relu", trainable=False),
        layers.EinsumDense("ab,bc->ac", output_shape=5, bias_axes="c"),
        layers.Reshape((5, 1)),
        layers.Permute((2, 1)),
        layers.Flatten(),
        layers.RepeatVector(2),
        layers.LSTM(3, unroll=True),
    ]
    return keras.Sequential(stack)
