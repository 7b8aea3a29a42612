"""Simulate one training step of a placement: timeline, transfers and memory."""

from collections.abc import Mapping
from dataclasses import dataclass

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Copy, Memory, Task, Timeline
from splitnet.simulator.event_loop import Moved, StepRun, run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import ACTIVATION, COPY_KINDS, GRADIENT, WEIGHTS

_PHASES = ("forward", "backward", "update")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a placement: the step, and each device's fullest moment."""

    timeline: Timeline
    memory: Mapping[str, Memory]


def outcome_of(
    cluster: Cluster, step: StepGraph, device_of: Mapping[str, str]
) -> Outcome:
    """Simulate a step graph with parts on the devices of `device_of`."""
    names = [device.name for device in cluster]
    device = [names.index(device_of[part]) for part in step.parts]
    run = run_step(step, device)
    held = dict(zip(names, memory_of(step, device, run)))
    copies = [_copy(step, names, device, moved) for moved in run.copies]
    copies.sort(key=lambda c: (c.start, c.stop, c.source_device, c.target_device))
    timeline = Timeline(
        tasks=tuple(_tasks(step, [names[number] for number in device], run)),
        copies=tuple(copies),
        devices=tuple(names),
        memory={name: one.curve for name, one in held.items()},
    )
    return Outcome(timeline, {name: one.peak for name, one in held.items()})


def _tasks(step: StepGraph, device: list[str], run: StepRun) -> list[Task]:
    """Tasks in order of their start; ties as forward, backward, update, then unit."""
    found = []
    for task in (task for task, ran in enumerate(run.ran) if ran):
        phase, unit = divmod(task, step.count)
        explicit = phase == 0 and step.explicit_backward[unit]
        found.append(
            Task(
                part=step.parts[unit],
                device=device[unit],
                phase=_PHASES[1 if explicit else phase],
                start=run.start[task],
                stop=run.stop[task],
                microbatch=unit * step.microbatches // step.count,
            )
        )
    return sorted(found, key=lambda task: (task.start, task.stop))


def _copy(step: StepGraph, names: list[str], device: list[int], moved: Moved) -> Copy:
    """A copy; it leaves one unit, and the first unit that it serves reads it."""
    returns = moved.kind not in (ACTIVATION, WEIGHTS)
    if moved.kind in (ACTIVATION, GRADIENT):
        edge = step.edges[moved.item]
        owner, others = edge.source, edge.gradients_from if returns else edge.readers
    else:
        one = step.weights[moved.item]
        owner, others = one.users[0], one.gradients_from if returns else one.users
    away = moved.source if returns else moved.target
    other = next(unit for unit in others if device[unit] == away)
    source, target = (other, owner) if returns else (owner, other)
    backward = returns or step.explicit_backward[target]
    return Copy(
        source=step.parts[source],
        target=step.parts[target],
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=COPY_KINDS[moved.kind],
        phase=_PHASES[backward],
        bytes=moved.bytes,
        start=moved.start,
        stop=moved.stop,
        microbatch=source * step.microbatches // step.count,
    )
