"""All checks in one: `python -m tests` runs lint, format, types and tests.

It goes on after a failure, so that one run shows everything, and exits 1 if any failed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

TWO_WORKERS = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
CHECKS = (
    ("lint", ["ruff", "check", "."]),
    ("format", ["ruff", "format", "--check", "."]),
    ("types", ["mypy"]),
    ("tests", ["pytest", *TWO_WORKERS, *sys.argv[1:]]),
)
COMPILED = "from splitnet.planner.engine.solve import warm_up; warm_up()"
"""Beside the first checks: else each of the two workers compiles the search itself."""


def main() -> int:
    """Run every check in the project's root; 0 if all passed."""
    failed = []
    for name, command in CHECKS:
        if name == "tests":
            subprocess.Popen([sys.executable, "-c", COMPILED], cwd=ROOT).wait()
        print(f"== {name}: {' '.join(command)}", flush=True)
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
