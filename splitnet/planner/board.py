"""The latency and memory search's view of a graph: groups to place, and the judge.

Groups of parts (bound by near=) are what gets a device. Parts, merged to units, are
what the quick judge plays; calls are what the exact judge plays. An assignment is the
number of a device per group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nextafter
from typing import NamedTuple

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Graph
from splitnet.core.plan import Memory
from splitnet.planner.constraints import Group
from splitnet.planner.contraction import contract
from splitnet.planner.twins import twins
from splitnet.simulator.engine import run_step, run_within
from splitnet.simulator.old_memory import memory_of, standing_bytes
from splitnet.simulator.step import Step

__all__ = ["Assignment", "Board", "Score", "board_of"]

Assignment = tuple[int, ...]


class Score(NamedTuple):
    """How bad an assignment is: first what it breaks, then what it costs.

    `broken` counts pairs that should be apart, `excess_bytes` what does not fit,
    `value` is seconds, or bytes for the objective "memory", and infinite where it is
    out of question; `tie` breaks ties between equal values by the other of the two.
    """

    broken: int
    excess_bytes: int
    value: float
    tie: float

    @property
    def feasible(self) -> bool:
        """Whether it breaks nothing."""
        return not self.broken and not self.excess_bytes and self.value < inf


@dataclass(frozen=True)
class Board:
    """A step, its units and groups, and what each group may use.

    `worth` counts what an objective that is not played counts, by the devices of the
    groups; it is infinite outside the feasible set of a contiguity.
    """

    cluster: Cluster
    calls: Step
    units: Step
    unit_of_call: Sequence[int]
    group_of_unit: Sequence[int]
    allowed: tuple[tuple[int, ...], ...]
    apart: tuple[tuple[int, int], ...]
    capacity: tuple[int, ...]
    objective: str
    worth: Callable[[Assignment], float] | None = None

    @property
    def group_count(self) -> int:
        """How many groups there are."""
        return len(self.allowed)

    @cached_property
    def free_groups(self) -> tuple[int, ...]:
        """The groups that have a choice, in order of declaration."""
        return tuple(g for g, devices in enumerate(self.allowed) if len(devices) > 1)

    @cached_property
    def group_bytes(self) -> list[int]:
        """What each group holds whatever the schedule: see `memory.standing_bytes`."""
        step = self.units
        per_trained = 1 + step.slot_copies if step.training else 0
        need = [0] * self.group_count
        for unit, group in enumerate(self.group_of_unit):
            need[group] += (
                step.own_bytes[unit]
                + per_trained * step.own_trained[unit]
                + step.kept_bytes[unit]
            )
        return need

    @cached_property
    def overfull(self) -> bool:
        """Whether it is plain that nothing fits: too much in all, or for one device."""
        need, room = self.group_bytes, self.capacity
        return sum(need) > sum(room) or any(
            own > max(room[d] for d in devices)
            for own, devices in zip(need, self.allowed)
        )

    @cached_property
    def roomy(self) -> bool:
        """Whether every assignment keeps every promise, as far as that is plain.

        Nothing is apart, and all that is ever held would fit on any one device.
        """
        step = self.calls
        passing = sum(step.output_bytes) + sum(step.workspace_bytes)
        moved = sum(net.bytes for net in step.nets) + sum(w.bytes for w in step.shared)
        passing += moved * (2 + step.device_count)
        return not self.apart and sum(self.group_bytes) + passing <= min(self.capacity)

    def combinations(self, most: int) -> int:
        """How many assignments there are, counted no further than `most`."""
        count = 1
        for devices in self.allowed:
            count = min(most + 1, count * len(devices))
        return count

    def unit_devices(self, chosen: Assignment) -> list[int]:
        """The device of every unit."""
        return [chosen[group] for group in self.group_of_unit]

    def call_devices(self, chosen: Assignment) -> list[int]:
        """The device of every call."""
        units = self.unit_devices(chosen)
        return [units[unit] for unit in self.unit_of_call]

    def quick(self, chosen: Assignment, unless: Score | None = None) -> Score:
        """Judge by units, and by what any schedule holds; never too harsh.

        What must be worse than `unless` is not played to its end: its score is a floor,
        worse than `unless`, with an infinite `tie`.
        """
        device = self.unit_devices(chosen)
        broken, held = self.broken(chosen), standing_bytes(self.units, device)
        if self.worth is not None:
            return self._score(broken, held, self.worth(chosen))
        least = self._score(broken, held, 0.0)
        if unless is not None and least[:3] > unless[:3]:
            return least._replace(tie=inf)
        limit = self._limit(least, unless)
        run = run_within(self.units, device, limit)
        if run is None:
            return least._replace(value=nextafter(limit, inf), tie=inf)
        return self._score(broken, held, run.seconds)

    def held(self, chosen: Assignment) -> list[Memory]:
        """What each device holds at its fullest, by calls."""
        device = self.call_devices(chosen)
        return memory_of(self.calls, device, run_step(self.calls, device))[0]

    def has_room(self, chosen: Assignment) -> bool:
        """Whether what each device holds all along fits."""
        held = standing_bytes(self.units, self.unit_devices(chosen))
        return all(used <= top for used, top in zip(held, self.capacity))

    def passing_bytes(self, chosen: Assignment) -> list[int]:
        """What each device holds at its fullest beside what it holds all along."""
        standing = standing_bytes(self.calls, self.call_devices(chosen))
        return [m.total - own for m, own in zip(self.held(chosen), standing)]

    def exact(self, chosen: Assignment, unless: Score | None = None) -> Score:
        """Judge by calls, with the fullest moment of every device.

        What cannot beat `unless` is not judged to its end, and so may look better or
        worse than it is, but never better than `unless`.
        """
        device = self.call_devices(chosen)
        broken, held = self.broken(chosen), standing_bytes(self.calls, device)
        known = 0.0 if self.worth is None else self.worth(chosen)
        least = self._score(broken, held, known)
        if unless is not None and least[:3] > unless[:3]:
            return least
        run = run_within(self.calls, device, self._limit(least, unless))
        if run is None:
            return least._replace(value=inf)
        seconds = run.seconds if self.worth is None else known
        least = self._score(broken, held, seconds)
        if unless is not None and least >= unless:
            return least
        held = [memory.total for memory in memory_of(self.calls, device, run)[0]]
        return self._score(broken, held, seconds)

    def _limit(self, least: Score, unless: Score | None) -> float:
        """The seconds beyond which a step cannot beat `unless`."""
        if unless is None or self.objective != "latency" or least[:2] != unless[:2]:
            return inf
        return unless.value

    def _score(self, broken: int, held: Sequence[int], seconds: float) -> Score:
        excess = sum(max(0, used - top) for used, top in zip(held, self.capacity))
        fullest = float(max(held))
        if self.objective == "memory":
            value = fullest if seconds < inf else inf
            return Score(broken, excess, value, seconds)
        return Score(broken, excess, seconds, fullest)

    @cached_property
    def twin_of(self) -> tuple[int, ...]:
        """For each device the first that it could change names with, itself if none."""
        return twins(self.calls, self.capacity, self.allowed)

    def broken(self, chosen: Assignment) -> int:
        """How many pairs that should be apart share a device."""
        return sum(chosen[a] == chosen[b] for a, b in self.apart)


def board_of(
    graph: Graph,
    cluster: Cluster,
    step: Step,
    groups: Sequence[Group],
    objective: str,
) -> Board:
    """Bring groups, devices and calls to numbers.

    Units are parts where the graph of parts has no cycle, else calls.
    """
    number = {device.name: i for i, device in enumerate(cluster)}
    group = {name: i for i, one in enumerate(groups) for name in one.parts}
    order = _order(graph, step)
    parts = [group[call.part] for call in graph.calls]
    units: Step | None = None
    if order is not None:
        unit_of = [order[call.part] for call in graph.calls]
        units = contract(step, unit_of, list(order))
    if units is None or order is None:
        unit_of, units, group_of_unit = list(range(step.count)), step, parts
    else:
        group_of_unit = [group[name] for name in order]
    return Board(
        cluster=cluster,
        calls=step,
        units=units,
        unit_of_call=unit_of,
        group_of_unit=group_of_unit,
        allowed=tuple(tuple(number[d] for d in one.allowed) for one in groups),
        apart=tuple((i, j) for i, one in enumerate(groups) for j in one.apart if i < j),
        capacity=tuple(device.memory_bytes for device in cluster),
        objective=objective,
    )


def _order(graph: Graph, step: Step) -> Mapping[str, int] | None:
    """Parts that have calls, numbered in an order that may run; ties by first call."""
    import heapq

    first: dict[str, int] = {}
    for i, call in enumerate(graph.calls):
        first.setdefault(call.part, i)
    part = [call.part for call in graph.calls]
    after: dict[str, dict[str, None]] = {name: {} for name in first}
    for net in step.nets:
        for reader in net.readers:
            if part[net.source] != part[reader]:
                after[part[net.source]][part[reader]] = None
    waits = dict.fromkeys(first, 0)
    for targets in after.values():
        for target in targets:
            waits[target] += 1
    heap = [(first[name], name) for name, count in waits.items() if not count]
    heapq.heapify(heap)
    order: dict[str, int] = {}
    while heap:
        _, name = heapq.heappop(heap)
        order[name] = len(order)
        for target in after[name]:
            waits[target] -= 1
            if not waits[target]:
                heapq.heappush(heap, (first[target], target))
    return order if len(order) == len(first) else None
