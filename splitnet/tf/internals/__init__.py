"""Every private name of Keras and TensorFlow that splitnet uses, checked at import.

No other module uses one; `tests/tf/internals` holds that. What each is needed for
stands in docs/compatibility.md.
"""

import dis
import importlib
import inspect
import pkgutil

import keras
import tensorflow as tf

from splitnet.core.errors import ConfigError

KERAS = ((3, 12), (3, 15))
TENSORFLOW = ((2, 20), (2, 21))

# "module:class" and the attributes of it that are read or set; what is imported by name
# is found missing by its import.
_OF_KERAS = {
    "keras.src.backend.common.global_state": "get_global_attribute "
    "set_global_attribute",
    "keras.src.models.functional:Functional": "_standardize_inputs _nodes_by_depth",
    "keras.src.ops.operation:Operation": "_inbound_nodes _outbound_nodes",
    "keras.src.ops.node:KerasHistory": "operation node_index",
    "keras:Sequential": "_functional",
    "keras.layers:Layer": "_get_regularization_losses _flatten_layers _layers "
    "_trainable_variables _trainable _dtype_policy",
    "keras.layers:BatchNormalization": "_moments",
    "keras.layers:Lambda": "_output_shape",
    "keras:Model": "_compile_loss _compile_metrics _compile_config _loss_tracker "
    "_compute_loss _resolve_auto_jit_compile",
    "keras.src.backend.tensorflow.trainer:TensorFlowTrainer": "_initial_epoch",
    "keras.src.backend.tensorflow.optimizer:TFOptimizer": "_iterations "
    "_all_reduce_sum_gradients _distributed_tf_update_step _trainable_variables "
    "_backend_reset_gradient_accumulators _accumulated_gradients",
    "keras:Variable": "_value _name _path _initializer _deferred_initialize",
}
_OF_TENSORFLOW = {
    "tensorflow.python.eager.context:Context": "enable_graph_collection "
    "disable_graph_collection export_run_metadata _context_handle sync_executors "
    "get_server_def update_server_def get_function_def",
    "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function": ""
    "_clone _descriptor_cache _jit_compile",
    "tensorflow.python.ops.custom_gradient": "custom_gradient recompute_grad",
    "tensorflow.python.ops.resource_variable_ops:ResourceVariable": ""
    "_unique_id _handle_name",
    "tensorflow:Graph": "_get_function _functions _add_function_recursive",
}


def missing(module: str, needed: dict[str, str]) -> list[str]:
    """Faults for what a module cannot import, and for attributes that are gone.

    An attribute is there if the class has it, or a method of it sets it.
    """
    try:
        importlib.import_module(f"{__name__}.{module}")
        owners = {path: pkgutil.resolve_name(path) for path in needed}
    except (ImportError, AttributeError) as error:
        return [str(error)]
    faults = []
    for path, owner in owners.items():
        classes = getattr(owner, "__mro__", ())
        members = [member for one in classes for member in vars(one).values()]
        functions = [inspect.unwrap(getattr(v, "fget", v)) for v in members]
        gone = {name for name in needed[path].split() if not hasattr(owner, name)}
        for code in [f.__code__ for f in functions if hasattr(f, "__code__")]:
            if not gone.isdisjoint(code.co_names):
                steps = dis.get_instructions(code)
                gone -= {s.argval for s in steps if s.opname == "STORE_ATTR"}
        faults += [f"{owner.__name__}.{name} is gone" for name in sorted(gone)]
    return faults


def check_versions() -> None:
    """Refuse versions and backends that splitnet cannot place models with."""
    if (backend := keras.backend.backend()) != "tensorflow":
        fault = f"splitnet cannot place models with the Keras backend {backend!r}"
        raise ConfigError(f"{fault}; set KERAS_BACKEND=tensorflow before any import.")
    for library, here, (low, high), faults in (
        ("Keras", keras.__version__, KERAS, missing("keras_api", _OF_KERAS)),
        ("TensorFlow", tf.__version__, TENSORFLOW, missing("tf_api", _OF_TENSORFLOW)),
    ):
        lowest, highest = (".".join(map(str, version)) for version in (low, high))
        if not low <= tuple(map(int, here.split(".")[:2])) <= high:
            faults.append(f"{library} {here} is outside {lowest} to {highest}")
        if faults:
            text = (
                f"splitnet cannot place models with {library} {here}; it is tested "
                f"with {lowest} to {highest}. Try: pip install "
                f"'{library.lower()}>={lowest},<{high[0]}.{high[1] + 1}'"
            )
            raise ConfigError(text, faults)


check_versions()
