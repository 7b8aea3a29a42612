"""Pins of a model that was built under `tf.device`: layers go where weights are."""

from collections import Counter
from typing import Any

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, warn
from splitnet.core.graph import Graph
from splitnet.core.net import Net
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.placement.targets import devices_here
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.reading.variables import variables_of

__all__ = ["check_built", "pins_as_built"]


def pins_as_built(source: Any, graph: Graph, cluster: Cluster, nested: str) -> Any:
    """A device for each call: that of its layer's variables, else of its inputs.

    `with tf.device("/gpu:1")` around a layer places its variables, not its
    computation; the variables say what the author asked for. A layer whose variables
    are on several devices goes where most of their bytes are. A call without variables
    goes where most bytes of its inputs come from.

    Args:
        source: a built Keras model.
        graph: what `read` made of it.
        cluster: the devices; variables on others are not pinned.
        nested: as in `read`.

    Returns:
        Pins for `plan`: call -> device name.
    """
    known = {device.name for device in cluster}
    devices = [*devices_here(), *cluster]  # gpu:0 may be the stand-in of that name
    device_at = {canonical(d.target): d.name for d in devices if d.name in known}
    pins: dict[str, str] = {}
    for site in blueprint_of(source, nested).sites:
        if not site.node.is_input:
            sizes: Counter[str] = Counter()
            for variable in variables_of(site.node.operation):
                name = device_at.get(canonical(variable.value.device))
                if name is not None:
                    sizes[name] += variable.value.shape.num_elements() or 0
            if sizes:
                pins[site.call] = sizes.most_common(1)[0][0]
    if len(set(pins.values())) == 1 and len(cluster) > 2:
        warn(
            f"pins='as_built': all variables of {graph.name!r} are on "
            f"{next(iter(pins.values()))}. TensorFlow uses another device without a "
            "word where the one of a tf.device scope is not available; build the model "
            "with the devices of this machine, or give pins as a mapping."
        )
    return _with_inputs(graph, pins)


def check_built(source: Any) -> None:
    """Refuse a source without variables.

    Raises:
        DeclarationError: a net, a graph, or a function that builds a model.
    """
    if isinstance(source, Net | Graph) or callable(source) and not _is_model(source):
        raise DeclarationError(
            "pins='as_built' takes each layer's device from its variables, so it needs "
            f"a built Keras model. Received: {source!r} ({type(source).__name__}). "
            "Declare devices with on=, or give pins as a mapping."
        )


def _with_inputs(graph: Graph, pins: dict[str, str]) -> dict[str, str]:
    """Pins also for the calls without variables, from where their inputs come."""
    pins = dict(pins)
    for call in graph.calls:
        if call.name in pins:
            continue
        sizes: Counter[str] = Counter()
        for tensor in graph.tensors:
            if tensor.target == call.name and tensor.source in pins:
                sizes[pins[tensor.source]] += tensor.bytes
        if sizes:
            pins[call.name] = sizes.most_common(1)[0][0]
    return pins


def _is_model(source: Any) -> bool:
    return hasattr(source, "get_config")
