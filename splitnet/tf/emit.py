"""Plans to models: copies of the source's layers, born and run where the plan says."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import PlanFileError
from splitnet.core.plan import Plan
from splitnet.core.replication import split_layers, tower_part, towers_in, weights_part
from splitnet.planner.garbage import uncollected
from splitnet.tf.brisk import setting_plainly
from splitnet.tf.copying import Copies, copy_input, replay
from splitnet.tf.internals import keras_api
from splitnet.tf.parallel.options import lay_out, way_of
from splitnet.tf.parallel.pipeline import pipelined
from splitnet.tf.parallel.unsharding import files_of_the_whole, join_slices
from splitnet.tf.placement.binding import placement
from splitnet.tf.placement.optimizer import all_optimizers, copy_state
from splitnet.tf.placement.overlay import lay_over
from splitnet.tf.placement.placed import placed_of
from splitnet.tf.placement.summary import with_devices
from splitnet.tf.placement.targets import targets_of
from splitnet.tf.reading.flatten import Flow, flow_of
from splitnet.tf.reading.match import planned_blueprint, planned_sites
from splitnet.tf.reading.model_class import functional
from splitnet.tf.reading.source import Blueprint, Site, blueprint_of
from splitnet.tf.reading.variables import variables_of
from splitnet.tf.runtime.configure import announce
from splitnet.tf.workers.barrier import wait_for_workers

__all__ = ["emit", "plan_of", "unplace"]


def emit(
    source: Any,
    plan: Plan,
    *,
    microbatches: int = 1,
    schedule: str = "gpipe",
    recompute: bool | str = False,
    xla: bool = False,
) -> Any:
    """Build the Keras model of a source, placed as a plan says.

    The model is an ordinary functional `keras.Model` with layers of its own: the same
    names, and the values that the source's layers have or would be initialized with.
    Weights are born on their device. A compiled source gives a compiled model with the
    same optimizer state. The source is left as it was.

    Args:
        source: the `Net` or `keras.Model` that the plan was made from, or an equal one.
        plan: a plan whose parts are the source's; its devices need not all be here.
        microbatches: how many pieces each training batch goes through the parts in, so
            that parts in a chain work at the same time; see `docs/parallelism.md`.
        schedule: "gpipe", or "1f1b" to bound the pieces in flight by the stages.
        recompute: whether training keeps only what goes from device to device and
            computes the rest again: True, False, or "auto" for devices whose memory the
            plan overfills.
        xla: compile each device's share of the calls with XLA.

    Raises:
        DeclarationError: the source cannot be copied, or is not what was planned, or
            cannot be cut as asked.
        WorkerError: a worker that was joined is lost.
    """
    wait_for_workers(ask=True)
    way = way_of(plan, microbatches, schedule=schedule, recompute=recompute, xla=xla)
    blueprint = planned_blueprint(source, plan)
    sites = planned_sites(blueprint, plan)
    targets, receipts = targets_of(plan)
    copies = Copies()
    with uncollected():
        with keras_api.random_states_kept():
            model, flow, nodes = _copy(blueprint, copies)
        placed = placement(plan, flow, sites, nodes, targets, receipts)
        _give_values(blueprint, plan, sites, copies, targets)
    copies.carry_assets()
    wait_for_workers()
    _spare_cudnn(sites, plan, copies)
    placed = lay_out(model, placed, way)
    if placed.pipeline.microbatches > 1:
        pipelined(model, placed)
    lay_over(model, placed)
    vars(model)["export"] = _export_plain(model)
    vars(model)["summary"] = with_devices(model)
    if names := split_layers(plan.graph):
        files_of_the_whole(model, names, unplace)
    _carry_compilation(source, model)
    for receipt in receipts:
        warnings.warn(
            f"part {receipt.part!r} was planned for {receipt.requested} and runs on "
            f"{receipt.assigned}: {receipt.reason}.",
            stacklevel=2,
        )
    announce(plan)
    return model


def _copy(blueprint: Blueprint, copies: Copies) -> tuple[Any, Flow, dict[int, Any]]:
    """A copy of the template, what it runs, and the new node of each old one."""
    template = blueprint.model
    with keras_api.without_values(), setting_plainly():
        inputs = keras.tree.map_structure(
            copy_input, keras_api.input_structure(template)
        )
        outputs, nodes = replay(template, inputs, copies.of)
        model = functional(
            template, inputs, outputs, nodes=nodes, copy_of=copies.beside
        )
    for old, new in zip(template.inputs, model.inputs):
        nodes[id(keras_api.producer(old))] = keras_api.producer(new)
    opened = [path for path, is_open in blueprint.flow.models.items() if is_open]
    flow = flow_of(model, opened, strict=False)
    for old, new in zip(blueprint.flow.nodes, flow.nodes, strict=True):
        nodes.setdefault(id(old), new)
    return model, flow, nodes


def _give_values(
    blueprint: Blueprint,
    plan: Plan,
    sites: list[Site],
    copies: Copies,
    targets: dict[str, str],
) -> None:
    """Give each variable its value on the device of the first part that calls it.

    What no call uses, as a layer that only a model's own `train_step` calls, has its
    value on the default device.
    """
    default = tf.config.list_logical_devices()[0].name
    home: dict[int, str] = {}
    replicated = towers_in(plan.graph)
    for site in sites:
        part = weights_part(site.part) if site.part in replicated else site.part
        for variable in variables_of(site.node.operation):
            home.setdefault(id(variable), targets[part])
    for original, twin in copies.pairs():
        if not keras_api.has_value(twin):
            keras_api.give_value(twin, original, home.get(id(original), default))


def _running(plan: Plan, part: str) -> list[str]:
    """The parts that run a part's calls: itself, or its towers."""
    towers = towers_in(plan.graph).get(part)
    if towers is None:
        return [part]
    return [tower_part(part, i) for i in range(towers.count)]


