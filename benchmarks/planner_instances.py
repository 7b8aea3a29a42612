"""How good are plans after some seconds, over seeds, models and machines?

    python benchmarks/planner_instances.py [--seconds 1 5 60] [--seeds 5]
        [--effort STEPS] [--names ResNet50 ...] [--machines 2x16 ...]
        [--folder FOLDER] [--json FILE]

Random lanes of 30 to 5,000 calls and five Keras models (batch 64), each on three
machines. A row gives the step in milliseconds, its ratio to the bound and whether the
clock ended the search. With `--effort` the seconds are a limit only: rows then do not
depend on what else runs. With a folder, models are read once and kept there.
"""

import argparse
import json
import pickle
import platform
import time
from pathlib import Path

import splitnet as sn
from splitnet.core.cluster import Cluster, Device
from splitnet.core.graph import Graph
from splitnet.planner.engine.solve import warm_up

from planner_scale import lanes  # isort: skip

NETS = {f"lanes{count}": count for count in (30, 100, 300, 1000, 5000)}
MODELS = ("ResNet50", "InceptionV3", "NASNetMobile", "EfficientNetB0", "transformer")
MACHINES = {
    "2x16": Cluster.of("2*gpu", "cpu", memory="16 GiB", link="12 GB/s"),
    "4x3": Cluster.of("4*gpu", "cpu", memory="3 GiB", link="12 GB/s"),
    "8 unlike": Cluster(
        (
            *(
                Device.of(
                    f"gpu:{i}", memory=f"{4 + i} GiB", speed=f"{8 + 2 * i} TFLOP/s"
                )
                for i in range(8)
            ),
            Device.of("cpu"),
        )
    ),
}


def transformer(blocks: int = 24) -> object:
    """Blocks of attention and a feed-forward net, 128 tokens wide 512."""
    import keras

    x = inputs = keras.Input((128, 512))
    for _ in range(blocks):
        y = keras.layers.LayerNormalization()(x)
        x = keras.layers.Add()([x, keras.layers.MultiHeadAttention(8, 64)(y, y)])
        y = keras.layers.LayerNormalization()(x)
        y = keras.layers.Dense(2048, activation="gelu")(y)
        x = keras.layers.Add()([x, keras.layers.Dense(512)(y)])
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def graph_of(name: str, folder: Path | None) -> Graph:
    """A net's graph with a part per call, read or from the folder."""
    if name in NETS:
        return lanes(NETS[name], 6, seed=NETS[name])
    path = folder / f"{name}.pkl" if folder else None
    if path and path.exists():
        return pickle.loads(path.read_bytes())
    import keras

    import splitnet

    if name == "transformer":
        model = transformer()
    else:
        model = getattr(keras.applications, name)(weights=None)
    graph = splitnet.read(model, batch=64)
    if path:
        path.write_bytes(pickle.dumps(graph))
    return graph


def main() -> None:
    """Print a row per net, machine, time limit and seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, nargs="*", default=[1.0, 5.0, 60.0])
    parser.add_argument("--effort", type=int)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--names", nargs="*", default=[*NETS, *MODELS])
    parser.add_argument("--machines", nargs="*", default=list(MACHINES))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"{platform.system()} {platform.machine()}, {platform.python_version()}")
    warm_up()
    rows = []
    for name in options.names:
        graph = graph_of(name, options.folder)
        for machine in options.machines:
            cluster = MACHINES[machine]
            for seconds in options.seconds:
                for seed in range(options.seeds):
                    began = time.perf_counter()
                    plan = sn.plan(
                        graph,
                        cluster,
                        regroup=name in MODELS,
                        time_limit=seconds,
                        effort=options.effort,
                        seed=seed,
                    )
                    row = {
                        "net": name,
                        "machine": machine,
                        "limit": seconds,
                        "seed": seed,
                        "took": round(time.perf_counter() - began, 1),
                        "ms": round(1e3 * plan.seconds, 2),
                        "to_bound": round(plan.seconds / plan.bound, 3),
                        "clock": plan.ended_by_clock,
                    }
                    rows.append(row)
                    print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
