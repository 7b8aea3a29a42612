"""Models that look at pictures, and models that make them."""

from typing import Any

import keras
from keras import layers

from tests.tf.models.subject import Subject, made_up, model


def _twice(x: Any, width: int) -> Any:
    for _ in range(2):
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.BatchNormalization()(x)
        x = layers.Activation("relu")(x)
    return x


@model
def u_net() -> Any:
    """Skips that span everything, from the way down to the way up."""
    x = image = keras.Input((16, 16, 3))
    skips = []
    for width in (4, 8):
        x = _twice(x, width)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = _twice(x, 12)
    for width, skip in zip((8, 4), reversed(skips)):
        x = layers.Conv2DTranspose(width, 2, strides=2)(x)
        x = _twice(layers.Concatenate()([x, skip]), width)
    return keras.Model(image, layers.Conv2D(2, 1, activation="softmax")(x))


@model
def autoencoder() -> Any:
    """Two models in one: an encoder and a decoder, each whole."""
    code = keras.Input((6,))
    y = layers.Dense(4 * 4 * 3, activation="relu")(code)
    y = layers.Conv2DTranspose(3, 4, strides=2, padding="same")(
        layers.Reshape((4, 4, 3))(y)
    )
    decoder = keras.Model(code, layers.UpSampling2D()(y), name="decoder")
    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(4, 3, strides=2, activation="swish")(image)
    x = layers.Dense(6)(layers.Flatten()(layers.LayerNormalization()(x)))
    encoder = keras.Model(image, x, name="encoder")
    again = keras.Input((16, 16, 3))
    return keras.Model(again, decoder(encoder(again)))


class Sample(layers.Layer):
    """A draw around a mean, and the loss that keeps the draw near to the normal."""

    def __init__(self, seed: int | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, mean: Any, log_variance: Any) -> Any:
        """Draw, and add the divergence."""
        ops = keras.ops
        apart = 1 + log_variance - ops.square(mean) - ops.exp(log_variance)
        self.add_loss(-0.5 * ops.mean(apart))
        noise = keras.random.normal(ops.shape(mean), seed=self.generator)
        return mean + ops.exp(0.5 * log_variance) * noise

    def get_config(self) -> dict[str, Any]:
        """With the seed."""
        return super().get_config() | {"seed": self.seed}


@model
def variational_autoencoder() -> Any:
    """Chance and a loss in the middle; two outputs that are not asked for again."""
    x = keras.Input((12,))
    hidden = layers.Dense(8, activation="tanh")(x)
    mean, spread = layers.Dense(3, name="mean")(hidden), layers.Dense(3)(hidden)
    code = Sample(seed=7)(mean, spread)
    back = layers.Dense(12)(layers.Dense(8, activation="tanh")(code))
    return keras.Model(x, [back, mean])


@model
def augmented() -> Any:
    """Chance on pictures before, noise and dropped maps after."""
    image = keras.Input((8, 8, 3))
    x = layers.Rescaling(1 / 2, offset=0.1)(image)
    x = layers.RandomFlip(seed=1)(x)
    x = layers.RandomContrast(0.2, seed=2, value_range=(-9, 9))(x)
    x = layers.GaussianNoise(0.1, seed=3)(x)
    x = layers.SpatialDropout2D(0.3, seed=4)(layers.Conv2D(6, 3)(x))
    x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    return keras.Model(image, layers.Dense(2)(layers.Flatten()(x)))


@model
def normalized_in_every_way() -> Any:
    """Power iterations in weights that no gradient moves; groups; averages."""
    x = image = keras.Input((8, 8, 4))
    x = layers.SpectralNormalization(layers.Conv2D(6, 3, padding="same"))(x)
    x = layers.GroupNormalization(groups=3)(x)
    x = layers.PReLU(shared_axes=[1, 2])(x)
    x = layers.DepthwiseConv2D(3, depth_multiplier=2)(x)
    x = layers.BatchNormalization(renorm=False, momentum=0.5)(x)
    x = layers.UnitNormalization()(layers.AveragePooling2D(2)(x))
    x = layers.RMSNormalization()(layers.Flatten()(x))
    x = layers.SpectralNormalization(layers.Dense(5))(x)
    return keras.Model(image, layers.AlphaDropout(0.2, seed=5)(x))


@model
def squeeze_and_excite() -> Any:
    """A side road that weighs the main one, three times, with a dropped path."""
    x = image = keras.Input((8, 8, 6))
    for _ in range(3):
        side = layers.GlobalAveragePooling2D(keepdims=True)(x)
        side = layers.Conv2D(2, 1, activation="swish")(side)
        side = layers.Conv2D(6, 1, activation="hard_sigmoid")(side)
        main = layers.Conv2D(6, 3, padding="same", activation="swish")(x)
        x = layers.Add()([x, layers.Multiply()([main, side])])
    scores = layers.Dense(4)(layers.GlobalAveragePooling2D()(x))
    made = made_up(keras.Model(image, layers.Softmax()(scores)))
    return Subject(made.model, made.x, made.y, "categorical_crossentropy")


@model
def three_dimensions() -> Any:
    """Volumes, cropped and padded, and their two halves in two branches."""
    volume = keras.Input((6, 6, 6, 2))
    x = layers.Conv3D(4, 2, activation="elu")(volume)
    left, right = keras.ops.split(x, 2, axis=-1)
    left = layers.MaxPooling3D(2)(layers.Conv3D(4, 2)(left))
    right = layers.AveragePooling3D(2)(layers.ZeroPadding3D()(right))
    both = [layers.Dense(3)(layers.Flatten()(half)) for half in (left, right)]
    return keras.Model(volume, layers.Maximum()(both))
