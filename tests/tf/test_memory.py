"""The memory of a step: a part keeps what plain Keras keeps."""

from pathlib import Path

import pytest

from tests.tf.story import story

pytestmark = pytest.mark.tf

# TensorFlow counts allocations of 256 KiB and more, of all that a process does.
PEAKS = """
import keras, tensorflow as tf
from keras import layers

tf.config.threading.set_inter_op_parallelism_threads(1)
tf.config.experimental.get_memory_info("CPU:0")
x = entry = keras.Input((32, 128))
for _ in range(24):
    x = layers.LayerNormalization()(layers.Add()([x, layers.Attention()([x, x])]))
    x = layers.Add()([x, layers.Dense(128)(layers.Dense(512, "gelu")(x))])
model = keras.Model(entry, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
plan = sn.score(model, sn.local_cluster(), {"*": "cpu:0"}, batch=32)
rows = tf.data.Dataset.from_tensors((tf.ones((32, 128)), tf.ones(1)))

def peak(model):
    model.compile("sgd", "mse")
    data = rows.repeat().batch(32)  # of an open batch
    model.fit(data, steps_per_epoch=1, verbose=0)
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=1, verbose=0)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"] - before

answer["plain"] = peak(model)
answer["placed"] = peak(sn.emit(model, plan))
answer["recomputed"] = peak(sn.emit(model, plan, recompute=True))
answer["piped"] = peak(sn.emit(model, plan, microbatches=2, schedule="1f1b"))
"""


def test_24_blocks_in_one_part_take_the_memory_of_plain_keras(tmp_path: Path) -> None:
    """At most 1.1 of its peak; much less if they are computed again."""
    counts = {"TF_ENABLE_ONEDNN_OPTS": "1"}  # the allocator
    peak = story(PEAKS, tmp_path, seconds=900, **counts)

    assert peak["plain"] > 100_000_000
    assert peak["placed"] < 1.1 * peak["plain"]
    assert peak["recomputed"] < 0.5 * peak["plain"]
    assert peak["piped"] < 1.1 * peak["plain"]
