"""Every private name of Keras and TensorFlow that splitnet uses, checked at import.

No other module reads a private attribute of a Keras or TensorFlow object or imports
`keras.src` or `tensorflow.python`; `tests/tf/internals` holds that. What each is needed
for stands in docs/compatibility.md.
"""

import dis
import importlib
import inspect
import itertools
import pkgutil
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.errors import ConfigError, listed

KERAS = ((3, 12), (3, 15))
TENSORFLOW = ((2, 20), (2, 21))

# "module:class" and the attributes of it that are read or set; what is imported by name
# is found missing by its import.
_OF_KERAS = {
    "keras.src.models.functional:Functional": "_standardize_inputs _nodes_by_depth",
    "keras.src.ops.operation:Operation": "_inbound_nodes _outbound_nodes",
    "keras.src.ops.node:KerasHistory": "operation node_index",
    "keras:Sequential": "_functional",
    "keras.layers:Layer": "_get_regularization_losses _flatten_layers _layers "
    "_trainable_variables",
    "keras.layers:BatchNormalization": "_moments",
    "keras.layers:Lambda": "_output_shape",
    "keras:Model": "_compile_loss _compile_config _loss_tracker _compute_loss",
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
    "_clone _descriptor_cache",
    "tensorflow.python.ops.custom_gradient": "custom_gradient recompute_grad",
    "tensorflow.python.ops.resource_variable_ops:ResourceVariable": "_unique_id",
    "tensorflow:Graph": "_get_function _functions _add_function_recursive",
}


def missing(module: str, needed: dict[str, str]) -> list[str]:
    """Faults for what a module cannot import, and for attributes that are gone.

    An attribute that a method of the class sets is there. Methods are searched as
    bytecode: an installation may have no sources.
    """
    faults = []
    try:
        importlib.import_module(f"{__name__}.{module}")
        owners = {path: pkgutil.resolve_name(path) for path in needed}
    except (ImportError, AttributeError) as error:
        return [str(error)]
    for path, owner in owners.items():
        members = [
            v for one in getattr(owner, "__mro__", ()) for v in vars(one).values()
        ]
        functions = [inspect.unwrap(getattr(v, "fget", v)) for v in members]
        codes = [f.__code__ for f in functions if hasattr(f, "__code__")]
        for name in needed[path].split():
            steps = (dis.get_instructions(one) for one in codes if name in one.co_names)
            if not hasattr(owner, name) and not any(
                step.opname == "STORE_ATTR" and step.argval == name
                for step in itertools.chain.from_iterable(steps)
            ):
                faults.append(f"{owner.__name__}.{name} is gone")
    return faults


def _check(library: str, here: str, supported: Any, faults: list[str]) -> None:
    """Raise if a version is outside the tested range, or if there are other faults."""
    low, high = supported
    lowest, highest = (".".join(map(str, version)) for version in supported)
    if not low <= tuple(map(int, here.split(".")[:2])) <= high:
        faults = [*faults, f"{library} {here} is outside {lowest} to {highest}"]
    if faults:
        raise ConfigError(
            listed(
                f"splitnet cannot place models with {library} {here}; it is tested "
                f"with {lowest} to {highest}. Try: pip install "
                f"'{library.lower()}>={lowest},<{high[0]}.{high[1] + 1}'",
                faults,
            )
        )


def check_versions() -> None:
    """Refuse versions and backends that splitnet cannot place models with.

    Raises:
        ConfigError: says which version is here, which are supported, and what to do.
    """
    faults = missing("keras_api", _OF_KERAS)
    if keras.backend.backend() != "tensorflow":
        faults = [
            f"the Keras backend is {keras.backend.backend()!r}; set "
            "KERAS_BACKEND=tensorflow before the first import"
        ]
    _check("Keras", keras.__version__, KERAS, faults)
    faults = missing("tf_api", _OF_TENSORFLOW)
    _check("TensorFlow", tf.__version__, TENSORFLOW, faults)


check_versions()
