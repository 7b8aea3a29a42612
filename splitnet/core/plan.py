"""The result of planning: a device for every part, and what was predicted for it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from splitnet.core import Pictured, hook
from splitnet.core.checks import Count, Positive, Seconds, check_fields, checked
from splitnet.core.cluster import Cluster
from splitnet.core.costs import CostModel, Costs
from splitnet.core.errors import PlanFileError, format_bytes, format_seconds, percent
from splitnet.core.graph import Graph, parts_called
from splitnet.core.timeline import SCHEDULES, Copy, Execution, Memory, Timeline

OBJECTIVES = ("latency", "throughput", "memory")
MISSING = ("fallback", "error")
CONTIGUITIES = ("free", "convex", "pipeline")
NESTED = ("expand", "keep")
FIXED = ("microbatches", "schedule", "recompute", "towers", "split")
"""What can be fixed where a strategy is chosen."""


@dataclass(frozen=True, slots=True)
class Placement:
    """One part and its device; `requested` is its `on=`, `reason` why it is there.

    `reason` is "pin", "preference", "near", "cost", "memory", "merge", "input",
    "no kernel", "only choice", "tie", "fallback" or "given" (by `score`).
    """

    part: str
    device: str
    requested: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fallback:
    """A part that runs on another device than the one requested."""

    part: str
    requested: str
    assigned: str
    reason: str


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to use the cluster.

    `kind` is "one device", "plan", "placement", "split", "towers" or "pipeline", `how`
    the call that builds it. Per step: its `seconds`, those in which the busiest device
    computes, bytes copied between devices, and the peak of the fullest device.
    """

    kind: str
    seconds: Seconds
    how: str
    fits: bool = True
    busiest_seconds: Seconds = 0.0
    copied_bytes: Count = 0
    peak_bytes: Count = 0
    devices: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """What the step time consists of."""
        copied = format_bytes(self.copied_bytes) if self.copied_bytes else "nothing"
        busy, peak = format_seconds(self.busiest_seconds), format_bytes(self.peak_bytes)
        head = f"the busiest device computes for {busy}"
        return f"{head}, {copied} transferred, {peak} at most on a device"


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """The strategies that were simulated, the fastest that fits first.

    `chosen` is the kind that "auto" took, the simplest that is at most 2 % slower.
    """

    all: tuple[Strategy, ...]
    chosen: str = ""

    def __post_init__(self) -> None:
        if not self.all or self.chosen not in ("", *(one.kind for one in self.all)):
            raise PlanFileError("all= has no strategy, or none of the kind chosen=.")

    @property
    def best(self) -> Strategy:
        """The fastest that fits; if none does, the fastest."""
        return self.all[0]

    def __iter__(self) -> Iterator[Strategy]:
        return iter(self.all)

    def __getitem__(self, kind: str) -> Strategy:
        found = {one.kind: one for one in reversed(self.all)}
        if kind not in found:
            raise PlanFileError(f"no strategy {kind!r} was tried. Tried: {[*found]}.")
        return found[kind]

    def __str__(self) -> str:
        best = self.best
        single = next((one for one in self.all if one.kind == "one device"), None)
        head = f"{best.kind} is fastest"
        if not best.fits:
            head = f"no strategy fits; {head}"
        elif single and single.fits and single.seconds <= best.seconds:
            head += "; not worth distributing"
        elif single and single.fits:
            times = single.seconds / max(best.seconds, 1e-12)
            head += f", {times:.2f} times as fast as one device"
        elif single:
            head += "; the model fits no single device"
        chosen = self[self.chosen or best.kind]
        if chosen.kind != best.kind:
            short = chosen.seconds > 1.02 * best.seconds
            near = "Keras adds 1 ms to each step" if short else "at most 2 % slower"
            head += f" ({best.how}).\n{chosen.kind} is simpler and chosen ({near})"
        width = max(len(one.kind) for one in self.all)
        rows = [
            f"  {one.kind:<{width}}  {format_seconds(one.seconds):>9}  {one.how}: "
            f"{one.reason}{'' if one.fits else '; does not fit'}"
            for one in self.all
        ]
        return "\n".join([f"{head}: {chosen.how}.", *rows])

    __repr__ = __str__  # what a prompt or a notebook shows


