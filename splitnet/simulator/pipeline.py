"""Pipelines on plain values: a step of several micro-batches, played forward.

gpu:0  |F0|F1|F2|F3|B0|  |B1|  |B2|  |B3|        F forward, B backward
gpu:1     |F0|B0|F1|B1|F2|B2|F3|B3|              of micro-batch 0, 1, ...
                                                 blank: the bubble
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Call, Graph, Tensor
from splitnet.core.replication import batch_shares
from splitnet.core.timeline import Timeline
from splitnet.simulator.kernels import code_bytes
from splitnet.simulator.scaled import ScaledCosts, merged_graph, scaled_call
from splitnet.simulator.step import Step, step_of

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["SCHEDULES", "Pipeline", "pipeline_of", "simulate_pipeline", "stages_of"]

SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step is cut: `window` micro-batches may be in flight, None for all."""

    microbatches: int = 1
    window: int | None = None


def pipeline_of(plan: "Plan", microbatches: int, schedule: str) -> Pipeline:
    """Check what was asked of a pipeline against its plan.

    Raises:
        DeclarationError: with every fault.
    """
    faults = []
    if isinstance(microbatches, bool) or not isinstance(microbatches, int):
        faults.append(f"microbatches= must be a whole number, not {microbatches!r}")
    elif not 1 <= microbatches <= plan.batch:
        faults.append(
            f"microbatches={microbatches} must be from 1 to the batch, {plan.batch}"
        )
    if schedule not in SCHEDULES:
        faults.append(
            f"schedule= must be one of {', '.join(map(repr, SCHEDULES))}, not "
            f"{schedule!r}"
        )
    if faults:
        raise DeclarationError(f"this pipeline cannot be: {'; '.join(faults)}.")
    window = stages_of(plan) if schedule == "1f1b" and microbatches > 1 else None
    return Pipeline(microbatches, window)


def stages_of(plan: "Plan") -> int:
    """How many devices compute one after the other on the longest way to an output."""
    works = {
        part.name: any(call.forward_flops for call in plan.graph.calls_of[part.name])
        for part in plan.graph.parts
    }
    readers: dict[str, list[str]] = {}
    for tensor in plan.graph.tensors:
        readers.setdefault(tensor.source, []).append(tensor.target)
    # call -> the device that computed last, and how many stages there were
    reached: dict[str, tuple[str, int]] = {}
    longest = 1
    for call in plan.graph.calls:
        before, count = reached.get(call.name, ("", 0))
        device = plan.device_of[call.part]
        if works[call.part] and device != before:
            before, count = device, count + 1
        longest = max(longest, count)
        for reader in readers.get(call.name, ()):
            if count >= reached.get(reader, ("", -1))[1]:
                reached[reader] = (before, count)
    return longest


def simulate_pipeline(
    plan: "Plan", microbatches: int, *, schedule: str = "gpipe", recompute: bool = False
) -> Timeline:
    """Play a plan's step in micro-batches; nothing is planned anew.

    What runs on one device without a hop between is one task, as TensorFlow's executor
    follows a chain before it takes up another. Costs are scaled by each micro-batch's
    share, but what a call costs however small it is, each transfer's latency, and the
    sum of gradients are paid for every micro-batch.

    Args:
        plan: Whose placement is kept.
        microbatches: How many; 1 is the plan's own step.
        schedule: "gpipe" or "1f1b".
        recompute: Whether activations inside a call are dropped and computed again.

    Raises:
        DeclarationError: a schedule or a number that cannot be.
    """
    from splitnet.simulator.old_simulate import outcome_of

    pipeline = pipeline_of(plan, microbatches, schedule)
    plain, calls_of = merged_graph(plan.graph, plan.device_of)
    graph = _unrolled(plain, microbatches, recompute)
    rows = batch_shares(plan.batch, microbatches)
    whole = {
        call.name: (calls_of[plain.calls[i].name], rows[m] / plan.batch)
        for i, (m, call) in _numbered(graph, plain)
    }
    step = step_of(
        graph,
        plan.cluster,
        ScaledCosts(plan.costs, whole, recompute, _added_bytes(graph, plain)),
        training=plan.training,
        optimizer=plan.optimizer,
    )
    step = replace(
        step,
        waits=_waits(plain, plan.device_of, step, pipeline),
        code_bytes=code_bytes(
            graph,
            step.slot_copies,
            {name: calls for name, (calls, _) in whole.items()},
        ),
    )
    timeline = outcome_of(graph, plan.cluster, step, plan.device_of).timeline
    number = {call.name: m for _, (m, call) in _numbered(graph, plain)}
    tasks = tuple(
        replace(task, microbatch=number[task.call], call=_plain(task.call))
        for task in timeline.tasks
    )
    return replace(timeline, tasks=tasks)


