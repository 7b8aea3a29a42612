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


def silent(name: str, weights: list[object]) -> list[object]:
    """Which numbers of a model's variables have no gradient, measured in float64.

    Those are below the rounding that float32 has in the largest gradient: the bias of a
    convolution before a BatchNormalization, a unit that is off for the whole batch.
    What float32 computes there is noise, and Adam scales it up to a whole step.

    Args:
        name: a model that `subject` knows.
        weights: its weights before training.
    """
    import keras
    import numpy as np
    import tensorflow as tf

    policy, rounding = keras.config.dtype_policy(), np.finfo("float32").eps
    floatx = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    model, x, y, loss = subject(name)
    model.set_weights(weights)
    for layer in model.layers:
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0.0
    model.compile("sgd", loss)
    with tf.GradientTape() as tape:
        value = model.compute_loss(x=x, y=y, y_pred=model(x, training=True))
    made = tape.gradient(value, model.trainable_variables)
    found = {
        id(v): np.abs(tf.convert_to_tensor(g))
        for v, g in zip(model.trainable_variables, made)
        if g is not None
    }
    largest = max(float(gradient.max()) for gradient in found.values())
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)
    return [
        found[id(v)] <= rounding * largest
        if id(v) in found
        else np.zeros(v.shape, dtype=bool)
        for v in model.variables
    ]


def difference(one: object, other: object, without: list[object] = ()) -> float:
    """The largest difference, as a share of the largest value of its tensor.

    What is below the rounding of the largest tensor, in float64 32 times that, is
    noise, as a gradient that is truly 0. NaN equals NaN, and differs from every number
    by infinity. Numbers that `without` marks are left out.
    """
    import keras
    import numpy as np

    mine, its = keras.tree.flatten(one), keras.tree.flatten(other)
    marked = list(without) or [np.zeros(np.shape(v), dtype=bool) for v in its]
    tops = [float(np.nan_to_num(np.abs(v)).max(initial=0.0)) for v in its]
    floatx = keras.config.floatx()
    noise = float(np.finfo(floatx).eps) * (32 if floatx == "float64" else 1)
    noise *= max(tops, default=0.0)
    largest = 0.0
    for a, b, top, mark in zip(mine, its, tops, marked, strict=True):
        a, b = (np.ravel(np.asarray(v)).astype("float64") for v in (a, b))
        apart = np.abs(a - b)
        apart[(np.isnan(a) & np.isnan(b)) | np.ravel(mark)] = 0.0
        worst = float(np.nan_to_num(apart, nan=np.inf).max(initial=0.0))
        if worst > noise:
            largest = max(largest, worst / top if top else np.inf)
    return largest
