"""Search the benchmark's objectives, and keep what its engine looks away from.

The engine in `core/search` knows neither `apart=` nor what comes and goes in memory.
Where its answer breaks one of them, the portfolio of the latency search goes on from
there, judged by the same objective. The engine's bound stands: it was asked for less.
"""

from collections.abc import Callable
from dataclasses import replace
from time import monotonic

from splitnet.core.board import Board
from splitnet.core.errors import InfeasibleError
from splitnet.core.portfolio import Found, best_assignment
from splitnet.core.steady import Steady

__all__ = ["search_steady"]

_ENGINE_SHARE = 0.6
"""Of the time, where the engine's answer may have to be mended."""


def search_steady(
    steady: Steady,
    board: Board,
    *,
    contiguity: str | None,
    strategy: str,
    time_limit: float,
    seed: int,
    on_progress: Callable[[float, float], None] | None,
) -> Found:
    """The best placement for "throughput" or "call_latency" that keeps every promise.

    `strategy` is "auto", or one of `STRATEGIES` instead of the engine.

    Raises:
        InfeasibleError: nothing was found in the feasible set of the contiguity.
    """
    began = monotonic()
    board = replace(board, worth=steady.worth(contiguity))
    engine: Found | None = None
    refused: InfeasibleError | None = None
    if strategy == "auto":
        share = 1.0 if board.roomy else _ENGINE_SHARE
        try:
            engine = steady.search(
                contiguity=contiguity,
                time_limit=share * time_limit,
                seed=seed,
                on_progress=on_progress if board.roomy else None,
            )
        except InfeasibleError as error:
            refused, strategy = error, "simple"
    if engine and (board.roomy or board.exact(engine.chosen).feasible):
        if on_progress and not board.roomy:
            on_progress(1.0, board.exact(engine.chosen).value)
        return engine
    found = best_assignment(
        board,
        strategy=strategy,
        time_limit=max(0.0, time_limit - (monotonic() - began)),
        seed=seed,
        on_progress=on_progress,
        known=engine,
    )
    if refused and contiguity and not found.feasible:
        raise refused
    return replace(found, bound=max(found.bound, steady.bound()))
