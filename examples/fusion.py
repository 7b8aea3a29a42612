"""Image, table and text in one model: three branches on three devices, then a merge.

Each input is real: scans of digits and chemical analyses of wines (scikit-learn), and
passages of Python's manual. The combination is artificial: sample i joins a digit, a
wine and a passage of class 0, 1 or 2.
"""

from pydoc_data.topics import topics

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits, load_wine

import splitnet as sn

CLASSES, SAMPLES, WORDS = 3, 2048, 16
cluster = sn.local_cluster(stand_in_gpus=2)
draw = np.random.default_rng(0)
labels = draw.integers(CLASSES, size=SAMPLES)


def one_of_each(values: np.ndarray, classes: np.ndarray) -> np.ndarray:
    """For each sample, a row of its class, drawn at random."""
    rows = [draw.choice(np.flatnonzero(classes == label)) for label in labels]
    return values[rows]


images, digits = load_digits(return_X_y=True)
analyses, wines = load_wine(return_X_y=True)
passages, about = [], []
for number, topic in enumerate(("class", "try", "import")):
    words = topics[topic].split()
    for start in range(0, len(words) - WORDS, WORDS):
        passages.append(" ".join(words[start : start + WORDS]))
        about.append(number)
vectorize = layers.TextVectorization(2000, output_sequence_length=WORDS)
vectorize.adapt(passages)

inputs = {
    "image": one_of_each((images / 16).astype("float32").reshape(-1, 8, 8, 1), digits),
    "table": one_of_each(
        ((analyses - analyses.mean(0)) / analyses.std(0)).astype("float32"), wines
    ),
    "text": one_of_each(np.array(vectorize(passages)), np.array(about)),
}

net = sn.Net("fusion")
image = net.input("image", (8, 8, 1))
table = net.input("table", (13,))
text = net.input("text", (WORDS,), dtype="int32")
see = [
    layers.Conv2D(32, 3, padding="same", activation="relu"),
    layers.Conv2D(32, 3, activation="relu"),
    layers.Flatten(),
    layers.Dense(32),
]
read = [layers.Embedding(2000, 32), layers.GlobalAveragePooling1D()]
seen = net.branch("see", image, see, on="gpu:0")
told = net.branch("read", text, read, on="gpu:1")
known = net.branch("weigh", table, layers.Dense(32, activation="relu"), on="cpu")
fused = net.merge("fuse", [seen, told, known], layers.Concatenate())
net.output(net.branch("class", fused, layers.Dense(CLASSES, activation="softmax")))

plan = sn.plan(net, cluster, batch=128)
print(sn.table(plan))
print(plan.explain("class"))
sn.draw(plan, "fusion.svg")

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(inputs, labels, batch_size=128, epochs=3, verbose=2)

batch = ({name: rows[:128] for name, rows in inputs.items()}, labels[:128])
sn.audit(model, plan, batch).check()
