"""Strategies: ways to use a cluster, compared with one simulator and one cost.

placements      one device · the plan's own · stages of even work · towers
x executions    at once, or in micro-batches; recomputing where memory lacks
= candidates    each is simulated
-> choose       the simplest of those that are at most 2 % slower than the fastest
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

from splitnet.core.cluster import Cluster
from splitnet.core.costs import Roofline
from splitnet.core.graph import Call, Graph
from splitnet.core.net import BATCH_NORMS, Towers
from splitnet.core.plan import Strategy
from splitnet.core.replication import (
    as_one_part,
    batch_shares,
    expand,
    named_for,
    split_layers,
    tower_part,
    towers_in,
    weights_part,
)
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import (
    Evaluation,
    Evaluator,
)
from splitnet.simulator.microbatch import (
    ScaledCosts,
    recomputed_parts,
    scaled_graph,
    stage_count,
)

__all__ = [
    "DeviceTable",
    "Placed",
    "Candidate",
    "Space",
    "candidates",
    "choose",
    "groups_of",
    "obstacles_of",
    "workers_of",
]

DeviceTable = Mapping[str, str]
Placed = tuple[Evaluator, DeviceTable]
"""What evaluates a placement of the parts of its graph, and the placement."""

_MICROBATCHES = (1, 2, 4, 8, 16, 32)
_GAIN = 0.01
"""Of the step: more micro-batches that gain less are the last that are tried."""
_AS_GOOD = 0.02
"""Of the step: a simpler strategy may be slower than the fastest by so much."""
_OF_BATCH = ("BatchNormalization", "SpectralNormalization")
"""Layers that see a batch as a whole, or change with each call."""
_KINDS = ("one device", "plan", "placement", "towers", "pipeline")
"""Kinds of strategies, the simplest first."""


@dataclass(frozen=True)
class Candidate:
    """A placement and how its parts run, simulated."""

    evaluator: Evaluator
    device_of: Mapping[str, str]
    found: Evaluation

    @property
    def seconds(self) -> float:
        """Of one step."""
        return self.found.outcome.timeline.seconds

    @property
    def fits(self) -> bool:
        """Whether every device has enough memory."""
        return self.found.fits

    @property
    def is_full(self) -> bool:
        """Whether weights and slots alone overfill a device, however the parts run."""
        held = self.found.outcome.memory
        devices = self.evaluator.cluster
        return any(
            held[d.name].weights + held[d.name].slots > d.memory_bytes for d in devices
        )

    @property
    def execution(self) -> Execution:
        """How the parts run."""
        return self.evaluator.execution

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that compute."""
        busy = self.found.outcome.timeline.compute_seconds
        return tuple(name for name, seconds in busy.items() if seconds > 0)

    @property
    def towers(self) -> int:
        """Into how many towers the whole model is copied; 1 if it is not."""
        counts = (one.count for one in towers_in(self.evaluator.graph).values())
        return max(counts, default=1)

    @property
    def kind(self) -> str:
        """One of `_KINDS`."""
        calls = [c.part for c in self.evaluator.graph.calls if c.forward_flops]
        if len({self.device_of[part] for part in calls}) < 2:
            return "one device"
        if self.towers > 1:
            return "towers"
        return "pipeline" if self.execution.microbatches > 1 else "placement"

    @property
    def complexity(self) -> tuple[int, int, int, int]:
        """What is simpler is less."""
        one = self.execution
        rank = _KINDS.index(self.kind)
        return (rank, bool(one.recompute), one.microbatches, len(self.devices))

    @property
    def words(self) -> str:
        """The options that fix this strategy."""
        one = self.execution
        said = [f"towers={self.towers}"] if self.towers > 1 else []
        if one.microbatches > 1:
            said += [f"microbatches={one.microbatches}", f"schedule={one.schedule!r}"]
        if one.recompute and set(self.devices) <= set(one.recompute):
            said.append("recompute=True")
        return ", ".join(said)

    @property
    def how(self) -> str:
        """What a person types to get it."""
        given = ["strategy='auto'", self.words]
        if self.kind == "one device":
            busy = self.found.outcome.timeline.compute_seconds
            given.insert(0, f"pins={{'*': {max(busy, key=busy.__getitem__)!r}}}")
            if self.execution == Execution():
                given.pop(1)
        elif self.towers == 1:
            given.append("towers=1")
        if self.execution.microbatches == 1 and len(given) > 2:
            given.append("microbatches=1")
        return f"plan({', '.join(['source, cluster', *filter(None, given)])})"

    def row(self, kind: str = "", how: str = "") -> Strategy:
        """The strategy as plain data."""
        outcome = self.found.outcome
        return Strategy(
            kind or self.kind,
            self.seconds,
            how or self.how,
            self.fits,
            max(outcome.timeline.compute_seconds.values(), default=0.0),
            sum(copy.bytes for copy in outcome.timeline.copies),
            max((memory.total for memory in outcome.memory.values()), default=0),
            self.devices,
        )


