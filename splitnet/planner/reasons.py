"""Why each part is where it is, and receipts for the wishes that were not granted."""

from collections.abc import Mapping, Sequence
from math import inf

from splitnet.core.graph import Graph
from splitnet.core.plan import Fallback, Placement
from splitnet.planner.board import Assignment, Board
from splitnet.planner.schedule import one_device
from splitnet.planner.wishes import Group, Wish
from splitnet.simulator.engine import run_within

__all__ = ["placements_of", "receipts_of"]

_PLAYS_PER_SECOND = 3_000
"""Calls that may be played to tell cost, memory and ties apart, per second of the time
limit: a fiftieth of what a machine can do."""

_MOST_PLAYS = 15_000


def placements_of(
    graph: Graph,
    board: Board,
    wishes: Mapping[str, Wish],
    groups: Sequence[Group],
    chosen: Assignment,
    *,
    time_limit: float,
) -> tuple[Placement, ...]:
    """A placement per part, in order of declaration, with its reason.

    `time_limit` is that of the search, in seconds; reasons get a small share beside it.
    """
    number = {name: i for i, one in enumerate(groups) for name in one.parts}
    names = [device.name for device in board.cluster]
    plays = min(_MOST_PLAYS, int(_PLAYS_PER_SECOND * max(0.5, time_limit)))
    if board.objective == "memory":
        plays //= 5  # every one to its end, with what is held when
    free = _free_reasons(board, chosen, plays // max(1, board.calls.count))
    placements = []
    for part in graph.parts:
        group = number[part.name]
        why = _bound_reason(wishes, groups[group], part.name) or free[group]
        placements.append(
            Placement(part.name, names[chosen[group]], wishes[part.name].asked, why)
        )
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


def _free_reasons(board: Board, chosen: Assignment, left: int) -> dict[int, str]:
    """Why each group with a choice is where it is: "cost", "memory" or "tie".

    Every other device is tried, alone, `left` tries in all; fewer than a score are not
    begun.
    """
    reasons = dict.fromkeys(range(board.group_count), "cost")
    if left < 20 or not board.free_groups:
        return reasons
    value = board.exact(chosen).value
    wished = _without_memory(board, value)
    for group in board.free_groups:
        if wished is not None and chosen[group] != wished:
            reasons[group] = "memory"
    for group in board.free_groups:
        for device in board.allowed[group]:
            if device == chosen[group] or left <= 0:
                continue
            left -= 1
            moved = (*chosen[:group], device, *chosen[group + 1 :])
            there = _value(board, moved, value * (1 + 1e-9))
            if there is None:
                continue
            if board.exact(moved).feasible:
                reasons[group] = "tie" if reasons[group] == "cost" else reasons[group]
            elif there < value * (1 - 1e-9) and not board.broken(moved):
                reasons[group] = "memory"
    return reasons


def _value(board: Board, chosen: Assignment, limit: float) -> float | None:
    """What the objective counts whether or not it fits; None if above the limit."""
    if board.objective == "memory":
        value = board.exact(chosen).value
    elif board.worth is not None:
        value = board.worth(chosen)
    else:
        run = run_within(board.calls, board.call_devices(chosen), limit)
        value = inf if run is None else run.seconds
    return value if value <= limit else None


def _without_memory(board: Board, value: float) -> int | None:
    """The device that would take all and be faster, had it the room; None if none."""
    best: int | None = None
    for device, twin in enumerate(board.twin_of):
        chosen = one_device(board, device)
        if twin == device and not board.has_room(chosen):
            there = _value(board, chosen, value * (1 - 1e-9))
            if there is not None:
                best, value = device, there
    return best


def receipts_of(
    wishes: Mapping[str, Wish], device_of: Mapping[str, str]
) -> tuple[Fallback, ...]:
    """A receipt per part that did not get its first wish, in order of declaration."""
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
