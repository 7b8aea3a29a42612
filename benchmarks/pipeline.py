"""How near does a pipeline of two equal stages come to the ideal, on two workers?

Two TensorFlow worker processes, each pinned to a core with one thread, and a stage of
equal Dense layers on each; plain `fit`. A row is how many times faster several
micro-batches are than both stages on one worker, and than the same plan with one
micro-batch, whose stages overlap already where a gradient of weights is not waited for;
in turn, medians over the pairs. The ideal, against no overlap, is M*S/(M+S-1). What the
simulator says against one micro-batch, with estimated costs, stands beside it. A step
is timed from the end of one to the end of the next: what `fit` does before is in none.

With `--processors`: what a step takes of each process, in one piece and in the last
number of pieces, on one worker and on both. "Of its work" is what the busier worker's
processor time and the bubble come to, over what the step took: what is missing there is
waiting, and what else is missing of the ideal is work.

With `--first`: what the first step of 24 blocks on four stages takes in one piece and
in the last number of pieces, tracing included: processor time, which a busy machine
changes little, and memory, each in a process of its own, the least of the rounds.

    python benchmarks/pipeline.py [--rounds N] [--microbatches 2 4 8]
                                  [--processors | --first]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
from pathlib import Path

from common import heading, paired, spread, step_times, undisturbed

WIDTH, DEPTH, BATCH = 768, 12, 2048
HOMES = ("worker:0/cpu:0", "worker:1/cpu:0")


def declare(sn):
    """Two stages of six layers each, one on each worker."""
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


def processor_seconds(pid):
    """What a process has used of the processors since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def processors(runs, pids, options):
    """Print for each way the seconds of a step, and of each process in it."""
    pids = [*pids, os.getpid()]
    rows = {name: [] for name in runs}
    for turn in range(options.rounds):
        for name, run in list(runs.items())[:: -1 if turn % 2 else 1]:
            before = [*map(processor_seconds, pids)]
            step = run()
            after = [*map(processor_seconds, pids)]
            used = [(b - a) / options.steps for a, b in zip(before, after)]
            rows[name].append([step, *used])
    print(
        "  way                    step, ms   faster   worker 0  worker 1  client, ms"
        "  of its work"
    )
    middle = {n: [statistics.median(each) for each in zip(*r)] for n, r in rows.items()}
    [first, *_] = middle.values()
    number = options.microbatches[-1]
    for name, (step, *used) in middle.items():
        times = "".join(f"{1e3 * seconds:10.0f}" for seconds in used)
        bubble = (number + 1) / number if "1f1b" in name or "gpipe" in name else None
        share = f"{max(used[:2]) * bubble / step:13.0%}" if bubble else ""
        print(
            f"  {name:22}{1e3 * step:9.0f}{first[0] / step:9.3f} {times}{share}",
            flush=True,
        )


def first_step(pieces, schedule):
    """Print the processor seconds and MiB of the first step of a fresh model."""
    import keras
    import numpy as np
    from keras import layers

    import splitnet as sn

    cluster = sn.local_cluster(stand_in_gpus=4)
    small = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    small.compile("adam", "mse")
    small.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)  # what is loaded late
    x = entry = keras.Input((16, 64))
    pins = {"*": "gpu:3"}
    for i in range(24):
        names = [f"{kind}_{i}" for kind in ("norm", "wide", "narrow", "sum")]
        pins = dict.fromkeys(names, f"gpu:{i // 6}") | pins
        made = layers.LayerNormalization(name=names[0])(x)
        made = layers.Dense(128, "gelu", name=names[1])(made)
        made = layers.Dense(64, name=names[2])(made)
        x = layers.Add(name=names[3])([x, made])
    model = keras.Model(entry, layers.Dense(1)(x))
    plan = sn.score(model, cluster, pins, batch=64)
    placed = sn.emit(model, plan, microbatches=pieces, schedule=schedule)
    placed.compile("adam", "mse")
    data = np.ones((64, 16, 64), "float32"), np.ones((64, 16, 1), "float32")

    def used():
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024

    before = used()
    placed.fit(*data, batch_size=64, verbose=0)
    print(*(after - begun for begun, after in zip(before, used())))


