"""Split layers: parts of one layer on several devices, and the whole layer again."""

import keras
import numpy as np
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import assert_near, emitted, numbers, stack, step

THREE = ["gpu:0", "gpu:1", "gpu:2"]


def declared(layer, shape):
    """A net of one layer that is cut, and a head."""
    net = sn.Net("wide")
    x = net.input("x", shape)
    given = [x, x] if "Attention" in type(layer).__name__ else x
    cut = net.split("wide", given, layer, on=THREE)
    flat = net.branch("flat", cut, layers.Flatten(), on="cpu")
    net.output(net.branch("head", flat, layers.Dense(2, name="head"), on="cpu"))
    return net


def split(net, cluster):
    return emitted(net, cluster, compiled=(keras.optimizers.Adam(0.01), "mse"), batch=4)


def test_a_split_model_is_saved_and_loaded_as_the_whole_layer(cluster, tmp_path):
    """Files hold whole weights and slots; slices read them back; training goes on."""
    net = declared(layers.Dense(7, name="broad"), (6,))
    cut, other, bare = split(net, cluster), split(net, cluster), emitted(net, cluster)
    x, y = numbers(6, count=4), numbers(2, count=4)

    def losses(model):
        return [float(step(model, x, y)) for _ in range(2)]

    losses(cut)
    cut.save(tmp_path / "whole.keras")
    cut.save_weights(tmp_path / "whole.weights.h5")
    loaded = keras.models.load_model(tmp_path / "whole.keras")
    other.optimizer.build(other.trainable_variables)
    for model in (other, bare):  # bare is not compiled
        model.load_weights(tmp_path / "whole.weights.h5")
    assert type(loaded.get_layer("broad")) is layers.Dense
    np.testing.assert_allclose([cut(x), bare(x)], [loaded(x)] * 2, atol=1e-6)
    after = losses(cut)
    assert losses(loaded) == pytest.approx(after, rel=1e-5)
    assert losses(other) == pytest.approx(after, rel=1e-5)


def relu(x):
    return x / (1.0 + keras.ops.sum(keras.ops.abs(x), -1, keepdims=True))


@pytest.mark.parametrize("activation", ["softmax", relu])
def test_a_split_of_a_trained_layer_begins_with_its_values(activation, cluster):
    """A built layer, such as one of a loaded model, is cut with its weights."""
    trained = layers.Dense(8, activation, name="trained")
    trained.build((None, 6))
    model = split(declared(trained, (6,)), cluster)
    kernels = [model.get_layer(f"trained_slice{i}").kernel for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(kernels, 1), trained.kernel)
    x = numbers(6, count=4)
    head = sn.unplace(model).get_layer("head")
    np.testing.assert_allclose(model(x), head(trained(x)), atol=1e-6)


def test_a_trained_model_is_cut_with_the_state_of_its_optimizer(cluster):
    """Slots follow their weights, which slices put in another order; so do scales."""
    seen = keras.Input((6,))
    each = [layers.Dense(4, name=name)(seen) for name in ("low", "wide", "high")]
    mine = keras.Model(seen, layers.Dense(2, name="head")(layers.Add()(each)))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), 2.0)
    mine.compile(scaled, "mse")
    mine.train_on_batch(numbers(6), numbers(2))
    scaled.dynamic_scale.assign(4.0)
    how = {"objective": "latency", "strategy": "auto", "split": {"wide": 2}}
    cut = sn.unplace(emitted(mine, cluster, **how)).optimizer
    assert_near(cut.variables, scaled.variables)


