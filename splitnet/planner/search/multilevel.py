"""Multilevel and evolutionary search for max-load without contiguity.

fine       o o o o o o o o o o      refine, cool
middle      o   o   o   o   o       refine, cool
coarse        o   o   o   o         anneal, hot
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from splitnet.planner.search.anneal import anneal
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.coarsen import coarsen, fastest
from splitnet.planner.search.elite import Parents
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.state import Fixed
from splitnet.planner.search.strength import Link, strong_links

__all__ = ["Recipe", "evolve", "mend", "multilevel"]

ELITE = 10
FIRST = 4
# Many short runs meet more basins than few long ones; what a run cannot do without is
# time to coarsen its groups and to visit each often.
RUNS = 200
FEWEST_RUNS = 12
SHORTEST_RUN = 0.04
SHORTEST_STEPS = 30_000
RUN_SECONDS = 1.5e-4  # for each group
COARSEST = (22, 66)
FRESH = 0.3
KNOWN = 0.03
COMBINED = 0.75
LARGEST = (0.25, 0.7)
SHRINK = 4
COARSE_SHARE = 0.75
WARM = 0.02
SECONDS_PER_GROUP = 6e-5
POWERS = (12.0, 12.0, 25.0)
RATINGS = (0.0, 0.15, 0.3, 0.5)
NOISE, STRONG_NOISE = 0.5, 0.1
STRONG = 0.85
FINE_SWAPS = 0.05
FINE_STRAY = 0.1
STRENGTH_SHARE = 0.08
HOT = {"multilevel": 0.3, "combine": 0.2, "cycle": 0.1}
Report = Callable[[Sequence[int], str], float]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One multilevel run: clusters wanted, their limit in seconds, temperatures.

    `rating` is the power of weight by which `coarsen` ranks what merges.
    """

    target: int
    limit: float
    hot: float
    power: float = 12.0
    warm: float = WARM
    rating: float = 0.0
    noise: float = NOISE


