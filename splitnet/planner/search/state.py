"""Loads under single moves: the inner loop of every max-load search.

A move of group g from device a to device b changes the loads of a and b only. Nets with
one consumer are undirected pairs (both ends pay), so their part of every move is kept
ready in a table: `near[g * devices + d]` is what g shares with device d. Nets with
several consumers are counted: `count[net * devices + d]` of its ends are on device d,
which pays if these are some and not all, whether the net begins or ends there.
"""

from collections.abc import Sequence

from splitnet.planner.search.problem import Problem

__all__ = ["Fixed", "State"]

Wide = tuple[int, tuple[float, ...], int]
"""(offset in `count`, cost per device, number of ends)."""


class Fixed:
    """What does not change with the assignment, laid out for the inner loops."""

    __slots__ = (
        "all_costs",
        "allowed",
        "capacity",
        "devices",
        "groups",
        "met",
        "neighbors",
        "pairs",
        "size",
        "time",
        "total",
        "wide",
        "wide_count",
    )

    def __init__(self, problem: Problem) -> None:
        """Expand kinds to devices; O(groups x devices + pins of nets)."""
        kinds = [device.kind for device in problem.devices]
        groups = problem.group_count
        self.devices = len(kinds)
        self.groups = groups
        shared: dict[tuple[float, ...], tuple[float, ...]] = {}

        def spread(row: tuple[float, ...]) -> tuple[float, ...]:
            if row not in shared:
                shared[row] = tuple([row[kind] for kind in kinds])
            return shared[row]

        self.time = [spread(row) for row in problem.seconds]
        self.size = list(problem.size_bytes)
        self.allowed = problem.allowed
        self.capacity = [d.capacity_bytes * (1 + 1e-12) for d in problem.devices]
        pairs: list[dict[int, tuple[float, ...]]] = [{} for _ in range(groups)]
        wide: list[list[Wide]] = [[] for _ in range(groups)]
        self.wide_count = 0
        for net in problem.nets:
            cost = spread(net.seconds)
            source = net.producer
            if len(net.consumers) == 1:
                target = net.consumers[0]
                have = pairs[source].get(target)
                if have is not None:
                    cost = tuple([x + y for x, y in zip(have, cost, strict=True)])
                pairs[source][target] = pairs[target][source] = cost
                continue
            ends = (source, *net.consumers)
            for end in ends:
                wide[end].append((self.wide_count * self.devices, cost, len(ends)))
            self.wide_count += 1
        self.pairs = [tuple(row.items()) for row in pairs]
        self.wide = [tuple(row) for row in wide]
        self.met = [frozenset([offset for offset, _, _ in row]) for row in wide]
        nothing = (0.0,) * self.devices
        self.total = [
            tuple([sum(column) for column in zip(*row.values(), strict=True)])
            if row
            else nothing
            for row in pairs
        ]
        around: list[dict[int, None]] = [dict.fromkeys(row) for row in pairs]
        for net in problem.nets:
            if len(net.consumers) > 1:
                for target in net.consumers:
                    around[net.producer][target] = None
                    around[target][net.producer] = None
        self.neighbors = [tuple(row) for row in around]

    def meet(self, group: int, other: int) -> bool:
        """Whether two groups share a net, so that their moves do not just add up."""
        return other in self.neighbors[group] or not self.met[group].isdisjoint(
            self.met[other]
        )


class State:
    """An assignment with its loads, bytes and tables, changed by `move`."""

    __slots__ = ("count", "device", "fixed", "load", "near", "used")

    def __init__(self, fixed: Fixed, assignment: Sequence[int]) -> None:
        """Count everything once; O(groups x devices + pins of nets)."""
        self.fixed = fixed
        self.device = list(assignment)
        self.refresh()

    def refresh(self) -> None:
        """Recompute all tables from `device`, which also removes rounding drift."""
        fixed, device, width = self.fixed, self.device, self.fixed.devices
        self.load = [0.0] * width
        self.used = [0.0] * width
        self.near = [0.0] * (fixed.groups * width)
        self.count = [0] * (fixed.wide_count * width)
        load, near, count = self.load, self.near, self.count
        for group, here in enumerate(device):
            load[here] += fixed.time[group][here]
            self.used[here] += fixed.size[group]
            base = group * width
            for other, cost in fixed.pairs[group]:
                there = device[other]
                near[base + there] += cost[there]
                if there != here:
                    load[here] += cost[here]
            for offset, cost, number in fixed.wide[group]:
                count[offset + here] += 1
                # Paid from the first end to the last but one.
                if count[offset + here] == 1:
                    load[here] += cost[here]
                elif count[offset + here] == number:
                    load[here] -= cost[here]

    def change(self, group: int, target: int) -> tuple[float, float]:
        """Return how the loads of the old and the new device would change."""
        fixed, count = self.fixed, self.count
        here, base = self.device[group], group * fixed.devices
        time, total, near = fixed.time[group], fixed.total[group], self.near
        old = 2.0 * near[base + here] - total[here] - time[here]
        new = total[target] - 2.0 * near[base + target] + time[target]
        for offset, cost, number in fixed.wide[group]:
            ends = count[offset + here]
            if ends == 1:
                old -= cost[here]
            elif ends == number:
                old += cost[here]
            ends = count[offset + target]
            if ends == 0:
                new += cost[target]
            elif ends == number - 1:
                new -= cost[target]
        return old, new

    def move(self, group: int, target: int, old: float, new: float) -> None:
        """Move `group`; `old` and `new` are what `change` returned."""
        fixed, width = self.fixed, self.fixed.devices
        here = self.device[group]
        self.device[group] = target
        self.load[here] += old
        self.load[target] += new
        size = fixed.size[group]
        self.used[here] -= size
        self.used[target] += size
        near, count = self.near, self.count
        for other, cost in fixed.pairs[group]:
            base = other * width
            near[base + here] -= cost[here]
            near[base + target] += cost[target]
        for offset, _, _ in fixed.wide[group]:
            count[offset + here] -= 1
            count[offset + target] += 1

    def fits(self, group: int, target: int) -> bool:
        """Whether the device has room for the group and may take it."""
        fixed = self.fixed
        room = fixed.capacity[target] - self.used[target]
        return fixed.size[group] <= room and target in fixed.allowed[group]
