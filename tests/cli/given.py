"""A workload, and ways to call the command and read what it printed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


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
