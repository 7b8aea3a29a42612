"""The benchmark's objectives: the busiest device of a pipeline, one sample's latency.

Both count loads instead of playing a step, so they have a search engine of their own
(`core/search`). This file brings a graph, a cluster and wishes to its numbers and back.
A GPU pays for what crosses its border; a CPU, where the data is anyway, pays nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from splitnet.core.cluster import Cluster
from splitnet.core.costs.model import CostModel
from splitnet.core.graph import Graph
from splitnet.planner.constraints import Group
from splitnet.planner.portfolio import Found
from splitnet.planner.search import bounds
from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.latency import call_latency
from splitnet.planner.search.portfolio import search
from splitnet.planner.search.problem import Device as SearchDevice
from splitnet.planner.search.problem import Problem, max_load
from splitnet.planner.search.run import Run
from splitnet.planner.steady_rows import (
    Kind,
    first_of,
    held_rows,
    kind_of,
    second_rows,
    sizes_of,
    transfer_rows,
)
from splitnet.simulator.step import Step

__all__ = ["STEADY", "Steady", "steady_of"]

STEADY = ("throughput", "call_latency")


@dataclass(frozen=True)
class Steady:
    """A search problem, and the way back from its devices and groups to the cluster's.

    `number_of` maps a device's name to its number in the problem: for "call_latency"
    all CPUs are one pool, so several share one. `group_of` is the group of each call,
    `resting` where groups without calls go.
    """

    problem: Problem
    objective: str
    number_of: Mapping[str, int]
    group_of: Sequence[int]
    resting: tuple[int, ...]

    def search(
        self,
        *,
        contiguity: str | None,
        time_limit: float,
        seed: int,
        on_progress: Callable[[float, float], None] | None,
        iterations: int | None = None,
    ) -> Found:
        """The best placement of the groups on the cluster's devices.

        It looks away from `apart` and from what comes and goes in memory. `iterations`
        count instead of the clock, so that equal seeds give equal plans.

        Raises:
            InfeasibleError: nothing fits.
        """
        result = search(
            self.problem,
            self.objective,
            contiguity or "free",
            time_limit=time_limit,
            seed=seed,
            iterations=iterations,
            on_progress=(
                None
                if on_progress is None
                else lambda p: on_progress(
                    min(1.0, p.seconds / max(time_limit, 1e-9)), p.value
                )
            ),
        )
        back: dict[int, int] = {}
        for position, number in enumerate(self.number_of.values()):
            back.setdefault(number, position)
        chosen = list(self.resting)
        for node, group in enumerate(self.group_of):
            owner = self.problem.nodes.group[node]
            chosen[group] = back[result.assignment[owner]]
        return Found(tuple(chosen), result.strategy, result.bound)

    def with_less(self, spare_bytes: Sequence[int]) -> "Steady":
        """The same with so much less memory on each device of the cluster."""
        less = [0] * len(self.problem.devices)
        for number, spare in zip(self.number_of.values(), spare_bytes):
            less[number] = max(less[number], spare)
        devices = tuple(
            replace(d, capacity_bytes=max(0.0, d.capacity_bytes - own))
            for d, own in zip(self.problem.devices, less)
        )
        return replace(self, problem=replace(self.problem, devices=devices))

    def bound(self) -> float:
        """What no placement can beat, as far as a moment's work can prove."""
        if self.objective == "call_latency":
            return bounds.critical_path_bound(self.problem)[0]
        return max(
            bounds.largest_group_bound(self.problem)[0],
            bounds.work_bound(self.problem)[0],
        )

    def worth(self, contiguity: str | None) -> Callable[[Sequence[int]], float]:
        """What the objective counts for the devices of the groups.

        Infinite outside the feasible set of the contiguity.
        """
        run = Run(self.problem, self.objective, contiguity or "free", None)
        first: dict[int, int] = {}
        for node, owner in enumerate(self.problem.nodes.group):
            first.setdefault(owner, self.group_of[node])
        groups = [first[owner] for owner in range(self.problem.group_count)]
        numbers = list(self.number_of.values())
        return lambda chosen: run.value_of([numbers[chosen[g]] for g in groups])

    def value(self, device_of_call: Sequence[str]) -> float:
        """What the objective counts for a placement of the calls."""
        assignment = [0] * self.problem.group_count
        for node, device in enumerate(device_of_call):
            assignment[self.problem.nodes.group[node]] = self.number_of[device]
        if self.objective == "throughput":
            return max_load(self.problem, assignment)
        return call_latency(self.problem, assignment)


