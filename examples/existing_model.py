"""A model that is there already: keras.applications' MobileNet, placed by pins.

Pins go by name pattern; what they leave open is the planner's choice. The weights are
random, as nothing is downloaded, and the pictures are scikit-learn's digits, enlarged.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import splitnet as sn

cluster = sn.local_cluster(stand_in_gpus=2)  # without the argument: the real GPUs
keras.utils.set_random_seed(0)
plain = keras.applications.MobileNet((32, 32, 3), 0.25, weights=None, classes=10)

pins = dict.fromkeys(["conv_*_[1-7]", "conv_*_[1-7]_*"], "gpu:0")
pins |= dict.fromkeys(["conv_*_[89]*", "conv_*_1[0-3]*"], "gpu:1")
plan = sn.plan(plain, cluster, batch=64, pins=pins)
print(sn.table(plan))
sn.draw(plan, "existing_model.svg")

images, digits = load_digits(return_X_y=True)
images = np.kron(images.reshape(-1, 8, 8, 1) / 8 - 1, np.ones((1, 4, 4, 3)))
images, digits = images[:256].astype("float32"), digits[:256]

placed = sn.emit(plain, plan)  # a model of its own; the plain one stays as it was
ours, theirs = (np.asarray(model(images[:64])) for model in (placed, plain))
print(f"largest difference to the plain model: {abs(ours - theirs).max()}")

placed.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
placed.fit(images, digits, batch_size=64, epochs=1, verbose=2)
sn.audit(placed, plan, (images[:64], digits[:64])).check()

placed.save("existing_model.keras")  # loads anywhere, without splitnet
