"""Micro-batches: shares of the batch that pass through the parts one after another.

    gpu:0  |F0|F1|      |B0|F2|B1|F3|B2|  |B3|          F forward, B backward
    gpu:1     |F0|B0|F1|B1|F2|B2|F3|B3|                 of micro-batch 0, 1, ...

A stage is what a device computes before the data go to the next. It runs forward for
one micro-batch after the other, and backward for what is ready. With "gpipe" nothing
else holds it (Huang et al., 2019), so where the loss is it alternates. With "1f1b",
shown above, the stage that is the k-th from the end starts micro-batch m when it is
done with the backward pass of m - k, so that it holds k at most (Narayanan et al.,
"PipeDream", 2019). A single stage holds one micro-batch with either schedule. Gradients
are added to the sum of the earlier micro-batches as they are made, where they are made.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import networkx as nx

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Graph, grouped
from splitnet.core.plan import Plan
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.simulator.memory import lacking_bytes
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.units import condensed

Unit = TypeVar("Unit", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """How a step is divided; `stage_of` maps a part to its stage, from 1, and device.

    If `bounded`, as by "1f1b", each stage bounds the micro-batches in flight.
    """

    microbatches: int = 1
    bounded: bool = False
    stage_of: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """How many stages the longest way has."""
        return max((number for number, _ in self.stage_of.values()), default=1)

    def window(self, stage: int) -> int:
        """How many micro-batches may be in flight in a stage."""
        return 1 + self.depth - stage if self.bounded else self.microbatches


def execution_of(
    plan: Plan, microbatches: int | None, schedule: str | None, redo: bool | str | None
) -> Execution:
    """How a plan runs, or shall run where something is not None.

    `redo="auto"` recomputes on devices whose memory the plan overfills.
    """
    known, again = plan.execution, plan.execution.recompute
    count = known.microbatches if microbatches is None else microbatches
    if schedule is None:
        schedule = known.schedule if count != 1 else SCHEDULES[0]
    if redo == "auto":
        again = tuple(lacking_bytes(plan.cluster, plan.memory)) if plan.training else ()
    elif redo is not None:
        again = plan.cluster.names if redo else ()
    made = Execution(count, schedule, again)
    if not plan.training and (count > 1 or again):
        why = "microbatches= and recompute= are for training; the plan is of inference"
        raise DeclarationError(f"{why}. Leave them out, or plan with training=True.")
    if count > plan.batch:
        fault = f"microbatches={count} must be from 1 to the batch, {plan.batch}."
        raise DeclarationError(fault)
    if count == 1 and schedule == "1f1b":
        why = "schedule='1f1b' bounds the micro-batches in flight, and there is one"
        raise DeclarationError(f"{why}; give microbatches=2 or more, or no schedule=.")
    return made


def pipeline_of(graph: Graph, device_of: Mapping[str, str], how: Execution) -> Pipeline:
    """The stages of a placement, and how micro-batches pass through them.

    A stage is numbered by the devices that compute one after another up to it.
    """
    computes = {call.part for call in graph.calls if call.forward_flops}
    given = grouped(graph.tensors, lambda tensor: tensor.source)
    reached: dict[str, tuple[int, str]] = {}  # stages before a call, and the last
    stages: dict[str, tuple[int, str]] = {}
    for call in graph.calls:
        count, before = reached.get(call.name, (0, ""))
        device = device_of[call.part]
        if call.part in computes and device != before:
            count, before = count + 1, device
        if graph.part[call.part].kind != "input":
            stages[call.part] = max(stages.get(call.part, (1, device)), (count, device))
        for reader in (tensor.target for tensor in given.get(call.name, ())):
            reached[reader] = max(reached.get(reader, (-1, "")), (count, before))
    bounded = how.schedule == "1f1b" and how.microbatches > 1
    return Pipeline(how.microbatches, bounded, stages)


def recomputed_parts(
    graph: Graph, device_of: Mapping[str, str], execution: Execution
) -> frozenset[str]:
    """The parts that run forward again in their backward pass; towers never do."""
    never = ("tower", "weights", "input")
    again = (part for part, on in device_of.items() if on in execution.recompute)
    return frozenset(part for part in again if graph.part[part].kind not in never)


def runs_of(
    units: "nx.DiGraph[Unit]", stage_of: Mapping[Unit, tuple[int, str]]
) -> "Iterator[tuple[int, nx.DiGraph[Unit]]]":
    """The number of each stage, and the graphs of units that hang together there."""
    for (number, _), inside in grouped(stage_of, stage_of.__getitem__).items():
        graph = units.subgraph(inside)
        for run in nx.weakly_connected_components(graph):
            yield number, graph.subgraph(run)


def in_schedule(step: StepGraph, pipeline: Pipeline) -> StepGraph:
    """The step of micro-batches, its tasks in the order of a pipeline.

    Where a stage begins it waits for its end of the micro-batch before, and for its
    backward tasks of the last micro-batch that must have left it. What makes an output
    alternates: forced if there is one stage, and else assumed, because TensorFlow runs
    first what became ready last. In several stages nothing forces gradients to be added
    up at once: measured, that is one micro-batch later, with "gpipe" at the end.
    """
    count = pipeline.microbatches
    n = step.count // count
    first = (edge for edge in step.edges if edge.source < n)
    units = condensed(range(n), ((e.source, r) for e in first for r in e.readers))
    parts, stage_of = enumerate(step.parts[:n]), pipeline.stage_of
    stages = {unit: stage_of[part] for unit, part in parts if part in stage_of}
    waits, assumed = list[tuple[int, int]](), list[tuple[int, int]]()
    for number, run in runs_of(units, stages):
        begin = sorted(u for u in run if not run.in_degree(u))
        end = sorted(u for u in run if not run.out_degree(u))
        flows = run.subgraph(u for u in run if step.units[u].has_backward)
        last = sorted(u for u in flows if not flows.in_degree(u))
        window = pipeline.window(number)
        if not pipeline.bounded and not all(units.out_degree(unit) for unit in run):
            window = 1
        forced = pipeline.depth == 1 or (pipeline.bounded and window > 1)
        for m in range(1, count):
            for unit in begin:
                waits += [(m * n + unit, (m - 1) * n + other) for other in end]
                if m >= window:
                    done = 2 * n * count - 1 - (m - window) * n
                    left = [(m * n + unit, done - other) for other in last]
                    (waits if forced else assumed).extend(left)
    behind = (pipeline.depth > 1) * (1 if pipeline.bounded else count)
    return replace(step, waits=tuple(waits), assumed=tuple(assumed), sums_behind=behind)
