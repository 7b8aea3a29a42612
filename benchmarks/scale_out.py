"""How do planning time, predicted step and memory grow from 8 to 64 GPUs on 8 hosts?

    python benchmarks/scale_out.py [--gpus 8 16 32 64] [--time-limit 20]

A transformer of 100 blocks and a net of 64 experts, trained with Adam on A100s. The
times are predicted; nothing is trained.
"""

import argparse
import platform
import time
from dataclasses import replace

import keras
from keras import layers

import splitnet as sn


def cluster_of(gpus: int, hosts: int = 8) -> sn.Cluster:
    """A100s on 8 hosts: 250 GB/s within a host, 12.5 GB/s between hosts."""
    names = ["cpu:0"]
    for index in range(gpus):
        names.append(f"worker:{index * hosts // gpus}/gpu:{index % (gpus // hosts)}")
    made = sn.Cluster.of(*names, preset="A100", link="12.5 GB/s", latency="30 us")
    near = [
        sn.Link(one.name, other.name, 250e9, 1e-5)
        for one in made
        for other in made
        if one.host == other.host and one is not other
    ]
    return replace(made, links=(*near, *made.links))


def transformer(blocks: int = 100, width: int = 1024, tokens: int = 512) -> keras.Model:
    """Blocks of attention and a feed-forward net."""
    x = inputs = keras.Input((tokens, width))
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(16, width // 16)(y, y)])
        y = layers.LayerNormalization()(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    return keras.Model(inputs, layers.Dense(10)(x), name="transformer")


def experts(count: int = 64, width: int = 2048) -> keras.Model:
    """Experts of two layers side by side, joined by a mean."""
    inputs = keras.Input((width,))
    sides = [
        layers.Dense(width)(layers.Dense(4 * width, activation="relu")(inputs))
        for _ in range(count)
    ]
    return keras.Model(inputs, layers.Average()(sides), name="experts")


def main() -> None:
    """Print a row per model and number of GPUs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpus", type=int, nargs="*", default=[8, 16, 32, 64])
    parser.add_argument("--time-limit", type=float, default=20.0)
    options = parser.parse_args()
    print(f"{platform.machine()}, Python {platform.python_version()}")
    print("model        GPUs  planned in  step        one GPU     peak     strategy")
    for build, batch in ((transformer, 64), (experts, 4096)):
        for count in options.gpus:
            began = time.perf_counter()
            plan = sn.plan(
                build,
                cluster_of(count),
                batch=batch,
                strategy="auto",
                time_limit=options.time_limit,
            )
            took = time.perf_counter() - began
            peak = max(m.total for name, m in plan.memory.items() if "gpu" in name)
            alone = plan.verdict.single_device_value if plan.verdict else None
            print(
                f"{build.__name__:12} {count:4}  {took:8.1f} s  "
                f"{1e3 * plan.seconds:7.1f} ms  "
                + (f"{1e3 * alone:7.1f} ms" if alone else "does not fit")
                + f"  {peak / 2**30:5.1f} GiB  {plan.execution}",
                flush=True,
            )


if __name__ == "__main__":
    main()
