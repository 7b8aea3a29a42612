"""Commands that run a model: demo and audit."""

from pathlib import Path
from typing import Annotated, Any

from typer import Option

import splitnet as sn
import splitnet.cli.options as opt
from splitnet.cli.console import import_tensorflow, progress, show_json
from splitnet.cli.plan_commands import given_options, pins_of, plan_source
from splitnet.cli.targets import Machine, check_target, load_plan_file, load_source
from splitnet.core.errors import DeclarationError, DeviceError

__all__ = ["audit", "demo"]


def demo(
    epochs: Annotated[
        int, Option(metavar="N", help="Passes over the training pairs.")
    ] = 5,
    gpus: Annotated[
        int,
        Option(metavar="N", help="GPUs to use; CPU devices stand in for missing ones."),
    ] = 2,
    out: Annotated[
        Path, Option(metavar="DIR", help="The folder for pictures and plan.")
    ] = Path("demo"),
    json_: opt.Json = False,
    tf_log: opt.TfLog = False,
) -> int:
    """Train a shared encoder on two devices, and audit where it ran.

    Real handwritten digits and a siamese network on two GPUs, or on CPU devices that
    stand in for them: plan, draw, train, audit. Exit code 1 if the accuracy is too low
    or anything did not run as planned.
    """
    if epochs < 1 or gpus < 0:
        raise DeviceError("--epochs is 1 or more, --gpus is 0 or more.")
    import_tensorflow(verbose=tf_log)
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
    target: opt.Target,
    plan: Annotated[
        str | None, Option(metavar="PLAN.json", help="A saved plan of TARGET.")
    ] = None,
    loss: Annotated[str, Option(metavar="NAME", help="A Keras loss by name.")] = "mse",
    batch: opt.Batch = 32,
    optimizer: opt.Optimizer = None,
    costs: opt.Costs = None,
    pin: opt.Pin = None,
    missing: opt.Missing = None,
    json_: opt.Json = False,
    cluster: opt.ClusterName = None,
    stand_ins: opt.StandIns = 0,
) -> int:
    """Run one training step and check that it ran as planned.

    The data are synthetic. The devices are read back from the graphs that TensorFlow
    executed. Exit code 1 if anything ran elsewhere.
    """
    if target.endswith(".json"):
        raise DeclarationError(
            "audit runs a model, and a JSON file has none; name the model or its "
            "program, and give the file as --plan."
        )
    check_target(target)
    if plan:
        source, made = _source_of_plan(target, plan, stand_ins)
    else:
        options = given_options(
            batch=batch,
            optimizer=optimizer,
            costs=costs,
            pins=pins_of(pin),
            missing=missing,
        )
        machine = Machine(cluster=cluster, stand_ins=stand_ins)
        source, made, _ = plan_source(target, machine, options)
    with progress("auditing", total=2) as advance:
        advance(0, "emitting")
        model = sn.emit(source, made)
        if not model.compiled:
            model.compile(optimizer or "adam", loss)
        advance(1, "running a step")
        found = sn.audit(model, made, _synthetic_batch(model, made.batch, loss))
    if json_:
        findings = [finding.text for finding in found.findings]
        show_json({"ok": found.ok, "findings": findings})
    else:
        print(sn.table(found))
    return 0 if found.ok else 1


def _source_of_plan(target: str, path: str, stand_ins: int) -> tuple[Any, Any]:
    plan = load_plan_file(path)
    import_tensorflow()
    from splitnet.tf.runtime.devices import local_cluster

    # Its stand-ins must exist before the program builds its first layer.
    planned = sum(device.stand_in for device in plan.cluster)
    local_cluster(stand_in_gpus=stand_ins or planned)
    return load_source(target), plan


def _synthetic_batch(model: Any, batch: int, loss: str) -> tuple[Any, Any]:
    """Inputs and targets for one step; class numbers for losses that take those."""
    import keras

    from splitnet.tf.profiling.synthetic import synthetic_batch

    inputs, targets = synthetic_batch(model, batch)
    if loss.startswith("sparse_"):
        targets = keras.tree.map_structure(lambda t: t.argmax(-1), targets)
    return inputs, targets
