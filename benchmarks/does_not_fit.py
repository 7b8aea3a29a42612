"""Does a layer that fits no worker's memory train on two?

Two worker processes whose memory the system limits. An Embedding (or a Dense) whose
weights and Adam slots exceed the limit is trained on one worker, which must fail, and
split over both, which must not. Each try is a process of its own: a worker that ran out
of memory is gone.

    python benchmarks/does_not_fit.py [--limit "2 GB"] [--layer embedding|dense]
"""

import argparse
import subprocess
import sys
from pathlib import Path

from common import heading

WORKERS = ["worker:0/cpu:0", "worker:1/cpu:0"]
BATCH, STEPS = 64, 3
# 0.24 GB of weights: with Adam's two slots 0.7 GB, with a dense gradient 1 GB, and what
# updates and TensorFlow's server (0.7 GB) need comes on top.
ROWS, WIDTH = 300_000, 200
INPUTS, OUTPUTS = 10_000, 6_000


def declare(sn, layer, split):
    """One large layer, on one worker or on both, and a small head."""
    from keras import layers

    net = sn.Net("large")
    if layer == "embedding":
        x = net.input("x", (8,), "int32")
        large = layers.Embedding(ROWS, WIDTH, name="large")
    else:
        x = net.input("x", (INPUTS,))
        large = layers.Dense(OUTPUTS, name="large")
    if split:
        made = net.split("large", x, large, on=WORKERS)
    else:
        made = net.branch("large", x, large, on=WORKERS[0])
    head = [layers.Flatten(), layers.Dense(1)]
    net.output(net.branch("head", made, head, on="cpu:0"))
    return net


def train(limit, layer, split):
    """Emit, train some steps and say how large the workers became."""
    import splitnet as sn

    with sn.local_workers(2, pin=True, memory_limit=limit) as workers:
        sn.connect(workers.cluster)
        import keras
        import numpy as np

        net = declare(sn, layer, split)
        parts = [part.name for part in sn.read(net, batch=BATCH).parts]
        where = {part: place(part, split) for part in parts}
        plan = sn.score(net, workers.cluster, where, batch=BATCH)
        model = sn.emit(net, plan)
        model.compile(keras.optimizers.Adam(1e-5), "mse")
        rng = np.random.default_rng(0)
        if layer == "embedding":
            x = rng.integers(0, ROWS, (BATCH * STEPS, 8)).astype("int32")
        else:
            x = rng.normal(size=(BATCH * STEPS, INPUTS)).astype("float32")
        y = np.zeros((BATCH * STEPS, 1), "float32")
        history = model.fit(x, y, batch_size=BATCH, epochs=2, verbose=0).history
        peaks = [peak(workers.processes[i].pid) for i in range(2)]
        losses = " to ".join(f"{loss:.3f}" for loss in history["loss"])
        print(f"trained, loss {losses}; peaks {peaks} MB")


def reason(text):
    """The line of an error's text that says why, or else its last."""
    lines = text.strip().splitlines() or [""]
    why = [line for line in lines if "OOM when" in line or "closed" in line]
    return (why or lines)[0 if why else -1]


def place(part, split):
    """The device of a part: slices on their workers, the rest on the client.

    Placed by hand: the planner refuses what does not fit, and here the system shall.
    """
    if part.startswith("large/"):
        return WORKERS[int(part.rpartition("/")[2])]
    return WORKERS[0] if part == "large" and not split else "cpu:0"


def peak(pid):
    """The most resident memory a process had, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1000
    return 0


def main():
    """Try one worker and two, each in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="2 GB")
    parser.add_argument("--layer", default="embedding", choices=["embedding", "dense"])
    parser.add_argument("--only", choices=["one", "two"])
    options = parser.parse_args()
    if options.only:
        train(options.limit, options.layer, options.only == "two")
        return
    heading(__doc__.splitlines()[0])
    for which in ("one", "two"):
        done = subprocess.run(
            [sys.executable, *sys.argv, "--only", which],
            capture_output=True,
            text=True,
            check=False,
        )
        said = (done.stdout.strip() or reason(done.stderr))[:120]
        print(f"  {which} worker(s) of {options.limit}: exit {done.returncode}: {said}")


if __name__ == "__main__":
    main()
