"""A graph to plan, and ways to call the command and read what it printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitnet.core.graph import Call, Graph, Part, Tensor, Weights

ROOT = Path(__file__).resolve().parents[2]


def towers() -> Graph:
    """Two branches that meet in a merge; a few megabytes and a gigaflop each."""
    calls = [Call("x", "x", "InputLayer", output_bytes=1 << 20)]
    for name in ("left", "right"):
        calls.append(
            Call(
                name,
                name,
                "Dense",
                output_shapes=((32, 64),),
                output_dtypes=("float32",),
                output_bytes=1 << 20,
                forward_flops=1e9,
                backward_flops=2e9,
                moved_bytes=4 << 20,
                activation_bytes=1 << 20,
                weights=(f"{name}/kernel",),
            )
        )
    calls.append(Call("join", "join", "Concatenate", output_bytes=2 << 20))
    return Graph(
        name="towers",
        batch=32,
        calls=tuple(calls),
        tensors=tuple(
            Tensor(a, b, bytes=1 << 20)
            for a, b in (
                ("x", "left"),
                ("x", "right"),
                ("left", "join"),
                ("right", "join"),
            )
        ),
        weights=tuple(Weights(f"{n}/kernel", 1 << 20) for n in ("left", "right")),
        parts=(
            Part("x", "input", ("cpu",)),
            Part("left", on=("gpu:0",)),
            Part("right", on=("gpu:1",)),
            Part("join", "merge", ("cpu",)),
        ),
        outputs=("join",),
    )


def answer(capsys: pytest.CaptureFixture[str]) -> dict:
    """The JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def child(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-m", "splitnet", *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        check=False,
    )
