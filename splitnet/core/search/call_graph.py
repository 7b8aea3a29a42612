"""Call latency under single moves: the inner loop of the latency search.

Clusters of groups move; what waits is a finer *atom*: a chain of nodes of one cluster
in which every node has one successor and one predecessor, so that running it as one
piece on the host changes nothing. A unit of the schedule is an accelerator (one call
with all its atoms) or one atom on the host.
"""

from collections.abc import Sequence
from math import inf
from random import Random

from splitnet.core.search.contract import contract
from splitnet.core.search.latency import topological
from splitnet.core.search.problem import Problem
from splitnet.core.search.state import Fixed, State

__all__ = ["CallGraph", "CallState", "coarsen_calls"]

NOISE = 0.9


class CallGraph:
    """Atoms, their edges and their clusters; does not change with the assignment."""

    __slots__ = (
        "after",
        "atoms",
        "before",
        "fixed",
        "host",
        "owner",
        "pool",
        "sources",
    )

    def __init__(
        self, coarse: Problem, full: Problem, node_clusters: Sequence[int]
    ) -> None:
        """Contract chains inside clusters; O(nodes + edges)."""
        self.fixed = Fixed(coarse)
        devices = coarse.devices
        self.pool = next((i for i, d in enumerate(devices) if d.pooled), -1)
        kind = devices[self.pool].kind if self.pool >= 0 else 0
        nodes = full.nodes
        atom = [-1] * len(nodes.group)
        self.owner: list[int] = []
        self.host: list[float] = []
        for node in topological(full):
            cluster = node_clusters[node]
            sources = nodes.predecessors[node]
            if (
                len(sources) == 1
                and len(nodes.successors[sources[0]]) == 1
                and node_clusters[sources[0]] == cluster
            ):
                atom[node] = atom[sources[0]]
                self.host[atom[node]] += nodes.seconds[node][kind]
                continue
            atom[node] = len(self.owner)
            self.owner.append(cluster)
            self.host.append(nodes.seconds[node][kind])
        count = len(self.owner)
        after: list[dict[int, None]] = [{} for _ in range(count)]
        before: list[dict[int, None]] = [{} for _ in range(count)]
        for node, targets in enumerate(nodes.successors):
            for target in targets:
                if atom[target] != atom[node]:
                    after[atom[node]][atom[target]] = None
                    before[atom[target]][atom[node]] = None
        self.after = [tuple(row) for row in after]
        self.before = [tuple(row) for row in before]
        self.sources = [index for index, row in enumerate(before) if not row]
        self.atoms: list[list[int]] = [[] for _ in range(coarse.group_count)]
        for index, cluster in enumerate(self.owner):
            self.atoms[cluster].append(index)


