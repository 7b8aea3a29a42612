"""Keras models that nobody declared, each with a batch and what to train it on.

Shared by `test_transparency` and by `benchmarks/zoo.py`. Each is built so that
something in it could break when it is split: what it is named for.
"""

import functools
from dataclasses import replace

import keras
import numpy as np
from keras import layers, ops, tree

from tests.tf import check
from tests.tf.check import Case

ROWS = 4
MODELS = {}
numbers = functools.partial(check.numbers, count=ROWS)


def model(build):
    def made():
        built = build()
        return built if isinstance(built, Case) else made_up(built)

    MODELS[build.__name__] = made
    return build


def made_up(built, batch=ROWS):
    """A model with a batch for it; a third of whole numbers is 0, as padding is."""
    entry = built.inputs[0] if isinstance(built, keras.Sequential) else built.input
    x = tree.map_structure(lambda t: _input(t, batch), entry)
    y = tree.map_structure(lambda t: np.asarray(_input(t, batch), "float32"), built(x))
    return Case(built, x, y, sizes=(batch, batch))


def _input(tensor, batch):
    shape = (batch, *(6 if extent is None else extent for extent in tensor.shape[1:]))
    kind = keras.backend.standardize_dtype(tensor.dtype)
    draw = np.random.default_rng(len(shape) + sum(shape))
    if kind == "bool":
        return draw.random(shape) < 0.5
    if "int" in kind:
        whole = draw.integers(1, 7, shape)
        if len(shape) > 1:
            whole[..., shape[-1] - shape[-1] // 3 :] = 0
        return whole.astype(kind)
    return draw.standard_normal(shape).astype(kind)


WORDS, LENGTH = 13, 3


@model
def bidirectional_stack():
    """A recurrence both ways under a mask, read by one that is given its state."""
    ids, h = keras.Input((LENGTH,), dtype="int32"), keras.Input((4,))
    x = layers.Embedding(WORDS, 5, mask_zero=True)(ids)
    x = layers.Bidirectional(layers.SimpleRNN(4, return_sequences=True))(x)
    end, state = layers.SimpleRNN(4, return_state=True)(x, initial_state=h)
    return keras.Model([ids, h], layers.Dense(2)(layers.Concatenate()([end, state])))


@model
def stateful_recurrence():
    """States that stay from batch to batch, of a stack of cells."""
    x = keras.Input(batch_shape=(ROWS, LENGTH, 4))
    cells = [layers.LSTMCell(5), layers.SimpleRNNCell(3)]
    made = layers.RNN(cells, stateful=True)(layers.Dense(6)(x))
    return keras.Model(x, layers.Dense(2)(made))


@model
def prepared_columns():
    """Columns prepared in many ways, strings among them; all ends have names."""
    city = keras.Input((1,), name="city", dtype="string")
    age = keras.Input((1,), name="age")
    look_up = layers.StringLookup(output_mode="tf_idf")
    look_up.adapt(["ulm", "ulm", "bad\nems"])
    scale = layers.Normalization(axis=-1)
    scale.adapt(np.array([[20.0], [40.0], [61.0]]))
    bins = layers.Discretization(bin_boundaries=[18.0, 40.0, 65.0])
    coded = layers.CategoryEncoding(4, output_mode="one_hot")(bins(age))
    hashed = layers.Flatten()(layers.Embedding(8, 3)(layers.Hashing(8)(city)))
    columns = [look_up(city), scale(age), coded, hashed]
    x = layers.Dense(8, activation="relu")(layers.Concatenate()(columns))
    outputs = {"stays": layers.Dense(1, activation="sigmoid", name="stays")(x)}
    outputs["spends"] = layers.Dense(1, name="spends")(x)
    batch = {"city": np.array([["ulm"], ["bad\nems"], ["rom"], ["ulm"]], object)}
    batch["age"] = np.array([[17.0], [33.0], [50.0], [80.0]], "float32")
    y = {"stays": np.array([[0.0], [1], [1], [0]]), "spends": numbers(1)}
    loss = {"stays": "binary_crossentropy", "spends": "mae"}
    made = keras.Model({"city": city, "age": age}, outputs)
    return Case(made, batch, y, loss, sizes=(ROWS, ROWS))


class Loops(layers.Layer):
    """A loop while something holds, a scan, a choice and a map."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, inputs):
        def once(i, x):
            return i + 1, ops.tanh(x @ self.kernel)

        _, x = ops.while_loop(lambda i, x: i < 3, once, (0, inputs))
        total, _ = ops.scan(lambda acc, row: (acc + ops.sin(row), acc), x[0] * 0.0, x)
        x = ops.cond(ops.sum(total) > 0, lambda: x * 2.0, lambda: x @ self.kernel)
        return total + ops.vectorized_map(lambda row: row * ops.sum(row), x)


@model
def control_flow():
    """Loops that read weights, before and after ordinary layers."""
    x = keras.Input((4,))
    built = made_up(keras.Model(x, layers.Dense(4)(Loops()(layers.Dense(4)(x)))))
    return replace(built, compilation={"run_eagerly": False})


class Pair(layers.Layer):
    """Several inputs, by place and by name, an argument, and two outputs by name."""

    def __init__(self, **options):
        super().__init__(**options)
        self.left, self.right = layers.Dense(5), layers.Dense(5)

    def build(self, a_shape, b_shape):
        self.left.build(a_shape)
        self.right.build(b_shape)

    def call(self, a, b, scale=1.0, training=False):
        left, right = self.left(a), self.right(b)
        factor = scale * (2.0 if training else 1.0)
        return {"sum": factor * (left + right), "apart": left - right}

    def compute_output_shape(self, a_shape, b_shape):
        return {"sum": (*a_shape[:-1], 5), "apart": (*a_shape[:-1], 5)}


@model
def layers_with_several_inputs():
    """A layer of the user's with names, numbers and dicts in its calls."""
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    first = Pair()(a, b=b, scale=0.5)
    pair = Pair()
    one = pair(first["sum"], first["apart"])
    two = pair(first["apart"], first["sum"], scale=3.0)
    made = layers.Subtract()([one["sum"], two["apart"]])
    pair.left.enable_lora(2)
    return keras.Model({"a": a, "b": b}, {"made": made, "first": first["sum"]})


class Noise(layers.Layer):
    """Noise in training, from a generator that others may draw from too, or Keras'."""

    def __init__(self, generator, **options):
        super().__init__(**options)
        self.generator = generator

    def call(self, inputs, training=False):
        given = {"shape": ops.shape(inputs), "seed": self.generator}
        return inputs + 0.1 * keras.random.normal(**given) if training else inputs

    def get_config(self):
        """With the generator's own configuration, which does not say who shares it."""
        kept = keras.saving.serialize_keras_object(self.generator)
        return super().get_config() | {"generator": kept}

    @classmethod
    def from_config(cls, config):
        made = keras.saving.deserialize_keras_object(config.pop("generator"))
        return cls(made, **config)


class Held(layers.Layer):
    """The sum of layers in a tuple; its configuration has them as they are."""

    def __init__(self, inner, **options):
        super().__init__(**options)
        self.inner = tuple(inner)

    def call(self, x):
        return sum(one(x) for one in self.inner)

    def get_config(self):
        return super().get_config() | {"inner": self.inner}


@model
def shared_inside():
    """Layers and models, called and held, frozen in part; layers that share a seed."""
    x, tied, seed = keras.Input((4,)), layers.Dense(4), keras.random.SeedGenerator(1)
    own = [layers.Dense(4), layers.BatchNormalization(trainable=False)]
    body = keras.Model(x, layers.Dense(4)(layers.BatchNormalization()(x)))
    body.trainable, body.layers[-1].trainable = False, True
    y = layers.RepeatVector(1)(Noise(seed)(tied(x)))
    for inner in (body, tied, body):
        y = layers.TimeDistributed(inner)(y)
    y = Held([keras.Sequential(own), body])(layers.Flatten()(y))
    return keras.Model(x, layers.Dense(2)(Noise(None)(Noise(seed)(y) + body(y))))


@model
def outputs_along_the_way():
    """Outputs from the middle, one twice, and one that is the input itself."""
    x = keras.Input((4,))
    a = layers.Dense(4, activation="sigmoid", name="a")(x)
    c = layers.Dense(2, name="c", trainable=False)(layers.Dense(4, layers.PReLU())(a))
    return keras.Model(x, [x, a, c, a, ops.sum(c, axis=-1, keepdims=True)])


@model
def numbers_of_other_kinds():
    """Half precision, complex spectra, unsigned pictures, constants, and indices."""
    wave = keras.Input((8,))
    picture = keras.Input((4, 4, 1), dtype="uint8")
    real, imaginary = ops.rfft(wave)
    loud = ops.sqrt(ops.square(real) + ops.square(imaginary) + 1e-3)
    half = layers.Dense(6, dtype="mixed_bfloat16")(loud)
    seen = layers.Flatten()(ops.cast(picture, "float32") / 255.0)
    both = layers.Concatenate()([ops.cast(half, "float32"), seen, 3.0 - loud])
    clipped = ops.clip(layers.Dense(5)(both), -1.0, np.float32(0.7))
    loudest = ops.one_hot(ops.argmax(ops.stop_gradient(loud), axis=1), 5)
    mixed = ops.einsum("bw,bw->bw", ops.where(clipped > 0, clipped, 0.1), loudest)
    built = made_up(keras.Model([wave, picture], layers.Dense(2)(mixed)))
    # Graphs and eager steps round half precision at other places.
    return replace(built, compilation={"run_eagerly": False})


@model
def said_in_the_call():
    """`training=` in the call, a mask of booleans as an input, and nests of outputs."""
    steps, mask = keras.Input((5, 4)), keras.Input((5,), dtype="bool")
    always = layers.Dropout(0.5, seed=3)(steps, training=True)
    norm = layers.BatchNormalization()(always, training=False)
    told = layers.GlobalAveragePooling1D()(norm, mask=mask)
    one, two = ops.split(layers.Dense(4)(told), 2, axis=-1)
    made = keras.Model([steps, mask], {"list": [one, two], "sum": (one + two,)})
    x = [numbers(5, 4), numbers(5) > -0.5]
    y = {"list": [numbers(2), numbers(2) + 1], "sum": (numbers(2) - 1,)}
    return Case(made, x, y, sizes=(ROWS, ROWS))


class Centred(layers.Layer):
    """Takes off a mean, as it was and as each call in training moves it."""

    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False}
        self.mean = self.add_weight(shape=(shape[-1],), **options)

    def call(self, x, training=False):
        before = 1.0 * self.mean
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(x, 0))
        return x - (before + self.mean) / 2.0


@model
def state_that_is_away():
    """No gradient flows through a state; a weight that is set has that of its value."""
    first, centred = keras.Input((6,)), Centred(name="c")
    scaled = layers.SpectralNormalization(layers.Dense(5), name="d")
    found = scaled(centred(layers.Dense(5)(first)))
    built = keras.Model(first, layers.Dense(2, name="e")(scaled(centred(found))))
    return replace(made_up(built), pins={"c": "gpu:1", "c@2": "gpu:0", "d": "gpu:2"})
