"""Where candidates come from: each strategy yields assignments, the judge decides."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import monotonic

from splitnet.planner.blocks import Blocks, blocks_of
from splitnet.planner.board import Assignment, Board, Score
from splitnet.planner.chains import chain_cuts
from splitnet.planner.dispatch import dispatched
from splitnet.planner.program import Solved, is_small, solve
from splitnet.planner.refine import refine
from splitnet.planner.schedule import earliest_finish, one_device, ranks

__all__ = [
    "PROGRAM_SECONDS",
    "STRATEGIES",
    "Search",
    "every_assignment",
    "single_device",
    "solved_program",
]

_GRAINS = (64, 256, 32, 128, 16)
"""Blocks per device that `multilevel` aims at, the likeliest first."""

_LARGE = 300
"""Units from which moves of blocks get most of the work, below it moves of groups."""

_FEWEST_PLAYS = 200

_ROUNDS = 3
"""How often `fitted` makes more room."""

PROGRAM_SECONDS = 3.0
"""What the integer program may take; its limit of nodes is met before, as a rule."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy is given.

    `late` says whether the time is up, `best` is the best assignment so far, or None,
    `judged` the score of an assignment that was yielded before, which is rough where it
    is worse than the best. `unit_plays` is the work that local search may do: units
    times judgements.
    """

    board: Board
    draw: random.Random
    deadline: float
    late: Callable[[], bool]
    best: Callable[[], Assignment | None]
    judged: Callable[[Assignment], Score]
    unit_plays: int

    def plays(self, *, blocks: bool) -> int:
        """Judgements for the local search over blocks, or over groups."""
        count = max(1, self.board.units.count)
        most = blocks == (count > _LARGE)
        share = 0.8 if most else 0.2
        return max(_FEWEST_PLAYS, int(share * self.unit_plays / count))


Strategy = Callable[[Search], Iterable[Assignment]]


def single_device(search: Search) -> Iterator[Assignment]:
    """Everything on one device, each in turn; of twins the first.

    Devices without the room come only if there is nothing better to begin with.
    """
    board = search.board
    full = []
    for device, twin in enumerate(board.twin_of):
        if twin != device or all(device not in allowed for allowed in board.allowed):
            continue
        chosen = one_device(board, device)
        if board.has_room(chosen):
            yield chosen
        else:
            full.append(chosen)
    if search.best() is None:
        yield from full[:1]


def list_schedules(search: Search) -> Iterator[Assignment]:
    """Earliest finish: as the step runs, in order of the graph, of HEFT's rank."""
    for chosen in _list_schedules(search.board):
        yield chosen
        if search.late() and search.judged(chosen).feasible:
            return


def _list_schedules(board: Board) -> Iterator[Assignment]:
    yield dispatched(board)
    units = range(board.units.count)
    rank = ranks(board)
    order = sorted(units, key=lambda unit: (-rank[unit], unit))
    for patience in (0.0, 1.0) if board.units.shared else (0.0,):
        yield earliest_finish(board, units, patience=patience)
        yield earliest_finish(board, order, patience=patience)


def chain_dp(search: Search) -> Iterator[Assignment]:
    """Cuts of one topological order, by dynamic programming; see `chains`."""
    yield from chain_cuts(search.board)


def multilevel(search: Search) -> Iterator[Assignment]:
    """List schedules over blocks of several sizes, and local search over the best.

    (The idea of Karypis and Kumar's multilevel partitioning, 1998, with blocks that
    keep the graph without a cycle.)
    """
    board = search.board
    times = board.units.unit_seconds
    total = sum(min(row[u] for row in times) for u in range(board.units.count))
    best: tuple[Score, Blocks, Assignment] | None = None
    for blocks in _levels(board, total):
        for chosen in _list_schedules(blocks.board):
            spread = blocks.expand(chosen)
            yield spread
            found = search.judged(spread)
            if best is None or found < best[0]:
                best = (found, blocks, chosen)
        if search.late():
            return
    if best is None:
        return
    _, blocks, start = best
    yield from refine(
        blocks.board,
        start,
        search.draw,
        search.late,
        plays=search.plays(blocks=True),
        confirm=search.judged,
        spread=blocks.expand,
        judge=lambda moved, unless: board.quick(blocks.expand(moved), unless),
    )


