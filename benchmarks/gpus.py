"""What is true on a real GPU of what plans predict and stand-ins prove?

The first card is cut into logical GPUs, each with an allocator and streams of its own,
so placement, memory per device and the costs of a single card are real; copies stay
within the card, and logical GPUs share its processors, so nothing here says how fast
several cards are.

- `steps`: predicted over measured seconds of known models on one GPU, by the preset of
  the card and by `sn.measure`.
- `placed`: a step placed on one GPU, and dealt out over all, over plain Keras' (without
  and with XLA, which Keras turns on by itself).
- `memory`: the predicted peak of a step over what TensorFlow's allocator reports.
- `crossings`: what each further part costs, in one chain that is dealt out ever finer.
- `timeline`: a profiled step, and its audit.

    python benchmarks/gpus.py [QUESTION ...] [--logical N] [--memory "12 GiB"]
"""

import argparse
import gc
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from activations import MODELS, build, ways  # noqa: E402  # after the path
from common import heading  # noqa: E402  # after the path

QUESTIONS = ("steps", "placed", "memory", "crossings", "timeline")
KNOWN = ("resnet50", "bert_128", "bert_384", "lstm")


def machine(options):
    """The cluster of logical GPUs and the CPU."""
    import tensorflow as tf

    import splitnet as sn

    if not tf.config.list_physical_devices("GPU"):
        print("  note      no GPU here: stand-ins, to try this script")
        return sn.local_cluster(stand_in_gpus=options.logical)
    sn.configure(logical_gpus=options.logical, memory_limit=options.memory)
    return sn.local_cluster()


def known(name, policy):
    """A model with published figures, of a dtype policy, and its batch."""
    import keras

    from tests.tf import test_presets as published

    keras.config.set_dtype_policy(policy)
    try:
        return getattr(published, name)(), {"resnet50": 128, "lstm": 64}.get(name, 8)
    finally:
        keras.config.set_dtype_policy("float32")


def rows(model, batch):
    """A batch of synthetic inputs and targets."""
    from splitnet.tf.profiling.measure import synthetic_batch

    return synthetic_batch(model, batch)


