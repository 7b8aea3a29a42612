"""Evaluate placements with the simulator: what a plan costs, and what another would."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import repeat
from math import inf
from typing import Any

import numpy as np

from splitnet.core.cluster import KINDS, Cluster, device_name
from splitnet.core.costs import CostModel, Costs, optimizer_name
from splitnet.core.errors import DeclarationError, DeviceError
from splitnet.core.graph import Graph, Places, grouped, near_groups
from splitnet.core.plan import Placement, Plan, PlanOptions
from splitnet.core.timeline import Execution, Memory
from splitnet.planner import problem as problems
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import Group, Request, resolve, select, with_pins
from splitnet.planner.engine.solve import Solution
from splitnet.planner.load_graph import loads
from splitnet.planner.problem import Problem
from splitnet.simulator.memory import Outcome, lacking_bytes, outcome_of
from splitnet.simulator.microbatch import in_schedule, pipeline_of, recomputed_parts
from splitnet.simulator.step_graph import StepGraph, step_graph
from splitnet.simulator.units import scaled_graph

# What an evaluator and the plan that it makes have in common.
_SAME = ["graph", "cluster", "objective", "costs", "optimizer", "training", "execution"]
_MOST_PLAYS = 15_000  # units simulated to tell the reasons of placements apart


@dataclass(frozen=True, slots=True)
class Evaluation(Outcome):
    """What the objective counts: seconds or bytes; and the bytes that devices lack."""

    value: float
    lacking: Mapping[str, int]

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return not self.lacking


@dataclass(frozen=True)
class Evaluator:
    """One graph on one cluster under one objective; evaluates any placement of it.

    With `regroup` the parts are single calls; `as_run` makes the functions that run.
    """

    graph: Graph
    cluster: Cluster
    objective: str = "latency"
    costs: CostModel = field(default_factory=Costs)
    optimizer: str = "adam"
    training: bool = True
    execution: Execution = Execution()
    regroup: bool = False

    @classmethod
    def of(cls, graph: Graph, cluster: Cluster, options: PlanOptions) -> "Evaluator":
        """Parts carry the pins of options; regrouped calls stay with their weights."""
        graph = with_pins(graph, options.pins)
        if options.regroup:
            graph = problems.bind_shared_weights(graph)
        costs, optimizer = options.costs or Costs(), optimizer_name(options.optimizer)
        how = options.objective, costs, optimizer, options.training
        return cls(graph, cluster, *how, regroup=options.regroup)

    def _step(self, units: Any = "parts", **how: Any) -> StepGraph:
        how |= {"training": self.training, "optimizer": self.optimizer}
        return step_graph(self.graph, self.cluster, self.costs, units=units, **how)

    @cached_property
    def step(self) -> StepGraph:
        """The step of the parts at once, before anything is placed."""
        return self._step("calls" if self.regroup else "parts")

    def step_of(self, device_of: Places) -> StepGraph:
        """The step as it runs with a placement."""
        if self.execution == Execution():
            return self.step
        how = self.graph, device_of, self.execution
        count, again = self.execution.microbatches, recomputed_parts(*how)
        step = self._step(recompute=again, microbatches=count)
        return in_schedule(step, pipeline_of(*how))

    def as_run(self, device_of: Places) -> "Placed":
        """What runs for a placement: the parts, or the functions that calls make."""
        if not self.regroup:
            return self, device_of
        where = {call.name: device_of[call.part] for call in self.graph.calls}
        graph, functions_on = problems.in_functions(self.graph, self.step, where)
        return replace(self, graph=graph, regroup=False), functions_on

    def resolve(self, missing: str = "fallback", **how: bool) -> list[Group]:
        """As `constraints.resolve`, of this graph and cluster."""
        return resolve(self.graph, self.cluster, missing=missing, **how)

    def problem_of(self, groups: Sequence[Group]) -> Problem:
        """The placement problem of some groups of parts, without a cut penalty."""
        number = {part: i for i, group in enumerate(groups) for part in group.parts}
        units = [number[part] for part in self.step.parts]

        def step_of(devices: list[int]) -> tuple[StepGraph, list[int]]:
            units = problems.functions_called(self.graph, self.step, devices)
            step = self._step(units, of_calls=self.step)
            return step, [devices[calls[0]] for calls in units]

        rule = None
        if self.regroup:
            keys = np.array(problems.request_keys(self.graph), np.int64)
            called = [device.part_seconds for device in self.cluster]
            rule = problems.Functions(keys, np.array(called, np.float64), step_of)
        return problems.problem_of(self.step, self.cluster, groups, units, rule)

    @cached_property
    def problem(self) -> Problem:
        """Of parts that may be anywhere."""
        anywhere = self.cluster.names
        return self.problem_of([Group((name,), anywhere) for name in self.graph.part])

    def evaluate(self, device_of: Places) -> Evaluation:
        """Simulate a placement of every part."""
        ran = outcome_of(self.cluster, self.step_of(device_of), device_of)
        held, value = ran.memory, ran.timeline.seconds
        if self.objective == "memory":
            value = float(max(memory.total for memory in held.values()))
        elif self.objective == "throughput":
            value = self.load_of(device_of)
        return Evaluation(ran.timeline, held, value, lacking_bytes(self.cluster, held))

    def figures(self, device_of: Places, bound: float) -> dict[str, Any]:
        """What a plan says of a placement; `bound` is what is known of its value."""
        found = self.evaluate(device_of)
        figures = {"memory": found.memory, "timeline": found.timeline}
        return figures | {"value": found.value, "bound": min(bound, found.value)}

    def load_of(self, device_of: Places) -> float:
        """Load of the busiest device: what the objective "throughput" counts."""
        assignment = [self.cluster.number[device_of[p]] for p in self.graph.part]
        return max(loads(self.problem.graph, assignment))

    @cached_property
    def _units(self) -> dict[str, list[int]]:
        return grouped(range(len(self.step.parts)), self.step.parts.__getitem__)

    def load(self, part: str, device: str) -> float:
        """Seconds that a part computes on a device."""
        seconds = self.step.unit_seconds[self.cluster.number[device]]
        return sum(seconds[unit] for unit in self._units.get(part, ()))

    def busiest(self, device_of: Places) -> float:
        """Seconds that the busiest device computes: no step is shorter."""
        seconds = dict.fromkeys(device_of.values(), 0.0)
        for part in self._units:
            seconds[device_of[part]] += self.load(part, device_of[part])
        return max(seconds.values())

    def need(self, parts: Sequence[str]) -> Memory:
        """What some parts need wherever they are, without copies."""
        units = [self.step.units[u] for p in parts for u in self._units.get(p, ())]
        passing = (max(u.memory.forward, u.memory.backward) for u in units)
        return Memory(
            weights=sum(unit.weight_bytes for unit in units),
            gradients=sum(w.gradient_bytes for unit in units for w in unit.trained),
            slots=sum(unit.trained_bytes for unit in units) * self.step.slot_copies,
            activations=sum(unit.saved_floor for unit in units),
            workspace=max(passing, default=0),
        )

    def single_devices(
        self, groups: Sequence[Group] | None = None
    ) -> Iterator[tuple[str, dict[str, str]]]:
        """All on one device, as far as it may be, for each sort of device."""
        groups = groups or default_groups(self.graph, self.cluster)
        for name in self.unlike([d.name for d in self.cluster.free_devices]):
            yield name, placed(groups, repeat(name))

    def unlike(self, names: Sequence[str]) -> list[str]:
        """The first of each sort of devices that differ in speed, links or memory."""
        first = {self.sort_of[name]: name for name in reversed(names)}
        return [name for name in names if first[self.sort_of[name]] == name]

    @cached_property
    def sort_of(self) -> dict[str, int]:
        """A number for each device; those that share one could change names."""
        return dict(zip(self.cluster.names, problems.equivalent_devices(self.problem)))

    def plan(
        self, device_of: Places, bound: float, why: Places | None = None, **known: Any
    ) -> Plan:
        """The plan that a placement makes, with what else is known of it."""
        why = why or dict.fromkeys(device_of, "given")
        rows = tuple(
            Placement(p.name, device_of[p.name], ", ".join(p.on), why[p.name])
            for p in self.graph.parts
        )
        known |= {name: getattr(self, name) for name in _SAME}
        known = {"fallbacks": ()} | known | self.figures(device_of, bound)
        return Plan(placements=rows, **known)


Placed = tuple[Evaluator, Places]
"""What evaluates a placement of the parts of its graph, and the placement."""


@dataclass(frozen=True)
class Found:
    """A placement of the parts of a graph, and the solution that it comes from."""

    evaluator: Evaluator
    groups: Sequence[Group]
    device_of: Places
    solution: Solution


def evaluator_of(plan: Plan) -> Evaluator:
    """The evaluator with which a plan was made."""
    return Evaluator(**{name: getattr(plan, name) for name in _SAME})


def replayed(plan: Plan, bound: float = inf, **changes: Any) -> Plan:
    """The plan with changes, its step simulated anew, and the bound that it has."""
    plan = replace(plan, **changes)
    return replace(plan, **evaluator_of(plan).figures(plan.device_of, bound))


def executed(plan: Plan, execution: Execution) -> Plan:
    """The plan run another way, simulated anew; micro-batches have no lower bound."""
    if execution == plan.execution:
        return plan
    bound = plan.bound if execution.microbatches == 1 else 0.0
    return replayed(plan, bound, execution=execution)


def score(
    graph: Graph,
    cluster: Cluster,
    device_of: Places | Plan,
    options: PlanOptions | None = None,
    **changes: Any,
) -> Plan:
    """As `splitnet.score`, of a graph; with `regroup`, of one with a part per call."""
    options = replace(options or PlanOptions(), **changes)
    regroup, how = options.regroup, Execution()
    if isinstance(device_of, Plan):  # whose parts are functions already
        plan, device_of = device_of, device_of.device_of
        how = plan.execution if options.training else how
        options = replace(options, regroup=False)
        its, plain = plan.graph, plan.graph.plain
        if its.uncounted == graph.uncounted:
            calls = (replace(a, part=b.part) for a, b in zip(graph.calls, its.calls))
            graph = replace(graph, calls=tuple(calls), parts=its.parts)
        elif plain and plain.uncounted == graph.uncounted:
            graph = scaled_graph(its, graph.batch)
    given = _full_placement(graph, cluster, device_of)
    evaluator, full = Evaluator.of(graph, cluster, options).as_run(given)
    bound = lower_bound(evaluator.problem, evaluator.objective)
    made = evaluator.plan(full, bound, strategy="given", regroup=regroup)
    again = tuple(name for name in how.recompute if name in cluster)
    count = min(how.microbatches, graph.batch)
    return executed(made, replace(how, recompute=again, microbatches=count))


def _full_placement(graph: Graph, cluster: Cluster, device_of: Any) -> dict[str, str]:
    """A device per part, from exact names, ranges and patterns; a kind is its first."""
    inputs = [part.name for part in graph.parts if part.kind == "input"]
    keys = select(graph, {k: d for k, d in device_of.items() if k not in inputs})
    if left := [n for n in graph.part if n not in keys and n not in inputs]:
        names = ", ".join(left[:8]) + f" and {len(left) - 8} more" * (len(left) > 8)
        fault = f"a placement of {graph.name!r} must name a device for every part"
        hint = "A pattern such as '*' names all others"
        raise DeclarationError(f"{fault}; left out: {names}. {hint}.")
    keys |= {name: name for name in inputs if name in device_of}
    full = dict.fromkeys(inputs, cluster.home.name)
    for part, key in keys.items():
        try:
            name = device_name(device_of[key])
            same = cluster.of_kind(name) if name in KINDS else ()
            full[part] = (same or [cluster[name]])[0].name
        except DeviceError as error:
            raise DeviceError(f"part {key!r}: {error}") from None
    if away := [name for name in inputs if full[name] != cluster.home.name]:
        home = f"inputs are fed from the host and stay on {cluster.home.name}"
        raise DeviceError(f"{home}, so leave out: {', '.join(away[:8])}.")
    return full


def default_groups(graph: Graph, cluster: Cluster) -> list[Group]:
    """Every part on any free device that can run it; inputs at home."""
    free = tuple(device.name for device in cluster.free_devices)
    home = (cluster.home.name,)
    cpus = tuple(device.name for device in cluster.of_kind("cpu")) or home
    allowed = {call.part: cpus for call in graph.calls if call.cpu_only}
    allowed |= {part.name: home for part in graph.parts if part.kind == "input"}
    return [Group((p.name,), allowed.get(p.name, free)) for p in graph.parts]


def placed(groups: Sequence[Group], wanted: Iterable[str]) -> dict[str, str]:
    """A device per part: the one wanted for its group, or the first it may use."""
    return {
        part: device if device in group.allowed else group.allowed[0]
        for group, device in zip(groups, wanted)
        for part in group.parts
    }


def moved(graph: Graph, at: Places, part: str, to: str) -> dict[str, str]:
    """The placement `at` with a part, and what near= binds to it, on another device."""
    [group] = (names for names in near_groups(graph.parts) if part in names)
    return {**at, **dict.fromkeys(group, to)}


def reasons_of(found: Found) -> dict[str, str]:
    """The `Placement.reason` of every part.

    Every other device is simulated for each group with a choice; in large graphs none.
    """
    evaluator, device_of, groups = found.evaluator, {**found.device_of}, found.groups
    graph, cluster = evaluator.graph, evaluator.cluster
    value = evaluator.evaluate(device_of).value
    less, same = value * (1 - 1e-9), value * (1 + 1e-9)
    count = sum(len(group.allowed) - 1 for group in groups)
    plays = count * evaluator.step.count * evaluator.execution.microbatches
    tried = 0 < plays <= _MOST_PLAYS
    better, least = "", less  # for everything, if it had the memory
    for device, there in evaluator.single_devices(groups) if tried else ():
        alone = evaluator.evaluate(there)
        if not alone.fits and alone.value < least:
            better, least = device, alone.value
    reasons = {}
    for group in groups:
        reason = "cost" if len(group.allowed) > 1 else "only choice"
        if tried and reason == "cost":
            here = device_of[group.parts[0]]
            taken = {here, *(device_of[groups[j].parts[0]] for j in group.apart)}
            unused = [d for d in group.allowed if d not in device_of.values()]
            taken |= {*unused} - {*evaluator.unlike(unused)}  # equals of one of them
            free = (name for name in group.allowed if name not in taken)
            at = {name: device_of | dict.fromkeys(group.parts, name) for name in free}
            others = {name: evaluator.evaluate(there) for name, there in at.items()}
            full, judged = better in others and not others[better].fits, others.values()
            if not full and any(one.fits and one.value <= same for one in judged):
                reason = "tie"
            elif full or any(one.value < less for one in judged):
                reason = "memory"
        for part in group.parts:
            one = Request(graph, cluster, graph.part[part])
            usual = reason if set(one.allowed()) <= set(group.allowed) else "near"
            reasons[part] = one.reason(device_of[part])[0] or usual
    return reasons
