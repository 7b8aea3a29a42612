"""The memory of a step: a part keeps what plain Keras keeps, and what was planned."""

from tests.tf.story import story

# TensorFlow records allocations of 256 KiB and more, of all that a process does.
PEAKS = """
import keras, tensorflow as tf
from pathlib import Path
from keras import layers
from tests.tf.held import events, fullest

tf.config.threading.set_inter_op_parallelism_threads(1)
profiler = tf.profiler.experimental
def blocks(count):
    x = entry = keras.Input((32, 128))
    for _ in range(count):
        x = layers.LayerNormalization()(layers.Add()([x, layers.Attention()([x, x])]))
        x = layers.Add()([x, layers.Dense(128)(layers.Dense(512, "gelu")(x))])
    return keras.Model(entry, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
def u_net():
    def convolved(x, filters):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        return layers.ReLU()(layers.BatchNormalization()(x))
    x = entry = keras.Input((64, 64, 3))
    skips = []
    for filters in (16, 32):
        skips.append(convolved(x, filters))
        x = layers.MaxPooling2D()(skips[-1])
    for filters, skip in zip((32, 16), reversed(skips)):
        x = layers.Conv2DTranspose(filters, 2, strides=2, padding="same")(x)
        x = convolved(layers.Concatenate()([x, skip]), filters)
    return keras.Model(entry, layers.Conv2D(1, 1, activation="sigmoid")(x))
def peak(model, plan):
    model.compile("sgd", "mse")
    x, y = (tf.ones((plan.batch, *t.shape[1:])) for t in (model.input, model.output))
    trains = lambda x: model.train_on_batch(x, y)
    run = trains if plan.training else model.predict_on_batch
    run(x)
    profiler.start("profile", profiler.ProfilerOptions(host_tracer_level=2))
    run(x)
    profiler.stop()
    [file] = Path("profile").rglob("*.xplane.pb")
    most = fullest(events(file))
    file.unlink()
    return most
def planned(model, **how):
    return sn.score(model, sn.local_cluster(), {"*": "cpu:0"}, optimizer="sgd", **how)
def measure(name, model, plan, **how):
    placed = sn.emit(model, plan, **how)
    memory = sn.plan_of(placed).memory["cpu:0"]
    answer[name] = peak(placed, plan), memory.total - memory.weights
deep, u = blocks(12), u_net()
plan = planned(deep, batch=32)
answer["plain"] = peak(deep, plan), 0
measure("placed", deep, plan)
measure("recomputed", deep, plan, recompute=True)
measure("piped", deep, plan, microbatches=2, schedule="1f1b")
measure("u_net", u, planned(u, batch=16))
measure("u_net predicts", u, planned(u, batch=64, training=False))
loop = keras.Sequential([keras.Input((20,)), layers.Embedding(9, 256), layers.GRU(256)])
measure("loop predicts", loop, planned(loop, batch=1024, training=False))
"""


def test_a_step_holds_what_plain_keras_holds_and_what_was_planned(tmp_path):
    """At most 1.1 of plain Keras, 15 % off the plan; much less if computed again."""
    found = story(PEAKS, tmp_path, seconds=900, TF_ENABLE_ONEDNN_OPTS="1")  # counts
    plain = found["plain"][0]
    assert plain > 100_000_000
    assert max(found["placed"][0], found["piped"][0]) < 1.1 * plain
    assert found["recomputed"][0] < 0.5 * plain
    for name in ("placed", "piped", "u_net", "u_net predicts", "loop predicts"):
        held, planned = found[name]
        assert 0.85 < planned / held < 1.15, name
