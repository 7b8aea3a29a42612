"""The command `splitnet`: the library's verbs, by the same names.

Exit codes: 0 done, 1 the answer is no (it does not fit, the audit failed), 2 usage
error, 130 interrupted. TensorFlow is imported inside the commands that need it.
"""

import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import splitnet.cli.device_commands as device_commands
import splitnet.cli.launch as launching
import splitnet.cli.plan_commands as plan_commands
import splitnet.cli.worker_commands as worker_commands
from splitnet import __version__
from splitnet.cli.console import say
from splitnet.cli.options import spelled_out
from splitnet.core.errors import AuditError, InfeasibleError, SplitnetError

DONE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130

# In the order in which one meets them, with examples.
_COMMANDS: dict[Callable[..., int], tuple[str, ...]] = {
    device_commands.demo: ("demo", "demo --gpus 1 --epochs 3 --out /tmp/demo"),
    device_commands.devices: ("devices", "devices --stand-ins 2"),
    plan_commands.estimate: (
        "estimate model.py:build --gpus 4 --preset A100",
        "estimate model.keras --gpus 8 --memory '24 GiB' --batch 256",
    ),
    plan_commands.plan: (
        "plan net.py:declare --stand-ins 2 -o plan.json",
        "plan model.keras --gpus 4 --preset A100 --batch 256",
        "plan model.keras --gpus 4 --preset A100 --strategy auto",
        "plan plan.json --pin 'block_*=gpu:1' --json",
    ),
    plan_commands.draw: (
        "draw plan.json -o placement.png",
        "draw plan.json --timeline -o step.svg",
        "draw new.json --other old.json -o moved.svg",
    ),
    plan_commands.report: ("report plan.json -o report.html",),
    device_commands.audit: (
        "audit net.py:declare --stand-ins 2",
        "audit model.keras --plan plan.json --loss sparse_categorical_crossentropy",
    ),
    device_commands.bench: (
        "bench net.py:declare --steps 50",
        "bench model.keras --plan plan.json --loss sparse_categorical_crossentropy",
    ),
    plan_commands.simulate: (
        "simulate plan.json --trace trace.json",
        "simulate plan.json --microbatches 8 --schedule 1f1b",
    ),
    plan_commands.score: ("score net.py:declare mine.json --gpus 2",),
    device_commands.measure: ("measure model.keras -o costs.json",),
    device_commands.config: ("config --check",),
    device_commands.run: (
        "run train.py",
        "run --gpus 0 --memory-fraction 0.5 train.py --lr 0.1",
        "run --workers 2 --max-restarts 3 -- python train.py",
    ),
    worker_commands.worker: ("worker --cluster cluster.toml --index 0", "worker"),
    launching.launch: (
        "launch --nodes 2 --gpus-per-node 4 -o job.sh -- python train.py",
        "launch --engine kubernetes --image IMAGE --nodes 2 -- python train.py",
    ),
}
_CLUSTER_COMMANDS: dict[Callable[..., int], tuple[str, ...]] = {
    worker_commands.up: ("cluster up --workers 2 -- python train.py",),
    worker_commands.health: ("cluster health cluster.toml",),
}
# They hand the options after their arguments to a program.
_PASSES = ("run", "launch", "up")


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


def _group(
    commands: dict[Callable[..., int], tuple[str, ...]], **options: Any
) -> typer.Typer:
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, **options)
    for function, examples in commands.items():
        lines = "\n".join(f"  splitnet {example}" for example in examples)
        passes = function.__name__ in _PASSES
        app.command(
            function.__name__,
            epilog=f"\b\nExamples:\n{lines}",
            context_settings={
                "allow_interspersed_args": not passes,
                "ignore_unknown_options": passes,
            },
        )(spelled_out(function))
    return app


_app = _group(
    _COMMANDS,
    cls=_Commands,
    invoke_without_command=True,
    epilog="Exit codes: 0 done, 1 the answer is no, 2 usage error. "
    "Options and examples: splitnet COMMAND --help",
)


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
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


_app.add_typer(
    _group(_CLUSTER_COMMANDS, no_args_is_help=True),
    name="cluster",
    help="Workers of this machine, and others.",
)
command = typer.main.get_command(_app)
"""The root command, with all others below it."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    if argv is None and isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may know ASCII only
    try:
        command.main(args=argv, prog_name="splitnet")
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        return ended.code or DONE
    return DONE
