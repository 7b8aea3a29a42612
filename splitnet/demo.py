"""The demonstration: a siamese network that compares handwritten digits.

Data: scikit-learn's digits (1,797 scans of 8 x 8 pixels, included in that package). One
encoder is shared by two branches on two GPUs; a merge on the CPU compares them.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import splitnet as sn

ENOUGH = 0.94
BATCH = 256

_NOT_SHOWN = "\nCPU devices stood in for GPUs: speed and memory are estimates.\n"


@dataclass(frozen=True)
class DemoResult:
    """The result; `accuracy` is that on held-out digits, 0 to 1."""

    audit: sn.Audit
    accuracy: float
    train_seconds: float
    files: tuple[Path, ...]

    @property
    def ok(self) -> bool:
        """Whether the accuracy is high enough and the audit found nothing."""
        return self.accuracy >= ENOUGH and self.audit.ok

    def summary(self) -> str:
        """The audit, what stand-ins cannot show, the accuracy, and the files."""
        stand_ins = any(device.stand_in for device in self.audit.plan.cluster)
        low = f" (below {100 * ENOUGH:.0f} %)" if self.accuracy < ENOUGH else ""
        audited = "all as planned" if self.audit.ok else "NOT as planned, see above"
        return (
            f"\n{sn.table(self.audit)}\n{_NOT_SHOWN if stand_ins else ''}\n"
            f"validation accuracy {100 * self.accuracy:.1f} %{low} "
            f"({self.train_seconds:.0f} s of training)\n"
            f"audit: {audited}\nsee {', '.join(map(str, self.files))}"
        )


def declare() -> sn.Net:
    """Declare the network; nothing is built."""
    net = sn.Net("same_digit")
    first, second = (net.input(name, (8, 8, 1)) for name in ("first", "second"))
    encoder = [
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Flatten(),
        layers.Dense(64),
    ]
    left = net.branch("left", first, encoder, on="gpu:0")
    right = net.branch("right", second, encoder, on="gpu:1")
    apart = net.merge("distance", [left, right], lambda two: (two[0] - two[1]) ** 2)
    net.output(net.branch("verdict", apart, layers.Dense(1, "sigmoid"), on="cpu"))
    return net


def pairs_of_digits(*, seed: int = 0) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Training and validation pairs, which share no image; half are of one digit.

    Inputs are two arrays of shape (n, 8, 8, 1), labels have (n, 1), 1 for one digit.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        hint = "which includes the digits: pip install 'splitnet[demo]'"
        raise sn.SplitnetError(f"the demo needs scikit-learn, {hint}") from None
    images, digits = load_digits(return_X_y=True)
    images = (images / 16).astype("float32").reshape(-1, 8, 8, 1)
    draw = np.random.default_rng(seed)

    def pairs(chosen: Any, count: int) -> tuple[Any, Any]:
        first = draw.choice(chosen, count)
        same = draw.random(count) < 0.5
        second = np.empty_like(first)
        for digit in range(10):
            for alike in (True, False):
                here = (digits[first] == digit) & (same == alike)
                others = chosen[(digits[chosen] == digit) == alike]
                second[here] = draw.choice(others, here.sum())
        return [images[first], images[second]], same.astype("float32")[:, None]

    seen, held_out = np.split(draw.permutation(len(images)), [1_400])
    return pairs(seen, 30_000), pairs(held_out, 4_000)


def run(out: Path, epochs: int, gpus: int, say: Callable[[str], None]) -> DemoResult:
    """Plan, draw, train and audit the network, into folder `out`; `say` shows steps."""
    cluster = sn.local_cluster()
    real = cluster.of_kind("gpu")
    if len(real) < gpus:
        cluster = sn.local_cluster(stand_in_gpus=gpus)
    cluster = cluster.without(*(device.name for device in real[gpus:]))
    keras.utils.set_random_seed(0)
    net = declare()
    plan = sn.plan(net, cluster, batch=BATCH)
    say(sn.table(plan))
    out.mkdir(parents=True, exist_ok=True)
    pictures = [sn.draw(plan, out / f"placement.{kind}") for kind in ("svg", "png")]
    plan.save(saved := out / "plan.json")

    (inputs, labels), validation = pairs_of_digits()
    model = sn.emit(net, plan)
    adam = keras.optimizers.Adam(8e-3)
    model.compile(adam, "binary_crossentropy", metrics=["accuracy"])
    options = {"batch_size": BATCH, "epochs": epochs, "validation_data": validation}
    options["verbose"] = 1 if sys.stdout.isatty() else 2  # a bar, or a line an epoch
    started = time.perf_counter()
    history = model.fit(inputs, labels, **options)
    train_seconds = time.perf_counter() - started
    audit = sn.audit(model, plan, ([part[:BATCH] for part in inputs], labels[:BATCH]))
    accuracy, files = history.history["val_accuracy"][-1], (*pictures, saved)
    return DemoResult(audit, accuracy, train_seconds, files)
