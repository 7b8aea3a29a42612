"""Searches in plain Python: small plans never wait for a compiler.

branch and bound   Over all assignments (Land and Doig 1960), from the largest group on;
                   of equal devices only the first unused one is tried.
packing            A start that has room: next fit (Johnson 1973) along a topological
                   order. Peaks of the simulator correct the room of each device.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from splitnet.planner import load_graph
from splitnet.planner import problem as problems
from splitnet.planner.bounds import CriticalPath, cost_per_device
from splitnet.planner.engine.budget import Budget
from splitnet.planner.load_graph import Floats, Ints, LoadGraph
from splitnet.planner.problem import Problem

# How long a tree is searched, which ends early if it comes forward too slowly for that;
# groups up to which it goes on as long as nothing fits.
_STEPS, _FEW_GROUPS = 1_000_000, 12
# How often the room is corrected by the peaks, a simulation each; steps for that.
_ROUNDS, _ROUND_STEPS = 12, 200_000
_NEVER = 1e30  # seconds of a group where it may not be


class BranchAndBound:
    """The best of all assignments, O(devices ** groups) at worst.

    `value` is that of `place` with the cut penalty, infinite if nothing is feasible;
    `complete` says that no assignment has a smaller one.
    """

    def __init__(self, problem: Problem, objective: str, budget: Budget) -> None:
        graph, groups = problem.graph, problem.group_count
        self.problem, self.objective, self.budget = problem, objective, budget
        self.capacity: list[float] = (graph.capacity_bytes * (1 + 1e-12)).tolist()
        self.size_bytes: list[float] = graph.size_bytes.tolist()
        cost = cost_per_device(problem, objective)
        self.cost: list[list[float]] = cost.tolist()
        self.allowed = [np.flatnonzero(row).tolist() for row in graph.allowed]
        self.apart = load_graph.lists_of(graph.apart_start, graph.apart)
        pins = load_graph.lists_of(graph.net_start, graph.net_pins)
        pays = graph.net_seconds[:, graph.kind] * (objective == "throughput")
        self.nets = list(zip(pins, graph.net_weight.tolist(), pays.tolist()))
        self.path = CriticalPath(problem) if objective == "latency" else None
        self.equal = problems.equivalent_devices(problem)
        least, free = cost.min(axis=1), graph.allowed.sum(axis=1) > 1
        self.order = sorted(range(groups), key=lambda g: (free[g], -least[g], g))
        rest = least[self.order[::-1]].cumsum()[::-1]  # of the groups from each one on
        self.rest: list[float] = [*rest.tolist(), 0.0]
        self.assigned = [-1] * groups
        self.place, self.value, self.complete = np.zeros(groups, np.int64), inf, True
        self.done = 0.0  # about the fraction of the tree that is searched
        self.began = budget.spent
        arcs = self.path.arcs if self.path else []
        path = len(arcs) + sum(map(len, arcs))
        self.node_steps = 5 + len(graph.net_pins) / 3 + 0.4 * path
        units = len(problem.group_of_unit)
        self.leaf_steps = 20 + (60 if objective == "memory" else 30) * units

    def search(self, starts: Iterable[Ints]) -> None:
        """Try single devices, the starts, and, within budget, what may be better."""
        for start in (*problems.single_devices(self.problem), *starts):
            self._evaluate(start)
        self._assign(0, 1.0)

    def _evaluate(self, place: Ints) -> None:
        self.budget.spend(self.leaf_steps)
        cuts = load_graph.cut_size(self.problem.graph, place)
        value = problems.value_of(self.problem, self.objective, place)
        value *= 1 + self.problem.cut_penalty * cuts
        if value < self.value:
            self.value, self.place = value, place
            self.budget.report(value)

    def _assign(self, depth: int, share: float) -> None:
        """Assign the group at this depth; about this share of the tree is below it."""
        self.budget.spend(self.node_steps)
        part, depths = (self.budget.spent - self.began) / _STEPS, len(self.order)
        slow = self.done < 0.5 * part - 0.02
        hopeless = part > 1 or (slow and (self.value < inf or depths > _FEW_GROUPS))
        if not self.complete or not self.budget.left or hopeless:
            self.complete = False
            return
        load, used = [0.0] * len(self.capacity), [0.0] * len(self.capacity)
        for group, device in enumerate(self.assigned):
            if device >= 0:
                load[device] += self.cost[group][device]
                used[device] += self.size_bytes[group]
        options = dict[int, int]()  # by device that is used, or sort of device
        group = self.order[min(depth, depths - 1)]
        size, cost = self.size_bytes[group], self.cost[group]
        better = self._bound(load.copy(), self.rest[depth]) < self.value * (1 - 1e-9)
        if better and depth == depths:
            self._evaluate(np.array(self.assigned, np.int64))
        elif better:
            taken = set(self.assigned)
            refused = {self.assigned[other] for other in self.apart[group]}
            for d in self.allowed[group]:
                if d not in refused and used[d] + size <= self.capacity[d]:
                    options.setdefault(d if d in taken else -1 - self.equal[d], d)
        for device in sorted(options.values(), key=lambda d: (load[d] + cost[d], d)):
            self.assigned[group] = device
            self._assign(depth + 1, share / len(options))
            self.assigned[group] = -1
        self.done += share * (not options)

    def _bound(self, load: list[float], rest: float) -> float:
        """What no assignment of the other groups, of `rest` seconds, can be below."""
        cuts = 0
        for pins, weight, seconds in self.nets:
            here = {self.assigned[pin] for pin in pins} - {-1}
            if len(here) > 1:
                cuts += weight * (len(here) - 1)
                for device in here:
                    load[device] += seconds[device]
        value = max(*load, (sum(load) + rest) / len(load))
        if self.path is not None:
            value = max(value, self.path.length(self.assigned))
        return value * (1 + self.problem.cut_penalty * cuts)


def packed(problem: Problem, budget: Budget) -> Ints | None:
    """Groups in running order on the fastest devices; None if one device has room.

    It may break a constraint. O(groups x devices) and some simulations.
    """
    graph, capacity = problem.graph, problem.graph.capacity_bytes
    first = _line(graph)[0]
    best: Ints = np.where(graph.allowed[:, first], first, graph.allowed.argmax(axis=1))
    _, held = problem.simulated(best)
    if np.all(held <= capacity):
        return None
    groups, least, each = problem.group_count, inf, 30 * len(problem.group_of_unit)
    after = load_graph.lists_of(graph.successor_start, graph.successors)
    order = problems.running_order(after)
    order += sorted(set(range(groups)) - set(order))  # those on a cycle
    # On one device peaks are about as far above the sum of bytes as on several.
    room = 0.97 * capacity * min(1.0, graph.size_bytes.sum() / max(1.0, held.sum()))
    for _ in range(max(1, min(_ROUNDS, _ROUND_STEPS // max(1, each)))):
        budget.spend(each)
        place = _filled(graph, np.full(groups, -1), order, room)
        _, held = problem.simulated(place)
        full = float((held / np.maximum(capacity, 1.0)).max())
        if full < least:
            best, least = place, full
        if full <= 1.0:
            break
        room *= np.where(held > capacity, 0.97 * capacity / np.maximum(held, 1.0), 1.0)
    return best


def with_bytes_as_seconds(problem: Problem, scale: Floats, capacity: Floats) -> Problem:
    """The problem whose loads are bytes over `scale`, with another capacity.

    Transfers cost next to nothing, so that among equal assignments few cross.
    """
    graph, devices = problem.graph, problem.device_count
    sorts, kind = np.unique(scale, return_inverse=True)
    seconds = graph.size_bytes[:, None] / sorts
    nets = np.tile(graph.net_seconds.max(axis=1, initial=0.0)[:, None], len(sorts))
    if nets.sum() > 0:
        nets *= 0.01 * seconds.sum() / devices / nets.sum()
    graph = graph._replace(seconds=seconds, kind=kind, capacity_bytes=capacity)
    return replace(problem, graph=graph._replace(net_seconds=nets))


def least_full(problem: Problem, budget: Budget) -> Ints:
    """What keeps all constraints but the memory; its fullest device is least full."""
    room = np.maximum(problem.graph.capacity_bytes, 1.0)
    roomy = with_bytes_as_seconds(problem, room, room + inf)
    tree = BranchAndBound(roomy, "throughput", budget)
    tree.search([])
    return tree.place


def repaired(graph: LoadGraph, place: Ints) -> Ints:
    """Move groups that may not be or have no room where they are, to where there is.

    Those come first that take the fewest seconds more there per byte, then large ones.
    """
    full = load_graph.bytes_per_device(graph, place) > graph.capacity_bytes
    seconds = np.where(graph.allowed, graph.seconds[:, graph.kind], _NEVER)
    added = seconds.min(axis=1, where=~full, initial=_NEVER)
    added -= seconds[np.arange(len(place)), place]
    wrong = ~graph.allowed[np.arange(len(place)), place] | full[place]
    group = load_graph.owners(graph.apart_start)
    wrong[group[place[group] == place[graph.apart]]] = True
    order = np.lexsort((-graph.size_bytes, added / np.maximum(graph.size_bytes, 1.0)))
    return _filled(graph, place, order[wrong[order]].tolist(), graph.capacity_bytes)


def _line(graph: LoadGraph) -> Ints:
    """Devices, the fastest first, of equal ones the one with most memory."""
    return np.lexsort((-graph.capacity_bytes, graph.seconds.sum(axis=0)[graph.kind]))


def _filled(graph: LoadGraph, place: Ints, order: Sequence[int], room: Floats) -> Ints:
    """Put groups, in this order, on devices that they may use and that have room.

    Those that are well where they are stay. Next fit: with the group before, or on a
    slower device; else on the fastest. Nowhere is room: where most is left.
    """
    known, at = place >= 0, 0
    used = np.bincount(place[known], graph.size_bytes[known], len(room))
    free: list[float] = (room - used).tolist()
    rank, sizes = np.argsort(_line(graph)).tolist(), graph.size_bytes.tolist()
    apart = load_graph.lists_of(graph.apart_start, graph.apart)
    allowed: list[list[bool]] = graph.allowed.tolist()
    found: list[int] = place.tolist()
    for group in order:
        here, size = found[group], sizes[group]
        taken = {found[other] for other in apart[group]}
        may = [d for d, ok in enumerate(allowed[group]) if ok and d not in taken]
        if here in may and free[here] >= 0:
            continue
        options = [d for d in may if free[d] >= size]
        if options:
            target = min(options, key=lambda d: (rank[d] < at, rank[d]))
            at = rank[target] if len(may) > 1 else at
        elif here < 0:
            target = max(may or range(len(free)), key=free.__getitem__)
        else:
            continue
        free[target] -= size
        if here >= 0:
            free[here] += size
        found[group] = target
    return np.array(found, np.int64)
