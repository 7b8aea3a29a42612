"""Compare predicted training memory with what TensorFlow's allocator saw.

Question: is the peak of one training step that a plan predicts (saved activations,
gradients, temporaries) within 15 % of the measured one? The model is emitted for one
device, recomputing, in micro-batches, as stages and as towers on two devices, and
trained by one step of SGD; weights and data are left out of both. Each model runs on
the CPU in a process of its own, one thread between operations. The peak is that of
`tf.config.experimental.get_memory_info`, which counts all devices of a process, so the
predicted peaks of two devices are added up. TensorFlow's CPU allocator does not count
what is smaller than 256 KiB, so batches are large.

    python benchmarks/activations.py [MODEL ...]
"""

import argparse
import functools
import gc
import os
import subprocess
import sys

MODELS = (
    "mobilenet_v2",
    "resnet50",
    "densenet121",
    "efficientnet_b0",
    "conv_net",
    "u_net",
    "attention",
    "transformer",
    "lstm",
    "gru",
    "text_conv",
    "wide_mlp",
)


WAYS = ("one", "recompute", "pieces", "stages", "gpipe", "1f1b", "towers")


def build(name):
    """Return a model and its batch; sizes are chosen to fit a laptop."""
    import keras
    from keras import layers

    def chain(shape, *body, dtype="float32"):
        x = entry = keras.Input(shape, dtype=dtype)
        for layer in body:
            x = layer(x)
        return keras.Model(entry, x)

    apps, image = keras.applications, {"weights": None, "input_shape": (96, 96, 3)}
    if name == "mobilenet_v2":
        return apps.MobileNetV2(**image), 32
    if name == "resnet50":
        return apps.ResNet50(**image), 16
    if name == "densenet121":
        return apps.DenseNet121(**image), 16
    if name == "efficientnet_b0":
        return apps.EfficientNetB0(**image), 16
    if name == "conv_net":
        blocks = []
        for filters in (32, 64, 128):
            blocks += [layers.Conv2D(filters, 3, activation="relu", padding="same")]
            blocks += [layers.MaxPooling2D()]
        return chain((64, 64, 3), *blocks, layers.Flatten(), layers.Dense(10)), 64
    if name == "u_net":
        return _u_net(), 16
    if name in ("attention", "transformer"):
        return _transformer(1 if name == "attention" else 3, name == "transformer"), 32
    if name == "lstm":
        body = layers.LSTM(128, return_sequences=True), layers.LSTM(128)
        return chain((50, 128), *body, layers.Dense(1)), 512
    if name == "gru":
        body = layers.Embedding(5000, 128), layers.GRU(128), layers.Dense(1)
        return chain((60,), *body, dtype="int32"), 512
    if name == "text_conv":
        body = layers.Embedding(5000, 128), layers.Conv1D(128, 5, activation="gelu")
        body += (layers.Dropout(0.1), layers.GlobalMaxPooling1D(), layers.Dense(1))
        return chain((200,), *body, dtype="int32"), 64
    body = []
    for _ in range(6):
        body += [layers.Dense(512, activation="silu"), layers.LayerNormalization()]
    return chain((256,), *body, layers.Dense(10)), 4096


def _transformer(blocks, feed_forward):
    import keras
    from keras import layers

    x = entry = keras.Input((128, 128))
    for _ in range(blocks):
        mixed = layers.MultiHeadAttention(4, 32, dropout=0.1 * feed_forward)(x, x)
        x = layers.LayerNormalization()(layers.Add()([x, mixed]))
        if feed_forward:
            wide = layers.Dense(512, activation="gelu")(x)
            x = layers.LayerNormalization()(layers.Add()([x, layers.Dense(128)(wide)]))
    return keras.Model(entry, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


def _u_net():
    import keras
    from keras import layers

    def block(x, filters):
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    x = entry = keras.Input((64, 64, 3))
    skips = []
    for filters in (16, 32, 64):
        x = block(x, filters)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = block(x, 128)
    for filters, skip in zip((64, 32, 16), reversed(skips)):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = block(layers.Concatenate()([x, skip]), filters)
    return keras.Model(entry, layers.Conv2D(1, 1, activation="sigmoid")(x))


def half(model, batch):
    """Each call on one of two devices: the first half of the FLOPs, then the rest."""
    import splitnet as sn

    calls = sn.read(model, batch).calls
    total, done, where = sum(call.forward_flops for call in calls), 0.0, {}
    for call in calls:
        done += call.forward_flops
        where[call.name] = "cpu:0" if 2 * done <= total else "cpu:1"
    return where


def ways(model, batch):
    """The name of each strategy, and the model placed so."""
    import keras

    import splitnet as sn

    one, two = sn.Cluster.of("cpu"), sn.Cluster.of("2*cpu")
    options = {"batch": batch, "optimizer": "sgd"}
    alone = sn.score(model, one, {"*": "cpu:0"}, **options)
    yield "one", sn.emit(model, alone)
    yield "recompute", sn.emit(model, alone, recompute=True)
    stages = sn.score(model, two, half(model, batch), **options)
    yield "stages", sn.emit(model, stages)
    yield (
        "towers",
        sn.data_parallel(
            model, two, devices=["cpu:0", "cpu:1"], batch=batch, optimizer="sgd"
        ),
    )
    if any(isinstance(x, keras.layers.BatchNormalization) for x in model.layers):
        return
    yield "pieces", sn.emit(model, alone, microbatches=4, schedule="1f1b")
    yield "gpipe", sn.emit(model, stages, microbatches=4)
    yield "1f1b", sn.emit(model, stages, microbatches=4, schedule="1f1b")


def compare(name):
    """Print one row: the predicted peak over the measured one, of each strategy."""
    import tensorflow as tf

    import splitnet as sn

    tf.config.threading.set_inter_op_parallelism_threads(1)
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    tf.config.experimental.get_memory_info("CPU:0")
    model, batch = build(name)
    [entry], [end] = model.inputs, model.outputs
    data = tf.ones((batch, *entry.shape[1:]), entry.dtype)
    target = tf.ones((batch, *end.shape[1:]))
    given = data.shape.num_elements() * data.dtype.size
    cells = {}
    made = ways(model, batch)
    for way, placed in made:
        placed.compile("sgd", "mse")
        run = functools.partial(placed.train_step, (data, target))
        step = tf.function(run, autograph=False)
        step()
        gc.collect()  # the model before, whose bytes would be freed in this step
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        step()
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
        memory = sn.plan_of(placed).memory.values()
        predicted = sum(one.total - one.weights - one.slots for one in memory) - given
        cells[way] = f"{predicted / 1e6:9.0f} {predicted / peak:4.2f}"
        del placed, step
        gc.collect()
    row = (f"{cells.get(way, '-'):>14}" for way in WAYS)
    print(f"{name:16}{batch:6}{''.join(row)}", flush=True)


def main():
    """Print the table, a fresh process per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        for name in options.models:
            compare(name)
        return
    print(f"{'model':16}{'batch':>6}{''.join(f'{way:>14}' for way in WAYS)}")
    environment = dict(
        os.environ, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="1"
    )  # whose allocator counts
    for name in options.models or MODELS:
        command = [sys.executable, __file__, "--here", name]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
