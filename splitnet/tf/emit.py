"""Plans to models: copies of the source's layers, born and run where the plan says."""

import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import keras
import tensorflow as tf

from splitnet.core.errors import DeclarationError, PlanFileError, first_line, warn
from splitnet.core.plan import Plan
from splitnet.planner.evaluate import executed
from splitnet.simulator.microbatch import execution_of, pipeline_of
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.parallel import pipeline, splitting
from splitnet.tf.parallel.towers import SynchronisedNorm, TowerRunner
from splitnet.tf.placement.device_function import device_of
from splitnet.tf.placement.optimizer import all_optimizers
from splitnet.tf.placement.overlay import lay_over
from splitnet.tf.placement.part_function import PartFunction, Segment, segments_of
from splitnet.tf.placement.placed import Placed, homes_of, placed_of, placement
from splitnet.tf.placement.targets import planned_here
from splitnet.tf.reading.call_cost import size_of
from splitnet.tf.reading.cloner import clone
from splitnet.tf.reading.flatten import is_sparse
from splitnet.tf.reading.read import planned_blueprint, planned_sites
from splitnet.tf.reading.rebuild import compile_arguments
from splitnet.tf.reading.source import blueprint_of, resolved
from splitnet.tf.workers.connect import wait_for_workers

_NORM = keras.layers.BatchNormalization
_LOOPING = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)
# A rule's left corner -> what its right one becomes when a column is added.
_JOINTS = {"┏": "┳", "┡": "╇", "├": "┼", "└": "┴", "+": "+"}
_WALLS = ("┃", "│", "|")


