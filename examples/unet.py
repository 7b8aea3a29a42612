"""A U-Net over two GPUs: down on the first, up on the second, skips in between.

It takes the noise out of two photographs (scikit-learn's china.jpg and flower.jpg). The
skip connections are what crosses devices, and the picture says how many bytes.
"""

from importlib.resources import files

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import splitnet as sn

SIDE = 32
cluster = sn.local_cluster(stand_in_gpus=2)
draw = np.random.default_rng(0)


def tiles(name: str) -> np.ndarray:
    """A photograph as squares of SIDE x SIDE x 3, values 0 to 1."""
    file = files("sklearn.datasets.images").joinpath(name)
    photo = tf.io.decode_jpeg(file.read_bytes()).numpy() / 255
    rows, columns = (extent // SIDE for extent in photo.shape[:2])
    photo = photo[: rows * SIDE, : columns * SIDE]
    squares = photo.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2)
    return squares.reshape(-1, SIDE, SIDE, 3).astype("float32")


def convolutions(filters: int) -> list[layers.Layer]:
    """A convolution that keeps the size."""
    return [layers.Conv2D(filters, 3, padding="same", activation="relu")]


net = sn.Net("unet")
photo = net.input("photo", (SIDE, SIDE, 3))
x, skips = photo, []
for level, filters in enumerate((8, 16)):
    kept = net.branch(f"down_{level}", x, convolutions(filters), on="gpu:0")
    x = net.branch(f"pool_{level}", kept, layers.MaxPooling2D(), near=kept)
    skips.append(kept)
x = net.branch("bottom", x, convolutions(32), on="gpu:0")
for level, filters in ((1, 16), (0, 8)):
    x = net.branch(f"grow_{level}", x, layers.UpSampling2D(), on="gpu:1")
    join = [layers.Concatenate(), *convolutions(filters)]
    x = net.merge(f"up_{level}", [x, skips[level]], join, on="gpu:1")
noise = net.branch("noise", x, layers.Conv2D(3, 3, padding="same"), on="gpu:1")
net.output(net.merge("clean", [photo, noise], layers.Subtract(), on="gpu:1"))

plan = sn.plan(net, cluster, batch=32)
print(sn.table(plan))
sn.draw(plan, "unet.svg")

clear = draw.permutation(np.concatenate([tiles("china.jpg"), tiles("flower.jpg")]))
noisy = clear + draw.normal(0, 0.1, clear.shape).astype("float32")
kept, apart = slice(0, -100), slice(-100, None)

keras.utils.set_random_seed(0)
model = sn.emit(net, plan)
model.compile(keras.optimizers.Adam(3e-3), "mse")
model.fit(noisy[kept], clear[kept], batch_size=32, epochs=12, verbose=0)
before = np.mean((noisy[apart] - clear[apart]) ** 2)
after = model.evaluate(noisy[apart], clear[apart], verbose=0)
print(f"squared error of held-out tiles: {before:.4f} before, {after:.4f} after")

sn.audit(model, plan, (noisy[:32], clear[:32])).check()
