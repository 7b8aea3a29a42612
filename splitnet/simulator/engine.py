"""Run one step on one placement: the event loop under the simulator and the searches.

    gpu:0   |== a ==|           |== a' ==|
    link            |~ a->b ~|  ^         ~ copy   ' backward
    gpu:1                    |= b =|= b' =|

Every device and every direction of every link serves one thing at a time, in the order
in which things became ready, ties in order of the graph; a unit of zero seconds
occupies nothing. So does TensorFlow's executor with one stream per device. Of a copy's
latency only the gap keeps the road, where that is known: the rest passes while others
are on their way. Where a copy is the work of the processors at its ends, what they
compute next starts later by that, and it arrives later if its receiver computes.
Devices that share processors slow each other down while both are at work.

A processor of a worker goes deep first: it follows what it has just computed, the last
of its readers before the others, and turns to what others sent when nothing is left of
that. TensorFlow's executor does so with one thread. Gradients for another device leave
it before those of its own weights are computed (`splitnet/tf/sends.py`).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import inf

from splitnet.simulator.step import Step
from splitnet.simulator.tables import Crowd

__all__ = ["COPY_KINDS", "Moved", "Run", "run_step", "run_within"]

_ROUNDING = 1 + 1e-9
"""What is left of a device's work is added up in another order than its times are."""

_COPIES_FIRST = 2**62  # what is sent goes out before its sender computes on

COPY_KINDS = ("activation", "gradient", "weights", "weights gradient")


@dataclass(slots=True)
class Moved:
    """One copy: `kind` indexes COPY_KINDS, `item` the nets or the shared weights."""

    kind: int
    item: int
    source: int
    target: int
    bytes: int
    start: float = 0.0
    stop: float = 0.0


@dataclass(slots=True)
class Run:
    """When all tasks ran: n forward, then n backward, then n update, for n units."""

    start: list[float]
    stop: list[float]
    ran: list[bool]
    copies: list[Moved] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return max(max(self.stop, default=0.0), self.last_copy)

    @property
    def last_copy(self) -> float:
        """When the last copy arrives."""
        return max((copy.stop for copy in self.copies), default=0.0)


def run_step(step: Step, device: Sequence[int]) -> Run:
    """Play the step with unit u on device number `device[u]`.

    O((units + edges) log units). Deterministic.
    """
    run = run_within(step, device, inf)
    assert run is not None, "only a limit ends a step before its end"
    return run


def run_within(step: Step, device: Sequence[int], limit: float) -> Run | None:
    """Play the step, or give None as soon as it must take longer than `limit` seconds.

    It must where a task starts too late for what its device has left to do, or for the
    longest chain of tasks behind it.
    """
    run = _play(step, device, limit * _ROUNDING)
    if run is not None:
        n = step.count
        run.start[n : 2 * n] = reversed(run.start[n : 2 * n])
        run.stop[n : 2 * n] = reversed(run.stop[n : 2 * n])
        run.ran[n : 2 * n] = reversed(run.ran[n : 2 * n])
    return run


