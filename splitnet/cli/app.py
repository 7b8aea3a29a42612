"""The command `splitnet`: the library's verbs, by the same names.

Exit codes: 0 done, 1 the answer is no (it does not fit, the audit failed), 2 usage
error, 130 interrupted. TensorFlow is imported inside the commands that need it.
"""

import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from splitnet._version import __version__
from splitnet.cli import device_commands, plan_commands, training, worker_commands
from splitnet.cli.console import say
from splitnet.core.errors import AuditError, InfeasibleError, SplitnetError

__all__ = ["command", "main"]

DONE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130


class _Commands(TyperGroup):
    """Commands that return their exit code; splitnet's errors become messages."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command; what it returns or raises becomes the exit code."""
        try:
            with warnings.catch_warnings():
                warnings.showwarning = lambda message, *where: say(
                    f"warning: {message}"
                )
                raise typer.Exit(super().invoke(ctx) or DONE)
        except SplitnetError as error:
            say(f"{type(error).__name__}: {error}")
            no = isinstance(error, InfeasibleError | AuditError)
            raise typer.Exit(NO if no else USAGE) from None
        except KeyboardInterrupt:
            say("interrupted")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            # The reader has ended, as `| head` does; Python would complain at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(DONE) from None


_app = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 1 the answer is no, 2 usage error. "
    "Options and examples: splitnet COMMAND --help",
)
_cluster = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@_app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.")
    ] = False,
) -> None:
    """Keras models on several devices: declare, plan, train, audit."""
    if version:
        typer.echo(f"splitnet {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _add(
    app: typer.Typer, function: Callable[..., int], *examples: str, passes: bool = False
) -> None:
    """Add a command; `passes` hands options after its arguments to a program."""
    lines = "\n".join(f"  splitnet {example}" for example in examples)
    app.command(
        function.__name__,
        epilog=f"\b\nExamples:\n{lines}",
        context_settings={
            "allow_interspersed_args": not passes,
            "ignore_unknown_options": passes,
        },
    )(function)


_add(_app, training.demo, "demo", "demo --gpus 1 --epochs 3 --out /tmp/demo")
_add(
    _app,
    plan_commands.plan,
    "plan net.py:declare --stand-ins 2 -o plan.json",
    "plan model.keras --cluster '4*gpu,cpu' --preset A100 --batch 256",
    "plan plan.json --pin 'block_*=gpu:1' --json",
)
_add(
    _app,
    plan_commands.compare,
    "compare model.keras --cluster '4*gpu,cpu' --preset A100",
)
_add(
    _app,
    plan_commands.score,
    "score net.py:declare mine.json --cluster '2*gpu,cpu'",
)
_add(
    _app,
    plan_commands.simulate,
    "simulate plan.json --trace trace.json",
    "simulate plan.json --microbatches 8 --schedule 1f1b",
)
_add(
    _app,
    plan_commands.draw,
    "draw plan.json -o placement.png",
    "draw plan.json --timeline -o step.svg",
    "draw new.json --other old.json -o moved.svg",
)
_add(_app, plan_commands.report, "report plan.json -o report.html")
_add(
    _app,
    training.audit,
    "audit net.py:declare --stand-ins 2",
    "audit model.keras --plan plan.json --loss sparse_categorical_crossentropy",
)
_add(_app, device_commands.measure, "measure model.keras -o costs.json")
_add(_app, device_commands.devices, "devices", "devices --watch --every 5")
_add(_app, device_commands.config, "config --check")
_add(
    _app,
    device_commands.run,
    "run train.py",
    "run --gpus 0 --memory-fraction 0.5 train.py --lr 0.1",
    passes=True,
)
_add(_app, worker_commands.worker, "worker --cluster cluster.toml --index 0")
_app.add_typer(_cluster, name="cluster", help="Workers of this machine, and others.")
_add(
    _cluster,
    worker_commands.up,
    "cluster up --workers 2 -- python train.py",
    passes=True,
)
_add(
    _cluster, worker_commands.join, "cluster join 4711 -- python train.py", passes=True
)
_add(_cluster, worker_commands.health, "cluster health cluster.toml")

command = typer.main.get_command(_app)
"""The root command, with all others below it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    began = time.perf_counter()
    if argv is None:
        began -= time.process_time()  # the command began when Python did
    try:
        command.main(args=argv, prog_name="splitnet", obj=began)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        return ended.code or DONE
    return DONE
