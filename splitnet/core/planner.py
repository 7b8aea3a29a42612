"""Decide: keep what was asked, choose the rest, and say what follows."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from splitnet.core.board import Assignment, Board, board_of
from splitnet.core.bounds import lower_bound
from splitnet.core.cluster import Cluster
from splitnet.core.cost import CostModel, Roofline, optimizer_name
from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Graph
from splitnet.core.infeasible import Case, infeasible_error
from splitnet.core.plan import Fallback, Placement, Plan
from splitnet.core.portfolio import (
    STRATEGIES,
    Found,
    best_assignment,
    proven_bound,
)
from splitnet.core.simulate import Outcome, outcome_of
from splitnet.core.step import Step, step_of
from splitnet.core.wishes import Group, Pins, Wish, resolve

__all__ = ["OBJECTIVES", "Progress", "bound_of", "plan_graph", "score"]

OBJECTIVES = ("latency", "throughput", "call_latency", "memory")

_REASON_PLAYS = 100_000
"""Units that may be played to tell cost, memory and ties apart: half a second."""

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
            device), "throughput" or "call_latency" (the benchmark's).
        pins: Name patterns -> `on=`, or a function of the part; they beat declarations.
        missing: "fallback", "warn" or "error" about devices that are not here.
        costs: A `CostModel`; `Roofline()` if not given.
        optimizer: Its name, or a Keras optimizer.
        strategy: "auto", or one of `STRATEGIES`.
        time_limit: Seconds after which the best so far is taken.
        training: Whether backward and update belong to the step.
        contiguity: For the benchmark's objectives: "free", "convex" or "pipeline".
        seed: Of the random moves; equal seeds give equal plans.
        on_progress: Called with the share done and the best value so far.

    Raises:
        DeclarationError: unknown options, or pins that cannot be kept.
        DeviceError: a device is missing and may not be replaced, or wishes contradict.
        InfeasibleError: no placement fits.
    """
    _check(objective, strategy, tuple(STRATEGIES), contiguity)
    costs = costs or Roofline()
    name = optimizer_name(optimizer)
    step = step_of(graph, cluster, costs, training=training, optimizer=name)

    def laid_out(whole_lists: bool) -> tuple[dict[str, Wish], list[Group], Board]:
        wishes, groups = resolve(
            graph,
            cluster,
            pins=pins,
            missing=missing,
            load_of=_load_of(graph, cluster, step),
            whole_lists=whole_lists,
        )
        return wishes, groups, board_of(graph, cluster, step, groups, objective)

    def searched(board: Board) -> Found:
        return best_assignment(
            board,
            strategy=strategy,
            time_limit=time_limit,
            seed=seed,
            on_progress=on_progress,
        )

    wishes, groups, board = laid_out(False)
    found = searched(board)
    if not found.score.feasible and any(w.second for w in wishes.values()):
        wishes, groups, board = laid_out(True)
        found = searched(board)
    if not found.score.feasible:
        fits = _fits(pins, costs, name, training, objective)
        raise infeasible_error(
            Case(graph, cluster, board, groups, wishes, found.chosen, fits)
        )
    device_of = _device_of(cluster, groups, found.chosen)
    plan = _assemble(
        graph,
        cluster,
        outcome_of(graph, cluster, step, device_of),
        _placements(graph, board, wishes, groups, found.chosen, device_of),
        costs=costs,
        objective=objective,
        optimizer=name,
        training=training,
    )
    return replace(
        plan,
        fallbacks=_receipts(wishes, device_of),
        strategy=found.strategy,
        bound=min(found.bound, plan.value),
        options=_options(pins, missing, seed, contiguity),
    )


def _fits(
    pins: Pins | None, costs: CostModel, optimizer: str, training: bool, objective: str
) -> Callable[[Graph, Cluster, str | None], bool]:
    """Whether a changed problem has an answer that simple strategies find."""

    def fits(graph: Graph, cluster: Cluster, freed: str | None) -> bool:
        kept = pins
        if freed is not None:
            parts = tuple(
                replace(p, on=("auto",)) if p.name == freed else p for p in graph.parts
            )
            graph = replace(graph, parts=parts)
            if isinstance(pins, Mapping):
                kept = {pattern: on for pattern, on in pins.items() if pattern != freed}
        step = step_of(graph, cluster, costs, training=training, optimizer=optimizer)
        groups = resolve(graph, cluster, pins=kept, whole_lists=True)[1]
        board = board_of(graph, cluster, step, groups, objective)
        return best_assignment(board, strategy="simple", time_limit=2.0).score.feasible

    return fits


