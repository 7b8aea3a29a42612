"""Plans to models: copies of the source's layers, born and run where the plan says."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, PlanFileError, listed
from splitnet.core.graph import Call
from splitnet.core.plan import Fallback, Plan
from splitnet.core.towers import fold, tower_part, towers_in, weights_part
from splitnet.tf import private
from splitnet.tf.blueprint import Blueprint, Site, blueprint_of
from splitnet.tf.config import announce
from splitnet.tf.copying import Copies, copy_input, functional, replay
from splitnet.tf.optimizer import copy_state
from splitnet.tf.placement import Placed, lay_over, placed_of
from splitnet.tf.targets import targets_of
from splitnet.tf.towers import Replicas, replicas_of
from splitnet.tf.ways import lay_out, way_of

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
    """
    way = way_of(plan, microbatches, schedule=schedule, recompute=recompute, xla=xla)
    blueprint = blueprint_of(source)
    sites = _planned(blueprint, plan)
    targets, receipts = targets_of(plan)
    copies = Copies()
    with private.same_random_state():
        model, nodes = _copy(blueprint, copies)
    placed = _placed(plan, sites, nodes, targets, receipts)
    _give_values(blueprint, plan, sites, copies, targets)
    copies.carry_assets()
    _spare_cudnn(sites, plan, copies)
    placed = lay_out(model, placed, way)
    lay_over(model, placed)
    vars(model)["export"] = _export_plain(model)
    _carry_compilation(source, model)
    for receipt in receipts:
        warnings.warn(
            f"part {receipt.part!r} was planned for {receipt.asked} and runs on "
            f"{receipt.got}: {receipt.why}.",
            stacklevel=2,
        )
    announce(plan)
    return model


def _planned(blueprint: Blueprint, plan: Plan) -> list[Site]:
    """The source's calls with the parts that the plan gave them.

    Calls are matched by name; where a rebuilt model counts its layers on (dense_1,
    dense_2), by position and kind.

    Raises:
        DeclarationError: the plan was made from another model.
    """
    calls: tuple[Call, ...] = ()
    mine = {site.call: site for site in blueprint.sites}
    for bare in (True, False):
        calls = fold(plan.graph, bare=bare)
        if len(calls) == len(mine) and all(call.name in mine for call in calls):
            return [Site(c.name, c.part, mine[c.name].node) for c in calls]
    kinds = [(c.kind, c.output_shapes[0][1:]) for c in calls if c.output_shapes]
    found = [_kind_of(site) for site in blueprint.sites]
    if kinds == found:
        return [
            Site(call.name, call.part, site.node)
            for call, site in zip(calls, blueprint.sites)
        ]
    theirs = {call.name for call in calls}
    faults = [f"{n!r} is in the model only" for n in mine if n not in theirs]
    faults += [f"{n!r} is in the plan only" for n in theirs if n not in mine]
    if not faults:
        faults = ["their shapes or order differ"]
    raise DeclarationError(
        listed(
            f"the plan of {plan.graph.name!r} was not made from model "
            f"{blueprint.name!r}: plan it again, or emit what was planned.",
            [*sorted(faults)[:12]],
        )
    )


def _kind_of(site: Site) -> tuple[str, tuple[Any, ...]]:
    tensor = site.node.outputs[0]
    return type(site.node.operation).__name__, tuple(
        128 if extent is None else extent for extent in tensor.shape[1:]
    )


def _copy(blueprint: Blueprint, copies: Copies) -> tuple[Any, dict[int, Any]]:
    """A copy of the template, and the new node of each old one, inputs included."""
    template = blueprint.model
    with private.without_values():
        inputs = keras.tree.map_structure(copy_input, template._inputs_struct)
        outputs, nodes = replay(template, inputs, copies.of)
        model = functional(template, inputs, outputs)
    for old, new in zip(template.inputs, model.inputs):
        nodes[id(private.producer(old))] = private.producer(new)
    return model, nodes


def _placed(
    plan: Plan,
    sites: list[Site],
    nodes: dict[int, Any],
    targets: dict[str, str],
    receipts: list[Fallback],
) -> Placed:
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    twins = [(nodes[id(site.node)], keys[site.part]) for site in sites]
    target_of = {key: targets[part] for part, key in keys.items()}
    replicas = replicas_of(plan, keys)
    return Placed(
        plan=plan,
        key_of={id(node): key for node, key in twins},
        target_of=target_of,
        part_of={key: part for part, key in keys.items()},
        home_of=_homes(_users(sites, nodes, keys, replicas), target_of),
        weight_of=_weight_names(plan, sites, nodes),
        receipts=tuple(receipts),
        replicas={
            id(nodes[id(site.node)]): replicas[site.part]
            for site in sites
            if site.part in replicas
        },
    )


