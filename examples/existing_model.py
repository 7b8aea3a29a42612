"""A model that is there already: keras.applications' MobileNetV2, placed by pins.

Pins go by name pattern; what they leave open is the planner's choice. The weights are
random, as nothing is downloaded, and the pictures are scikit-learn's digits, enlarged.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import splitnet as sn

cluster = sn.local_cluster(stand_in_gpus=2)  # without the argument: the real GPUs
keras.utils.set_random_seed(0)
plain = keras.applications.MobileNetV2((32, 32, 3), 0.35, weights=None, classes=10)

pins = {"block_[1-6]_*": "gpu:0", "block_1[0-6]_*": "gpu:1", "predictions": "cpu"}
plan = sn.plan(plain, cluster, batch=64, pins=pins)
print(sn.table(plan))
sn.draw(plan, "existing_model.svg")

images, digits = load_digits(return_X_y=True)
images = np.kron(images.reshape(-1, 8, 8, 1) / 8 - 1, np.ones((1, 4, 4, 3)))
images, digits = images[:640].astype("float32"), digits[:640]

placed = sn.emit(plain, plan)  # a model of its own; the plain one stays as it was
ours, theirs = (model.predict(images[:64], verbose=0) for model in (placed, plain))
print(f"largest difference to the plain model: {abs(ours - theirs).max()}")

placed.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
placed.fit(images, digits, batch_size=64, epochs=3, verbose=2)
sn.audit(placed, plan, (images[:64], digits[:64])).check()

placed.save("existing_model.keras")  # loads anywhere, without splitnet
