"""All checks in one: `python -m tests` runs lint, format, types and tests.

It goes on after a failure, so that one run shows everything, and exits 1 if any failed.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS = (
    ("lint", ["ruff", "check", "."]),
    ("format", ["ruff", "format", "--check", "."]),
    ("types", ["mypy"]),
    ("tests", ["pytest", "-n", "2", "--dist", "loadfile", *sys.argv[1:]]),
)


def main() -> int:
    """Run every check in the project's root; 0 if all passed."""
    failed = []
    for name, command in CHECKS:
        print(f"== {name}: {' '.join(command)}", flush=True)
        done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False)
        if done.returncode:
            failed.append(name)
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
