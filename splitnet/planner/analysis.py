"""Reports about plans: verdict, explanation of a part, comparison of two plans."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from splitnet.core.costs import Roofline
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.graph import Graph, near_groups, parts_called
from splitnet.core.plan import (
    Placement,
    Plan,
    StrategyComparison,
    Verdict,
    value_text,
)
from splitnet.planner.evaluate import Evaluator, evaluator_of
from splitnet.planner.partitioning import is_convex, is_pipeline
from splitnet.planner.strategies.candidates import compare_plan

_MOST_PLAYS = 400_000
"""Calls that may be simulated to find advice: a second or two."""
_MOST_COMPARED = 200
"""Calls of a graph whose towers and pipelines are simulated for its verdict."""
_WORTH_SAYING = 0.02
"""Of the value: advice that saves less is not given."""
_MOST_ADVICE = 3
_SLOW = 1.5
"""Times the step of one device: from here a plan for memory says what it costs."""


def with_verdict(plan: Plan, strategies: StrategyComparison | None = None) -> Plan:
    """The plan, compared with every single device, and its costly constraints.

    `strategies` are those that it was one of; otherwise they are simulated, if the plan
    is of a model's step and not too large.
    """
    evaluator, calls = evaluator_of(plan), plan.graph.calls
    latency = plan.objective == "latency"
    foreign = any(call.backward or call.seconds_on for call in calls)
    small = len(calls) <= _MOST_COMPARED
    if strategies is None and latency and plan.training and small and not foreign:
        strategies = compare_plan(plan)
    device, value = _best_single_device(evaluator)
    for alone in strategies.all if strategies is not None and latency else ():
        # One figure for one device: towers count as the layers that they replicate.
        if alone.kind == "one device":
            device = alone.devices[-1] if alone.fits and alone.devices else None
            value = alone.seconds if alone.fits else None
    used = dict.fromkeys(task.device for task in plan.timeline.tasks)
    busy = [plan.timeline.utilization[device] for device in used]
    idle = [1.0 - share for share in busy if share > 0]
    verdict = Verdict(
        value=plan.value,
        single_device=device,
        single_device_value=value,
        bound=plan.bound,
        transfer_bytes=plan.transfer_bytes,
        idle=sum(idle) / len(idle) if idle else 0.0,
        advice=(
            *_advice(plan, evaluator),
            *_slow_step(plan, evaluator),
            *_not_contiguous(plan),
        ),
        objective=plan.objective,
        strategies=strategies,
        overfull=tuple(
            d.name for d in plan.cluster if plan.memory[d.name].total > d.memory_bytes
        ),
        measured=not isinstance(plan.costs, Roofline),
        ended_by_clock=plan.ended_by_clock,
    )
    return replace(plan, verdict=verdict)


def _best_single_device(evaluator: Evaluator) -> tuple[str | None, float | None]:
    """The device on which the whole graph is best, of those where it fits."""
    best, least = None, inf
    for device, device_of in evaluator.single_devices():
        parts = [part for part, one in device_of.items() if one == device]
        busy = sum(evaluator.load(part, device) for part in parts)
        if evaluator.objective == "memory" or busy < least:
            found = evaluator.evaluate(device_of)
            if found.fits and found.value < least:
                best, least = device, found.value
    return best, None if best is None else least


def _advice(plan: Plan, evaluator: Evaluator) -> list[str]:
    """Constraints that cost more than they are worth, one after the other.

    Each line holds after those before it were followed, so that following all of them
    saves what they say together. Only what a person can change is tried.
    """
    size = len(plan.graph.calls) * plan.execution.microbatches
    tries = max(1, _MOST_PLAYS // max(1, size))
    device_of, value = dict(plan.device_of), plan.value
    lines: list[str] = []
    while len(lines) < _MOST_ADVICE and value > 0:
        best: tuple[float, Placement, dict[str, str], str] | None = None
        for one in _changeable(plan):
            for device in other_devices(plan, evaluator, device_of[one.part]):
                if tries <= 0:
                    break
                tries -= 1
                moved = _moved_with(plan.graph, device_of, one.part, device)
                there = evaluator.evaluate(moved)
                saved = 1 - there.value / value
                better = saved > (best[0] if best else _WORTH_SAYING)
                if better and there.fits:
                    best = (saved, one, moved, device)
        if best is None:
            break
        saved, one, device_of, device = best
        where = plan.cluster[one.device].kind.upper()
        what = f"{one.part!r} on {one.device}"
        if plan.graph.part[one.part].kind == "merge":
            what = f"the {where} merge {one.part!r}"
        then = "then " if lines else ""
        lines.append(f"{then}{what} costs {saved:.0%}: on={device!r} would save it")
        value *= 1 - saved
    return lines


def _slow_step(plan: Plan, evaluator: Evaluator) -> list[str]:
    """What fewer bytes cost in time, where that is much."""
    if plan.objective != "memory":
        return []
    step = replace(evaluator, objective="latency")
    device, seconds = _best_single_device(step)
    if seconds is None or plan.seconds < _SLOW * seconds:
        return []
    return [
        f"a step takes {format_seconds(plan.seconds)}, {plan.seconds / seconds:.1f} "
        f"times as long as on {device} alone; objective='latency' keeps the limits of "
        "memory, too"
    ]


def _not_contiguous(plan: Plan) -> list[str]:
    """That pins break the contiguity that was asked for."""
    asked = plan.contiguity
    keeps = {"convex": is_convex, "pipeline": is_pipeline}.get(str(asked))
    graph = plan.graph
    where = {
        call.name: plan.device_of[call.part]
        for call in graph.calls
        if graph.part[call.part].kind != "input"
    }
    edges = [(t.source, t.target) for t in graph.tensors if t.source in where]
    if keeps is None or keeps(edges, where):
        return []
    return [
        f"contiguity={asked!r} is kept by what the planner may place; because of what "
        "is pinned or must be elsewhere, data return to a device"
    ]


def _changeable(plan: Plan) -> list[Placement]:
    """Parts that a person placed, by names that pins know; not bound to another."""
    asked = [
        p
        for p in plan.placements
        if p.reason in ("pin", "merge", "preference", "given", "fallback")
        and plan.graph.calls_of[p.part]
        and plan.graph.part[p.part].kind in ("branch", "merge")
        and " .. " not in p.part
        and not any(call.cpu_only for call in plan.graph.calls_of[p.part])
    ]
    names = {p.part for p in asked}
    bound = {
        name
        for part in plan.graph.parts
        for other in part.near
        if {part.name, other} <= names
        for name in (part.name, other)
    }
    return [p for p in asked if p.part not in bound]


def other_devices(plan: Plan, evaluator: Evaluator, device: str) -> list[str]:
    """Other devices in use first, then the unused ones that differ."""
    used = list(dict.fromkeys(plan.device_of.values()))
    unused = [d.name for d in plan.cluster if d.name not in used]
    return [name for name in [*used, *evaluator.unlike(unused)] if name != device]


_REASONS = {
    "pin": "it is pinned there: on={requested!r}",
    "preference": "it requested {requested}, and this is the one that is available",
    "near": "near= binds it to a part that must be there",
    "cost": "{best} that way",
    "memory": "a faster device for it has not enough memory left",
    "merge": "merges are on the CPU unless on= says otherwise",
    "input": "inputs are fed from the host",
    "no kernel": "it has a call without a GPU kernel",
    "only choice": "it is the only device it may use",
    "tie": "another device would do as well; the first declared was taken",
    "fallback": "it requested {requested}, which is not available",
    "given": "it was placed there by hand",
}

_BEST = {
    "latency": "the step is shortest",
    "throughput": "the busiest device has least to do",
    "memory": "the fullest device holds least",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the objective would count with a part, and what is near it, elsewhere.

    `value` is in seconds, or in bytes for the objective "memory". `transfer_bytes` are
    those of a step, `held_bytes` the memory peak of that device: simulated, or, if it
    is `estimated`, what the device holds now and what the part needs.
    """

    device: str
    value: float
    fits: bool
    transfer_bytes: int
    held_bytes: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is on its device; `str()` gives the sentence and a line per device.

    `value` is what the objective counts for the plan: seconds, or bytes for "memory".
    """

    placement: Placement
    reason: str
    objective: str
    value: float
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        """The reason, and what each other device would cost."""
        one = self.placement
        lines = [f"{one.part!r} is on {one.device}: {self.reason}."]
        if self.alternatives:
            devices = (one.device, *(a.device for a in self.alternatives))
            width = max(map(len, devices))
            lines.append(
                f"  {one.device:<{width}}  {value_text(self.objective, self.value)}"
            )
            lines += [
                f"  {a.device:<{width}}  {value_text(self.objective, a.value)}, "
                f"{_change_text(self.objective, self.value, a.value)}"
                f"{'' if a.fits else '; does not fit its memory'}"
                for a in self.alternatives
            ]
        return "\n".join(lines)

    __repr__ = __str__  # what a prompt or a notebook shows


def explain(plan: Plan, name: str) -> Explanation:
    """Say why a part is on its device, and try every other device for it.

    The part moves with what near= binds to it; all else stays.

    Args:
        plan: The plan.
        name: A part, or a call or a layer of one.

    Raises:
        PlanFileError: the plan has nothing of that name.
    """
    one = plan[name]
    devices = [d.name for d in plan.cluster if d.name != one.device]
    found = alternatives(plan, evaluator_of(plan), one.part, devices)
    return Explanation(
        one, reason_text(plan, one), plan.objective, plan.value, tuple(found)
    )


def reason_text(plan: Plan, one: Placement) -> str:
    """Say in words why a part is on its device."""
    fallback = next((f for f in plan.fallbacks if f.part == one.part), None)
    if fallback:
        return fallback.reason
    best = _BEST.get(plan.objective, "")
    known = _REASONS.get(one.reason, one.reason)
    return known.format(requested=one.requested, best=best)


def alternatives(
    plan: Plan, evaluator: Evaluator, part: str, devices: Sequence[str]
) -> list[Alternative]:
    """What a plan would be with a part, and what is near it, on other devices."""
    found = []
    for device in devices:
        moved_to = _moved_with(plan.graph, plan.device_of, part, device)
        there = evaluator.evaluate(moved_to)
        moved = sum(copy.bytes for copy in there.timeline.copies)
        held = there.memory[device].total
        found.append(Alternative(device, there.value, there.fits, moved, held))
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """From one plan to another: `moved` holds (part, from, to); a gone part has "".

    `values` are what the objective counts, where both plans have the same one.
    Where the same calls make other parts, `moved` holds runs of calls.
    """

    moved: tuple[tuple[str, str, str], ...]
    seconds: tuple[float, float]
    transfer_bytes: tuple[int, int]
    peak_bytes: tuple[int, int]
    objective: str = "latency"
    values: tuple[float, float] | None = None

    def __str__(self) -> str:
        """What moved, and what it changed."""
        sent = " -> ".join(map(format_bytes, self.transfer_bytes))
        lines = [
            _row("step", "latency", self.seconds),
            f"{'transfers':<9} {sent}",
            _row("fullest", "memory", self.peak_bytes),
        ]
        if self.values and self.objective == "throughput":
            lines.insert(0, _row("busiest", self.objective, self.values))
        if not self.moved:
            return "\n".join(["nothing moved.", *lines])
        lines += [
            f"  {part}: {source or 'not there'} -> {target or 'not there'}"
            for part, source, target in self.moved
        ]
        count = len(self.moved)
        return "\n".join([f"{count} part{'s' * (count > 1)} moved.", *lines])

    __repr__ = __str__  # what a prompt or a notebook shows


def _row(name: str, objective: str, values: tuple[float, float]) -> str:
    a, b = (value_text(objective, value, long=False) for value in values)
    return f"{name:<9} {a} -> {b}, {_change_text(objective, *values)}"


def compare(plan: Plan, other: Plan) -> Comparison:
    """Say what moved from one plan to another, and what that changed.

    Raises:
        DeclarationError: the other is no plan.
    """
    same = plan.objective == other.objective
    peaks = [
        max((memory.total for memory in one.memory.values()), default=0)
        for one in (plan, other)
    ]
    return Comparison(
        moved=tuple(_moved(plan, other)),
        seconds=(plan.seconds, other.seconds),
        transfer_bytes=(plan.transfer_bytes, other.transfer_bytes),
        peak_bytes=(peaks[0], peaks[1]),
        objective=plan.objective,
        values=(plan.value, other.value) if same else None,
    )


def _moved(plan: Plan, other: Plan) -> list[tuple[str, str, str]]:
    """What is elsewhere: parts, or calls where the same calls make other parts.

    Calls that stand side by side and moved alike are one entry.
    """
    a: Mapping[str, str] = plan.device_of
    b: Mapping[str, str] = other.device_of
    before, after = (
        {call.name: one.device_of[call.part] for call in one.graph.calls}
        for one in (plan, other)
    )
    regrouped = list(a) != list(b) and sorted(before) == sorted(after)
    if regrouped:
        a, b = before, after
    moved: list[tuple[str, str, str]] = []
    last = ""
    for name in dict.fromkeys([*a, *b]):
        change = (a.get(name, ""), b.get(name, ""))
        if change[0] == change[1]:
            last = ""
        elif regrouped and last and moved[-1][1:] == change:
            first = moved[-1][0].partition(" .. ")[0]
            moved[-1] = (f"{first} .. {name}", *change)
        else:
            moved.append((name, *change))
            last = name
    return moved


def _moved_with(
    graph: Graph, device_of: Mapping[str, str], name: str, device: str
) -> dict[str, str]:
    """A placement with a part, and what near= binds to it, on another device.

    `name` may be that of a call or a layer: then all parts with it move.
    """
    names = set(parts_called(graph, name))
    groups = [
        group for group in near_groups(graph.parts) if not names.isdisjoint(group)
    ]
    together = [part for group in groups for part in group]
    return {**device_of, **dict.fromkeys(together, device)}


def _change_text(objective: str, before: float, after: float) -> str:
    """Write a change of what an objective counts: "3.2% longer"."""
    if before <= 0 or abs(after / before - 1) < 5e-4:
        return "no change"
    words = ("more", "less") if objective == "memory" else ("longer", "shorter")
    share = after / before - 1
    return f"{abs(share):.1%} {words[share < 0]}"
