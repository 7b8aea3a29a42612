"""Plans and this machine: devices by name, substitutes, pins of what is built."""

from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, warn
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan
from splitnet.planner.what_if import relocate
from splitnet.tf.internals.keras_api import variables_of
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.reading.source import blueprint_of
from splitnet.tf.runtime.configure import cpu_devices
from splitnet.tf.runtime.devices import local_cluster


def planned_here(plan: Plan) -> Plan:
    """The plan with devices that are here; the same plan if all of them are.

    A device keeps its name: gpu:0 of a plan for another machine is gpu:0 of this one,
    or its stand-in. Parts on others fall back as in planning, with one warning.
    """
    logical = {canonical(d.name) for d in tf.config.list_logical_devices()}
    found, used = {d.name: d for d in plan.cluster}, set(plan.device_of.values())
    if all(canonical(found[name].target) in logical for name in used):
        return plan
    taken = {canonical(d.target) for d in plan.cluster} & logical
    for device in _devices_here():
        if canonical(device.target) not in taken:
            known = found.setdefault(device.name, device)
            if canonical(known.target) not in logical:
                here = {"target": device.target, "stand_in": device.stand_in}
                found[device.name] = replace(known, **here)
    missing = [n for n, d in found.items() if canonical(d.target) not in logical]
    if not used & {*missing}:
        same = tuple(found[d.name] for d in plan.cluster)
        return replace(plan, cluster=replace(plan.cluster, devices=same))
    cluster = replace(plan.cluster, devices=tuple(found.values()))
    made = relocate(plan, cluster.without(*missing))
    both = ((part, old, made.device_of[part]) for part, old in plan.device_of.items())
    moved = [f"{part} ({old} -> {new})" for part, old, new in both if new != old]
    lost = f"not on this machine: {', '.join(n for n in missing if n in used)}"
    some = f"{len(moved)} of {len(plan.placements)} parts of {plan.graph.name!r}"
    run = f"run elsewhere than planned: {', '.join(moved)}"
    warn(f"{lost}. {some} {run}. plan_of(model) has the plan with these fallbacks.")
    return made


def _devices_here() -> Cluster:
    """The devices of this machine; without a GPU, CPUs after the first stand in."""
    gpus = tf.config.list_logical_devices("GPU")
    return local_cluster(stand_in_gpus=0 if gpus else cpu_devices() - 1)


def pins_as_built(source: Any, graph: Graph, cluster: Cluster, nested: str) -> Any:
    """A device for each call: that of its layer's variables, else of its inputs.

    `with tf.device("/gpu:1")` around a layer places its variables, not its computation;
    the variables say what the author asked for. Most bytes decide. Variables on devices
    outside the cluster are not pinned.
    """
    if not isinstance(source, keras.Model):  # such as a net or a function
        raise DeclarationError(
            "pins='as_built' takes each layer's device from its variables, so it needs "
            f"a built Keras model. Received: {source!r} ({type(source).__name__}). "
            "Declare devices with on=, or give pins as a mapping."
        )
    devices = [*_devices_here(), *cluster]  # gpu:0 may be the stand-in of that name
    device_at = {canonical(d.target): d.name for d in devices if d.name in cluster}
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for site in blueprint_of(source, nested).sites:
        for variable in variables_of(site.node.operation):
            value = variable.value
            if (device := device_at.get(canonical(value.device))) is not None:
                held[site.call][device] += value.shape.num_elements() or 0
    pins = {call: max(on, key=on.__getitem__) for call, on in held.items()}
    if len(set(pins.values())) == 1 and len(cluster) > 2:
        found = f"all variables of {graph.name!r} are on {next(iter(pins.values()))}"
        why = "TensorFlow uses another device without a word where the one of a scope"
        how = "build the model with this machine's devices, or give pins as a mapping"
        warn(f"pins='as_built': {found}. {why} is not available; {how}.")
    for call in graph.calls:
        read: Counter[str] = Counter()
        for tensor in graph.tensors if call.name not in pins else ():
            if tensor.target == call.name and tensor.source in pins:
                read[pins[tensor.source]] += tensor.bytes
        if read:
            pins[call.name] = max(read, key=read.__getitem__)
    return pins
