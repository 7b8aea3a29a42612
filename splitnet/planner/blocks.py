"""Merge units that belong together, so that a search has few things to move.

Calls in a row are cheap to keep together and dear to part. Units joined by an edge
u -> v are merged while

    - u feeds nobody but v, or v is fed by nobody but u: then no other path leads from u
      to v, and the graph of blocks stays without a cycle;
    - both may use the same devices;
    - the block stays lighter than a limit, so that enough blocks are left to balance.

Any assignment of blocks, spread over their groups, keeps the same promises.
"""

from collections.abc import Sequence
from dataclasses import replace

from splitnet.planner.board import Assignment, Board
from splitnet.planner.contraction import contract

__all__ = ["Blocks", "blocks_of"]


class Blocks:
    """A coarser board; `expand` turns its assignments into the finer board's."""

    def __init__(self, board: Board, block_of_group: Sequence[int]) -> None:
        self.board = board
        self.block_of_group = block_of_group

    def expand(self, chosen: Assignment) -> Assignment:
        """The device of every group of the finer board."""
        return tuple(chosen[block] for block in self.block_of_group)

    def shrink(self, chosen: Assignment) -> Assignment:
        """The device of every block: that of its first group."""
        found: dict[int, int] = {}
        for group, block in enumerate(self.block_of_group):
            found.setdefault(block, chosen[group])
        return tuple(found[block] for block in range(self.board.group_count))


def blocks_of(board: Board, limit_seconds: float) -> Blocks | None:
    """Merge units into blocks of at most `limit_seconds` on their fastest device.

    None if nothing merges. O(edges log edges).
    """
    merging = _Merging(board, limit_seconds)
    merging.run()
    return merging.result()


class _Merging:
    def __init__(self, board: Board, limit: float) -> None:
        units = board.units
        self.board, self.limit = board, limit
        count = units.count
        self.head = list(range(count))
        self.group_head = list(range(board.group_count))
        self.before: list[dict[int, None]] = [{} for _ in range(count)]
        self.after: list[dict[int, None]] = [{} for _ in range(count)]
        for net in units.nets:
            for reader in net.readers:
                self.after[net.source][reader] = None
                self.before[reader][net.source] = None
        times = board.units.unit_seconds
        self.seconds = [
            min(times[d][u] for d in board.allowed[g])
            for u, g in enumerate(board.group_of_unit)
        ]
        self.weight = [0.0] * board.group_count
        for unit, group in enumerate(board.group_of_unit):
            self.weight[group] += self.seconds[unit]
        self.foes = {pair for a, b in board.apart for pair in ((a, b), (b, a))}

    def run(self) -> None:
        """Merge edges, those with most bytes first, until none is left to merge."""
        merged = True
        while merged:
            merged = False
            for source, target in self._edges():
                u, v = self._find(source), self._find(target)
                if u != v and v in self.after[u] and self._may(u, v):
                    self._merge(u, v)
                    merged = True

    def _edges(self) -> list[tuple[int, int]]:
        size: dict[tuple[int, int], int] = {}
        for net in self.board.units.nets:
            for reader in net.readers:
                u, v = self._find(net.source), self._find(reader)
                if u != v:
                    size[u, v] = size.get((u, v), 0) + net.bytes
        return sorted(size, key=lambda edge: (-size[edge], edge))

    def _find(self, unit: int) -> int:
        while self.head[unit] != unit:
            self.head[unit] = self.head[self.head[unit]]
            unit = self.head[unit]
        return unit

    def _group(self, unit: int) -> int:
        group = self.board.group_of_unit[unit]
        while self.group_head[group] != group:
            self.group_head[group] = self.group_head[self.group_head[group]]
            group = self.group_head[group]
        return group

    def _may(self, u: int, v: int) -> bool:
        if len(self.after[u]) > 1 and len(self.before[v]) > 1:
            return False
        a, b = self._group(u), self._group(v)
        if a == b:
            return True
        return (
            self.board.allowed[a] == self.board.allowed[b]
            and self.weight[a] + self.weight[b] <= self.limit
            and not self.foes
        )

    def _merge(self, u: int, v: int) -> None:
        """Put v into u."""
        a, b = self._group(u), self._group(v)
        if a != b:
            self.group_head[b] = a
            self.weight[a] += self.weight[b]
        self.head[v] = u
        del self.after[u][v]
        del self.before[v][u]
        for other in self.after[v]:
            del self.before[other][v]
            self.before[other][u] = None
            self.after[u][other] = None
        for other in self.before[v]:
            del self.after[other][v]
            self.after[other][u] = None
            self.before[u][other] = None

    def result(self) -> Blocks | None:
        board = self.board
        count = board.units.count
        order = self._order([u for u in range(count) if self._find(u) == u])
        if len(order) == count:
            return None
        number = {head: i for i, head in enumerate(order)}
        unit_of = [number[self._find(u)] for u in range(count)]
        units = contract(board.units, unit_of, [board.units.names[u] for u in order])
        if units is None:
            return None
        heads = [self._group_of_group(g) for g in range(board.group_count)]
        blocks = {head: i for i, head in enumerate(dict.fromkeys(heads))}
        block_of_group = [blocks[head] for head in heads]
        coarse = replace(
            board,
            units=units,
            unit_of_call=[unit_of[u] for u in board.unit_of_call],
            group_of_unit=[blocks[self._group(u)] for u in order],
            allowed=tuple(board.allowed[head] for head in blocks),
            apart=tuple((block_of_group[a], block_of_group[b]) for a, b in board.apart),
        )
        return Blocks(coarse, block_of_group)

    def _group_of_group(self, group: int) -> int:
        while self.group_head[group] != group:
            group = self.group_head[group]
        return group

    def _order(self, heads: Sequence[int]) -> list[int]:
        """Blocks in an order that may run; ties by their first unit."""
        from heapq import heapify, heappop, heappush

        waits = {head: len(self.before[head]) for head in heads}
        ready = [head for head in heads if not waits[head]]
        heapify(ready)
        order = []
        while ready:
            head = heappop(ready)
            order.append(head)
            for other in self.after[head]:
                waits[other] -= 1
                if not waits[other]:
                    heappush(ready, other)
        return order