@dataclass(frozen=True)
class Space:
    """What may be chosen: devices of each group of parts, and what is fixed.

    `obstacles` say why the model cannot be cut into "microbatches" or copied into
    "towers". `regrouped` gives the parts that run for a placement, where those of the
    evaluator's graph are for planning only.
    """

    evaluator: Evaluator
    groups: Sequence[Group]
    obstacles: Mapping[str, str] = field(default_factory=dict)
    microbatches: int | None = None
    schedule: str | None = None
    recompute: bool | None = None
    towers: int | None = None
    regrouped: Callable[[DeviceTable], Placed] | None = None

    @property
    def counts(self) -> Sequence[int]:
        """How many micro-batches may be tried."""
        if self.microbatches is not None:
            return (self.microbatches,)
        if not self.evaluator.training or "microbatches" in self.obstacles:
            return (1,)
        return [n for n in _MICROBATCHES if n <= self.evaluator.graph.batch]

    def placed(self, wanted: Iterable[str]) -> Placed | None:
        """The groups on the wanted devices where they may be there, else on others.

        None if two that must be apart would share a device.
        """
        where = [
            device if device in group.allowed else group.allowed[0]
            for group, device in zip(self.groups, wanted)
        ]
        for group, device in zip(self.groups, where):
            if any(where[other] == device for other in group.apart):
                return None
        device_of = {
            part: device
            for group, device in zip(self.groups, where)
            for part in group.parts
        }
        if self.regrouped is not None:
            return self.regrouped(device_of)
        return self.evaluator, device_of


def choose(found: Iterable[Candidate]) -> Candidate | None:
    """The simplest that fits and is at most 2 % slower than the fastest that fits."""
    fitting = [one for one in found if one.fits]
    if not fitting:
        return None
    limit = min(one.seconds for one in fitting) * (1 + _AS_GOOD)
    good = [one for one in fitting if one.seconds <= limit]
    return min(good, key=lambda one: (one.complexity, one.seconds))


def obstacles_of(graph: Graph) -> dict[str, str]:
    """What a graph shows of why its batch or its model cannot be divided."""
    found = {}
    norms = [call.layer for call in graph.calls if call.kind in _OF_BATCH]
    if norms:
        found["microbatches"] = (
            f"{', '.join(norms[:3])} would normalise each micro-batch by itself"
        )
    if any(call.backward for call in graph.calls):
        why = "its graph has backward calls of its own"
        found.update(microbatches=why, towers=why)
    if towers_in(graph) or split_layers(graph):
        found["towers"] = "it has towers or split layers of its own"
    for call in graph.calls:
        end = call.name in graph.outputs or graph.part[call.part].kind == "input"
        for shape in call.output_shapes if end else ():
            if shape[:1] not in ((), (graph.batch,), (None,)):
                why = f"the first axis of {call.name!r} is not the batch"
                found.update(microbatches=why, towers=why)
    return found


def candidates(space: Space, known: Iterable[Placed] = ()) -> Iterator[Candidate]:
    """Every strategy that may be chosen, simulated; `known` are placements beside."""
    evaluator = space.evaluator
    if space.towers in (None, 1):
        for device in evaluator.unlike([d.name for d in evaluator.cluster]):
            yield from _executions(space, space.placed([device] * len(space.groups)))
        for placed in known:
            yield from _executions(space, placed)
        yield from _staged(space)
    if space.towers != 1 and "towers" not in space.obstacles:
        yield from _towers(space)


