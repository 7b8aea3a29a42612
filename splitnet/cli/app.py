"""The command `splitnet`: the library's verbs, by the same names.

Exit codes: 0 done, 1 the answer is no (it does not fit, the audit failed), 2 usage
error, 130 interrupted, 141 unread (`| head`). Commands import TensorFlow if needed.
"""

import io
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Context, Exit, Option, Typer
from typer.main import get_command

import splitnet.cli.commands as its
import splitnet.cli.worker_commands as workers
from splitnet import __version__
from splitnet.cli.console import say
from splitnet.cli.options import spelled_out
from splitnet.core.errors import AuditError, InfeasibleError, SplitnetError

DONE, NO, USAGE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141  # as shells report signals

_EXAMPLES = Path(__file__).with_name("templates").joinpath("examples.txt").read_text()
_PASSES = ("run", "launch", "cluster up")  # options after their arguments, to a program
_PASSES_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


def _group(*functions: Callable[..., Any], prefix: str = "", **options: Any) -> Typer:
    app = Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **options)
    for function in functions:
        name = prefix + function.__name__
        lines = re.findall(rf"^{name}\b.*", _EXAMPLES, re.MULTILINE)
        about = "\n  splitnet ".join(["\b\nExamples:", *lines])
        how = _PASSES_ON if name in _PASSES else {}
        add = app.command(function.__name__, epilog=about, context_settings=how)
        add(spelled_out(function))
    return app


def _end(code: int | None, **options: object) -> None:
    """End with what a command returned, once all that it printed is written."""
    sys.stdout.flush()
    raise Exit(code or DONE)


_app = _group(
    *(its.demo, its.devices, its.estimate, its.plan, its.draw, its.report, its.audit),
    *(its.bench, its.simulate, its.score, its.measure, its.config, its.run),
    *(workers.worker, workers.launch),
    result_callback=_end,
    invoke_without_command=True,
    epilog="Exit codes: 0 done, 1 the answer is no, 2 usage error. "
    "Options and examples: splitnet COMMAND --help",
)
_cluster = _group(workers.up, workers.health, prefix="cluster ", no_args_is_help=True)
_app.add_typer(_cluster, name="cluster", help="Workers of this machine, and others.")


@_app.callback()
def _root(
    context: Context,
    version: Annotated[bool, Option("--version", help="Show the version.")] = False,
) -> None:
    """Keras models on several devices: declare, plan, train, audit."""
    if version:
        print(f"splitnet {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


command = get_command(_app)


def main(argv: Sequence[str] | None = None) -> int | str:
    """Run one command; returns what to exit with. An output may be closed, `>&-`."""
    sys.stdout, sys.stderr = (x or io.StringIO() for x in (sys.stdout, sys.stderr))
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *where: say(f"warning: {message}")
            return int(command.main(args=argv, prog_name="splitnet"))
    except (SplitnetError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        if isinstance(error, OSError):  # a full disk: what is left goes nowhere
            sys.stdout = io.StringIO()
        if isinstance(error, FileNotFoundError) and not error.filename:
            say("the working folder was deleted: change to one that exists.")
        return NO if isinstance(error, InfeasibleError | AuditError) else USAGE
    except SystemExit as ended:
        if ended.code == NO and isinstance(ended.__context__, BrokenPipeError):
            return UNREAD
        if ended.code == INTERRUPTED:
            say("interrupted")
        return ended.code or DONE
