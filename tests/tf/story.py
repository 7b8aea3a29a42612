"""Programs that each run in a Python of its own."""

import json
import textwrap

from tests.child import python

HEAD = """
import json, os, signal, socket, subprocess, sys, tempfile, time, warnings
sys.modules["sklearn"] = None  # Keras imports it for wrappers that nobody uses here
import splitnet as sn
from splitnet.tf.runtime.configure import started
answer = {}

def said(act):
    try:
        act()
    except sn.SplitnetError as error:
        return type(error).__name__ + ": " + str(error)
    return "nothing"

"""


def story(code, folder, *, seconds=240, **environ):
    """Run a program in a fresh Python; its `answer` comes back, with its stderr."""
    script = folder / "story.py"
    script.write_text(HEAD + textwrap.dedent(code) + "\nprint(json.dumps(answer))\n")
    done = python(script, cwd=folder, seconds=seconds, **environ)
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}
