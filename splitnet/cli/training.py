"""Commands that run a model: demo and audit."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import splitnet as sn
from splitnet.cli.console import (
    import_tensorflow,
    local_devices,
    progress,
    show_json,
)
from splitnet.cli.options import Json, Machine, Search, TargetName
from splitnet.cli.plan_commands import planned
from splitnet.cli.targets import Target, check_target, load_source
from splitnet.core.errors import DeclarationError

__all__ = ["audit", "demo"]


def demo(
    epochs: Annotated[
        int, Option(metavar="N", min=1, help="Passes over the training pairs.")
    ] = 5,
    gpus: Annotated[
        int,
        Option(
            metavar="N",
            min=0,
            help="GPUs to use; CPU devices stand in for missing ones.",
        ),
    ] = 2,
    out: Annotated[
        Path, Option("--out", "-o", metavar="DIR", help="Folder for pictures and plan.")
    ] = Path("demo"),
    json_: Json = False,
) -> int:
    """Train a shared encoder on two devices, and audit where it ran.

    Real handwritten digits and a siamese network on two GPUs, or on CPU devices that
    stand in for them: plan, draw, train, audit. Exit code 1 if the accuracy is too low
    or anything did not run as planned.
    """
    import_tensorflow()
    from splitnet import demo

    steps = epochs * -(-demo.TRAINING_PAIRS // demo.BATCH)
    with progress("training", total=steps) as advance:
        outcome = demo.run(
            out,
            epochs=epochs,
            gpus=gpus,
            say=(lambda text: None) if json_ else print,
            on_step=advance,
        )
    if json_:
        show_json(
            {
                "ok": outcome.ok,
                "accuracy": round(outcome.accuracy, 4),
                "audit_ok": outcome.audit.ok,
                "findings": [finding.text for finding in outcome.audit.findings],
                "stand_in": outcome.stand_in,
                "device_of": dict(outcome.plan.device_of),
                "epochs": epochs,
                "train_seconds": round(outcome.train_seconds, 1),
                "total_seconds": round(outcome.total_seconds, 1),
                "files": [str(path) for path in outcome.files],
            }
        )
    else:
        print(outcome.summary())
    return 0 if outcome.ok else 1


def audit(
    target: TargetName,
    search: Search,
    machine: Machine,
    plan: Annotated[
        str | None, Option(metavar="PLAN.json", help="A saved plan of TARGET.")
    ] = None,
    loss: Annotated[str, Option(metavar="NAME", help="A Keras loss by name.")] = "mse",
    json_: Json = False,
) -> int:
    """Run one training step and check that it ran as planned.

    The data are synthetic. The devices are read back from the graphs that TensorFlow
    executed. Exit code 1 if anything ran elsewhere.
    """
    check_target(target)
    if plan and (
        replace(machine, stand_ins=0) != Machine()
        or replace(search, optimizer=None) != Search()
    ):
        raise DeclarationError(
            "--plan has its own machine and options; beside it give --stand-ins, "
            "--optimizer and --loss alone."
        )
    if plan:
        made = sn.load_plan(plan)
        # Its stand-ins must exist before the program builds its first layer.
        local_devices(machine.stand_ins or sum(d.stand_in for d in made.cluster))
        source = load_source(target)
    else:
        source, cluster = Target(target).opened(machine, search)
        made, _ = planned(source, cluster, search.given())
    with progress("auditing", total=2) as advance:
        advance(0, "emitting")
        model = sn.emit(source, made)
        if not model.compiled:
            model.compile(search.optimizer or "adam", loss)
        advance(1, "running a step")
        found = sn.audit(model, made, _synthetic_batch(model, made.batch, loss))
    if json_:
        findings = [finding.text for finding in found.findings]
        show_json({"ok": found.ok, "findings": findings})
    else:
        print(sn.table(found))
    return 0 if found.ok else 1


def _synthetic_batch(model: Any, batch: int, loss: str) -> tuple[Any, Any]:
    """Inputs and targets for one step; class numbers for losses that take those."""
    import keras

    from splitnet.tf.profiling.synthetic import synthetic_batch

    inputs, targets = synthetic_batch(model, batch)
    if loss.startswith("sparse_"):
        targets = keras.tree.map_structure(lambda t: t.argmax(-1), targets)
    return inputs, targets