def first_steps(rounds, pieces):
    """Print a row for one piece and for each schedule of several."""
    rows = {}
    for name in ("gpipe 1", f"gpipe {pieces}", f"1f1b {pieces}"):
        command = [sys.executable, __file__, "--one", *name.split()]
        done = [
            subprocess.run(command, capture_output=True, text=True, check=True)
            for _ in range(rounds)
        ]
        each = [map(float, one.stdout.split()[-2:]) for one in done]
        rows[name] = [min(values) for values in zip(*each)]
    print("  way        processor s   of one piece   MiB   of one piece")
    [base, *_] = rows.values()
    for name, (seconds, size) in rows.items():
        print(
            f"  {name:9}{seconds:13.1f}{seconds / base[0]:15.2f}{size:6.0f}"
            f"{size / base[1]:15.2f}"
        )


def main():
    """Print a row for each schedule and number of micro-batches."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--processors", action="store_true")
    parser.add_argument("--first", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--microbatches", type=int, nargs="*", default=[2, 4, 8])
    options = parser.parse_args()

    if options.one:
        schedule, pieces = options.one
        first_step(int(pieces), schedule)
        return
    if options.first:
        heading(__doc__.splitlines()[0])
        first_steps(options.rounds, options.microbatches[-1])
        return

    import splitnet as sn
    from splitnet.tf.workers.start import local_workers

    with local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        sn.connect(workers.cluster)
        import numpy as np

        net = declare(sn)
        plan = sn.plan(net, workers.cluster, batch=BATCH)
        rng = np.random.default_rng(0)
        count = BATCH * options.steps
        x = rng.normal(size=(count, WIDTH)).astype("float32")
        y = rng.normal(size=(count, 1)).astype("float32")

        def runner(plan, **way):
            model = sn.emit(net, plan, **way)
            model.compile("sgd", "mse")
            fit = {"batch_size": BATCH, "shuffle": False, "verbose": 0}
            model.fit(x[:BATCH], y[:BATCH], **fit)

            def run():
                times = step_times()
                model.fit(x, y, callbacks=[times], **fit)
                return statistics.median(times.seconds)

            return run

        parts = [part.name for part in plan.graph.parts]
        alone = dict.fromkeys(parts, HOMES[0]) | {"x": "cpu:0"}
        alone = sn.score(net, workers.cluster, alone, batch=BATCH)
        single, plain = runner(alone), runner(plan)
        if options.processors:
            cut = {"microbatches": options.microbatches[-1]}
            pids = [workers.processes[i].pid for i in range(2)]
            runs = {
                "one worker": single,
                "one worker, pieces": runner(alone, **cut),
                "two, one piece": plain,
                "two, gpipe": runner(plan, **cut),
                "two, 1f1b": runner(plan, schedule="1f1b", **cut),
            }
            with undisturbed(*pids):
                processors(runs, pids, options)
            return
        print(
            "  schedule  M  ideal  faster than one worker  of ideal  "
            "than one piece  of ideal  simulated"
        )
        for schedule in ("gpipe", "1f1b"):
            for number in options.microbatches:
                cut = runner(plan, microbatches=number, schedule=schedule)
                with undisturbed(*(workers.processes[i].pid for i in range(2))):
                    pairs = [
                        paired(base, cut, rounds=options.rounds)
                        for base in (single, plain)
                    ]
                ratios = [[a / b for a, b in zip(*pair)] for pair in pairs]
                ideal = 2 * number / (number + 1)
                one, same = (statistics.median(each) / ideal for each in ratios)
                said = sn.simulate(plan, microbatches=number, schedule=schedule)
                print(
                    f"  {schedule:8}  {number}  {ideal:.2f}   {spread(ratios[0])}  "
                    f"{one:5.0%}   {spread(ratios[1])}  {same:5.0%}"
                    f"  {plan.seconds / said.seconds:9.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
