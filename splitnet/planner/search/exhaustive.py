"""Exhaustion with bounds, for problems so small that nothing else is needed."""

from collections.abc import Callable

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.problem import Problem, device_classes

__all__ = ["exhaustive", "plan_count"]


def plan_count(problem: Problem) -> float:
    """Return how many assignments the domains allow, symmetries not removed."""
    number = 1.0
    for row in problem.allowed:
        number *= max(1, len(row))
        if number > 1e300:
            break
    return number


def exhaustive(
    problem: Problem,
    value_of: Callable[[list[int]], float],
    budget: Budget,
    *,
    busiest: bool = True,
    known: float = float("inf"),
) -> tuple[float, list[int] | None, bool]:
    """Try every assignment that keeps memory and pins, one per symmetry class.

    Objective: `value_of`, infinite for plans to refuse. With `busiest` the compute
    seconds on a device bound it from below, which prunes. Exact when the last returned
    item is true (the budget sufficed); only plans better than `known` are returned.
    O(devices ^ groups) at worst.
    """
    count, width = problem.group_count, len(problem.devices)
    kind = [device.kind for device in problem.devices]
    capacity = [d.capacity_bytes * (1 + 1e-12) for d in problem.devices]
    classes = device_classes(problem)
    rank = [min((row[k] for k in kind), default=0.0) for row in problem.seconds]
    order = sorted(range(count), key=lambda g: (-rank[g], g))
    busy, used, members = [0.0] * width, [0.0] * width, [0] * width
    assignment = [-1] * count
    best, best_plan, complete = known, None, True
    position = 0
    choices: list[list[int]] = [[] for _ in range(count + 1)]

    def options(group: int) -> list[int]:
        fresh: set[int] = set()
        found = []
        for device in problem.allowed[group]:
            if used[device] + problem.size_bytes[group] > capacity[device]:
                continue
            seconds = busy[device] + problem.seconds[group][kind[device]]
            if busiest and seconds >= best:
                continue
            if members[device] == 0:
                if classes[device] in fresh:
                    continue
                fresh.add(classes[device])
            found.append(device)
        return found[::-1]

    if count == 0:
        return value_of([]), [], True
    choices[0] = options(order[0])
    steps = 0
    while position >= 0:
        steps += 1
        if steps % 256 == 0:
            budget.spend(256)
            if budget.spent:
                complete = False
                break
        group = order[position]
        device = assignment[group]
        if device >= 0:
            assignment[group] = -1
            members[device] -= 1
            busy[device] -= problem.seconds[group][kind[device]]
            used[device] -= problem.size_bytes[group]
        if not choices[position]:
            position -= 1
            continue
        device = choices[position].pop()
        assignment[group] = device
        members[device] += 1
        busy[device] += problem.seconds[group][kind[device]]
        used[device] += problem.size_bytes[group]
        if position + 1 < count:
            position += 1
            choices[position] = options(order[position])
            continue
        value = value_of(assignment)
        if value < best:
            best, best_plan = value, list(assignment)
    return best, best_plan, complete
