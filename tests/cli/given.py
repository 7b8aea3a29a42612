"""A graph to plan, and ways to call the command and read what it printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from splitnet.core.graph import Call, Graph, Part, Tensor, Weights

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20


def towers() -> Graph:
    """Two branches that meet in a merge; a few megabytes and a gigaflop each."""
    branches = [
        Call(
            name,
            name,
            "Dense",
            output_shapes=((32, 64),),
            output_dtypes=("float32",),
            output_bytes=MIB,
            forward_flops=1e9,
            backward_flops=2e9,
            moved_bytes=4 * MIB,
            activation_bytes=MIB,
            weights=(f"{name}/kernel",),
        )
        for name in ("left", "right")
    ]
    first = Call("x", "x", "InputLayer", output_bytes=MIB)
    last = Call("join", "join", "Concatenate", output_bytes=2 * MIB)
    ends = [("x", "left"), ("x", "right"), ("left", "join"), ("right", "join")]
    return Graph(
        name="towers",
        batch=32,
        calls=(first, *branches, last),
        tensors=tuple(Tensor(a, b, bytes=MIB) for a, b in ends),
        weights=tuple(Weights(f"{n}/kernel", MIB) for n in ("left", "right")),
        parts=(
            Part("x", "input", ("cpu",)),
            Part("left", on=("gpu:0",)),
            Part("right", on=("gpu:1",)),
            Part("join", "merge", ("cpu",)),
        ),
        outputs=("join",),
    )


def workload(count: int, gpus: int = 2) -> dict:
    """A benchmark workload: a chain of equal nodes, some accelerators and a core."""
    nodes = [
        {"id": i, "fpgaLatency": 1.0, "cpuLatency": 10.0, "size": 1}
        | {"supportedOnFpga": True, "isBackwardNode": False}
        for i in range(1, count + 1)
    ]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in range(1, count)]
    machine = {"maxFPGAs": gpus, "maxCPUs": 1, "maxSizePerFPGA": 100}
    return machine | {"nodes": nodes, "edges": edges}


def answer(capsys: pytest.CaptureFixture[str]) -> dict:
    """The JSON that was printed."""
    return json.loads(capsys.readouterr().out)


def python(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own."""
    return subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environ,
        check=False,
    )


def child(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a Python of its own."""
    return python("-m", "splitnet", *words, **environ)
