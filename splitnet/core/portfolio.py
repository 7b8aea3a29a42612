"""Run the strategies that fit the size of the problem, and return the best found.

The exact judge decides, so the result is never worse than any baseline that is tried:
everything on one device (each of them), and list schedules with memory.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import monotonic

from splitnet.core.board import Assignment, Board, Score
from splitnet.core.bounds import lower_bound
from splitnet.core.refine import refine
from splitnet.core.schedule import earliest_finish, one_device, ranks

__all__ = ["STRATEGIES", "Found", "best_assignment", "proven_bound"]

_EXHAUSTIVE_PLAYS = 20_000
"""If all assignments together play no more calls, all are tried: then it is proven."""


@dataclass(frozen=True, slots=True)
class Found:
    """The best assignment, who found it, and what cannot be beaten."""

    chosen: Assignment
    strategy: str
    bound: float
    feasible: bool = True


Candidates = Callable[[Board, random.Random], Iterable[Assignment]]


def single_device(board: Board, _: random.Random) -> Iterator[Assignment]:
    """Everything on one device, each in turn."""
    for device, twin in enumerate(board.twin_of):
        if twin == device and any(device in allowed for allowed in board.allowed):
            yield one_device(board, device)


def list_schedules(board: Board, _: random.Random) -> Iterator[Assignment]:
    """Earliest finish, in order of the graph and in order of HEFT's rank."""
    units = range(board.units.count)
    rank = ranks(board)
    for patience in (0.0, 1.0):
        yield earliest_finish(board, units, patience=patience)
        order = sorted(units, key=lambda unit: (-rank[unit], unit))
        yield earliest_finish(board, order, patience=patience)


def exhaustive(board: Board, _: random.Random) -> Iterator[Assignment]:
    """Every assignment there is but for the names of twins, in order of declaration."""
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


def simple(board: Board, draw: random.Random) -> Iterator[Assignment]:
    """Every baseline, and nothing that takes long."""
    yield from single_device(board, draw)
    yield from list_schedules(board, draw)


STRATEGIES: dict[str, Candidates] = {
    "single_device": single_device,
    "earliest_finish": list_schedules,
    "exhaustive": exhaustive,
    "refine": list_schedules,
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
    unless the deadline cuts in. If nothing fits, the least broken is returned.
    """
    deadline = monotonic() + time_limit
    draw = random.Random(seed)
    tried = _Best(board, deadline, on_progress)
    bound = lower_bound(board)
    names = ["single_device", "earliest_finish", "refine"]
    if strategy != "auto":
        names = [strategy]
    elif _is_small(board):
        names = ["single_device", "earliest_finish", "exhaustive"]
    for name in names:
        complete = tried.add(name, STRATEGIES[name](board, draw))
        if name == "refine" and not tried.late:
            for chosen in refine(board, tried.best(), draw, deadline):
                tried.add(name, [chosen])
        if name == "exhaustive" and complete and tried.score.feasible:
            bound = tried.score.value
    return Found(tried.best(), tried.strategy, bound, tried.score.feasible)


def proven_bound(board: Board) -> float:
    """The bound that a search of this board would prove without searching long.

    By exhaustion where that takes a moment, else `lower_bound`.
    """
    if not _is_small(board):
        return lower_bound(board)
    best = Score(1 << 60, 0, 0.0, 0.0)
    for chosen in exhaustive(board, random.Random(0)):
        best = min(best, board.exact(chosen, unless=best))
    return best.value if best.feasible else lower_bound(board)


def _is_small(board: Board) -> bool:
    """Whether every assignment can be tried in a second or so."""
    most = _EXHAUSTIVE_PLAYS // max(1, board.calls.count)
    return board.combinations(most) <= most


class _Best:
    """The best assignment so far, by the exact judge; the first of equals stays."""

    def __init__(
        self,
        board: Board,
        deadline: float,
        on_progress: Callable[[float, float], None] | None,
    ) -> None:
        self.board, self.deadline, self.on_progress = board, deadline, on_progress
        self.chosen: Assignment | None = None
        self.score = Score(1 << 60, 0, 0.0, 0.0)
        self.strategy = ""
        self.seen: dict[Assignment, None] = {}

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return monotonic() > self.deadline

    def best(self) -> Assignment:
        """The best assignment so far."""
        assert self.chosen is not None, "nothing was tried"
        return self.chosen

    def add(self, strategy: str, candidates: Iterable[Assignment]) -> bool:
        """Judge candidates; False if time ran out before the last."""
        for chosen in candidates:
            if chosen in self.seen:
                continue
            if self.chosen is not None and self.late:
                return False
            self.seen[chosen] = None
            score = self.board.exact(chosen, unless=self.score)
            if self.chosen is None or score < self.score:
                self.chosen, self.score, self.strategy = chosen, score, strategy
                if self.on_progress:
                    self.on_progress(0.0, score.value)
        return True
