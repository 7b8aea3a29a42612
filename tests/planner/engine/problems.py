"""Random problems that are small enough to try every assignment."""

import itertools
import random
from dataclasses import replace
from itertools import pairwise
from math import inf

import numpy as np

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.plan import PlanOptions
from splitnet.planner.constraints import Group
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.load_graph import cut_size
from splitnet.planner.problem import problem_of, value_of
from splitnet.simulator.step_graph import step_graph


def random_graph(count, seed):
    """Calls with weights, some of them shared, and edges that go a few calls on."""
    draw = random.Random(seed)
    weights = [Weights(f"w{i}", draw.randrange(1, 9) * 2**20) for i in range(count)]
    calls = []
    for i in range(count):
        own = (f"w{i}",) if draw.random() < 0.8 else ()
        other = (f"w{draw.randrange(count)}",) if draw.random() < 0.2 else ()
        calls.append(
            Call(
                *(f"c{i}", f"c{i}", "Dense"),
                output_bytes=draw.randrange(1, 9) * 2**19,
                activation_bytes=2**19,
                forward_flops=draw.lognormvariate(0, 1) * 1e9,
                backward_flops=2e9,
                weights=tuple(dict.fromkeys((*own, *other))),
                lookups=own if draw.random() < 0.1 else (),
            )
        )
    tensors = [
        Tensor(f"c{source}", f"c{i}", bytes=calls[source].output_bytes)
        for i in range(1, count)
        for source in {max(0, i - draw.randrange(1, 4)) for _ in range(2)}
    ]
    used = {name for call in calls for name in call.weights}
    held = tuple(w for w in weights if w.name in used)
    parts = tuple(Part(call.name) for call in calls)
    return Graph("random", 1, tuple(calls), tuple(tensors), held, parts)


def with_room(problem, room, **changes):
    """The problem with so many bytes on each device, and other changes."""
    graph = problem.graph._replace(capacity_bytes=np.array(room, np.float64))
    return replace(problem, graph=graph, **changes)


def random_groups(draw, count, cluster, *, some_apart):
    """A group for each call; some are kept off the CPU, two may be apart."""
    names = cluster.names
    a, b = draw.sample(range(count), 2)
    apart = {a: (b,), b: (a,)} if some_apart else {}
    allowed = [names[:-1] if draw.random() < 0.1 else names for _ in range(count)]
    return [Group((), its, apart.get(i, ())) for i, its in enumerate(allowed)]


def step_problem(count, seed, *, gpus=2, overhead=0.0, **changes):
    """A step of random calls with little memory, some apart, some bound to a kind."""
    draw = random.Random(seed)
    graph = random_graph(count, seed)
    cluster = Cluster.of(f"{gpus}*gpu", "cpu", memory="1 GiB", link="5 GB/s")
    links = (replace(cluster.links[0], overhead_per_byte=overhead),)
    cluster = replace(cluster, links=links)
    groups = random_groups(draw, count, cluster, some_apart=seed % 3 == 0)
    step = step_graph(graph, cluster, units="calls", training=seed % 4 != 3)
    total = sum(unit.weight_bytes for unit in step.units) * (4 if seed % 4 != 3 else 1)
    room = [draw.choice((0.5, 0.8, 3.0)) * total + 2e7] * gpus + [2.0 * total + 1e9]
    return with_room(problem_of(step, cluster, groups, range(count)), room, **changes)


def calls_problem(seed):
    """Calls of a chain with skips and views, some of which only a CPU runs."""
    draw, graph = random.Random(seed), random_graph(60, seed)
    kinds = draw.choices(("Dense", "Dense", "Flatten"), k=60)
    calls = tuple(
        replace(
            call,
            kind=kind,
            cpu_only=draw.random() < 0.05,
            weights=(f"w{i}",) if kind == "Dense" and draw.random() < 0.7 else (),
            lookups=(),
            given_bytes=2**24 * (i % 3 == 0),
        )
        for i, (call, kind) in enumerate(zip(graph.calls, kinds))
    )
    weights = tuple(Weights(f"w{i}", 2**20) for i in range(60))
    chain = (Tensor(a.name, b.name, bytes=2**20) for a, b in pairwise(calls))
    skips = (t for t in graph.tensors if draw.random() < 0.3)
    tensors = {(t.source, t.target): t for t in (*chain, *skips)}.values()
    graph = replace(graph, calls=calls, weights=weights, tensors=tuple(tensors))
    options = PlanOptions(training=seed % 4 != 3, regroup=True)
    return Evaluator.of(graph, Cluster.of("2*gpu", "cpu"), options).problem


def random_loads(count, seed, **changes):
    """Loads of two accelerators and a CPU, with little memory."""
    draw = random.Random(seed)
    tensors = [
        Tensor(f"c{source}", f"c{i}")
        for i in range(1, count)
        for source in sorted({draw.randrange(max(0, i - 4), i) for _ in range(2)})
    ]
    calls = []
    for i in range(count):
        seconds = draw.lognormvariate(0, 1)
        calls.append(
            Call(
                *(f"c{i}", f"c{i}", "Node"),
                size_bytes=draw.randrange(100, 900),
                seconds_on=(("gpu", seconds), ("cpu", 5 * seconds)),
                transfer_seconds=draw.lognormvariate(-1, 1),
                backward=i >= count * 3 // 4,
            )
        )
    parts = tuple(Part(call.name) for call in calls)
    graph = Graph("loads", 1, tuple(calls), tuple(tensors), parts=parts)
    cluster = Cluster.of("2*gpu", "cpu")
    room = sum(c.size_bytes for c in calls) * draw.choice((0.45, 0.7, 2.0))
    groups = random_groups(draw, count, cluster, some_apart=seed % 2 == 1)
    step = step_graph(graph, cluster, units="calls")
    problem = problem_of(step, cluster, groups, range(count))
    return with_room(problem, [room, room, inf], **changes)


def best_of_all(problem, objective):
    best = inf
    devices = range(problem.device_count)
    for place in itertools.product(devices, repeat=problem.group_count):
        value = value_of(problem, objective, np.array(place, np.int64))
        if value < inf:
            cuts = cut_size(problem.graph, place)
            best = min(best, value * (1 + problem.cut_penalty * cuts))
    return best
