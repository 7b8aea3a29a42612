"""Commands that run a model: demo and audit."""

from argparse import Namespace
from pathlib import Path
from typing import Any

from splitnet.cli.planning import add_planning_options, plan_target
from splitnet.cli.screen import hush, progress, show, show_json
from splitnet.cli.sources import TARGET_HELP
from splitnet.core.errors import DeclarationError, DeviceError

__all__ = ["add_audit", "add_demo"]


def add_demo(commands: Any) -> None:
    """Add `splitnet demo` to the parser."""
    parser = commands.add_parser(
        "demo",
        help="train a shared encoder on two devices and prove where it ran",
        description="Real handwritten digits, a siamese network on two GPUs (or CPU "
        "devices that stand in for them) and a merge on the CPU: plan, draw, train, "
        "audit. Exit code 1 if it learns too little or anything strays.",
    )
    parser.add_argument(
        "--epochs", type=int, default=5, metavar="N", help="passes over the pairs (5)"
    )
    parser.add_argument(
        "--gpus",
        type=int,
        default=2,
        metavar="N",
        help="GPUs to use (2); CPU devices stand in for those that are not here",
    )
    parser.add_argument("--out", default="demo", metavar="DIR", help="for the pictures")
    parser.add_argument("--json", action="store_true", help="for a program")
    parser.add_argument(
        "--tf-log", action="store_true", help="show TensorFlow's start-up lines"
    )
    parser.set_defaults(do=run_demo)


def run_demo(arguments: Namespace) -> int:
    """Run the demonstration; 1 if it learned too little or strayed."""
    if arguments.epochs < 1 or arguments.gpus < 0:
        raise DeviceError("--epochs is 1 or more, --gpus is 0 or more.")
    hush(loud=arguments.tf_log)
    from splitnet import demo

    steps = arguments.epochs * -(-demo.TRAINING_PAIRS // demo.BATCH)
    with progress("training", total=steps) as advance:
        outcome = demo.run(
            arguments.out,
            epochs=arguments.epochs,
            gpus=arguments.gpus,
            say=(lambda text: None) if arguments.json else show,
            on_step=advance,
        )
    if arguments.json:
        show_json(_demo_figures(outcome))
    else:
        _show_outcome(outcome)
    return 0 if outcome.ok else 1


def _show_outcome(outcome: Any) -> None:
    from splitnet import demo
    from splitnet.view.tables import table

    show("")
    show(table(outcome.audit))
    if outcome.stand_in:
        show("\nWhat stand-ins cannot prove:")
        for line in demo.NOT_PROVEN:
            show(f"  - {line}")
    enough = "" if outcome.accuracy >= demo.ENOUGH else f", below {demo.ENOUGH:.0%}"
    show(
        f"\n{outcome.accuracy:.1%} of the pairs of digits kept apart are told right"
        f"{enough}; trained {outcome.train_seconds:.0f} s of "
        f"{outcome.total_seconds:.0f} s"
    )
    show(
        f"audit: {'everything ran where it was planned' if outcome.audit.ok else 'NO'}"
    )
    show("see " + ", ".join(str(path) for path in outcome.files))


def _demo_figures(outcome: Any) -> dict[str, Any]:
    return {
        "ok": outcome.ok,
        "accuracy": round(outcome.accuracy, 4),
        "audit_ok": outcome.audit.ok,
        "findings": [finding.text for finding in outcome.audit.findings],
        "stand_in": outcome.stand_in,
        "device_of": dict(outcome.plan.device_of),
        "epochs": outcome.epochs,
        "train_seconds": round(outcome.train_seconds, 1),
        "total_seconds": round(outcome.total_seconds, 1),
        "files": [str(path) for path in outcome.files],
    }


def add_audit(commands: Any) -> None:
    """Add `splitnet audit` to the parser."""
    parser = commands.add_parser(
        "audit",
        help="run one training step and compare what ran with what was planned",
        description="Plan (or load a plan), emit, train one step on made-up data, and "
        "read back from TensorFlow where everything was. Exit code 1 if it strayed.",
    )
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    parser.add_argument(
        "--plan", metavar="PLAN.json", help="a saved plan of the target"
    )
    parser.add_argument("--loss", default="mse", help="a Keras loss by name (mse)")
    add_planning_options(parser)
    parser.set_defaults(do=run_audit)


def run_audit(arguments: Namespace) -> int:
    """Audit one step; 1 if anything was not where it was planned."""
    if arguments.target.endswith(".json"):
        raise DeclarationError(
            "audit runs a model, and a JSON file has none; name the model or its "
            "program and give the file as --plan."
        )
    source, plan = _source_and_plan(arguments)
    from splitnet.tf.audit.observe import audit
    from splitnet.tf.emit import emit
    from splitnet.tf.profiling.synthetic import synthetic_batch
    from splitnet.view.tables import table

    with progress("auditing", total=2) as advance:
        advance(0, "emitting")
        model = emit(source, plan)
        if not model.compiled:
            model.compile(arguments.optimizer or "adam", arguments.loss)
        advance(1, "watching a step")
        found = audit(model, plan, synthetic_batch(model, plan.batch))
    if arguments.json:
        show_json(
            {"ok": found.ok, "findings": [finding.text for finding in found.findings]}
        )
    else:
        show(table(found))
    return 0 if found.ok else 1


def _source_and_plan(arguments: Namespace) -> tuple[Any, Any]:
    if not arguments.plan:
        source, plan, _ = plan_target(arguments)
        return source, plan
    from splitnet.cli.sources import load_source
    from splitnet.planner.plan_file import load_plan

    plan = load_plan(Path(arguments.plan))
    hush()
    from splitnet.tf.runtime.devices import local_cluster

    # Its stand-ins must exist before the program builds its first layer.
    local_cluster(stand_in_gpus=sum(device.stand_in for device in plan.cluster))
    return load_source(arguments.target), plan
