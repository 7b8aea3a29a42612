"""How long does training stand still after a worker or the program was killed?

    python benchmarks/recovery.py [--rounds 3]

A net on two workers trains under `splitnet run --workers 2`. A worker and then the
program itself are killed by SIGKILL. The seconds are those until the next step has
ended; the start of TensorFlow and the tracing of the first step are part of them.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, os, sys, time
import psutil
import splitnet as sn
connection = sn.connect()
import keras
import numpy as np
from keras import layers

net = sn.Net("two")
x = net.input("x", (64,))
one = net.branch("one", x, layers.Dense(64), on="worker:0/cpu:0")
two = net.branch("two", x, layers.Dense(64), on="worker:1/cpu:0")
joined = net.merge("join", [one, two], layers.Concatenate(), on="cpu:0")
net.output(net.branch("head", joined, layers.Dense(1), on="cpu:0"))
plan = sn.plan(net, connection.cluster, batch=32)
model = sn.emit(net, plan)
model.compile("adam", "mse")

killed = json.load(open("killed")) if os.path.exists("killed") else []

class Kill(keras.callbacks.Callback):
    # A worker or this program, at its 30th step.
    steps = 0
    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        if self.steps == 1 and killed:
            print(killed[-1][0], time.time() - killed[-1][1], flush=True)
        if self.steps == 30 and len(killed) < int(sys.argv[1]):
            what = ("worker", "program")[len(killed) % 2]
            json.dump([*killed, (what, time.time())], open("killed", "w"))
            psutil.Process(pid_of_worker() if what == "worker" else None).kill()

def pid_of_worker():
    named = {"worker", os.environ["SPLITNET_CLUSTER"]}
    for process in psutil.process_iter(["cmdline"]):
        if named <= set(process.info["cmdline"] or []):
            return process.pid

x, y = np.ones((20 * 32, 64)), np.ones((20 * 32, 1))
with connection:
    model.fit(x, y, batch_size=32, epochs=2 * int(sys.argv[1]), verbose=0,
              callbacks=[sn.ResumeTraining("backup"), Kill()])
"""


def main() -> None:
    """Print the median seconds for a worker and for the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    root = str(Path(__file__).resolve().parent.parent)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(PROGRAM)
        command = [sys.executable, "-m", "splitnet", "run", "--workers", "2"]
        command += ["--max-restarts", str(2 * rounds), "--"]
        command += [sys.executable, "train.py", str(2 * rounds)]
        done = subprocess.run(
            command,
            cwd=folder,
            env=os.environ | {"PYTHONPATH": root},
            capture_output=True,
            text=True,
            check=False,
        )
    print(f"{platform.machine()}, Python {platform.python_version()}")
    if done.returncode:
        raise SystemExit(done.stderr)
    rows = [line.split() for line in done.stdout.splitlines()]
    for what in ("worker", "program"):
        seconds = [float(row[1]) for row in rows if row[0] == what]
        print(
            f"{what} killed {len(seconds)} times: next step after "
            f"{statistics.median(seconds):.1f} s (median), {max(seconds):.1f} s at most"
        )


if __name__ == "__main__":
    main()
