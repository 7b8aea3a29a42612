"""Say why nothing fits, and what the smallest help would be."""

from dataclasses import replace
from math import ceil, fsum, inf

from splitnet.planner.search.baselines import first_fit
from splitnet.planner.search.chain import chain_partition
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.exhaustive import exhaustive
from splitnet.planner.search.orders import depth_first, fuse_cycles
from splitnet.planner.search.problem import Problem

__all__ = ["explain_infeasible", "explain_no_plan", "pack"]

MAX_NAMES = 10
MOST_NEW_DEVICES = 64
MOST_CHAINED = 2000
HALVINGS = 24


def pack(problem: Problem, budget: Budget) -> list[int] | None:
    """Find any plan that keeps memory and pins: best fit, then backtracking."""
    plan = first_fit(problem)
    if plan is not None:
        return plan
    _, plan, _ = exhaustive(problem, lambda _: 0.0, budget.slice(0.5), busiest=False)
    return plan


def explain_infeasible(problem: Problem) -> str | None:
    """Return why no plan can exist and the smallest change that could allow one.

    Tests each group alone, then all together; a None is no proof that a plan exists.
    """
    if not problem.devices:
        return "there is no device; add at least one"
    faults = _lonely_faults(problem)
    if faults:
        shown = faults[:MAX_NAMES]
        rest = len(faults) - len(shown)
        tail = [f"  and {rest} more"] if rest else []
        return "\n".join(["no plan exists:", *(f"  {f}" for f in shown), *tail])
    return _total_fault(problem)


def _lonely_faults(problem: Problem) -> list[str]:
    faults = []
    capacity = [device.capacity_bytes for device in problem.devices]
    rooms = {
        row: max((capacity[device] for device in row), default=0.0)
        for row in set(problem.allowed)
    }
    for group, allowed in enumerate(problem.allowed):
        size, room = problem.size_bytes[group], rooms[allowed]
        if allowed and size <= room * (1 + 1e-12):
            continue
        name = problem.names[group]
        if not allowed:
            able = {k for k, s in enumerate(problem.seconds[group]) if s < inf}
            kinds = {device.kind for device in problem.devices}
            faults.append(
                f"{name!r} is supported on no device; add one of a kind that runs it"
                if not able & kinds
                else f"{name!r} has pins that no device meets; loosen its pins"
            )
            continue
        faults.append(
            f"{name!r} needs {size:.12g} bytes, its largest device has"
            f" {room:.12g}: {size - room:.12g} bytes are missing"
        )
    return faults


def _total_fault(problem: Problem) -> str | None:
    """Compare the groups of every set of devices that some group is confined to."""
    capacity = [device.capacity_bytes for device in problem.devices]
    domains = sorted(set(problem.allowed), key=lambda r: (len(r), r))
    for row in domains:
        inside = set(row)
        room = fsum(capacity[device] for device in row)
        if room == inf:
            continue
        confined = {other for other in domains if inside.issuperset(other)}
        need = fsum(
            size
            for size, allowed in zip(problem.size_bytes, problem.allowed, strict=True)
            if allowed in confined
        )
        if need > room * (1 + 1e-12):
            names = ", ".join(problem.devices[d].name for d in row[:MAX_NAMES])
            largest = max(capacity[device] for device in row)
            more = ceil((need - room) / largest) if largest > 0 else 0
            help_text = f", or {more} more of the largest device" if more else ""
            return (
                f"no plan exists: {need:.12g} bytes must fit on {names}, which have"
                f" {room:.12g}: {need - room:.12g} bytes are missing{help_text}"
            )
    return None


def explain_no_plan(problem: Problem, contiguity: str) -> str:
    """Return what a search found nothing for, and the smallest changes that would do.

    A change is named only if a simple rule then finds a plan, so that it is enough; a
    smaller one may be. O(halvings x groups x devices).
    """
    sizes, capacity = problem.size_bytes, [d.capacity_bytes for d in problem.devices]
    limited = [i for i, room in enumerate(capacity) if room < inf]
    rule = "" if contiguity == "free" else f" and is {contiguity!r}"
    lines = [f"no plan was found that fits every memory and pin{rule}:"]
    if limited:
        largest = max(limited, key=capacity.__getitem__)
        lines.append(
            f"  needs {fsum(sizes):.12g} bytes in all, {max(sizes):.12g} at once;"
            f" {problem.devices[largest].name} has {capacity[largest]:.12g}"
        )
        helps = [_more_memory(problem, contiguity, largest)]
        helps.append(_more_devices(problem, contiguity, largest))
        if rule and _fits(problem, "free"):
            helps.append("contiguity 'free'")
        named = [text for text in helps if text]
        if named:
            lines.append("  try " + ", or ".join(named))
    return "\n".join(lines)


def _fits(problem: Problem, contiguity: str) -> bool:
    """Whether a simple rule finds a plan."""
    if contiguity == "free" or problem.group_count > MOST_CHAINED:
        return first_fit(problem) is not None
    fused, _ = fuse_cycles(problem)
    return chain_partition(fused, depth_first(fused)) is not None


def _more_memory(problem: Problem, contiguity: str, largest: int) -> str:
    """Grow all limited memories by one factor until something fits."""
    now = problem.devices[largest].capacity_bytes

    def grown(room: float) -> bool:
        devices = tuple(
            replace(
                device,
                capacity_bytes=room
                if device.capacity_bytes == now
                else max(device.capacity_bytes, device.capacity_bytes * room / now),
            )
            if 0 < device.capacity_bytes < inf
            else device
            for device in problem.devices
        )
        return _fits(replace(problem, devices=devices), contiguity)

    low, high = now, fsum(problem.size_bytes)
    if now <= 0 or high <= low or not grown(high):
        return ""
    for _ in range(HALVINGS):
        middle = low + (high - low) / 2
        low, high = (low, middle) if grown(middle) else (middle, high)
    whole = float(ceil(high))
    room = whole if whole < high * (1 + 1e-6) else high
    return f"{room:.12g} bytes of memory there, and as much more on the others"


def _more_devices(problem: Problem, contiguity: str, largest: int) -> str:
    """Add copies of the largest device until something fits."""
    count, number = len(problem.devices), 1
    while number <= MOST_NEW_DEVICES:
        copies = tuple(range(count, count + number))
        more = replace(
            problem,
            devices=problem.devices + (problem.devices[largest],) * number,
            allowed=tuple(
                row + copies if largest in row else row for row in problem.allowed
            ),
        )
        if _fits(more, contiguity):
            plural = "s" if number > 1 else ""
            return f"{number} more device{plural} like {problem.devices[largest].name}"
        number += 1
    return ""
