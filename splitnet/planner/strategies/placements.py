"""Placements that strategies start from: stages of even work, towers of stages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

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
from splitnet.planner.partitioning import running_order
from splitnet.simulator.microbatch import ScaledCosts, scaled_graph

Placed = tuple[Evaluator, Mapping[str, str]]
"""What evaluates a placement of the parts of its graph, and the placement."""

_MICROBATCHES = (1, 2, 4, 8, 16, 32)


def _of_batch(call: Call) -> bool:
    """Whether a call sees a batch as a whole, or changes with each call."""
    return call.batch_moments or call.kind == "SpectralNormalization"


@dataclass(frozen=True)
class Space:
    """What may be chosen: devices of each group of parts, and what `options` leave.

    `obstacles` say why the model cannot be cut into "microbatches" or copied into
    "towers".
    """

    evaluator: Evaluator
    groups: Sequence[Group]
    obstacles: Mapping[str, str] = field(default_factory=dict)
    options: PlanOptions = PlanOptions()

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
        return self.evaluator.as_run(device_of)


def obstacles_of(graph: Graph) -> dict[str, str]:
    """What a graph shows of why its batch or its model cannot be divided."""
    found = {}
    norms = [call.layer for call in graph.calls if _of_batch(call)]
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
    """A stage of parts on each device, or on as many as there are parts.

    Even work comes first, then even memory.

    Copies overlap with work: a stage takes as long as the longer of its work and what
    crosses its ends (Harlap et al., PipeDream, 2018).
    """
    evaluator, step = space.evaluator, space.evaluator.step
    after: list[dict[int, None]] = [{} for _ in step.parts]
    before: list[set[int]] = [set() for _ in step.parts]
    for edge in step.edges:
        for reader in edge.readers:
            after[edge.source][reader] = None
            before[reader].add(edge.source)
    running = dict.fromkeys(step.parts[u] for u in running_order(before, after))
    order = {part: i for i, part in enumerate(running)}
    first = {
        i: min(order[part] for part in group.parts if part in order)
        for i, group in enumerate(space.groups)
        if any(part in order for part in group.parts)
        and any(evaluator.graph.part[part].kind != "input" for part in group.parts)
    }
    line = sorted(first, key=first.__getitem__)
    if len(line) < 2:
        return
    workers = workers[: len(line)]
    parts = [space.groups[i].parts for i in line]
    place = {part: at for at, own in enumerate(parts) for part in own}
    link = evaluator.costs.link(workers[0], workers[-1], evaluator.cluster)
    crossing = np.zeros(len(line) + 1)  # seconds of the tensors across each cut
    for edge in step.edges:
        units = (edge.source, *edge.readers)
        ends = [place.get(step.parts[unit], -1) for unit in units]
        if ends[0] >= 0:
            crossing[ends[0] + 1 : max(ends) + 1] += edge.bytes / link.bytes_per_second
    work = np.array([sum(evaluator.load(p, workers[0]) for p in own) for own in parts])
    held = np.array([float(evaluator.need(own).total) for own in parts])
    total = work.sum() or 1.0
    for mix in (0.0, 0.5, 1.0):
        both = (1 - mix) * work / total + mix * held / (held.sum() or 1)
        cut = _even(both, (1 - mix) * crossing / total, len(workers))
        wanted = [evaluator.cluster.home.name] * len(space.groups)
        for at, i in enumerate(line):
            wanted[i] = workers[sum(at >= start for start in cut)]
        yield space.placed(wanted)


def _even(
    weights: npt.ArrayLike, crossing: npt.ArrayLike, count: int
) -> tuple[int, ...]:
    """Where to cut a line into stages so that the heaviest is lightest. O(n^2 count).

    A stage weighs what is in it, or what crosses one of its ends, if that is more.

    >>> _even([3, 1, 1, 1, 2, 2], [0] * 7, 3), _even([2, 2, 2], [0, 5, 1, 0], 2)
    ((1, 4), (2,))
    """
    sums = np.concatenate(([0.0], np.cumsum(weights)))
    work = sums[None, :] - sums[:, None]  # of the items from a row's to a column's
    work = np.maximum(work, np.maximum.outer(crossing, crossing))
    work[np.tril_indices(len(sums))] = np.inf  # no stage is empty
    heaviest, starts = work[0], []
    for _ in range(count - 1):
        each = np.maximum(heaviest[:, None], work)
        starts.append(each.argmin(axis=0))
        heaviest = each.min(axis=0)
    cut = [len(sums) - 1]
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
    norms = any(map(_of_batch, graph.calls))
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
