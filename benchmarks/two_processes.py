"""How much faster are two equal branches on two workers than on one of them?

Two TensorFlow worker processes, each pinned to a core with one thread; a client that is
pinned to nothing; plain `fit`. The same net is planned twice: both branches on worker
0, and one on each. Each pair of epochs is run in turn; a row is the median over the
pairs. The limit is 2. Workers and client live in a private network namespace.

    python benchmarks/two_processes.py [--rounds N] [--batches 256 1024]
"""

import argparse
from functools import partial

from common import heading, paired, spread, undisturbed

WIDTH, DEPTH = 512, 16


def declare(sn, homes):
    """Two equal branches with a small output each; the merge is on the client."""
    from keras import layers

    net = sn.Net("two_branches")
    x = net.input("x", (WIDTH,))
    sides = [
        net.branch(
            name,
            x,
            [
                *(
                    layers.Dense(WIDTH, "relu", name=f"{name}_{i}")
                    for i in range(DEPTH)
                ),
                layers.Dense(32, name=f"{name}_out"),
            ],
            on=home,
        )
        for name, home in zip(("left", "right"), homes)
    ]
    joined = net.merge("join", sides, layers.Concatenate(), on="cpu:0")
    net.output(net.branch("head", joined, layers.Dense(1), on="cpu:0"))
    return net


def emitted(sn, cluster, homes, batch):
    """The placed and compiled model with its plan."""
    net = declare(sn, homes)
    plan = sn.plan(net, cluster, batch=batch)
    model = sn.emit(net, plan)
    model.compile("sgd", "mse")
    return model, plan


def main():
    """Print a row for each batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 1024])
    options = parser.parse_args()

    import splitnet as sn
    from splitnet.tf.workers import local_workers

    with local_workers(2, pin=True) as workers:
        heading(__doc__.splitlines()[0])
        sn.connect(workers.cluster)
        import numpy as np

        one_home = ("worker:0/cpu:0", "worker:0/cpu:0")
        two_homes = ("worker:0/cpu:0", "worker:1/cpu:0")
        print("  batch  on one, ms        on two, ms        times faster")
        for batch in options.batches:
            rng = np.random.default_rng(0)
            count = batch * options.steps
            x = rng.normal(size=(count, WIDTH)).astype("float32")
            y = rng.normal(size=(count, 1)).astype("float32")
            models = []
            for homes in (one_home, two_homes):
                model, plan = emitted(sn, workers.cluster, homes, batch)
                sn.audit(model, plan, (x[:batch], y[:batch])).check()
                models.append(model)
            runs = [
                partial(m.fit, x, y, batch_size=batch, shuffle=False, verbose=0)
                for m in models
            ]
            for run in runs:
                run()
            with undisturbed(*(workers.pid(i) for i in range(2))):
                one, two = paired(*runs, rounds=options.rounds)
            ratios = [a / b for a, b in zip(one, two)]
            one, two = ([1e3 * s / options.steps for s in each] for each in (one, two))
            print(f"  {batch:5}  {_ms(one)}  {_ms(two)}  {spread(ratios)}", flush=True)


def _ms(values):
    from common import quartiles

    low, middle, high = quartiles(values)
    return f"{middle:6.1f} ({low:.0f} to {high:.0f})".ljust(18)


if __name__ == "__main__":
    main()
