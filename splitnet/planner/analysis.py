"""Reports about plans: verdict, explanation of a part, comparison of two plans."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import inf

from splitnet.core.plan import (
    Placement,
    Plan,
    StrategyComparison,
    Verdict,
    value_text,
)
from splitnet.planner.evaluate import Evaluator, evaluator_of, moved
from splitnet.planner.strategies.candidates import compare_plan

_MOST_PLAYS = 400_000
"""Calls that may be simulated to find advice: a second or two."""
_MOST_COMPARED = 200
"""Calls of a graph whose towers and pipelines are simulated for its verdict."""
_WORTH_SAYING = 0.02
"""Of the value: advice that saves less is not given."""
_MOST_ADVICE = 3


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
    advice = tuple(_advice(plan, evaluator))
    bare = replace(plan, verdict=None)
    verdict = Verdict(bare, device, value, advice, strategies)
    return replace(plan, verdict=verdict)


def _best_single_device(evaluator: Evaluator) -> tuple[str | None, float | None]:
    """The device on which the whole graph is best, of those where it fits."""
    best, least = None, inf
    for device, device_of in evaluator.single_devices():
        if evaluator.objective == "memory" or evaluator.busiest(device_of) < least:
            found = evaluator.evaluate(device_of)
            if found.fits and found.value < least:
                best, least = device, found.value
    return best, None if best is None else least


def _advice(plan: Plan, evaluator: Evaluator) -> Iterator[str]:
    """Constraints that cost more than they are worth, one after the other.

    Each line holds after those before it were followed, so that following all of them
    saves what they say together. Only what a person can change is tried.
    """
    size = len(plan.graph.calls) * plan.execution.microbatches
    tries = _MOST_PLAYS // max(1, size)
    device_of, value = dict(plan.device_of), plan.value
    for number in range(_MOST_ADVICE):
        moves = [
            (one, device)
            for one in _changeable(plan)
            for device in other_devices(plan, evaluator, device_of[one.part])
        ][:tries]
        tries -= len(moves)
        best, least = None, value * (1 - _WORTH_SAYING)
        for one, device in moves:
            there = moved(plan.graph, device_of, one.part, device)
            found = evaluator.evaluate(there)
            if found.fits and found.value < least:
                best, least = (one, device, there), found.value
        if best is None:
            return
        one, device, device_of = best
        what = f"{one.part!r} on {one.device}"
        if plan.graph.part[one.part].kind == "merge":
            what = f"the {plan.cluster[one.device].kind.upper()} merge {one.part!r}"
        then = "then " if number else ""
        saved = 1 - least / value
        yield f"{then}{what} costs {saved:.0%}: on={device!r} would save it"
        value = least


def _changeable(plan: Plan) -> list[Placement]:
    """Parts that a person placed, by names that pins know; not bound to another."""
    reasons = ("pin", "merge", "preference", "given", "fallback")
    bound = {name for p in plan.graph.parts if p.near for name in (p.name, *p.near)}
    return [
        one
        for one in plan.placements
        if one.reason in reasons
        and one.part not in bound
        and plan.graph.part[one.part].kind in ("branch", "merge")
        and plan.graph.calls_of[one.part]
        and not any(call.cpu_only for call in plan.graph.calls_of[one.part])
    ]


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
        one, objective = self.placement, self.objective
        rows = [(one.device, value_text(objective, self.value))]
        for a in self.alternatives:
            change = _change_text(objective, self.value, a.value)
            lacks = "" if a.fits else "; does not fit its memory"
            rows.append(
                (a.device, f"{value_text(objective, a.value)}, {change}{lacks}")
            )
        width = max(len(device) for device, _ in rows)
        lines = [f"  {device:<{width}}  {text}" for device, text in rows]
        head = f"{one.part!r} is on {one.device}: {self.reason}."
        return "\n".join([head, *(lines if self.alternatives else ())])

    __repr__ = __str__  # what a prompt or a notebook shows


def explain(plan: Plan, name: str) -> Explanation:
    """As `Plan.explain`: the part moves with what near= binds to it; all else stays."""
    one, evaluator = plan[name], evaluator_of(plan)
    found = tuple(
        alternative(plan, evaluator, one.part, device.name)
        for device in plan.cluster
        if device.name != one.device
    )
    reason = reason_text(plan, one)
    return Explanation(one, reason, plan.objective, plan.value, found)


def reason_text(plan: Plan, one: Placement) -> str:
    """Say in words why a part is on its device."""
    for fallback in plan.fallbacks:
        if fallback.part == one.part:
            return fallback.reason
    best = _BEST.get(plan.objective, "")
    known = _REASONS.get(one.reason, one.reason)
    return known.format(requested=one.requested, best=best)


def alternative(
    plan: Plan, evaluator: Evaluator, part: str, device: str
) -> Alternative:
    """What a plan would be with a part, and what is near it, on another device."""
    there = evaluator.evaluate(moved(plan.graph, plan.device_of, part, device))
    sent = sum(copy.bytes for copy in there.timeline.copies)
    held = there.memory[device].total
    return Alternative(device, there.value, there.fits, sent, held)


@dataclass(frozen=True, slots=True)
class Comparison:
    """From one plan to another: `moved` holds (part, from, to); a gone part has "".

    Where the same calls make other parts, `moved` holds runs of calls.
    """

    before: Plan
    after: Plan
    moved: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        """What moved, and what it changed."""
        a, b, count = self.before, self.after, len(self.moved)
        parts = f"{count} part{'s' * (count > 1)}" if count else "nothing"
        lines = [f"{parts} moved."]
        if a.objective == b.objective == "throughput":
            lines.append(_row("busiest", "throughput", a.value, b.value))
        full = [max(held.total for held in one.memory.values()) for one in (a, b)]
        lines += [
            _row("step", "latency", a.seconds, b.seconds),
            _row("transfers", "memory", a.transfer_bytes, b.transfer_bytes),
            _row("fullest", "memory", *full),
        ]
        lines += [
            f"  {part}: {source or 'not there'} -> {target or 'not there'}"
            for part, source, target in self.moved
        ]
        return "\n".join(lines)

    __repr__ = __str__  # what a prompt or a notebook shows


def _row(name: str, objective: str, before: float, after: float) -> str:
    a, b = (value_text(objective, value, long=False) for value in (before, after))
    return f"{name:<9} {a} -> {b}, {_change_text(objective, before, after)}"


def compare(plan: Plan, other: Plan) -> Comparison:
    """Say what moved from one plan to another, and what that changed."""
    return Comparison(plan, other, tuple(_moves(plan, other)))


def _moves(plan: Plan, other: Plan) -> Iterator[tuple[str, str, str]]:
    """What is elsewhere: parts, or runs of calls if the same calls make other parts."""
    a, b = dict(plan.device_of), dict(other.device_of)
    before, after = (
        {call.name: one.device_of[call.part] for call in one.graph.calls}
        for one in (plan, other)
    )
    regrouped = list(a) != list(b) and sorted(before) == sorted(after)
    if regrouped:
        a, b = before, after
    names = list(dict.fromkeys([*a, *b]))
    runs: list[Sequence[str]] = [[name] for name in names]
    if regrouped:
        each = groupby(names, key=lambda name: (a[name], b[name]))
        runs = [list(run) for _, run in each]
    for first, *rest in runs:
        source, target = a.get(first, ""), b.get(first, "")
        if source != target:
            name = f"{first} .. {rest[-1]}" if rest else first
            yield name, source, target


def _change_text(objective: str, before: float, after: float) -> str:
    """Write a change of what an objective counts: "3.2% longer"."""
    if before <= 0 or abs(after / before - 1) < 5e-4:
        return "no change"
    words = ("more", "less") if objective == "memory" else ("longer", "shorter")
    share = after / before - 1
    return f"{abs(share):.1%} {words[share < 0]}"
