"""Search the benchmark's objectives, and keep what its engine looks away from.

The engine in `core/search` knows neither `apart=` nor what comes and goes in memory.
Where its answer breaks one of them, it is asked again with less memory; from there the
local search of the latency portfolio goes on, judged by the same objective. The
engine's first bound stands: it was asked for less.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from splitnet.core.errors import InfeasibleError
from splitnet.planner.board import Assignment, Board
from splitnet.planner.portfolio import Found, best_assignment
from splitnet.planner.steady import Steady

__all__ = ["convex_starts", "search_steady"]

_ENGINE_SHARES = (0.5, 0.2, 0.1)
"""Of the time, for the engine's first answer, and for others with less memory."""

_START_STEPS = 4000
"""Of the engine for each plan that another search may start from."""

_START_SECONDS_PER_CALL = 1e-3
"""What these plans take together, and of the time limit at most how much:"""

_START_SHARE = 0.3

_LARGE, _VERY_LARGE = 300, 1000
"""Groups from which the engine has all the time: where nothing can be broken, and where
something can; the local search would try too few moves there."""

_ASKED_AGAIN = (0.06, 0.04)
_SHARE_PER_GROUP = 2e-6
"""Of the time limit, for making the plan afterwards."""


def search_steady(
    steady: Steady,
    board: Board,
    *,
    contiguity: str | None,
    strategy: str,
    time_limit: float,
    seed: int,
    on_progress: Callable[[float, float], None] | None,
    patience: float = 1.0,
) -> Found:
    """The best placement for what the engine counts that keeps every promise.

    That is "throughput", "call_latency", or "memory" in a contiguity: there it looks
    away from copies, so that the search goes on where its own count is proven.
    `strategy` is "auto", or one of `STRATEGIES` instead of the engine; `patience` as in
    `best_assignment`.

    Raises:
        InfeasibleError: nothing was found in the feasible set of the contiguity.
    """
    began = monotonic()
    board = replace(board, worth=steady.worth(contiguity))
    engine: Found | None = None
    refused: InfeasibleError | None = None
    large = board.group_count > (_LARGE if board.roomy else _VERY_LARGE)
    if board.objective == "memory" and not board.roomy:
        large = False  # the engine looks away from copies
    if strategy == "auto":
        try:
            engine = _engine(
                steady,
                board,
                shares=_large_shares(board) if large else _ENGINE_SHARES,
                contiguity=contiguity,
                time_limit=time_limit,
                seed=seed,
                on_progress=on_progress if board.roomy else None,
            )
        except InfeasibleError as error:
            refused, strategy = error, "simple"
    if engine and engine.feasible:
        if large and not on_progress:
            return engine
        value = board.exact(engine.chosen).value
        if on_progress and not board.roomy:
            on_progress(min(1.0, (monotonic() - began) / max(1e-9, time_limit)), value)
        if large or value <= engine.bound * (1 + 1e-9):
            return engine
        strategy = "auto" if board.objective == "memory" else "refine"
    found = best_assignment(
        board,
        strategy=strategy,
        time_limit=max(0.0, time_limit - (monotonic() - began)),
        seed=seed,
        on_progress=on_progress,
        known=engine,
        patience=patience,
    )
    if refused and contiguity and not found.feasible:
        raise refused
    return replace(found, bound=max(found.bound, steady.bound()))


def _large_shares(board: Board) -> tuple[float, ...]:
    """The engine's shares where no other search follows."""
    first = max(0.5, 0.95 - _SHARE_PER_GROUP * board.group_count)
    if board.roomy:
        return (first,)
    return (first - sum(_ASKED_AGAIN), *_ASKED_AGAIN)


def convex_starts(
    steadies: Iterable[Steady], board: Board, *, time_limit: float, seed: int
) -> list[Assignment]:
    """Plans that return to no device, for a search that counts something else.

    The best that the engine finds for each count in a number of steps, so that equal
    seeds give equal plans; none where it finds none that fits, or has not the time.
    """
    found: list[Assignment] = []
    if board.calls.count * _START_SECONDS_PER_CALL > _START_SHARE * time_limit:
        return found
    for steady in steadies:
        with suppress(InfeasibleError):
            engine = _engine(
                steady,
                board,
                shares=_ENGINE_SHARES,
                contiguity="convex",
                time_limit=0.0,
                seed=seed,
                on_progress=None,
                iterations=_START_STEPS,
            )
            found.append(engine.chosen)
    return found


def _engine(
    steady: Steady,
    board: Board,
    *,
    shares: tuple[float, ...],
    contiguity: str | None,
    time_limit: float,
    seed: int,
    on_progress: Callable[[float, float], None] | None,
    iterations: int | None = None,
) -> Found:
    """The engine's answer, with less memory where it does not fit, as in `fitted`.

    Raises:
        InfeasibleError: nothing fits the engine's own count.
    """
    spare = [0] * len(board.capacity)
    first: Found | None = None
    for share in shares:
        try:
            found = steady.with_less(spare).search(
                contiguity=contiguity,
                time_limit=share * time_limit,
                seed=seed,
                on_progress=on_progress,
                iterations=iterations,
            )
        except InfeasibleError:
            if first is None:
                raise
            break
        first = first or found
        fits = board.roomy or board.exact(found.chosen).feasible
        found = replace(found, bound=first.bound, feasible=fits)
        if fits:
            return found
        more = [max(a, b) for a, b in zip(spare, board.passing_bytes(found.chosen))]
        if more == spare:
            return found
        spare = more
    assert first is not None, "the first answer was refused or kept"
    return replace(first, feasible=False)
