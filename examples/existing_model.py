"""A model that is there already: cut it over two devices without touching its code.

Any functional or Sequential Keras model will do; this is a small residual network.
Pins go by name pattern; the rest is the planner's choice.
"""

import keras
from keras import layers
from sklearn.datasets import load_digits

import splitnet as sn


def residual_network() -> keras.Model:
    """A model as anybody would write it; it knows nothing of devices."""
    x = image = keras.Input((8, 8, 1), name="image")
    x = layers.Conv2D(32, 3, padding="same", activation="relu", name="stem")(x)
    for block in range(4):
        y = layers.Conv2D(32, 3, padding="same", name=f"block{block}_conv1")(x)
        y = layers.BatchNormalization(name=f"block{block}_norm")(y)
        y = layers.Activation("relu", name=f"block{block}_relu")(y)
        y = layers.Conv2D(32, 3, padding="same", name=f"block{block}_conv2")(y)
        x = layers.Add(name=f"block{block}_add")([x, y])
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, layers.Dense(10, activation="softmax", name="head")(x))


cluster = sn.local_cluster(stand_in_gpus=2)
keras.utils.set_random_seed(0)
plain = residual_network()

pins = {"block[01]_*": "gpu:0", "block[23]_*": "gpu:1", "head": "cpu"}
plan = sn.plan(plain, cluster, batch=128, pins=pins)
print(sn.table(plan))
sn.draw(plan, "existing_model.svg")

images, digits = load_digits(return_X_y=True)
images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)

placed = sn.emit(plain, plan)  # a model of its own; the plain one stays as it was
difference = abs(placed.predict(images, verbose=0) - plain.predict(images, verbose=0))
print(f"largest difference to the plain model: {difference.max()}")

placed.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
placed.fit(images, digits, batch_size=128, epochs=3, verbose=2)
sn.audit(placed, plan, (images[:128], digits[:128])).check()

placed.save("existing_model.keras")  # loads anywhere, without splitnet, on any devices
