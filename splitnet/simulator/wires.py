"""The wires of a step: what every task waits for, wherever units are placed.

A unit has up to three tasks. They are numbered in the order of ties: n forward as the
graph stands, n backward from its end, n update as the graph stands.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Debt", "Net", "Shared", "Wires", "tails_of", "wires_of"]


@dataclass(frozen=True, slots=True)
class Net:
    """One output of a unit on its way to every unit that reads it, in bytes.

    `backward` lists the readers that send a gradient back, `kept` those whose backward
    pass reads it again; `seconds` overrides the link's time where a workload file knows
    it.
    """

    source: int
    readers: tuple[int, ...]
    bytes: int
    backward: tuple[int, ...] = ()
    seconds: float | None = None
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Shared:
    """A weight of several units; its home is the device of `users[0]`.

    `backward` lists the users that send a gradient home: the whole, or where `rows`,
    if given, has a number above 0 for that user, so many bytes of rows.
    """

    name: str
    bytes: int
    users: tuple[int, ...]
    backward: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Debt:
    """A gradient that a device's readers, together, send home.

    `kind` indexes COPY_KINDS, `item` the nets or the shared weights; `senders` are
    tasks, `task` is the one at home that waits for them. `rows` is as for `Shared`.
    """

    kind: int
    item: int
    senders: tuple[int, ...]
    task: int
    bytes: int
    rows: tuple[int, ...] = ()

    def bytes_from(self, there: Sequence[bool]) -> int:
        """What those senders that are `there` send: the whole once, rows each."""
        if not self.rows:
            return self.bytes
        sent = [rows for rows, one in zip(self.rows, there) if one]
        return sum(sent) + (0 if all(sent) else self.bytes)


@dataclass(frozen=True, slots=True)
class Wires:
    """Who hears of whom; lists per task.

    `pending` counts what a task waits for, but for debts; `follows` lists tasks that
    wait for it and for no copy, `outgoing` the nets of a unit, `owes` the debts that a
    task has a share in.
    """

    pending: Sequence[int]
    follows: Sequence[Sequence[int]]
    outgoing: Sequence[Sequence[int]]
    owes: Sequence[Sequence[int]]
    debts: Sequence[Debt]


def wires_of(
    nets: Sequence[Net],
    shared: Sequence[Shared],
    *,
    has_backward: Sequence[bool],
    has_update: Sequence[bool],
    waits: Sequence[tuple[int, int]] = (),
) -> Wires:
    """Who hears of whom; `waits` as in `Step`. O(units + edges)."""
    n = len(has_backward)
    last = 2 * n - 1  # the backward task of unit u is last - u
    pending = [0] * (3 * n)
    follows: list[list[int]] = [[] for _ in range(3 * n)]
    outgoing: list[list[int]] = [[] for _ in range(n)]
    owes: list[list[int]] = [[] for _ in range(3 * n)]
    debts: list[Debt] = []

    def follow(task: int, after: int) -> None:
        follows[after].append(task)
        pending[task] += 1

    def owe(
        kind: int,
        item: int,
        users: Sequence[int],
        task: int,
        size: int,
        rows: tuple[int, ...] = (),
    ) -> None:
        senders = tuple(last - user for user in users)
        for sender in senders:
            owes[sender].append(len(debts))
        debts.append(Debt(kind, item, senders, task, size, rows))

    for unit, other in waits:
        follow(unit, last - other)
    for unit in range(n):
        if has_backward[unit]:
            follow(last - unit, unit)
            if has_update[unit]:
                follow(2 * n + unit, last - unit)
    for number, net in enumerate(nets):
        outgoing[net.source].append(number)
        for reader in net.readers:
            pending[reader] += 1
        if net.backward:
            owe(1, number, net.backward, last - net.source, net.bytes)
    for number, one in enumerate(shared):
        if one.backward:
            home = 2 * n + one.users[0]
            owe(3, number, one.backward, home, one.bytes, one.rows)
    return Wires(pending, follows, outgoing, owes, debts)


def tails_of(
    wires: Wires,
    nets: Sequence[Net],
    fastest: Sequence[float],
    early: Sequence[float],
) -> list[float]:
    """The least seconds from the end of every task to the end of the step.

    With every task as `fastest` as it can be and copies free; a task that waits for
    one of a later number is left out. `early` are the most seconds before its end at
    which a task's gradients may leave. O(units + edges).
    """
    n = len(wires.outgoing)
    tails = [0.0] * len(fastest)
    for task in reversed(range(len(fastest))):
        after = list(wires.follows[task])
        if task < n:
            after += [
                reader for i in wires.outgoing[task] for reader in nets[i].readers
            ]
        owed = [wires.debts[i].task for i in wires.owes[task]]
        rest = [(other, 0.0) for other in after] + [(o, early[task]) for o in owed]
        tails[task] = max(
            (fastest[o] + tails[o] - lead for o, lead in rest if o > task), default=0.0
        )
        tails[task] = max(tails[task], 0.0)
    return tails
