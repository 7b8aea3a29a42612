"""Training: an accelerator calls its forward nodes, and later its backward nodes.

    forward    a a a|b b b|c c          a, b  two calls each: forward, backward
    backward   a a a|b b b|c c          c     one call, where nobody comes between

A group has nodes of both phases and moves as one, so its forward part goes to one call
and its backward part to another; but backward nodes that wait for nobody else are in
the first. The rule that cuts an accelerator's set into calls
finds these two where each beginning of the second hears from the first by way of
somebody else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, log
from random import Random

from splitnet.planner.search.call_graph import CallGraph, CallState
from splitnet.planner.search.call_sharing import Folder
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.contract import contract
from splitnet.planner.search.latency import call_latency, calls_of
from splitnet.planner.search.problem import Net, Problem

__all__ = ["CallPhases"]

STRIDE = 16
NEAR = 0.6
TO_HOST = 0.15
MERGED = 0.5
Parts = list[list[tuple[int, bool]]]
"""Per cluster: its parts, and whether each is late: of the second call."""


@dataclass(frozen=True, slots=True)
class _Halves:
    """Clusters cut into their parts.

    `twin` is the call of backward parts of each device.
    """

    graph: CallGraph
    parts: Parts
    twin: Sequence[int]
    folder: Folder

    def spread(self, plan: Sequence[int]) -> list[int]:
        """Return the call of every part of a plan of clusters."""
        calls = [0] * self.graph.fixed.groups
        for cluster, device in enumerate(plan):
            for part, late in self.parts[cluster]:
                calls[part] = self.twin[device] if late else device
        return calls

    def are_cut(self, calls: Sequence[int]) -> bool:
        """Whether the rule finds the two calls of every accelerator that has two."""
        heard, _ = self.folder.hearing(calls)
        return all(
            twin == device or twin not in heard or heard[twin] >> device & 1
            for device, twin in enumerate(self.twin)
            if device in heard
        )


class CallPhases:
    """Anneals clusters of a problem with backward nodes."""

    __slots__ = ("_copies", "_full", "_node_groups", "_plain", "_real", "_single")

    def __init__(
        self, fused: Problem, full: Problem, node_groups: Sequence[int]
    ) -> None:
        """`node_groups` maps the nodes of `full` to groups of `fused`; O(edges)."""
        self._plain, self._full, self._node_groups = fused, full, node_groups
        line = [i for i, device in enumerate(fused.devices) if not device.pooled]
        self._real = [*range(len(fused.devices)), *line]
        self._copies = {d: len(fused.devices) + i for i, d in enumerate(line)}
        nodes = full.nodes
        first: dict[int, int] = {}
        for node, group in enumerate(nodes.group):
            first.setdefault(group, node)
        self._single = Problem(
            names=nodes.names,
            seconds=nodes.seconds,
            size_bytes=tuple(
                full.size_bytes[group] if first[group] == node else 0.0
                for node, group in enumerate(nodes.group)
            ),
            nets=tuple(
                Net(node, row, nodes.transfer_seconds[node])
                for node, row in enumerate(nodes.successors)
                if row
            ),
            devices=tuple(fused.devices[real] for real in self._real),
            allowed=((),) * len(nodes.group),
            forward=(),
            nodes=nodes,
        )

    def anneal(
        self,
        coarse: Problem,
        owner: Sequence[int],
        plan: Sequence[int],
        budget: Budget,
        random: Random,
        *,
        hot: float,
    ) -> list[int]:
        """Return the best plan seen of the clusters `owner`, on the machine's devices.

        An accelerator whose two phases are one call in `plan` keeps it so; what is idle
        there may be of either sort. Best effort where an accelerator needs three calls.
        """
        start = self._assignment([plan[index] for index in owner])
        halves = self._halves(coarse, owner, start, random)
        known = call_latency(self._full, start)
        return _anneal(coarse, halves, plan, known, budget, random, hot=hot)

    def _assignment(self, plan: Sequence[int]) -> list[int]:
        """Return the device of each group of the full problem."""
        assignment = [0] * self._full.group_count
        for node, group in enumerate(self._node_groups):
            assignment[self._full.nodes.group[node]] = plan[group]
        return assignment

    def _halves(
        self,
        coarse: Problem,
        owner: Sequence[int],
        assignment: Sequence[int],
        random: Random,
    ) -> _Halves:
        late, single = self._phases(assignment)
        numbers: dict[tuple[int, bool], int] = {}
        node_parts = [
            numbers.setdefault((owner[group], late[node]), len(numbers))
            for node, group in enumerate(self._node_groups)
        ]
        split = contract(self._single, node_parts)
        parts: Parts = [[] for _ in range(coarse.group_count)]
        for (cluster, backward), part in numbers.items():
            parts[cluster].append((part, backward))
        twin = [
            device
            if single.get(device, random.random() < MERGED)
            else self._copies.get(device, device)
            for device in range(len(coarse.devices))
        ]
        graph = CallGraph(split, self._full, node_parts)
        plain = replace(split, devices=coarse.devices)
        atoms = range(len(graph.owner))
        folder = Folder(plain, self._real, graph.before, graph.owner, atoms)
        return _Halves(graph, parts, twin, folder)

    def _phases(self, assignment: Sequence[int]) -> tuple[list[bool], dict[int, bool]]:
        """Return which nodes are late, and which accelerators make a single call.

        Late is what follows an accelerator's first call, and backward nodes elsewhere.
        """
        late = list(self._full.nodes.backward)
        single: dict[int, bool] = {}
        for node, (device, number) in enumerate(calls_of(self._full, assignment)):
            if device >= 0:
                late[node] = number > 1
                single[device] = single.get(device, True) and number == 1
        return late, single


def _anneal(
    coarse: Problem,
    halves: _Halves,
    start: Sequence[int],
    known: float,
    budget: Budget,
    random: Random,
    *,
    hot: float,
    cold: float = 0.0005,
    weight: float = 0.02,
) -> list[int]:
    """Anneal the latency, as `anneal_calls`, with all parts of a cluster at once.

    `known` is the exact latency of `start`.
    A proposal is O(atoms + edges). No guarantee.
    """
    calls = CallState(halves.graph, halves.spread(start))
    state, plan, pool = calls.state, list(start), halves.graph.pool
    value, total = calls.latency(), sum(state.load)
    best, best_plan, cost = known, list(start), value + weight * total
    room = [device.capacity_bytes * (1 + 1e-12) for device in coarse.devices]
    for cluster, device in enumerate(plan):
        room[device] -= coarse.size_bytes[cluster]
    near: list[dict[int, None]] = [{} for _ in plan]
    for a, b in coarse.forward:
        near[a][b] = near[b][a] = None
    around = [tuple(row) for row in near]
    movable = [g for g, row in enumerate(coarse.allowed) if len(row) > 1]

    def move(cluster: int, device: int) -> float:
        change = 0.0
        for part, late in halves.parts[cluster]:
            there = halves.twin[device] if late else device
            out, into = state.change(part, there)
            calls.move(part, there, out, into)
            change += out + into
        return change

    draw = random.random
    while movable and not budget.spent:
        scale = hot * (cold / hot) ** budget.fraction * min(best, total)
        for _ in range(STRIDE):
            cluster = movable[int(draw() * len(movable))]
            here, kind, row = plan[cluster], draw(), around[cluster]
            allowed, size = coarse.allowed[cluster], coarse.size_bytes[cluster]
            if row and kind < NEAR:
                there = plan[row[int(draw() * len(row))]]
            elif kind < NEAR + TO_HOST and pool >= 0:
                there = pool
            else:
                there = allowed[int(draw() * len(allowed))]
            if here == there or size > room[there] or there not in allowed:
                continue
            change = move(cluster, there)
            rest = weight * (total + change)
            value = calls.latency(cost - scale * log(1.0 - draw()) - rest)
            if value == inf:
                move(cluster, here)
                continue
            plan[cluster], cost, total = there, value + rest, total + change
            room[here] += size
            room[there] -= size
            if value < best * (1 - 1e-12) and halves.are_cut(state.device):
                best, best_plan = value, list(plan)
        budget.spend(STRIDE * 8)
    return best_plan
