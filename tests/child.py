"""Programs that run beside the tests, each in a process of its own."""

import os
import subprocess
import sys


def run(*command, code=0, cwd=None, seconds=None, **environ):
    """Run a command to its end, with this exit code; splitnet and tests are found."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    how = {"cwd": cwd, "timeout": seconds, "env": os.environ | paths | environ}
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    assert done.returncode == code, done.stdout[-4000:] + done.stderr[-4000:]
    return done


def python(*words, **how):
    return run(sys.executable, *words, **how)