def steady_of(
    graph: Graph,
    cluster: Cluster,
    step: Step,
    costs: CostModel,
    groups: Sequence[Group],
    *,
    objective: str,
    optimizer: str,
    training: bool,
) -> Steady:
    """Lay out a graph for the search engine, but for `apart`.

    For the objective "memory" the engine is told bytes for seconds, and that copies
    take none: the busiest device is then the one that holds most all along. Calls
    that read something and have no choice, such as merges on the CPU, are left out of
    the contiguity: whatever else is there, data comes back to them.
    """
    group = {name: i for i, one in enumerate(groups) for name in one.parts}
    group_of = [group[call.part] for call in graph.calls]
    kinds, devices, number_of = _devices(cluster, objective)
    first = {kind: first_of(cluster, kind) for kind in kinds}
    index = {call.name: i for i, call in enumerate(graph.calls)}
    unseen = [call.backward for call in graph.calls]
    if objective == "memory":
        objective = "throughput"
        fixed = [len(group.allowed) == 1 for group in groups]
        for tensor in graph.tensors:
            reader = index[tensor.target]
            unseen[reader] = unseen[reader] or fixed[group_of[reader]]
        seconds = held_rows(graph, step, kinds)
        transfers = [(0.0,) * len(kinds)] * step.count
    else:
        seconds = second_rows(graph, step, kinds, first)
        transfers = transfer_rows(graph, cluster, step, costs, kinds, first)
    problem = build_problem(
        [call.name for call in graph.calls],
        seconds=seconds,
        size_bytes=sizes_of(step, optimizer, training),
        edges=[(index[t.source], index[t.target]) for t in graph.tensors],
        transfer_seconds=transfers,
        devices=devices,
        together=group_of,
        backward=unseen,
        pins=_pins(groups, group_of, number_of, len(devices)),
    )
    position = {device.name: i for i, device in enumerate(cluster)}
    resting = tuple(position[one.allowed[0]] for one in groups)
    return Steady(problem, objective, number_of, group_of, resting)


def _devices(
    cluster: Cluster, objective: str
) -> tuple[list[Kind], list[SearchDevice], dict[str, int]]:
    """Equal devices are one kind; CPUs are a pool where the benchmark has one."""
    kinds = list(dict.fromkeys(kind_of(device) for device in cluster))
    devices: list[SearchDevice] = []
    number_of: dict[str, int] = {}
    pool = -1
    for device in cluster:
        on_host = device.kind == "cpu"
        if on_host and objective == "call_latency" and pool >= 0:
            number_of[device.name] = pool
            continue
        number_of[device.name] = len(devices)
        pool = len(devices) if on_host else pool
        devices.append(
            SearchDevice(
                device.name,
                kinds.index(kind_of(device)),
                float(device.memory_bytes),
                pooled=on_host,
            )
        )
    return kinds, devices, number_of


def _pins(
    groups: Sequence[Group],
    group_of: Sequence[int],
    number_of: Mapping[str, int],
    count: int,
) -> dict[int, tuple[int, ...]]:
    """Node -> the devices it may use, where that is not all of them."""
    allowed = [
        tuple(dict.fromkeys(number_of[name] for name in group.allowed))
        for group in groups
    ]
    return {
        node: allowed[group]
        for node, group in enumerate(group_of)
        if len(allowed[group]) < count
    }
