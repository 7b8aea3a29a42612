"""How firmly two groups hang together: the flow between them, near by.

    +--- b ---+
    a         d --- e         every net costs 1
    +--- c ---+
                              a-b 2    b-d 2    d-e 1: merge the ring, cut before e

A device pays for a border what the cut costs, not what one net costs. Where all nets
cost much the same, their costs say nothing about good borders, and the flow does.
"""

from collections.abc import Sequence

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.problem import Problem

__all__ = ["Link", "strong_links"]

Link = tuple[float, int, int]
"""(cost, group, group)."""

REACH = 100
NEGLIGIBLE = 0.02


def strong_links(problem: Problem, limit: Budget) -> list[Link]:
    """Return the ends of every net and about what the cheapest cut between them costs.

    The flow goes by short ways that each meet at most about `REACH` groups, and is
    never taken back, so it is at most the cut. Once the `limit` is spent, it is that of
    the nets which both ends share. O(ends x `REACH` x nets of a group).
    """
    ways = _Ways(problem)
    known: dict[tuple[int, int], float] = {}
    for net in problem.nets:
        a = net.producer
        for b in net.consumers:
            pair = (a, b) if a < b else (b, a)
            if pair not in known:
                known[pair] = ways.flow(a, b, detours=not limit.spent)
                limit.spend(1)
    return [(flow, a, b) for (a, b), flow in known.items()]


class _Ways:
    """Nets as pipes of limited width, whatever the number of their ends."""

    def __init__(self, problem: Problem) -> None:
        self._pins = [(net.producer, *net.consumers) for net in problem.nets]
        self._ends = [frozenset(pins) for pins in self._pins]
        self._width = [max(net.seconds) for net in problem.nets]
        self._nets: list[list[int]] = [[] for _ in range(problem.group_count)]
        for net, pins in enumerate(self._pins):
            for pin in pins:
                self._nets[pin].append(net)
        width = self._width
        self._most = [sum([width[net] for net in nets]) for nets in self._nets]
        self._least = NEGLIGIBLE * sum(width) / max(1, len(width))
        self._open = [
            cost > self._least and len(pins) <= REACH
            for cost, pins in zip(width, self._pins, strict=True)
        ]

    def flow(self, a: int, b: int, *, detours: bool) -> float:
        """Return the flow from `a` to `b`, at first by the nets that both share."""
        if len(self._nets[a]) > len(self._nets[b]):
            a, b = b, a
        left = {net: 0.0 for net in self._nets[a] if b in self._ends[net]}
        total = sum([self._width[net] for net in left])
        most = min(self._most[a], self._most[b]) - self._least
        while detours and total < most:
            way = self._way(a, b, left)
            if not way:
                break
            amount = min([left.get(net, self._width[net]) for net in way])
            for net in way:
                left[net] = left.get(net, self._width[net]) - amount
            total += amount
        return total

    def _way(self, a: int, b: int, left: dict[int, float]) -> Sequence[int]:
        """Return the nets of a short way that has room; none if `b` is not found."""
        nets, pins = self._nets, self._pins
        came = {a: (a, -1)}
        queue, seen = [a], {net for net, room in left.items() if room <= self._least}
        for group in queue:
            for net in nets[group]:
                if net in seen or not self._open[net]:
                    continue
                seen.add(net)
                fresh = [pin for pin in pins[net] if pin not in came]
                came.update(dict.fromkeys(fresh, (group, net)))
                queue += fresh
                if b in came or len(queue) > REACH:
                    break
            if b in came or len(queue) > REACH:
                break
        way = []
        while b != a and b in came:
            b, net = came[b]
            way.append(net)
        return way
