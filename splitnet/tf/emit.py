"""Plans to models: copies of the source's layers, born and run where the plan says."""

from dataclasses import replace
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import PlanFileError, warn
from splitnet.core.plan import Plan
from splitnet.planner.evaluate import executed
from splitnet.simulator.microbatch import execution_of
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.lowering import check_execution, lay_out
from splitnet.tf.parallel.pipeline import pipelined
from splitnet.tf.parallel.splitting import joined_layers, split_as_planned
from splitnet.tf.parallel.unsharding import files_of_the_whole, join_slices
from splitnet.tf.placement.optimizer import all_optimizers, copy_state
from splitnet.tf.placement.overlay import lay_over
from splitnet.tf.placement.placed import Placed, homes_of, placed_of, placement
from splitnet.tf.placement.run import device_of
from splitnet.tf.placement.summary import with_devices
from splitnet.tf.placement.targets import planned_here
from splitnet.tf.reading.cloner import clone
from splitnet.tf.reading.read import planned_blueprint, planned_sites
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.workers.connect import wait_for_workers


def emit(
    source: Any,
    plan: Plan,
    *,
    microbatches: int | None = None,
    schedule: str | None = None,
    recompute: bool | str | None = None,
    xla: bool = False,
    copy: bool = True,
) -> Any:
    """Build the Keras model of a source, placed as a plan says.

    The model is an ordinary functional `keras.Model` with layers of its own: the same
    names, and the values that the source's layers have or would be initialized with.
    Weights are made on their device. A layer that cannot be rebuilt from its
    configuration is used itself, with a warning. A compiled source gives a compiled
    model with the same optimizer state. The source is left as it was.

    Args:
        source: the `Net` or `keras.Model` that the plan was made from, or an equal one;
            or the function that builds it, and then no weight exists twice.
        plan: a plan whose parts are the source's. gpu:0 is a stand-in where there is no
            GPU. Parts on devices that are not here fall back as in planning, with a
            warning; `plan_of(model)` records it.
        microbatches: how many pieces each training batch goes through the parts in, so
            that parts in a chain work at the same time; see `docs/parallelism.md`.
        schedule: "gpipe", or "1f1b" to bound the pieces in flight by the stages.
        recompute: whether training keeps only what goes from device to device and
            computes the rest again: True, False, or "auto" for devices whose memory the
            plan overfills. What is None is as the plan says.
        xla: compile each device's share of the calls with XLA.
        copy: False to use the source's very layers, moved to their devices; the source
            is then placed itself as far as its layers go, and no weight exists twice.

    Raises:
        DeclarationError: the source cannot be copied, or is not what was planned, or
            cannot be cut as asked.
        WorkerError: a worker that was joined is lost.
    """
    wait_for_workers(ask=True)
    plan = planned_here(plan)
    plan = executed(plan, execution_of(plan, microbatches, schedule, recompute))
    check_execution(plan, xla=xla)
    blueprint = split_as_planned(planned_blueprint(source, plan), plan.graph)
    blueprint = replace(blueprint, sites=planned_sites(blueprint, plan))
    homes, default = homes_of(plan, blueprint.sites), _default_device()
    cloned = clone(blueprint, lambda one: homes.get(id(one), default), copy=copy)
    model = cloned.model
    if cloned.reused:
        plan = replace(plan, reused=cloned.reused)
    placed = placement(plan, cloned.flow, cloned.sites)
    wait_for_workers()
    _settle(placed)
    placed = lay_out(model, placed, xla=xla)
    if placed.pipeline.microbatches > 1:
        pipelined(model, placed)
    lay_over(model, placed)
    vars(model)["export"] = partial(_export_plain, model)
    vars(model)["summary"] = with_devices(model)
    if names := joined_layers(model):
        files_of_the_whole(model, names, unplace)
    _carry_compilation(source, model)
    return model


def _default_device() -> str:
    return str(tf.config.list_logical_devices()[0].name)


def _settle(placed: Placed) -> None:
    """Keep layers where they are: no cuDNN on a CPU, later weights beside the first.

    Keras chooses cuDNN for recurrent layers if a GPU is here. `quantize` and
    `enable_lora` add weights to a layer that is built.
    """

    def add_weight(layer: Any, home: str, *args: Any, **kwargs: Any) -> Any:
        with tf.device(home):
            return type(layer).add_weight(layer, *args, **kwargs)

    for node in placed.flow.nodes:
        for layer in keras_api.sublayers(node.operation):
            home = device_of(layer.variables[0]) if layer.variables else ""
            made = partial(add_weight, layer, home or placed.target(node))
            vars(layer)["add_weight"] = made
        devices = (placed.device_of[key] for key in placed.keys(node))
        if any(placed.plan.cluster[device].kind == "cpu" for device in devices):
            _without_cudnn(node.operation)


def _without_cudnn(operation: Any) -> None:
    for layer in keras_api.sublayers(operation):
        if hasattr(layer, "use_cudnn"):
            layer.use_cudnn = False


def _export_plain(model: Any, *args: Any, **kwargs: Any) -> Any:
    """As `Model.export`, of the plain model: a served graph shall name no device."""
    plain = unplace(model)
    _without_cudnn(plain)
    return plain.export(*args, **kwargs)


def _carry_compilation(source: Any, model: Any) -> None:
    """Compile the copy as its source is, with the same state of the optimizer."""
    if not isinstance(source, keras.Model) or not source.compiled:
        return
    try:
        model.compile(**keras_api.compile_arguments(source))
    except Exception as error:  # a stranger's optimizer, loss or metric may refuse
        warn(
            f"the copy of model {source.name!r} is not compiled: {error}. Call "
            "model.compile() on it."
        )
        return
    # The state of the optimizer, and of those that a step of its own uses.
    copied = {id(its): mine for its, mine in zip(source.variables, model.variables)}
    for name, theirs in vars(source).items():
        if not isinstance(theirs, keras.optimizers.Optimizer) or not theirs.built:
            continue
        mine = getattr(model, name)
        trained = keras_api.trained_by(all_optimizers(theirs)[-1])
        known = [copied[id(v)] for v in trained if id(v) in copied]
        mine.build(known or model.trainable_variables)
        copy_state(theirs, mine)


def plan_of(model: keras.Model) -> Plan:
    """The plan that an emitted model was made by.

    Raises:
        PlanFileError: the model was not emitted by splitnet, or is a plain copy.
    """
    placed = placed_of(model)
    if placed is None:
        raise PlanFileError(
            f"model {getattr(model, 'name', model)!r} has no plan: it was not emitted, "
            "or it was loaded or cloned since, which gives a plain model. Plan and "
            "emit it again."
        )
    return placed.plan


def unplace(model: keras.Model) -> Any:
    """The plain Keras model with the same layers' names, weights and compilation.

    Its variables are copies on the default device; it needs no splitnet to be saved,
    exported or loaded. A model that was never placed is copied all the same. A layer
    that `Net.split` cut is one layer again. One that cannot be rebuilt from its
    configuration is used itself, and stays where it is.
    """
    device = _default_device()
    plain = clone(blueprint_of(model), lambda layer: device, move=False).model
    _carry_compilation(model, plain)
    names = joined_layers(plain)
    return join_slices(plain, names, device) if names else plain
