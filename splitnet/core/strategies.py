"""Where candidates come from: each strategy yields assignments, the judge decides."""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from splitnet.core.blocks import Blocks, blocks_of
from splitnet.core.board import Assignment, Board, Score
from splitnet.core.chains import chain_cuts
from splitnet.core.program import Solved, is_small, solve
from splitnet.core.refine import refine
from splitnet.core.schedule import earliest_finish, one_device, ranks, unit_seconds

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

PROGRAM_SECONDS = 3.0
"""What the integer program may take; its limit of nodes is met before, as a rule."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a strategy is given.

    `late` says whether the time is up, `best` is the best assignment so far, or None,
    `judged` the score of an assignment that was yielded before, which is rough where it
    is worse than the best.
    """

    board: Board
    draw: random.Random
    deadline: float
    late: Callable[[], bool]
    best: Callable[[], Assignment | None]
    judged: Callable[[Assignment], Score]


Strategy = Callable[[Search], Iterable[Assignment]]


def single_device(search: Search) -> Iterator[Assignment]:
    """Everything on one device, each in turn; of twins the first."""
    board = search.board
    for device, twin in enumerate(board.twin_of):
        if twin == device and any(device in allowed for allowed in board.allowed):
            yield one_device(board, device)


def list_schedules(search: Search) -> Iterator[Assignment]:
    """Earliest finish, in order of the graph and in order of HEFT's rank."""
    yield from _list_schedules(search.board)


def _list_schedules(board: Board) -> Iterator[Assignment]:
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
    times = unit_seconds(board)
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
    for chosen in refine(
        blocks.board,
        start,
        search.draw,
        search.late,
        judge=lambda moved: board.quick(blocks.expand(moved)),
        plays=board.units.count,
    ):
        yield blocks.expand(chosen)


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
    yield from refine(search.board, start, search.draw, search.late)


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


def program(search: Search) -> Iterator[Assignment]:
    """What an integer program that looks away from queues likes best; see `program`."""
    chosen = solved_program(search.board, search.deadline - monotonic()).chosen
    if chosen is not None:
        yield chosen


STRATEGIES: dict[str, Strategy] = {
    "single_device": single_device,
    "earliest_finish": list_schedules,
    "chain": chain_dp,
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