def _play(step: Step, device: Sequence[int], limit: float) -> Run | None:
    """The step with tasks as in `Wires`, so backward from the end; None if too long.

    The searches live on this function, so its state is in local variables and not in an
    object.
    """
    n, nets, wires = step.count, step.nets, step.wires
    follows, outgoing, owes, debts = (
        wires.follows,
        wires.outgoing,
        wires.owes,
        wires.debts,
    )
    seconds_of, tail, top = step.task_seconds, step.tails, 3 * n
    start, stop, ran = [0.0] * top, [0.0] * top, [False] * top
    ready, pending = [0.0] * top, list(wires.pending)
    place = [*device, *reversed(device), *device]
    copies: list[Moved] = []
    waiting: list[Sequence[int]] = []
    heap: list[tuple[float, int]] = []
    free, left = list(step.start), [0.0] * step.device_count
    computes = [False] * step.device_count  # while it is not free, and not only copies
    deep, late = step.deep_first, step.late_of_task
    waits_here: list[list[int]] = [[] for _ in free]  # of devices that go deep first
    sent_here: list[deque[int]] = [deque() for _ in free]
    came = [False] * top
    link_free: dict[tuple[int, int], float] = {}
    crowds = step.crowds if any(step.crowds) else None
    for unit, where in enumerate(device):
        left[where] += step.unit_seconds[where][unit]
    if max(left) > limit:
        return None

    def arrive(task: int, time: float) -> None:
        if time > ready[task]:
            ready[task] = time
        pending[task] -= 1
        if not pending[task]:
            heappush(heap, (ready[task], task))

    def send(time: float, copy: Moved, tasks: Sequence[int]) -> None:
        heappush(heap, (time, len(copies) - _COPIES_FIRST))
        copies.append(copy)
        waiting.append(tasks)

    owed = _owed(step, place, pending)
    for number, home, target, users in _away(step, device, pending):
        send(0.0, Moved(2, number, home, target, step.shared[number].bytes), users)
    heap += [(0.0, unit) for unit in range(n) if not pending[unit]]
    heapify(heap)

    while heap:
        time, task = heappop(heap)
        if task < 0:
            number = task + _COPIES_FIRST
            copy = copies[number]
            road = copy.source, copy.target
            known = nets[copy.item].seconds if copy.kind < 2 else None
            ahead = 0.0  # of its arrival, when the next one may start
            if known is None:
                known = step.latency[road[0]][road[1]]
                ahead = known - step.gap[road[0]][road[1]]
                known += copy.bytes * step.seconds_per_byte[road[0]][road[1]]
            copy.start = max(time, link_free.get(road, 0.0))
            copy.stop = copy.start + known
            if work := (known - ahead) * step.busy_share[road[0]][road[1]]:
                # A receiver that computes shares its processor with what arrives.
                if computes[copy.target]:
                    copy.stop += max(min(work, free[copy.target] - copy.start), 0.0)
                for end in road:
                    taken = work
                    if crowds:
                        taken = _slowed(crowds[end], copy.start, work, free)
                    computes[end] = computes[end] and free[end] > copy.start
                    free[end] = max(free[end], copy.start) + taken
            link_free[road] = copy.stop - ahead
            for waiter in waiting[number]:
                came[waiter] = True
                arrive(waiter, copy.stop)
            continue
        if task >= top:
            where = task - top
            mine, sent = waits_here[where], sent_here[where]
            if free[where] > time:
                heappush(heap, (free[where], task))
                continue
            task = mine.pop() if mine else sent.popleft()
            if mine or sent:
                heappush(heap, (time, top + where))
        elif deep and deep[where := place[task]] and seconds_of[where][task] > 0.0:
            mine, sent = waits_here[where], sent_here[where]
            if not (mine or sent):
                heappush(heap, (max(time, free[where]), top + where))
            if came[task]:
                sent.append(task)
            else:
                mine.append(task)
            continue
        where = place[task]
        seconds = seconds_of[where][task]
        if seconds > 0.0:
            if free[where] > time:
                time = free[where]
            if time + left[where] > limit or time + seconds + tail[task] > limit:
                return None
            left[where] -= seconds
            if crowds:
                seconds = _slowed(crowds[where], time, seconds, free)
            free[where] = time + seconds
            computes[where] = True
        start[task] = time
        stop[task] = time = time + seconds
        ran[task] = True
        for follower in follows[task]:
            arrive(follower, time)
        if task < n:
            for number in outgoing[task]:
                net = nets[number]
                away: dict[int, list[int]] = {}
                for reader in net.readers:
                    target = device[reader]
                    if target == where:
                        arrive(reader, time)
                    else:
                        away.setdefault(target, []).append(reader)
                for target, readers in away.items():
                    send(time, Moved(0, number, where, target, net.bytes), readers)
            continue
        for number in owes[task]:
            debt = debts[number]
            home = place[debt.task]
            alone = deep and deep[where] and home != where and debt.kind == 1
            owed[number][where] -= 1
            if owed[number][where] and not alone:
                continue
            if alone:
                here = [task]
                last = time - late[task] * seconds
            else:
                here = [s for s in debt.senders if place[s] == where]
                last = max(stop[sender] for sender in here)
            if home == where:
                arrive(debt.task, last)
            else:
                size = debt.bytes_from([s in here for s in debt.senders])
                copy = Moved(debt.kind, debt.item, where, home, size)
                send(last, copy, (debt.task,))
    return Run(start, stop, ran, copies)


def _slowed(
    crowd: Sequence[Crowd], time: float, seconds: float, free: list[float]
) -> float:
    """The seconds that work takes beside those at work on the same processors.

    They are slowed as well, for as long as both are at work.
    """
    beside = [one for one in crowd if free[one[0]] > time]
    if not beside:
        return seconds
    longest = seconds * (1.0 + sum(crowding for _, crowding in beside))
    slowed = seconds
    for other, crowding in beside:
        left = free[other] - time
        slowed += crowding * min(seconds, left)
        free[other] += crowding * min(longest / (1.0 + crowding), left)
    return slowed


def _owed(step: Step, place: Sequence[int], pending: list[int]) -> list[dict[int, int]]:
    """How many tasks on each device still owe their share of a debt.

    Whoever gets the gradients waits for one per device, or where a device goes deep
    first for one per reader there: each crosses by itself.
    """
    deep = step.deep_first
    owed = []
    for debt in step.wires.debts:
        left: dict[int, int] = {}
        for sender in debt.senders:
            left[place[sender]] = left.get(place[sender], 0) + 1
        home = place[debt.task]
        for where, count in left.items():
            alone = deep and deep[where] and where != home and debt.kind == 1
            pending[debt.task] += count if alone else 1
        owed.append(left)
    return owed


def _away(
    step: Step, device: Sequence[int], pending: list[int]
) -> list[tuple[int, int, int, list[int]]]:
    """The copies of shared weights: number, home, target device, the users there."""
    found = []
    for number, weight in enumerate(step.shared):
        home = device[weight.users[0]]
        away: dict[int, list[int]] = {}
        for user in weight.users:
            if device[user] != home:
                away.setdefault(device[user], []).append(user)
                pending[user] += 1
        found += [(number, home, target, users) for target, users in away.items()]
    return found
