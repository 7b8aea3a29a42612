"""Train on three GPUs, save, and continue on one with the same numbers.

What is saved is a plain Keras file. The model is planned again for the smaller machine,
and training continues with the state of Adam. Data: diabetes (scikit-learn's).
"""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_diabetes

import splitnet as sn

everything = sn.local_cluster(stand_in_gpus=3)
left = sn.Cluster((everything["gpu:0"], everything["cpu:0"]), everything.links)

values, progress = load_diabetes(return_X_y=True)
groups = [values[:, 0:2], values[:, 2:4], values[:, 4:10]]  # person, body, blood
groups = [group.astype("float32") * 20 for group in groups]
progress = ((progress - progress.mean()) / progress.std())[:, None].astype("float32")

net = sn.Net("resume_on_fewer")
branches = []
for gpu, (name, group) in enumerate(zip(("person", "body", "blood"), groups)):
    seen = net.input(f"{name}_values", group.shape[1:])
    dense = layers.Dense(16, activation="relu")
    branches.append(net.branch(name, seen, dense, on=f"gpu:{gpu}"))
joined = net.merge("joined", branches, layers.Concatenate())
net.output(net.branch("progress", joined, layers.Dense(1), on="cpu"))


def train(model: keras.Model, epochs: int) -> list[float]:
    """The losses of some more epochs."""
    fit = model.fit(
        groups, progress, batch_size=64, epochs=epochs, shuffle=False, verbose=0
    )
    return fit.history["loss"]


keras.utils.set_random_seed(0)
plan = sn.plan(net, everything, batch=64)
model = sn.emit(net, plan)
model.compile("adam", "mse")
print("three GPUs:", train(model, 3))
model.save("resume_on_fewer.keras")
uninterrupted = train(model, 2)

fewer = sn.plan(net, left, batch=64)  # the same constraints on the remaining devices
print(sn.table(fewer))
print(plan.compare(fewer))
sn.draw(fewer, "resume_on_fewer.svg", other=plan)  # marks what moved

resumed = sn.emit(net, fewer)
resumed.compile("adam", "mse")
resumed.optimizer.build(resumed.trainable_variables)
resumed.load_weights("resume_on_fewer.keras")  # Adam's memory, too
losses = train(resumed, 2)
print("one GPU:   ", losses)
np.testing.assert_allclose(losses, uninterrupted, rtol=1e-5)

sn.audit(resumed, fewer, ([group[:64] for group in groups], progress[:64])).check()
