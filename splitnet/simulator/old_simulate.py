"""Play a placement forward in time: the judge of every plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import CostModel, Roofline
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.plan import Memory, Transfer
from splitnet.core.timeline import Copy, Task, Timeline
from splitnet.simulator.engine import COPY_KINDS, Moved, Run, run_step
from splitnet.simulator.old_memory import memory_of
from splitnet.simulator.step import Step, step_of

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["Outcome", "outcome_of", "simulate", "simulate_step"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What follows from a placement; `home` maps each weight to its device."""

    timeline: Timeline
    transfers: tuple[Transfer, ...]
    memory: Mapping[str, Memory]
    home: Mapping[str, str]


def simulate(
    plan: "Plan",
    *,
    microbatches: int = 1,
    schedule: str = "gpipe",
    recompute: bool = False,
) -> Timeline:
    """Play a plan again, forward, backward and update; times in seconds.

    Args:
        plan: Whose placement is kept.
        microbatches: How many pieces the batch goes through the parts in.
        schedule: "gpipe", or "1f1b" to bound the pieces in flight by the stages.
        recompute: Whether what a call keeps beside its output is computed again.

    Raises:
        DeclarationError: a pipeline that cannot be.
    """
    if microbatches != 1 or recompute or schedule != "gpipe":
        from splitnet.simulator.pipeline import simulate_pipeline

        return simulate_pipeline(
            plan, microbatches, schedule=schedule, recompute=recompute
        )
    return simulate_step(
        plan.graph,
        plan.cluster,
        plan.device_of,
        plan.costs,
        training=plan.training,
        optimizer=plan.optimizer,
    )


def simulate_step(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    costs: CostModel | None = None,
    *,
    training: bool = True,
    optimizer: str = "adam",
) -> Timeline:
    """Start every call as soon as its device is free and its inputs have arrived.

        gpu:0  |==== see ====|..|= head =|
        gpu:1  |= tell =|~~~~~~~^             ~ copy   . idle

    One thing at a time per device and per direction of a link, in the order in which
    things became ready. An output is copied once per device that reads it; gradients
    come back the same way; a weight used away from its home goes there and its gradient
    comes back; every weight is updated at home.

    Args:
        graph: What runs.
        cluster: The machine.
        device_of: Part -> name of a device of the cluster; every part of the graph.
        costs: Seconds; `Roofline()` if not given.
        training: Whether backward and update follow.
        optimizer: Its name, for slots and the time of updates.

    Raises:
        PlanFileError: a part has no device, or one that is not in the cluster.
    """
    step = step_of(
        graph, cluster, costs or Roofline(), training=training, optimizer=optimizer
    )
    return outcome_of(graph, cluster, step, device_of).timeline


def outcome_of(
    graph: Graph, cluster: Cluster, step: Step, device_of: Mapping[str, str]
) -> Outcome:
    """Simulate a step of calls (not of contracted parts) with all that follows."""
    device = call_devices(graph, cluster, device_of)
    run = run_step(step, device)
    memories, curves = memory_of(step, device, run)
    names = [one.name for one in cluster]
    copies = [_copy(graph, step, names, device, moved) for moved in run.copies]
    return Outcome(
        Timeline(
            tasks=tuple(_tasks(graph, step, names, device, run)),
            copies=tuple(sorted(copies, key=_when)),
            devices=tuple(names),
            memory=dict(zip(names, curves)),
        ),
        tuple(_transfer(graph, step, names, device, moved) for moved in run.copies),
        dict(zip(names, memories)),
        {
            weight: device_of[parts[0]]
            for weight, parts in graph.parts_of_weights.items()
            if parts
        },
    )


def call_devices(
    graph: Graph, cluster: Cluster, device_of: Mapping[str, str]
) -> list[int]:
    """The number of every call's device.

    Raises:
        PlanFileError: a part has no device, or one that is not in the cluster.
    """
    number = {device.name: i for i, device in enumerate(cluster)}
    faults = [
        f"part {part.name!r} is on {device_of.get(part.name, 'no device')!r}"
        for part in graph.parts
        if device_of.get(part.name) not in number
    ]
    if faults:
        raise PlanFileError(
            f"every part needs a device of the cluster ({', '.join(number)}); "
            f"{'; '.join(faults[:8])}."
        )
    return [number[device_of[call.part]] for call in graph.calls]


def _when(copy: Copy) -> tuple[float, float, str, str]:
    return (copy.start, copy.stop, copy.source_device, copy.target_device)


def _tasks(
    graph: Graph, step: Step, names: Sequence[str], device: Sequence[int], run: Run
) -> list[Task]:
    """Tasks in order of their start; ties as forward, backward, update, then graph."""
    n = step.count
    order = sorted(
        (task for task in range(3 * n) if run.ran[task]),
        key=lambda task: (run.start[task], run.stop[task], task),
    )
    tasks = []
    for task in order:
        phase, unit = divmod(task, n)
        late = phase == 0 and step.explicit_backward[unit]
        tasks.append(
            Task(
                call=graph.calls[unit].name,
                part=graph.calls[unit].part,
                device=names[device[unit]],
                phase="backward" if late else ("forward", "backward", "update")[phase],
                start=run.start[task],
                stop=run.stop[task],
            )
        )
    return tasks


def _ends(step: Step, moved: Moved, device: Sequence[int]) -> tuple[int, int]:
    """The unit that a copy starts from, and the first unit that it serves."""
    if moved.kind < 2:
        net = step.nets[moved.item]
        owner, others = net.source, net.readers if moved.kind == 0 else net.backward
    else:
        one = step.shared[moved.item]
        owner, others = one.users[0], one.users if moved.kind == 2 else one.backward
    away = moved.target if moved.kind in (0, 2) else moved.source
    other = next(u for u in others if device[u] == away)
    return (owner, other) if moved.kind in (0, 2) else (other, owner)


def _copy(
    graph: Graph, step: Step, names: Sequence[str], device: Sequence[int], moved: Moved
) -> Copy:
    source, target = _ends(step, moved, device)
    late = moved.kind in (1, 3) or step.explicit_backward[target]
    return Copy(
        source=graph.calls[source].part,
        target=graph.calls[target].part,
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=COPY_KINDS[moved.kind],
        phase="backward" if late else "forward",
        bytes=moved.bytes,
        start=moved.start,
        stop=moved.stop,
    )


def _transfer(
    graph: Graph, step: Step, names: Sequence[str], device: Sequence[int], moved: Moved
) -> Transfer:
    source, target = _ends(step, moved, device)
    return Transfer(
        source=graph.calls[source].part,
        target=graph.calls[target].part,
        source_device=names[moved.source],
        target_device=names[moved.target],
        kind=COPY_KINDS[moved.kind],
        bytes=moved.bytes,
        seconds=moved.stop - moved.start,
    )
