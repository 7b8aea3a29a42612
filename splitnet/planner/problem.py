"""The placement problem as flat arrays, and what becomes of calls that it places.

A *group* is what must be on one device. A *net* is what one group sends, its pins are
the producer and the groups that read it. Times are in seconds (or any one unit), sizes
in bytes. An assignment is the number of a device for every group.

    load of a device = seconds of its groups + seconds of every net that crosses its
                       border, once, in either direction

This is the load of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020), with any number of kinds of device.

A Keras model that nobody declared comes with a part per call. After a search on calls,
the functions that run on the devices are the parts. A function starts where something
arrives from another device, and ends where another device needs its output. Every part
is convex: the graph of the parts has no cycle.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, groupby
from math import inf
from os.path import commonprefix

import networkx as nx
import numpy as np
import numpy.typing as npt

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Graph, Part
from splitnet.planner import load_graph
from splitnet.planner.constraints import Group
from splitnet.planner.load_graph import Floats, ForwardGraph, Ints, LoadGraph
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import functions_of, memory_of
from splitnet.simulator.step_graph import StepGraph
from splitnet.simulator.tensors import Item
from splitnet.simulator.units import Units, condensed, unit_of_call


@dataclass(frozen=True, slots=True, eq=False)
class Functions:
    """How the units of a step run: several as one function, if they may.

    Units of unlike `key` are never one function; calling one costs `part_seconds` of
    each device. `step_of` gives their step and devices, for the units' devices.
    """

    key: Ints
    part_seconds: Floats
    step_of: Callable[[list[int]], tuple[StepGraph, list[int]]]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """What to place and under which constraints.

    Unit u of the step belongs to group `group_of_unit[u]`; `cut_penalty` is the
    fraction of the value that one cross-device transfer costs. `contiguity` is "free",
    "convex": no path of forward calls leaves a device and comes back, or "pipeline":
    devices can stand in a line so that every forward edge stays or goes on.
    """

    graph: LoadGraph
    forward: ForwardGraph
    step: StepGraph
    group_of_unit: Ints
    functions: Functions | None = None
    cut_penalty: float = 0.0
    contiguity: str = "free"
    known: dict[bytes, tuple[float, Floats]] = field(default_factory=dict)

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return len(self.graph.size_bytes)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return len(self.graph.capacity_bytes)

    def simulated(self, assignment: npt.ArrayLike) -> tuple[float, Floats]:
        """Makespan of the step, and bytes of every device at its peak; kept."""
        device_of_unit = np.asarray(assignment, np.int64)[self.group_of_unit]
        if (key := device_of_unit.tobytes()) not in self.known:
            step, devices = self.step, device_of_unit.tolist()
            if self.functions is not None:
                step, devices = self.functions.step_of(devices)
            run = run_step(step, devices)
            held = [one.peak.total for one in memory_of(step, devices, run)]
            self.known[key] = run.seconds, np.array(held, np.float64)
        return self.known[key]


def problem_of(
    step: StepGraph,
    cluster: Cluster,
    groups: Sequence[Group],
    group_of_unit: Sequence[int],
    functions: Functions | None = None,
) -> Problem:
    """Make the problem of a step and the groups that its units belong to.

    A CPU, where the data is anyway, pays nothing for transfers. Contiguity does not
    constrain backward calls, nor calls that read and may run on one device only: data
    comes back to them in any case.
    """
    home, count = cluster.number[cluster.home.name], len(cluster)
    ends = [home] * count  # of the link that a device pays for
    ends[home] = next((d for d in range(count) if d != home), home)
    links = step.latency, step.seconds_per_byte
    keys = [
        (id(times), one.kind == "cpu", *(table[d][end] for table in links))
        for d, (one, end, times) in enumerate(zip(cluster, ends, step.task_seconds))
    ]
    kinds = list(dict.fromkeys(keys))

    def paid(edge: Item) -> list[float]:
        """What a device of each kind pays if an edge and its gradient cross."""
        passes = (1 + bool(edge.gradients_from)) * (count > 1)
        each = [fixed + edge.bytes * per_byte for *_, fixed, per_byte in kinds]
        each = each if edge.seconds is None else [edge.seconds] * len(kinds)
        return [passes * one * (not cpu) for one, (_, cpu, *_) in zip(each, kinds)]

    sends = [edge for edge in step.edges if edge.readers]
    reads = {reader for edge in sends for reader in edge.readers}
    unseen = [
        one.explicit_backward
        or (unit in reads and len(groups[group_of_unit[unit]].allowed) == 1)
        for unit, one in enumerate(step.units)
    ]
    after: list[dict[int, None]] = [{} for _ in unseen]
    for edge in sends:
        seen = (r for r in edge.readers if not (unseen[edge.source] or unseen[r]))
        after[edge.source] |= dict.fromkeys(seen)
    order = [unit for unit in running_order(after) if not unseen[unit]]
    numbers = np.array(group_of_unit, np.int64)
    follows = load_graph.rows_of(after)
    forward = ForwardGraph(np.array(order, np.int64), *follows, numbers)
    times = np.array([step.unit_seconds[keys.index(key)] for key in kinds]).T
    # Sums of these are below what devices hold: gradients go as they are used.
    n, none = step.slot_copies, load_graph.rows_of([[]] * step.count)
    held = [u.weight_bytes + n * u.trained_bytes + u.saved_floor for u in step.units]
    units = LoadGraph(
        np.ascontiguousarray(times, np.float64),
        np.array(held, np.float64),
        np.ones((step.count, count), np.bool_),
        np.array([one.memory_bytes for one in cluster], np.float64),
        np.array([kinds.index(key) for key in keys], np.int64),
        *load_graph.rows_of([edge.source, *edge.readers] for edge in sends),
        np.array([paid(edge) for edge in sends]).reshape(len(sends), len(kinds)),
        np.ones(len(sends), np.int64),
        *none,
        *follows,
        *none,
        *none,
    )
    start, apart = load_graph.rows_of(group.apart for group in groups)
    allowed = [[name in one.allowed for name in cluster.names] for one in groups]
    graph = load_graph.contracted(units, numbers, len(groups))._replace(
        allowed=np.array(allowed, np.bool_).reshape(len(groups), count),
        apart_start=start,
        apart=apart,
    )
    return Problem(graph, forward, step, numbers, functions)


def contract(problem: Problem, cluster: Ints, count: int) -> Problem:
    """The problem of clusters of groups: its assignments have the same values."""
    forward = problem.forward
    return replace(
        problem,
        graph=load_graph.contracted(problem.graph, cluster, count),
        forward=forward._replace(group=cluster[forward.group]),
        group_of_unit=cluster[problem.group_of_unit],
    )


def device_line(problem: Problem, place: Ints) -> Ints | None:
    """Place of each device in a line that no forward edge goes back on, if any."""
    forward = problem.forward
    where = place[forward.group]
    source = np.repeat(where, np.diff(forward.successor_start))
    target = where[forward.successors]
    away = source != target
    flow = nx.DiGraph(zip(source[away].tolist(), target[away].tolist()))
    flow.add_nodes_from(range(problem.device_count))
    if not nx.is_directed_acyclic_graph(flow):
        return None
    return np.argsort(list(nx.topological_sort(flow)))


def is_legal(problem: Problem, place: Ints) -> bool:
    """Whether groups are where they may be, and apart where they must, memory aside."""
    graph, forward, contiguity = problem.graph, problem.forward, problem.contiguity
    together = np.any(place[load_graph.owners(graph.apart_start)] == place[graph.apart])
    if together or not graph.allowed[np.arange(len(place)), place].all():
        return False
    if contiguity != "convex":
        return contiguity == "free" or device_line(problem, place) is not None
    where: list[int] = place[forward.group].tolist()
    after = load_graph.lists_of(forward.successor_start, forward.successors)
    left = [0] * len(where)  # bits: the devices that a path to each call has left
    for call in forward.order.tolist():
        if left[call] >> where[call] & 1:
            return False
        for reader in after[call]:
            left[reader] |= left[call] | (where[reader] != where[call]) << where[call]
    return True


def value_of(problem: Problem, objective: str, assignment: Ints) -> float:
    """Value of an assignment without cut penalty; infinite if it is infeasible."""
    if not is_legal(problem, assignment):
        return inf
    seconds, held = problem.simulated(assignment)
    if np.any(held > problem.graph.capacity_bytes * (1 + 1e-12)):
        return inf
    if objective == "memory":
        return float(held.max(initial=0.0))
    if objective == "throughput":
        return max(load_graph.loads(problem.graph, assignment), default=0.0)
    return seconds


def equivalent_devices(problem: Problem) -> list[int]:
    """Number devices; those alike in times, memory, links and use share a number."""
    graph, step, count = problem.graph, problem.step, problem.device_count
    columns = (column.tobytes() for column in graph.allowed.T)
    keys = list(zip(graph.kind.tolist(), graph.capacity_bytes.tolist(), columns))
    links = np.array([step.latency, step.gap, step.seconds_per_byte, step.overhead])
    links[:, range(count), range(count)] = 0.0

    def alike(a: int, b: int) -> bool:
        if keys[a] != keys[b] or step.task_seconds[a] is not step.task_seconds[b]:
            return False
        order = [a + b - d if d in (a, b) else d for d in range(count)]
        away = np.array_equal(links[:, a], links[:, b][:, order])
        return away and np.array_equal(links[:, :, a], links[:, order, b])

    number, found = dict[int, int](), list[int]()  # by the first device of each sort
    for d in range(count):
        first = next((other for other in number if alike(other, d)), d)
        found.append(number.setdefault(first, len(number)))
    return found


def single_devices(problem: Problem) -> list[Ints]:
    """Everything on one device, as far as it may be there, for every sort of device."""
    allowed, sorts = problem.graph.allowed, equivalent_devices(problem)
    devices = map(sorts.index, dict.fromkeys(sorts))
    return [np.where(allowed[:, d], d, allowed.argmax(axis=1)) for d in devices]


def in_calls(graph: Graph) -> Graph:
    """The graph with a part per call; what is declared or bound stays whole."""
    bound = {name for part in graph.parts for name in (*part.near, *part.apart)}
    parts, calls = list[Part](), dict(graph.call)
    for one in graph.parts:
        its = graph.calls_of[one.name]
        declared = one.where or one.kind != "branch" or one.near or one.apart
        whole = declared or one.name in bound or len(its) < 2
        parts += [one] if whole else [replace(one, name=call.name) for call in its]
        calls |= {} if whole else {c.name: replace(c, part=c.name) for c in its}
    return replace(graph, calls=tuple(calls.values()), parts=tuple(parts))


def bind_shared_weights(graph: Graph) -> Graph:
    """Bind parts that share weights by near=, unless they request unlike devices."""
    near: dict[str, dict[str, None]] = {}
    for users in graph.parts_of_weights.values():
        for other in users[1:]:
            if graph.part[other].on == graph.part[users[0]].on:
                near.setdefault(other, {})[users[0]] = None
    parts = (replace(p, near=(*p.near, *near.get(p.name, ()))) for p in graph.parts)
    return replace(graph, parts=tuple(parts))


def running_order(after: Sequence[Collection[int]]) -> list[int]:
    """A topological order that follows a branch to its end before the next.

    Kahn's algorithm with a stack. Stages of a depth-first postorder are 3 % slower.
    """
    waiting, order = Counter(chain(*after)), list[int]()
    ready = [call for call in reversed(range(len(after))) if not waiting[call]]
    while ready:
        order.append(call := ready.pop())
        for reader in reversed(list(after[call])):
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return order


def functions_called(graph: Graph, step: StepGraph, where: Sequence[Hashable]) -> Units:
    """Cut a placement of calls into the functions that run, in running order.

    The graph has a part per call, the step a unit. A function has calls of one request.
    """
    key = request_keys(graph)
    runs = (groupby(its, key=key.__getitem__) for its in functions_of(step, where))
    pieces = [tuple(piece) for run in runs for _, piece in run]
    pairs = ((edge.source, reader) for edge in step.edges for reader in edge.readers)
    order = condensed(unit_of_call(pieces), pairs)
    running = nx.lexicographical_topological_sort(order, key=lambda i: pieces[i][0])
    return [pieces[i] for i in running]


def in_functions(
    graph: Graph, step: StepGraph, device_of: Mapping[str, str]
) -> tuple[Graph, dict[str, str]]:
    """The graph with a part per function, and the device of each part.

    It has a part per call before, the step a unit. Its calls keep their order, so the
    first call with a weight stays the same one: its part is the home of the weight.
    """
    device = [device_of[unit.name] for unit in step.units]
    pieces = functions_called(graph, step, device)
    names = [*_names(graph, pieces)]
    part_of = {call: name for name, piece in zip(names, pieces) for call in piece}
    calls = tuple(replace(one, part=part_of[i]) for i, one in enumerate(graph.calls))
    ends = {a.name: dict[str, None]() for a in graph.parts}  # functions of each part
    for before, after in zip(graph.calls, calls):
        ends[before.part][after.part] = None
    parts = []
    for name, piece in zip(names, pieces):
        its = [graph.part[graph.calls[i].part] for i in piece]
        near = dict.fromkeys(chain(*(ends[q] for part in its for q in part.near)))
        others = tuple(other for other in near if other != name)
        apart = tuple(chain(*(ends[q] for q in its[0].apart)))
        parts.append(replace(its[0], name=name, near=others, apart=apart))
    parted = replace(graph, calls=calls, parts=tuple(parts))
    return parted, {call.part: device_of[call.name] for call in calls}


def request_keys(graph: Graph) -> list[int]:
    """A number per call: calls may be one part if where they may be is the same."""
    each = ((call, graph.part[call.part]) for call in graph.calls)
    keys = [(p.kind == "input", c.cpu_only, p.on, p.apart) for c, p in each]
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def _names(graph: Graph, pieces: Units) -> Iterator[str]:
    """What only the names of a piece begin with; or its ends: "conv2d_3 .. mixed0"."""
    every = [call.name.replace("_", "/") + "/" for call in graph.calls]
    line = sorted(every)
    inputs = {c.name for c in graph.calls if graph.part[c.part].kind == "input"}
    before, after = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    for tensor in graph.tensors:
        before[tensor.target].add(tensor.source)
        after[tensor.source].add(tensor.target)
    for piece in pieces:
        own = dict.fromkeys(graph.calls[call].name for call in piece).keys()
        (first, *more), ends = own, list[str]()
        for near in (before, after):
            found = [call for call in own if near[call].isdisjoint(own)]
            alone = own | inputs >= {*chain(*(near[call] for call in own))}
            left_out = alone and 1 < len(found) < len(own) and "" not in ends
            ends.append("" if left_out else ", ".join(found))
        name = " .. ".join(dict.fromkeys(ends)).strip() if more else first
        start = commonprefix([every[call] for call in piece]).rpartition("/")[0]
        users = bisect_left(line, f"{start}0") - bisect_left(line, f"{start}/")
        stem, alone = first[: len(start)], 1 < users == len(piece)  # "0" follows "/"
        yield stem if alone and stem not in graph.call else name
