"""A table too large for a GPU stays on the CPU; the dense layers run on two GPUs.

The table has a row for each of 200,000 hashes of word pairs, and only the rows that a
batch looks up travel. Two branches read it and guess which of twelve topics of Python's
manual (`pydoc_data.topics`, which ships with Python) a passage is from.
"""

import zlib
from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers

import splitnet as sn

ROWS, WIDTH, WORDS = 200_000, 32, 24
cluster = sn.local_cluster(stand_in_gpus=2)

pairs, about = [], []
for number, text in enumerate(sorted(topics.values(), key=len)[-12:]):
    words = text.lower().split()
    hashes = [
        zlib.crc32(f"{one} {two}".encode()) % ROWS
        for one, two in zip(words, words[1:], strict=False)
    ]
    for start in range(0, len(hashes) - WORDS, WORDS // 4):
        pairs.append(hashes[start : start + WORDS])
        about.append(number)
pairs, about = np.array(pairs, "int32"), np.array(about)

net = sn.Net("big_embedding")
tokens = net.input("tokens", (WORDS,), dtype="int32")
table = layers.Embedding(
    ROWS, WIDTH, embeddings_initializer=keras.initializers.RandomNormal(stddev=0.5)
)
rows = net.branch("rows", tokens, table, on="cpu")
wide = [
    layers.Flatten(),
    layers.Dense(256, activation="relu"),
    layers.Dense(64, activation="relu"),
]
deep = [
    layers.Conv1D(64, 3, activation="relu"),
    layers.Conv1D(64, 3, activation="relu"),
    layers.GlobalMaxPooling1D(),
]
sides = [
    net.branch("wide", rows, wide, on="gpu:0"),
    net.branch("deep", rows, deep, on="gpu:1"),
]
both = net.merge("both", sides, layers.Concatenate())
net.output(net.branch("topic", both, layers.Dense(12, activation="softmax"), on="cpu"))

plan = sn.plan(net, cluster, batch=128, optimizer="sgd")
print(sn.table(plan))
sn.draw(plan, "big_embedding.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
# SGD updates the rows that were looked up; Adam would touch all 200,000 in every step.
model.compile(
    keras.optimizers.SGD(1.0), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
model.fit(pairs, about, batch_size=128, epochs=5, verbose=2)

sn.audit(model, plan, (pairs[:128], about[:128])).check()
