"""Call latency under single moves: the inner loop of the latency search.

Clusters of groups move; what waits is a finer *atom*: a chain of nodes of one cluster
in which every node has one successor and one predecessor, so that running it as one
piece on the host changes nothing. A unit of the schedule is an accelerator (one call
with all its atoms) or one atom on the host.
"""

from collections.abc import Sequence
from math import inf

from splitnet.planner.search.latency import topological
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.state import Fixed, State

__all__ = ["CallGraph", "CallState"]


class CallGraph:
    """Atoms, their edges and their clusters; does not change with the assignment."""

    __slots__ = (
        "after",
        "around",
        "atoms",
        "before",
        "fixed",
        "hearers",
        "host",
        "owner",
        "pool",
        "senders",
        "slowest",
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
        self.senders = [self._outside(inside, self.before) for inside in self.atoms]
        self.hearers = [self._outside(inside, self.after) for inside in self.atoms]
        self.slowest = [
            max([self.host[a] for a in row], default=0.0) for row in self.atoms
        ]

    def _around(self, atoms: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the clusters that send to a cluster, and those that hear from it."""
        own = self.owner[atoms[0]] if atoms else -1
        before = {self.owner[b]: None for a in atoms for b in self.before[a]}
        after = {self.owner[b]: None for a in atoms for b in self.after[a]}
        before.pop(own, None)
        after.pop(own, None)
        return tuple(before), tuple(after)

    def _outside(
        self, atoms: Sequence[int], edges: Sequence[Sequence[int]]
    ) -> tuple[int, ...]:
        """Return the atoms of other clusters at the far end of these edges."""
        owner = self.owner
        ends = [b for a in atoms for b in edges[a] if owner[b] != owner[a]]
        return tuple(dict.fromkeys(ends))


class CallState:
    """An assignment of clusters with its latency, changed by `move`.

    `pending` counts the edges that a unit waits for; `out` counts, per accelerator, its
    edges to every other unit, so that a finished call is passed on in as many steps as
    it has followers, however many atoms it holds.
    """

    __slots__ = (
        "_order",
        "_rest",
        "_start",
        "_stop",
        "graph",
        "held",
        "out",
        "pending",
        "state",
        "unit",
    )

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
        self._order: list[int] = []
        self._start = self._stop = self._rest = [0.0] * len(self.pending)
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
        if seen < len(unit):
            return inf
        self._order, self._start = ready, start
        return last

    def settle(self) -> None:
        """Note when every unit stops and what follows, as the last `latency` found."""
        graph, unit, load = self.graph, self.unit, self.state.load
        width, start = graph.fixed.devices, self._start
        rest, stop = [0.0] * len(start), list(start)
        for here in reversed(self._order):
            if here >= width:
                seconds = graph.host[here - width]
                follow = [rest[unit[target]] for target in graph.after[here - width]]
            else:
                seconds, follow = load[here], [rest[there] for there in self.out[here]]
            rest[here] = seconds + max(follow, default=0.0)
            stop[here] += seconds
        self._stop, self._rest = stop, rest

    def forecast(self, cluster: int, target: int, old: float, new: float) -> float:
        """Return about the least latency after a move, from what `settle` noted.

        It may be too high where the cluster's old unit then starts earlier; `old`, by
        which that is shorter, is granted in full. O(edges of the cluster).
        """
        graph, unit, stop, rest = self.graph, self.unit, self._stop, self._rest
        here = self.state.device[cluster]
        begin, seconds, after = 0.0, graph.slowest[cluster], 0.0
        if target != graph.pool:
            load = self.state.load[target]
            begin, seconds, after = self._start[target], load + new, rest[target] - load
        shorter = here != graph.pool
        for atom in graph.senders[cluster]:
            where = unit[atom]
            if where == target:
                shorter = True
            elif where != here and stop[where] > begin:
                begin = stop[where]
        for atom in graph.hearers[cluster]:
            where = unit[atom]
            if where == target:
                shorter = True
            elif where != here and rest[where] > after:
                after = rest[where]
        return begin + seconds + after + (min(0.0, old) if shorter else 0.0)


def _less(row: dict[int, int], unit: int) -> None:
    """Count one edge less."""
    if row[unit] == 1:
        del row[unit]
    else:
        row[unit] -= 1
