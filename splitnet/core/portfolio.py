"""Run the strategies that fit the size of the problem, and return the best found.

The exact judge decides, so the result is never worse than any baseline that is tried:
everything on one device (each of them), and list schedules with memory.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from splitnet.core.blocks import Blocks, blocks_of
from splitnet.core.board import Assignment, Board, Score
from splitnet.core.bounds import lower_bound
from splitnet.core.chains import chain_cuts
from splitnet.core.program import Solved, is_small, solve
from splitnet.core.refine import refine
from splitnet.core.schedule import earliest_finish, one_device, ranks, unit_seconds

__all__ = ["STRATEGIES", "Found", "best_assignment", "exhaustive", "proven_bound"]

_EXHAUSTIVE_PLAYS = 20_000
"""If all assignments together play no more calls, all are tried: then it is proven."""

_GRAINS = (64, 256, 32, 128, 16)
"""Blocks per device that `multilevel` aims at, the likeliest first."""

_PROGRAM_SECONDS = 3.0
"""What the integer program may take; its limit of nodes is met before, as a rule."""

_WORST = Score(1 << 60, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Found:
    """The best assignment, who found it, and what cannot be beaten."""

    chosen: Assignment
    strategy: str
    bound: float
    feasible: bool = True


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
    """Coarser boards of different sizes, and last the board itself."""
    seen: dict[int, None] = {board.units.count: None}
    for grain in _GRAINS:
        limit = total_seconds / (grain * max(1, len(board.capacity) - 1))
        blocks = blocks_of(board, limit)
        if blocks and blocks.board.units.count not in seen:
            seen[blocks.board.units.count] = None
            yield blocks
    yield Blocks(board, range(board.group_count))


def local_search(search: Search) -> Iterator[Assignment]:
    """Moves of single groups from the best so far; see `refine`."""
    start = search.best()
    if start is None:
        start = earliest_finish(search.board, range(search.board.units.count))
        yield start
    yield from refine(search.board, start, search.draw, search.late)


def exhaustive(search: Search) -> Iterator[Assignment]:
    """Every assignment there is but for the names of twins, in order of declaration."""
    return _every(search.board)


def _every(board: Board) -> Iterator[Assignment]:
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
    chosen = _solved(search.board, search.deadline - monotonic()).chosen
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


def best_assignment(
    board: Board,
    *,
    strategy: str = "auto",
    time_limit: float = 5.0,
    seed: int = 0,
    on_progress: Callable[[float, float], None] | None = None,
) -> Found:
    """Search until the work planned for this size is done, or time is up.

    The work is counted in moves, not seconds, so that equal seeds give equal plans
    unless the deadline cuts in. If nothing fits, the least broken is returned. An
    interrupt from the keyboard keeps the best so far.
    """
    tried = _Best(board, monotonic(), time_limit, on_progress)
    bound = lower_bound(board)
    search = Search(
        board,
        random.Random(seed),
        tried.deadline,
        lambda: tried.late,
        lambda: tried.chosen,
        tried.seen.__getitem__,
    )
    names = [strategy]
    if strategy == "auto":
        names = ["single_device", "chain", "multilevel", "refine"]
        if _is_small(board):
            names = ["single_device", "earliest_finish", "exhaustive"]
    try:
        for name in names:
            complete = tried.add(name, STRATEGIES[name](search))
            if name == "exhaustive" and complete and tried.score.feasible:
                bound = tried.score.value
            if tried.meets(bound):
                break
        if strategy == "auto" and not tried.meets(bound) and not tried.late:
            solved = _solved(board, tried.deadline - monotonic())
            bound = max(bound, solved.bound)
            tried.add("program", [solved.chosen] if solved.chosen else [])
    except KeyboardInterrupt:
        if tried.chosen is None:
            raise
    if tried.chosen is None:
        tried.add("single_device", single_device(search))
    assert tried.chosen is not None, "some device takes everything that may be there"
    return Found(tried.chosen, tried.strategy, bound, tried.score.feasible)


def proven_bound(board: Board) -> float:
    """The bound that a search of this board would prove without searching long.

    By exhaustion where that takes a moment, else by the integer program.
    """
    if not _is_small(board):
        return max(lower_bound(board), _solved(board, _PROGRAM_SECONDS).bound)
    best = _WORST
    for chosen in _every(board):
        best = min(best, board.exact(chosen, unless=best))
    return best.value if best.feasible else lower_bound(board)


def _solved(board: Board, seconds_left: float) -> Solved:
    """The integer program's bound and liking, where it is for this board."""
    if board.objective != "latency" or not is_small(board):
        return Solved(0.0, None)
    return solve(board, max(0.1, min(_PROGRAM_SECONDS, seconds_left)))


def _is_small(board: Board) -> bool:
    """Whether every assignment can be tried in a second or so."""
    most = _EXHAUSTIVE_PLAYS // max(1, board.calls.count)
    return board.combinations(most) <= most


class _Best:
    """The best assignment so far, by the exact judge; the first of equals stays."""

    def __init__(
        self,
        board: Board,
        began: float,
        time_limit: float,
        on_progress: Callable[[float, float], None] | None,
    ) -> None:
        self.board, self.on_progress = board, on_progress
        self.began, self.time_limit = began, time_limit
        self.deadline = began + time_limit
        self.chosen: Assignment | None = None
        self.score = _WORST
        self.strategy = ""
        self.seen: dict[Assignment, Score] = {}
        self.reserve = 0.0

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return monotonic() > self.deadline - self.reserve

    def meets(self, bound: float) -> bool:
        """Whether nothing is left to find."""
        return self.score.feasible and self.score.value <= bound * (1 + 1e-6)

    def add(self, strategy: str, candidates: Iterable[Assignment]) -> bool:
        """Judge candidates; False if time ran out before the last."""
        for chosen in candidates:
            if chosen in self.seen:
                continue
            now = monotonic()
            if self.chosen is not None and now > self.deadline - self.reserve:
                return False
            score = self.board.exact(chosen, unless=self.score)
            self.seen[chosen] = score
            # What a plan is made of afterwards takes about as long as two judgements.
            self.reserve = max(self.reserve, 2 * (monotonic() - now))
            if self.chosen is None or score < self.score:
                self.chosen, self.score, self.strategy = chosen, score, strategy
                if self.on_progress and score.feasible:
                    share = min(1.0, (now - self.began) / max(1e-9, self.time_limit))
                    self.on_progress(share, score.value)
        return True