def _executions(space: Space, placed: Placed | None) -> Iterator[Candidate]:
    """The ways to run a placement: more micro-batches as long as they gain."""
    if placed is None:
        return
    stages = stage_count(placed[0].graph, placed[1])
    last: Candidate | None = None
    best: Candidate | None = None
    for count in space.counts:
        if last is not None and last.fits and stages < 2:
            return
        schedule = space.schedule or (SCHEDULES[1] if count > 1 else SCHEDULES[0])
        one = _fitted(space, placed, Execution(count, schedule))
        yield one
        if not one.fits and one.is_full:
            return
        if count > 1 and (best is None or _rank(one) < _rank(best)):
            best = one
        plain = last is not None and last.fits and not one.execution.recompute
        if plain and last is not None and one.seconds > (1 - _GAIN) * last.seconds:
            break
        last = one
    if best is not None and space.schedule is None and stages > 1:
        count = best.execution.microbatches
        yield _fitted(space, placed, Execution(count, SCHEDULES[0]))


def _rank(one: Candidate) -> tuple[bool, float]:
    return not one.fits, one.seconds


def _fitted(space: Space, placed: Placed, execution: Execution) -> Candidate:
    """The placement run so, recomputing on devices whose memory lacks; then on all."""
    evaluator, device_of = placed
    cluster = evaluator.cluster
    everywhere = tuple(device.name for device in cluster)
    if space.recompute:
        execution = replace(execution, recompute=everywhere)

    def run(one: Execution) -> Candidate:
        judge = replace(evaluator, execution=one)
        return Candidate(judge, device_of, judge.evaluate(device_of))

    made = run(execution)
    fixed = space.recompute is not None or not evaluator.training
    while not made.fits and not fixed:
        held = made.found.outcome.memory
        again = tuple(
            d.name
            for d in cluster
            if d.name in made.execution.recompute or held[d.name].total > d.memory_bytes
        )
        execution = replace(execution, recompute=again)
        if not recomputed_parts(evaluator.graph, device_of, execution):
            break
        fixed = again == made.execution.recompute
        made = run(execution)
    return made


def workers_of(cluster: Cluster) -> list[str]:
    """The devices that towers and stages may use: GPUs, or else all but the first."""
    gpus = [d.name for d in cluster if d.kind == "gpu"]
    others = [d.name for d in cluster if d.name != cluster.home.name]
    return gpus if len(gpus) > 1 else others