@dataclass(frozen=True)
class Verdict:
    """Whether distributing is worth it: a plan against the best single device.

    `single_device_value` is in the unit of the objective, None if the model fits no
    single device; `known` are strategies that were simulated for the plan.
    """

    plan: "Plan"
    single_device: str | None
    single_device_value: float | None
    advice: tuple[str, ...] = ()
    known: StrategyComparison | None = None
    comparable: bool = False

    @cached_property
    def strategies(self) -> StrategyComparison | None:
        """The plan among other strategies; None if large, or of no model's step."""
        if self.known is None and self.comparable:
            found: StrategyComparison = hook("compare_plan")(self.plan)
            return found
        return self.known

    @property
    def overfull(self) -> list[str]:
        """The devices whose memory is too small."""
        used, devices = self.plan.memory, self.plan.cluster
        return [d.name for d in devices if used[d.name].total > d.memory_bytes]

    @property
    def speed_up(self) -> float | None:
        """Single-device value over the plan's; None if no single device fits."""
        alone, mine = self.single_device_value, self.plan.value
        return None if alone is None or mine <= 0 else alone / mine

    @property
    def worth_distributing(self) -> bool:
        """Whether the plan fits and no single device is better."""
        gains = self.speed_up is None or self.speed_up >= 1 - 1e-9
        return gains and not self.overfull

    def __str__(self) -> str:
        plan = self.plan
        idle = [1.0 - share for share in plan.timeline.utilization.values() if share]
        mean, moved = sum(idle) / (len(idle) or 1), format_bytes(plan.transfer_bytes)
        facts = [f"{moved} transferred per step, devices {percent(mean)} idle"]
        if plan.bound > 0 and plan.value > 0 and not self.overfull:
            low = value_text(plan.objective, plan.bound, long=False)
            gap = f"lower bound {low} (gap {percent(plan.gap)})"
            facts.append("optimal under these constraints" if plan.gap < 5e-4 else gap)
        if plan.ended_by_clock:
            facts.append("the time limit ended the search")
        if plan.objective != "memory" and isinstance(plan.costs, Costs):
            calls = [call for call in plan.graph.calls if call.moved_bytes]
            where = (plan.cluster[plan.device_of[call.part]] for call in calls)
            count = [*map(plan.costs.measured, calls, where)].count(None)
            some = f" of {count} of {len(calls)} calls" * (count < len(calls))
            if count or not calls:
                facts.append(f"times{some} are estimated, not measured")
            real = [d for d in plan.cluster.of_kind("gpu") if not d.stand_in]
            if plan.costs.stand_ins and real:
                facts.append("times of GPUs were measured on CPU stand-ins")
            elif others := [d.name for d in real if plan.costs.of_another(d)]:
                some = ", ".join(others[:4]) + " ..." * (len(others) > 4)
                facts.append(f"times of {some} were measured on GPUs of another speed")
        lines = [self.headline, f"{'; '.join(facts)}."]
        if self.strategies is not None:
            best, times = self.strategies.best, []
            for one in self.strategies.all:
                lacks = "" if one.fits else " (does not fit)"
                times.append(f"{one.kind} {format_seconds(one.seconds)}{lacks}")
            why = f"{best.kind} is fastest: {best.reason}."
            lines.append(f"strategies: {', '.join(times)}. {why}")
            if best.kind in ("towers", "pipeline") and best.seconds < 0.98 * plan.value:
                lines.append(f"faster than this plan: {best.how}.")
        return "\n".join([*lines, *(f"advice: {line}" for line in self.advice)])

    __repr__ = __str__  # what a prompt or a notebook shows

    @property
    def headline(self) -> str:
        """The value of the plan, and whether it is worth it."""
        objective = self.plan.objective
        mine = value_text(objective, self.plan.value)
        if self.overfull:
            return f"does not fit the memory of {', '.join(self.overfull)}; {mine}."
        if self.single_device_value is None:
            return f"{mine}; the model fits no single device, so it must be split."
        alone = value_text(objective, self.single_device_value, long=False)
        one = f"{self.single_device} alone ({alone})"
        times = self.speed_up or 1.0
        less, more = ("less", "more") if objective == "memory" else ("faster", "slower")
        if not self.worth_distributing:
            slower = f"{percent(1 / times - 1)} {more} than {one}"
            return f"{mine}, {slower}; not worth distributing."
        if times < 1.005:
            return f"{mine}; no gain over {one}."
        return f"{mine}, {times:.2f} times {less} than {one}."


def value_text(objective: str, value: float, *, long: bool = True) -> str:
    """Write an objective's value: "12 ms a step", "3.2 GiB on the fullest device"."""
    units = {"throughput": " on the busiest device", "memory": " on the fullest device"}
    text = format_bytes(value) if objective == "memory" else format_seconds(value)
    return text + units.get(objective, " a step") if long else text