def score(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    *,
    objective: str = "latency",
    costs: CostModel | None = None,
    optimizer: object = "adam",
    training: bool = True,
) -> Plan:
    """Score a person's placement; nothing is changed or refused but the impossible.

    Args:
        graph: What runs.
        cluster: The machine.
        device_of: Part -> device, every part; inputs may be left out.
        objective: As `plan_graph`.
        costs: As `plan_graph`.
        optimizer: As `plan_graph`.
        training: As `plan_graph`.

    Raises:
        DeclarationError: names that are not parts.
        PlanFileError: a part without a device of the cluster.
    """
    unknown = [name for name in device_of if name not in graph.part]
    if unknown:
        raise DeclarationError(
            f"there is no part {', '.join(map(repr, unknown))} in {graph.name!r}. It "
            f"has: {', '.join(list(graph.part)[:12])}."
        )
    name = optimizer_name(optimizer)
    costs = costs or Roofline()
    homes = {p.name: cluster.home.name for p in graph.parts if p.kind == "input"}
    full = homes | {
        part: cluster[device].name if device in cluster else device
        for part, device in device_of.items()
    }
    step = step_of(graph, cluster, costs, training=training, optimizer=name)
    plan = _assemble(
        graph,
        cluster,
        outcome_of(graph, cluster, step, full),
        tuple(
            Placement(p.name, full[p.name], ", ".join(p.on), "given")
            for p in graph.parts
        ),
        costs=costs,
        objective=objective,
        optimizer=name,
        training=training,
    )
    everywhere = tuple(device.name for device in cluster)
    groups = [Group((part.name,), everywhere) for part in graph.parts]
    bound = lower_bound(board_of(graph, cluster, step, groups, objective))
    return replace(plan, strategy="given", bound=min(bound, plan.value))


def bound_of(graph: Graph, cluster: Cluster, plan: Plan) -> float:
    """What no placement that keeps a plan's wishes can beat; see `Plan.bound`.

    A part that is where its wish does not allow counts as free.
    """
    step = step_of(
        graph, cluster, plan.costs, training=plan.training, optimizer=plan.optimizer
    )
    asked = {
        p.part: p.asked.split(", ") if p.asked else "auto" for p in plan.placements
    }
    groups = resolve(
        graph,
        cluster,
        pins=lambda part: asked[part.name],
        load_of=_load_of(graph, cluster, step),
    )[1]
    device_of = plan.device_of
    everywhere = tuple(device.name for device in cluster)
    groups = [
        group
        if all(device_of[part] in group.allowed for part in group.parts)
        else replace(group, allowed=everywhere, apart=())
        for group in groups
    ]
    return proven_bound(board_of(graph, cluster, step, groups, plan.objective))


def _check(
    objective: str, strategy: str, strategies: tuple[str, ...], contiguity: str | None
) -> None:
    allowed = (
        ("objective", objective, OBJECTIVES),
        ("strategy", strategy, ("auto", *strategies)),
        ("contiguity", contiguity, (None, "free", "convex", "pipeline")),
    )
    for name, value, choices in allowed:
        if value not in choices:
            raise DeclarationError(
                f"{name}= must be one of {', '.join(map(repr, choices))}. "
                f"Received: {value!r}."
            )


def _load_of(graph: Graph, cluster: Cluster, step: Step) -> Callable[[str, str], float]:
    """Seconds that a part computes on a device."""
    members: dict[str, list[int]] = {}
    for i, call in enumerate(graph.calls):
        members.setdefault(call.part, []).append(i)
    number = {device.name: i for i, device in enumerate(cluster)}

    def seconds(part: str, device: str) -> float:
        d = number[device]
        return sum(
            step.forward[d][i] + step.backward[d][i] + step.update[d][i]
            for i in members.get(part, ())
        )

    return seconds


