"""What holds for every step, on random graphs and placements."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Part
from splitnet.core.timeline import SCHEDULES, Execution
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.microbatch import in_schedule, pipeline_of
from splitnet.simulator.step_graph import step_graph
from tests.zoo import random_dag

BOX = Cluster.of("3*gpu", "cpu", link="1 GB/s", latency="20 us")


def step_and_devices(seed):
    """A random step and a device for each part; of micro-batches, or recomputing."""
    draw = random.Random(seed)
    graph = random_dag(seed, draw.randrange(2, 20))
    calls = [
        replace(
            call,
            part=f"p{draw.randrange(6)}",
            inner_bytes=draw.randrange(2**18),
            workspace_bytes=draw.randrange(2**18),
            early_bytes=draw.randrange(2**10),
            keeps_output=draw.random() < 0.5,
        )
        for call in graph.calls
    ]
    parts = tuple(Part(name) for name in dict.fromkeys(call.part for call in calls))
    graph = replace(graph, calls=tuple(calls), parts=parts)
    number = {part.name: draw.randrange(4) for part in parts}
    if draw.random() < 0.5:
        step = step_graph(graph, BOX, recompute=number if draw.random() < 0.3 else ())
    else:
        where = {part: BOX.devices[i].name for part, i in number.items()}
        how = Execution(draw.choice([2, 3, 5]), draw.choice(SCHEDULES))
        step = step_graph(graph, BOX, microbatches=how.microbatches)
        step = in_schedule(step, pipeline_of(graph, where, how))
    return step, [number[part] for part in step.parts]


@pytest.mark.parametrize("seed", range(40))
def test_every_task_runs_once_after_all_it_depends_on_and_memory_stands(seed):
    """Readers start after their inputs, backward tasks after gradients and forward.

    A peak is that of its curve, and no less than what stands; other numbers of GPUs
    change neither times nor bytes.
    """
    step, device = step_and_devices(seed)
    run, n = run_step(step, device), step.count
    arrived = {(c.item, c.target): c.stop for c in run.copies if not c.is_gradient}
    spans = {}
    assert all(run.ran[:n])
    assert run.ran[n : 2 * n] == [unit.has_backward for unit in step.units]
    assert run.ran[2 * n :] == [bool(unit.trained) for unit in step.units]
    for number, edge in enumerate(step.edges):
        for reader in edge.readers:
            here = device[reader] == device[edge.source]
            there = arrived.get((number, device[reader]), 0.0)
            assert run.start[reader] >= (run.stop[edge.source] if here else there)
        for reader in edge.gradients_from:
            assert run.start[n + edge.source] >= run.stop[n + reader]
    for u, unit in enumerate(step.units):
        assert not unit.has_backward or run.start[n + u] >= run.stop[u]
        if unit.trained and unit.has_backward:
            assert run.start[2 * n + u] >= run.stop[n + u]
    for task, span in enumerate(zip(run.start, run.stop)):
        if span[1] > span[0]:
            spans.setdefault(device[task % n], []).append(span)
    link = BOX.link("gpu:0", "gpu:1")
    for copy in run.copies:
        assert copy.stop - copy.start >= link.seconds(copy.bytes) * (1 - 1e-9)
        assert copy.source != copy.target
        spans.setdefault((copy.source, copy.target), []).append((copy.start, copy.stop))
    for its in map(sorted, spans.values()):
        assert all(one[1] <= two[0] for one, two in pairwise(its))
    found = memory_of(step, device, run)
    for where, memory in enumerate(found):
        units = [one for one, place in zip(step.units, device) if place == where]
        trained = sum(one.trained_bytes for one in units)
        held = sum(one.weight_bytes for one in units) + step.slot_copies * trained
        saved = sum(one.saved_floor for one in units)
        counts = [count for _, count in memory.curve]
        assert held + saved <= memory.peak.total == max(counts)
        assert min(counts) >= 0
        assert counts[-1] == 0
    renamed = [[1, 2, 0, 3][where] for where in device]
    other = run_step(step, renamed)
    peaks = [one.peak for one in memory_of(step, renamed, other)]
    assert (run.start, run.stop) == (other.start, other.stop)
    assert [one.peak for one in found[:3]] == [peaks[1], peaks[2], peaks[0]]
