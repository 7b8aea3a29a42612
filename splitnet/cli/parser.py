"""The commands and their options; knows no command's insides."""

import argparse

from splitnet._version import __version__
from splitnet.cli import (
    completion,
    machine,
    planning,
    saved,
    scoring,
    several,
    training,
)

__all__ = ["make_parser"]


def make_parser() -> argparse.ArgumentParser:
    """Build the parser; imports neither TensorFlow nor Keras."""
    parser = argparse.ArgumentParser(
        prog="splitnet",
        description="Keras models on several devices: declare, plan, train, prove.",
        epilog="Exit codes: 0 done, 1 the answer is no (does not fit, audit failed), "
        "2 asked wrongly. Any command: splitnet COMMAND --help",
    )
    parser.add_argument(
        "--version", action="version", version=f"splitnet {__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    training.add_demo(commands)
    planning.add_commands(commands)
    scoring.add_commands(commands)
    saved.add_commands(commands)
    training.add_audit(commands)
    machine.add_commands(commands)
    several.add_commands(commands)
    completion.add_commands(commands, parser)
    return parser
