"""Placements that strategies start from: stages of even work, towers of stages."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.costs import Roofline
from splitnet.core.graph import Call, Graph
from splitnet.core.net import BATCH_NORMS, Towers
from splitnet.core.plan import PlanOptions
from splitnet.core.replication import (
    batch_shares,
    expand,
    named_for,
    split_layers,
    tower_part,
    towers_in,
    weights_part,
)
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import Evaluator, placed
from splitnet.simulator.microbatch import ScaledCosts, scaled_graph

__all__ = [
    "DeviceTable",
    "Placed",
    "Space",
    "copied",
    "device_counts",
    "groups_of",
    "may_move",
    "obstacles_of",
    "stages",
    "workers_of",
]

DeviceTable = Mapping[str, str]
Placed = tuple[Evaluator, DeviceTable]
"""What evaluates a placement of the parts of its graph, and the placement."""


_MICROBATCHES = (1, 2, 4, 8, 16, 32)
_OF_BATCH = ("BatchNormalization", "SpectralNormalization")
"""Layers that see a batch as a whole, or change with each call."""


@dataclass(frozen=True)
class Space:
    """What may be chosen: devices of each group of parts, and what `options` leave.

    `obstacles` say why the model cannot be cut into "microbatches" or copied into
    "towers". `regrouped` gives the parts that run for a placement, where those of the
    evaluator's graph are for planning only.
    """

    evaluator: Evaluator
    groups: Sequence[Group]
    obstacles: Mapping[str, str] = field(default_factory=dict)
    options: PlanOptions = PlanOptions()
    regrouped: Callable[[DeviceTable], Placed] | None = None

    @property
    def counts(self) -> Sequence[int]:
        """How many micro-batches may be tried."""
        if self.options.microbatches is not None:
            return (self.options.microbatches,)
        if not self.evaluator.training or "microbatches" in self.obstacles:
            return (1,)
        return [n for n in _MICROBATCHES if n <= self.evaluator.graph.batch]

    def placed(self, wanted: Iterable[str]) -> Placed | None:
        """The groups on the wanted devices where they may be there, else on others.

        None if two that must be apart would share a device.
        """
        device_of = placed(self.groups, wanted)
        where = [device_of[group.parts[0]] for group in self.groups]
        for group, device in zip(self.groups, where):
            if any(where[other] == device for other in group.apart):
                return None
        if self.regrouped is not None:
            return self.regrouped(device_of)
        return self.evaluator, device_of


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


def device_counts(most: int) -> list[int]:
    """How many devices are tried: small numbers, then multiples of four, and all."""
    return [n for n in range(2, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def stages(space: Space, workers: Sequence[str]) -> Iterator[Placed | None]:
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
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    work = sums[None, :] - sums[:, None]  # of the items from a row's to a column's
    work[np.tril_indices(len(sums))] = np.inf  # no stage is empty
    heaviest, starts = work[0], []
    for _ in range(count - 1):
        each = np.maximum(heaviest[:, None], work)
        starts.append(each.argmin(axis=0))
        heaviest = each.min(axis=0)
    cut = [len(weights)]
    for start in reversed(starts):
        cut.append(int(start[cut[-1]]))
    return tuple(reversed(cut[1:]))


def may_move(graph: Graph, part: str) -> bool:
    """Whether a part is somewhere by default alone: inputs, and merges on the CPU."""
    one = graph.part[part]
    return one.kind == "input" or one.kind == "merge" and one.on == ("cpu",)


def copied(placed: Placed, groups: Sequence[Sequence[str]], home: str | None) -> Placed:
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
                if plain in graph.call:  # moments of the batch are not
                    costs[call.name] = (graph.call[plain], size / batch)
    known = isinstance(one.costs, Roofline)
    scaled = one.costs if known else ScaledCosts(one.costs, costs)
    return replace(one, graph=made, costs=scaled), device_of
