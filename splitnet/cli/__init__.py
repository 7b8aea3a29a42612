"""The command line; see `app`."""

from splitnet.cli.app import main

__all__ = ["main"]
