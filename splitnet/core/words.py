"""Say in words what a plan is worth, and what moved from one to another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.replay import (
    bound_to,
    change_text,
    fits,
    played,
    seconds_of,
    step_of_plan,
)
from splitnet.core.step import Step
from splitnet.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from splitnet.core.plan import Placement, Plan

__all__ = ["Comparison", "Verdict", "compare", "verdict_of"]

_MOST_PLAYS = 400_000
"""Calls that may be played to find advice: a second or two."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Is it worth it? Seconds are of one step; `device` is the best one that fits all.

    `speed_up` is one device over this plan, or None if no single device fits. `idle` is
    the share of the step that the plan's devices wait, on average.
    """

    seconds: float
    device: str | None
    device_seconds: float | None
    bound: float
    transfer_bytes: int
    idle: float
    advice: tuple[str, ...] = ()

    @property
    def speed_up(self) -> float | None:
        """How many times faster than one device; below 1 the plan loses."""
        if self.device_seconds is None or self.seconds <= 0:
            return None
        return self.device_seconds / self.seconds

    @property
    def losing(self) -> bool:
        """Whether one device alone would be faster."""
        return self.speed_up is not None and self.speed_up < 1 - 1e-9

    def __str__(self) -> str:
        """A few lines for a person."""
        lines = [self._headline()]
        moved = format_bytes(self.transfer_bytes)
        rest = f"{moved} moved per step, devices idle {self.idle:.0%} of it"
        if self.bound > 0 and self.seconds > 0:
            gap = max(0.0, 1 - self.bound / self.seconds)
            low = format_seconds(self.bound)
            rest += (
                "; proven best for what was asked"
                if gap < 5e-4
                else f"; no plan can be below {low} (gap {gap:.0%})"
            )
        lines.append(rest + ".")
        lines += [f"advice: {line}" for line in self.advice]
        return "\n".join(lines)

    def _headline(self) -> str:
        mine = format_seconds(self.seconds)
        if self.device is None or self.device_seconds is None:
            return (
                f"{mine} a step; the model fits no single device, so it must be split."
            )
        one = f"{format_seconds(self.device_seconds)} on {self.device} alone"
        times = self.speed_up or 1.0
        if self.losing:
            return (
                f"a losing plan: {mine} a step against {one}, {1 / times:.2f} times "
                "slower than one device."
            )
        if times < 1.005:
            return f"no gain: {mine} a step, {one}."
        return f"{mine} a step against {one}: {times:.2f} times faster."


@dataclass(frozen=True, slots=True)
class Comparison:
    """From one plan to another: `moved` holds (part, from, to); a gone part has ""."""

    moved: tuple[tuple[str, str, str], ...]
    seconds: tuple[float, float]
    transfer_bytes: tuple[int, int]
    peak_bytes: tuple[int, int]

    def __str__(self) -> str:
        """What moved, and what it changed."""
        a, b = self.seconds
        lines = [
            f"step      {format_seconds(a)} -> {format_seconds(b)}, "
            f"{change_text(a, b)}",
            f"transfers {format_bytes(self.transfer_bytes[0])} -> "
            f"{format_bytes(self.transfer_bytes[1])}",
            f"fullest   {format_bytes(self.peak_bytes[0])} -> "
            f"{format_bytes(self.peak_bytes[1])}",
        ]
        if not self.moved:
            return "\n".join(["nothing moved.", *lines])
        lines += [
            f"  {part}: {source or 'not there'} -> {target or 'not there'}"
            for part, source, target in self.moved
        ]
        count = len(self.moved)
        return "\n".join([f"{count} part{'s' * (count > 1)} moved.", *lines])


def verdict_of(plan: "Plan") -> Verdict:
    """Weigh a plan against every single device, and look for a better wish."""
    step = step_of_plan(plan)
    device, seconds = _best_single(plan, step)
    used = list(dict.fromkeys(task.device for task in plan.timeline.tasks))
    idle = [plan.timeline.idle[d] for d in used if plan.timeline.busy[d] > 0]
    return Verdict(
        seconds=seconds_of(plan),
        device=device,
        device_seconds=seconds,
        bound=0.0 if plan.objective == "memory" else plan.bound,
        transfer_bytes=sum(t.bytes for t in plan.transfers),
        idle=sum(idle) / len(idle) if idle else 0.0,
        advice=tuple(_advice(plan, step)),
    )


def _best_single(plan: "Plan", step: Step) -> tuple[str | None, float | None]:
    """The device on which the whole model is fastest, of those where it fits.

    Inputs stay on the host, and calls without a GPU kernel on the CPU.
    """
    stuck = {c.part for c in plan.graph.calls if c.cpu_only}
    home = plan.cluster.home.name
    best: tuple[str | None, float | None] = (None, None)
    tried: dict[object, None] = {}
    for device in plan.cluster:
        same = (device.kind, device.flops_per_second, device.memory_bytes, device.host)
        if same in tried:
            continue
        tried[same] = None
        device_of = {
            part.name: home
            if part.kind == "input" or (part.name in stuck and device.kind != "cpu")
            else device.name
            for part in plan.graph.parts
        }
        if not fits(plan, step, device_of):
            continue
        seconds = played(plan, step, device_of)
        if best[1] is None or seconds < best[1]:
            best = (device.name, seconds)
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
    now = seconds_of(plan)
    found: list[tuple[float, str]] = []
    for one in asked:
        for device in _targets(plan, one.device):
            if tries <= 0:
                break
            tries -= 1
            together = bound_to(plan, one.part)
            moved = dict(plan.device_of) | dict.fromkeys(together, device)
            saved = 1 - played(plan, step, moved) / now if now else 0.0
            if saved >= 0.02 and fits(plan, step, moved):
                found.append((saved, _line(plan, one, device, saved)))
    return _dearest(found)


def _targets(plan: "Plan", device: str) -> Sequence[str]:
    """Other devices in use first, then one idle one of each kind."""
    used = list(dict.fromkeys(plan.device_of.values()))
    idle = {
        d.kind: d.name for d in reversed(plan.cluster.devices) if d.name not in used
    }
    return [name for name in dict.fromkeys([*used, *idle.values()]) if name != device]


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


def compare(plan: "Plan", other: "Plan") -> Comparison:
    """Say what moved from one plan to another, and what that changed."""
    a, b = plan.device_of, other.device_of
    parts = list(dict.fromkeys([*a, *b]))
    return Comparison(
        moved=tuple(
            (part, a.get(part, ""), b.get(part, ""))
            for part in parts
            if a.get(part) != b.get(part)
        ),
        seconds=(plan.seconds, other.seconds),
        transfer_bytes=(
            sum(t.bytes for t in plan.transfers),
            sum(t.bytes for t in other.transfers),
        ),
        peak_bytes=(
            max((m.total for m in plan.memory.values()), default=0),
            max((m.total for m in other.memory.values()), default=0),
        ),
    )