def dealt(graph, devices):
    """The parts of a graph dealt out over devices, in stretches of equal length."""
    parts = [part.name for part in graph.parts if part.kind != "input"]
    each = -(-len(parts) // len(devices))
    return {part: devices[i // each] for i, part in enumerate(parts)}


def seconds(model, x, y, steps=40):
    """A step of plain `fit`, copying its batch to the GPU included."""
    import tensorflow as tf

    def run(count):
        data = tf.data.Dataset.from_tensors((x, y)).repeat(count).prefetch(4)
        began = time.perf_counter()
        model.fit(data, shuffle=False, verbose=0)
        return time.perf_counter() - began

    run(3)
    few = min(run(5) for _ in range(3))
    return (min(run(5 + steps) for _ in range(3)) - few) / steps


def steps(options):
    """Predicted over measured step on one GPU, without and with XLA."""
    import splitnet as sn

    cluster = machine(options)
    gpu = cluster["gpu:0"]
    print(f"  {gpu}")
    print("  model          policy         batch   plain, ms   predicted", end="")
    print("   with XLA, ms   predicted   by sn.measure, plain")
    cases = [(name, policy) for name in KNOWN for policy in options.policies]
    cases = [one for one in cases if one[0] in options.models]
    cases += [(name, "float32") for name in options.models if name not in KNOWN]
    for name, policy in cases:
        model, batch = known(name, policy) if name in KNOWN else build(name)
        graph = sn.read(model, batch)
        plan = {"batch": batch, "optimizer": "sgd", "pins": {"*": "gpu:0"}}
        told = [sn.plan(graph, cluster, **plan).seconds]
        if name in MODELS[4:]:  # others take minutes
            costs = sn.measure(model, sn.Cluster((gpu,)), batch, optimizer="sgd")
            told.append(sn.plan(graph, cluster, **plan, costs=costs).seconds)
        x, y = rows(model, batch)
        taken = []
        for jit in (False, "auto"):
            model.compile("sgd", "mse", jit_compile=jit)
            taken.append(seconds(model, x, y))
        cells = "".join(f"{1e3 * t:12.2f}{told[0] / t:12.2f}   " for t in taken)
        cells += "".join(f"{one / taken[0]:12.2f}" for one in told[1:])
        print(f"  {name:15}{policy:15}{batch:5}{cells}", flush=True)


def placed(options):
    """The step of a placed model over that of plain Keras."""
    import keras

    import splitnet as sn

    cluster = machine(options)
    gpus = [device.name for device in cluster.of_kind("gpu")]
    print("  model           plain, ms   with XLA   on gpu:0   with XLA", end="")
    print(f"   over {len(gpus)} GPUs   with XLA   first step, s, of all")
    for name in options.models:
        model, batch = build(name)
        graph = sn.read(model, batch)
        x, y = rows(model, batch)
        models = [(model, False), (keras.models.clone_model(model), "auto")]
        for homes in ({"*": "gpu:0"}, dealt(graph, gpus)):
            plan = sn.score(model, cluster, homes, batch=batch, optimizer="sgd")
            for xla in (False, None):
                copy = keras.models.clone_model(model)
                models.append((sn.emit(copy, plan, xla=xla), "auto"))
        times, first = [], []
        for one, jit in models:
            one.compile("sgd", "mse", jit_compile=jit)
            began = time.perf_counter()
            one.train_on_batch(x, y)
            first.append(f"{time.perf_counter() - began:.1f}")
            times.append(seconds(one, x, y))
        ratios = "".join(f"{other / times[0]:11.3f}" for other in times[1:])
        print(
            f"  {name:15}{1e3 * times[0]:10.2f}{ratios}   {', '.join(first)}",
            flush=True,
        )


def memory(options):
    """The predicted peak of a step over the allocator's, per device."""
    if len(options.models) != 1:
        for name in options.models:
            again(options, "memory", "--models", name)
        return
    import tensorflow as tf

    import splitnet as sn

    cluster = machine(options)
    [name] = options.models
    model, batch = build(name)
    x, y = rows(model, batch)
    found = []
    two = ("gpu:0", "gpu:1")
    memory_of = tf.config.experimental
    for way, made in ways(model, batch, cluster, two):
        made.compile("sgd", "mse")
        for _ in range(2):
            made.train_on_batch(x, y)
        cells = []
        for device in two:
            gc.collect()
            peaks = []
            for _ in range(3):
                before = memory_of.get_memory_info(device.upper())["current"]
                memory_of.reset_memory_stats(device.upper())
                made.train_on_batch(x, y)
                peak = memory_of.get_memory_info(device.upper())["peak"]
                peaks.append(peak - before)
            planned = sn.plan_of(made).memory[device]
            predicted = planned.total - planned.weights - planned.slots
            most = statistics.median(peaks)
            if most > 1e6:
                cells.append(f"{most / 1e6:.0f} MB {predicted / most:.2f}")
        found.append(f"{way} {', '.join(cells)}")
        del made
    print(f"  {name:15}{batch:5}  {'; '.join(found)}", flush=True)


def crossings(options):
    """Microseconds of each further part, its copies included."""
    import keras
    from keras import layers

    import splitnet as sn

    cluster = machine(options)
    x = entry = keras.Input((256,))
    for number in range(48):
        x = layers.Dense(256, "relu", name=f"d{number}")(x)
    model = keras.Model(entry, x)
    inputs, targets = rows(model, 64)
    print("  parts   step, ms   each further part, us   predicted, us")
    before = planned_before = None
    for length in (48, 24, 8, 4, 2, 1):
        homes = {f"d{i}": f"gpu:{i // length % 2}" for i in range(48)}
        plan = sn.score(model, cluster, homes, batch=64, optimizer="sgd")
        made = sn.emit(keras.models.clone_model(model), plan)
        made.compile("sgd", "mse")
        taken, count = seconds(made, inputs, targets, 100), 48 // length
        if before is None:
            before, planned_before = taken, plan.seconds
            print(f"  {count:5}{1e3 * taken:11.2f}")
            continue
        each = (taken - before) / (count - 1)
        planned = (plan.seconds - planned_before) / (count - 1)
        print(f"  {count:5}{1e3 * taken:11.2f}{1e6 * each:16.0f}{1e6 * planned:24.0f}")


def timeline(options):
    """A profiled step of a placed model, the links, and the audit of its step."""
    import keras

    import splitnet as sn

    cluster = machine(options)
    model, batch = build("transformer")
    where = [device.name for device in cluster.of_kind("gpu")]
    homes = dealt(sn.read(model, batch), where)
    plan = sn.score(model, cluster, homes, batch=batch, optimizer="sgd")
    made = sn.emit(model, plan)
    made.compile("sgd", keras.losses.MeanSquaredError())
    x, y = rows(made, batch)
    print(sn.audit(made, plan, (x, y)))
    found = sn.profile_step(made, (x, y))
    for device in where:
        mine = [task for task in found.tasks if task.device == device]
        busy = sum(task.stop - task.start for task in mine)
        print(f"  {device}: {len(mine)} tasks, {1e3 * busy:.3f} ms")
    print(f"  profiled {1e3 * found.seconds:.3f} ms, planned {1e3 * plan.seconds:.3f}")
    print(sn.measure(model, cluster, batch).links)


def again(options, question, *more):
    """Ask one question in a process of its own."""
    command = [sys.executable, __file__, question, "--here", *more]
    command += ["--logical", str(options.logical), "--memory", options.memory]
    command += ["--policies", *options.policies]
    done = subprocess.run(command, check=False)
    if done.returncode:
        print(f"  {question} {' '.join(more)}: exit {done.returncode}", flush=True)


def main():
    """Answer each question in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--logical", type=int, default=4, help="GPUs cut from the card")
    parser.add_argument("--memory", default="12 GiB", help="of each of them")
    parser.add_argument("--policies", nargs="*", default=["float32", "mixed_float16"])
    parser.add_argument("--models", nargs="*", default=MODELS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.here:
        globals()[options.questions[0]](options)
        return
    heading(__doc__.splitlines()[0])
    for question in options.questions:
        print(f"{question}: {globals()[question].__doc__}", flush=True)
        again(options, question, "--models", *options.models)


if __name__ == "__main__":
    main()
