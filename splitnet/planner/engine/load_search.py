"""Search for the assignment whose busiest device is least busy.

`free` sets are searched by a memetic multilevel scheme: fresh runs, combinations of two
good assignments and cycles of one, as in Sanders and Schulz, "Distributed Evolutionary
Graph Partitioning" (2012). Pipelines are cut from many orders and annealed along the
best one's line.
"""

from dataclasses import dataclass, replace
from math import ceil, inf

import numpy as np

from splitnet.planner.engine.budget import Budget
from splitnet.planner.engine.coarsening import (
    Edges,
    contract,
    edges_of,
    fused,
    merge_edges,
    min_cuts,
    row_numbers,
)
from splitnet.planner.engine.compiler import RandomState, random_state
from splitnet.planner.engine.load import (
    CONVEX,
    FREE,
    PIPELINE,
    Cooling,
    Rules,
    cool,
    fits,
    is_contiguous,
    load_tables,
    rules_of,
)
from splitnet.planner.engine.starts import block_bounds, partition_chain, random_order
from splitnet.planner.problem import (
    Bools,
    Floats,
    Ints,
    LoadGraph,
    Problem,
    bytes_per_device,
)
from splitnet.planner.problem import equivalent_devices as device_classes

__all__ = ["search_load"]

_STEPS_PER_PROPOSAL = 0.07
_STEPS_PER_NET = 0.02
_WORK_PER_STEP = 250
"""Inner steps of the chain partition and of augmenting paths in a microsecond."""


@dataclass
class Found:
    """An assignment and its value, infinite if it breaks a constraint."""

    value: float
    place: Ints


@dataclass(frozen=True, slots=True)
class Run:
    """One multilevel run: how far to coarsen, how to cool."""

    steps: float
    clusters: int
    most_seconds: float
    hot: float
    exponent: int
    rating: float
    noise: float