def _users(
    sites: list[Site],
    nodes: dict[int, Any],
    keys: dict[str, str],
    replicas: dict[str, Replicas],
) -> list[tuple[Any, str]]:
    """Each call with the keys it uses weights under, towers' home first."""
    return [
        (nodes[id(site.node)], key)
        for site in sites
        for key in (
            (replicas[site.part].home, *replicas[site.part].keys)
            if site.part in replicas
            else (keys[site.part],)
        )
    ]


def bare_placement(model: Any, plan: Plan) -> Placed:
    """The marks of a plan for a model that is not placed: parts, and no devices.

    Raises:
        DeclarationError: the plan was made from another model.
    """
    sites = _planned(blueprint_of(model), plan)
    keys = {part.name: f"k{i}" for i, part in enumerate(plan.graph.parts)}
    same = {id(site.node): site.node for site in sites}
    return Placed(
        plan=plan,
        key_of={id(site.node): keys[site.part] for site in sites},
        target_of={},
        part_of={key: part for part, key in keys.items()},
        home_of={},
        weight_of=_weight_names(plan, sites, same),
    )


def _weight_names(
    plan: Plan, sites: list[Site], nodes: dict[int, Any]
) -> dict[int, str]:
    """The plan's name of each variable, by the id of the model's own variable."""
    names: dict[int, str] = {}
    weights = {
        call.name: call.weights
        for bare in (True, False)
        for call in fold(plan.graph, bare=bare)
    }
    for site in sites:
        operation = nodes[id(site.node)].operation
        variables = {id(v): v for v in getattr(operation, "variables", ())}
        names.update(zip(variables, weights[site.call]))
    return names


def _homes(twins: list[tuple[Any, str]], target_of: dict[str, str]) -> dict[int, str]:
    """The home of each variable used on several devices: the first of them."""
    users: dict[int, list[str]] = {}
    for node, key in twins:
        for variable in getattr(node.operation, "variables", ()):
            users.setdefault(id(variable), []).append(key)
    return {
        number: keys[0]
        for number, keys in users.items()
        if len({target_of[key] for key in keys}) > 1
    }


def _give_values(
    blueprint: Blueprint,
    plan: Plan,
    sites: list[Site],
    copies: Copies,
    targets: dict[str, str],
) -> None:
    """Give each variable its value on the device of the first part that calls it."""
    home: dict[int, str] = {}
    replicated = towers_in(plan.graph)
    for site in sites:
        part = weights_part(site.part) if site.part in replicated else site.part
        for variable in getattr(site.node.operation, "variables", ()):
            home.setdefault(id(variable), targets[part])
    for original, twin in copies.pairs():
        if not private.has_value(twin):
            private.give_value(twin, original, home[id(original)])


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
            for layer in copies.of(operation)._flatten_layers():
                if hasattr(layer, "use_cudnn"):
                    layer.use_cudnn = False


def _export_plain(model: Any) -> Callable[..., Any]:
    """As `Model.export`, of the plain model: a served graph shall name no device."""

    @functools.wraps(model.export)
    def export(*args: Any, **kwargs: Any) -> Any:
        plain = unplace(model)
        for layer in plain._flatten_layers():
            if hasattr(layer, "use_cudnn"):
                layer.use_cudnn = False
        return plain.export(*args, **kwargs)

    return export


def _carry_compilation(source: Any, model: Any) -> None:
    """Compile the copy as its source is, with the same state of the optimizer."""
    if not isinstance(source, keras.Model) or not source.compiled:
        return
    try:
        model.compile(**private.compile_arguments(source))
    except Exception as error:  # a stranger's optimizer, loss or metric may refuse
        warnings.warn(
            f"the copy of model {source.name!r} is not compiled: {error}. Call "
            "model.compile() on it.",
            stacklevel=3,
        )
        return
    if source.optimizer is not None and source.optimizer.built:
        model.optimizer.build(model.trainable_variables)
        copy_state(source.optimizer, model.optimizer)


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
    exported or loaded. A model that was never placed is copied all the same.
    """
    blueprint = blueprint_of(model)
    copies = Copies()
    with private.same_random_state():
        plain, _ = _copy(blueprint, copies)
    device = tf.config.list_logical_devices()[0].name
    for original, twin in copies.pairs():
        if not private.has_value(twin):
            private.give_value(twin, original, device)
    copies.carry_assets()
    _carry_compilation(model, plain)
    return plain
