"""Models that read sequences: attention, recurrence, masks and strings."""

from typing import Any

import keras
import numpy as np
from keras import layers

from tests.tf.models.subject import BATCH, Subject, model, numbers

WORDS, LENGTH, WIDTH = 13, 6, 8


class Positions(layers.Layer):
    """A learned vector for each place, added to what stands there; keeps masks."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.supports_masking = True

    def build(self, shape: Any) -> None:
        """One vector for each place of the given length."""
        self.place = self.add_weight(shape=shape[1:], name="place")

    def call(self, inputs: Any) -> Any:
        """Add the vectors."""
        return inputs + self.place


def _block(x: Any, memory: Any = None, *, causal: bool = False) -> Any:
    own = layers.MultiHeadAttention(2, WIDTH // 2, dropout=0.1)
    x = layers.LayerNormalization()(x + own(x, x, use_causal_mask=causal))
    if memory is not None:
        cross = layers.MultiHeadAttention(2, WIDTH // 2)
        x = layers.LayerNormalization()(x + cross(x, memory))
    inner = layers.Dense(2 * WIDTH, activation="gelu")(x)
    inner = layers.Dropout(0.1)(layers.Dense(WIDTH)(inner))
    return layers.LayerNormalization()(x + inner)


def _embedded(name: str) -> tuple[Any, Any]:
    ids = keras.Input((LENGTH,), dtype="int32", name=name)
    rows = layers.Embedding(WORDS, WIDTH, mask_zero=True)(ids)
    return ids, Positions()(rows)


@model
def transformer_encoder() -> Any:
    """Masked self-attention, three blocks, and a mean that leaves padding out."""
    ids, x = _embedded("ids")
    for _ in range(3):
        x = _block(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(ids, layers.Dense(3, activation="softmax")(x))


@model
def transformer_decoder() -> Any:
    """Causal attention, and the embedding read again, transposed, as the output."""
    ids = keras.Input((LENGTH,), dtype="int32")
    table = layers.ReversibleEmbedding(WORDS, WIDTH)
    x = Positions()(table(ids))
    for _ in range(3):
        x = _block(x, causal=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    said, next_ = np.arange(2 * BATCH * LENGTH).reshape(2, BATCH, LENGTH) % WORDS
    return Subject(keras.Model(ids, table(x, reverse=True)), said, next_, loss)


@model
def transformer_encoder_decoder() -> Any:
    """Cross-attention into a masked memory; inputs by name."""
    source, memory = _embedded("source")
    target, x = _embedded("target")
    for _ in range(2):
        memory = _block(memory)
    for _ in range(2):
        x = _block(x, memory, causal=True)
    made = layers.Dense(WORDS)(x)
    return keras.Model({"source": source, "target": target}, {"next": made})


@model
def bidirectional_stack() -> Any:
    """LSTM and GRU both ways under one mask, their states handed to a third."""
    ids = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 5, mask_zero=True)(ids)
    x = layers.Bidirectional(layers.LSTM(4, return_sequences=True))(x)
    x = layers.Bidirectional(layers.GRU(4, return_sequences=True), merge_mode="sum")(x)
    whole, h, c = layers.LSTM(4, return_sequences=True, return_state=True)(x)
    again = layers.LSTM(4)(whole, initial_state=[h, c])
    return keras.Model(ids, layers.Dense(2)(layers.Concatenate()([again, h])))


@model
def stateful_recurrence() -> Any:
    """States that stay from batch to batch, of a cell and of a stack of cells."""
    x = keras.Input(batch_shape=(BATCH, LENGTH, 4))
    cells = [layers.LSTMCell(5), layers.GRUCell(3)]
    one = layers.GRU(6, stateful=True, return_sequences=True)(x)
    two = layers.RNN(cells, stateful=True)(one)
    return keras.Model(x, layers.Dense(2)(two))


@model
def time_distributed() -> Any:
    """A convolutional model applied to every frame, and a recurrence over them."""
    frame = keras.Sequential(
        [
            layers.Input((6, 6, 1)),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.GlobalMaxPooling2D(),
        ]
    )
    x = keras.Input((5, 6, 6, 1))
    seen = layers.TimeDistributed(frame)(x)
    seen = layers.TimeDistributed(layers.Dense(5, activation="relu"))(seen)
    seen = layers.Masking()(seen)
    return keras.Model(x, layers.Dense(2)(layers.SimpleRNN(6)(seen)))


@model
def convolutional_recurrence() -> Any:
    """ConvLSTM over frames, and another that hands its states on."""
    x = keras.Input((4, 6, 6, 2))
    y = layers.ConvLSTM2D(3, 3, padding="same", return_sequences=True)(x)
    y = layers.BatchNormalization()(y)
    y = layers.ConvLSTM2D(2, 3, padding="same")(y)
    return keras.Model(x, layers.Conv2D(1, 3, activation="sigmoid")(y))


@model
def words_from_strings() -> Any:
    """Strings to ids on the CPU, ids to a mask, and a convolution over both."""
    vectorize = layers.TextVectorization(max_tokens=9, output_sequence_length=5)
    vectorize.adapt(["red green blue", "green blue", "red"])
    said = keras.Input((1,), dtype="string")
    ids = vectorize(said)
    known = keras.ops.cast(keras.ops.not_equal(ids, 1), "float32")
    rows = layers.Embedding(9, 6)(ids) * keras.ops.expand_dims(known, -1)
    mixed = layers.SeparableConv1D(7, 2, activation="relu")(rows)
    made = layers.Dense(1, activation="sigmoid")(layers.GlobalMaxPooling1D()(mixed))
    x = np.array([["red blue"], ["green"], ["blue red pink"], [""]], object)
    return Subject(keras.Model(said, made), x, numbers(1) > 0)


@model
def mixture_of_experts() -> Any:
    """The best two of four experts by the gate's weights; their outputs by einsum."""
    x = keras.Input((LENGTH, WIDTH))
    gate = layers.Dense(4, activation="softmax")(x)
    best, which = keras.ops.top_k(gate, 2)
    chosen = keras.ops.one_hot(which, 4) * keras.ops.expand_dims(best, -1)
    share = keras.ops.sum(chosen, axis=-2)
    experts = [
        layers.Dense(WIDTH)(layers.Dense(2 * WIDTH, activation="relu")(x))
        for _ in range(4)
    ]
    stacked = keras.ops.stack(experts, axis=2)
    mixed = keras.ops.einsum("bte,bted->btd", share, stacked)
    return keras.Model(x, layers.Dense(3)(x + mixed))
