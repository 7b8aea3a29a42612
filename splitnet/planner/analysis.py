"""Reports about plans: verdict, why a part is there, moves, comparison of two plans."""

import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path

import numpy as np

from splitnet.core.plan import Placement, Plan, StrategyComparison, Verdict, value_text
from splitnet.core.timeline import Execution
from splitnet.planner.engine.solve import compiled_step
from splitnet.planner.evaluate import Evaluator, evaluator_of, moved
from splitnet.planner.load_graph import Ints
from splitnet.planner.strategies.candidates import compare_plan, undivided

_MOST_PLAYS = 20_000  # calls simulated to find advice: 2 s or so
_MOST_COMPARED = 1_800  # calls times devices of a verdict with strategies: 5 s or so
_WORTH_SAYING = 0.02  # of the value: advice that saves less is not given
_MOST_ADVICE = 3
# Units simulated to find what moves cost, 1 to 4 s each: with memory, without it, and
# by the compiled event loop.
_MOST_DETAILED, _MOST_COMPILED = 20_000, 10_000_000
_TEXTS = tomllib.loads(Path(__file__).with_name("reasons.toml").read_text("utf-8"))


def with_verdict(plan: Plan, strategies: StrategyComparison | None = None) -> Plan:
    """The plan, compared with every single device, and its costly constraints.

    `strategies` are those that it was one of; otherwise they can be compared if the
    plan is of a model's step and not too large.
    """
    evaluator, calls = evaluator_of(plan), plan.graph.calls
    latency = plan.objective == "latency"
    foreign = any(call.backward or call.seconds_on for call in calls)
    known = latency and not foreign and len(calls) * len(plan.cluster) <= _MOST_COMPARED
    comparable, alone = known and plan.training, undivided(plan) if known else evaluator
    single = _on_one_device(strategies) if latency and not comparable else None
    if single is None:  # of strategies, what is fixed may be slower on one device
        runs = {n: alone.as_run(there) for n, there in alone.single_devices()}
        evaluated = {n: one.evaluate(there) for n, (one, there) in runs.items()}
        single = {name: one.value for name, one in evaluated.items() if one.fits}
        fastest = min(evaluated, key=lambda name: evaluated[name].value, default="")
        if comparable and fastest not in single:  # but in micro-batches
            strategies = strategies or compare_plan(plan)
            single = (_on_one_device(strategies) or {}) | single
    device, value = min(single.items(), key=lambda x: x[1], default=(None, None))
    advice = tuple(_advice(plan, evaluator))
    bare = replace(plan, verdict=None)  # type: ignore[arg-type]  # a verdict has none
    verdict = Verdict(bare, device, value, advice, strategies, comparable)
    return replace(plan, verdict=verdict)


def _on_one_device(strategies: StrategyComparison | None) -> dict[str, float] | None:
    """Seconds by device of those strategies; None if nothing was tried on one."""
    rows = [*strategies.all] if strategies is not None else []
    rows = [one for one in rows if one.kind == "one device" and one.devices]
    return {one.devices[-1]: one.seconds for one in rows if one.fits} if rows else None


def _advice(plan: Plan, evaluator: Evaluator) -> Iterator[str]:
    """What constraints cost that a person can change, each after those before it."""
    size = len(plan.graph.calls) * plan.execution.microbatches
    most = _MOST_PLAYS // max(1, size) // _MOST_ADVICE
    device_of, value = dict(plan.device_of), plan.value
    bound = {name for p in plan.graph.parts if p.near for name in (p.name, *p.near)}
    changeable = [  # by names that pins know; not bound to another
        one
        for one in plan.placements
        if one.reason in ("pin", "merge", "preference", "given", "fallback")
        and one.part not in bound
        and plan.graph.part[one.part].kind in ("branch", "merge")
        and (calls := plan.graph.calls_of[one.part])
        and not any(call.cpu_only for call in calls)
    ]
    changeable.sort(key=lambda one: -evaluator.load(one.part, one.device))
    for number in range(_MOST_ADVICE):
        best, least = None, value * (1 - _WORTH_SAYING)
        moves = (
            (one, device, moved(plan.graph, device_of, one.part, device))
            for one in changeable
            for device in other_devices(plan, evaluator, device_of[one.part])
        )
        for move in islice(moves, most):
            found = evaluator.evaluate(move[-1])
            if found.fits and found.value < least:
                best, least = move, found.value
        if best is None:
            return
        one, device, device_of = best
        what = f"{one.part!r} on {one.device}"
        if plan.graph.part[one.part].kind == "merge":
            what = f"the {plan.cluster[one.device].kind.upper()} merge {one.part!r}"
        saved = f"{100 * (1 - least / value):.0f} %: on={device!r} would save it"
        yield f"{'then ' * (number > 0)}{what} costs {saved}"
        value = least


