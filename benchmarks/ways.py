"""Does the verdict name the fastest way, and are its step times within 20 %?

Two worker processes, a core and a thread each. Each model is measured once call by call
(`sn.measure`); `sn.compare_strategies` then simulates one device, the plan, towers and
a pipeline with those costs, and each of them is built and run with plain `fit`, in
turn. A step is timed from the end of one to the end of the next within an epoch.

    python benchmarks/ways.py [MODEL ...] [--rounds N]
"""

import argparse
import re

from common import heading, order_of, quartiles, undisturbed

WORKERS = ("worker:0/cpu:0", "worker:1/cpu:0")
STEPS = 9
MODELS = {"branches": 512, "chain": 1024, "small": 16}


def build(name):
    """Two equal branches, a chain, or a model too small to gain anything."""
    import keras
    from keras import layers

    width, depth = {"branches": (512, 6), "chain": (512, 8), "small": (64, 2)}[name]
    entry = keras.Input((width,))

    def stack(x, side):
        for i in range(depth):
            x = layers.Dense(width, "relu", name=f"{side}_{i}")(x)
        return x

    names = ["left", "right"] if name == "branches" else ["stack"]
    sides = [stack(entry, side) for side in names]
    x = layers.Concatenate()(sides) if len(sides) > 1 else sides[0]
    return keras.Model(entry, layers.Dense(1)(x))


def plan_of(sn, name, model, cluster, batch, costs):
    """Branches on a worker each; a chain's halves."""
    graph = sn.read(model, batch)
    inputs = [part.name for part in graph.parts if part.kind == "input"]
    rest = [part.name for part in graph.parts if part.kind != "input"]
    where = dict.fromkeys(inputs, "cpu:0") | dict.fromkeys(rest, WORKERS[0])
    second = rest[len(rest) // 2 :]
    if name == "branches":
        second = [n for n in rest if "right" in n]
    where |= dict.fromkeys(second, WORKERS[1])
    return sn.score(model, cluster, where, batch=batch, costs=costs, optimizer="sgd")


def built(sn, way, model, plan, cluster, batch):
    """The model that a way says how to get."""
    if way.kind == "one device":
        device = way.how.removeprefix("all on ")
        where = {
            part.name: "cpu:0" if part.kind == "input" else device
            for part in plan.graph.parts
        }
        return sn.emit(model, sn.score(model, cluster, where, batch=batch))
    if way.kind == "towers":
        home = re.search(r"weights_on='([^']+)'", way.how)[1]
        return sn.data_parallel(
            model, cluster, devices=list(WORKERS), batch=batch, weights_on=home
        )
    found = re.search(r"microbatches=(\d+), schedule='(\w+)'", way.how)
    options = {"microbatches": int(found[1]), "schedule": found[2]} if found else {}
    return sn.emit(model, plan, **options)


def main():
    """Print a row for each way of each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()

    import splitnet as sn

    with sn.local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        cluster, pids = workers.cluster, [workers.pid(i) for i in range(2)]
        sn.connect(cluster)
        import numpy as np

        from splitnet.tf.profiling.timing import StepTimes

        print("  model     way         predicted, ms  measured, ms       ratio")
        for name in options.models:
            model, batch = build(name), MODELS[name]
            with undisturbed(*pids):
                costs = sn.measure(model, cluster, batch, optimizer="sgd")
            plan = plan_of(sn, name, model, cluster, batch, costs)
            shape = (batch * STEPS, model.inputs[0].shape[1])
            x = np.random.default_rng(0).normal(size=shape).astype("float32")
            y = np.zeros((batch * STEPS, 1), "float32")
            fit = {"batch_size": batch, "shuffle": False, "verbose": 0}
            ways = sn.compare_strategies(plan).all
            models = [built(sn, w, model, plan, cluster, batch) for w in ways]
            seconds = [[] for _ in ways]
            for made in models:
                made.compile("sgd", "mse")
                made.fit(x, y, **fit)
            with undisturbed(*pids):
                for _ in range(options.rounds):
                    for made, took in zip(models, seconds):
                        times = StepTimes()
                        made.fit(x, y, callbacks=[times], **fit)
                        took += times.seconds
            judged = []
            for way, took in zip(ways, seconds):
                low, middle, high = quartiles(took)
                judged.append((way.kind, way.seconds, (low, middle, high)))
                print(
                    f"  {name:8}  {way.kind:10}  {1e3 * way.seconds:10.1f}     "
                    f"{1e3 * middle:7.1f} ({1e3 * low:.0f} to {1e3 * high:.0f})"
                    f"{way.seconds / middle:8.2f}   {way.how}",
                    flush=True,
                )
            print(f"  {name:8}  {order_of(judged)}", flush=True)


if __name__ == "__main__":
    main()