def _levels(board: Board, total_seconds: float) -> Iterator[Blocks]:
    """Coarser boards of different sizes; the board itself is other strategies'."""
    seen: dict[int, None] = {board.units.count: None}
    for grain in _GRAINS:
        limit = total_seconds / (grain * max(1, len(board.capacity) - 1))
        blocks = blocks_of(board, limit)
        if blocks and blocks.board.units.count not in seen:
            seen[blocks.board.units.count] = None
            yield blocks


def local_search(search: Search) -> Iterator[Assignment]:
    """Moves of single groups from the best so far; see `refine`."""
    start = search.best()
    if start is None:
        start = earliest_finish(search.board, range(search.board.units.count))
        yield start
    others: list[Assignment] = []
    if search.board.units.count <= _LARGE:
        others = [*_list_schedules(search.board), *single_device(search)]
    yield from _refined(search, search.board, start, others)


def _refined(
    search: Search,
    board: Board,
    start: Assignment,
    others: Sequence[Assignment] = (),
) -> Iterator[Assignment]:
    return refine(
        board,
        start,
        search.draw,
        search.late,
        plays=search.plays(blocks=False),
        confirm=search.judged,
        others=others,
    )


def fitted(search: Search) -> Iterator[Assignment]:
    """If nothing fits yet: again, with room kept for what comes and goes.

    List schedules and cuts count what a device holds whatever the schedule. What
    copies, workspace and short-lived outputs took beside that in the best assignment so
    far is taken off each device's memory, a few times over.
    """
    board = search.board
    if board.overfull:
        return
    spare = [0] * len(board.capacity)
    for _ in range(_ROUNDS):
        best = search.best()
        if best is None or search.judged(best).feasible:
            return
        spare = [max(a, b) for a, b in zip(spare, board.passing_bytes(best))]
        room = tuple(max(0, top - own) for top, own in zip(board.capacity, spare))
        tight = replace(board, capacity=room)
        yield from _list_schedules(tight)
        yield from chain_cuts(tight)
        if search.late():
            return
        yield from _refined(search, tight, best)


def exhaustive(search: Search) -> Iterator[Assignment]:
    """Every assignment there is but for the names of twins, in order of declaration."""
    return every_assignment(search.board)


def every_assignment(board: Board) -> Iterator[Assignment]:
    """All assignments but for the names of twins; see `exhaustive`."""
    chosen = [devices[0] for devices in board.allowed]
    twin = board.twin_of

    def fill(group: int, used: frozenset[int]) -> Iterator[Assignment]:
        if group == len(chosen):
            yield tuple(chosen)
            return
        fresh: dict[int, None] = {}
        for device in board.allowed[group]:
            if device not in used:
                # Of twins that nobody uses yet one is as good as another.
                if twin[device] in fresh:
                    continue
                fresh[twin[device]] = None
            chosen[group] = device
            yield from fill(group + 1, used | {device})

    return fill(0, frozenset())


def simple(search: Search) -> Iterator[Assignment]:
    """Every baseline, and nothing that takes long."""
    yield from single_device(search)
    yield from list_schedules(search)
    yield from chain_dp(search)
    yield from fitted(search)


def program(search: Search) -> Iterator[Assignment]:
    """What an integer program that looks away from queues likes best; see `program`."""
    chosen = solved_program(search.board, search.deadline - monotonic()).chosen
    if chosen is not None:
        yield chosen


STRATEGIES: dict[str, Strategy] = {
    "single_device": single_device,
    "earliest_finish": list_schedules,
    "chain": chain_dp,
    "fitted": fitted,
    "multilevel": multilevel,
    "refine": local_search,
    "program": program,
    "exhaustive": exhaustive,
    "simple": simple,
}


def solved_program(board: Board, seconds_left: float) -> Solved:
    """The integer program's bound and liking, where it is for this board."""
    if board.objective != "latency" or not is_small(board):
        return Solved(0.0, None)
    return solve(board, max(0.1, min(PROGRAM_SECONDS, seconds_left)))