def other_devices(plan: Plan, evaluator: Evaluator, device: str) -> list[str]:
    """Other devices in use first, then the unused ones that differ."""
    used = list(dict.fromkeys(plan.device_of.values()))
    unused = [name for name in plan.cluster.names if name not in used]
    return [name for name in [*used, *evaluator.unlike(unused)] if name != device]


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the objective would count with a part, and what is near it, elsewhere.

    `transfer_bytes` are those of a step, `held_bytes` the memory peak of that device:
    simulated, or, if `estimated`, what it holds now and what the part needs.
    """

    device: str
    value: float
    fits: bool
    transfer_bytes: int
    held_bytes: int
    estimated: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is on its device; `str()` gives the sentence and a line per device."""

    placement: Placement
    reason: str
    objective: str
    value: float
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        one, objective = self.placement, self.objective
        rows = {one.device: value_text(objective, self.value)}
        for a in self.alternatives:
            change = _change_text(objective, self.value, a.value)
            lacks = "" if a.fits else "; does not fit its memory"
            rows[a.device] = f"{value_text(objective, a.value)}, {change}{lacks}"
        width = max(map(len, rows))
        lines = [f"  {device:<{width}}  {text}" for device, text in rows.items()]
        head = f"{one.part!r} is on {one.device}: {self.reason}."
        return "\n".join([head, *(lines if self.alternatives else ())])

    __repr__ = __str__  # what a prompt or a notebook shows


def explain(plan: Plan, name: str) -> Explanation:
    """As `Plan.explain`: the part moves with what near= binds to it; all else stays."""
    one, evaluator = plan[name], evaluator_of(plan)
    bound = any(call.cpu_only for call in plan.graph.calls_of[one.part])
    fed = plan.graph.part[one.part].kind == "input"  # from the host alone
    able = (d.name for d in plan.cluster if not fed and (d.kind == "cpu" or not bound))
    found = (alternative(plan, evaluator, one.part, d) for d in able if d != one.device)
    reason = reason_text(plan, one)
    return Explanation(one, reason, plan.objective, plan.value, tuple(found))


def reason_text(plan: Plan, one: Placement) -> str:
    """Say in words why a part is on its device."""
    fell = {fallback.part: fallback.reason for fallback in plan.fallbacks}
    kind, on = plan.graph.part[one.part].kind, one.requested.split(", ")
    why = _TEXTS.get(kind, {}).get(one.reason) or _TEXTS["reasons"].get(one.reason, "")
    best = _TEXTS["best"][plan.objective]
    said = why.format(one=one, on=on if on[1:] else on[0], best=best)
    return fell.get(one.part) or said or one.reason  # a file may give one of its own


def alternative(
    plan: Plan,
    evaluator: Evaluator,
    part: str,
    device: str,
    costs: Callable[[Ints], tuple[float, int]] | None = None,
) -> Alternative:
    """What a plan would be with a part on another device; see `Alternative`.

    Memory is estimated if there are `costs`: seconds and bytes copied of an assignment.
    """
    where = moved(plan.graph, plan.device_of, part, device)
    if costs is None:
        there = evaluator.evaluate(where)
        sent = sum(copy.bytes for copy in there.timeline.copies)
        held = there.memory[device].total
        return Alternative(device, there.value, there.fits, sent, held)
    need = evaluator.need([p for p in where if where[p] != plan.device_of[p]]).total
    peak = {name: memory.total for name, memory in plan.memory.items()}
    peak[plan.device_of[part]] -= need
    peak[device] += need
    number = plan.cluster.number
    value, sent = costs(np.array([number[where[name]] for name in plan.graph.part]))
    if plan.objective == "throughput":
        value = evaluator.load_of(where)
    elif plan.objective == "memory":
        value = float(max(peak.values()))
    fits = peak[device] <= plan.cluster[device].memory_bytes
    return Alternative(device, value, fits, sent, peak[device], True)


