"""A plan on the machine that is here: devices by name, substitutes for missing ones."""

from dataclasses import replace

import tensorflow as tf

from splitnet.core.cluster import Cluster, Device
from splitnet.core.errors import warn
from splitnet.core.plan import Plan
from splitnet.planner.what_if import relocate
from splitnet.tf.placement.device_function import canonical
from splitnet.tf.runtime.configure import cpu_devices
from splitnet.tf.runtime.devices import local_cluster

__all__ = ["devices_here", "planned_here"]


def planned_here(plan: Plan) -> Plan:
    """The plan with devices that are here; the same plan if all of them are.

    A device keeps its name: gpu:0 of a plan for another machine is gpu:0 of this one,
    or the stand-in of that name. Parts on other missing devices fall back as in
    planning, with one warning.

    Raises:
        DeviceError: constraints cannot be kept on the devices that are here.
    """
    logical = {canonical(d.name) for d in tf.config.list_logical_devices()}
    used = set(plan.device_of.values())
    if all(canonical(plan.cluster[name].target) in logical for name in used):
        return plan
    taken = {canonical(d.target) for d in plan.cluster} & logical
    local = {d.name: d for d in devices_here() if canonical(d.target) not in taken}
    devices = [_as_here(d, logical, local) for d in plan.cluster]
    here = {d.name for d in devices if canonical(d.target) in logical}
    if used <= here:
        return replace(plan, cluster=replace(plan.cluster, devices=tuple(devices)))
    names = {d.name for d in devices}
    devices += [d for name, d in local.items() if name not in names]
    cluster = replace(plan.cluster, devices=tuple(devices))
    missing = [d.name for d in devices if canonical(d.target) not in logical]
    found = relocate(plan, cluster.without(*missing))
    moved = [
        f"{part} ({device} -> {found.device_of[part]})"
        for part, device in plan.device_of.items()
        if found.device_of[part] != device
    ]
    warn(
        f"not on this machine: {', '.join(n for n in missing if n in used)}. "
        f"{len(moved)} of {len(plan.placements)} parts of {plan.graph.name!r} run "
        f"elsewhere than planned: {', '.join(moved)}. plan_of(model) has the plan with "
        "these fallbacks."
    )
    return found


def devices_here() -> Cluster:
    """The devices of this machine; without a GPU, CPUs after the first stand in."""
    gpus = tf.config.list_logical_devices("GPU")
    return local_cluster(stand_in_gpus=0 if gpus else cpu_devices() - 1)


def _as_here(device: Device, logical: set[str], local: dict[str, Device]) -> Device:
    """A planned device with the target of the local one of its name."""
    mine = local.get(device.name)
    if mine is None or canonical(device.target) in logical:
        return device
    return replace(device, target=mine.target, stand_in=mine.stand_in)
