"""Several calls on one accelerator: the search sees each call as a device of its own.

    calls     a a a|c c c|e e e|g g g         searched: eight accelerators
              b b b|d d d|f f f|h h h
    folded    0 0 0|2 2 2|0 0 0|2 2 2         the machine has four
              1 1 1|3 3 3|1 1 1|3 3 3

An accelerator's set is cut into calls by how often a path has entered it. So a call may
follow another on one accelerator where each of its beginnings hears from that one by
way of somebody else; then the cut finds the two calls that were meant.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from splitnet.planner.search.call_graph import CallGraph
from splitnet.planner.search.latency import topological
from splitnet.planner.search.problem import Problem

__all__ = ["Folder", "SharedCalls"]

Needs = tuple[dict[int, tuple[int, ...]], dict[int, float]]
"""Per call: the accelerators that it may use, and its bytes."""


class Folder:
    """Gives the calls of a plan to accelerators.

    A plan is of groups, each of one or several nodes; `real` is the accelerator that
    each accelerator of a plan copies.
    """

    __slots__ = ("_before", "_groups", "_order", "_plain", "_real")

    def __init__(
        self,
        plain: Problem,
        real: Sequence[int],
        before: Sequence[Sequence[int]],
        node_groups: Sequence[int],
        order: Sequence[int],
    ) -> None:
        """`plain` has the devices of the machine; `order` is topological."""
        self._plain, self._real = plain, real
        self._before, self._groups, self._order = before, node_groups, order

    def fold(self, plan: Sequence[int]) -> list[int] | None:
        """Return the plan on the devices of the machine; None if that fails.

        Best effort where memory is short, or devices differ: then some plans that
        could be folded are not. O(nodes + edges + calls^3).
        """
        if max(plan, default=0) < len(self._plain.devices):
            return list(plan)
        heard, ancestors = self.hearing(plan)
        if any(ancestors[b] >> a & 1 for a in ancestors for b in _bits(ancestors[a])):
            return None  # one waits for the other, or for itself
        rank = {call: mask.bit_count() for call, mask in ancestors.items()}
        order = sorted(rank, key=lambda one: (rank[one], one))
        needs = self._needs(plan)
        place = self._in_turn(needs, order, heard)
        place = place or self._in_rows(needs, order, heard)
        if place is None:
            return None
        return [place.get(device, device) for device in plan]

    def folds(self, plan: Sequence[int]) -> bool:
        """Whether `fold` succeeds."""
        return self.fold(plan) is not None

    def _in_turn(
        self, needs: Needs, order: Sequence[int], heard: Mapping[int, int]
    ) -> dict[int, int] | None:
        """Let each call follow the latest call that it may, while memory is left."""
        allowed, size = needs
        rank = {call: index for index, call in enumerate(order)}
        left = [device.capacity_bytes * (1 + 1e-12) for device in self._plain.devices]
        last: dict[int, int] = {}
        place: dict[int, int] = {}
        for call in order:
            options = [
                device
                for device in allowed[call]
                if size[call] <= left[device]
                and (device not in last or heard[call] >> last[device] & 1)
            ]
            if not options:
                return None
            device = max(options, key=lambda d: rank[last[d]] if d in last else -1)
            place[call], last[device] = device, call
            left[device] -= size[call]
        return place

    def _in_rows(
        self, needs: Needs, order: Sequence[int], heard: Mapping[int, int]
    ) -> dict[int, int] | None:
        """Cover the calls by the fewest rows in which each may follow the one before.

        A greatest matching of calls to followers; rows with most bytes choose first.
        """
        allowed, size = needs
        after: dict[int, int] = {}

        def augment(call: int, seen: dict[int, None]) -> bool:
            for other in reversed(order):
                if not heard[call] >> other & 1 or other in seen:
                    continue
                if not set(allowed[call]) & set(allowed[other]):
                    continue
                seen[other] = None
                if other not in after or augment(after[other], seen):
                    after[other] = call
                    return True
            return False

        followers = {call for call in order if augment(call, {})}
        rows = []
        for call in order:
            if call not in followers:
                rows.append([call])
                while rows[-1][-1] in after:
                    rows[-1].append(after[rows[-1][-1]])
        rows.sort(key=lambda row: -sum(size[call] for call in row))
        place: dict[int, int] = {}
        free = list(range(len(self._plain.devices)))
        for row in rows:
            need = sum(size[call] for call in row)
            options = [
                device
                for device in free
                if all(device in allowed[call] for call in row)
                and need <= self._plain.devices[device].capacity_bytes * (1 + 1e-12)
            ]
            if not options:
                return None
            free.remove(options[0])
            place |= dict.fromkeys(row, options[0])
        return place

    def hearing(self, plan: Sequence[int]) -> tuple[dict[int, int], dict[int, int]]:
        """Per call two sets of calls, as bits.

        Those that each of its beginnings hears from by way of others, and all those
        that it hears from: itself where a path leaves it and comes back, as a call
        that cannot run as one.
        """
        pooled = [self._plain.devices[real].pooled for real in self._real]
        call = [-1 if pooled[plan[g]] else plan[g] for g in self._groups]
        known = [0] * len(call)
        heard: dict[int, int] = {}
        ancestors: dict[int, int] = {}
        for node in self._order:
            here, begins, near, far = call[node], True, 0, 0
            for source in self._before[node]:
                there, more = call[source], known[source]
                if there >= 0:
                    begins = begins and there != here
                    near |= 1 << there
                    far |= more & ~(1 << there)
                else:
                    far |= more
                near |= more
            known[node] = near
            if here >= 0:
                if begins:
                    heard[here] = heard.get(here, -1) & far
                mine = 1 << here
                ancestors[here] = ancestors.get(here, 0) | near & ~mine | far & mine
        return heard, ancestors

    def _needs(self, plan: Sequence[int]) -> Needs:
        """Per call: accelerators of its kind that all its groups may use; its bytes."""
        devices = self._plain.devices
        allowed: dict[int, tuple[int, ...]] = {}
        size: dict[int, float] = {}
        for group, call in enumerate(plan):
            if devices[self._real[call]].pooled:
                continue
            row = self._plain.allowed[group]
            have = allowed.setdefault(call, row)
            if have is not row and have != row:
                allowed[call] = tuple(device for device in have if device in row)
            size[call] = size.get(call, 0.0) + self._plain.size_bytes[group]
        for call, row in allowed.items():
            kind = devices[self._real[call]].kind
            allowed[call] = tuple(
                device
                for device in row
                if devices[device].kind == kind and not devices[device].pooled
            )
        return allowed, size


class SharedCalls:
    """A problem with several calls per accelerator, and the way back.

    `wide` is the problem whose accelerators stand for calls: the given devices first,
    then `times` - 1 copies of all `accelerators`.
    """

    __slots__ = (
        "_accelerators",
        "_folder",
        "_plain",
        "_real",
        "accelerators",
        "times",
        "wide",
    )

    def __init__(
        self, fused: Problem, full: Problem, node_groups: Sequence[int], times: int
    ) -> None:
        """`node_groups` maps the nodes of `full` to groups of `fused`; O(groups)."""
        accelerators = [i for i, d in enumerate(fused.devices) if not d.pooled]
        self.accelerators, self.times = len(accelerators), times
        self._accelerators = accelerators
        self._plain = fused
        self._real = [*range(len(fused.devices)), *accelerators * (times - 1)]
        before = full.nodes.predecessors
        order = topological(full)
        self._folder = Folder(fused, self._real, before, node_groups, order)
        rows = {
            row: tuple(i for i, real in enumerate(self._real) if real in row)
            for row in dict.fromkeys(fused.allowed)
        }
        self.wide = replace(
            fused,
            devices=tuple(fused.devices[real] for real in self._real),
            allowed=tuple(rows[row] for row in fused.allowed),
        )

    def is_plain(self, plan: Sequence[int]) -> bool:
        """Whether a plan of `wide` has one call per accelerator."""
        return max(plan, default=0) < len(self._plain.devices)

    def widen(self, plan: Sequence[int], calls: Sequence[int]) -> list[int] | None:
        """Return a plan of `wide`; None where an accelerator makes too many calls.

        `plan` is on the devices of the machine, `calls` has the call of each group, or
        -1; calls are numbered in the order of their accelerators.
        """
        width, line = len(self._plain.devices), self._accelerators
        place = {device: position for position, device in enumerate(line)}
        made = dict.fromkeys(line, 0)
        device_of = dict(zip(calls, plan, strict=True))
        wide: dict[int, int] = {}
        for call in sorted(call for call in device_of if call >= 0):
            device = device_of[call]
            turn = made[device]
            made[device] += 1
            if turn >= self.times:
                return None
            first = width + (turn - 1) * len(line)
            wide[call] = device if turn == 0 else first + place[device]
        return [wide.get(c, device) for c, device in zip(calls, plan, strict=True)]

    def fold(self, plan: Sequence[int]) -> list[int] | None:
        """Return a plan of `wide` on the devices of the machine; None if that fails."""
        return self._folder.fold(plan)

    def folder(self, coarse: Problem, owner: Sequence[int], graph: CallGraph) -> Folder:
        """Return what folds plans of clusters; groups of one cluster may use the same.

        `owner` is the cluster of each group.
        """
        allowed: list[tuple[int, ...]] = [()] * coarse.group_count
        for group, index in enumerate(owner):
            allowed[index] = self._plain.allowed[group]
        plain = replace(coarse, devices=self._plain.devices, allowed=tuple(allowed))
        # Atoms are numbered in topological order.
        order = range(len(graph.owner))
        return Folder(plain, self._real, graph.before, graph.owner, order)

    def near(self, plan: Sequence[int], more: int) -> Problem:
        """Return `wide` with the calls of a plan, and that many more, only.

        A search that begins with the plan then finds none of so many calls that they
        cannot be folded. O(groups).
        """
        devices = self.wide.devices
        used = [d for d in dict.fromkeys(plan) if not devices[d].pooled]
        idle = [i for i, d in enumerate(devices) if not d.pooled and i not in used]
        kept = {*used, *idle[:more], *(i for i, d in enumerate(devices) if d.pooled)}
        rows = {
            row: tuple(device for device in row if device in kept)
            for row in dict.fromkeys(self.wide.allowed)
        }
        return replace(self.wide, allowed=tuple(rows[row] for row in self.wide.allowed))


def _bits(mask: int) -> list[int]:
    """Return the positions of the ones of a mask."""
    return [bit for bit in range(mask.bit_length()) if mask >> bit & 1]
