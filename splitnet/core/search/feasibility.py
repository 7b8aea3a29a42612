"""Say why nothing fits, and what the smallest help would be."""

from math import ceil, fsum, inf

from splitnet.core.search.baselines import first_fit
from splitnet.core.search.clock import Budget
from splitnet.core.search.exhaustive import exhaustive
from splitnet.core.search.problem import Problem

__all__ = ["explain_infeasible", "pack"]

MAX_NAMES = 10


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