def emit(
    source: Any,
    plan: Plan,
    *,
    microbatches: int | None = None,
    schedule: str | None = None,
    recompute: bool | Annotated[str, ("auto",)] | None = None,
    xla: bool | None = None,
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
        microbatches: how many micro-batches each training batch is cut into, so that
            parts in a chain work at the same time; see `docs/parallelism.md`.
        schedule: "gpipe", or "1f1b", which bounds the micro-batches in flight.
        recompute: whether training keeps only the inputs of each function and computes
            the rest again: True, False, or "auto" for devices whose memory the plan
            overfills. What is None is as the plan says.
        xla: whether each device's share of the calls is compiled with XLA. None does
            what Keras does with a plain model: compile for GPUs, if all layers allow.
        copy: False to use the layers of the source instead of copies. They are moved
            to their devices, and no weight exists twice.

    Raises:
        DeclarationError: the source cannot be copied, or is not what was planned, or
            cannot be cut as asked.
        WorkerError: a worker that was joined is lost.
    """
    wait_for_workers(ask=True)
    source = resolved(source, anew=False)
    plan = planned_here(plan)
    plan = executed(plan, execution_of(plan, microbatches, schedule, recompute))
    if xla and plan.execution.recompute:
        why = "XLA decides by itself what it computes again. Leave one of them out."
        raise DeclarationError(f"xla=True and recompute= exclude each other: {why}")
    if tf.distribute.has_strategy():
        why = "a tf.distribute strategy puts weights on devices of its own"
        raise DeclarationError(f"{why}. Emit and train the model outside of its scope.")
    blueprint = splitting.split_as_planned(planned_blueprint(source, plan), plan.graph)
    blueprint = replace(blueprint, sites=planned_sites(blueprint, plan))
    homes, default = homes_of(plan, blueprint.sites), _default_device()
    how: dict[str, Any] = {"copy": copy, "compiled": keras_api.compiled_with(source)}
    cloned = clone(blueprint, lambda one: homes.get(id(one), default), **how)
    model, plan = cloned.model, replace(plan, reused=cloned.reused)
    placed = placement(plan, cloned.flow, cloned.sites)
    wait_for_workers()
    _settle(placed)
    placed, compiled = _lay_out(model, placed, xla=xla), [pipeline.warn_of_towers]
    if placed.pipeline.microbatches > 1:
        pipeline.pipelined(model, placed)
        compiled.append(pipeline.check_losses)
    if splitting.joined_layers(model):
        splitting.files_of_the_whole(model, unplace)
        compiled.append(splitting.warn_of_slices)
    lay_over(model, placed, *compiled)
    vars(model)["export"] = partial(_export_plain, model)
    vars(model)["summary"] = partial(_print_summary, model)
    _carry_compilation(source, model)
    return model


def _lay_out(model: Any, placed: Placed, *, xla: bool | None) -> Placed:
    """The placement with its pipeline and runners; warns of what it cannot do."""
    plan = placed.plan
    turns = pipeline_of(plan.graph, plan.device_of, plan.execution)
    if turns.microbatches > 1:
        pipeline.check_pipeline(model, turns)
    how_on = dict.fromkeys(plan.execution.recompute, "recompute")
    if xla or (xla is None and keras_api.compiles_by_itself(model)):
        real = (d for d in plan.cluster if xla or d.kind == "gpu" and not d.stand_in)
        how_on = {device.name: "xla" for device in real} | how_on
    computing = {call.part for call in plan.graph.calls if call.forward_flops}
    refused: dict[tuple[str, str], None] = {}
    # Of each node what calls of a segment share, and by its id what runs them.
    units, kinds = list[Any](), dict[int, Callable[[Segment], Any]]()
    for number, node in enumerate(placed.flow.nodes):
        one, key = id(node), placed.key_of[id(node)]
        device, towers = placed.target_of[key], placed.replicas.get(one)
        part = placed.part_of[key]
        how = how_on.get(plan.device_of[part], "") if part in computing else ""
        why = "towers run plainly" if towers else _obstacle(node, how, device)
        if how and why and (how == "recompute" or xla):
            refused[f"{how}: {part!r}", why] = None
        how = "" if why else how
        if towers is None:
            units.append((device, how, key if turns.microbatches == 1 else ""))
            arguments = node.arguments  # constants are copied once for all steps
            with tf.device(device):
                arguments.args, arguments.kwargs = arguments.convert(
                    lambda one: tf.identity(one) if isinstance(one, tf.Tensor) else one
                )
            kinds[one] = partial(PartFunction, device=device, how=how)
        else:
            meet = towers.synchronised and isinstance(node.operation, _NORM)
            units.append((towers.join, number if meet else ""))
            kind = SynchronisedNorm if meet else TowerRunner
            kinds[one] = partial(kind, replicas=towers, placed=placed)
    for part, reason in refused:
        warn(f"{part} runs as it is: {reason}.")
    segments = segments_of(placed.flow, placed.key_of, units)
    runners = tuple(kinds[id(one.nodes[0])](one) for one in segments)
    return replace(placed, pipeline=turns, runners=runners)


def _obstacle(node: Any, how: str, device: str) -> str:
    """Why a call cannot run so on a device; "" if it can."""
    read, layers = node.input_tensors, keras_api.sublayers(node.operation)
    tensors = [*read, *node.outputs]
    if any(keras.backend.standardize_dtype(t.dtype) == "string" for t in tensors):
        return "it works on text"
    if any(map(is_sparse, tensors)):
        return "it works on sparse tensors"
    if any(getattr(one, "call_training_endpoint", None) for one in layers):
        return "a loaded function may change states"
    if how != "xla":
        return ""
    if any(isinstance(one, _LOOPING) for one in layers):
        return "XLA compiles its loop for one length only"
    if any(device_of(v) != device for v in keras_api.tables_of(node.operation)):
        return "it reads rows of a table on another device"
    if all(
        keras_api.from_keras(layer)
        and "preprocessing" not in layer.__module__
        and not isinstance(layer, keras.layers.Lambda)
        for layer in layers
    ):
        return ""
    variables = list(node.operation.variables)

    def run(*flat: Any) -> Any:
        args, kwargs = node.arguments.fill_in(dict(zip(map(id, read), flat)))
        call = keras_api.operation_fn(node.operation, training=True)
        given = [tensor for tensor in flat if tensor.dtype.is_floating]
        with tf.GradientTape() as tape:
            tape.watch(given)
            with keras.StatelessScope(list(zip(variables, flat[len(read) :]))):
                made = keras.tree.flatten(call(*args, **kwargs))
        return made, tape.gradient([t for t in made if t.dtype.is_floating], given)

    try:  # to lower it, for two samples; nothing of it runs
        compiled = tf.function(run, jit_compile=True, autograph=False)
        specs = [size_of(tensor, 2) for tensor in (*read, *variables)]
        compiled.experimental_get_compiler_ir(*specs)(stage="hlo")
    except Exception as error:  # a stranger's layer may raise anything when traced
        if missing := re.search(r"_JIT: (\w+)", str(error)):
            return f"XLA has no kernel for its {missing[1]}"
        return f"XLA cannot compile it: {first_line(error)[:120]}"
    return ""


def _settle(placed: Placed) -> None:
    """No cuDNN on a CPU; weights that `enable_lora` adds are beside a layer's first."""

    def add_weight(layer: Any, home: str, *args: Any, **kwargs: Any) -> Any:
        with tf.device(home):
            return type(layer).add_weight(layer, *args, **kwargs)

    def convolved(plainly: Callable[..., Any], inputs: Any, kernel: Any) -> Any:
        return plainly(inputs, tf.convert_to_tensor(kernel))  # for XLA, run eagerly

    for node in placed.flow.nodes:
        for layer in keras_api.sublayers(node.operation):
            home = device_of(layer.variables[0]) if layer.variables else ""
            made = partial(add_weight, layer, home or placed.target(node))
            vars(layer)["add_weight"] = made
            if plainly := getattr(layer, "convolution_op", None):
                vars(layer)["convolution_op"] = partial(convolved, plainly)
            away = home and {*map(placed.target_of.get, placed.keys(node))} != {home}
            if away and tf_api.compiled_by_xla(layer.call):
                vars(layer)["call"] = tf.function(layer.call.python_function)
        if any(placed.device_of[key].kind == "cpu" for key in placed.keys(node)):
            _without_cudnn(node.operation)


def _without_cudnn(operation: Any) -> None:
    for layer in keras_api.sublayers(operation):
        if hasattr(layer, "use_cudnn"):
            layer.use_cudnn = False


def _carry_compilation(source: Any, model: Any) -> None:
    if not isinstance(source, keras.Model) or not source.compiled:
        return
    try:
        model.compile(**compile_arguments(source))
    except Exception as error:  # a stranger's optimizer, loss or metric may refuse
        why = f"{error}".rstrip(".")
        warn(f"the copy of model {source.name!r} is not compiled: {why}. Compile it.")
        return
    split = splitting.joined_layers(model) != splitting.joined_layers(source)
    pairs = [] if split else list(zip(source.variables, model.variables))
    for two in zip(*(all_optimizers(one.optimizer) for one in (model, source))):
        keras_api.exclude_alike(*two, pairs)
    if split:
        splitting.take_state(model, source)
        return
    # The state of the optimizer, and of those that a step of its own uses.
    copied = {id(its): mine for its, mine in pairs}
    for name, theirs in vars(source).items():
        if isinstance(theirs, keras.optimizers.Optimizer) and theirs.built:
            mine = getattr(model, name)
            trained = keras_api.trained_by(all_optimizers(theirs)[-1])
            known = [copied[id(v)] for v in trained if id(v) in copied]
            mine.build(known or model.trainable_variables)
            for its, own in zip(theirs.variables, mine.variables, strict=True):
                with tf.device(device_of(own)):
                    own.assign(its.value)


def plan_of(model: keras.Model) -> Plan:
    """The plan that an emitted model was made by.

    Raises:
        PlanFileError: the model was not emitted by splitnet, or is a plain copy.
    """
    return _placed(model).plan


def _placed(model: Any) -> Placed:
    if (placed := placed_of(model)) is not None:
        return placed
    fault = f"model {getattr(model, 'name', model)!r} has no plan: it was not emitted"
    why = "or it was loaded or cloned since, which gives a plain model"
    raise PlanFileError(f"{fault}, {why}. Plan and emit it again.")


def unplace(model: keras.Model) -> Any:
    """The plain Keras model with the same layers' names, weights and compilation.

    Its variables are copies on the default device; it needs no splitnet to be saved,
    exported or loaded. A model that was never placed is copied all the same. A layer
    that `Net.split` cut is one layer again. One that cannot be rebuilt from its
    configuration is used itself, and stays where it is.

    Raises:
        WorkerError: a worker that holds weights is lost.
    """
    wait_for_workers(ask=True)
    device = _default_device()
    how: dict[str, Any] = {"move": False, "compiled": keras_api.compiled_with(model)}
    plain = clone(blueprint_of(model), lambda layer: device, **how).model
    _carry_compilation(model, plain)
    cut = splitting.joined_layers(plain)
    return splitting.join_slices(plain, device) if cut else plain


def _default_device() -> str:
    """Where Keras makes a variable that nobody places."""
    found = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices()
    return str(found[0].name)


def _export_plain(model: Any, *args: Any, **kwargs: Any) -> Any:
    """As `Model.export`, of the plain model: a served graph shall name no device."""
    plain = unplace(model)
    plain(plain.input)  # or Keras refuses it for ONNX: it was never called
    _without_cudnn(plain)
    return plain.export(*args, **kwargs)


def summary(model: keras.Model, **options: Any) -> str:
    """As `model.summary()`, as text, with the device of each layer; prints nothing.

    Args:
        model: an emitted model.
        **options: those of `keras.Model.summary`, but for `print_fn`.

    Raises:
        PlanFileError: the model was not emitted by splitnet.
    """
    placed = _placed(model)
    said: list[str] = []
    keras.Model.summary(model, print_fn=lambda text, **_: said.append(text), **options)
    on: dict[str, dict[str, None]] = {one.name: {} for one in model.operations}
    for node in (*map(keras_api.producer, model.inputs), *placed.flow.nodes):
        opened = re.split("[/@]", getattr(node, "path", ""))[0]
        devices = (placed.device_of[key].name for key in placed.keys(node))
        on[opened or node.operation.name] |= dict.fromkeys(devices)
    names, ends = list(on), options.get("layer_range") or [""]
    while not any(re.match(end, names[0]) for end in ends):
        del names[0]
    cells = ["Device", *(", ".join(on[name]) for name in names)]
    column, width = iter(cells), max(map(len, cells))
    lines, cell, starts = [], "", False
    for line in said[0].split("\n"):
        if line.startswith(_WALLS):
            if starts and not line[1:].lstrip().startswith("└"):  # as what is around it
                cell = next(column)
            line = f"{line} {cell * starts:<{width}} {line[-1]}"
        elif line[:1] in _JOINTS:
            line = line[:-1] + _JOINTS[line[0]] + line[1] * (width + 2) + line[-1]
        starts = line[:1] not in _WALLS
        lines.append(line)
    return "\n".join(lines)


def _print_summary(*given: Any, **options: Any) -> None:
    """As `Model.summary`, of an emitted model, with the column of devices."""
    named = inspect.signature(keras.Model.summary).bind(*given, **options).arguments
    (named.pop("print_fn", None) or print)(summary(named.pop("self"), **named))
