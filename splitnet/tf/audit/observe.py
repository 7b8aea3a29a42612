"""Audit one executed step: where every op, variable, slot and copy really was."""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from splitnet.core.audit import Audit, Observation, SeenVariable, audit_of
from splitnet.core.errors import AuditError, first_line, shown
from splitnet.core.plan import Plan
from splitnet.core.replication import batch_shares
from splitnet.tf.audit import partition_graphs
from splitnet.tf.internals import keras_api, tf_api
from splitnet.tf.internals.keras_api import variables_of
from splitnet.tf.placement.optimizer import all_optimizers, slots_of
from splitnet.tf.placement.overlay import placed_call
from splitnet.tf.placement.placed import Placed, placed_of, placement
from splitnet.tf.reading.read import planned_blueprint, planned_sites
from splitnet.tf.workers.connect import wait_for_workers

_KEPT = ("train_function", "history", "stop_training", "_initial_epoch")
# TensorFlow collects executed graphs per process, so one audit runs at a time.
_ONE_AT_A_TIME = threading.RLock()
_FORWARD_ONLY = (
    "only the forward pass was watched: no targets, not compiled, or training=False."
)
_EAGER = (
    "run_eagerly=True: forward ops run on their devices, but backward and update ops "
    "run one by one where TensorFlow puts them; neither is observed."
)


def audit(model: keras.Model, plan: Plan | None = None, batch: Any = None) -> Audit:
    """Watch one step of a model and hold it against its plan.

    The step is the one `fit` runs. Weights, optimizer state, metrics and random states
    are put back afterwards, so training goes on as if nothing had happened.

    Args:
        model: a compiled Keras model, emitted by splitnet or not. One that is not
            compiled, or lacks targets to train on, is audited in its forward pass.
        plan: what it should do; that of the emitted model if None. Of one that was made
            with training=False the forward pass is audited.
        batch: one batch as `fit` takes it: `(x, y)` or `(x, y, sample_weight)`, with a
            list or dict of inputs as the model has them; or `x`, a list as `(x,)`. Of
            a dataset or generator it is the first batch.

    Raises:
        AuditError: there is nothing to audit by, or the step failed.
    """
    if batch is None:
        raise AuditError("batch is missing: audit(model, None, (x[:32], y[:32])).")
    wait_for_workers(ask=True)
    placed = placed_of(model)
    if plan is None and placed is None:
        fault = f"model {model.name!r} was not emitted by splitnet"
        raise AuditError(f"{fault}: give audit() the plan that it should keep.")
    plan = placed.plan if plan is None else plan
    inputs, targets, weights = unpacked(batch)
    training = trains(model, inputs, targets) and plan.training
    if not (size := _batch_size(inputs)):
        raise AuditError(
            "the batch has no samples: audit(model, None, (x[:8], y[:8]))."
        )
    with contextlib.ExitStack() as held:
        held.enter_context(_ONE_AT_A_TIME)
        functions = held.enter_context(tf_api.watch_graphs())
        if placed is None:  # its ops get the scopes of the plan's parts
            blueprint = planned_blueprint(model, plan)
            placed = placement(plan, blueprint.flow, planned_sites(blueprint, plan))
            vars(model)["call"] = placed_call(model, placed)
            held.callback(vars(model).pop, "call")
        held.enter_context(state_restored(model, training=training))
        known = _traced(model, placed, batch) if training else {}
        placed.graphs.clear()
        try:
            if training:  # TensorFlow exports what it instantiates
                if known:
                    held.enter_context(tf_api.instantiated_again())
                else:
                    model.train_function = None
                train_step(model, inputs, targets, weights)
            else:
                with tf.device("CPU:0"):  # where the data of `fit` is
                    given = keras.tree.map_structure(tf.identity, inputs)
                tf.function(lambda given: model(given, training=False))(given)
            placed.graphs.update({} if placed.graphs else known)
            graphs = list(placed.graphs)  # which the model's own step replaces
        except Exception as error:  # whatever a model makes of a batch
            why = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
            fault = f"the watched step of model {model.name!r} failed: {why}"
            raise AuditError(f"{fault}. Give a batch that model.fit takes.") from error
    return _judged(model, plan, placed, functions, graphs, size, training=training)


def _traced(model: Any, placed: Placed, batch: Any) -> dict[Any, Any]:
    shapes = _shapes(batch)
    return {
        graph: step
        for graph, step in placed.graphs.items()
        if step is not None
        and step() is model.train_function
        and _shapes(graph.structured_input_signature) == shapes
    }


def _shapes(values: Any) -> list[tf.TensorShape]:
    flat = keras.tree.flatten(values)
    return [tf.TensorShape(getattr(v, "shape", ())) for v in flat if v is not None]


