"""Branch and bound over all assignments, for problems so small that it ends.

Plain Python: small plans never wait for a compiler. Groups are assigned from the
largest on (Land and Doig 1960); of equal devices only the first unused one is tried.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import factorial, inf

import numpy as np

from splitnet.planner.problem import Ints, Problem, cut_size, equivalent_devices

__all__ = ["Tried", "exhaustive", "is_small"]

_NODES = 50_000


class _Tree:
    """What is fixed while the tree is searched."""

    def __init__(
        self,
        problem: Problem,
        value_of: Callable[[Ints], float],
        bound_rows: Sequence[Sequence[float]],
        leaf_nodes: int,
        late: Callable[[], bool],
    ) -> None:
        graph = problem.graph
        self.problem, self.value_of, self.late = problem, value_of, late
        self.nodes, self.leaf_nodes, self.least = _NODES, leaf_nodes, inf
        self.rows = bound_rows
        self.size_bytes: list[float] = graph.size_bytes.tolist()
        self.capacity: list[float] = (graph.capacity_bytes * (1 + 1e-12)).tolist()
        self.equal = equivalent_devices(problem)
        groups, devices = problem.group_count, problem.device_count
        self.allowed = [
            [d for d in range(devices) if graph.allowed[g, d]] for g in range(groups)
        ]
        self.apart = [
            set(graph.apart[graph.apart_start[g] : graph.apart_start[g + 1]].tolist())
            for g in range(groups)
        ]
        least = [
            min((bound_rows[g][d] for d in self.allowed[g]), default=inf)
            for g in range(groups)
        ]
        self.order = sorted(range(groups), key=lambda g: (-least[g], g))
        self.rest = [0.0]  # least sum of all groups that are not assigned yet
        for group in reversed(self.order):
            self.rest.append(self.rest[-1] + least[group])
        self.rest.reverse()
        self.best, self.best_place = inf, np.zeros(groups, np.int32)
        self.place = [-1] * groups
        self.load, self.used = [0.0] * devices, [0.0] * devices
        self.members: list[list[int]] = [[] for _ in range(devices)]

    def options(self, group: int) -> list[int]:
        """Devices that a group may use now, the least loaded first."""
        found, unused = [], set()
        for d in self.allowed[group]:
            if not self.members[d] and self.equal[d] in unused:
                continue
            if self.used[d] + self.size_bytes[group] > self.capacity[d]:
                continue
            if self.apart[group] and not self.apart[group].isdisjoint(self.members[d]):
                continue
            if not self.members[d]:
                unused.add(self.equal[d])
            found.append(d)
        return sorted(found, key=lambda d: (self.load[d] + self.rows[group][d], d))

    def search(self, depth: int) -> None:
        """Assign the group at this depth in every way that may be better."""
        self.nodes -= 1
        if self.nodes < 0 or self.late():
            self.nodes = -1
            return
        if depth == len(self.order):
            place = np.array(self.place, np.int32)
            self.nodes -= self.leaf_nodes
            value = self.value_of(place)
            self.least = min(self.least, value)
            if self.problem.cut_penalty and value < inf:
                cuts = cut_size(self.problem.graph, place)
                value *= 1 + self.problem.cut_penalty * cuts
            if value < self.best:
                self.best, self.best_place = value, place
            return
        if (sum(self.load) + self.rest[depth]) / len(self.load) >= self.best:
            return
        group = self.order[depth]
        for d in self.options(group):
            seconds = self.rows[group][d]
            if self.load[d] + seconds >= self.best:
                continue
            self.place[group] = d
            self.load[d] += seconds
            self.used[d] += self.size_bytes[group]
            self.members[d].append(group)
            self.search(depth + 1)
            self.members[d].pop()
            self.used[d] -= self.size_bytes[group]
            self.load[d] -= seconds


@dataclass(frozen=True, slots=True, eq=False)
class Tried:
    """The best assignment, the least plain value, and whether all was tried.

    `value` counts the cut penalty; it is infinite if nothing is feasible.
    """

    value: float
    place: Ints
    least: float
    complete: bool


def exhaustive(
    problem: Problem,
    value_of: Callable[[Ints], float],
    bound_rows: Sequence[Sequence[float]],
    *,
    leaf_nodes: int = 1,
    late: Callable[[], bool] = lambda: False,
) -> Tried:
    """The best of all assignments, if they can be tried in about half a second.

    O(devices ** groups) at worst.

    Args:
        problem: What to place.
        value_of: Value without cut penalty; infinite for an assignment to refuse.
        bound_rows: Per group and device, numbers whose sum over the groups of any
            device is never above the value.
        leaf_nodes: How many nodes of the tree take as long as `value_of`.
        late: Whether the time is over.
    """
    tree = _Tree(problem, value_of, bound_rows, leaf_nodes, late)
    tree.search(0)
    return Tried(tree.best, tree.best_place, tree.least, tree.nodes >= 0)


def is_small(problem: Problem, leaf_nodes: int) -> bool:
    """Whether trying all assignments, equivalent devices once, may end in time."""
    count = 1.0
    for row in problem.graph.allowed:
        count *= max(1, int(row.sum()))
    for number in Counter(equivalent_devices(problem)).values():
        count /= factorial(number)
    # Bounds cut off most of the tree where they are tight and evaluations are cheap.
    return count * leaf_nodes <= 10 * _NODES or (leaf_nodes < 10 and count < 1e9)
