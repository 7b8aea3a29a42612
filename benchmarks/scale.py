"""What do 1, 2, 4, 8 and 16 devices cost: to plan for, to emit on, and per step?

One net of sixteen branches, dealt to that many CPU stand-ins in turn; merge and loss on
the CPU. The step is held against the same model unplaced, epochs in turn, one thread
within and one across operations: stand-ins share the processor, so a ratio above 1 is
what placement costs. A process per row.

    python benchmarks/scale.py [DEVICES ...]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from functools import partial

from common import heading, paired, spread

BRANCHES, WIDTH, DEPTH, BATCH, STEPS = 16, 128, 3, 256, 12


def declare(sn, devices):
    """Sixteen equal branches, pinned in turn."""
    from keras import layers

    net = sn.Net("fan")
    x = net.input("x", (WIDTH,))
    sides = [
        net.branch(
            f"b{i}",
            x,
            [layers.Dense(WIDTH, "relu", name=f"b{i}_{k}") for k in range(DEPTH)],
            on=f"gpu:{i % devices}",
        )
        for i in range(BRANCHES)
    ]
    joined = net.merge("join", sides, layers.Add())
    net.output(net.branch("head", joined, layers.Dense(1), on="cpu"))
    return net


def row(devices, rounds):
    """Print one row."""
    import splitnet as sn

    sn.configure(cpu_threads=1)
    cluster = sn.local_cluster(stand_in_gpus=devices)
    import numpy as np

    net = declare(sn, devices)
    began = time.perf_counter()
    plan = sn.plan(net, cluster, batch=BATCH)
    planned = time.perf_counter()
    model = sn.emit(net, plan)
    emitted = time.perf_counter()
    plain = sn.unplace(model)
    x = np.random.default_rng(0).normal(size=(BATCH * STEPS, WIDTH)).astype("float32")
    runs = []
    for each in (model, plain):
        each.compile("adam", "mse")
        runs.append(
            partial(each.fit, x, x[:, :1], batch_size=BATCH, shuffle=False, verbose=0)
        )
        runs[-1]()
    sn.audit(model, plan, (x[:BATCH], x[:BATCH, :1])).check()
    runs[0]()
    placed, alone = paired(*runs, rounds=rounds)
    print(
        f"  {devices:7}{planned - began:9.2f}{emitted - planned:9.2f}"
        f"{1e3 * statistics.median(alone) / STEPS:16.1f}   "
        f"{spread([a / b for a, b in zip(placed, alone)])}",
        flush=True,
    )


def main():
    """Print a row for each number of devices."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("devices", nargs="*", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        row(options.devices[0], options.rounds)
        return
    heading(__doc__.splitlines()[0])
    print("  devices  plan, s  emit, s  plain step, ms   placed / plain")
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    for devices in options.devices:
        command = [sys.executable, __file__, "--here", str(devices)]
        command += ["--rounds", str(options.rounds)]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    main()