def _device_of(
    cluster: Cluster, groups: list[Group], chosen: Assignment
) -> dict[str, str]:
    return {
        part: cluster.devices[device].name
        for group, device in zip(groups, chosen)
        for part in group.parts
    }


def _placements(
    graph: Graph,
    board: Board,
    wishes: Mapping[str, Wish],
    groups: list[Group],
    chosen: Assignment,
    device_of: Mapping[str, str],
) -> tuple[Placement, ...]:
    number = {name: i for i, one in enumerate(groups) for name in one.parts}
    free = _free_reasons(board, chosen)
    placements = []
    for part in graph.parts:
        group = number[part.name]
        why = _bound_reason(wishes, groups[group], part.name) or free[group]
        asked = wishes[part.name].asked
        placements.append(Placement(part.name, device_of[part.name], asked, why))
    return tuple(placements)


def _bound_reason(wishes: Mapping[str, Wish], group: Group, part: str) -> str:
    """Why a part had no choice; "" if it had one."""
    wish = wishes[part]
    if wish.why and (len(wish.allowed) == 1 or wish.why in ("fallback", "no kernel")):
        return wish.why
    others = [wishes[name] for name in group.parts if name != part]
    if any(len(other.allowed) < len(wish.allowed) for other in others):
        return "near"
    if len(group.allowed) == 1:
        return "only choice"
    return ""


def _free_reasons(board: Board, chosen: Assignment) -> dict[int, str]:
    """Why each group with a choice is where it is: "cost", "memory" or "tie".

    Every other device is tried while the budget of plays lasts.
    """
    left = _REASON_PLAYS // max(1, board.units.count)
    here = board.quick(chosen)
    reasons: dict[int, str] = {}
    for group, allowed in enumerate(board.allowed):
        reasons[group] = "cost"
        for device in allowed:
            if device == chosen[group] or left <= 0:
                continue
            left -= 1
            moved = (*chosen[:group], device, *chosen[group + 1 :])
            there = board.quick(moved)
            better = there.value < here.value * (1 - 1e-9)
            if better and there.excess_bytes:
                reasons[group] = "memory"
            elif there.feasible and there.value <= here.value * (1 + 1e-9):
                reasons[group] = "tie" if reasons[group] == "cost" else reasons[group]
    return reasons


def _receipts(
    wishes: Mapping[str, Wish], device_of: Mapping[str, str]
) -> tuple[Fallback, ...]:
    receipts = []
    for wish in wishes.values():
        got = device_of[wish.part]
        if wish.missing:
            receipts.append(Fallback(wish.part, wish.missing, got, wish.reason))
        elif wish.first and got not in wish.first:
            asked = wish.asked.partition(", ")[0]
            reason = f"{asked} has no room left; {got} is further down the list"
            receipts.append(Fallback(wish.part, asked, got, reason))
    return tuple(receipts)


def _options(
    pins: Pins | None, missing: str, seed: int, contiguity: str | None
) -> dict[str, object]:
    options: dict[str, object] = {"missing": missing, "seed": seed}
    if isinstance(pins, Mapping):
        options["pins"] = {
            str(pattern): on if isinstance(on, str) else list(on)
            for pattern, on in pins.items()
        }
    if contiguity:
        options["contiguity"] = contiguity
    return options


def _assemble(
    graph: Graph,
    cluster: Cluster,
    outcome: Outcome,
    placements: tuple[Placement, ...],
    *,
    costs: CostModel,
    objective: str,
    optimizer: str,
    training: bool,
) -> Plan:
    value = outcome.timeline.seconds
    if objective == "memory":
        value = float(max(m.total for m in outcome.memory.values()))
    return Plan(
        graph=graph,
        cluster=cluster,
        placements=placements,
        fallbacks=(),
        transfers=outcome.transfers,
        memory=outcome.memory,
        timeline=outcome.timeline,
        home=outcome.home,
        objective=objective,
        optimizer=optimizer,
        training=training,
        value=value,
        costs=costs,
    )
