"""How much memory does each schedule of a pipeline take, simulated and measured?

Two worker processes, a stage of Dense layers on each, activations far larger than
weights. A row is a process with workers of its own: the most resident memory of each
worker beyond what it had after steps of a few samples, beside what the simulator says
that the step adds to the weights.

    python benchmarks/pipeline_memory.py [--microbatches 16]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from common import heading

WIDTH, DEPTH, BATCH = 256, 12, 32768
HOMES = ("worker:0/cpu:0", "worker:1/cpu:0")
WAYS = ("whole", "gpipe", "1f1b")


def declare(sn):
    """Two stages of equal layers."""
    from keras import layers

    net = sn.Net("two_stages")
    made = net.input("x", (WIDTH,))
    for stage, home in enumerate(HOMES):
        body = [
            layers.Dense(WIDTH, "relu", name=f"dense_{stage}_{i}")
            for i in range(DEPTH // 2)
        ]
        made = net.branch(f"stage{stage}", made, body, on=home)
    net.output(net.branch("head", made, layers.Dense(1), on=HOMES[1]))
    return net


def memory(pid, field):
    """A field of a process' status, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1000
    return 0.0


def train(way, count):
    """Two steps in one way; a line of simulated and measured megabytes."""
    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        sn.connect(workers.cluster)
        import numpy as np

        net = declare(sn)
        plan = sn.plan(net, workers.cluster, batch=BATCH, optimizer="sgd")
        cut = {} if way == "whole" else {"microbatches": count, "schedule": way}
        model = sn.emit(net, plan, **cut)
        model.compile("sgd", "mse")
        x = np.zeros((2 * BATCH, WIDTH), "float32")
        y = np.zeros((2 * BATCH, 1), "float32")
        model.fit(x[:256], y[:256], batch_size=128, shuffle=False, verbose=0)
        idle = [memory(workers.pid(i), "VmRSS") for i in range(2)]
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        peak = [memory(workers.pid(i), "VmHWM") for i in range(2)]
        said = sn.simulate(plan, **cut).peak_bytes
        held = {home: plan.memory[home].weights for home in HOMES}
        for i, home in enumerate(HOMES):
            print(
                f"  {way:6}  {i}  {(said[home] - held[home]) / 1e6:12.0f}  "
                f"{peak[i] - idle[i]:11.0f}"
            )


def main():
    """Print two rows for each way: a row per worker."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--microbatches", type=int, default=16)
    parser.add_argument("--only", choices=WAYS)
    options = parser.parse_args()
    if options.only:
        train(options.only, options.microbatches)
        return
    heading(__doc__.splitlines()[0])
    print("  way     worker  simulated, MB  measured, MB")
    for way in WAYS:
        done = subprocess.run(
            [sys.executable, *sys.argv, "--only", way],
            capture_output=True,
            text=True,
            check=False,
        )
        print(done.stdout.rstrip() or done.stderr[-300:], flush=True)


if __name__ == "__main__":
    main()
