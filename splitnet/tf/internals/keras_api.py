"""Private names of Keras, each behind a function that says what it is for.

Public Keras cannot run a node of a model on a device, make a variable's memory
elsewhere, or update variables where they live.
"""

import contextlib
import gc
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter, methodcaller
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.masking import get_keras_mask as mask_of
from keras.src.backend.common.masking import set_keras_mask as set_mask
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.models.functional import Functional, operation_fn
from keras.src.ops.symbolic_arguments import SymbolicArguments

__all__ = ["Functional", "SymbolicArguments", "in_stateless_scope", "mask_of"]
__all__ += ["operation_fn", "set_mask"]

CARRIED = ("_keras_mask", "_keras_logits")
"""What Keras attaches to a tensor: the mask, and the logits of a probability."""
CARRIED_SCOPE = "keras_carried"  # the name scope of ops that move it
_GLOBAL_SEEDS = "global_seed_generator"  # Keras 3.12 has no constant for it


def read_all(inputs: Any) -> None:
    """Have a layer read each input of a model to be, as Keras < 3.14 demands."""
    for tensor in keras.tree.flatten(inputs):
        if not tensor._keras_history.operation._outbound_nodes:
            keras.layers.Identity(name="unread")(tensor)


def nodes_of(model: Any) -> list[Any]:
    """The nodes of a functional model, in the order in which Keras runs them."""
    inner = getattr(model, "_functional", model)  # of a Sequential one
    levels = sorted(getattr(inner, "_nodes_by_depth", {}).items(), reverse=True)
    return [n for _, level in levels for n in level if n.operation and not n.is_input]


def run_node(node: Any, tensors: dict[int, Any], context: Mapping[str, Any]) -> None:
    """Run one call; an optional input that is missing skips it, as Keras does."""
    if any(id(tensor) not in tensors for tensor in node.input_tensors):
        return
    args, kwargs = node.arguments.fill_in(tensors)
    made = operation_fn(node.operation, **context)(*args, **kwargs)
    for old, new in zip(node.outputs, keras.tree.flatten(made)):
        tensors[id(old)] = new


def producer(tensor: Any) -> Any:
    """The node that made a symbolic tensor; None for one that nothing made."""
    if hasattr(tensor, "splitnet_node"):  # of an expanded model
        return tensor.splitnet_node
    operation, node, _ = getattr(tensor, "_keras_history", (None, 0, 0))
    return None if operation is None else operation._inbound_nodes[node]


def readers_of(operation: Any) -> list[Any]:
    """The operations that read what an operation gives, in any model."""
    return [node.operation for node in operation._outbound_nodes]


def without_nodes(operation: Any) -> Any:
    """A copy of a raw operation, without its calls."""
    copy = object.__new__(type(operation))
    vars(copy).update(vars(operation))
    copy._inbound_nodes, copy._outbound_nodes = [], []
    return copy


functional_inside = attrgetter("_functional")
"""The functional model that a Sequential one runs; None before it is built."""

standardized_inputs = attrgetter("_standardize_inputs")
"""What makes a functional model's inputs flat tensors of the types it takes."""


def from_keras(what: Any) -> bool:
    """Whether a class or a function is Keras' own."""
    return str(getattr(what, "__module__", "")).partition(".")[0] == "keras"


def runs_own_code(layer: Any) -> bool:
    """Whether a layer is not Keras' own, or holds a function or rule that is not."""
    held = [value for value in vars(layer).values() if callable(value)]
    return not all(map(from_keras, [type(layer), *held]))


def makes_mask(layer: Any) -> bool:
    """Whether a layer makes masks: of values, or by a rule that is not Keras' own."""
    made = getattr(layer, "mask_zero", False) or isinstance(layer, keras.layers.Masking)
    return made or not from_keras(type(layer).compute_mask)


def sublayers(operation: Any) -> list[Any]:
    """A layer and all inside it but inputs, which stand elsewhere in a copy's list."""
    layer, inputs = isinstance(operation, keras.layers.Layer), keras.layers.InputLayer
    found = operation._flatten_layers() if layer else ()
    return [x for x in found if x is operation or not isinstance(x, inputs)]


