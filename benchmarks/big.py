"""Ask how planning and emission grow with the number of calls.

    python benchmarks/big.py

A chain of blocks of four calls (dense, activation, dense, sum) is built by plain Keras,
read, planned for two stand-ins, and emitted; one process per row. Seconds are of this
process's CPU, so that other programs count little; memory is what the resident set grew
by. Asked for: 5,000 calls planned and emitted in 60 s, and emission of 1,000 layers in
half the time that plain Keras takes to build them.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

COLUMNS = (
    ("calls", "calls"),
    ("layers", "layers"),
    ("build", "Keras builds"),
    ("read", "read"),
    ("plan", "plan"),
    ("emit", "emit"),
    ("share", "emit / build"),
    ("grown", "memory of plan and emit, KiB a call"),
)


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, nargs="+", default=[1000, 2000, 5000])
    parser.add_argument("--row", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--profile", action="store_true", help="where emit spends it")
    arguments = parser.parse_args()
    if arguments.row:
        print("ROW " + json.dumps(row(arguments.row, arguments.profile)))
        return
    print("| " + " | ".join(title for _, title in COLUMNS) + " |")
    print("|" + "--:|" * len(COLUMNS))
    for calls in arguments.calls:
        found = in_a_process(calls, arguments.profile)
        print("| " + " | ".join(str(found[key]) for key, _ in COLUMNS) + " |")


def in_a_process(calls: int, profile: bool) -> dict[str, object]:
    """One row."""
    command = [sys.executable, __file__, "--row", str(calls)]
    done = subprocess.run(
        command + ["--profile"] * profile,
        capture_output=True,
        text=True,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=False,
    )
    if profile:
        print(done.stdout)
    for line in done.stdout.splitlines():
        if line.startswith("ROW "):
            found: dict[str, object] = json.loads(line[4:])
            return found
    raise SystemExit(done.stderr)


def row(calls: int, profile: bool) -> dict[str, object]:
    """Build, read, plan, emit."""
    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=2)
    build_model(40)  # what is made once does not count
    began = time.process_time()
    model = build_model(calls)
    built = time.process_time()
    before = resident()
    graph = sn.read(model, batch=8)
    read = time.process_time()
    plan = sn.plan(model, cluster, batch=8)
    planned = time.process_time()
    if profile:
        emit_profiled(model, plan)
        planned = time.process_time()
    placed = sn.emit(model, plan)
    emitted = time.process_time()
    weights = sum(v.value.shape.num_elements() * 4 for v in placed.variables)
    return {
        "calls": len(graph.calls),
        "layers": len(model.layers),
        "build": f"{built - began:.1f} s",
        "read": f"{read - built:.1f} s",
        "plan": f"{planned - read:.1f} s",
        "emit": f"{emitted - planned:.1f} s",
        "share": f"{(emitted - planned) / (built - began):.2f}",
        "grown": f"{(resident() - before - weights) / len(graph.calls) / 1024:.0f}",
    }


def emit_profiled(model: object, plan: object) -> None:
    """Emit once more, and say where the time went."""
    import cProfile
    import pstats

    import splitnet as sn

    watch = cProfile.Profile()
    watch.enable()
    sn.emit(model, plan)
    watch.disable()
    pstats.Stats(watch).sort_stats("cumulative").print_stats(60)


def resident() -> int:
    """The largest resident set so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def build_model(calls: int) -> object:
    """Blocks of dense, activation, dense and sum, one after another."""
    import keras
    from keras import layers

    x = keras.Input((16,), name="x")
    for _ in range((calls - 1) // 4):
        y = layers.Dense(16)(x)
        y = layers.Activation("relu")(y)
        y = layers.Dense(16)(y)
        x = layers.Add()([x, y])
    return keras.Model(x, x if calls < 5 else layers.Dense(2)(x))


if __name__ == "__main__":
    main()
