"""Searches in plain Python: small plans never wait for a compiler.

branch and bound   over all assignments, for problems so small that it ends. Groups are
                   assigned from the largest on (Land and Doig 1960); of equal devices
                   only the first unused one is tried.
packing            starts that have room: next fit (Johnson 1973) along a topological
                   order or, where groups are few, branch and bound over the fullest
                   device.

Sums of bytes leave out what is only there for a while, so the simulator's peaks correct
the room of each device.
"""

from collections.abc import Callable, Iterable
from math import inf

import numpy as np

from splitnet.planner.bounds import CriticalPath, cost_per_device
from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.load_graph import Floats, Ints, cut_size
from splitnet.planner.partitioning import running_order
from splitnet.planner.problem import Problem, equivalent_devices, single_devices

_STEPS = 1_000_000
"""How long a search may take; it ends early if it comes forward too slowly for that."""

_FEW_GROUPS = 12
"""Groups up to which it goes on as long as nothing fits."""


class BranchAndBound:
    """The best of all assignments, O(devices ** groups) at worst.

    Attributes:
        place: The best assignment found.
        value: Its value with the cut penalty; infinite if nothing is feasible.
        complete: Whether no assignment has a smaller value.
    """

    def __init__(
        self,
        problem: Problem,
        objective: str,
        value_of: Callable[[Ints], float],
        budget: Budget,
    ) -> None:
        """Values are those of `value_of`: infinite for an assignment to refuse."""
        graph, groups = problem.graph, problem.group_count
        self.problem, self.value_of, self.budget = problem, value_of, budget
        self.kind = graph.kind.tolist()
        self.capacity: list[float] = (graph.capacity_bytes * (1 + 1e-12)).tolist()
        self.size_bytes: list[float] = graph.size_bytes.tolist()
        cost = cost_per_device(problem, objective)
        self.cost: list[list[float]] = cost.tolist()
        self.allowed = [np.flatnonzero(row).tolist() for row in graph.allowed]
        start = graph.apart_start
        self.apart = [
            set(graph.apart[start[g] : start[g + 1]].tolist()) for g in range(groups)
        ]
        self.nets = [
            (graph.net_pins[first:last].tolist(), weight, seconds)
            for first, last, weight, seconds in zip(
                graph.net_start,
                graph.net_start[1:],
                graph.net_weight.tolist(),
                graph.net_seconds.tolist(),
            )
        ]
        self.paid = objective == "throughput"
        self.path = CriticalPath(problem) if objective == "latency" else None
        self.equal = equivalent_devices(problem)
        least = cost.min(axis=1)
        free = graph.allowed.sum(axis=1) > 1
        self.order = sorted(range(groups), key=lambda g: (free[g], -least[g], g))
        rest = np.cumsum([0.0, *(least[g] for g in reversed(self.order))])
        self.rest: list[float] = rest[::-1].tolist()
        self.assigned = [-1] * groups
        self.place, self.value, self.complete = np.zeros(groups, np.int64), inf, True
        self.done = 0.0  # about the fraction of the tree that is searched
        self.began = budget.spent
        self.node_steps = 5 + len(graph.net_pins) / 3
        if self.path is not None:
            self.node_steps += 0.4 * self.path.size
        units = len(problem.group_of_unit)
        self.leaf_steps = 20 + (60 if objective == "memory" else 30) * units

    def search(self, starts: Iterable[Ints]) -> None:
        """Try single devices, the starts, and then all assignments that may be better.

        Ends early with the budget, or where the tree is too large for it.
        """
        for start in (*single_devices(self.problem), *starts):
            self._evaluate(start)
        self._assign(0, 1.0)

    def _evaluate(self, place: Ints) -> None:
        self.budget.spend(self.leaf_steps)
        value = self.value_of(place)
        if value < inf:
            cuts = cut_size(self.problem.graph, place)
            value *= 1 + self.problem.cut_penalty * cuts
        if value < self.value:
            self.value, self.place = value, place
            self.budget.report(value)

    def _assign(self, depth: int, share: float) -> None:
        """Assign the group at this depth in every way that may be better.

        `share` is about the fraction of the tree that is below this node.
        """
        self.budget.spend(self.node_steps)
        part, depths = (self.budget.spent - self.began) / _STEPS, len(self.order)
        slow = self.done < 0.5 * part - 0.02
        hopeless = part > 1 or (slow and (self.value < inf or depths > _FEW_GROUPS))
        if not self.complete or not self.budget.left or hopeless:
            self.complete = False
            return
        options: list[int] = []
        if self._bound(depth) < self.value * (1 - 1e-9):
            if depth == len(self.order):
                self._evaluate(np.array(self.assigned, np.int64))
            else:
                options = self._options(self.order[depth])
        for device in options:
            self.assigned[self.order[depth]] = device
            self._assign(depth + 1, share / len(options))
            self.assigned[self.order[depth]] = -1
        if not options:
            self.done += share

    def _options(self, group: int) -> list[int]:
        """Devices that a group may use now, the least loaded first."""
        load, used = [0.0] * len(self.kind), [0.0] * len(self.kind)
        for other, device in enumerate(self.assigned):
            if device >= 0:
                load[device] += self.cost[other][device]
                used[device] += self.size_bytes[other]
        taken, unused, found = set(self.assigned), set(), []
        refused = {self.assigned[other] for other in self.apart[group]}
        for d in self.allowed[group]:
            if d not in taken and self.equal[d] in unused:
                continue
            if d in refused or used[d] + self.size_bytes[group] > self.capacity[d]:
                continue
            if d not in taken:
                unused.add(self.equal[d])
            found.append(d)
        return sorted(found, key=lambda d: (load[d] + self.cost[group][d], d))

    def _bound(self, depth: int) -> float:
        """What no assignment of the other groups can be below."""
        load, cuts = [0.0] * len(self.kind), 0
        for group, device in enumerate(self.assigned):
            if device >= 0:
                load[device] += self.cost[group][device]
        for pins, weight, seconds in self.nets:
            here = {self.assigned[pin] for pin in pins} - {-1}
            if len(here) > 1:
                cuts += weight * (len(here) - 1)
                if self.paid:
                    for device in here:
                        load[device] += seconds[self.kind[device]]
        value = max(*load, (sum(load) + self.rest[depth]) / len(load))
        if self.path is not None:
            value = max(value, self.path.length(self.assigned))
        return value * (1 + self.problem.cut_penalty * cuts)


