"""Say in words what a plan is worth, why a part is where it is, and what moved."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.engine import run_step
from splitnet.core.memory import memory_of
from splitnet.core.score import score
from splitnet.core.simulate import call_devices
from splitnet.core.steady import STEADY
from splitnet.core.step import Step, step_of
from splitnet.core.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from splitnet.core.plan import Placement, Plan

__all__ = [
    "Alternative",
    "Comparison",
    "Explanation",
    "Verdict",
    "compare",
    "explain",
    "verdict_of",
]

_MOST_PLAYS = 400_000
"""Calls that may be played to find advice: a second or two."""

_REASONS = {
    "pin": "it is pinned there: on={asked!r}",
    "preference": "it asked for {asked}, and this is the one that is here",
    "near": "near= binds it to a part that must be there",
    "cost": "the step is shortest that way",
    "memory": "a quicker device for it has no room left",
    "merge": "merges live on the CPU unless told otherwise",
    "input": "inputs are fed from the host",
    "no kernel": "it holds a call that has no GPU kernel",
    "only choice": "it is the only device it may use",
    "tie": "another device would do as well; the first declared was taken",
    "fallback": "it asked for {asked}, which is not here",
    "given": "a person put it there",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the step would take with a part, and what is near it, on another device."""

    device: str
    seconds: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is where it is; `str()` gives the sentence and a line per device."""

    placement: "Placement"
    reason: str
    seconds: float
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        """The reason, and what each other device would cost."""
        one = self.placement
        lines = [f"{one.part!r} is on {one.device}: {self.reason}."]
        if self.alternatives:
            width = max(len(a.device) for a in self.alternatives)
            width = max(width, len(one.device))
            lines.append(
                f"  {one.device:<{width}}  {format_seconds(self.seconds)} a step"
            )
            lines += [
                f"  {a.device:<{width}}  {format_seconds(a.seconds)} a step, "
                f"{_change(self.seconds, a.seconds)}"
                f"{'' if a.fits else '; does not fit its memory'}"
                for a in self.alternatives
            ]
        return "\n".join(lines)


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
            f"step      {format_seconds(a)} -> {format_seconds(b)}, {_change(a, b)}",
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


def _change(before: float, after: float) -> str:
    if before <= 0:
        return "no change"
    share = after / before - 1
    if abs(share) < 5e-4:
        return "no change"
    return f"{abs(share):.1%} {'longer' if share > 0 else 'shorter'}"


def _step(plan: "Plan") -> Step:
    return step_of(
        plan.graph,
        plan.cluster,
        plan.costs,
        training=plan.training,
        optimizer=plan.optimizer,
    )


def _played(plan: "Plan", step: Step, device_of: Mapping[str, str]) -> float:
    """What another placement would take: a step, or what the objective counts."""
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
    return run_step(step, call_devices(plan.graph, plan.cluster, device_of)).seconds


def _seconds(plan: "Plan") -> float:
    return plan.value if plan.objective in STEADY else plan.seconds


def _fits(plan: "Plan", step: Step, device_of: Mapping[str, str]) -> bool:
    device = call_devices(plan.graph, plan.cluster, device_of)
    held = memory_of(step, device, run_step(step, device))[0]
    return all(m.total <= d.memory_bytes for m, d in zip(held, plan.cluster))


def _bound_to(plan: "Plan", name: str) -> list[str]:
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


def explain(plan: "Plan", name: str) -> Explanation:
    """Say why a part is on its device, and try every other device for it.

    The part moves with what near= binds to it; all else stays. Seconds are of a step.

    Raises:
        PlanFileError: the plan has no such part.
    """
    one = plan[name]
    step = _step(plan)
    together = _bound_to(plan, name)
    alternatives = []
    for device in plan.cluster:
        if device.name != one.device:
            moved = dict(plan.device_of) | dict.fromkeys(together, device.name)
            seconds = _played(plan, step, moved)
            alternatives.append(
                Alternative(device.name, seconds, _fits(plan, step, moved))
            )
    receipt = next((f for f in plan.fallbacks if f.part == name), None)
    known = _REASONS.get(one.why, one.why)
    reason = receipt.why if receipt else known.format(asked=one.asked)
    return Explanation(one, reason, _seconds(plan), tuple(alternatives))


def verdict_of(plan: "Plan") -> Verdict:
    """Weigh a plan against every single device, and look for a better wish."""
    step = _step(plan)
    device, seconds = _best_single(plan, step)
    used = list(dict.fromkeys(task.device for task in plan.timeline.tasks))
    idle = [plan.timeline.idle[d] for d in used if plan.timeline.busy[d] > 0]
    return Verdict(
        seconds=_seconds(plan),
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
        if not _fits(plan, step, device_of):
            continue
        seconds = _played(plan, step, device_of)
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
    now = _seconds(plan)
    found: list[tuple[float, str]] = []
    for one in asked:
        for device in _targets(plan, one.device):
            if tries <= 0:
                break
            tries -= 1
            together = _bound_to(plan, one.part)
            moved = dict(plan.device_of) | dict.fromkeys(together, device)
            saved = 1 - _played(plan, step, moved) / now if now else 0.0
            if saved >= 0.02 and _fits(plan, step, moved):
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
