"""The command line; see `app`."""

from splitnet.cli.app import main as main
