"""A plan's devices on the machine that is here, with a receipt for each that is not."""

from collections import Counter

import tensorflow as tf

from splitnet.core.plan import Fallback, Plan
from splitnet.tf.marks import canonical

__all__ = ["targets_of"]


def targets_of(plan: Plan) -> tuple[dict[str, str], list[Fallback]]:
    """The device TensorFlow is told for each part, and what fell back.

    A device that is not here falls back to the least loaded one of its kind that is
    (a stand-in counts for what it stands in for), else to the CPU.
    """
    here = {canonical(d.name) for d in tf.config.list_logical_devices()}
    present = [d for d in plan.cluster if canonical(d.target) in here]
    standing = dict(_stand_ins(plan, here))
    load = Counter({name: 0 for name in (d.name for d in present)})
    for part, device in plan.device_of.items():
        if device in load:
            load[device] += len(plan.graph.calls_of[part])
    targets: dict[str, str] = {}
    receipts: list[Fallback] = []
    moved: dict[str, tuple[str, str]] = {}
    for part, name in plan.device_of.items():
        device = plan.cluster[name]
        if device in present:
            targets[part] = device.target
            continue
        if name not in moved:
            same = [d for d in present if d.kind == device.kind]
            if name in standing:
                moved[name] = (standing[name], standing[name])
            elif same:
                best = min(same, key=lambda d: load[d.name])
                moved[name] = (best.name, best.target)
                load[best.name] += 1
            else:
                moved[name] = ("the CPU", "/device:CPU:0")
        got, targets[part] = moved[name]
        receipts.append(
            Fallback(part, name, got, f"{device.target} is not on this machine")
        )
    return targets, receipts


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
