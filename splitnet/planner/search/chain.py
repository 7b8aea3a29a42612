"""Dynamic programming over the cuts of one linear order of the groups (max-load).

    order     a b c | d e | f g h i
    device      x   |  y  |    z         every device takes one interval, or none

The load of every interval is read from two-dimensional prefix sums: inside an interval
a net is a combination of points and pairs of points, because an interval that holds two
points holds all between them.
"""

from collections.abc import Sequence
from itertools import product
from math import inf

import numpy as np
from numpy.typing import NDArray

from splitnet.planner.search.problem import Problem, device_classes

__all__ = [
    "MAX_BLOCKS",
    "affordable_blocks",
    "chain_partition",
    "cut_table",
    "interval_loads",
    "state_count",
]

Floats = NDArray[np.float64]
Cuts = list[tuple[int, int, int]]

MAX_BLOCKS = 1200
MAX_STATES = 600


def chain_partition(
    problem: Problem,
    order: Sequence[int],
    *,
    line: Sequence[int] | None = None,
    most_blocks: int = MAX_BLOCKS,
) -> tuple[float, list[int], list[int]] | None:
    """Cut `order` into one interval per device so that the busiest is least busy.

    Objective: max-load over plans whose devices hold intervals of `order`; optimal for
    those when `order` has at most `most_blocks` groups (longer orders are cut into
    equal blocks first). With a topological order of the forward graph the plan is a
    `pipeline`. Identical devices are counted, not permuted; with too many distinct
    classes the devices are taken in the order `line`. O(states x groups^2) in numpy.

    Returns the value, the assignment and the devices in order, or None if no cut fits.
    Source: DPL of Tarnawski et al. (NeurIPS 2020).
    """
    blocks = _blocks(order, most_blocks)
    found = cut_table(interval_loads(problem, order, blocks), problem, line=line)
    if found is None:
        return None
    value, cuts = found
    assignment = [0] * problem.group_count
    for device, start, stop in cuts:
        for position in range(blocks[start], blocks[stop]):
            assignment[order[position]] = device
    return value, assignment, [device for device, _, _ in cuts]


def cut_table(
    table: Sequence[Floats], problem: Problem, *, line: Sequence[int] | None = None
) -> tuple[float, Cuts] | None:
    """Go from the first row to the last, a device per step, by the least largest load.

    `table[device][i, j]` is the load of the step from i to j. Returns the value and the
    steps (device, i, j); None if there is no way. Exact unless a `line` is given, or
    taken because the devices have too many states.
    """
    if line is not None or state_count(problem) > MAX_STATES:
        return _fixed_line(table, line or _by_speed(problem))
    owner = device_classes(problem)
    classes: list[list[int]] = [[] for _ in range(1 + max(owner))]
    for device, number in enumerate(owner):
        classes[number].append(device)
    return _counted(table, classes)


def state_count(problem: Problem) -> int:
    """Return how many different sets of devices there are, equal ones only counted."""
    owner = device_classes(problem)
    states = 1
    for number in sorted(set(owner)):
        states *= owner.count(number) + 1
    return states


def affordable_blocks(problem: Problem, seconds: float) -> int:
    """Return how many blocks a cut may have to take about `seconds`; 0: no time at all.

    Rough costs of CPython and numpy on one current core, erring on the slow side.
    """
    pins = sum(1 + len(net.consumers) for net in problem.nets)
    left = seconds - 8e-6 * pins - 2e-6 * problem.group_count
    classes = 1 + max(device_classes(problem), default=0)
    states = min(state_count(problem), MAX_STATES) * classes
    cell = 5e-8 * problem.kind_count + 6e-9 * states
    return min(MAX_BLOCKS, int(max(0.0, left / cell) ** 0.5))


def _blocks(order: Sequence[int], most: int) -> list[int]:
    count = min(len(order), most)
    return [round(index * len(order) / max(count, 1)) for index in range(count + 1)]


def _by_speed(problem: Problem) -> list[int]:
    return sorted(
        range(len(problem.devices)),
        key=lambda d: min(
            (row[problem.devices[d].kind] for row in problem.seconds), default=0.0
        ),
    )


def interval_loads(
    problem: Problem, order: Sequence[int], blocks: Sequence[int]
) -> list[Floats]:
    """Return per device the load of blocks[i:j] of `order` at [i, j]; inf: not allowed.

    Devices of one class share one array. O(kinds x blocks^2 + pins of nets).
    """
    count = len(blocks) - 1
    place = np.empty(problem.group_count, dtype=np.int64)
    sizes = np.diff(np.asarray(blocks))
    place[np.asarray(order, dtype=np.int64)] = np.repeat(np.arange(count), sizes)
    kinds = problem.kind_count
    transfer = _transfer(problem, place.tolist(), count, kinds)
    times = np.asarray(problem.seconds, dtype=np.float64)
    size = _prefix(np.asarray(problem.size_bytes), place, count)
    room = size[None, :] - size[:, None]
    below = np.tri(count + 1, k=-1, dtype=bool)
    shared: dict[int, Floats] = {}
    result: list[Floats] = []
    for device, number in enumerate(device_classes(problem)):
        if number not in shared:
            kind = problem.devices[device].kind
            fits = {row: device in row for row in set(problem.allowed)}
            able = np.asarray([fits[row] for row in problem.allowed])
            work = _prefix(np.where(able, times[:, kind], 0.0), place, count)
            bad = _prefix((~able).astype(np.float64), place, count)
            load = work[None, :] - work[:, None] + transfer[kind]
            load[bad[None, :] - bad[:, None] > 0.5] = inf
            # Rounding in the prefix sums must not refuse what exactly fits.
            capacity = problem.devices[device].capacity_bytes * (1 + 1e-13)
            load[room > capacity] = inf
            load[below] = inf
            shared[number] = load
        result.append(shared[number])
    return result


