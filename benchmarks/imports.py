"""How long do `import splitnet` and the commands that need no TensorFlow take?

The fastest and the middle of several runs, each in a fresh process, with Python's own
start-up beside them; and whether TensorFlow or Keras was loaded.

    python benchmarks/imports.py [--rounds N]
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import heading, quartiles, undisturbed

SEEN = (
    "import sys\n{code}\n"
    "print([m for m in ('tensorflow', 'keras') if m in sys.modules], file=sys.stderr)"
)


def saved_plan(folder):
    """A plan and its graph as files; made without TensorFlow."""
    from splitnet.core.cluster import Cluster
    from splitnet.core.graph import Call, Graph, Part, Tensor
    from splitnet.core.serialization import encode, write_json

    names = [f"layer_{i}" for i in range(30)]
    graph = Graph(
        name="chain",
        batch=32,
        calls=tuple(Call(n, n, "Dense", forward_flops=1e6) for n in names),
        tensors=tuple(
            Tensor(a, b, 0, (32, 64), "float32", 8192) for a, b in zip(names, names[1:])
        ),
        weights=(),
        parts=tuple(Part(n) for n in names),
        outputs=(names[-1],),
    )
    assert Cluster.of("2*gpu", "cpu")
    path = Path(folder) / "graph.json"
    write_json(encode(graph), path, "graph")
    return path


def measure(label, code, rounds):
    """Print one line: seconds, and what was loaded."""
    seconds, loaded = [], ""
    for _ in range(rounds):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", SEEN.format(code=code)],
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(time.perf_counter() - began)
        loaded = done.stderr.strip().splitlines()[-1]
    middle = quartiles(seconds)[1]
    print(f"  {label:34}{min(seconds):8.3f}{middle:9.3f}   {loaded}", flush=True)


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    heading(__doc__.splitlines()[0])
    run = (
        "from splitnet.cli import main\n"
        "try:\n    main({words!r})\nexcept SystemExit:\n    pass"
    )
    with tempfile.TemporaryDirectory() as folder:
        graph = str(saved_plan(folder))
        words = ["plan", graph, "--cluster", "2*gpu,cpu", "--time-limit", "0.5"]
        print("  seconds, fresh process             fastest   middle   loaded")
        with undisturbed():
            measure("python (nothing)", "pass", options.rounds)
            measure("import splitnet", "import splitnet", options.rounds)
            help_ = run.format(words=["--help"])
            measure("splitnet --help", help_, options.rounds)
            measure("splitnet plan graph.json", run.format(words=words), options.rounds)


if __name__ == "__main__":
    main()