_ROUNDS, _ROUND_STEPS = 12, 200_000
"""How often the room is corrected by the peaks, a simulation each; steps for that."""

_MOST_BALANCED, _NODES = 100, 5_000
"""Groups for which the fullest device is made as empty as possible; nodes for that."""


def packed(problem: Problem, budget: Budget) -> Ints | None:
    """Groups in running order on the fastest devices; None if one device has room.

    What has no room on any device is where there is most, so the assignment may break
    a constraint. O(groups x devices) and some simulations, even without time.
    """
    graph = problem.graph
    capacity = graph.capacity_bytes
    seconds = graph.seconds.sum(axis=0)[graph.kind]
    fastest = int(np.lexsort((-capacity, seconds))[0])
    single = np.where(graph.allowed[:, fastest], fastest, graph.allowed.argmax(axis=1))
    if np.all(problem.held_bytes(single) <= capacity):
        return None
    line = np.lexsort((np.arange(len(capacity)), -capacity, seconds)).tolist()
    groups = range(problem.group_count)
    rows = [
        [items[start[g] : start[g + 1]].tolist() for g in groups]
        for start, items in (
            (graph.predecessor_start, graph.predecessors),
            (graph.successor_start, graph.successors),
        )
    ]
    order = running_order(*rows)
    order += sorted(set(groups) - set(order))  # those on a cycle
    best, least, each = single, np.inf, 30 * len(problem.group_of_unit)
    for fill in (_next_fit, _balanced)[: 1 + (len(order) <= _MOST_BALANCED)]:
        room = capacity.copy()
        for _ in range(max(1, min(_ROUNDS, _ROUND_STEPS // max(1, each)))):
            budget.spend(each)
            place = fill(problem, order, line, room)
            held = problem.held_bytes(place)
            full = float((held / np.maximum(capacity, 1.0)).max())
            if full < least:
                best, least = place, full
            if full <= 1.0:
                return best
            scale = 0.97 * capacity / np.maximum(held, 1.0)
            room = np.where(held > capacity, scale * room, room)
    return best


def _next_fit(
    problem: Problem, order: list[int], line: list[int], room: Floats
) -> Ints:
    """Next fit: a group goes where the one before it went, or on along the line."""
    graph = problem.graph
    allowed, sizes = graph.allowed.tolist(), graph.size_bytes.tolist()
    start, apart = graph.apart_start.tolist(), graph.apart.tolist()
    place, left, at = [-1] * len(order), room.tolist(), 0
    for group in order:
        others = {place[other] for other in apart[start[group] : start[group + 1]]}
        may = [d for d in line if allowed[group][d] and d not in others]
        fits = [i for i, d in enumerate(line) if d in may and left[d] >= sizes[group]]
        ahead = [i for i in fits if i >= at] or fits
        if ahead:
            device = line[ahead[0]]
            if len(may) > 1:
                at = ahead[0]
        else:
            device = max(may or line, key=left.__getitem__)
        place[group] = device
        left[device] -= sizes[group]
    return np.array(place, np.int64)


def _balanced(
    problem: Problem, order: list[int], line: list[int], room: Floats
) -> Ints:
    """Fill the fullest device least: the best of all assignments, if groups are few.

    Branch and bound; what it tries first is largest first, where most is left (Graham
    1969). Of devices that are equally full only the first is tried.
    """
    graph = problem.graph
    sizes, allowed = graph.size_bytes.tolist(), graph.allowed
    start, apart = graph.apart_start.tolist(), graph.apart.tolist()
    order = sorted(order, key=lambda group: (-sizes[group], group))
    place, used = [-1] * len(order), [0.0] * len(line)
    best, least, nodes = np.zeros(len(order), np.int64), np.inf, 0

    def assign(depth: int, full: float) -> None:
        nonlocal best, least, nodes
        nodes += 1
        if depth == len(order):
            best, least = np.array(place, np.int64), full
            return
        group = order[depth]
        size = sizes[group]
        others = {place[other] for other in apart[start[group] : start[group + 1]]}
        options = {
            (max(full, (used[d] + size) / max(room[d], 1.0)), used[d], room[d]): d
            for d in reversed(line)
            if allowed[group, d] and d not in others
        }
        for (fuller, _, _), device in sorted(options.items()):
            if fuller >= least or (nodes > _NODES and least < np.inf):
                return
            place[group] = device
            used[device] += size
            assign(depth + 1, fuller)
            used[device] -= size
        place[group] = -1

    assign(0, 0.0)
    return best