def unpacked(batch: Any) -> tuple[Any, Any, Any]:
    """Inputs, targets and sample weights of a batch as `fit` takes it."""
    if isinstance(batch, keras.utils.PyDataset | tf.data.Dataset | Iterator):
        batch = next(iter(batch), ())
    try:
        return keras.utils.unpack_x_y_sample_weight(batch)
    except ValueError:
        what = "a batch is x, (x, y) or (x, y, sample_weight)"
        more = "several inputs are a list in the place of x"
        raise AuditError(f"{what}; {more}. Received: {shown(batch)}.") from None


@contextlib.contextmanager
def watching(model: Any) -> Iterator[Callable[[], Audit]]:
    """Watch the steps of `fit` in this block; yields what gives the audit after it."""
    placed = placed_of(model)
    plan = placed.plan
    placed.graphs.clear()
    with _ONE_AT_A_TIME, tf_api.watch_graphs() as functions:
        yield lambda: _judged(model, plan, placed, functions, placed.graphs, plan.batch)


def _judged(
    model: Any,
    plan: Plan,
    placed: Placed,
    functions: Sequence[Any],
    graphs: Collection[Any],
    batch: int,
    *,
    training: bool = True,
) -> Audit:
    names = partition_graphs.Names(plan, placed, getattr(model, "optimizer", None))
    microbatches = placed.pipeline.microbatches if training else 1
    shares = batch_shares(batch, microbatches)
    ran = (nodes for nodes in functions if any("sn_" in node.name for node in nodes))
    steps = [partition_graphs.ExecutedStep(n, graphs, names, shares) for n in ran]
    held = [("variable", one, name) for one, name in names.variables.values()]
    for optimizer in all_optimizers(model.optimizer) if training else ():
        known = ((s, names.variables.get(id(v))) for s, v in slots_of(optimizer))
        held += [("slot", slot, one[1]) for slot, one in known if one is not None]
    eager = model.compiled and model.run_eagerly
    phases = ("forward", "backward", "update") if training else ("forward",)
    seen = Observation(
        ops=tuple(op for step in steps for op in partition_graphs.seen_ops(step)),
        variables=tuple(
            SeenVariable(one.path, kind, name, names.device(one.value.device))
            for kind, one, name in held
        ),
        copies=tuple(c for step in steps for c in partition_graphs.seen_copies(step)),
        phases=() if eager else phases,
        notes=(*([_EAGER] if eager else ()), *(() if training else [_FORWARD_ONLY])),
        unneeded=partition_graphs.unneeded_parts(graphs, names),
        microbatches=microbatches,
        batch=batch,
    )
    return audit_of(plan, seen)


def trains(model: Any, inputs: Any, targets: Any) -> bool:
    """Whether a batch is one to train a model on; its own step may need no targets."""
    alone = keras_api.own_steps(model) or keras_api.compiled_loss(model) is None
    alone = alone or not np.shape(keras.tree.flatten(inputs)[0])  # texts, for its `fit`
    return model.compiled and (targets is not None or bool(alone))


def train_step(model: Any, inputs: Any, targets: Any, weights: Any) -> None:
    """One step of `fit` on one batch; nothing is printed."""
    keras_api.forget_initial_epoch(model)  # BackupAndRestore leaves its own
    size, quiet = _batch_size(inputs), {"shuffle": False, "verbose": 0}
    model.fit(inputs, targets, sample_weight=weights, batch_size=size, **quiet)


def _batch_size(inputs: Any) -> int:
    return int((np.shape(keras.tree.flatten(inputs)[0]) or [len(inputs)])[0])


@contextlib.contextmanager
def state_restored(model: Any, *, training: bool) -> Iterator[None]:
    """Put back what a step changes: variables, slots, metrics, seeds, history."""
    optimizer = getattr(model, "optimizer", None)
    if training and optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)  # as `fit` does: the first slots
    held = [*variables_of(model), *(v for m in model.metrics for v in m.variables)]
    own = keras.optimizers.Optimizer | keras.layers.Layer  # those of a step of its own
    for value in vars(model).values():
        value = [*value.values()] if isinstance(value, dict) else value
        each = value if isinstance(value, list | tuple) else [value]
        held += [v for one in each if isinstance(one, own) for v in one.variables]
    values = {id(v): (v, v.numpy()) for v in held}
    kept = {name: getattr(model, name, None) for name in _KEPT}
    try:
        with keras_api.random_states_kept():
            yield
    finally:
        for metric in model.metrics:
            if any(id(variable) not in values for variable in metric.variables):
                metric.reset_state()
        for variable, value in values.values():
            variable.assign(value)
        vars(model).update(kept)