def groups_of(workers: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """As many groups of so many devices as there are, each within a host if any is.

    >>> groups_of(["w:0/gpu:0", "w:0/gpu:1", "w:1/gpu:0", "w:1/gpu:1"], 2)
    [('w:0/gpu:0', 'w:0/gpu:1'), ('w:1/gpu:0', 'w:1/gpu:1')]
    """
    hosts: dict[str, list[str]] = {}
    for name in workers:
        hosts.setdefault(name.rpartition("/")[0], []).append(name)

    def cut(line: Sequence[str]) -> list[tuple[str, ...]]:
        starts = range(0, len(line) - size + 1, size)
        return [tuple(line[start : start + size]) for start in starts]

    inside = [group for line in hosts.values() for group in cut(line)]
    return inside or cut([name for line in hosts.values() for name in line])


def _counts(most: int) -> list[int]:
    """How many devices are tried: small numbers, then multiples of four, and all."""
    return [n for n in range(2, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def _staged(space: Space) -> Iterator[Candidate]:
    """Parts in their order on some devices."""
    workers = workers_of(space.evaluator.cluster)
    for count in _counts(len(workers)):
        for placed in _stages(space, workers[:count]):
            tried = list(_executions(space, placed))
            yield from tried
            if any(one.fits for one in tried):
                break


def _stages(space: Space, workers: Sequence[str]) -> Iterator[Placed | None]:
    """A stage of parts on each device: even work first, then even memory."""
    evaluator = space.evaluator
    graph = evaluator.graph
    running = dict.fromkeys(call.part for call in graph.calls)
    order = {part: i for i, part in enumerate(running)}
    inner = [
        (min(order[part] for part in group.parts if part in order), i)
        for i, group in enumerate(space.groups)
        if any(part in order for part in group.parts)
        and any(graph.part[part].kind != "input" for part in group.parts)
    ]
    line = [i for _, i in sorted(inner)]
    if len(line) < len(workers):
        return
    parts = [space.groups[i].parts for i in line]
    work = _shares(sum(evaluator.load(p, workers[0]) for p in each) for each in parts)
    held = _shares(evaluator.need(each).total for each in parts)
    for mix in (0.0, 0.5, 1.0):
        both = [(1 - mix) * a + mix * b for a, b in zip(work, held)]
        cut = _even(both, len(workers))
        wanted = [evaluator.cluster.home.name] * len(space.groups)
        for place, i in enumerate(line):
            wanted[i] = workers[sum(place >= start for start in cut)]
        yield space.placed(wanted)


def _shares(values: Iterable[float]) -> list[float]:
    found = list(values)
    return [value / (sum(found) or 1) for value in found]


def _even(weights: Sequence[float], count: int) -> tuple[int, ...]:
    """Where to cut a line into stages so that the heaviest is lightest. O(n^2 count).

    >>> _even([3, 1, 1, 1, 2, 2], 3)
    (1, 4)
    """
    sums = [0.0, *accumulate(weights)]

    @cache
    def best(end: int, stages: int) -> tuple[float, tuple[int, ...]]:
        if stages == 1:
            return sums[end], ()
        tried = []
        for start in range(stages - 1, end):
            heaviest, cut = best(start, stages - 1)
            tried.append((max(heaviest, sums[end] - sums[start]), (*cut, start)))
        return min(tried)

    return best(len(weights), count)[1]


def _towers(space: Space) -> Iterator[Candidate]:
    """The whole model on each of some devices, or its stages on each of some groups."""
    evaluator = space.evaluator
    workers, graph = workers_of(evaluator.cluster), evaluator.graph
    asked = [
        group
        for group in space.groups
        if group.apart or not set(workers) <= set(group.allowed)
        if not all(_may_move(graph, part) for part in group.parts)
    ]
    if asked:
        return
    most = min(len(workers), graph.batch)
    one = replace(evaluator, graph=as_one_part(graph))
    name, home = one.graph.parts[-1].name, evaluator.cluster.home.name
    whole = one, dict.fromkeys((p.name for p in graph.parts), home) | {name: workers[0]}
    for count in [space.towers] if space.towers else _counts(most):
        groups = groups_of(workers[:count], 1)
        for at in dict.fromkeys((home, workers[0])):
            yield from _executions(space, _copied(whole, groups, at))
    for size in _counts(len(workers) // (space.towers or 2)):
        groups = groups_of(workers, size)[: min(space.towers or most, graph.batch)]
        if len(groups) < max(2, space.towers or 2):
            continue
        for placed in _stages(space, groups[0]):
            tried = [
                one
                for at in (home, None)
                if placed is not None
                for one in _executions(space, _copied(placed, groups, at))
            ]
            yield from tried
            if any(one.fits for one in tried):
                break


def _may_move(graph: Graph, part: str) -> bool:
    """Whether a part is somewhere by default alone: inputs, and merges on the CPU."""
    one = graph.part[part]
    return one.kind == "input" or one.kind == "merge" and one.on == ("cpu",)


def _copied(
    placed: Placed, groups: Sequence[Sequence[str]], home: str | None
) -> Placed:
    """A placement on the first group of devices as towers, one on each group.

    Args:
        placed: What places the model on the devices of the first group. Parts that are
            elsewhere are not copied.
        groups: The devices of each tower.
        home: Where the weights are; None leaves them in the first tower.
    """
    one, at = placed
    batch, default = one.graph.batch, one.cluster.home.name
    number = {device: i for i, device in enumerate(groups[0])}
    running = [p.name for p in one.graph.parts if p.kind != "input"]
    parts = {name: number[at[name]] for name in running if at[name] in number}
    graph = named_for(one.graph, parts)
    sizes = batch_shares(batch, len(groups))
    norms = any(call.kind in _OF_BATCH for call in graph.calls)
    homes = {name: home or groups[0][i] for name, i in parts.items()}
    towers = {
        name: Towers(
            tuple((group[i],) for group in groups), (homes[name],), BATCH_NORMS[norms]
        )
        for name, i in parts.items()
    }
    smaller = {size: scaled_graph(graph, size) for size in set(sizes) | {1}}
    made = expand(graph, smaller, towers)
    device_of = {p.name: at.get(p.name, default) for p in made.parts}
    costs: dict[str, tuple[Call, float]] = {}
    for name, i in parts.items():
        device_of[name] = default
        if weights_part(name) in device_of:
            device_of[weights_part(name)] = homes[name]
        for k, (group, size) in enumerate(zip(groups, sizes)):
            tower = tower_part(name, k)
            device_of[tower] = group[i]
            for call in made.calls_of[tower]:
                plain = f"{name}/{call.name.removeprefix(tower + '/')}"
                costs[call.name] = (graph.call[plain], size / batch)
    known = isinstance(one.costs, Roofline)
    scaled = one.costs if known else ScaledCosts(one.costs, costs)
    return replace(one, graph=made, costs=scaled), device_of