def _numbered(graph: Graph, plain: Graph) -> list[tuple[int, tuple[int, Call]]]:
    """Each call with the position of its whole and the number of its micro-batch."""
    count = len(plain.calls)
    return [(i % count, (i // count, call)) for i, call in enumerate(graph.calls)]


def _added_bytes(graph: Graph, plain: Graph) -> dict[str, int]:
    """What each call adds to the gradients that micro-batches before it made."""
    return {
        call.name: sum(
            graph.weight[name].bytes
            for name in call.weights
            if graph.weight[name].trainable
        )
        for _, (m, call) in _numbered(graph, plain)
        if m
    }


def _plain(name: str) -> str:
    return name.rpartition("#")[0]


def _unrolled(graph: Graph, microbatches: int, recompute: bool) -> Graph:
    """The graph once for each micro-batch; weights are shared by all of them."""
    calls: list[Call] = []
    tensors: list[Tensor] = []
    for m, rows in enumerate(batch_shares(graph.batch, microbatches)):
        share = rows / graph.batch
        calls += [
            _kept_small(scaled_call(call, f"{call.name}#{m}", share), recompute)
            for call in graph.calls
        ]
        tensors += [
            replace(
                t,
                source=f"{t.source}#{m}",
                target=f"{t.target}#{m}",
                bytes=round(t.bytes * share),
                kept=t.kept or recompute,
            )
            for t in graph.tensors
        ]
    return replace(
        graph,
        calls=tuple(calls),
        tensors=tuple(tensors),
        outputs=tuple(
            f"{name}#{m}" for m in range(microbatches) for name in graph.outputs
        ),
    )


def _kept_small(call: Call, recompute: bool) -> Call:
    """A call that keeps its inputs alone, where the rest is computed again."""
    if not recompute:
        return call
    inner = max(call.activation_bytes - call.output_bytes, 0)
    return replace(
        call,
        activation_bytes=min(call.activation_bytes, call.output_bytes),
        workspace_bytes=call.workspace_bytes + (call.inner_bytes or inner),
        inner_bytes=None if call.inner_bytes is None else 0,
        keeps_output=False,
    )


def _waits(
    plain: Graph, device_of: Mapping[str, str], step: Step, pipeline: Pipeline
) -> Sequence[tuple[int, int]]:
    """Pairs (unit, other): the unit's forward pass waits for the other's backward.

    The first stage waits for room, if that is bounded. The last finishes a micro-batch
    before it begins another, as TensorFlow's executor follows a chain before it takes
    up the next.
    """
    if pipeline.microbatches == 1:
        return ()
    count = len(plain.calls)
    index = {call.name: i for i, call in enumerate(plain.calls)}
    behind: set[int] = set()
    entry: list[int] = []
    readers: dict[int, list[int]] = {}
    for tensor in plain.tensors:
        readers.setdefault(index[tensor.source], []).append(index[tensor.target])
    for i in range(count):
        if step.has_backward[i] and i not in behind:
            entry.append(i)
        if step.has_backward[i] or i in behind:
            behind.update(readers.get(i, ()))
    last = [
        i
        for i in range(count)
        if step.has_backward[i]
        and not any(step.has_backward[j] for j in readers.get(i, ()))
    ]
    window = pipeline.window or pipeline.microbatches
    room = [
        (m * count + i, (m - window) * count + j)
        for m in range(window, pipeline.microbatches)
        for i in _held(plain, device_of, readers)
        for j in entry
    ]
    chains = [
        (m * count + i, (m - 1) * count + i)
        for m in range(1, pipeline.microbatches)
        for i in last
    ]
    return (*room, *chains)


def _held(
    plain: Graph, device_of: Mapping[str, str], readers: Mapping[int, Sequence[int]]
) -> list[int]:
    """What waits for room: the readers of an input, which arrives meanwhile.

    Where they are on several devices, the input itself does.
    """
    found: dict[int, None] = {}
    for i, call in enumerate(plain.calls):
        if plain.part[call.part].kind != "input":
            continue
        mine = readers.get(i, ())
        where = {device_of[plain.calls[j].part] for j in mine}
        found.update(dict.fromkeys(mine if len(where) == 1 else (i,)))
    return list(found)
