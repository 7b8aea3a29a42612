"""A residual network cut in two: the planner chooses where; pins can override it.

The model is ordinary Keras code without devices. Data: handwritten
digits (scikit-learn's).
"""

import keras
import numpy as np
from keras import layers
from sklearn.datasets import load_digits

import splitnet as sn


def residual_network(blocks: int = 2, width: int = 32) -> keras.Model:
    """Convolutions with a way around every second one, after He et al. (2015)."""
    x = image = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(width, 3, padding="same", activation="relu", name="stem")(x)
    for block in range(blocks):
        y = layers.Conv2D(width, 3, padding="same", name=f"block{block}_conv1")(x)
        y = layers.BatchNormalization(name=f"block{block}_norm")(y)
        y = layers.Activation("relu", name=f"block{block}_relu")(y)
        y = layers.Conv2D(width, 3, padding="same", name=f"block{block}_conv2")(y)
        x = layers.Add(name=f"block{block}_add")([x, y])
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(
        image, layers.Dense(10, activation="softmax", name="head")(x), name="resnet"
    )


cluster = sn.local_cluster(stand_in_gpus=2)
keras.utils.set_random_seed(0)
plain = residual_network()

# "throughput" keeps the busier half least busy, as a pipeline needs it.
pins = {"stem": "gpu:0", "head": "gpu:1"}
plan = sn.plan(plain, cluster, batch=128, objective="throughput", pins=pins)
print(sn.table(plan))
sn.draw(plan, "resnet_in_two.svg")

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)

placed = sn.emit(plain, plan)  # a model of its own; the plain one stays as it was
ours, theirs = (np.asarray(model(images[:128])) for model in (placed, plain))
print(f"largest difference to the plain model: {abs(ours - theirs).max()}")

placed.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
placed.fit(images, digits, batch_size=128, epochs=1, verbose=2)
sn.audit(placed, plan, (images[:128], digits[:128])).check()

placed.save("resnet.keras")  # loads anywhere, without splitnet, on any devices