def with_activations(layer: Any) -> Any:
    """A layer or model whose activations, where they are layers, are built as well."""
    for one in sublayers(layer):
        inside = getattr(one, "activation", None)
        if not getattr(inside, "built", True) and one._inbound_nodes:
            inside.build(one._inbound_nodes[0].outputs[0].shape)
    return layer


def variables_of(operation: Any) -> list[Any]:
    """All variables of a layer or model, each once; also states that it only holds."""
    found = [*getattr(operation, "variables", ())]
    for layer in sublayers(operation):
        states = keras.tree.flatten(getattr(layer, "states", None))
        found += [state for state in states if isinstance(state, keras.Variable)]
    return list({id(v): v for v in found}.values())


def take_settings(layer: Any, other: Any) -> None:
    """Freeze a layer, or not, as another is, with its policy; not what is inside."""
    layer._trainable, layer._dtype_policy = other.trainable, other.dtype_policy


def freeze_alike(layer: Any, other: Any) -> None:
    """Freeze a layer and its sublayers, or not, as those of another are."""
    for mine, its in zip(sublayers(layer), sublayers(other)):
        take_settings(mine, its)


def weights_of(operation: Any) -> list[Any]:
    """The variables made to be trained, frozen or not; no call changes them."""
    return [v for layer in sublayers(operation) for v in layer._trainable_variables]


def states_of(operation: Any) -> list[Any]:
    """The variables that calls may change: seeds, moving averages, metrics."""
    trained = {id(v) for v in weights_of(operation)}
    return [v for v in variables_of(operation) if id(v) not in trained]


def norms_of(operation: Any) -> list[Any]:
    """The BatchNormalizations that train on a batch as a whole; frozen ones do not."""
    norm = keras.layers.BatchNormalization
    return [o for o in sublayers(operation) if isinstance(o, norm) and o.trainable]


def tables_of(operation: Any) -> list[Any]:
    """The variables of which a layer reads rows alone, so that gradients are sparse."""
    own = operation.variables if isinstance(operation, keras.layers.Embedding) else ()
    return [v for v in own if v.name == "embeddings"]


def order_layers(model: Any, source: Any, pairs: Mapping[int, tuple[Any, Any]]) -> None:
    """List the sublayers, and so the weights, of a copy in its original's order."""
    copies = [pairs[id(one)][1] for one in source._layers if id(one) in pairs]
    known = {id(layer): layer for layer in model._layers}
    ordered = [known.pop(id(one)) for one in copies if id(one) in known]
    list.__init__(model._layers, [*ordered, *known.values()])


compiles_by_itself = methodcaller("_resolve_auto_jit_compile")
"""Whether Keras would compile the steps of a plain model with XLA unasked."""

lambda_output_shape = attrgetter("_output_shape")
"""The output shape that a Lambda layer was given."""

metric_function = attrgetter("_fn")
"""The function that a metric takes the mean of."""


@contextlib.contextmanager
def with_moments(layer: Any, moments: Callable[..., Any]) -> Iterator[Any]:
    """Let a BatchNormalization use other moments; yields what made its own."""
    plainly, layer._moments = layer._moments, moments
    try:
        yield plainly
    finally:
        del layer._moments


def has_value(variable: Any) -> bool:
    """Whether a variable has memory on some device."""
    return variable._value is not None


@contextlib.contextmanager
def penalties_summed(operations: Iterable[Any]) -> Iterator[None]:
    """Make activity penalties vectors, to be added up, where Keras < 3.14 sums them."""
    with contextlib.ExitStack() as held:
        for own in [vars(layer) for one in operations for layer in sublayers(one)]:
            if (rule := own.get("activity_regularizer")) and keras.__version__ < "3.14":
                own["activity_regularizer"] = lambda x, r=rule: tf.reshape(r(x), [-1])
                held.callback(own.update, activity_regularizer=rule)
        yield


