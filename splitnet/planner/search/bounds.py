"""Lower bounds: what no plan can beat, however long one searches."""

from collections.abc import Callable, Sequence
from math import fsum, inf

import numpy as np

from splitnet.planner.search.clock import Budget
from splitnet.planner.search.coarsen import fastest
from splitnet.planner.search.flow import FlowNetwork
from splitnet.planner.search.latency import topological
from splitnet.planner.search.problem import Problem, device_classes

__all__ = [
    "Bound",
    "critical_path_bound",
    "cut_bound",
    "largest_group_bound",
    "work_bound",
]

Bound = tuple[float, str]


def largest_group_bound(problem: Problem) -> Bound:
    """Every group runs somewhere, so its fastest device is busy that long."""
    return max(fastest(problem), default=0.0), "largest group"


def work_bound(problem: Problem, *, rounds: int = 120) -> Bound:
    """Share the work out fractionally, without transfers and memory.

    The dual of the fractional assignment: for prices p >= 0 of the device classes with
    sum of (price x devices) = 1, the sum over groups of the cheapest price x seconds is
    a bound. Concave in the prices: golden section per class, O(rounds x groups).
    """
    owner = device_classes(problem)
    classes = 1 + max(owner, default=-1)
    if classes == 0 or not problem.group_count:
        return 0.0, "work / capacity"
    number = np.bincount(owner, minlength=classes).astype(float)
    first = [owner.index(index) for index in range(classes)]
    times = np.asarray(problem.seconds, dtype=np.float64)
    columns = np.full((problem.group_count, classes), inf)
    domains: dict[tuple[int, ...], list[int]] = {}
    for group, row in enumerate(problem.allowed):
        domains.setdefault(row, []).append(group)
    for row, groups in domains.items():
        for index in sorted({owner[device] for device in row}):
            kind = problem.devices[first[index]].kind
            columns[groups, index] = times[groups, kind]

    def value(prices: Sequence[float]) -> float:
        scaled = np.asarray(prices) / float(np.dot(prices, number))
        with np.errstate(invalid="ignore"):
            cheapest = np.nanmin(columns * scaled, axis=1)
        return fsum(cheapest.tolist())

    prices = [1.0] * classes
    best = value(prices)
    for _ in range(1 if classes == 2 else 4):
        for index in range(classes if classes > 2 else 1):
            best = max(best, _golden(value, prices, index, rounds // 2))
    return best * (1 - 1e-12), "work / capacity"


def _golden(
    value: Callable[[Sequence[float]], float],
    prices: list[float],
    index: int,
    rounds: int,
) -> float:
    """Maximise over one price, from 2^-12 to 2^12 times what it is."""
    low, high = -12.0, 12.0
    ratio = 0.6180339887498949

    def at(exponent: float) -> float:
        trial = list(prices)
        trial[index] = prices[index] * 2.0**exponent
        return value(trial)

    a, b = high - ratio * (high - low), low + ratio * (high - low)
    fa, fb = at(a), at(b)
    for _ in range(rounds):
        if fa < fb:
            low, a, fa = a, b, fb
            b = low + ratio * (high - low)
            fb = at(b)
        else:
            high, b, fb = b, a, fa
            a = high - ratio * (high - low)
            fa = at(a)
    best = a if fa > fb else b
    prices[index] *= 2.0**best
    return max(fa, fb)


def cut_bound(
    problem: Problem, budget: Budget, *, stop_at: float = inf, maximum: int = 200
) -> Bound:
    """Bound by the cheapest set around each group (a minimum cut).

    A group is on some device; that device holds a set containing it, whose load is at
    least the minimum over all sets: seconds inside plus the nets that cross, a
    hypergraph cut. The best of all groups, and at each group the best kind of device,
    is a bound. A cut also caps the cuts of all groups inside it, so few flows are
    needed; stops early when it reaches `stop_at`. The set
    function is submodular, so the cut is exact; gadget for nets of Lawler (1973).
    """
    classes: dict[int, list[int]] = {}
    for device, number in enumerate(device_classes(problem)):
        classes.setdefault(number, []).append(device)
    kinds = sorted({problem.devices[row[0]].kind for row in classes.values()})
    # A kind that pays no transfers needs no flow: the cheapest set is the group.
    paying = [k for k in kinds if any(net.seconds[k] for net in problem.nets)]
    usable = [sorted({problem.devices[d].kind for d in row}) for row in problem.allowed]
    upper = []
    for group, row in enumerate(usable):
        upper.append(
            [problem.seconds[group][k] if k not in paying else inf for k in row]
        )
    cap: list[dict[int, float]] = [
        dict(zip(row, values, strict=True))
        for row, values in zip(usable, upper, strict=True)
    ]
    networks = {kind: _network(problem, kind) for kind in paying}
    done: set[tuple[int, int]] = set()
    best = 0.0
    for _ in range(maximum):
        if budget.spent or best >= stop_at:
            break
        group = max(
            range(problem.group_count),
            key=lambda g: min(cap[g].values(), default=0.0),
            default=-1,
        )
        if group < 0:
            break
        top = min(cap[group].values(), default=0.0)
        if top <= best:
            break
        kind = next(
            (k for k in paying if k in cap[group] and (group, k) not in done), None
        )
        if kind is None:
            best = max(best, top)
            cap[group] = {}
            continue
        value, inside = networks[kind].minimum_cut(group, limit=budget)
        if inside is None:
            break
        done.add((group, kind))
        for other in inside:
            if kind in cap[other]:
                cap[other][kind] = min(cap[other][kind], value)
        budget.spend(1000)
    return best * (1 - 1e-12), "minimum cut"


def _network(problem: Problem, kind: int) -> FlowNetwork:
    """Groups 0..n-1, sink n, two gadget nodes per net with several consumers."""
    count = problem.group_count
    network = FlowNetwork(count + 1, count)
    for group, row in enumerate(problem.seconds):
        if row[kind] > 0:
            network.arc(group, count, row[kind], 0.0)
    for net in problem.nets:
        cost = net.seconds[kind]
        if not cost:
            continue
        if len(net.consumers) == 1:
            network.arc(net.producer, net.consumers[0], cost, cost)
            continue
        enter, leave = network.node(), network.node()
        network.arc(enter, leave, cost, 0.0)
        for pin in (net.producer, *net.consumers):
            network.arc(pin, enter, inf, 0.0)
            network.arc(leave, pin, inf, 0.0)
    return network


def critical_path_bound(problem: Problem) -> Bound:
    """Return the longest path when every node takes its fastest device's time.

    Holds for `call_latency`: a call takes at least the sum of its nodes' seconds.
    """
    nodes = problem.nodes
    kind = [device.kind for device in problem.devices]
    finish = [0.0] * len(nodes.group)
    for node in topological(problem):
        start = max((finish[source] for source in nodes.predecessors[node]), default=0)
        allowed = problem.allowed[nodes.group[node]]
        seconds = min((nodes.seconds[node][kind[d]] for d in allowed), default=0.0)
        finish[node] = start + seconds
    return max(finish, default=0.0) * (1 - 1e-12), "critical path"
