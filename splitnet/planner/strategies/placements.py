"""Placements that strategies start from: stages of even work, and towers.

stages               |== 1 ==|== 2 ==|== 3 ==|    calls in their order

towers of a model    x --+-- all calls, samples 0-3 --+--
                         +-- all calls, samples 4-6 --+

towers of a part     x --+-- table 1 --+--+-- the other calls, samples 0-3 --+--
                         +-- table 2 --+  +-- the other calls, samples 4-6 --+
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from splitnet.core.graph import BATCH_NORMS, Graph, Towers
from splitnet.core.replication import (
    batch_shares,
    expand,
    in_pieces,
    tower_part,
    weights_part,
)
from splitnet.planner.constraints import Group
from splitnet.planner.partitioning import running_order
from splitnet.planner.strategies.space import Placed, Space, sees_batch
from splitnet.simulator.batch import scaled_graph


def stages(
    space: Space, workers: Sequence[str], mixes: Sequence[float], *, copies: bool = True
) -> Iterator[Placed]:
    """A stage of parts on each device, or on as many as there are parts.

    Each of `mixes` is the share of memory, and not of work, in what is even. With
    `copies`, a stage takes as long as the longer of its work and what crosses its ends,
    because copies overlap with work (Harlap et al., PipeDream, 2018).
    """
    evaluator, step = space.evaluator, space.evaluator.step
    after: list[dict[int, None]] = [{} for _ in step.units]
    before: list[set[int]] = [set() for _ in step.units]
    for edge in step.edges:
        after[edge.source] |= dict.fromkeys(edge.readers)
        for reader in edge.readers:
            before[reader].add(edge.source)
    running = dict.fromkeys(step.parts[u] for u in running_order(before, after))
    order = {part: i for i, part in enumerate(running)}
    first: dict[int, int] = {}
    for i, group in enumerate(space.groups):
        its = [order[part] for part in group.parts if part in order]
        kinds = {evaluator.graph.part[part].kind for part in group.parts}
        if its and kinds != {"input"}:
            first[i] = min(its)
    line = sorted(first, key=first.__getitem__)
    if len(line) < 2:
        return
    workers = workers[: len(line)]
    parts = [space.groups[i].parts for i in line]
    place = {part: at for at, own in enumerate(parts) for part in own}
    link = evaluator.costs.link(workers[0], workers[-1], evaluator.cluster)
    crossing = np.zeros(len(line) + 1)  # seconds of the tensors across each cut
    for edge in step.edges if copies else ():
        units = (edge.source, *edge.readers)
        ends = [place.get(step.parts[unit], -1) for unit in units]
        if ends[0] >= 0:
            crossing[ends[0] + 1 : max(ends) + 1] += edge.bytes / link.bytes_per_second
    work = np.array([sum(evaluator.load(p, workers[0]) for p in own) for own in parts])
    held = np.array([float(evaluator.need(own).total) for own in parts])
    total = work.sum() or 1.0
    for mix in mixes:
        both = (1 - mix) * work / total + mix * held / (held.sum() or 1)
        cut = _even(both, (1 - mix) * crossing / total, len(workers))
        wanted = [evaluator.cluster.home.name] * len(space.groups)
        for at, i in enumerate(line):
            wanted[i] = workers[sum(at >= start for start in cut)]
        if (made := space.placed(wanted)) is not None:
            yield made


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


def towers_of_a_part(
    space: Space, workers: Sequence[str], home: str, *, whole: bool
) -> Iterator[Placed | None]:
    """Towers on each worker of all calls, or of all but those with large weights.

    The weights of towers are at `home`; they go to each tower in every step, and their
    gradients back. So if not the `whole` model is copied, groups are kept on one device
    whose weights are larger than what they read and give; there may be none. Slices of
    a layer are always kept.
    """
    evaluator, kept = space.evaluator, dict[str, str]()
    graph, held = evaluator.graph, dict.fromkeys(workers, 0)
    large = list[tuple[int, Group]]()
    for group in space.groups:
        if any(graph.part[part].kind == "slice" for part in group.parts):
            kept |= dict.fromkeys(group.parts, group.allowed[0])
        elif not whole and (size := _lasting_bytes(graph, set(group.parts))):
            large.append((size, group))
    for size, group in sorted(large, key=lambda one: -one[0]):
        emptiest = min(held, key=held.__getitem__)
        held[emptiest] += size
        kept |= dict.fromkeys(group.parts, emptiest)
    if whole or large:
        pieces, names = in_pieces(graph, kept)
        one = replace(evaluator, graph=pieces, regroup=False)
        there = dict.fromkeys(pieces.part, evaluator.cluster.home.name) | kept
        groups = [(worker,) for worker in workers]
        yield _copied((one, there), dict.fromkeys(names, 0), groups, home)


def _lasting_bytes(graph: Graph, parts: Set[str]) -> int:
    """Bytes of the weights of parts; 0 if more bytes of tensors cross their ends."""
    names = {
        name for part in parts for call in graph.calls_of[part] for name in call.weights
    }
    crossing = {
        (tensor.source, tensor.index): tensor.bytes
        for tensor in graph.tensors
        if (graph.call[tensor.source].part in parts)
        != (graph.call[tensor.target].part in parts)
    }
    size = sum(graph.weight[name].bytes for name in names)
    return size if size > sum(crossing.values()) else 0


def towers_of_stages(
    space: Space, groups: Sequence[Sequence[str]], home: str | None
) -> Iterator[Placed | None]:
    """Stages on the first group of devices, copied to the others."""
    index = {device: i for i, device in enumerate(groups[0])}
    for one, device_of in stages(space, groups[0], (0.0, 0.5, 1.0)):
        parts = {
            part.name: index[device_of[part.name]]
            for part in one.graph.parts
            if part.kind != "input" and device_of[part.name] in index
        }
        yield _copied((one, device_of), parts, groups, home)


def _copied(
    placed: Placed,
    index: Mapping[str, int],
    groups: Sequence[Sequence[str]],
    home: str | None,
) -> Placed | None:
    """A placement with some parts as towers, one on each group of devices.

    None if towers would send the rows of a table's gradient to a worker: TensorFlow
    puts them together on the first device of the machine.

    Args:
        placed: Where the other parts are.
        index: The parts that are copied, and which device of each group is theirs.
        groups: The devices of each tower.
        home: Where the weights are; None leaves them in the first tower.
    """
    one, at = placed
    batch, default = one.graph.batch, one.cluster.home.name
    calls = (call for name in index for call in one.graph.calls_of[name])
    if home != default and any(call.lookups for call in calls):
        return None
    graph = one.graph
    norm = BATCH_NORMS[any(map(sees_batch, graph.calls))]
    homes = {name: home or groups[0][i] for name, i in index.items()}
    towers = {
        name: Towers(tuple((group[i],) for group in groups), (homes[name],), norm)
        for name, i in index.items()
    }
    sizes = {*batch_shares(batch, len(groups)), 1}
    made = expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)
    device_of = {p.name: at.get(p.name, default) for p in made.parts}
    reader = {  # the device of the first other part that reads what towers give
        graph.call[tensor.source].part: at[target]
        for tensor in reversed(graph.tensors)
        if (target := graph.call[tensor.target].part) not in index
    }
    for name, i in index.items():
        device_of[name] = reader.get(name, default)
        if weights_part(name) in device_of:
            device_of[weights_part(name)] = homes[name]
        for k, group in enumerate(groups):
            device_of[tower_part(name, k)] = group[i]
    return replace(one, graph=made), device_of