def assign_value(variable: Any, value: Any) -> None:
    """Assign a variable in the graph that is being made, whatever scope there is."""
    variable._value.assign(value)


def move_values(devices: Iterable[tuple[Any, str]]) -> bool:
    """Give each variable its memory on its device; whether one was elsewhere.

    Models that have them trace their steps again. The old memory has no elements then:
    another function that was traced with it raises.
    """
    moved = set()
    for variable, device in devices:
        value = variable._value
        how = {"trainable": value.trainable, "name": variable.path}
        with tf.init_scope(), tf.device(device):
            if value.device != tf.constant(0).device:
                moved.add(id(variable))
                variable._value = tf.Variable(value, dtype=value.dtype, **how)
                variable._value._unique_id = value._unique_id  # which optimizers know
                empty = tf.zeros(0, value.dtype)
                tf.raw_ops.AssignVariableOp(resource=value.handle, value=empty)
    models = (x for x in gc.get_objects() if issubclass(type(x), keras.Model))
    for model in models if moved else ():
        steps = {f"{name}_function" for name in ("train", "test", "predict")}
        if any(map(vars(model).get, steps)):  # else it may be half made
            trainer = getattr(model, "optimizer", None)  # once it is compiled
            own = [*variables_of(model), *getattr(trainer, "variables", ())]
            if not moved.isdisjoint(map(id, own)):
                vars(model).update(dict.fromkeys(steps))
    return bool(moved)


def rename_variable(variable: Any, name: str, path: str) -> None:
    """Give a variable the name and path that it has in another model."""
    variable._name, variable._path = name, path
    if has_value(variable):  # by this name it may be excluded from weight decay
        variable._value._handle_name = f"{path}:0"


def number_of(variable: Any) -> str:
    """The number of a TensorFlow variable, unique in this process."""
    return str(variable._unique_id).rpartition("_")[2]


@contextlib.contextmanager
def without_values() -> Iterator[None]:
    """Build layers whose variables have shapes and initializers, but no memory.

    Keras would give them memory when the next ordinary scope closes, so they are not on
    its list. A variable made from a value raises a ValueError; see `needs_memory`.
    """
    stateless = keras.StatelessScope(initialize_variables=False)
    with stateless, without("uninitialized_variables", []):
        yield


@contextlib.contextmanager
def without(scope: str, instead: Any = None) -> Iterator[None]:
    """Leave a scope of Keras in this block, or give it other counters of names."""
    outer = global_state.get_global_attribute(scope)
    global_state.set_global_attribute(scope, instead)
    try:
        yield
    finally:
        global_state.set_global_attribute(scope, outer)


@contextlib.contextmanager
def with_values() -> Iterator[None]:
    """Make variables with memory of their own inside `without_values`."""
    with without("stateless_scope"), tf.init_scope():
        yield


def needs_memory(error: Exception) -> bool:
    """Whether a variable was made from a value where variables have no memory."""
    return isinstance(error, ValueError) and "in a stateless scope" in str(error)


def borrow_value(variable: Any, value: Callable[[], Any]) -> None:
    """Let a variable have what `value` gives, without memory if it has none yet."""
    if has_value(variable):
        variable.assign(value())
    else:
        variable._initializer = lambda *_, **__: tf.convert_to_tensor(value())


def copy_value(variable: Any, source: Any) -> None:
    """Give a variable memory, if layers have that here, and the value of `source`."""
    if has_value(source):
        borrow_value(variable, lambda: source.value)
    elif has_value(variable):
        variable.assign(source._initializer(source.shape, dtype=source.dtype))
    else:
        variable._initializer = source._initializer
    if not has_value(variable) and not in_stateless_scope():
        variable._deferred_initialize()


def without_memory(make: Callable[[], Any]) -> Any:
    """What `make` returns, called where layers are built without memory or seeds.

    If that cannot be (see `needs_memory`), they get memory on the host.
    """
    try:
        with random_states_kept(), without_values():
            return make()
    except ValueError as error:
        if not needs_memory(error):
            raise
    with random_states_kept(), tf.device("/device:CPU:0"):  # it starts TensorFlow
        return make()