def heaviest_moves(plan: Plan) -> dict[str, list[Alternative]]:
    """What each of the 50 heaviest parts would cost elsewhere, each moved alone.

    In large graphs memory is estimated, or, with nothing compiled, fewer are tried.
    """
    evaluator, device_of = evaluator_of(plan), plan.device_of
    parts = [part.name for part in plan.graph.parts if part.kind != "input"]
    parts.sort(key=lambda part: -evaluator.load(part, device_of[part]))
    targets = {p: other_devices(plan, evaluator, device_of[p]) for p in parts[:50]}
    size = max(1, len(plan.graph.parts) * plan.execution.microbatches)
    tries, many = _MOST_DETAILED // size, sum(map(len, targets.values()))
    few = many <= tries or plan.execution != Execution()
    costs = None if few else compiled_step(evaluator.problem)
    tries = _MOST_COMPILED // size if costs else tries
    found: dict[str, list[Alternative]] = {}
    for part, names in targets.items():
        tries -= len(names)
        if names and tries >= 0:
            found[part] = [alternative(plan, evaluator, part, n, costs) for n in names]
    return found


@dataclass(frozen=True, slots=True)
class Comparison:
    """What changed: `moved` has (part or run of calls, from, to); "" if not there."""

    before: Plan
    after: Plan
    moved: tuple[tuple[str, str, str], ...]

    def __str__(self) -> str:
        a, b, n = self.before, self.after, len(self.moved)
        full = [max(m.total for m in one.memory.values()) for one in (a, b)]
        rows: list[tuple[str, str, float, float]] = [
            ("busiest", "throughput", a.value, b.value),
            ("step", "latency", a.seconds, b.seconds),
            ("transfers", "memory", a.transfer_bytes, b.transfer_bytes),
            ("fullest", "memory", full[0], full[1]),
        ]
        loads = a.objective == b.objective == "throughput"
        lines = [f"{n} part{'s' * (n > 1)} moved." if n else "nothing moved."]
        how = [str(one.execution) or "at once" for one in (a, b)]
        lines += [f"runs      {' -> '.join(how)}"] * (how[0] != how[1])
        for name, objective, *both in rows[not loads :]:
            one, two = (value_text(objective, n, long=False) for n in both)
            lines.append(f"{name:<9} {one} -> {two}, {_change_text(objective, *both)}")
        for part, *ends in self.moved:
            lines.append(f"  {part}: {' -> '.join(end or 'not there' for end in ends)}")
        return "\n".join(lines)

    __repr__ = __str__  # what a prompt or a notebook shows


def compare(plan: Plan, other: Plan) -> Comparison:
    """Say what moved from one plan to another, and what that changed."""
    a, b = dict(plan.device_of), dict(other.device_of)
    runs: list[Sequence[str]] = [[name] for name in dict.fromkeys([*a, *b])]
    if [*a] != [*b] and plan.graph.call.keys() == other.graph.call.keys():
        a, b = (  # of calls, where these make other parts
            {call.name: one.device_of[call.part] for call in one.graph.calls}
            for one in (plan, other)
        )
        runs = [list(run) for _, run in groupby(a, key=lambda name: (a[name], b[name]))]
    ends = ((run, a.get(run[0], ""), b.get(run[0], "")) for run in runs)
    moved = (
        (" .. ".join(dict.fromkeys((run[0], run[-1]))), source, target)
        for run, source, target in ends
        if source != target
    )
    return Comparison(plan, other, tuple(moved))


def _change_text(objective: str, before: float, after: float) -> str:
    if before <= 0 or abs(share := after / before - 1) < 5e-4:
        return "no change"
    words = ("more", "less") if objective == "memory" else ("longer", "shorter")
    return f"{100 * abs(share):.1f} % {words[share < 0]}"
