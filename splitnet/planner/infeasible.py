"""Say why nothing fits, and the smallest change that would make it fit."""

from collections.abc import Sequence

from splitnet.core.errors import InfeasibleError, format_bytes
from splitnet.core.plan import Memory
from splitnet.planner.remedies import Case, another_device, remedies

__all__ = ["infeasible_error"]


def infeasible_error(case: Case) -> InfeasibleError:
    """The error for a case: what does not fit, what is where, and what to try."""
    score = case.board.exact(case.chosen)
    if score.broken:
        return InfeasibleError(_apart_text(case))
    held = case.board.held(case.chosen)
    over = [m.total - top for m, top in zip(held, case.board.capacity)]
    worst = over.index(max(over))
    here = [g for g, device in enumerate(case.chosen) if device == worst]
    needs = [_need(case, group) for group in range(len(case.groups))]
    culprit = max(here, key=lambda g: (needs[g].total, -g))
    lines = [
        _headline(case, culprit, worst, needs[culprit]),
        _row("needs", needs[culprit].total, _breakdown(needs[culprit])),
    ]
    lines += _rooms(case, culprit, needs, held, worst)
    found = remedies(case, culprit, worst, over[worst])
    lines.append(f"  try      {', or '.join(found)}")
    return InfeasibleError("\n".join(lines))


def _row(name: str, count: int, text: str) -> str:
    return f"  {name:<8} {format_bytes(max(0, count)):>9}  {text}".rstrip()


def _breakdown(memory: Memory) -> str:
    shown = (
        ("weights", memory.weights),
        ("gradients", memory.gradients),
        ("optimizer slots", memory.slots),
        ("activations", memory.activations),
        ("workspace", memory.workspace),
    )
    return ", ".join(f"{name} {format_bytes(n)}" for name, n in shown if n)


def _need(case: Case, group: int) -> Memory:
    """What one group needs wherever it is, without transfers."""
    units = case.board.units
    mine = [u for u, g in enumerate(case.board.group_of_unit) if g == group]
    trained = sum(units.own_trained[u] for u in mine) if units.training else 0
    kept = sum(units.kept_bytes[u] for u in mine)
    return Memory(
        weights=sum(units.own_bytes[u] for u in mine),
        gradients=trained,
        slots=trained * units.slot_copies,
        activations=max(kept, max((units.output_bytes[u] for u in mine), default=0)),
        workspace=max((units.workspace_bytes[u] for u in mine), default=0),
    )


def _headline(case: Case, culprit: int, worst: int, need: Memory) -> str:
    name = case.name(culprit)
    what = f"{case.graph.part[name].kind} {name!r}"
    near = len(case.groups[culprit].parts) - 1
    if near:
        what += f" (with {near} near it)"
    devices = [case.cluster.devices[d] for d in case.board.allowed[culprit]]
    if len(devices) == 1:
        why = case.wishes[name].why
        where = {"pin": "where it is declared"}.get(why, "where it must be")
        return f"{what} does not fit on {devices[0].name}, {where}."
    if all(need.total > device.memory_bytes for device in devices):
        names = ", ".join(device.name for device in devices)
        return f"{what} does not fit on any device it may use ({names})."
    full = case.cluster.devices[worst].name
    return (
        f"the parts of {case.graph.name!r} do not fit together; the least that was "
        f"found lacks room on {full}, where {what} is the largest."
    )


def _rooms(
    case: Case,
    culprit: int,
    needs: Sequence[Memory],
    held: Sequence[Memory],
    worst: int,
) -> list[str]:
    """A line per device: what is free there, and who fills it."""
    shown = [worst]
    shown += [d for d in case.board.allowed[culprit] if d != worst]
    shown += [d for d in range(len(case.cluster)) if d not in shown]
    lines = []
    for number in shown[:8]:
        device = case.cluster.devices[number]
        others = [
            g
            for g, where in enumerate(case.chosen)
            if where == number and g != culprit and needs[g].total
        ]
        taken = held[number].total
        taken -= needs[culprit].total if number == worst else 0
        rest = taken - sum(needs[g].total for g in others)
        text = f"free of {format_bytes(device.memory_bytes)}"
        fillers = _fillers(case, others, needs)
        if rest > 0:
            fillers.append(f"copies and workspace take {format_bytes(rest)}")
        if fillers:
            text += "; " + ", ".join(fillers)
        lines.append(_row(device.name, device.memory_bytes - taken, text))
    if len(shown) > 8:
        lines.append(f"  ... and {len(shown) - 8} devices more")
    return lines


def _fillers(case: Case, others: Sequence[int], needs: Sequence[Memory]) -> list[str]:
    ranked = sorted(others, key=lambda g: (-needs[g].total, g))
    texts = []
    for group in ranked[:2]:
        name = case.name(group)
        what = "is"
        if len(case.board.allowed[group]) == 1:
            what = "is pinned" if case.wishes[name].why == "pin" else "must be"
        texts.append(f"{name!r} {what} there with {format_bytes(needs[group].total)}")
    if len(ranked) > 2:
        rest = sum(needs[g].total for g in ranked[2:])
        texts.append(f"{len(ranked) - 2} more with {format_bytes(rest)}")
    return texts


def _apart_text(case: Case) -> str:
    """Too many parts that must be apart for the devices they may use."""
    broken = [(a, b) for a, b in case.board.apart if case.chosen[a] == case.chosen[b]]
    pairs = ", ".join(f"{case.name(a)!r} and {case.name(b)!r}" for a, b in broken[:4])
    device = case.cluster.devices[case.chosen[broken[0][0]]].name
    names = [case.cluster.devices[d].name for d in case.board.allowed[broken[0][0]]]
    lines = [
        f"apart= cannot be kept: {pairs} would share {device}.",
        f"  allowed  {', '.join(names)}",
    ]
    found = [*another_device(case), "fewer apart=, or wider on="]
    return "\n".join([*lines, f"  try      {', or '.join(found)}"])
