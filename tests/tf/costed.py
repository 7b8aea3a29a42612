"""Layers of every kind, with the shapes that they are costed for."""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers

from splitnet.tf.costs.traced import Traced
from splitnet.tf.costs.value import size_of
from splitnet.tf.internals.keras_api import without_values

ROW, SEQUENCE, TWO = [(4, 10)], [(4, 12, 24)], [(4, 12, 24)] * 2
IMAGE, VIDEO, VOLUME = [(4, 12, 12, 16)], [(4, 3, 8, 8, 4)], [(2, 6, 6, 6, 4)]
LAYERS: dict[str, tuple[Callable[[], Any], list[tuple[int, ...]]]] = {
    "dense": (lambda: layers.Dense(8, activation="relu"), ROW),
    "dense of a sequence": (lambda: layers.Dense(8, activation="gelu"), SEQUENCE),
    "dense softmax": (lambda: layers.Dense(8, activation="softmax"), ROW),
    "dense silu": (lambda: layers.Dense(8, activation="silu", use_bias=False), ROW),
    "einsum dense": (
        lambda: layers.EinsumDense("abc,cde->abde", (None, 3, 8), bias_axes="e"),
        SEQUENCE,
    ),
    "conv1d": (lambda: layers.Conv1D(8, 3), SEQUENCE),
    "conv1d causal": (lambda: layers.Conv1D(8, 3, padding="causal"), SEQUENCE),
    "conv2d": (lambda: layers.Conv2D(8, 3, activation="relu", padding="same"), IMAGE),
    "conv2d strided": (lambda: layers.Conv2D(8, 3, strides=2), IMAGE),
    "conv2d dilated": (lambda: layers.Conv2D(8, 3, dilation_rate=2), IMAGE),
    "conv2d grouped": (lambda: layers.Conv2D(8, 3, groups=4), IMAGE),
    "conv3d": (lambda: layers.Conv3D(8, 3), VOLUME),
    "conv1d transpose": (lambda: layers.Conv1DTranspose(8, 3, strides=2), SEQUENCE),
    "conv2d transpose": (lambda: layers.Conv2DTranspose(8, 3, strides=2), IMAGE),
    "conv3d transpose": (lambda: layers.Conv3DTranspose(8, 3, strides=2), VOLUME),
    "depthwise 1d": (lambda: layers.DepthwiseConv1D(3), SEQUENCE),
    "depthwise": (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), IMAGE),
    "separable 1d": (lambda: layers.SeparableConv1D(8, 3), SEQUENCE),
    "separable": (lambda: layers.SeparableConv2D(8, 3), IMAGE),
    "max pooling": (lambda: layers.MaxPooling2D(), IMAGE),
    "average pooling": (lambda: layers.AveragePooling2D(2), IMAGE),
    "global average": (lambda: layers.GlobalAveragePooling2D(), IMAGE),
    "global maximum": (lambda: layers.GlobalMaxPooling2D(), IMAGE),
    "attention heads": (lambda: layers.MultiHeadAttention(4, 6), TWO),
    "attention heads dropped": (
        lambda: layers.MultiHeadAttention(4, 6, dropout=0.1, value_dim=5),
        TWO,
    ),
    "grouped query": (lambda: layers.GroupQueryAttention(6, 4, 2), TWO),
    "attention": (lambda: layers.Attention(), TWO),
    "attention scaled": (lambda: layers.Attention(use_scale=True, dropout=0.1), TWO),
    "additive attention": (lambda: layers.AdditiveAttention(), TWO),
    "lstm": (lambda: layers.LSTM(16), SEQUENCE),
    "lstm sequences": (
        lambda: layers.LSTM(16, return_sequences=True, use_bias=False),
        SEQUENCE,
    ),
    "lstm dropped": (lambda: layers.LSTM(16, dropout=0.1), SEQUENCE),
    "lstm all dropped": (
        lambda: layers.LSTM(16, dropout=0.1, recurrent_dropout=0.2),
        SEQUENCE,
    ),
    "gru": (lambda: layers.GRU(16), SEQUENCE),
    "gru reset before": (lambda: layers.GRU(16, reset_after=False), SEQUENCE),
    "simple rnn": (lambda: layers.SimpleRNN(16), SEQUENCE),
    "stacked cells": (
        lambda: layers.RNN([layers.LSTMCell(16), layers.GRUCell(8)]),
        SEQUENCE,
    ),
    "conv lstm": (lambda: layers.ConvLSTM2D(5, 3), VIDEO),
    "both directions": (lambda: layers.Bidirectional(layers.LSTM(16)), SEQUENCE),
    "each step": (lambda: layers.TimeDistributed(layers.Conv2D(8, 3)), VIDEO),
    "batch norm": (lambda: layers.BatchNormalization(), IMAGE),
    "group norm": (lambda: layers.GroupNormalization(4), IMAGE),
    "layer norm": (lambda: layers.LayerNormalization(), SEQUENCE),
    "rms norm": (lambda: layers.RMSNormalization(), SEQUENCE),
    "unit norm": (lambda: layers.UnitNormalization(), SEQUENCE),
    "spectral norm": (
        lambda: layers.SpectralNormalization(layers.Dense(8)),
        ROW,
    ),
    "rescaling": (lambda: layers.Rescaling(2.0), IMAGE),
    "relu": (lambda: layers.ReLU(), IMAGE),
    "relu capped at 6": (lambda: layers.ReLU(6), IMAGE),
    "relu capped at 3": (lambda: layers.ReLU(3.0), IMAGE),
    "relu with a slope": (lambda: layers.ReLU(negative_slope=0.1), IMAGE),
    "relu with a threshold": (lambda: layers.ReLU(threshold=0.1), IMAGE),
    "leaky relu": (lambda: layers.LeakyReLU(), IMAGE),
    "elu": (lambda: layers.ELU(), IMAGE),
    "prelu": (lambda: layers.PReLU(), SEQUENCE),
    "softmax": (lambda: layers.Softmax(), ROW),
    "dropout": (lambda: layers.Dropout(0.1), IMAGE),
    "spatial dropout": (lambda: layers.SpatialDropout2D(0.1), IMAGE),
    "gaussian noise": (lambda: layers.GaussianNoise(0.1), IMAGE),
    "gaussian dropout": (lambda: layers.GaussianDropout(0.1), IMAGE),
    "alpha dropout": (lambda: layers.AlphaDropout(0.1), IMAGE),
    "add": (lambda: layers.Add(), TWO),
    "average": (lambda: layers.Average(), TWO),
    "multiply": (lambda: layers.Multiply(), TWO),
    "maximum": (lambda: layers.Maximum(), TWO),
    "concatenate": (lambda: layers.Concatenate(), TWO),
    "dot": (lambda: layers.Dot(axes=(2, 2)), TWO),
    "up sampling": (lambda: layers.UpSampling2D(), IMAGE),
    "bilinear": (lambda: layers.UpSampling2D(interpolation="bilinear"), IMAGE),
    "flatten": (lambda: layers.Flatten(), IMAGE),
    "permute": (lambda: layers.Permute((2, 1)), SEQUENCE),
    "padding": (lambda: layers.ZeroPadding2D(), IMAGE),
}
AS_LIST = (
    layers.Add,
    layers.Average,
    layers.Multiply,
    layers.Maximum,
    layers.Concatenate,
    layers.Dot,
    layers.Attention,
    layers.AdditiveAttention,
)