@contextlib.contextmanager
def random_states_kept() -> Iterator[None]:
    """Leave the random states of Python, NumPy and Keras as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    known = global_state.get_global_attribute(_GLOBAL_SEEDS)
    state = None if known is None else known.state.numpy()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        global_state.set_global_attribute(_GLOBAL_SEEDS, known)
        if known is not None:
            known.state.assign(state)


def seed_of_all() -> Any:
    """The state that numbers without a seed are drawn from; None before the first."""
    known = global_state.get_global_attribute(_GLOBAL_SEEDS)
    if known is not None and not has_value(known.state):  # made in a stateless scope
        waiting = global_state.get_global_attribute("uninitialized_variables") or []
        waiting[:] = [one for one in waiting if one is not known.state]
        with with_values():
            known.state._deferred_initialize()
    return known and known.state


def own_steps(model: Any) -> list[str]:
    """Which methods that train a model its class has of its own."""
    names = ("train_step", "compute_loss")
    return [n for n in names if getattr(type(model), n) is not getattr(keras.Model, n)]


compiled_loss = attrgetter("_compile_loss")
"""What works out a compiled model's loss; None if nothing does."""


def build_at_once(model: Any) -> None:
    """Let a compiled model make its metrics' variables now, outside of any trace."""

    def ordinary(maker: Callable[..., Any], **options: Any) -> Any:
        return maker(**options | {"experimental_enable_variable_lifting": False})

    for part in filter(None, (compiled_loss(model), model._compile_metrics)):

        def build(*given: Any, plainly: Callable[..., None] = part.build) -> None:
            with tf.init_scope(), tf.variable_creator_scope(ordinary):
                plainly(*given)

        part.build = build


loss_tracker = attrgetter("_loss_tracker")
"""The metric that a compiled model reports as its loss."""

loss_computer = attrgetter("_compute_loss")
"""What computes the loss of one batch, as the model's training step does."""


def forget_initial_epoch(model: Any) -> None:
    """Drop the epoch at which the callback BackupAndRestore resumed."""
    model._initial_epoch = None


def compiled_with(source: Any) -> dict[str, Any]:
    """What a model was compiled with; optimizer and metrics may be names."""
    known = getattr(source, "_compile_config", None)
    return {} if known is None else dict(known.config)


def exclude_alike(mine: Any, theirs: Any, pairs: Iterable[tuple[Any, Any]]) -> None:
    """Exclude from weight decay what another optimizer does; pairs: its, mine."""
    keys = {theirs._var_key(its): mine._var_key(own) for its, own in pairs}
    if hasattr(theirs, name := "_exclude_from_weight_decay"):
        vars(mine)[name] = {keys[one] for one in getattr(theirs, name) if one in keys}
        vars(mine)[f"{name}_pattern"] = getattr(theirs, f"{name}_pattern")


def trained_by(optimizer: Any) -> list[Any]:
    """The variables that an optimizer was built for; empty before that."""
    return list(getattr(optimizer, "_trainable_variables", None) or ())


def update_by(
    optimizer: Any, update: Callable[..., None], reset: Callable[[Any], None]
) -> None:
    """Let an optimizer update and reset accumulators so; it has no replicas then."""
    optimizer._all_reduce_sum_gradients = list
    optimizer._distributed_tf_update_step = update
    optimizer._backend_reset_gradient_accumulators = lambda: reset(
        optimizer._accumulated_gradients
    )


@contextlib.contextmanager
def step_count_read(optimizer: Any) -> Iterator[None]:
    """Let an optimizer use the step count as it is read now, on the present device."""
    counter = optimizer._iterations
    if not tf.executing_eagerly():
        vars(optimizer)["_iterations"] = tf.identity(counter.value)
    try:
        yield
    finally:
        vars(optimizer)["_iterations"] = counter