class CallState:
    """An assignment of clusters with its latency, changed by `move`."""

    __slots__ = ("graph", "held", "members", "pending", "state", "unit")

    def __init__(self, graph: CallGraph, assignment: Sequence[int]) -> None:
        """Count the edges between units; O(atoms + edges)."""
        self.graph = graph
        self.state = State(graph.fixed, assignment)
        width, pool = graph.fixed.devices, graph.pool
        self.members: list[list[int]] = [[] for _ in range(width)]
        self.held = [0] * width
        self.unit = [
            width + atom if assignment[cluster] == pool else assignment[cluster]
            for atom, cluster in enumerate(graph.owner)
        ]
        for cluster, device in enumerate(assignment):
            self.members[device].append(cluster)
            self.held[device] += len(graph.atoms[cluster])
        self.pending = [0] * (width + len(graph.owner))
        for atom, targets in enumerate(graph.after):
            for target in targets:
                if self.unit[target] != self.unit[atom]:
                    self.pending[self.unit[target]] += 1

    def move(self, cluster: int, target: int) -> float:
        """Move a cluster; return the change of the sum of all loads."""
        graph, unit, pending = self.graph, self.unit, self.pending
        source = self.state.device[cluster]
        old, new = self.state.change(cluster, target)
        self.state.move(cluster, target, old, new)
        atoms = graph.atoms[cluster]
        width, host = graph.fixed.devices, target == graph.pool
        for atom in atoms:
            here, there = unit[atom], width + atom if host else target
            for other in graph.before[atom]:
                from_unit = unit[other]
                if from_unit != here:
                    pending[here] -= 1
                if from_unit != there:
                    pending[there] += 1
            for other in graph.after[atom]:
                to_unit = unit[other]
                if to_unit != here:
                    pending[to_unit] -= 1
                if to_unit != there:
                    pending[to_unit] += 1
            unit[atom] = there
        self.members[source].remove(cluster)
        self.members[target].append(cluster)
        self.held[source] -= len(atoms)
        self.held[target] += len(atoms)
        return old + new

    def latency(self, limit: float = inf) -> float:
        """Return the latency; infinite above `limit` or when calls wait in a circle.

        O(atoms + edges), one pass over the units in topological order.
        """
        graph, unit, load = self.graph, self.unit, self.state.load
        after, host, atoms = graph.after, graph.host, graph.atoms
        width, pool = graph.fixed.devices, graph.pool
        pending = self.pending.copy()
        start = [0.0] * len(pending)
        ready = [unit[atom] for atom in graph.sources if unit[atom] >= width]
        for device, number in enumerate(self.held):
            if number and device != pool and not pending[device]:
                ready.append(device)
        last, seen = 0.0, 0
        for here in ready:
            if here >= width:
                atom = here - width
                seen += 1
                stop = start[here] + host[atom]
                if stop > limit:
                    return inf
                if stop > last:
                    last = stop
                for target in after[atom]:
                    there = unit[target]
                    if stop > start[there]:
                        start[there] = stop
                    left = pending[there] - 1
                    pending[there] = left
                    if not left:
                        ready.append(there)
                continue
            stop = start[here] + load[here]
            if stop > limit:
                return inf
            if stop > last:
                last = stop
            seen += self.held[here]
            for cluster in self.members[here]:
                for atom in atoms[cluster]:
                    for target in after[atom]:
                        there = unit[target]
                        if there == here:
                            continue
                        if stop > start[there]:
                            start[there] = stop
                        left = pending[there] - 1
                        pending[there] = left
                        if not left:
                            ready.append(there)
        return last if seen == len(unit) else inf


def coarsen_calls(
    problem: Problem,
    target: int,
    random: Random,
    room: float,
    *,
    keep: Sequence[int],
) -> tuple[Problem, list[int]]:
    """Merge ends of expensive edges, never closing a circle, until `target` are left.

    An edge merges if it is the only one out of its source or the only one into its
    target: then no other path joins the two. Only groups with equal numbers in `keep`
    merge, and none past `room` bytes. O(rounds x edges log edges).
    """
    after, before = _weighted_edges(problem)
    count = left = problem.group_count
    size, parent = list(problem.size_bytes), list(range(count))
    while left > target:
        ranked = sorted(
            (-weight * (1 + NOISE * (2 * random.random() - 1)), a, b)
            for a, row in enumerate(after)
            for b, weight in row.items()
        )
        merged = 0
        for _, a, b in ranked:
            if left - merged <= target:
                break
            if b not in after[a] or (len(after[a]) > 1 and len(before[b]) > 1):
                continue
            if size[a] + size[b] > room or keep[a] != keep[b]:
                continue
            if problem.allowed[a] != problem.allowed[b]:
                continue
            size[a] += size[b]
            parent[b] = a
            _absorb(after, before, a, b)
            merged += 1
        left -= merged
        if not merged:
            break
    numbers: dict[int, int] = {}
    cluster = []
    for group in range(count):
        while parent[group] != group:
            group = parent[group]
        cluster.append(numbers.setdefault(group, len(numbers)))
    return contract(problem, cluster), cluster


Weights = list[dict[int, float]]


def _weighted_edges(problem: Problem) -> tuple[Weights, Weights]:
    after: Weights = [{} for _ in range(problem.group_count)]
    before: Weights = [{} for _ in range(problem.group_count)]
    for a, b in problem.forward:
        after[a][b] = before[b][a] = 0.0
    for net in problem.nets:
        share = max(net.seconds) / len(net.consumers)
        for consumer in net.consumers:
            if consumer in after[net.producer]:
                after[net.producer][consumer] += share
                before[consumer][net.producer] += share
    return after, before


def _absorb(after: Weights, before: Weights, a: int, b: int) -> None:
    """Hang all edges of b on a."""
    del after[a][b]
    for other, weight in after[b].items():
        after[a][other] = before[other][a] = after[a].get(other, 0.0) + weight
        del before[other][b]
    for other, weight in before[b].items():
        if other != a:
            before[a][other] = after[other][a] = before[a].get(other, 0.0) + weight
            del after[other][b]
    after[b], before[b] = {}, {}
