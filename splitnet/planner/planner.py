"""Decide: keep what was asked, choose the rest, and say what follows."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from time import monotonic

from splitnet.core.cluster import Cluster
from splitnet.core.cost import CostModel, Roofline, optimizer_name
from splitnet.core.errors import InfeasibleError
from splitnet.core.graph import Graph, Part
from splitnet.core.plan import Plan
from splitnet.planner.board import Assignment, Board
from splitnet.planner.calm import calmed
from splitnet.planner.infeasible import infeasible_error
from splitnet.planner.pins import On, asked_of
from splitnet.planner.portfolio import STRATEGIES, Found, best_assignment
from splitnet.planner.reasons import placements_of, receipts_of
from splitnet.planner.remedies import Case, Fits
from splitnet.planner.request import OBJECTIVES, Request, check_choice
from splitnet.planner.score import assemble, score
from splitnet.planner.steady import STEADY
from splitnet.planner.steady_search import convex_starts, search_steady
from splitnet.planner.wishes import MISSING, Group, Pins, Wish
from splitnet.planner.words import with_verdict

__all__ = ["CONTIGUITIES", "OBJECTIVES", "Progress", "plan_graph", "score"]

_REMEDY_SECONDS = 3.0
"""How long remedies for a problem that has no answer may be tried."""

_TRY_SECONDS, _HARD_SECONDS = 0.3, 1.0
"""How long each of them may take, and how long where it is worth more."""

_PATIENCE = 0.5
"""Of the time for the first wishes of all, if nothing fits; then whole lists count."""

CONTIGUITIES = ("free", "convex", "pipeline")

Progress = Callable[[float, float], None]
"""Called with the share of the work done, 0 to 1, and the best value so far."""


def plan_graph(
    graph: Graph,
    cluster: Cluster,
    *,
    objective: str = "latency",
    pins: Pins | None = None,
    missing: str = "fallback",
    costs: CostModel | None = None,
    optimizer: object = "adam",
    strategy: str = "auto",
    time_limit: float = 5.0,
    training: bool = True,
    contiguity: str | None = None,
    seed: int = 0,
    cut_penalty: float = 0.0,
    on_progress: Progress | None = None,
) -> Plan:
    """Place every part of a graph on a device of a cluster.

    What was asked is kept: pins, kinds, near and apart, memory. A device that is not
    here is replaced, with a receipt in `plan.fallbacks`. The rest is chosen by a
    portfolio that returns the best plan it found, which is never worse than everything
    on the best single device that is allowed and fits.

    Args:
        graph: What runs; `splitnet.read` makes it.
        cluster: The machine.
        objective: "latency" (seconds of one step) or "memory" (bytes of the fullest
            device), "throughput" (the busiest device) or "call_latency" (one sample).
        pins: Name patterns -> `on=`, or a function of the part; they beat declarations.
        missing: "fallback", "warn" or "error" about devices that are not here.
        costs: A `CostModel`; `Roofline()` if not given.
        optimizer: Its name, or a Keras optimizer.
        strategy: "auto", or one of `STRATEGIES`.
        time_limit: Seconds after which the best so far is taken.
        training: Whether backward and update belong to the step.
        contiguity: For "throughput" and "memory": "free", "convex" or "pipeline".
        seed: Of the random moves; equal seeds give equal plans.
        cut_penalty: The share of seconds or bytes to give up for fewer crossings.
        on_progress: Called with the share done and the best value so far.

    Raises:
        DeclarationError: unknown options, or pins that cannot be kept.
        DeviceError: a device is missing and may not be replaced, or wishes contradict.
        InfeasibleError: no placement fits.
    """
    return with_verdict(
        find_plan(
            graph,
            cluster,
            objective=objective,
            pins=pins,
            missing=missing,
            costs=costs,
            optimizer=optimizer,
            strategy=strategy,
            time_limit=time_limit,
            training=training,
            contiguity=contiguity,
            seed=seed,
            cut_penalty=cut_penalty,
            on_progress=on_progress,
        )
    )


def find_plan(
    graph: Graph,
    cluster: Cluster,
    *,
    objective: str = "latency",
    pins: Pins | None = None,
    missing: str = "fallback",
    costs: CostModel | None = None,
    optimizer: object = "adam",
    strategy: str = "auto",
    time_limit: float = 5.0,
    training: bool = True,
    contiguity: str | None = None,
    seed: int = 0,
    cut_penalty: float = 0.0,
    on_progress: Progress | None = None,
) -> Plan:
    """As `plan_graph`, without a verdict."""
    began = monotonic()
    check_choice("objective", objective, OBJECTIVES)
    check_choice("strategy", strategy, ("auto", *STRATEGIES))
    check_choice("missing", missing, MISSING)
    check_choice("contiguity", contiguity, (None, *CONTIGUITIES))
    request = Request(
        graph,
        cluster,
        objective=objective,
        costs=costs or Roofline(),
        optimizer=optimizer_name(optimizer),
        training=training,
        pins=pins,
        missing=missing,
    )

    calm = cut_penalty > 0
    shaped = objective == "memory" and contiguity not in (None, "free")
    search_seconds = (0.95 if calm else 1.0) * time_limit
    starts: list[Assignment] = []

    def searched(groups: list[Group], board: Board, patience: float) -> Found:
        if objective in STEADY or shaped:
            return search_steady(
                request.steady(groups),
                board,
                contiguity=contiguity,
                strategy=strategy,
                time_limit=max(0.0, search_seconds - (monotonic() - began)),
                seed=seed,
                on_progress=on_progress,
                patience=patience,
            )
        if calm and strategy == "auto" and not board.roomy:
            counts = (request.steady(groups, one) for one in ("throughput", "memory"))
            starts[:] = convex_starts(
                counts, board, time_limit=search_seconds, seed=seed
            )
        return best_assignment(
            board,
            strategy=strategy,
            time_limit=search_seconds - (monotonic() - began),
            seed=seed,
            on_progress=on_progress,
            starts=starts,
            patience=patience,
        )

    wishes, groups, board, found = _answer(request, searched)
    if objective in STEADY or shaped:
        board = replace(board, worth=request.steady(groups).worth(contiguity))
    chosen = found.chosen
    if calm:
        end = began + time_limit
        chosen = calmed(
            board,
            chosen,
            cut_penalty=cut_penalty,
            late=lambda: monotonic() > end,
            others=starts,
        )
    placements = placements_of(
        graph, board, wishes, groups, chosen, time_limit=time_limit
    )
    plan = assemble(request, placements)
    return replace(
        plan,
        fallbacks=receipts_of(wishes, plan.device_of),
        strategy=found.strategy,
        bound=min(found.bound, plan.value),
        options=_options(pins, missing, seed, contiguity),
    )


def _answer(
    request: Request, searched: Callable[[list[Group], Board, float], Found]
) -> tuple[dict[str, Wish], list[Group], Board, Found]:
    """Search; where the first wishes of all have no room, search all their lists.

    Raises:
        InfeasibleError: nothing fits.
    """
    wishes, groups = request.resolve()
    board = request.board(groups)
    if any(wish.second for wish in wishes.values()):
        with suppress(InfeasibleError):
            found = searched(groups, board, _PATIENCE)
            if found.feasible:
                return wishes, groups, board, found
        wishes, groups = request.resolve(whole_lists=True)
        board = request.board(groups)
    found = searched(groups, board, 1.0)
    if not found.feasible:
        raise infeasible_error(
            Case(
                request.graph,
                request.cluster,
                board,
                groups,
                wishes,
                found.chosen,
                _fits(request),
            )
        )
    return wishes, groups, board, found


def _fits(request: Request) -> Fits:
    """Whether a changed problem has an answer that is found in a moment."""
    asked = asked_of(request.graph, request.pins)
    ends = monotonic() + _REMEDY_SECONDS

    def fits(
        graph: Graph,
        cluster: Cluster,
        *,
        parts: Sequence[str] = (),
        on: str = "",
        hard: bool = False,
    ) -> bool:
        if monotonic() > ends:
            return False

        def wish(part: Part) -> On | None:
            if part.name in parts:
                return on
            named, pinned = asked[part.name]
            return named if pinned else None

        changed = replace(
            request, graph=graph, cluster=cluster, pins=wish, missing="fallback"
        )
        board = changed.board(changed.resolve(whole_lists=True)[1])
        if board.overfull:
            return False
        seconds = _HARD_SECONDS if hard else _TRY_SECONDS
        return best_assignment(board, time_limit=seconds, content=True).feasible

    return fits


def _options(
    pins: Pins | None, missing: str, seed: int, contiguity: str | None
) -> dict[str, object]:
    """What a plan remembers of how it was asked for; a function cannot be kept."""
    options: dict[str, object] = {"missing": missing, "seed": seed}
    if isinstance(pins, Mapping):
        options["pins"] = {
            str(pattern): on if isinstance(on, str) else list(on)
            for pattern, on in pins.items()
        }
    if contiguity:
        options["contiguity"] = contiguity
    return options