def built(
    layer: Any, shapes: list[tuple[int, ...]]
) -> tuple[Any, list[Any], list[Any]]:
    """How to call a layer with single tensors, its inputs and its outputs."""

    def call(*tensors: Any, **kwargs: Any) -> Any:
        if isinstance(layer, AS_LIST):
            return layer(list(tensors), **kwargs)
        return layer(*tensors, **kwargs)

    inputs = [keras.KerasTensor(shape) for shape in shapes]
    with without_values():
        outputs = keras.tree.flatten(call(*inputs))
    return call, inputs, outputs


def in_training(call: Callable[..., Any], layer: Any) -> Callable[..., Any]:
    """The call with `training=True` if the layer has such a mode."""
    if "training" not in layer.call.__code__.co_varnames:
        return call
    return lambda *tensors: call(*tensors, training=True)


def kept_bytes(found: Traced, inputs: list[Any], outputs: list[Any]) -> int:
    """All bytes that a gradient graph reads of its forward pass."""
    return (
        found.inner_bytes
        + sum(size_of(inputs[i], 4).bytes for i in found.saves_inputs)
        + sum(size_of(outputs[i], 4).bytes for i in found.saves_outputs)
    )


def small_model() -> keras.Model:
    """Two convolutions, normalised, pooled, flattened."""
    x = entry = keras.Input((12, 12, 3))
    for filters in (4, 8):
        x = layers.Conv2D(filters, 3, padding="same", name=f"conv_{filters}")(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
        x = layers.MaxPooling2D()(x)
    return keras.Model(entry, layers.Dense(5)(layers.Flatten()(x)))