def multilevel(
    problem: Problem,
    start: Sequence[int],
    budget: Budget,
    random: Random,
    recipe: Recipe,
    *,
    keep: Sequence[int] | None = None,
    links: Sequence[Link] | None = None,
) -> list[int]:
    """Coarsen, anneal the coarsest graph, then refine level by level.

    With `keep` only groups with equal numbers merge, so `start` survives if `keep`
    separates its devices; without it the clusters take any member's device. What may
    merge are the ends of `links`, or of nets, the dearest first. Levels shrink by four;
    the coarsest takes 75 % of the time. No guarantee. Source: Hendrickson and Leland,
    "A Multilevel Algorithm for Partitioning Graphs" (1995).
    """
    levels: list[tuple[Fixed, list[int]]] = []
    here, plan = problem, list(start)
    while here.group_count > recipe.target and not budget.spent:
        size = max(recipe.target, here.group_count // SHRINK)
        if size < 2 * recipe.target:
            size = recipe.target
        coarse, cluster = coarsen(
            *(here, size, random),
            limit=recipe.limit,
            noise=recipe.noise,
            power=recipe.rating,
            keep=keep,
            links=links,
        )
        if coarse.group_count > 0.95 * here.group_count:
            break
        levels.append((Fixed(here), cluster))
        keep = None if keep is None else _project(keep, cluster)
        if links is not None:
            ends = [(cost, cluster[a], cluster[b]) for cost, a, b in links]
            links = [link for link in ends if link[1] != link[2]]
        here, plan = coarse, _project(plan, cluster)
    fixed = Fixed(here)
    plan = mend(fixed, plan)
    part = budget.slice(COARSE_SHARE if levels else 1.0)
    plan = anneal(fixed, plan, part, random, hot=recipe.hot, power=recipe.power)[1]
    warm = min(recipe.hot, recipe.warm)
    while levels:
        part = budget.slice(1.0 / len(levels))
        finer, cluster = levels.pop()
        plan = [plan[owner] for owner in cluster]
        plan = anneal(
            *(finer, plan, part, random),
            hot=warm,
            power=recipe.power,
            swaps=FINE_SWAPS,
            stray=FINE_STRAY,
        )[1]
    return plan


def evolve(
    problem: Problem,
    starts: Sequence[tuple[float, Sequence[int]]],
    budget: Budget,
    random: Random,
    report: Report,
) -> None:
    """Breed plans until the budget is spent: fresh runs, combinations, cycles.

    A combination merges only what both parents place together, so it searches where
    they disagree; a cycle merges only what one plan places together, and improves it.
    Objective: max-load, contiguity `free`; `report` judges every plan and is infinite
    for one that does not fit. No guarantee. Source: Sanders and Schulz, "Distributed
    Evolutionary Graph Partitioning" (2012).
    """
    devices = sum(1 for d in problem.devices if not d.pooled) or len(problem.devices)
    fair = sum(fastest(problem)) / devices
    elite = Parents(problem, ELITE)
    for value, plan in starts:
        elite.add(value, plan)
    share = _run_share(problem, budget)
    (low, high), (small, large) = COARSEST, LARGEST
    least = 0.0 if budget.counts_steps else SECONDS_PER_GROUP * problem.group_count
    strong: list[Link] | None = None
    if budget.usable > 2 * least:
        strong = strong_links(problem, budget.slice(STRENGTH_SHARE))
    while budget.usable > least:
        part = budget.limited(share)
        draw, keep = random.random(), None
        rows = elite.rows
        if len(rows) < FIRST or draw < FRESH:
            name = "multilevel"
            start = [random.choice(row) for row in problem.allowed]
            if rows and draw < KNOWN:
                start = rows[0].plan
        elif draw < COMBINED:
            name = "combine"
            first, second = sorted(random.sample(range(len(rows)), 2))
            start = rows[first].plan
            keep = _overlay(rows[first].plan, rows[second].plan)
        else:
            name = "cycle"
            start = keep = random.choice(rows).plan
        links = strong if random.random() < STRONG else None
        recipe = Recipe(
            target=int(low * (high / low) ** random.random()),
            limit=(small + (large - small) * random.random()) * fair,
            hot=HOT[name],
            power=random.choice(POWERS),
            rating=random.choice(RATINGS),
            noise=NOISE if links is None else STRONG_NOISE,
        )
        plan = multilevel(problem, start, part, random, recipe, keep=keep, links=links)
        elite.add(report(plan, name), plan)


def _run_share(problem: Problem, budget: Budget) -> float:
    """Return what one run may take of the budget."""
    enough = float(SHORTEST_STEPS)
    if not budget.counts_steps:
        enough = max(SHORTEST_RUN, RUN_SECONDS * problem.group_count)
    return max(budget.left / RUNS, min(budget.left / FEWEST_RUNS, enough))


def mend(fixed: Fixed, plan: Sequence[int]) -> list[int]:
    """Move groups off devices that are too full or forbidden, biggest first.

    Best effort: a group that fits nowhere stays. O(groups x devices).
    """
    used = [0.0] * fixed.devices
    busy = [0.0] * fixed.devices
    result = list(plan)
    for group in sorted(range(fixed.groups), key=lambda g: (-fixed.size[g], g)):
        size, device = fixed.size[group], result[group]
        full = used[device] + size > fixed.capacity[device]
        if full or device not in fixed.allowed[group]:
            options = [
                d for d in fixed.allowed[group] if used[d] + size <= fixed.capacity[d]
            ]
            time = fixed.time[group]
            device = min(options, key=lambda d: busy[d] + time[d], default=device)
        result[group] = device
        used[device] += size
        busy[device] += fixed.time[group][device]
    return result


def _project(values: Sequence[int], cluster: Sequence[int]) -> list[int]:
    """Give every cluster the value of its last member."""
    result = [0] * (1 + max(cluster, default=-1))
    for value, owner in zip(values, cluster, strict=True):
        result[owner] = value
    return result


def _overlay(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Number the pairs of devices that two plans give to the groups."""
    pairs: dict[tuple[int, int], int] = {}
    return [
        pairs.setdefault(pair, len(pairs)) for pair in zip(first, second, strict=True)
    ]
