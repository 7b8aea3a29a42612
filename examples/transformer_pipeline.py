"""A transformer in a pipeline: a block on each GPU, and micro-batches.

It learns to write Python's manual letter by letter (`pydoc_data.topics`, which ships
with Python). While the second GPU computes one micro-batch, the first computes the
next. The chart shows the remaining bubble.
"""

from collections.abc import Callable
from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers

import splitnet as sn

LENGTH, WIDTH, BLOCKS, MICROBATCHES = 48, 48, 2, 4
cluster = sn.local_cluster(stand_in_gpus=2)

text = "".join(topics[name] for name in ("class", "try", "import", "function"))
letters = sorted(dict.fromkeys(text))
codes = np.array([letters.index(letter) for letter in text])
starts = np.arange(0, len(codes) - LENGTH - 1, 16)
windows = np.stack([codes[start : start + LENGTH + 1] for start in starts])
read, following = windows[:, :-1].astype("int32"), windows[:, 1:]


def embed(tokens: keras.KerasTensor) -> keras.KerasTensor:
    """Letters and their places as vectors."""
    places = keras.ops.cumsum(keras.ops.ones_like(tokens), axis=1) - 1
    here = layers.Embedding(LENGTH, WIDTH)(places)
    return layers.Embedding(len(letters), WIDTH)(tokens) + here


def block() -> Callable[[keras.KerasTensor], keras.KerasTensor]:
    """A body of its own for each block: branches of one body share its weights."""

    def body(x: keras.KerasTensor) -> keras.KerasTensor:
        y = layers.LayerNormalization()(x)
        attention = layers.MultiHeadAttention(4, WIDTH // 4, use_bias=False)
        x += attention(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        return x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, activation="gelu")(y))

    return body


net = sn.Net("transformer")
tokens = net.input("tokens", (LENGTH,), dtype="int32")
x = net.branch("embed", tokens, embed, on="gpu:0")
for number in range(BLOCKS):
    x = net.branch(f"block_{number}", x, block(), on=f"gpu:{2 * number // BLOCKS}")
head = [layers.LayerNormalization(), layers.Dense(len(letters), activation="softmax")]
net.output(net.branch("next_letter", x, head, on="gpu:1"))

plan = sn.plan(net, cluster, batch=64)
print(sn.table(plan))
pipelined = sn.simulate(plan, microbatches=MICROBATCHES, schedule="1f1b")
print(sn.chart(pipelined))
sn.draw(plan, "transformer_pipeline.svg")
sn.draw(pipelined, "transformer_pipeline_timeline.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan, microbatches=MICROBATCHES, schedule="1f1b")
model.compile(keras.optimizers.Adam(3e-3), "sparse_categorical_crossentropy")
history = model.fit(read, following, batch_size=64, epochs=1, verbose=2)
guessing = np.log(len(letters))
print(f"loss {history.history['loss'][-1]:.2f}; guessing has {guessing:.2f}")

sn.audit(model, plan, (read[:64], following[:64])).check()
