"""How long until a command answers: imports and the TensorFlow-free commands.

    python benchmarks/start_up.py [--runs 5]

Prints the best and the median of several fresh processes, the bare interpreter first.
Nothing here imports TensorFlow; if one of these rows takes seconds, something does.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import heading

GRAPH = {
    "name": "small",
    "batch": 32,
    "outputs": ["b"],
    "calls": [
        {"name": "a", "part": "a", "kind": "Dense", "forward_flops": 1e9},
        {"name": "b", "part": "b", "kind": "Dense", "forward_flops": 1e9},
    ],
    "tensors": [{"source": "a", "target": "b", "bytes": 1024}],
    "weights": [],
    "parts": [{"name": "a"}, {"name": "b"}],
}


def seconds_of(command: list[str], runs: int) -> list[float]:
    """Wall-clock seconds of a command in fresh processes."""
    taken = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken.append(time.perf_counter() - began)
    return taken


def main() -> None:
    """Time each row and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    heading("How long until a command answers?")
    with tempfile.TemporaryDirectory() as folder:
        graph = Path(folder) / "graph.json"
        graph.write_text(json.dumps(GRAPH))
        plan = str(Path(folder) / "plan.json")
        cli = [sys.executable, "-m", "splitnet"]
        rows = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "import splitnet": [sys.executable, "-c", "import splitnet"],
            "splitnet --help": [*cli, "--help"],
            "splitnet config": [*cli, "config"],
            "splitnet plan graph.json": [
                *(*cli, "plan", str(graph)),
                *("--cluster", "2*gpu,cpu", "-o", plan),
            ],
            "splitnet simulate plan.json": [*cli, "simulate", plan],
            "splitnet draw plan.json": [*cli, "draw", plan, "-o", plan + ".svg"],
        }
        print(f"{'command':30} {'best':>8} {'median':>8}   ({runs} processes each)")
        for name, command in rows.items():
            taken = seconds_of(command, runs)
            print(
                f"{name:30} {min(taken):7.3f}s {statistics.median(taken):7.3f}s",
                flush=True,
            )


if __name__ == "__main__":
    main()
