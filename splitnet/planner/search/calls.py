"""Search for a low single-sample latency: one call per accelerator and a host pool."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from random import Random

from splitnet.planner.search.call_anneal import anneal_calls
from splitnet.planner.search.call_beam import CallBeam
from splitnet.planner.search.call_chain import chain_calls
from splitnet.planner.search.call_clusters import coarsen_calls
from splitnet.planner.search.call_graph import CallGraph
from splitnet.planner.search.call_lines import merge_lines
from splitnet.planner.search.call_phases import CallPhases
from splitnet.planner.search.call_rounds import CallRounds
from splitnet.planner.search.call_sharing import SharedCalls
from splitnet.planner.search.clock import Budget
from splitnet.planner.search.elite import Elite
from splitnet.planner.search.orders import depth_first, frontier, fuse_cycles
from splitnet.planner.search.problem import Problem
from splitnet.planner.search.recombine import recombine

__all__ = ["search_calls"]

ELITE = 5
CHAIN_SHARE = 0.25
CYCLE_SHARE = 0.03
LONGEST_CYCLE = 0.3
RECOMBINED = 0.5
CLUSTERS = (30, 400)
HOTS = (0.02, 0.006, 0.002)
LONGEST_ORDER = 1000
FEWEST_BLOCKS = 60
CHAIN_SECONDS = 1e-6
EDGE_SECONDS = 6e-5
STEPS_PER_CHAIN = 5000
ROUND_SHARE, MORE_ROUNDS = 0.05, 0.1
SCOUT_SHARE = 0.2
BEAM_SHARE = 0.85
FIRST_PASS = 3.0  # seconds
NEXT_PASS = 3.0
LAST_PASS = 4.0
PASS_SECONDS = 2e-3  # for each group, where that is more
HOPELESS = 1.1
MOST_TIMES, MOST_CALLS = 16, 400
MANY_GROUPS, LINES = 20_000, 10_000
MORE_CALLS = (0, 0, 1, 2, 4)
Report = Callable[[Sequence[int], str], float]


@dataclass(frozen=True, slots=True)
class _Search:
    """What all parts of one search share.

    `fused` are the groups that can be told apart, `node_groups` names that of each node
    of `problem`; `keep` takes a plan of `shared.wide` into the elite and returns its
    value; `phases` anneals where nodes are backward.
    """

    problem: Problem
    fused: Problem
    shared: SharedCalls
    node_groups: Sequence[int]
    random: Random
    keep: Report
    elite: Elite
    phases: CallPhases | None


def search_calls(
    problem: Problem,
    budget: Budget,
    random: Random,
    report: Report,
    start: Sequence[int] | None = None,
) -> None:
    """Begin with rounds and chains, then anneal clusters of the best plans in cycles.

    A long search does so in passes, each longer than the one before.
    Objective: call latency; plans with one call per accelerator, and with several where
    a beam finds better ones. `report` judges every plan by the exact latency and is
    infinite for one that does not fit. Plans for training also grow from `start`, as
    the other beginnings know forward edges only. No guarantee.
    """
    fused, cluster = fuse_cycles(problem)
    node_groups = [cluster[group] for group in problem.nodes.group]
    elite = Elite(ELITE)
    accelerators = sum(not device.pooled for device in fused.devices)
    times = max(1, min(MOST_TIMES, MOST_CALLS // max(1, accelerators)))
    shared = SharedCalls(fused, problem, node_groups, times)

    def keep(plan: Sequence[int], name: str) -> float:
        folded = shared.fold(plan)
        if folded is None:
            return inf
        value = report([folded[owner] for owner in cluster], name)
        elite.add(value, plan)
        return value

    several = inf
    short, line = fused, list(range(fused.group_count))
    if fused.group_count > MANY_GROUPS:
        short, line = merge_lines(fused, LINES)

    def hold(short_plan: Sequence[int], short_calls: Sequence[int]) -> float:
        nonlocal several
        plan = [short_plan[index] for index in line]
        calls = [short_calls[index] for index in line]
        value = report([plan[owner] for owner in cluster], "beam of calls")
        made = dict(zip(calls, plan, strict=True))
        if len(set(made.values())) < len(made):
            several = min(several, value)
        wide = shared.widen(plan, calls)
        if wide is not None:
            elite.add(value, wide)
        return value

    phases = None
    if any(problem.nodes.backward):
        phases = CallPhases(fused, problem, node_groups)
        if start is not None:
            first = dict(zip(cluster, start, strict=True))
            keep([first[owner] for owner in range(fused.group_count)], "start")
    search = _Search(problem, fused, shared, node_groups, random, keep, elite, phases)
    rounds, beam = CallRounds(fused, keep), CallBeam(short, hold)
    for part in _passes(fused, budget):
        if several == inf and phases is None:
            beam.scout(part.slice(SCOUT_SHARE), random)
        rounds.search(part.slice(ROUND_SHARE), random)
        if several < inf and (not elite.rows or several <= elite.rows[0][0]):
            beam.search(part.slice(BEAM_SHARE), random)
            if not elite.rows or several < elite.rows[0][0]:
                beam.search(part, random)  # too many calls to anneal
        else:
            rounds.search(part.slice(MORE_ROUNDS), random)
        _chains(search, part)
        if not elite.rows:
            host = [i for i, d in enumerate(fused.devices) if d.pooled]
            for device in host[:1] or range(len(fused.devices)):
                keep([device] * fused.group_count, "single device")
        _anneal_elite(search, part)


def _passes(problem: Problem, budget: Budget) -> Iterator[Budget]:
    """A short pass over everything first, then longer ones; all there is at the end.

    So an early end finds plans that were annealed, and not only beginnings.
    """
    first = max(FIRST_PASS, PASS_SECONDS * problem.group_count)
    while not budget.counts_steps and budget.left > LAST_PASS * first:
        yield budget.limited(first)
        first *= NEXT_PASS
    yield budget


def _anneal_elite(search: _Search, budget: Budget) -> None:
    """Anneal clusters of the best plans, and of their children, until time is up."""
    elite, random, shared = search.elite, search.random, search.shared
    several = bool(elite.rows) and not shared.is_plain(elite.rows[0][1])
    fused = whole = shared.wide if several else search.fused
    if not several:
        elite.rows = [row for row in elite.rows if shared.is_plain(row[1])]
    low, high = CLUSTERS
    high = max(2 * low, min(high, fused.group_count))
    least = 0.0 if budget.counts_steps else EDGE_SECONDS * fused.group_count
    cycle = budget.left * CYCLE_SHARE
    if not budget.counts_steps:
        cycle = min(cycle, max(LONGEST_CYCLE, 2 * least))
    room = _room(fused)
    while elite.rows and budget.usable > least:
        plan = elite.draw(random)
        if len(elite.rows) > 1 and random.random() < RECOMBINED:
            plan = _child(search, whole, random) or plan
        if several:
            fused = shared.near(plan, random.choice(MORE_CALLS))
        target = int(low * (high / low) ** random.random())
        coarse, owner = coarsen_calls(fused, target, random, room, keep=plan)
        start = [0] * coarse.group_count
        for group, index in enumerate(owner):
            start[index] = plan[group]
        part, hot = budget.limited(cycle), random.choice(HOTS)
        if search.phases is not None:
            found = search.phases.anneal(coarse, owner, start, part, random, hot=hot)
        else:
            node_owner = [owner[group] for group in search.node_groups]
            graph = CallGraph(coarse, search.problem, node_owner)
            keeps = shared.folder(coarse, owner, graph).folds
            found = anneal_calls(graph, start, part, random, hot=hot, keeps=keeps)[1]
        search.keep([found[index] for index in owner], "multilevel calls")


def _room(problem: Problem) -> float:
    sizes = [d.capacity_bytes for d in problem.devices if not d.pooled]
    return max(sizes, default=inf)


def _chains(search: _Search, budget: Budget) -> None:
    """Cut orders into calls, for as long as that finds the best plans."""
    fused, random, elite = search.fused, search.random, search.elite
    length = LONGEST_ORDER
    if not budget.counts_steps:
        length = min(length, int((budget.usable * CHAIN_SHARE / CHAIN_SECONDS) ** 0.5))
        if budget.usable < EDGE_SECONDS * fused.group_count:
            return
    if length < min(FEWEST_BLOCKS, fused.group_count):
        return
    part = budget.slice(CHAIN_SHARE)
    short, owner = fused, list(range(fused.group_count))
    if fused.group_count > length:
        same = [0] * fused.group_count
        short, owner = coarsen_calls(fused, length, random, _room(fused), keep=same)
    if short.group_count > LONGEST_ORDER:
        return
    node_short = [owner[group] for group in search.node_groups]
    for order in _orders(short, random):
        before, best = part.left, elite.rows[0][0] if elite.rows else inf
        plan = chain_calls(short, order, node_short, search.problem)
        budget.spend(STEPS_PER_CHAIN)
        value = inf
        if plan is not None:
            value = search.keep([plan[index] for index in owner], "chain of calls")
        if value > HOPELESS * best or part.left <= before - part.left:
            break


def _child(search: _Search, problem: Problem, random: Random) -> list[int] | None:
    """Join two plans of the elite at a random cut of a random order."""
    rows = search.elite.rows
    left, right = random.sample(range(len(rows)), 2)
    order = depth_first(problem, random, backward=random.random() < 0.5)
    cut = random.randrange(1, max(2, len(order)))
    child = recombine(problem, rows[left][1], rows[right][1], order, cut)
    return child if child is None or search.shared.fold(child) else None


def _orders(problem: Problem, random: Random) -> Iterator[list[int]]:
    """Yield topological orders without end, the plain ones first."""
    yield depth_first(problem)
    yield depth_first(problem, backward=True)
    while True:
        yield depth_first(problem, random, backward=random.random() < 0.5)
        noise = random.choice((0.0, 0.3, 1.0, 3.0))
        yield frontier(problem, random, noise=noise)
        yield depth_first(problem, random, backward=random.random() < 0.5)
