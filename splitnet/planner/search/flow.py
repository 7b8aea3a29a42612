"""Maximum flow with real capacities, for many minimum cuts in one network."""

from math import inf

from splitnet.planner.search.clock import Budget

__all__ = ["FlowNetwork"]


class FlowNetwork:
    """A network with one sink; every query names its own source.

    Dinic's algorithm (1970): O(nodes^2 x arcs) at worst, near linear on the shallow
    networks met here. Capacities are floats; residues under one part in 1e12 of the
    largest finite capacity count as none, which can only raise the reported cut's
    distance to the flow by as much. The value returned is the *flow*, a lower bound.
    """

    def __init__(self, nodes: int, sink: int) -> None:
        """Start with `nodes` nodes and no arcs."""
        self._sink = sink
        self._arcs: list[list[int]] = [[] for _ in range(nodes)]
        self._head: list[int] = []
        self._capacity: list[float] = []
        self._largest = 0.0

    def node(self) -> int:
        """Add a node and return its number."""
        self._arcs.append([])
        return len(self._arcs) - 1

    def arc(self, tail: int, head: int, forth: float, back: float) -> None:
        """Add an arc with capacity `forth`, and `back` in the other direction."""
        self._arcs[tail].append(len(self._head))
        self._head.append(head)
        self._capacity.append(forth)
        self._arcs[head].append(len(self._head))
        self._head.append(tail)
        self._capacity.append(back)
        if forth < inf:
            self._largest = max(self._largest, forth)

    def minimum_cut(
        self, source: int, *, limit: Budget
    ) -> tuple[float, list[int] | None]:
        """Return the flow from `source` and the nodes on its side (None: no time)."""
        room = list(self._capacity)
        small = self._largest * 1e-12
        total = 0.0
        while True:
            if limit.spent:
                return 0.0, None
            level = self._levels(source, room, small)
            if level[self._sink] < 0:
                inside = [node for node, depth in enumerate(level) if depth >= 0]
                return total, [n for n in inside if n < self._sink]
            total += self._blocking_flow(source, room, level, small)

    def _levels(self, source: int, room: list[float], small: float) -> list[int]:
        level = [-1] * len(self._arcs)
        level[source] = 0
        queue = [source]
        head, arcs, sink = self._head, self._arcs, self._sink
        for node in queue:
            depth = level[node] + 1
            for arc in arcs[node]:
                other = head[arc]
                if level[other] < 0 and room[arc] > small:
                    level[other] = depth
                    if other != sink:
                        queue.append(other)
        return level

    def _blocking_flow(
        self, source: int, room: list[float], level: list[int], small: float
    ) -> float:
        head, arcs, sink = self._head, self._arcs, self._sink
        following = [0] * len(arcs)
        path: list[int] = []
        node, total = source, 0.0
        while True:
            if node == sink:
                amount = min(room[arc] for arc in path)
                total += amount
                cut = len(path)
                for index in range(len(path) - 1, -1, -1):
                    arc = path[index]
                    room[arc] -= amount
                    room[arc ^ 1] += amount
                    if room[arc] <= small:
                        cut = index
                node = head[path[cut] ^ 1]
                del path[cut:]
                continue
            row, position = arcs[node], following[node]
            while position < len(row):
                arc = row[position]
                if room[arc] > small and level[head[arc]] == level[node] + 1:
                    break
                position += 1
            following[node] = position
            if position < len(row):
                path.append(row[position])
                node = head[row[position]]
                continue
            level[node] = -1
            if not path:
                return total
            node = head[path.pop() ^ 1]
