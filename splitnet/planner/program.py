"""Linear and integer programs whose optimum no placement can beat (HiGHS).

Variables      x[g, d]    group g is on device d (or on any of a class of twins)
               T          seconds of the step
               f[c], b[c] when call c starts forward and backward
               y[g, h]    groups g and h are on different devices

Minimise T so that every group is somewhere, and

    load     each device computes for at most T, and holds what it has room for
    order    a call starts when its inputs are made and, over a cut, copied
    end      T is after every backward pass and its update

Left out, so that the optimum is a lower bound and not the step itself: that devices and
links do one thing at a time in some order, and what shared weights cost to move.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from splitnet.planner.board import Assignment, Board
from splitnet.planner.linear import Rows, optimum

__all__ = ["Solved", "is_small", "load_bound", "solve"]

_MOST_LOAD_COLUMNS = 40_000
_MOST_COLUMNS = 1500
_MOST_ROWS = 6000


@dataclass(frozen=True, slots=True)
class Solved:
    """A proven lower bound in seconds, and the placement that the program likes."""

    bound: float
    chosen: Assignment | None


def load_bound(board: Board) -> float:
    """The least possible load of the busiest device, if groups could be divided.

    A linear program over classes of twins, with memory; seconds. 0 where it would be
    too large.
    """
    classes: dict[int, list[int]] = {}
    for device, twin in enumerate(board.twin_of):
        classes.setdefault(twin, []).append(device)
    if board.group_count * len(classes) > _MOST_LOAD_COLUMNS:
        return 0.0
    rows, seconds, need = Rows(), _group_seconds(board), board.group_bytes
    unit = _scale(seconds)
    total = rows.column()
    share = [
        {c: rows.column() for c in classes if c in board.allowed[g]}
        for g in range(board.group_count)
    ]
    for columns in share:
        rows.row([(column, 1.0) for column in columns.values()], 1.0, 1.0)
    for first, twins in classes.items():
        users = [g for g, columns in enumerate(share) if first in columns]
        load = [(share[g][first], -seconds[first][g] / unit) for g in users]
        rows.row([(total, float(len(twins))), *load], 0.0)
        room = board.capacity[first] * len(twins)
        if room and sum(need) > room:
            held = [(share[g][first], need[g] / room) for g in users]
            rows.row(held, -inf, 1.0)
    bound, _ = optimum(rows, total, None)
    return bound * unit


def is_small(board: Board) -> bool:
    """Whether `solve` takes a moment."""
    step = board.calls
    edges = sum(len(net.readers) + len(net.backward) for net in step.nets)
    columns = board.group_count * len(board.capacity) + 2 * step.count + edges
    rows = edges * (1 + len(board.capacity)) + 4 * step.count
    return columns <= _MOST_COLUMNS and rows <= _MOST_ROWS


def solve(board: Board, time_limit: float) -> Solved:
    """Solve the program, or what a limited number of nodes allows of it.

    `time_limit` in seconds is a safety only.
    """
    program = _Program(board)
    bound, values = optimum(program.rows, program.total, time_limit)
    return Solved(
        bound * program.unit, None if values is None else program.chosen(values)
    )


class _Program:
    """The integer program of a board; times are in units of `unit` seconds."""

    def __init__(self, board: Board) -> None:
        self.board, self.rows = board, Rows()
        self.group = [board.group_of_unit[unit] for unit in board.unit_of_call]
        self.seconds = _group_seconds(board)
        self.unit = _scale(self.seconds)
        self.total = self.rows.column()
        self.on = [
            {d: self.rows.column(1.0, whole=True) for d in devices}
            for devices in board.allowed
        ]
        self.cut: dict[tuple[int, int], int] = {}
        for columns in self.on:
            self.rows.row([(column, 1.0) for column in columns.values()], 1.0, 1.0)
        for a, b in board.apart:
            for d in self.on[a]:
                if d in self.on[b]:
                    self.rows.row(
                        [(self.on[a][d], 1.0), (self.on[b][d], 1.0)], 0.0, 1.0
                    )
        self._loads()
        self._order()

    def _loads(self) -> None:
        need = self.board.group_bytes
        for device, room in enumerate(self.board.capacity):
            users = [g for g, columns in enumerate(self.on) if device in columns]
            load = [
                (self.on[g][device], -self.seconds[device][g] / self.unit)
                for g in users
            ]
            self.rows.row([(self.total, 1.0), *load], 0.0)
            if room and sum(need[g] for g in users) > room:
                held = [(self.on[g][device], need[g] / room) for g in users]
                self.rows.row(held, -inf, 1.0)

    def _order(self) -> None:
        """Forward, backward and end; see the head of this file."""
        step, rows = self.board.calls, self.rows
        f = [rows.column() for _ in range(step.count)]
        b = [rows.column() if flows else -1 for flows in step.has_backward]
        for net in step.nets:
            u = net.source
            for v in net.readers:
                entries = [(f[v], 1.0), (f[u], -1.0), *self._took(step.forward, u)]
                rows.row([*entries, *self._copied(net.bytes, net.seconds, u, v)], 0.0)
            for v in net.backward:
                sent = 1.0 - step.late_share[v] if step.late_share else 1.0
                took = [(x, sent * s) for x, s in self._took(step.backward, v)]
                entries = [(b[u], 1.0), (b[v], -1.0), *took]
                rows.row([*entries, *self._copied(net.bytes, net.seconds, v, u)], 0.0)
        for c in range(step.count):
            forward = self._took(step.forward, c)
            if b[c] < 0:
                rows.row([(self.total, 1.0), (f[c], -1.0), *forward], 0.0)
                continue
            rows.row([(b[c], 1.0), (f[c], -1.0), *forward], 0.0)
            end = [*self._took(step.backward, c)]
            if step.has_update[c]:
                end += self._took(step.update, c)
            rows.row([(self.total, 1.0), (b[c], -1.0), *end], 0.0)

    def _took(
        self, table: Sequence[Sequence[float]], call: int
    ) -> list[tuple[int, float]]:
        """Minus the seconds of a call, wherever it is."""
        columns = self.on[self.group[call]]
        return [(x, -table[d][call] / self.unit) for d, x in columns.items()]

    def _copied(
        self, size: int, known: float | None, source: int, target: int
    ) -> list[tuple[int, float]]:
        """Minus the seconds of the fastest copy, if the two are on two devices."""
        a, b = self.group[source], self.group[target]
        if a == b:
            return []
        step = self.board.calls
        least = known
        if least is None:
            roads = [(d, e) for d in self.on[a] for e in self.on[b] if d != e]
            least = min(
                (step.latency[d][e] + size * step.seconds_per_byte[d][e])
                for d, e in roads or [(0, 0)]
            )
        return [(self._apart(a, b), -least / self.unit)] if least else []

    def _apart(self, a: int, b: int) -> int:
        """The variable that is 1 where two groups are on different devices."""
        pair = (min(a, b), max(a, b))
        if pair not in self.cut:
            column = self.cut[pair] = self.rows.column(1.0)
            for d, x in self.on[pair[0]].items():
                other = self.on[pair[1]].get(d)
                entries = [(column, 1.0), (x, -1.0)]
                if other is not None:
                    entries.append((other, 1.0))
                self.rows.row(entries, 0.0)
        return self.cut[pair]

    def chosen(self, values: Sequence[float]) -> Assignment:
        """The device that each group is on in a solution."""
        return tuple(
            max(columns, key=lambda d: (values[columns[d]], -d)) for columns in self.on
        )


def _group_seconds(board: Board) -> list[list[float]]:
    """Seconds that each device (outer) works for each group (inner), call by call."""
    step = board.calls
    result = []
    for tables in zip(step.forward, step.backward, step.update):
        row = [0.0] * board.group_count
        for call, unit in enumerate(board.unit_of_call):
            row[board.group_of_unit[unit]] += sum(table[call] for table in tables)
        result.append(row)
    return result


def _scale(seconds: Sequence[Sequence[float]]) -> float:
    """A unit of time in which the program's figures are near 1."""
    fastest = [min(times) for times in zip(*seconds)]
    return sum(fastest) or 1.0
