"""What a model computes, to hold a placed one against the one that was given."""

import tempfile

BATCH = 4
_LARGE_BYTES = 2**20


def subject(name: str) -> tuple[object, object, object, object]:
    """A model, a batch for it, and its loss."""
    import keras
    import numpy as np

    from tests.tf.zoo.models import MODELS, made_up

    if name in MODELS:
        one = MODELS[name]()
        return one.source, one.x, one.y, one.loss
    if ":" in name:
        import importlib

        module, _, function = name.partition(":")
        one = made_up(getattr(importlib.import_module(module), function)(), BATCH)
        return one.source, one.x, one.y, one.loss
    model = architecture(getattr(keras.applications, name))
    shape = (BATCH, *model.input.shape[1:])
    images = np.random.default_rng(0).random(shape, dtype="float32")
    return model, images, np.arange(BATCH), "sparse_categorical_crossentropy"


def architecture(build: object) -> object:
    """An architecture for the smallest images it takes, from 32 upwards."""
    for size in (32, 71, 75):
        try:
            return build(weights=None, input_shape=(size, size, 3), classes=10)
        except ValueError:  # it refuses so small an image
            continue
    return build(weights=None, input_shape=(96, 96, 3), classes=10)


def figures(model: object, x: object, y: object, loss: object) -> dict[str, object]:
    """Outputs, the gradients of the first training step, the losses of two, weights.

    With `beta_1=0` the first slot of Adam is the gradient.
    """
    import keras
    import tensorflow as tf

    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})
    outputs = numbers(model(x))
    model.compile(keras.optimizers.Adam(1e-3, beta_1=0.0), loss)
    model.optimizer.build(model.trainable_variables)  # else a step is traced twice
    keras.utils.set_random_seed(1)
    losses = [model.train_on_batch(x, y)]
    gradients = numbers(
        slot for slot in model.optimizer.variables if slot.path.endswith("momentum")
    )
    losses.append(model.train_on_batch(x, y))
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": False})
    return {
        "outputs": outputs,
        "gradients": gradients,
        "losses": numbers(losses),
        "weights": numbers(model.variables),
    }


def numbers(values: object) -> list[object]:
    """Copies of a structure of numbers, flat; large ones on disk."""
    import keras
    import numpy as np

    values = values if isinstance(values, dict) else list(values)
    copies = []
    for value in map(np.asarray, keras.tree.flatten(values)):
        if value.nbytes < _LARGE_BYTES:
            copies.append(value.copy())
            continue
        with tempfile.TemporaryFile() as file:
            value.tofile(file)
            copies.append(np.memmap(file, value.dtype, "r", shape=value.shape))
    return copies


def difference(one: object, other: object) -> float:
    """The largest absolute difference between two structures of numbers.

    NaN equals NaN, and differs from every number by infinity.
    """
    import keras
    import numpy as np

    largest = 0.0
    pairs = zip(keras.tree.flatten(one), keras.tree.flatten(other), strict=True)
    for mine, its in pairs:
        mine, its = (np.ravel(np.asarray(v)).astype("float64") for v in (mine, its))
        apart = np.abs(mine - its)
        apart[np.isnan(mine) & np.isnan(its)] = 0.0
        largest = max(largest, float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0)))
    return largest