def _spare_cudnn(sites: list[Site], plan: Plan, copies: Copies) -> None:
    """Keep recurrent layers on a CPU from cuDNN, Keras' choice if a GPU is here."""
    for site in sites:
        operation = site.node.operation
        on_cpu = any(
            plan.cluster[plan.device_of[part]].kind == "cpu"
            for part in _running(plan, site.part)
        )
        if on_cpu and isinstance(operation, keras.layers.Layer):
            for layer in keras_api.sublayers(copies.of(operation)):
                if hasattr(layer, "use_cudnn"):
                    layer.use_cudnn = False


def _export_plain(model: Any) -> Callable[..., Any]:
    """As `Model.export`, of the plain model: a served graph shall name no device."""

    @functools.wraps(model.export)
    def export(*args: Any, **kwargs: Any) -> Any:
        plain = unplace(model)
        for layer in keras_api.sublayers(plain):
            if hasattr(layer, "use_cudnn"):
                layer.use_cudnn = False
        return plain.export(*args, **kwargs)

    return export


def _carry_compilation(source: Any, model: Any) -> None:
    """Compile the copy as its source is, with the same state of the optimizer."""
    if not isinstance(source, keras.Model) or not source.compiled:
        return
    try:
        model.compile(**keras_api.compile_arguments(source))
    except Exception as error:  # a stranger's optimizer, loss or metric may refuse
        warnings.warn(
            f"the copy of model {source.name!r} is not compiled: {error}. Call "
            "model.compile() on it.",
            stacklevel=3,
        )
        return
    _carry_optimizers(source, model)


def _carry_optimizers(source: Any, model: Any) -> None:
    """The state of the optimizer, and of those that a step of its own uses."""
    twin = {id(its): mine for its, mine in zip(source.variables, model.variables)}
    for name, theirs in vars(source).items():
        if not isinstance(theirs, keras.optimizers.Optimizer) or not theirs.built:
            continue
        mine = getattr(model, name)
        trained = getattr(all_optimizers(theirs)[-1], "_trainable_variables", [])
        known = [twin[id(v)] for v in trained if id(v) in twin]
        mine.build(known or model.trainable_variables)
        copy_state(theirs, mine)


def plan_of(model: Any) -> Plan:
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


def unplace(model: Any) -> Any:
    """The plain Keras model with the same layers' names, weights and compilation.

    Its variables are copies on the default device; it needs no splitnet to be saved,
    exported or loaded. A model that was never placed is copied all the same. A layer
    that `Net.split` cut is one layer again.
    """
    blueprint = blueprint_of(model)
    copies = Copies()
    with keras_api.random_states_kept():
        plain, _, _ = _copy(blueprint, copies)
    device = tf.config.list_logical_devices()[0].name
    for original, twin in copies.pairs():
        if not keras_api.has_value(twin):
            keras_api.give_value(twin, original, device)
    copies.carry_assets()
    _carry_compilation(model, plain)
    placed = placed_of(model)
    names = split_layers(placed.plan.graph) if placed is not None else {}
    return join_slices(plain, names, device) if names else plain
