"""`splitnet completion`: a script that completes commands and options in a shell."""

from argparse import ArgumentParser, Namespace
from typing import Any

from splitnet.cli.screen import show
from splitnet.core.errors import SplitnetError

__all__ = ["add_commands"]

_SHELLS = ("bash", "zsh")
# What is in capitals with a dot or named so is a path, and is completed as one.
_PATHS = ("FILE", "DIR", "TARGET", "WHAT")


def add_commands(commands: Any, parser: ArgumentParser) -> None:
    """Add `splitnet completion` to the parser, which it completes whole."""
    completion = commands.add_parser(
        "completion",
        help="print a script that completes commands in your shell",
        description="Print a completion script. For bash: splitnet completion bash > "
        "~/.local/share/bash-completion/completions/splitnet",
    )
    completion.add_argument("shell", choices=_SHELLS)
    completion.set_defaults(do=lambda arguments: run_completion(arguments, parser))


def run_completion(arguments: Namespace, parser: ArgumentParser) -> int:
    """Print the script for a shell."""
    try:
        import shtab
    except ImportError:
        raise SplitnetError(
            "completion scripts are written by shtab: pip install shtab"
        ) from None
    _complete_paths(parser, shtab.FILE)
    show(shtab.complete(parser, arguments.shell).rstrip())
    return 0


def _complete_paths(parser: ArgumentParser, files: Any) -> None:
    """Let every argument that is a path be completed as one, in all commands."""
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                _complete_paths(child, files)
        elif isinstance(action.metavar, str) and (
            action.metavar in _PATHS or "." in action.metavar
        ):
            action.complete = files  # type: ignore[attr-defined]  # shtab's own word
