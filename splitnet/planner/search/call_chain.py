"""Dynamic programming over the cuts of one order, for the latency of calls.

    order    a | b c d | e f g h | i
    run        host  call 0   two calls and the host, side by side

Intervals run one after the other. An interval is one call, or host work, or, where it
falls into independent segments, up to four segments as calls beside host work. The
barriers between intervals exist only in the dynamic program: the plan is judged by the
exact latency, which is at most the program's value. A segment's call may leave its
first and last groups to the host, where what they exchange costs nothing.
"""

from collections.abc import Sequence
from functools import reduce
from math import inf

import numpy as np
from numpy.typing import NDArray

from splitnet.planner.search.chain import interval_loads
from splitnet.planner.search.latency import topological
from splitnet.planner.search.problem import Problem

__all__ = ["chain_calls"]

Floats = NDArray[np.float64]

SIDE_CALLS = 4
LONGEST_REGION = 70
LONGEST_TRIM = 40


def chain_calls(
    problem: Problem, order: Sequence[int], node_groups: Sequence[int], full: Problem
) -> list[int] | None:
    """Cut `order` so that the total time of its intervals is least.

    Objective: call latency with a barrier after every interval; optimal for that, one
    call per accelerator. `full` is the problem with nodes, `node_groups` maps its nodes
    to the groups of `problem`. Accelerators are taken in their given order, and side
    calls fit each of them, which is exact when they are identical.
    O(accelerators x groups^2) in numpy and O(groups x longest region) in Python.
    """
    count = len(order)
    line = [i for i, d in enumerate(problem.devices) if not d.pooled]
    pool = next((i for i, d in enumerate(problem.devices) if d.pooled), -1)
    table = interval_loads(problem, order, list(range(count + 1)))
    place = [0] * count
    for position, group in enumerate(order):
        place[group] = position
    before: list[list[int]] = [[] for _ in range(count)]
    for a, b in problem.forward:
        before[place[b]].append(place[a])
    below = np.tri(count + 1, k=-1, dtype=bool)
    host = np.full((count + 1, count + 1), inf)
    if pool >= 0:
        host = _host_table(full, node_groups, place, pool)
        host[below | np.isinf(table[pool])] = inf
    # Side calls are priced where they are dearest, so that they fit wherever they go.
    call = np.full_like(host, inf)
    if line:
        call = reduce(np.maximum, [table[d] for d in line])
    cost = np.full((SIDE_CALLS + 1, count + 1, count + 1), inf)
    cost[0], cost[1] = host, call
    trim = _Trim(host, call)
    if pool >= 0 and line:
        _side_calls(cost, before, host.tolist(), trim)
    found = _cut(cost, [table[d] for d in line])
    if found is None:
        return None
    cuts, used = found
    result = [pool] * problem.group_count
    for start, stop, number in cuts:
        if number == 0:
            continue
        parts = [(start, stop)]
        alone = table[line[used]][start, stop]
        if number > 1 or cost[1, start, stop] < alone:
            segments = _segments(before, start, stop)
            segments.sort(key=lambda ab: (-host[ab], trim.best(*ab)[0]))
            parts = [trim.best(*ab)[1:] for ab in segments[:number]]
        for (a, b), device in zip(parts, line[used:], strict=False):
            for position in range(a, b):
                result[order[position]] = device
        used += number
    return result


class _Trim:
    """The best call of a segment: its first and last groups may stay on the host."""

    __slots__ = ("_call", "_host", "_known")

    def __init__(self, host: Floats, call: Floats) -> None:
        self._host = host
        self._call = call.copy()
        self._call[np.tri(len(call), dtype=bool)] = inf
        self._known: dict[tuple[int, int], tuple[float, int, int]] = {}

    def best(self, start: int, stop: int) -> tuple[float, int, int]:
        """Return its seconds and the call's interval; O(length^2) in numpy."""
        found = self._known.get((start, stop))
        if found is None:
            found = (float(self._call[start, stop]), start, stop)
            if stop - start <= LONGEST_TRIM:
                total = (
                    self._host[start, start:stop, None]
                    + self._call[start:stop, start + 1 : stop + 1]
                    + self._host[None, start + 1 : stop + 1, stop]
                )
                row, column = divmod(int(total.argmin()), stop - start)
                value = float(total[row, column])
                if value < found[0]:
                    found = (value, start + row, start + column + 1)
            self._known[start, stop] = found
        return found