def test_a_split_model_has_the_paths_and_frozen_weights_of_the_whole(cluster):
    """And what does not decay, in slices and when they are one layer again."""
    inner = [keras.Input((6,)), layers.Dense(6, name="deep")]
    attends, x = layers.MultiHeadAttention(2, 3, name="sees"), keras.Input((6,))
    wide = layers.Dense(8, name="wide")
    made = layers.Reshape((4, 2))(wide(keras.Sequential(inner, name="encoder")(x)))
    plain = keras.Model(x, layers.Dense(2)(layers.Flatten()(attends(made, made))))
    wide.kernel.trainable = attends.query_dense.trainable = False
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["deep"])
    plain.compile(optimizer, "mse")
    how = {"objective": "latency", "strategy": "auto", "split": {"wide": 2, "sees": 2}}
    cut = emitted(plain, cluster, **how)
    for model in (plain, cut, whole := sn.unplace(cut)):
        model.fit(numbers(6), numbers(2), epochs=2, shuffle=False, verbose=0)
    assert "encoder/deep/kernel" in [v.path for v in cut.trainable_variables]
    for one, other in zip(plain.variables, whole.variables, strict=True):
        assert (one.path, one.trainable) == (other.path, other.trainable)
    assert_near(whole.get_weights(), plain.get_weights())
    assert_near(sn.unplace(cut).get_weights(), plain.get_weights())


def dense(*args, **options):
    """A Dense layer of nine units, made when it is called."""
    return lambda: layers.Dense(9, *args, **options)


ORTHOGONAL = "orthogonal_regularizer"
NORM = keras.constraints.UnitNorm(-1)


@pytest.mark.parametrize(
    ("make", "rank", "words"),
    [
        (lambda: layers.LSTM(9), 1, "cannot be cut along its outputs"),
        (lambda: layers.MultiHeadAttention(2, 4), 2, "2 heads, which cannot be"),
        (dense(kernel_regularizer=ORTHOGONAL), 1, "Regularizer of 'kernel' looks"),
        (dense(kernel_constraint=NORM), 1, "UnitNorm of 'kernel' looks along axis 1"),
        (lambda: layers.Conv2D(6, 3, groups=2), 3, "has groups"),
        (lambda: layers.EinsumDense("abc,cb->ab", 6), 2, "no axis of the output"),
        (lambda: dense(layers.PReLU())(), 1, "an activation with weights"),
        (dense(dtype="int8_from_float32"), 1, "has quantized weights"),
        (dense(activity_regularizer="l2"), 1, "has an activity_regularizer"),
    ],
)
def test_layers_that_cannot_be_split_say_why(make, rank, words):
    with pytest.raises(sn.DeclarationError, match=words):
        sn.read(declared(make(), (6, 6, 2)[-rank:]))


@pytest.mark.parametrize("kind", ["branch", "split"])
def test_attention_without_its_inputs_says_what_it_reads(kind):
    """One tensor is not enough, and Keras' own words do not say so."""
    net = sn.Net("alone")
    x = net.input("x", (6, 4))
    on = {"on": ["gpu:0", "gpu:1"]} if kind == "split" else {}
    net.output(getattr(net, kind)("see", x, layers.MultiHeadAttention(2, 4), **on))
    with pytest.raises(sn.DeclarationError, match=r"It reads \[query, value\]"):
        sn.read(net)


@pytest.mark.parametrize("wrap", [lambda la: [layers.Dense(6), la], stack, None])
def test_a_layer_that_is_cut_cannot_be_shared_as_well(wrap):
    """Its weights would be two sets, though the declaration says one."""
    net = sn.Net("shared")
    x = net.input("x", (6,))
    layer = layers.Dense(6, name="low")
    cut = net.split("cut", x, layer, on=THREE[:2])
    if wrap:
        other = net.branch("other", x, wrap(layer))
    else:
        other = net.split("other", x, layer, on=THREE[1:])
    net.output(net.merge("sum", [cut, other], layers.Add()))
    words = "'other': layer 'low' is in split 'cut' as well"
    with pytest.raises(sn.DeclarationError, match=words):
        sn.read(net)


def test_an_optimizer_of_whole_matrices_is_warned_of(cluster):
    model = split(declared(layers.Dense(9, name="low"), (6,)), cluster)
    with pytest.warns(UserWarning, match="clipnorm looks at each slice of low by its"):
        model.compile(keras.optimizers.SGD(clipnorm=1.0), "mse")
    with pytest.warns(UserWarning, match="Lamb looks at each slice of low"):
        model.compile(keras.optimizers.Lamb(), "mse")