class _Search:
    """State that all parts of a search share."""

    def __init__(
        self, problem: Problem, budget: Budget, seed: int, contiguity: str
    ) -> None:
        self.problem, self.graph, self.budget = problem, problem.graph, budget
        self.state: RandomState = random_state(seed)
        self.random = np.random.default_rng(seed)
        self.contiguity = contiguity
        self.free = rules_of(problem, "free")
        limited = int(np.isfinite(self.graph.capacity_bytes).sum())
        self.fair = _fastest(self.graph).sum() / max(1, limited or problem.device_count)

    def value(self, graph: LoadGraph, place: Ints) -> float:
        """Largest load, infinite if a constraint is broken."""
        load, used, _ = load_tables(graph, place)
        broken = not graph.allowed[np.arange(len(place)), place].all()
        if broken or np.any(used > graph.capacity_bytes * (1 + 1e-12)):
            return inf
        if len(graph.apart):
            group = row_numbers(graph.apart_start)
            if np.any(place[group] == place[graph.apart]):
                return inf
        return float(load.max())

    def anneal(
        self,
        graph: LoadGraph,
        rules: Rules,
        start: Ints,
        steps: float,
        cooling: Cooling,
    ) -> Found:
        """Cool down in so many steps."""
        movable = np.flatnonzero(graph.allowed.sum(axis=1) > 1).astype(np.int32)
        place = start.copy()
        tables = load_tables(graph, place)
        best = float(tables[0].max()) if fits(graph, tables[1]) else inf
        if not len(movable):
            return Found(best, place)
        degree = len(graph.group_nets) / len(graph.size_bytes)
        each = _STEPS_PER_PROPOSAL + _STEPS_PER_NET * degree
        if rules.mode == CONVEX:
            each += 0.002 * len(rules.forward.order)
        total = max(256.0, steps / each)
        strides = int(min(200, max(8, total / 256)))
        cooling = cooling._replace(strides=strides, proposals=ceil(total / strides))
        batch = max(1, int(20_000 / (each * cooling.proposals)))
        best_place, penalty = place.copy(), 1.0
        for first in range(0, strides, batch):
            if not self.budget.left:
                break
            last = min(strides, first + batch)
            best, penalty = cool(
                graph,
                rules,
                place,
                tables,
                movable,
                best,
                best_place,
                penalty,
                cooling,
                first,
                last,
                self.state,
            )
            self.budget.spend((last - first) * cooling.proposals * each)
        return Found(best, best_place if best < inf else place)

    def multilevel(
        self,
        graph: LoadGraph,
        rules: Rules,
        start: Ints,
        keep: Ints,
        edges: Edges,
        run: Run,
    ) -> Ints:
        """Coarsen along edges, anneal the coarsest graph, refine level by level."""
        levels: list[tuple[LoadGraph, Ints]] = []
        here, place = graph, start
        room = graph.capacity_bytes[np.isfinite(graph.capacity_bytes)]
        most_bytes = 0.5 * float(room.max()) if len(room) else inf
        end = self.budget.spent + run.steps
        while len(here.size_bytes) > run.clusters:
            groups = len(here.size_bytes)
            target = max(run.clusters, groups // 4)
            target = run.clusters if target < 2 * run.clusters else target
            cluster, count = merge_edges(
                here,
                edges,
                keep,
                target,
                run.most_seconds,
                most_bytes,
                run.noise,
                run.rating,
                self.state,
            )
            if count > 0.95 * groups:
                break
            self.budget.spend(0.05 * (len(edges[0]) + len(here.net_pins)))
            levels.append((here, cluster))
            here = contract(here, cluster, count, self.state)
            place, keep = _merged(place, cluster, count), _merged(keep, cluster, count)
            a, b = cluster[edges[0]], cluster[edges[1]]
            edges = a[a != b], b[a != b], edges[2][a != b]
        if rules.mode == FREE:
            place = repaired(here, place)
        hot, coarse, owner = run.hot, bool(levels), _owner(levels, len(start))
        while True:
            fine = not levels
            left = max(0.0, end - self.budget.spent)
            share = 0.75 if levels and hot > 0.03 else 1.0 / (len(levels) + 1)
            gentle = fine and (coarse or hot <= 0.03)
            cooling = Cooling(
                0,
                0,
                hot,
                0.002,
                run.exponent,
                0.05 if gentle else 0.2,
                0.1 if gentle else 1.0,
            )
            bound = rules
            if rules.mode == CONVEX:
                forward = rules.forward._replace(group=owner[rules.forward.group])
                bound = rules._replace(forward=forward)
            place = self.anneal(here, bound, place, left * share, cooling).place
            if not levels:
                return place
            here, cluster = levels.pop()
            place, hot = place[cluster], min(hot, 0.02)
            owner = _owner(levels, len(start))


def _fastest(graph: LoadGraph) -> Floats:
    """Seconds of every group where it is fastest."""
    return np.asarray(graph.seconds.min(axis=1, initial=inf))


def _merged(values: Ints, cluster: Ints, count: int) -> Ints:
    """The value of a member of each cluster."""
    merged = np.empty(count, np.int32)
    merged[cluster] = values
    return merged


def _owner(levels: list[tuple[LoadGraph, Ints]], groups: int) -> Ints:
    """The cluster of each group after all levels."""
    owner = np.arange(groups, dtype=np.int32)
    for _, cluster in levels:
        owner = cluster[owner]
    return owner


def repaired(graph: LoadGraph, place: Ints) -> Ints:
    """Move groups that may not be or have no room where they are, largest first."""
    used = bytes_per_device(graph, place)
    stray = ~graph.allowed[np.arange(len(place)), place]
    for group in np.flatnonzero(np.diff(graph.apart_start)):
        others = graph.apart[graph.apart_start[group] : graph.apart_start[group + 1]]
        stray[group] |= bool(np.any(place[others[others < group]] == place[group]))
    if not stray.any() and np.all(used <= graph.capacity_bytes):
        return place
    place = place.copy()
    full = used > graph.capacity_bytes
    moved = np.flatnonzero(stray | full[place])
    for group in sorted(moved, key=lambda g: -graph.size_bytes[g]):
        here, size = place[group], graph.size_bytes[group]
        if not stray[group] and used[here] <= graph.capacity_bytes[here]:
            continue
        room = graph.allowed[group] & (used + size <= graph.capacity_bytes)
        others = graph.apart[graph.apart_start[group] : graph.apart_start[group + 1]]
        room[place[others]] = False
        if room.any():
            seconds = np.where(room, graph.seconds[group, graph.kind], inf)
            filled = np.where(np.isfinite(graph.capacity_bytes), used, 0.0)
            target = int(np.lexsort((filled, seconds))[0])
            used[here] -= size
            used[target] += size
            place[group] = target
    return place


class _Elite:
    """The best assignments, kept different in the nets that they cut."""

    def __init__(self, graph: LoadGraph, size: int = 10) -> None:
        self.graph, self.size = graph, size
        self.net = row_numbers(graph.net_start)
        self.members: list[tuple[float, Ints, Bools]] = []

    def add(self, found: Found) -> None:
        """Keep an assignment of a new value instead of the worse one most like it."""
        value, place = found.value, found.place
        known = any(abs(value - one[0]) <= 1e-9 * value for one in self.members)
        if value == inf or known:
            return
        first = place[self.graph.net_pins[self.graph.net_start[:-1]]]
        cut = np.zeros(len(first), np.bool_)
        np.logical_or.at(cut, self.net, place[self.graph.net_pins] != first[self.net])
        if len(self.members) >= self.size:
            worse = [i for i, one in enumerate(self.members) if one[0] > value]
            if not worse:
                return
            del self.members[
                min(worse, key=lambda i: np.count_nonzero(self.members[i][2] ^ cut))
            ]
        self.members.append((value, place.copy(), cut))
        self.members.sort(key=lambda one: one[0])

    @property
    def best(self) -> Found:
        """The best member."""
        value, place, _ = self.members[0]
        return Found(value, place)


def _search_free(search: _Search, starts: list[Ints]) -> Found:
    """Fresh runs, combinations of two assignments, and cycles of one."""
    graph, random, budget = search.graph, search.random, search.budget
    devices, elite = len(graph.capacity_bytes), _Elite(graph)
    last = repaired(graph, _random_start(graph, random))
    for start in starts:
        elite.add(Found(search.value(graph, start), start))
    total = budget.left
    edges = edges_of(graph)
    cuts, work = min_cuts(graph, edges[0], edges[1], int(0.08 * total * _WORK_PER_STEP))
    budget.spend(work / _WORK_PER_STEP)
    strong = edges[0], edges[1], np.where(cuts < 0, edges[2], cuts)
    groups = len(graph.size_bytes)
    steps = max(total / 400, min(total / 12, max(10_000, 20 * groups)))
    none = np.zeros(groups, np.int32)
    while budget.left > 1000:
        draw, members, keep, hot = random.random(), elite.members, none, 0.3
        if len(members) < 4 or draw < 0.3:
            start = _random_start(graph, random)
            if members and draw < 0.03:
                start = members[0][1]
        elif draw < 0.75:
            i, j = sorted(random.choice(len(members), 2, replace=False))
            start, hot = members[i][1], 0.2
            keep = (start * devices + members[j][1]).astype(np.int32)
        else:
            start = keep = members[random.integers(len(members))][1]
            hot = 0.1
        by_cuts = random.random() < 0.85
        run = Run(
            min(budget.left, steps),
            clusters=int(22 * 3.0 ** random.random()),
            most_seconds=(0.25 + 0.45 * random.random()) * search.fair,
            hot=hot,
            exponent=12 if random.random() < 0.67 else 24,
            rating=float(random.choice([0.0, 0.15, 0.3, 0.5])),
            noise=0.1 if by_cuts else 0.5,
        )
        last = search.multilevel(
            graph, search.free, start, keep, strong if by_cuts else edges, run
        )
        elite.add(Found(search.value(graph, last), last))
        if elite.members:
            budget.report(elite.best.value)
    return elite.best if elite.members else Found(inf, last)


def _random_start(graph: LoadGraph, random: np.random.Generator) -> Ints:
    """A random allowed device for every group."""
    score = random.random(graph.allowed.shape) * graph.allowed
    return np.asarray(np.argmax(score, axis=1), np.int32)


def _search_pipeline(search: _Search, effort: float = inf) -> tuple[Found, Ints, Ints]:
    """Partitions of many orders, then annealing along the best one's line.

    Returns the assignment, with the place of each device in the line, and the cluster
    of each group after groups on a common cycle are merged.
    """
    graph, cluster = fused(search.graph, search.state)
    random, budget, groups = search.random, search.budget, len(graph.size_bytes)
    owner = np.array(device_classes(replace(search.problem, graph=graph)), np.int32)
    number = np.bincount(owner).astype(np.int32)
    zero, edges = np.zeros(groups, np.int32), edges_of(graph)
    best, line, failures = Found(inf, zero), np.zeros(len(owner), np.int32), 0
    most_blocks, turn, end = 1000 if groups < 20_000 else 300, 0, budget.spent + effort
    while turn == 0 or (budget.left and budget.spent < end):
        known = best.value < inf
        new_line = line
        if known and failures > 8 and turn % 4 == 3:
            run = Run(
                min(budget.left, max(20_000, 200 * groups)),
                clusters=int(30 * 10 ** random.random()),
                most_seconds=(0.1 + 0.4 * random.random()) * search.fair,
                hot=float(random.choice([0.1, 0.03, 0.01])),
                exponent=12 if random.random() < 0.5 else 24,
                rating=float(random.choice([0.0, 0.3, 0.5])),
                noise=0.5,
            )
            rules = search.free._replace(mode=PIPELINE, line=line)
            place = search.multilevel(graph, rules, best.place, best.place, edges, run)
        else:
            near = known and random.random() < 0.75
            stage, stages = (line[best.place], len(line)) if near else (zero, 1)
            depth = float(random.choice([0.5, 0.9, 0.97, 1.0]))
            order = random_order(graph, stage, stages, depth, search.state)
            blocks = block_bounds(graph, order, most_blocks)
            most = best.value * (1 + 1e-9) if known else inf
            _, place, new_line, work = partition_chain(
                graph, order, blocks, owner, number, most
            )
            budget.spend(work / _WORK_PER_STEP + 0.1 * groups)
        value = search.value(graph, place)
        failures = 0 if value < best.value * (1 - 1e-9) else failures + 1
        if value <= best.value and value < inf:
            best, line = Found(value, place), new_line
            budget.report(value)
        turn += 1
    return best, line, cluster


def _search_convex(search: _Search, starts: list[Ints]) -> Found:
    """From the best pipeline into the larger set of convex assignments."""
    best, _, cluster = _search_pipeline(search, 0.4 * search.budget.left)
    found = Found(best.value, best.place[cluster])
    rules = rules_of(search.problem, "convex")
    for start in starts:
        value = search.value(search.graph, start)
        if value < found.value and is_contiguous(search.graph, rules, start):
            found = Found(value, start)
    steps = max(1.0, search.budget.left / 8)
    while found.value < inf and search.budget.left > 1000:
        hot = float(search.random.choice([0.1, 0.03, 0.01]))
        exponent = 12 if search.random.random() < 0.5 else 24
        cooling = Cooling(0, 0, hot, 0.002, exponent, 0.2, 1.0)
        other = search.anneal(search.graph, rules, found.place, steps, cooling)
        value = search.value(search.graph, other.place)
        if value < found.value:
            found = Found(value, other.place)
            search.budget.report(value)
    return found


def search_load(
    problem: Problem,
    budget: Budget,
    *,
    contiguity: str = "free",
    seed: int = 0,
    starts: list[Ints] | None = None,
) -> Found:
    """The best assignment found; its value is infinite if none fits.

    Args:
        problem: What to place.
        budget: How long.
        contiguity: "free", "convex" or "pipeline".
        seed: Of the random numbers.
        starts: Assignments to begin with.
    """
    search = _Search(problem, budget, seed, contiguity)
    if contiguity == "pipeline":
        best, _, cluster = _search_pipeline(search)
        return Found(best.value, best.place[cluster])
    if contiguity == "convex":
        return _search_convex(search, starts or [])
    return _search_free(search, starts or [])
