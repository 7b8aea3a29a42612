"""Simulate one training step of a placement: timeline, transfers and memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import PHASES, Copy, Memory, Task, Timeline
from splitnet.simulator.event_loop import Moved, run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.step_graph import StepGraph


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a placement: the step, and each device's fullest moment."""

    timeline: Timeline
    memory: Mapping[str, Memory]


def lacking_bytes(cluster: Cluster, memory: Mapping[str, Memory]) -> dict[str, int]:
    """What each device lacks that holds more than it has room for."""
    excess = {d.name: memory[d.name].total - d.memory_bytes for d in cluster}
    return {name: count for name, count in excess.items() if count > 0}


def outcome_of(
    cluster: Cluster, step: StepGraph, device_of: Mapping[str, str]
) -> Outcome:
    """Simulate a step graph with parts on the devices of `device_of`."""
    names = [device.name for device in cluster]
    device = [names.index(device_of[part]) for part in step.parts]
    run = run_step(step, device)
    held = dict(zip(names, memory_of(step, device, run)))
    tasks = []
    for task in (task for task, ran in enumerate(run.ran) if ran):
        phase, number = divmod(task, step.count)
        unit = step.units[number]
        tasks.append(
            Task(
                part=unit.part,
                device=names[device[number]],
                phase=PHASES[1 if unit.explicit_backward else phase],
                start=run.start[task],
                stop=run.stop[task],
                microbatch=number * step.microbatches // step.count,
            )
        )
    # Ties stand as forward, backward, update, then unit.
    tasks.sort(key=lambda task: (task.start, task.stop))
    copies = [_copy(step, names, device, moved) for moved in run.copies]
    copies.sort(key=lambda c: (c.start, c.stop, c.source_device, c.target_device))
    timeline = Timeline(
        tasks=tuple(tasks),
        copies=tuple(copies),
        devices=tuple(names),
        memory={name: one.curve for name, one in held.items()},
    )
    return Outcome(timeline, {name: one.peak for name, one in held.items()})


def _copy(step: StepGraph, names: list[str], device: list[int], moved: Moved) -> Copy:
    """A copy; it leaves one unit, and the first unit that it serves reads it."""
    item, back = step.items[moved.item], moved.is_gradient
    away = moved.source if back else moved.target
    others = item.gradients_from if back else item.readers
    other = next(unit for unit in others if device[unit] == away)
    source, target = (other, item.source) if back else (item.source, other)
    kind = "weights" if item.is_weight else "" if back else "activation"
    return Copy(
        source=step.parts[source],
        target=step.parts[target],
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=f"{kind} gradient".strip() if back else kind,
        phase=PHASES[back or step.units[target].explicit_backward],
        bytes=moved.bytes,
        start=moved.start,
        stop=moved.stop,
        microbatch=source * step.microbatches // step.count,
    )
