"""Compare predicted training memory with the tensors that two workers really held.

Question: is the peak of one training step that a plan predicts for each device (saved
activations, gradients, temporaries, received copies) within 15 % of the measured one?
Each model is placed on one of two worker processes, recomputing, in micro-batches, as
stages and as towers on both, and trained by steps of SGD. TensorFlow's profiler records
what the allocator of each worker hands out and takes back. Bytes are those that were
asked for: the allocator rounds up. Weights are there before the step and left out of
both. TensorFlow's CPU allocator does not record what is smaller than 256 KiB, so
batches are large. TensorFlow is free to run what is ready in any order, so peaks differ
from step to step: a figure is of the largest of ten, as memory must suffice for all.

    python benchmarks/activations.py [MODEL ...] [--largest N]
"""

import argparse
import gc
import os
import subprocess
import sys
import tempfile
import threading
import time
import timeit
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.tf.held import events  # noqa: E402  # found through the path

MODELS = (
    "MobileNetV2",
    "ResNet50",
    "DenseNet121",
    "EfficientNetB0",
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
WORKERS = ("worker:0/cpu:0", "worker:1/cpu:0")
STEPS = 10


def build(name):
    """A network of `keras.applications` or one of these, and its batch."""
    import keras
    from keras import layers

    def chain(shape, *body, dtype="float32"):
        x = entry = keras.Input(shape, dtype=dtype)
        for layer in body:
            x = layer(x)
        return keras.Model(entry, x)

    if hasattr(keras.applications, name):
        network = getattr(keras.applications, name)
        return network(weights=None, input_shape=(96, 96, 3)), 16
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
        body = layers.LSTM(256, return_sequences=True), layers.LSTM(256)
        return chain((25, 256), *body, layers.Dense(1)), 1024
    if name == "gru":
        body = layers.Embedding(5000, 256), layers.GRU(256), layers.Dense(1)
        return chain((30,), *body, dtype="int32"), 1024
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


def half(model, batch, devices=WORKERS):
    """Each call on one of two devices: the first half of the FLOPs, then the rest."""
    import splitnet as sn

    graph = sn.read(model, batch)
    total, done, where = sum(call.forward_flops for call in graph.calls), 0.0, {}
    for call in graph.calls:
        done += call.forward_flops
        if graph.part[call.part].kind != "input":
            where[call.name] = devices[2 * done > total]
    return where


def ways(model, batch, cluster, devices=WORKERS):
    """The name of each strategy, and the model placed so on two devices."""
    import keras

    import splitnet as sn

    options = {"batch": batch, "optimizer": "sgd"}
    alone = sn.score(model, cluster, {"*": devices[0]}, **options)
    yield "one", sn.emit(model, alone)
    yield "recompute", sn.emit(model, alone, recompute=True)
    stages = sn.score(model, cluster, half(model, batch, devices), **options)
    yield "stages", sn.emit(model, stages)
    yield (
        "towers",
        sn.data_parallel(
            model, cluster, devices=list(devices), weights_on=devices[0], **options
        ),
    )
    if any(isinstance(x, keras.layers.BatchNormalization) for x in model.layers):
        return
    yield "pieces", sn.emit(model, alone, microbatches=4, schedule="1f1b")
    yield "gpipe", sn.emit(model, stages, microbatches=4)
    yield "1f1b", sn.emit(model, stages, microbatches=4, schedule="1f1b")


def _run_later(step, ended):
    """Run the steps when the profilers have begun, and note when they ended."""
    time.sleep(1.0)
    timeit.timeit(step, number=STEPS)
    ended.append(time.monotonic())


def allocations(step, addresses):
    """Per worker, what its allocator did during the steps, in the order of time."""
    import tensorflow as tf

    profiler = tf.profiler.experimental
    seconds = 3.0 + 2 * timeit.timeit(step, number=STEPS)
    while True:
        ended = []
        thread = threading.Thread(target=_run_later, args=(step, ended))
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            thread.start()
            profiler.client.trace(
                ",".join(f"grpc://{address}" for address in addresses),
                folder,
                int(1000 * seconds),
                options=profiler.ProfilerOptions(host_tracer_level=2),
            )
            thread.join()
            if ended[0] < begin + seconds:
                names = [f"*/*/*/{a.replace(':', '_')}.xplane.pb" for a in addresses]
                return [events(next(Path(folder).glob(name))) for name in names]
        seconds *= 2


def fullest(done):
    """The most bytes asked for at once, beside those before, and the tensors held."""
    live, held = {}, []
    now = most = 0
    for _, out, known in done:
        if out:
            live[known["addr"]] = known
            now += int(known["requested_bytes"])
            if now > most:
                most, held = now, list(live.values())
        elif known["addr"] in live:
            now -= int(live.pop(known["addr"])["requested_bytes"])
    return most, held


def compare(name, largest, only):
    """Print one row: the predicted peak over the measured one, of each strategy."""
    import splitnet as sn

    with sn.local_workers(2, threads=2) as workers:
        sn.connect(workers.cluster)
        import numpy as np

        model, batch = build(name)
        [entry], [end] = model.inputs, model.outputs
        x = np.ones((batch, *entry.shape[1:]), entry.dtype)
        y = np.ones((batch, *end.shape[1:]), "float32")
        hosts = workers.cluster.hosts
        addresses = [one.address for one in hosts if one.job == "worker"]
        cells = {}
        for way, placed in ways(model, batch, workers.cluster):
            if way not in only:
                continue
            placed.compile("sgd", "mse")
            step = partial(placed.train_on_batch, x, y)
            step()
            gc.collect()
            done = allocations(step, addresses)
            cells[way] = []
            for worker, steps in zip(WORKERS, done):
                memory = sn.plan_of(placed).memory[worker]
                predicted = memory.total - memory.weights - memory.slots
                most, held = fullest(steps)
                if most > 1e6:
                    cells[way].append(f"{most / 1e6:5.0f} {predicted / most:4.2f}")
                if largest and most > 1e6:
                    tell(f"{name} {way} {worker}", memory, most, held, largest)
            del placed, step
            gc.collect()
    row = (f"{'  '.join(cells.get(way, '-')):>24}" for way in WAYS)
    print(f"{name:16}{batch:6}{''.join(row)}", flush=True)


def tell(what, memory, most, held, largest):
    """Print what was predicted and the largest tensors that were held."""
    print(f"{what}: held {most / 1e6:.1f} MB; predicted {memory}")
    for known in sorted(held, key=lambda k: -int(k["requested_bytes"]))[:largest]:
        size = int(known["requested_bytes"]) / 1e6
        print(f"  {size:8.2f}  {known.get('shape', ''):24} {known.get('tf_op', '')}")


def main():
    """Print the table, a fresh process per row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--ways", nargs="*", default=WAYS, choices=WAYS)
    parser.add_argument("--largest", type=int, default=0, help="tensors to print")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        for name in options.models:
            compare(name, options.largest, options.ways)
        return
    print(f"{'model':16}{'batch':>6}{''.join(f'{way:>24}' for way in WAYS)}")
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="1")
    extra = ["--here", "--largest", str(options.largest), "--ways", *options.ways]
    for name in options.models:
        command = [sys.executable, __file__, name, *extra]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
