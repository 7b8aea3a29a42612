"""Simulate one training step of a placement: timeline, transfers and memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from splitnet.core.cluster import Cluster
from splitnet.core.timeline import Copy, Memory, Task, Timeline
from splitnet.simulator.event_loop import Moved, StepRun, run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.task_graph import ACTIVATION, COPY_KINDS, GRADIENT, WEIGHTS

__all__ = ["Outcome", "outcome_of"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a placement: the step, and each device's fullest moment."""

    timeline: Timeline
    memory: Mapping[str, Memory]


def outcome_of(
    cluster: Cluster, step: StepGraph, device_of: Mapping[str, str]
) -> Outcome:
    """Simulate a step graph with parts on the devices of `device_of`."""
    number = {device.name: i for i, device in enumerate(cluster)}
    device = [number[device_of[part]] for part in step.parts]
    run = run_step(step, device)
    memories, curves = memory_of(step, device, run)
    names = list(number)
    copies = [_copy(step, names, device, moved) for moved in run.copies]
    timeline = Timeline(
        tasks=tuple(_tasks(step, names, device, run)),
        copies=tuple(sorted(copies, key=_order)),
        devices=tuple(names),
        memory=dict(zip(names, curves)),
    )
    return Outcome(timeline, dict(zip(names, memories)))


def _order(copy: Copy) -> tuple[float, float, str, str]:
    return (copy.start, copy.stop, copy.source_device, copy.target_device)


def _tasks(
    step: StepGraph, names: Sequence[str], device: Sequence[int], run: StepRun
) -> list[Task]:
    """Tasks in order of their start; ties as forward, backward, update, then unit."""
    n = step.count
    order = sorted(
        (task for task in range(3 * n) if run.ran[task]),
        key=lambda task: (run.start[task], run.stop[task], task),
    )
    tasks = []
    for task in order:
        phase, unit = divmod(task, n)
        explicit = phase == 0 and step.explicit_backward[unit]
        tasks.append(
            Task(
                part=step.parts[unit],
                device=names[device[unit]],
                phase=("forward", "backward", "update")[1 if explicit else phase],
                start=run.start[task],
                stop=run.stop[task],
                microbatch=_microbatch(step, unit),
            )
        )
    return tasks


def _microbatch(step: StepGraph, unit: int) -> int:
    return unit * step.microbatches // step.count


def _ends(step: StepGraph, moved: Moved, device: Sequence[int]) -> tuple[int, int]:
    """The unit from which a copy starts, and the first unit that it serves."""
    returns = moved.kind not in (ACTIVATION, WEIGHTS)
    if moved.kind in (ACTIVATION, GRADIENT):
        edge = step.edges[moved.item]
        owner, others = edge.source, edge.gradients_from if returns else edge.readers
    else:
        one = step.weights[moved.item]
        owner, others = one.users[0], one.gradients_from if returns else one.users
    away = moved.source if returns else moved.target
    other = next(unit for unit in others if device[unit] == away)
    return (other, owner) if returns else (owner, other)


def _copy(
    step: StepGraph, names: Sequence[str], device: Sequence[int], moved: Moved
) -> Copy:
    source, target = _ends(step, moved, device)
    forward = moved.kind in (ACTIVATION, WEIGHTS) and not step.explicit_backward[target]
    return Copy(
        source=step.parts[source],
        target=step.parts[target],
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=COPY_KINDS[moved.kind],
        phase="forward" if forward else "backward",
        bytes=moved.bytes,
        start=moved.start,
        stop=moved.stop,
        microbatch=_microbatch(step, source),
    )