def _prefix(values: Floats, place: NDArray[np.int64], count: int) -> Floats:
    sums = np.bincount(place, weights=values, minlength=count)
    return np.concatenate([[0.0], np.cumsum(sums)])


def _transfer(
    problem: Problem, place: Sequence[int], count: int, kinds: int
) -> list[Floats]:
    points: list[int] = []
    point_net: list[int] = []
    low: list[int] = []
    high: list[int] = []
    pair_net: list[int] = []
    pair_sign: list[float] = []

    def pair(a: int, b: int, sign: float) -> None:
        low.append(a if a < b else b)
        high.append(b if a < b else a)
        pair_net.append(index)
        pair_sign.append(sign)

    for index, net in enumerate(problem.nets):
        home = place[net.producer]
        points.append(home)
        point_net.append(index)
        if len(net.consumers) == 1:
            guest = place[net.consumers[0]]
            points.append(guest)
            point_net.append(index)
            pair(home, guest, -2.0)
            continue
        guests = sorted({place[consumer] for consumer in net.consumers})
        # some consumer inside = consumers inside - neighbouring pairs inside
        points.extend(guests)
        point_net.extend([index] * len(guests))
        for a, b in zip(guests, guests[1:], strict=False):
            pair(a, b, -1.0)
        # producer and all consumers inside: nothing leaves
        pair(min(home, guests[0]), max(home, guests[-1]), -1.0)
        # producer inside: what is received needs no receiving
        left = max((g for g in guests if g <= home), default=None)
        right = min((g for g in guests if g > home), default=None)
        if left is not None:
            pair(left, home, -1.0)
        if right is not None:
            pair(home, right, -1.0)
        if left is not None and right is not None:
            pair(left, right, 1.0)
    tables = []
    for kind in range(kinds):
        cost = np.asarray([net.seconds[kind] for net in problem.nets])
        table = np.zeros((count + 1, count + 1))
        if len(cost):
            sums = np.bincount(points, weights=cost[point_net], minlength=count)
            line = np.concatenate([[0.0], np.cumsum(sums)])
            weight = cost[pair_net] * np.asarray(pair_sign)
            np.add.at(table, (np.asarray(low), np.asarray(high) + 1), weight)
            table = np.cumsum(np.cumsum(table[::-1], axis=0)[::-1], axis=1)
            table += line[None, :] - line[:, None]
        tables.append(table)
    return tables


def _fixed_line(
    table: Sequence[Floats], line: Sequence[int]
) -> tuple[float, Cuts] | None:
    size = len(table[0])
    before = np.full(size, inf)
    before[0] = 0.0
    rows = [before]
    for device in line:
        rows.append(np.maximum(rows[-1][:, None], table[device]).min(axis=0))
    value, stop, cuts = float(rows[-1][-1]), size - 1, []
    if value == inf:
        return None
    for index in range(len(line) - 1, -1, -1):
        start = int(np.maximum(rows[index], table[line[index]][:, stop]).argmin())
        cuts.append((line[index], start, stop))
        stop = start
    return value, cuts[::-1]


def _counted(
    table: Sequence[Floats], classes: Sequence[Sequence[int]]
) -> tuple[float, Cuts] | None:
    size = len(table[0])
    first = np.full(size, inf)
    first[0] = 0.0
    zero = (0,) * len(classes)
    rows: dict[tuple[int, ...], Floats] = {zero: first}
    whole = tuple(len(row) for row in classes)
    for state in product(*(range(number + 1) for number in whole)):
        if state == zero:
            continue
        best = np.full(size, inf)
        for number, members in enumerate(classes):
            if state[number]:
                back = rows[_less(state, number)]
                here = np.maximum(back[:, None], table[members[0]]).min(axis=0)
                best = np.minimum(best, here)
        rows[state] = best
    value, stop = float(rows[whole][-1]), size - 1
    if value == inf:
        return None
    cuts: Cuts = []
    left = whole
    while left != zero:
        target = rows[left][stop]
        for number, members in enumerate(classes):
            if not left[number]:
                continue
            before = _less(left, number)
            column = np.maximum(rows[before], table[members[0]][:, stop])
            start = int(column.argmin())
            if column[start] <= target:
                cuts.append((members[left[number] - 1], start, stop))
                left, stop = before, start
                break
    return value, cuts[::-1]


def _less(state: tuple[int, ...], number: int) -> tuple[int, ...]:
    return (*state[:number], state[number] - 1, *state[number + 1 :])
