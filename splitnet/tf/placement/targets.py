"""A plan's devices on this machine, with a fallback for each that is missing."""

from collections import Counter

import tensorflow as tf

from splitnet.core.cluster import Device
from splitnet.core.plan import Fallback, Plan
from splitnet.tf.placement.device_function import canonical, spoken

__all__ = ["targets_of"]


def targets_of(plan: Plan) -> tuple[dict[str, str], list[Fallback]]:
    """The device TensorFlow is told for each part, and what fell back.

    A device that is not here falls back to the least loaded one of its kind that is
    (a stand-in counts for what it stands in for), else to the CPU.
    """
    here = {canonical(d.name) for d in tf.config.list_logical_devices()}
    present = [d for d in plan.cluster if canonical(d.target) in here]
    load = Counter(dict.fromkeys((d.name for d in present), 0))
    for part, device in plan.device_of.items():
        if device in load:
            load[device] += len(plan.graph.calls_of[part])
    standing = dict(_stand_ins(plan, here))
    instead: dict[str, tuple[str, str]] = {}
    targets: dict[str, str] = {}
    fallbacks: list[Fallback] = []
    for part, name in plan.device_of.items():
        device = plan.cluster[name]
        if device in present:
            targets[part] = device.target
            continue
        if name in standing:
            instead[name] = (spoken(standing[name]), standing[name])
        elif name not in instead:
            instead[name] = _least_loaded(device.kind, present, load)
        got, targets[part] = instead[name]
        fallbacks.append(
            Fallback(part, name, got, f"{device.target} is not on this machine")
        )
    return targets, fallbacks


def _least_loaded(
    kind: str, present: list[Device], load: Counter[str]
) -> tuple[str, str]:
    """The name and target of a present device of this kind, else of the CPU."""
    same = [device for device in present if device.kind == kind]
    if not same:
        home = next((d for d in present if d.kind == "cpu"), None)
        return (home.name, home.target) if home else ("cpu:0", "/device:CPU:0")
    best = min(same, key=lambda device: load[device.name])
    load[best.name] += 1
    return best.name, best.target


def _stand_ins(plan: Plan, here: set[str]) -> list[tuple[str, str]]:
    """Logical CPUs 1, 2, ... stand in for planned GPUs where no GPU is here."""
    if any("GPU" in name for name in here):
        return []
    spare = [f"/device:CPU:{i}" for i in range(1, len(here) + 1)]
    spare = [name for name in spare if canonical(name) in here]
    taken = {canonical(d.target) for d in plan.cluster}
    spare = [name for name in spare if canonical(name) not in taken]
    missing = [
        d.name
        for d in plan.cluster
        if d.kind == "gpu" and not d.host and canonical(d.target) not in here
    ]
    return [(name, spare[i % len(spare)]) for i, name in enumerate(missing) if spare]
