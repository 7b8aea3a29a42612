"""Multilevel and evolutionary search for max-load without contiguity."""

from collections.abc import Callable, Sequence
from random import Random

from splitnet.core.search.anneal import anneal
from splitnet.core.search.clock import Budget
from splitnet.core.search.coarsen import coarsen, fastest
from splitnet.core.search.problem import Problem
from splitnet.core.search.state import Fixed

__all__ = ["evolve", "multilevel"]

Report = Callable[[float, Sequence[int], str], None]


def multilevel(
    problem: Problem,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    *,
    target: int,
    limit: float,
    hot: float,
    warm: float = 0.02,
    keep: Sequence[int] | None = None,
    power: float = 12.0,
) -> tuple[float, list[int]]:
    levels: list[tuple[Problem, list[int]]] = []
    here = problem
    assignment = list(start)
    size = problem.group_count
    steps = []
    while size > target * 3:
        size = max(target, size // 4)
        steps.append(size)
    if not steps or steps[-1] > target:
        steps.append(target)
    for size in steps:
        if here.group_count <= size:
            continue
        coarse, cluster = coarsen(here, size, random, limit=limit, keep=keep)
        if coarse.group_count >= here.group_count * 0.95:
            break
        levels.append((here, cluster))
        if keep is not None:
            keep = _project(keep, cluster)
        assignment = _project(assignment, cluster)
        here = coarse
    fixed = Fixed(here)
    assignment = _mend(fixed, assignment)
    value, assignment = anneal(
        fixed,
        assignment,
        budget.slice(0.6 if levels else 1.0),
        random,
        hot=hot,
        power=power,
    )
    for index, (finer, cluster) in enumerate(reversed(levels)):
        assignment = [assignment[owner] for owner in cluster]
        part = budget.slice(1.0 / (len(levels) - index))
        value, assignment = anneal(
            Fixed(finer), assignment, part, random, hot=min(hot, warm), power=power
        )
    return value, assignment


def _project(values: Sequence[int], cluster: Sequence[int]) -> list[int]:
    out = [0] * (1 + max(cluster))
    for value, owner in zip(values, cluster, strict=True):
        out[owner] = value
    return out


def _mend(fixed: Fixed, assignment: Sequence[int]) -> list[int]:
    """Move groups off devices that are too full or forbidden, biggest first."""
    used = [0.0] * fixed.devices
    busy = [0.0] * fixed.devices
    result = list(assignment)
    order = sorted(range(fixed.groups), key=lambda g: (-fixed.size[g], g))
    for group in order:
        size = fixed.size[group]
        device = result[group]
        if device not in fixed.allowed[group] or (
            used[device] + size > fixed.capacity[device]
        ):
            options = [
                d for d in fixed.allowed[group] if used[d] + size <= fixed.capacity[d]
            ]
            if options:
                device = min(options, key=lambda d: busy[d] + fixed.time[group][d])
        result[group] = device
        used[device] += size
        busy[device] += fixed.time[group][device]
    return result


def evolve(
    problem: Problem,
    starts: Sequence[tuple[float, Sequence[int]]],
    budget: Budget,
    random: Random,
    report: Report,
    *,
    runs: float = 12.0,
) -> None:
    work = sum(fastest(problem))
    seconds = [min(row) for row in problem.seconds]
    slow = sum(1 for d in problem.devices if not d.pooled) or len(problem.devices)
    elite: list[tuple[float, list[int]]] = [(v, list(a)) for v, a in starts]
    elite.sort(key=lambda row: row[0])
    elite = elite[:2]
    spread = [d for d in range(len(problem.devices))]
    count = 0
    whole = budget.left
    while not budget.spent:
        count += 1
        part = budget.limited(max(whole / runs, 0.08))
        target = int(problem.group_count and 22 * 3 ** random.random())
        limit = (0.2 + 0.4 * random.random()) * work / slow
        draw = random.random()
        if len(elite) < 4 or draw < 0.35:
            start = [random.choice(row) for row in problem.allowed]
            value, plan = multilevel(
                problem, start, part, random, target=target, limit=limit, hot=0.3
            )
            name = "multilevel"
        else:
            first, second = random.sample(elite[:6], 2)
            if draw < 0.75:
                pairs: dict[tuple[int, int], int] = {}
                keep = [
                    pairs.setdefault(pair, len(pairs))
                    for pair in zip(first[1], second[1], strict=True)
                ]
                name = "combine"
                hot = 0.1
            else:
                keep = first[1]
                name = "cycle"
                hot = 0.03
            start = min(first, second)[1] if name == "combine" else first[1]
            value, plan = multilevel(
                problem,
                start,
                part,
                random,
                target=target,
                limit=limit,
                hot=hot,
                keep=keep,
            )
        report(value, plan, name)
        if all(abs(value - other) > 1e-9 * value for other, _ in elite):
            elite.append((value, plan))
            elite.sort(key=lambda row: row[0])
            del elite[8:]
