"""An existing model, VGG16 of keras.applications, placed by pins.

Pins are patterns of names; the planner places what they leave open, here the third
block. The weights are random, because nothing is downloaded. The pictures are
scikit-learn's digits, enlarged.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits

import splitnet as sn

cluster = sn.local_cluster(stand_in_gpus=2)  # without the argument: the real GPUs
keras.utils.set_random_seed(0)
features = keras.applications.VGG16(
    include_top=False, weights=None, input_shape=(32, 32, 3), pooling="avg"
)
digit = keras.layers.Dense(10, activation="softmax", name="digit")(features.output)
plain = keras.Model(features.input, digit, name="vgg16")

pins = {"block[12]_*": "gpu:0", "block[45]_*": "gpu:1", "digit": "gpu:1"}
plan = sn.plan(plain, cluster, batch=8, optimizer="sgd", pins=pins)
print(sn.table(plan))
sn.draw(plan, "existing_model.svg")

images, digits = load_digits(return_X_y=True)
images = np.kron(images.reshape(-1, 8, 8, 1) / 8 - 1, np.ones((1, 4, 4, 3)))
images, digits = images[:64].astype("float32"), digits[:64]

placed = sn.emit(plain, plan)  # a model of its own; the plain one stays as it was
ours, theirs = (np.asarray(model(images[:8])) for model in (placed, plain))
print(f"largest difference to the plain model: {abs(ours - theirs).max()}")

placed.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
placed.fit(images, digits, batch_size=8, epochs=1, verbose=2)
sn.audit(placed, plan, (images[:8], digits[:8])).check()

placed.save("existing_model.keras")  # loads anywhere, without splitnet