@dataclass(frozen=True)
class Plan(Pictured):
    """A device for every part of a graph, with predicted time, memory and transfers.

    `value` is what the objective counts (seconds, or bytes for "memory"), `bound` a
    lower bound of it under the same constraints. With `ended_by_clock` the time limit
    ended the search, so that the next plan may differ. `reused` has the layers of the
    source that an emitted model uses itself, since they cannot be rebuilt, and why.
    `execution` says how the parts run in `timeline`, `transfers`, `memory` and `emit`.
    With `regroup` its parts are functions, which calls were put together in.
    """

    graph: Graph
    cluster: Cluster
    placements: tuple[Placement, ...]
    fallbacks: tuple[Fallback, ...]
    memory: Mapping[str, Memory]
    timeline: Timeline
    objective: str = "latency"
    strategy: str = "earliest_finish"
    optimizer: str = "adam"
    training: bool = True
    value: float = 0.0
    bound: float = 0.0
    contiguity: str | None = None
    ended_by_clock: bool = False
    costs: CostModel = field(default_factory=Costs)
    verdict: Verdict = None  # type: ignore[assignment]  # only while planning
    reused: Mapping[str, str] = field(default_factory=dict)
    execution: Execution = Execution()
    regroup: bool = False

    @cached_property
    def device_of(self) -> dict[str, str]:
        """The device of each part; `plan[name]` finds calls and layers too."""
        return {one.part: one.device for one in self.placements}

    @property
    def transfers(self) -> tuple[Copy, ...]:
        """What one step moves between devices, once per device that reads it."""
        return self.timeline.copies

    @property
    def transfer_bytes(self) -> int:
        """Bytes that one step moves between devices."""
        return sum(copy.bytes for copy in self.transfers)

    def __getitem__(self, name: str) -> Placement:
        parts = parts_called(self.graph, name) if isinstance(name, str) else ()
        if len(parts) != 1:
            here = ", ".join(list(parts or self.device_of)[:12])
            fault = f"calls {name!r} in several parts" if parts else f"has no {name!r}"
            head = f"the plan of {self.graph.name!r} {fault}."
            raise PlanFileError(f"{head} Name one of: {here}.")
        return next(one for one in self.placements if one.part == parts[0])

    @property
    def gap(self) -> float:
        """Relative distance of the value from its lower bound."""
        return 0.0 if self.value <= 0 else max(0.0, 1.0 - self.bound / self.value)

    @property
    def batch(self) -> int:
        """Samples per step."""
        return self.graph.batch

    @property
    def seconds(self) -> float:
        """Simulated seconds of one step."""
        return self.timeline.seconds

    @checked
    def explain(self, name: str) -> Any:
        """Say why a part is on its device, and what each other device would cost."""
        return hook("explain")(self, name)

    @checked
    def compare(self, other: "Plan") -> Any:
        """List what moved from this plan to another, and what that changed."""
        return hook("compare")(self, other)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, atomically; `PlanFileError` if it cannot be."""
        hook("save_plan")(self, path)

    def __repr__(self) -> str:
        used = list(dict.fromkeys(self.device_of.values()))
        devices = ", ".join(used[:6]) + (" ..." if len(used) > 6 else "")
        runs = f"{self.execution}, " if str(self.execution) else ""
        parts = f"{len(self.placements)} parts on {devices}"
        step = f"{runs}{format_seconds(self.seconds)} a step"
        return f"<Plan of {self.graph.name!r}: {parts}, {step}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """What a placement is evaluated by; `splitnet.plan` documents each field."""

    batch: Positive | None = None
    objective: Annotated[str, OBJECTIVES] = "latency"
    costs: Annotated[Any, CostModel | str | PathLike | None] = None
    optimizer: Any = "adam"
    training: bool = True
    nested: Annotated[str, NESTED] = "expand"
    regroup: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions(ScoreOptions):
    """Everything that planning takes besides the source and the cluster."""

    pins: Annotated[Any, Mapping | Callable | Plan | str | PathLike | None] = None
    missing: Annotated[str, MISSING] = "fallback"
    time_limit: Annotated[float, Meta(ge=0, le=1e30)] = 5.0
    effort: Positive | None = None
    contiguity: Annotated[str, CONTIGUITIES] | None = None
    seed: int = 0
    cut_penalty: Annotated[float, Meta(ge=0, lt=1)] = 0.02
    on_progress: Callable[[float, float], None] | None = None
    strategy: Annotated[str, ("auto",)] | None = None
    microbatches: Positive | None = None
    schedule: Annotated[str, SCHEDULES] | None = None
    recompute: bool | None = None
    towers: Positive | None = None
    split: Mapping[str, Positive] | None = None

    def __post_init__(self) -> None:
        faults = []  # what the types of the fields do not say
        given = [name for name in FIXED if getattr(self, name) is not None]
        if self.strategy is None and given:
            faults += [f"strategy= must be 'auto' where {'=, '.join(given)}= is given"]
        if self.strategy is not None and self.objective != "latency":
            faults += ["objective= must be 'latency' with strategy='auto'"]
        check_fields(self, faults, called="options")
