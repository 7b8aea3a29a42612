"""Say in words what a plan is worth."""

from collections.abc import Sequence
from dataclasses import replace

from splitnet.core.cost import Roofline
from splitnet.core.plan import Placement, Plan, StrategyComparison, Verdict
from splitnet.planner.replay import (
    bound_to,
    fits,
    played,
    single_devices,
    step_of_plan,
    unlike,
)
from splitnet.planner.weighing import compare_strategies
from splitnet.simulator.step import Step

__all__ = ["verdict_of", "with_verdict"]

_MOST_PLAYS = 400_000
"""Calls that may be played to find advice: a second or two."""
_MOST_COMPARED = 200
"""Calls of a graph whose towers and pipelines are played along: a second or less."""


def verdict_of(plan: Plan) -> Verdict:
    """Compare a plan with every single device, and look for better constraints."""
    step = step_of_plan(plan)
    device, value = _best_single(plan, step)
    used = list(dict.fromkeys(task.device for task in plan.timeline.tasks))
    busy = [plan.timeline.utilization[d] for d in used]
    idle = [1.0 - share for share in busy if share > 0]
    return Verdict(
        value=plan.value,
        single_device=device,
        single_device_value=value,
        bound=plan.bound,
        transfer_bytes=sum(t.bytes for t in plan.transfers),
        idle=sum(idle) / len(idle) if idle else 0.0,
        advice=tuple(_advice(plan, step)),
        objective=plan.objective,
        strategies=_strategies(plan),
        overfull=tuple(
            device.name
            for device in plan.cluster
            if plan.memory[device.name].total > device.memory_bytes
        ),
        measured=not isinstance(plan.costs, Roofline),
    )


def with_verdict(plan: Plan) -> Plan:
    """The plan with its verdict filled in."""
    return replace(plan, verdict=verdict_of(plan))


def _strategies(plan: Plan) -> StrategyComparison | None:
    """The other strategies, if the plan is of a model and not too large."""
    calls = plan.graph.calls
    foreign = any(call.backward or call.seconds_on for call in calls)
    if foreign or not plan.training or len(calls) > _MOST_COMPARED:
        return None
    return compare_strategies(plan)


def _best_single(plan: Plan, step: Step) -> tuple[str | None, float | None]:
    """The device on which the whole model is best, of those where it fits."""
    best: tuple[str | None, float | None] = (None, None)
    for device, device_of in single_devices(plan, step, plan.graph):
        if not fits(plan, step, device_of):
            continue
        value = played(plan, step, device_of)
        if best[1] is None or value < best[1]:
            best = (device, value)
    return best


def _advice(plan: Plan, step: Step) -> list[str]:
    """Wishes that cost more than they are worth, dearest first; at most three.

    Only what a person can change is tried: pins, merges, preferences.
    """
    asked = [
        p
        for p in plan.placements
        if p.reason in ("pin", "merge", "preference", "given", "fallback")
        and plan.graph.calls_of[p.part]
    ]
    tries = max(1, _MOST_PLAYS // max(1, step.count))
    now = plan.value
    found: list[tuple[float, str]] = []
    for one in asked:
        for device in _targets(plan, step, one.device):
            if tries <= 0:
                break
            tries -= 1
            together = bound_to(plan, one.part)
            moved = dict(plan.device_of) | dict.fromkeys(together, device)
            saved = 1 - played(plan, step, moved) / now if now else 0.0
            if saved >= 0.02 and fits(plan, step, moved):
                found.append((saved, _line(plan, one, device, saved)))
    return _dearest(found)


def _targets(plan: Plan, step: Step, device: str) -> Sequence[str]:
    """Other devices in use first, then the idle ones that differ."""
    used = list(dict.fromkeys(plan.device_of.values()))
    idle = [d.name for d in plan.cluster if d.name not in used]
    others = unlike(plan, step, idle)
    return [name for name in [*used, *others] if name != device]


def _line(plan: Plan, one: Placement, device: str, saved: float) -> str:
    kind = plan.graph.part[one.part].kind
    where = plan.cluster[one.device].kind.upper()
    what = f"the {where} merge {one.part!r}" if kind == "merge" else f"{one.part!r}"
    there = "" if kind == "merge" else f" on {one.device}"
    return f"{what}{there} costs {saved:.0%}: on={device!r} would save it"


def _dearest(found: Sequence[tuple[float, str]]) -> list[str]:
    """The best line of each part, dearest part first."""
    lines: dict[str, tuple[float, str]] = {}
    for saved, line in found:
        part = line.partition(" costs ")[0]
        if part not in lines or saved > lines[part][0]:
            lines[part] = (saved, line)
    ranked = sorted(lines.values(), key=lambda row: -row[0])
    return [line for _, line in ranked[:3]]
