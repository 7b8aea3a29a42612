"""Are two passages about the same thing? A siamese LSTM, one branch on each GPU.

The passages come from Python's own manual (`pydoc_data.topics`, which ships with
Python), twelve topics of it. One encoder with one set of weights is called by both
branches; the table says what sharing costs. The manual is
short: accuracy on held-out pairs is about two in three.
"""

from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers

import splitnet as sn

WORDS = 24  # in a passage
cluster = sn.local_cluster(stand_in_gpus=2)  # without the argument: the real GPUs

longest = sorted(topics.values(), key=len)[-12:]
passages, about = [], []
for number, text in enumerate(longest):
    words = text.split()
    for start in range(0, len(words) - WORDS, WORDS):
        passages.append(" ".join(words[start : start + WORDS]))
        about.append(number)
vectorize = layers.TextVectorization(8000, output_sequence_length=WORDS)
vectorize.adapt(passages)
tokens, about = np.array(vectorize(passages)), np.array(about)

draw = np.random.default_rng(0)
order = draw.permutation(len(tokens))
kept, apart = order[:-300], order[-300:]  # no passage is in both


def pairs(rows: np.ndarray, count: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Pairs of passages, about half of them on the same topic, and whether they are."""
    first = draw.choice(rows, count)
    second = draw.choice(rows, count)
    for i in np.flatnonzero(draw.random(count) < 0.45):
        second[i] = draw.choice(rows[about[rows] == about[first[i]]])
    same = (about[first] == about[second]).astype("float32")[:, None]
    return [tokens[first], tokens[second]], same


net = sn.Net("siamese_text")
one = net.input("one", (WORDS,), dtype="int32")
other = net.input("other", (WORDS,), dtype="int32")
encoder = [layers.Embedding(8000, 64), layers.LSTM(64)]  # once, for both branches
left = net.branch("left", one, encoder, on="gpu:0")
right = net.branch("right", other, encoder, on="gpu:1")
apart_by = net.merge("apart_by", [left, right], lambda two: abs(two[0] - two[1]))
same = layers.Dense(1, activation="sigmoid")
net.output(net.branch("same", apart_by, same, on="cpu"))

plan = sn.plan(net, cluster, batch=256)
print(sn.table(plan))
print(plan.verdict)  # is it worth it? not for layers this small, and it says so
sn.draw(plan, "siamese_text.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
model.compile(keras.optimizers.Adam(3e-3), "binary_crossentropy", metrics=["accuracy"])
inputs, labels = pairs(kept, 5_120)
model.fit(
    inputs,
    labels,
    batch_size=256,
    epochs=3,
    verbose=2,
    validation_data=pairs(apart, 2000),
)

batch = ([part[:256] for part in inputs], labels[:256])
sn.audit(model, plan, batch).check()
