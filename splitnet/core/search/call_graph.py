"""Call latency under single moves: the inner loop of the latency search.

Clusters of groups move; what waits is a finer *atom*: a chain of nodes of one cluster
in which every node has one successor and one predecessor, so that running it as one
piece on the host changes nothing. A unit of the schedule is an accelerator (one call
with all its atoms) or one atom on the host.
"""

from collections.abc import Sequence
from math import inf

from splitnet.core.search.latency import topological
from splitnet.core.search.problem import Problem
from splitnet.core.search.state import Fixed, State

__all__ = ["CallGraph", "CallState"]


class CallGraph:
    """Atoms, their edges and their clusters; does not change with the assignment."""

    __slots__ = (
        "after",
        "around",
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
        self.around = [self._around(inside) for inside in self.atoms]

    def _around(self, atoms: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the clusters that send to a cluster, and those that hear from it."""
        own = self.owner[atoms[0]] if atoms else -1
        before = {self.owner[b]: None for a in atoms for b in self.before[a]}
        after = {self.owner[b]: None for a in atoms for b in self.after[a]}
        before.pop(own, None)
        after.pop(own, None)
        return tuple(before), tuple(after)


class CallState:
    """An assignment of clusters with its latency, changed by `move`.

    `pending` counts the edges that a unit waits for; `out` counts, per accelerator, its
    edges to every other unit, so that a finished call is passed on in as many steps as
    it has followers, however many atoms it holds.
    """

    __slots__ = ("graph", "held", "out", "pending", "state", "unit")

    def __init__(self, graph: CallGraph, assignment: Sequence[int]) -> None:
        """Count the edges between units; O(atoms + edges)."""
        self.graph = graph
        self.state = State(graph.fixed, assignment)
        width, pool = graph.fixed.devices, graph.pool
        self.held = [0] * width
        self.unit = [
            width + atom if assignment[cluster] == pool else assignment[cluster]
            for atom, cluster in enumerate(graph.owner)
        ]
        for cluster, device in enumerate(assignment):
            self.held[device] += len(graph.atoms[cluster])
        self.pending = [0] * (width + len(graph.owner))
        self.out: list[dict[int, int]] = [{} for _ in range(width)]
        for atom, targets in enumerate(graph.after):
            here = self.unit[atom]
            for target in targets:
                there = self.unit[target]
                if there != here:
                    self.pending[there] += 1
                    if here < width:
                        self.out[here][there] = self.out[here].get(there, 0) + 1

    def encloses(self, cluster: int, target: int) -> bool:
        """Whether one call sends to the cluster and hears from it, moved to `target`.

        Then each waits for the other. Other circles only `latency` finds. On the host
        it is so for a cluster of one atom; several need no path from first to last.
        """
        graph, device = self.graph, self.state.device
        before, after = graph.around[cluster]
        if target == graph.pool and len(graph.atoms[cluster]) > 1:
            return False
        senders = [device[other] for other in before]
        for other in after:
            there = device[other]
            if there != target and there != graph.pool and there in senders:
                return True
        return False

    def move(self, cluster: int, target: int, old: float, new: float) -> None:
        """Move a cluster; `old` and `new` are what `state.change` returned."""
        graph, unit, pending, out = self.graph, self.unit, self.pending, self.out
        source = self.state.device[cluster]
        self.state.move(cluster, target, old, new)
        atoms = graph.atoms[cluster]
        width, host = graph.fixed.devices, target == graph.pool
        for atom in atoms:
            here, there = unit[atom], width + atom if host else target
            for other in graph.before[atom]:
                from_unit = unit[other]
                if from_unit != here:
                    pending[here] -= 1
                    if from_unit < width:
                        _less(out[from_unit], here)
                if from_unit != there:
                    pending[there] += 1
                    if from_unit < width:
                        row = out[from_unit]
                        row[there] = row.get(there, 0) + 1
            for other in graph.after[atom]:
                to_unit = unit[other]
                if to_unit != here:
                    pending[to_unit] -= 1
                    if here < width:
                        _less(out[here], to_unit)
                if to_unit != there:
                    pending[to_unit] += 1
                    if there < width:
                        row = out[there]
                        row[to_unit] = row.get(to_unit, 0) + 1
            unit[atom] = there
        self.held[source] -= len(atoms)
        self.held[target] += len(atoms)

    def latency(self, limit: float = inf) -> float:
        """Return the latency; infinite above `limit` or when calls wait in a circle.

        One pass over the units in topological order: O(atoms and edges on the host +
        pairs of units).
        """
        graph, unit, load = self.graph, self.unit, self.state.load
        after, host, out = graph.after, graph.host, self.out
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
            for there, number in out[here].items():
                if stop > start[there]:
                    start[there] = stop
                left = pending[there] - number
                pending[there] = left
                if not left:
                    ready.append(there)
        return last if seen == len(unit) else inf


def _less(row: dict[int, int], unit: int) -> None:
    """Count one edge less."""
    if row[unit] == 1:
        del row[unit]
    else:
        row[unit] -= 1
