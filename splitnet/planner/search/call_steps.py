"""Plans of calls built step by step, so that they fold while they are built.

    lanes    a a a a|c c c|e e e e      step 1: a on 0, b on 1
             a a a|c c c c|e e e        step 2: c on 2, d on 3
             b b b|d d d|f f f f        step 3: e on 0, f on 1; e hears from a through c

In a step calls grow side by side from what is ready, one per accelerator, and take a
group when all that the group hears from is done or in that call. A group may begin a
call where it hears from the accelerator's last call by way of somebody else; the rule
that cuts an accelerator's set into calls then finds the calls that were meant. A group
that hears so from none goes to the host, and what follows it hears by way of it.
"""

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush, heapreplace
from math import inf
from random import Random

from splitnet.planner.search.call_partial import HOST, OPEN, Partial
from splitnet.planner.search.orders import ancestry, depth_first
from splitnet.planner.search.problem import Net, Problem

__all__ = ["Steps"]

MANY = -1
ENOUGH, TOO_MUCH = 0.6, 1.3
OVERHEAD = 0.02


class Steps:
    """Makes the next step of a partial plan, for one problem of fused groups."""

    __slots__ = (
        "_after",
        "_allowed",
        "_before",
        "_host",
        "_kind",
        "_level",
        "_received",
        "_sent",
        "accelerators",
        "cheap",
        "overhead",
        "pool",
        "problem",
        "rest",
        "seconds",
        "work",
    )

    def __init__(self, problem: Problem) -> None:
        """Read edges, times and levels; O(groups + edges)."""
        devices, count = problem.devices, problem.group_count
        self.problem = problem
        self._before, self._after = ancestry(problem)
        self.accelerators = [i for i, d in enumerate(devices) if not d.pooled]
        self.pool = next((i for i, d in enumerate(devices) if d.pooled), -1)
        self._kind = [device.kind for device in devices]
        host = self._kind[self.pool]
        self._host = [
            row[host] if self.pool in allowed else inf
            for row, allowed in zip(problem.seconds, problem.allowed, strict=True)
        ]
        self._allowed = [sum([1 << d for d in row]) for row in problem.allowed]
        self.seconds = []
        for row, allowed in zip(problem.seconds, problem.allowed, strict=True):
            own = [row[self._kind[d]] for d in allowed if not devices[d].pooled]
            self.seconds.append(min(own, default=0.0))
        self.work = sum(self.seconds)
        self.overhead = OVERHEAD * self.work / max(1, len(self.accelerators))
        finite = sorted(seconds for seconds in self._host if seconds < inf) or [0.0]
        self.cheap = [-1.0, finite[len(finite) // 4], finite[len(finite) // 2]]
        self._sent: list[list[Net]] = [[] for _ in range(count)]
        self._received: list[list[tuple[int, int, tuple[float, ...]]]]
        self._received = [[] for _ in range(count)]
        for index, net in enumerate(problem.nets):
            self._sent[net.producer].append(net)
            for consumer in net.consumers:
                self._received[consumer].append((index, net.producer, net.seconds))
        order = depth_first(problem)
        self._level, self.rest = [0] * count, [0.0] * count
        for group in order:
            rows = [self._level[other] + 1 for other in self._before[group]]
            self._level[group] = max(rows, default=1)
        for group in reversed(order):
            follow = [self.rest[other] for other in self._after[group]]
            self.rest[group] = self.seconds[group] + max(follow, default=0.0)

    def begin(self) -> Partial | None:
        """Return a plan with nothing placed but what can only be on the host."""
        count, plan = self.problem.group_count, Partial()
        plan.call, plan.heard = [OPEN] * count, [0] * count
        plan.stop, plan.waiting = [0.0] * count, [len(row) for row in self._before]
        plan.begins, plan.ready, plan.device = {}, {}, []
        devices = self.problem.devices
        plan.last = dict.fromkeys(self.accelerators, -1)
        plan.left_bytes = {
            d: devices[d].capacity_bytes * (1 + 1e-12) for d in self.accelerators
        }
        plan.work = plan.spent = plan.end = plan.worth = 0.0
        for group, number in enumerate(plan.waiting):
            if not number:
                self._arrive(plan, group)
        return plan if self._settle(plan) else None

    def assignment(self, plan: Partial) -> list[int]:
        """Return the device of every group of a plan that is finished."""
        return [self.pool if c == HOST else plan.device[c] for c in plan.call]

    def step(
        self,
        plan: Partial,
        random: Random,
        *,
        share: float,
        cheap: float,
        devices: Sequence[int],
    ) -> Partial | None:
        """Return the plan after one more step; None if a group cannot go anywhere.

        Calls grow to about `share` seconds on `devices` only. Near that they end before
        a group that takes the host no more than `cheap`, for it may have to go there.
        O(groups in the step x log groups + edges), and a copy of the plan.
        """
        begin = self._choose(plan, random, devices)
        if not begin:
            return None
        members = self._grow(plan, begin, share, cheap)
        found, longest = plan.copy(), 0.0
        for device, row in members.items():
            if row:
                longest = max(longest, self._launch(found, row, device))
        for row in members.values():
            self._release(found, row)
        found.spent += longest + self.overhead
        return found if self._settle(found) else None

    def _options(self, plan: Partial, group: int, devices: Sequence[int]) -> list[int]:
        """Return where a call of that group may begin."""
        allowed, bits = self._allowed[group], plan.begins[group]
        size, last, left = self.problem.size_bytes[group], plan.last, plan.left_bytes
        return [
            device
            for device in devices
            if (last[device] < 0 or bits >> last[device] & 1)
            and size <= left[device]
            and allowed >> device & 1
        ]

    def _choose(
        self, plan: Partial, random: Random, devices: Sequence[int]
    ) -> dict[int, int]:
        """Draw where ready groups begin, each on a device with the fewest so far."""
        options = {g: self._options(plan, g, devices) for g in plan.ready}
        groups = [group for group, row in options.items() if row]
        random.shuffle(groups)
        groups.sort(key=lambda group: len(options[group]))
        number: dict[int, int] = {}
        begin: dict[int, int] = {}
        for group in groups:
            least = min([number.get(device, 0) for device in options[group]])
            row = [d for d in options[group] if number.get(d, 0) == least]
            device = row[int(random.random() * len(row))]
            begin[group], number[device] = device, least + 1
        return begin

    def _grow(
        self, plan: Partial, begin: Mapping[int, int], share: float, cheap: float
    ) -> dict[int, list[int]]:
        """Let the least busy call take its next group until all are full or stuck."""
        level, host, waiting = self._level, self._host, plan.waiting
        size, times = self.problem.size_bytes, self.problem.seconds
        heaps: dict[int, list[tuple[int, int]]] = {}
        for group, device in begin.items():
            heappush(heaps.setdefault(device, []), (level[group], group))
        room = {device: plan.left_bytes[device] for device in heaps}
        members: dict[int, list[int]] = {device: [] for device in heaps}
        reached: dict[int, int] = {}
        left: dict[int, int] = {}
        queue = [(0.0, device) for device in sorted(heaps)]
        while queue:
            seconds, device = queue[0]
            heap = heaps[device]
            if not heap:
                heappop(queue)
                continue
            group = heappop(heap)[1]
            if size[group] > room[device] or (
                group not in begin
                and (
                    seconds >= share * TOO_MUCH
                    or (seconds >= share * ENOUGH and host[group] <= cheap)
                )
            ):
                continue
            room[device] -= size[group]
            heapreplace(queue, (seconds + times[group][self._kind[device]], device))
            members[device].append(group)
            for target in self._after[group]:
                number = waiting[target]
                if number > 1:
                    if reached.setdefault(target, device) != device:
                        reached[target] = MANY
                    number = left[target] = left.get(target, number) - 1
                    if number or reached[target] != device:
                        continue
                if self._allowed[target] >> device & 1:
                    heappush(heap, (level[target], target))
        return members

    def _launch(self, plan: Partial, members: Sequence[int], device: int) -> float:
        """Add a call of members in an order in which they can run; what it takes."""
        number = len(plan.device)
        plan.device.append(device)
        plan.last[device] = number
        inside, start = set(members), 0.0
        call, heard, stop = plan.call, plan.heard, plan.stop
        for group in members:
            bits = 0
            for source in self._before[group]:
                bits |= heard[source]
                if source not in inside:
                    if call[source] >= 0:
                        bits |= 1 << call[source]
                    start = max(start, stop[source])
            heard[group] = bits
            plan.work += self.seconds[group]
            plan.left_bytes[device] -= self.problem.size_bytes[group]
            if plan.ready.pop(group, None) is not None:
                del plan.begins[group]
        seconds = self._load(members, inside, device)
        end = start + seconds
        plan.end = max(plan.end, end)
        for group in members:
            call[group], stop[group] = number, end
        return seconds

    def _load(self, members: Sequence[int], inside: set[int], device: int) -> float:
        """Return what a call takes: receive, compute, send."""
        kind, seconds = self._kind[device], self.problem.seconds
        total = 0.0
        received: dict[int, float] = {}
        for group in members:
            total += seconds[group][kind]
            for net in self._sent[group]:
                for consumer in net.consumers:
                    if consumer not in inside:
                        total += net.seconds[kind]
                        break
            for index, producer, cost in self._received[group]:
                if producer not in inside:
                    received[index] = cost[kind]
        return total + sum(received.values())

    def _release(self, plan: Partial, done: Sequence[int]) -> None:
        """Count down what waited for groups that are done."""
        waiting, call = plan.waiting, plan.call
        for group in done:
            for target in self._after[group]:
                waiting[target] -= 1
                if not waiting[target] and call[target] == OPEN:
                    self._arrive(plan, target)

    def _arrive(self, plan: Partial, group: int) -> None:
        """Note when a group is ready, and whom it hears from by way of others."""
        bits, start = 0, 0.0
        for source in self._before[group]:
            more, number = plan.heard[source], plan.call[source]
            bits |= more & ~(1 << number) if number >= 0 else more
            start = max(start, plan.stop[source])
        plan.begins[group], plan.ready[group] = bits, start

    def _settle(self, plan: Partial) -> bool:
        """Run on the host what can begin no call; False if the host cannot."""
        while True:
            stuck = [
                group
                for group in plan.ready
                if not self._options(plan, group, self.accelerators)
            ]
            if not stuck:
                return True
            for group in stuck:
                if self._host[group] == inf:
                    return False
                self._to_host(plan, group)

    def _to_host(self, plan: Partial, group: int) -> None:
        bits = 0
        for source in self._before[group]:
            bits |= plan.heard[source]
            if plan.call[source] >= 0:
                bits |= 1 << plan.call[source]
        plan.heard[group], plan.call[group] = bits, HOST
        stop = plan.stop[group] = plan.ready.pop(group) + self._host[group]
        del plan.begins[group]
        plan.work += self.seconds[group]
        plan.end = max(plan.end, stop)
        self._release(plan, (group,))
