"""Say in words what a plan is worth."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.units import format_bytes
from splitnet.planner.replay import (
    bound_to,
    fits,
    played,
    single_devices,
    step_of_plan,
    unlike,
    value_text,
)
from splitnet.simulator.step import Step

if TYPE_CHECKING:
    from splitnet.core.plan import Placement, Plan
    from splitnet.planner.ways import Ways

__all__ = ["Verdict", "verdict_of"]

_MOST_PLAYS = 400_000
"""Calls that may be played to find advice: a second or two."""
_MOST_WEIGHED = 200
"""Calls of a graph whose towers and pipelines are played along: a second or less."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is it worth it? `device` is the best one that fits all.

    `value`, `device_value` and `bound` are what the objective counts: seconds, or bytes
    for "memory". `speed_up` is one device over this plan, or None if no single device
    fits. `idle` is the share of the step that the plan's devices wait, on average.
    `ways` weighs the plan against towers and pipelines of the same model and batch;
    None where that would take long (`sn.ways(plan)` does it) or the plan is of no Keras
    model.
    """

    value: float
    device: str | None
    device_value: float | None
    bound: float
    transfer_bytes: int
    idle: float
    advice: tuple[str, ...] = ()
    objective: str = "latency"
    ways: "Ways | None" = None

    @property
    def speed_up(self) -> float | None:
        """How many times better than one device; below 1 the plan loses."""
        if self.device_value is None or self.value <= 0:
            return None
        return self.device_value / self.value

    @property
    def losing(self) -> bool:
        """Whether one device alone would be better."""
        return self.speed_up is not None and self.speed_up < 1 - 1e-9

    def __str__(self) -> str:
        """A few lines for a person."""
        lines = [self._headline()]
        moved = format_bytes(self.transfer_bytes)
        rest = f"{moved} moved per step, devices idle {self.idle:.0%} of it"
        if self.bound > 0 and self.value > 0:
            gap = max(0.0, 1 - self.bound / self.value)
            low = value_text(self.objective, self.bound, long=False)
            rest += (
                "; proven best for what was asked"
                if gap < 5e-4
                else f"; no plan can be below {low} (gap {gap:.0%})"
            )
        lines.append(rest + ".")
        if self.ways is not None:
            lines.append(f"ways: {self.ways.line()}.")
            best = self.ways.best
            if (
                best.kind in ("towers", "pipeline")
                and best.seconds < 0.98 * self.ways["plan"].seconds
            ):
                lines.append(f"faster than this plan: {best.how}.")
        lines += [f"advice: {line}" for line in self.advice]
        return "\n".join(lines)

    def _headline(self) -> str:
        mine = value_text(self.objective, self.value)
        if self.device is None or self.device_value is None:
            return f"{mine}; the model fits no single device, so it must be split."
        alone = value_text(self.objective, self.device_value, long=False)
        one = f"{alone} on {self.device} alone"
        times = self.speed_up or 1.0
        better, worse = "faster", "slower"
        if self.objective == "memory":
            better, worse = "less", "more"
        if self.losing:
            return (
                f"a losing plan: {mine} against {one}, {1 / times:.2f} times {worse} "
                f"than one device."
            )
        if times < 1.005:
            return f"no gain: {mine}, {one}."
        return f"{mine} against {one}: {times:.2f} times {better}."


def verdict_of(plan: "Plan") -> Verdict:
    """Weigh a plan against every single device, and look for a better wish."""
    step = step_of_plan(plan)
    device, value = _best_single(plan, step)
    used = list(dict.fromkeys(task.device for task in plan.timeline.tasks))
    idle = [plan.timeline.idle[d] for d in used if plan.timeline.busy[d] > 0]
    return Verdict(
        value=plan.value,
        device=device,
        device_value=value,
        bound=plan.bound,
        transfer_bytes=sum(t.bytes for t in plan.transfers),
        idle=sum(idle) / len(idle) if idle else 0.0,
        advice=tuple(_advice(plan, step)),
        objective=plan.objective,
        ways=_ways(plan),
    )


def _ways(plan: "Plan") -> "Ways | None":
    """The other ways to run the model, if it is one and not too large."""
    from splitnet.planner.weighing import ways

    calls = plan.graph.calls
    foreign = any(call.backward or call.seconds_on for call in calls)
    if foreign or not plan.training or len(calls) > _MOST_WEIGHED:
        return None
    return ways(plan)


def _best_single(plan: "Plan", step: Step) -> tuple[str | None, float | None]:
    """The device on which the whole model is best, of those where it fits."""
    best: tuple[str | None, float | None] = (None, None)
    for device, device_of in single_devices(plan, step, plan.graph):
        if not fits(plan, step, device_of):
            continue
        value = played(plan, step, device_of)
        if best[1] is None or value < best[1]:
            best = (device, value)
    return best


def _advice(plan: "Plan", step: Step) -> list[str]:
    """Wishes that cost more than they are worth, dearest first; at most three.

    Only what a person can change is tried: pins, merges, preferences.
    """
    asked = [
        p
        for p in plan.placements
        if p.why in ("pin", "merge", "preference", "given", "fallback")
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


def _targets(plan: "Plan", step: Step, device: str) -> Sequence[str]:
    """Other devices in use first, then the idle ones that differ."""
    used = list(dict.fromkeys(plan.device_of.values()))
    idle = [d.name for d in plan.cluster if d.name not in used]
    others = unlike(plan, step, idle)
    return [name for name in [*used, *others] if name != device]


def _line(plan: "Plan", one: "Placement", device: str, saved: float) -> str:
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
