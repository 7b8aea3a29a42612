"""The command line; see `app`."""

from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    from splitnet.cli.app import main

    return main(argv)