def _host_table(
    full: Problem, node_groups: Sequence[int], place: Sequence[int], pool: int
) -> Floats:
    """Return the longest host path inside every interval of groups.

    A backward pass comes after the forward pass and runs from the last group to the
    first, so its path adds to the forward one.
    """
    late = full.nodes.backward
    longest = _host_paths(full, node_groups, place, pool, backward=False)
    if any(late):
        count = len(place)
        mirrored = [count - 1 - position for position in place]
        behind = _host_paths(full, node_groups, mirrored, pool, backward=True)
        longest += behind[::-1, ::-1].T
    return longest


def _host_paths(
    full: Problem,
    node_groups: Sequence[int],
    place: Sequence[int],
    pool: int,
    *,
    backward: bool,
) -> Floats:
    """Return the longest path of nodes of one phase inside every interval."""
    count = len(place)
    kind = full.devices[pool].kind
    nodes = full.nodes
    own = [node for node in topological(full) if nodes.backward[node] == backward]
    order = sorted(own, key=lambda node: place[node_groups[node]])
    finish = np.zeros((len(nodes.group), count))
    longest = np.zeros((count + 1, count + 1))
    for node in order:
        position = place[node_groups[node]]
        row = finish[node]
        for source in nodes.predecessors[node]:
            reach = place[node_groups[source]] + 1
            np.maximum(row[:reach], finish[source, :reach], out=row[:reach])
        row[: position + 1] += nodes.seconds[node][kind]
        column = longest[: position + 1, position + 1]
        np.maximum(column, row[: position + 1], out=column)
    return np.maximum.accumulate(longest, axis=1)


def _segments(
    before: Sequence[Sequence[int]], start: int, stop: int
) -> list[tuple[int, int]]:
    heads: list[int] = []
    for position in range(start, stop):
        _extend(heads, before[position], start, position)
    return list(zip(heads, [*heads[1:], stop], strict=True))


def _extend(heads: list[int], before: Sequence[int], start: int, position: int) -> None:
    """Add a position to the stack of independent segments of an interval."""
    low = min((source for source in before if source >= start), default=position)
    head = position
    while heads and heads[-1] > low:
        head = heads.pop()
    if heads and low < position:
        head = heads.pop()
    heads.append(head)


def _side_calls(
    cost: Floats,
    before: Sequence[Sequence[int]],
    host: Sequence[Sequence[float]],
    trim: _Trim,
) -> None:
    """Price regions whose segments run side by side, the longest ones as calls."""
    count = len(before)
    for start in range(count):
        heads: list[int] = []
        for position in range(start, min(count, start + LONGEST_REGION)):
            _extend(heads, before[position], start, position)
            if len(heads) < 2:
                continue
            ends = [*heads[1:], position + 1]
            rows = sorted(
                (-host[a][b], trim.best(a, b)[0])
                for a, b in zip(heads, ends, strict=True)
            )
            top = 0.0
            for number, (slow, fast) in enumerate(rows[:SIDE_CALLS]):
                if fast >= -slow:
                    break
                top = max(top, fast)
                rest = -rows[number + 1][0] if number + 1 < len(rows) else 0.0
                value = max(top, rest)
                if value < cost[number + 1, start, position + 1]:
                    cost[number + 1, start, position + 1] = value


def _cut(
    cost: Floats, alone: Sequence[Floats]
) -> tuple[list[tuple[int, int, int]], int] | None:
    """Return the intervals (start, stop, calls) of least total cost.

    With them comes the number of accelerators that are passed over first.
    """
    count, devices = cost.shape[1] - 1, len(alone)
    same = all(table is alone[0] for table in alone)
    best = np.full((devices + 1, count + 1), inf)
    best[:, 0] = 0.0
    source = np.zeros((devices + 1, count + 1), dtype=np.int64)
    calls = np.zeros((devices + 1, count + 1), dtype=np.int64)
    for stop in range(1, count + 1):
        for number in range(min(SIDE_CALLS, devices) + 1):
            column = cost[number, :stop, stop]
            total = best[: devices + 1 - number, :stop] + column[None, :]
            if number == 1 and not same:
                own = np.stack([table[:stop, stop] for table in alone])
                total = best[:devices, :stop] + own
            start = total.argmin(axis=1)
            value = total[np.arange(len(total)), start]
            better = value < best[number:, stop]
            best[number:, stop][better] = value[better]
            source[number:, stop][better] = start[better]
            calls[number:, stop][better] = number
    used = int(best[:, count].argmin())
    if best[used, count] == inf:
        return None
    cuts, stop = [], count
    while stop:
        start, number = int(source[used, stop]), int(calls[used, stop])
        cuts.append((start, stop, number))
        used, stop = used - number, start
    return cuts[::-1], used
