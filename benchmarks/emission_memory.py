"""How much host memory does emission take, in sizes of the model's own parameters?

Twelve wide layers, 450 MB of weights, planned and emitted in a process of their own.
"Allocated" is the peak of TensorFlow's CPU allocator over what it held before, exact to
the byte; "resident" the rise of the process's memory at its highest. The source
is a declared net, whose weights are drawn at emission, or a built Keras model, whose
values are copied (logical CPU devices share a copy until the first update). Plain
Keras, building the same layers, stands beside them.

    python benchmarks/emission_memory.py [--width N]
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

from common import heading

LAYERS = 12
SOURCES = ("plain keras", "net", "model")


def resident():
    """Resident memory of this process now and at its highest, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    values = dict(line.split(":", 1) for line in lines if ":" in line)
    return tuple(int(values[key].split()[0]) * 1024 for key in ("VmRSS", "VmHWM"))


def compare(source, width):
    """Print one row."""
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    import keras
    import tensorflow as tf

    tf.config.experimental.get_memory_info("CPU:0")  # starts the allocator's books
    act = prepared(sn, cluster, source, width)
    before, _ = resident()
    held = tf.config.experimental.get_memory_info("CPU:0")["current"]
    tf.config.experimental.reset_memory_stats("CPU:0")
    Path("/proc/self/clear_refs").write_text("5")  # resets the highest
    model = act()
    allocated = tf.config.experimental.get_memory_info("CPU:0")["peak"] - held
    rise = resident()[1] - before
    size = 4 * sum(v.value.shape.num_elements() for v in model.variables)
    assert isinstance(model, keras.Model)
    print(
        f"  {source:12}{size / 1e6:14.0f}{allocated / size:12.2f}{rise / size:12.2f}",
        flush=True,
    )


def prepared(sn, cluster, source, width):
    """What is measured, as a function: everything before it has been done."""
    import keras
    from keras import layers

    def body():
        return [layers.Dense(width, name=f"d{i}") for i in range(LAYERS)]

    if source == "plain keras":
        return lambda: keras.Sequential([keras.Input((width,)), *body()])
    if source == "net":
        made = sn.Net("wide")
        x = made.input("x", (width,))
        left = made.branch("left", x, body()[: LAYERS // 2], on="gpu:0")
        right = made.branch("right", x, body()[LAYERS // 2 :], on="gpu:1")
        made.output(made.merge("join", [left, right], layers.Add()))
    else:
        made = keras.Sequential([keras.Input((width,)), *body()])
    plan = sn.plan(made, cluster, batch=8, time_limit=1.0)
    return lambda: sn.emit(made, plan)


def main():
    """Print the table, a fresh process per row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=3072)
    parser.add_argument("--here", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.here:
        compare(options.here, options.width)
        return
    heading(__doc__.splitlines()[0])
    print("  source      parameters MB   allocated    resident   (times parameters)")
    for source in SOURCES:
        command = [sys.executable, __file__, "--here", source]
        subprocess.run([*command, "--width", str(options.width)], check=True)


if __name__ == "__main__":
    main()
