"""Run the strategies that fit the size of the problem, and return the best found.

The exact judge decides, so the result is never worse than any baseline that is tried:
everything on one device (each of them), and list schedules with memory.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import monotonic

from splitnet.planner.algorithms import (
    PROGRAM_SECONDS,
    STRATEGIES,
    Search,
    every_assignment,
    single_device,
    solved_program,
)
from splitnet.planner.board import Assignment, Board, Score
from splitnet.planner.bounds import lower_bound

__all__ = ["STRATEGIES", "Found", "best_assignment", "proven_bound"]

_EXHAUSTIVE_PLAYS = 20_000
"""If all assignments together play no more calls, all are tried: then it is proven."""

_UNIT_PLAYS_PER_SECOND = 300_000
"""The work of local search, per second of the time limit: three quarters of what an
idle machine does, so that the deadline need not cut in, and equal seeds give equal
plans."""

_LARGE = 2000
"""Units from which single devices wait until there is something better."""

_SEARCH_SHARE = 0.95
"""Of the time limit; the rest is for what a plan is made of afterwards."""

_WORST = Score(1 << 60, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Found:
    """The best assignment, who found it, and what cannot be beaten."""

    chosen: Assignment
    strategy: str
    bound: float
    feasible: bool = True


def best_assignment(
    board: Board,
    *,
    strategy: str = "auto",
    time_limit: float = 5.0,
    seed: int = 0,
    on_progress: Callable[[float, float], None] | None = None,
    known: Found | None = None,
    starts: Sequence[Assignment] = (),
    patience: float = 1.0,
    content: bool = False,
) -> Found:
    """Search until the work planned for this size is done, or time is up.

    The work is counted in moves, not seconds, so that equal seeds give equal plans
    unless the deadline cuts in. If nothing fits, the least broken is returned. An
    interrupt from the keyboard keeps the best so far. `known` is what another search
    found and proved, `starts` are what others found for objectives of their own.
    After `patience`, a share of the time, it gives up if nothing fits; a `content`
    search ends with the first that does.
    """
    tried = _Best(board, monotonic(), time_limit, on_progress, patience, content)
    bound = known.bound if known else lower_bound(board)
    search = Search(
        board,
        random.Random(seed),
        tried.deadline,
        lambda: tried.late,
        lambda: tried.chosen,
        tried.seen.__getitem__,
        int(_UNIT_PLAYS_PER_SECOND * max(0.0, time_limit)),
    )
    names = ["single_device", strategy]
    if strategy == "auto":
        names = ["single_device", "earliest_finish", "chain", "fitted"]
        names += ["multilevel", "refine"]
        if board.units.count > _LARGE:
            names[:2] = ["earliest_finish", "single_device"]
        if _is_small(board):
            names = ["single_device", "earliest_finish", "exhaustive"]
    if known and not known.feasible:
        names = ["fitted", *names]
    if known:
        tried.add(known.strategy, [known.chosen])
    tried.add("convex", starts)
    for name in names:
        complete = tried.add(name, STRATEGIES[name](search))
        if name == "exhaustive" and complete and tried.score.feasible:
            bound = tried.score.value
        if tried.meets(bound) or tried.score.feasible and tried.late:
            break
    if strategy == "auto" and not tried.meets(bound) and not tried.late:
        solved = solved_program(board, tried.deadline - monotonic())
        bound = max(bound, solved.bound)
        tried.add("program", [solved.chosen] if solved.chosen else [])
    if tried.chosen is None:
        tried.add("single_device", single_device(search))
    assert tried.chosen is not None, "some device takes everything that may be there"
    return Found(tried.chosen, tried.strategy, bound, tried.score.feasible)


def proven_bound(board: Board) -> float:
    """The bound that a search of this board would prove without searching long.

    By exhaustion where that takes a moment, else by the integer program.
    """
    if not _is_small(board):
        return max(lower_bound(board), solved_program(board, PROGRAM_SECONDS).bound)
    best = _WORST
    for chosen in every_assignment(board):
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
        began: float,
        time_limit: float,
        on_progress: Callable[[float, float], None] | None,
        patience: float,
        content: bool,
    ) -> None:
        self.board, self.on_progress, self.content = board, on_progress, content
        self.began, self.time_limit = began, time_limit
        self.deadline = began + _SEARCH_SHARE * time_limit
        self.hopeless = began + patience * _SEARCH_SHARE * time_limit
        self.chosen: Assignment | None = None
        self.score = _WORST
        self.strategy = ""
        self.seen: dict[Assignment, Score] = {}
        self.reserve = 0.0

    @property
    def late(self) -> bool:
        """Whether the time is up, or what was asked for is there."""
        if self.score.feasible:
            return self.content or monotonic() > self.deadline - self.reserve
        return monotonic() > self.hopeless - self.reserve

    def meets(self, bound: float) -> bool:
        """Whether nothing is left to find."""
        return self.score.feasible and self.score.value <= bound * (1 + 1e-6)

    def add(self, strategy: str, candidates: Iterable[Assignment]) -> bool:
        """Judge candidates; False if time ran out before the last.

        Time has run out only where something fits: no plan is worse than a late one.
        """
        for chosen in candidates:
            if chosen in self.seen:
                continue
            now = monotonic()
            if self.score.feasible and self.late:
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
