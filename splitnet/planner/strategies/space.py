"""What a strategy may be: devices, counts, and placements to start from.

stages               |== 1 ==|== 2 ==|== 3 ==|    calls in their order

towers of a model    x --+-- all calls, samples 0-3 --+--
                         +-- all calls, samples 4-6 --+

towers of a part     x --+-- table 1 --+--+-- the other calls, samples 0-3 --+--
                         +-- table 2 --+  +-- the other calls, samples 4-6 --+
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np
import numpy.typing as npt

from splitnet.core import replication
from splitnet.core.cluster import Cluster
from splitnet.core.graph import BATCH_NORMS, Call, Graph, Places, Towers, grouped
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import Evaluator, Placed, placed
from splitnet.planner.problem import running_order
from splitnet.simulator.units import scaled_graph

Groups = Sequence[Group]
Devices = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Limits:
    """How a source can be divided, as far as its graph does not show it.

    `obstacles` say why it has no "microbatches" or "towers", `obstacle` why a layer has
    not so many slices, "" if it can. `sliced` reads the source with layers cut over
    devices, by their names, if it can.
    """

    obstacles: Mapping[str, str] = field(default_factory=dict)
    obstacle: Callable[[str, int], str] = lambda name, count: "it is in a graph"
    sliced: Callable[[Mapping[str, Sequence[str]]], Graph] | None = None


def sees_batch(call: Call) -> bool:
    """Whether a call sees a batch as a whole, or changes with each call."""
    return call.batch_moments or call.kind == "SpectralNormalization"


def obstacles_of(graph: Graph) -> dict[str, str]:
    """What a graph shows of why its batch or its model cannot be divided."""
    found = {}
    if norms := [call.layer for call in graph.calls if sees_batch(call)]:
        some = ", ".join(norms[:3])
        found["microbatches"] = f"{some} would normalise each micro-batch by itself"
    why = ""
    if any(call.backward for call in graph.calls):
        why = "its graph has backward calls of its own"
    for call in graph.calls:
        end = call.name in graph.outputs or graph.part[call.part].kind == "input"
        for shape in call.output_shapes if end else ():
            if shape[:1] not in ((), (graph.batch,), (None,)):
                why = f"the first axis of {call.name!r} is not the batch"
    if graph.towers:
        found["towers"] = "it has towers of its own"
    return found | (dict.fromkeys(("microbatches", "towers"), why) if why else {})


def workers_of(cluster: Cluster) -> list[str]:
    """The devices of towers and stages: GPUs, or else all but the first."""
    gpus = [d.name for d in cluster if d.kind == "gpu"]
    others = [name for name in cluster.names if name != cluster.home.name]
    return gpus if len(gpus) > 1 else others


def groups_of(workers: Sequence[str], size: int) -> list[tuple[str, ...]]:
    """As many groups of so many devices as there are, each within a host if any is.

    >>> groups_of(["w:0/gpu:0", "w:0/gpu:1", "w:1/gpu:0", "w:1/gpu:1"], 2)
    [('w:0/gpu:0', 'w:0/gpu:1'), ('w:1/gpu:0', 'w:1/gpu:1')]
    """
    hosts = grouped(workers, lambda name: name.rpartition("/")[0])

    def cut(line: Sequence[str]) -> list[tuple[str, ...]]:
        return [*zip(*(line[i::size] for i in range(size)))]

    inside = [group for line in hosts.values() for group in cut(line)]
    return inside or cut([name for line in hosts.values() for name in line])


def fastest(
    cluster: Cluster, groups: Sequence[tuple[str, ...]], most: int | None
) -> list[tuple[str, ...]]:
    """So many groups (None: all as fast as the fastest), by their slowest device."""
    speed = {g: min(cluster[name].flops_per_second for name in g) for g in groups}
    most = most or [*speed.values()].count(max(speed.values(), default=0.0))
    chosen = sorted(groups, key=lambda group: -speed[group])[:most]
    return [group for group in groups if group in chosen]


def device_counts(most: int) -> list[int]:
    """How many devices are tried: small numbers, then multiples of four, and all."""
    return [n for n in range(2, most + 1) if n <= 4 or n % 4 == 0 or n == most]


def may_move(graph: Graph, part: str) -> bool:
    """Whether a part is somewhere by default alone: inputs, and merges on the CPU."""
    one = graph.part[part]
    return one.kind == "input" or one.kind == "merge" and one.on == ("cpu",)


def runs_once(graph: Graph, part: str) -> bool:
    """Whether towers do not copy a part: a slice, or calls without a GPU kernel."""
    slice_ = graph.part[part].kind == "slice"
    return slice_ or any(call.cpu_only for call in graph.calls_of[part])


def placed_apart(
    evaluator: Evaluator, groups: Groups, wanted: Iterable[str], below: float = inf
) -> Iterator[Placed]:
    """Groups where they are wanted, or may be; nothing if some must be apart there.

    Nor if a device computes for longer than the step should take, `below`.
    """
    device_of = placed(groups, wanted)
    where = [device_of[group.parts[0]] for group in groups]
    meet = any(where[i] == at for one, at in zip(groups, where) for i in one.apart)
    if not meet and (below == inf or evaluator.busiest(device_of) < below):
        yield evaluator.as_run(device_of)


def stages(judge: Evaluator, groups: Groups, names: Sequence[str]) -> Iterator[Placed]:
    """A stage of parts on each device, or on as many as there are parts.

    Their work is even, or their memory, or both. A stage takes the longer of its work
    and what crosses its ends: copies overlap (Harlap et al., PipeDream, 2018).
    """
    step, graph = judge.step, judge.graph
    after: list[dict[int, None]] = [{} for _ in step.units]
    for edge in step.edges:
        after[edge.source] |= dict.fromkeys(edge.readers)
    number = {part: i for i, one in enumerate(groups) for part in one.parts}
    group = [number[part] for part in step.parts]  # of each unit
    order = dict.fromkeys(group[unit] for unit in running_order(after))
    kinds = {i: {graph.part[part].kind for part in groups[i].parts} for i in order}
    line = [i for i in order if kinds[i] != {"input"}]
    if len(line) < 2:
        return
    workers = names[: len(line)]
    parts = [groups[i].parts for i in line]
    place = {i: at for at, i in enumerate(line)}
    link = judge.costs.link(workers[0], workers[-1], judge.cluster)
    crossing = np.zeros(len(line) + 1)  # seconds of the tensors across each cut
    for edge in step.edges:
        units = edge.source, *edge.readers
        start, *ends = (place.get(group[unit], -1) for unit in units)
        if start >= 0:
            last = max([start, *ends])
            crossing[start + 1 : last + 1] += edge.bytes / link.bytes_per_second
    work = np.array([sum(judge.load(p, workers[0]) for p in own) for own in parts])
    held = np.array([float(judge.need(own).total) for own in parts])
    total = work.sum() or 1.0
    for mix in (0.0, 0.5, 1.0):  # the share of memory in what is even
        both = (1 - mix) * work / total + mix * held / (held.sum() or 1)
        cut = _even(both, (1 - mix) * crossing / total, len(workers))
        wanted = [judge.cluster.home.name] * len(groups)
        for at, i in enumerate(line):
            wanted[i] = workers[sum(at >= start for start in cut)]
        yield from placed_apart(judge, groups, wanted)


def _even(sizes: npt.ArrayLike, crossing: npt.ArrayLike, count: int) -> tuple[int, ...]:
    """Where to cut a line so that the heaviest stage is lightest. O(n^2 count).

    A stage weighs what is in it, or what crosses one of its ends, if that is more.
    """
    sums = np.concatenate(([0.0], np.cumsum(sizes)))
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
    judge: Evaluator, groups: Groups, devices: Devices, home: str | None, whole: bool
) -> Iterator[Placed]:
    """Towers on each device of all calls, or of all but those with large weights.

    Weights go from `home` to each tower in every step, and their gradients back. So if
    not the `whole` model is copied, groups are kept on one device whose weights are
    larger than what they read and give. What `runs_once` is always kept.
    """
    graph, kept = judge.graph, dict[str, str]()
    held, large = {device: 0 for [device] in devices}, list[tuple[int, Group]]()
    for group in groups:
        if any(runs_once(graph, part) for part in group.parts):
            kept |= dict.fromkeys(group.parts, group.allowed[0])
        elif not whole and (size := _lasting_bytes(graph, group)):
            large.append((size, group))
    for size, group in sorted(large, key=lambda one: -one[0]):
        emptiest = min(held, key=held.__getitem__)
        held[emptiest] += size
        kept |= dict.fromkeys(group.parts, emptiest)
    pieces, names = replication.in_pieces(graph, kept)
    if names and (whole or large):
        one = replace(judge, graph=pieces, regroup=False)
        there = dict.fromkeys(pieces.part, judge.cluster.home.name) | kept
        yield from _copied(one, there, dict.fromkeys(names, 0), devices, home)


def _lasting_bytes(graph: Graph, group: Group) -> int:
    """Bytes of a group's weights; 0 if more bytes of tensors cross its ends."""
    calls = {call.name: call for part in group.parts for call in graph.calls_of[part]}
    names = {name for call in calls.values() for name in call.weights}
    ends = (t for t in graph.tensors if (t.source in calls) != (t.target in calls))
    crossing = {(t.source, t.index): t.bytes for t in ends}
    size = sum(graph.weight[name].bytes for name in names)
    return size if size > sum(crossing.values()) else 0


