"""A plan's step played again with another placement: the "what else" of all words."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from splitnet.core.graph import Graph
from splitnet.planner.score import score
from splitnet.planner.steady import STEADY
from splitnet.planner.twins import twins
from splitnet.simulator.engine import run_step
from splitnet.simulator.old_memory import memory_of
from splitnet.simulator.old_simulate import call_devices
from splitnet.simulator.step import Step, step_of

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = [
    "bound_to",
    "change_text",
    "fits",
    "played",
    "single_devices",
    "step_of_plan",
    "unlike",
]


def step_of_plan(plan: "Plan") -> Step:
    """Lay the plan's graph out as numbers again."""
    return step_of(
        plan.graph,
        plan.cluster,
        plan.costs,
        training=plan.training,
        optimizer=plan.optimizer,
    )


def unlike(plan: "Plan", step: Step, names: Iterable[str]) -> list[str]:
    """The first of each sort of devices that differ in costs, roads or memory."""
    twin_of = twins(step, [device.memory_bytes for device in plan.cluster], ())
    number_of = {device.name: n for n, device in enumerate(plan.cluster)}
    first: dict[int, str] = {}
    for name in names:
        first.setdefault(twin_of[number_of[name]], name)
    return list(first.values())


def single_devices(
    plan: "Plan", step: Step, graph: Graph
) -> Iterator[tuple[str, dict[str, str]]]:
    """Everything on one device, for each that differs.

    Inputs stay on the host, and calls without a GPU kernel on the CPU.
    """
    stuck = {call.part for call in graph.calls if call.cpu_only}
    home = plan.cluster.home.name
    for name in unlike(plan, step, [device.name for device in plan.cluster]):
        tied = stuck if plan.cluster[name].kind != "cpu" else ()
        yield (
            name,
            {
                part.name: home if part.kind == "input" or part.name in tied else name
                for part in graph.parts
            },
        )


def played(plan: "Plan", step: Step, device_of: Mapping[str, str]) -> float:
    """What the plan's objective counts for another placement."""
    if plan.objective in STEADY:
        return score(
            plan.graph,
            plan.cluster,
            device_of,
            objective=plan.objective,
            costs=plan.costs,
            optimizer=plan.optimizer,
            training=plan.training,
        ).value
    device = call_devices(plan.graph, plan.cluster, device_of)
    run = run_step(step, device)
    if plan.objective == "memory":
        return float(max(m.total for m in memory_of(step, device, run)[0]))
    return run.seconds


def fits(plan: "Plan", step: Step, device_of: Mapping[str, str]) -> bool:
    """Whether another placement would keep every memory."""
    device = call_devices(plan.graph, plan.cluster, device_of)
    held = memory_of(step, device, run_step(step, device))[0]
    return all(m.total <= d.memory_bytes for m, d in zip(held, plan.cluster))


def bound_to(plan: "Plan", name: str) -> list[str]:
    """The part and all that near= binds to it."""
    near: dict[str, dict[str, None]] = {p.name: {} for p in plan.graph.parts}
    for part in plan.graph.parts:
        for other in part.near:
            near[part.name][other] = near[other][part.name] = None
    found, todo = {name: None}, [name]
    while todo:
        for other in near[todo.pop()]:
            if other not in found:
                found[other] = None
                todo.append(other)
    return list(found)


def change_text(objective: str, before: float, after: float) -> str:
    """Write a change of what an objective counts: "3.2% longer"."""
    if before <= 0:
        return "no change"
    share = after / before - 1
    if abs(share) < 5e-4:
        return "no change"
    words = ("more", "less") if objective == "memory" else ("longer", "shorter")
    return f"{abs(share):.1%} {words[share < 0]}"