def towers_of_stages(
    evaluator: Evaluator, groups: Groups, devices: Devices, home: str | None
) -> Iterator[Placed]:
    """Stages on the first devices, copied to the other ones."""
    index = {device: i for i, device in enumerate(devices[0])}
    for one, device_of in stages(evaluator, groups, devices[0]):
        own = (part.name for part in one.graph.parts if part.kind != "input")
        parts = {name: index[at] for name in own if (at := device_of[name]) in index}
        yield from _copied(one, device_of, parts, devices, home)


def _copied(
    one: Evaluator, at: Places, index: Mapping[str, int], on: Devices, home: str | None
) -> Iterator[Placed]:
    """A placement `at` with some parts as towers, one on each row of devices.

    `index` has the parts that are copied, and which device of each row is theirs; the
    weights are at `home`, or in the first tower. No tower sends the rows of a table's
    gradient to a worker: TensorFlow puts them together on the machine's first device.
    What is one tensor for all samples is for towers alone.
    """
    graph, default = one.graph, one.cluster.home.name
    calls = (call for name in index for call in graph.calls_of[name])
    part = {call.name: call.part for call in graph.calls}
    away = [t for t in graph.tensors if part[t.target] not in index]
    given = (t for t in away if part[t.source] in index)
    fixed = any(t.index in graph.call[t.source].fixed_outputs for t in given)
    if fixed or (home != default and any(call.lookups for call in calls)):
        return
    # Also of a frozen one, which may be thawed.
    norms = (c.kind == "BatchNormalization" or sees_batch(c) for c in graph.calls)
    norm = BATCH_NORMS[any(norms)]
    homes = {name: home or on[0][i] for name, i in index.items()}
    rows = {name: tuple((row[i],) for row in on) for name, i in index.items()}
    towers = {name: Towers(its, (homes[name],), norm) for name, its in rows.items()}
    sizes = {*replication.batch_shares(graph.batch, len(on)), 1} - {0}
    made = replication.expand(graph, {n: scaled_graph(graph, n) for n in sizes}, towers)
    device_of = {p.name: at.get(p.name, default) for p in made.parts}
    reader = {part[t.source]: at[part[t.target]] for t in reversed(away)}  # the first
    for name, i in index.items():
        device_of[name] = reader.get(name, default)
        if replication.weights_part(name) in device_of:
            device_of[replication.weights_part(name)] = homes[name]
        for k, row in enumerate(on):
            device_of[replication.tower_part(name, k)] = row[i]
    yield replace(one, graph=made), device_of
