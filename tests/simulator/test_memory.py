"""What each device holds over a step: every tensor once, for as long as it is read."""

from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Graph
from splitnet.planner.evaluate import score
from splitnet.planner.planner import plan_graph
from splitnet.simulator.kept import keeps_of_group
from splitnet.simulator.kernels import code_bytes
from splitnet.simulator.old_simulate import simulate
from splitnet.simulator.process import peak_bytes, resident_bytes
from tests.zoo import MIB, call, graph_of, random_dag, source

BOX = Cluster.of("2*gpu", "cpu", link="1 GB/s", latency=0)
CHAIN = ("x", "a", "b", "c")


def chain(*, kept: bool, kind: str = "Dense", out: int = MIB, **more: object) -> Graph:
    """A chain of `out` bytes each; a and c have weights, b is of `kind`."""
    more["out"] = out
    calls = [
        source("x", out),
        call("a", inner_bytes=0, weights=("u",), **more),
        call("b", kind=kind, inner_bytes=0, **more),
        call("c", inner_bytes=0, weights=("v",), **more),
    ]
    graph = graph_of("chain", calls, list(zip(CHAIN, CHAIN[1:])), weight_bytes=4)
    tensors = tuple(replace(tensor, kept=kept) for tensor in graph.tensors)
    return replace(graph, tensors=tensors)


def held(graph: Graph, **device_of: str) -> dict[str, tuple[int, int]]:
    """Mebibytes of activations and transfers of each GPU at its fullest."""
    memory = score(graph, BOX, {"x": "cpu:0"} | device_of).memory
    return {
        gpu: (memory[gpu].activations // MIB, memory[gpu].receive_buffers // MIB)
        for gpu in ("gpu:0", "gpu:1")
    }


def test_memory_counts_a_tensor_once_that_two_calls_keep():
    """An output that its maker and its reader both read again is there once."""
    graph = chain(kept=True, keeps_output=True)

    assert held(graph, a="gpu:0", b="gpu:0", c="gpu:0")["gpu:0"] == (3, 1)


def test_memory_lets_go_of_what_no_backward_pass_reads():
    """An output is there while it is read, and a copy of it too."""
    kept = held(chain(kept=True), a="gpu:0", b="gpu:1", c="gpu:1")
    free = held(chain(kept=False), a="gpu:0", b="gpu:1", c="gpu:1")

    assert kept["gpu:1"] == (2, 1)
    assert sum(free["gpu:1"]) == 2  # what is read and what is made of it


def test_memory_of_a_sender_is_free_when_its_copy_has_gone():
    """The reader keeps what it got; the maker, who does not need it, keeps nothing."""
    graph = chain(kept=True)
    memory = score(graph, BOX, {"x": "cpu:0", "a": "gpu:0", "b": "gpu:1", "c": "gpu:1"})
    curve = dict(memory.timeline.memory["gpu:0"])
    start = {t.call: t.start for t in memory.timeline.tasks if t.phase == "forward"}
    last = max(moment for moment in curve if moment <= start["c"])

    assert curve[last] // MIB == 1  # the input of a, and weights of a few bytes


def test_memory_of_a_view_is_that_of_its_input():
    """Reshaping makes nothing; what keeps the view keeps what it shows."""
    graph = chain(kept=True, kind="Flatten", keeps_output=False)

    assert held(graph, a="gpu:0", b="gpu:0", c="gpu:0")["gpu:0"] == (2, 1)


@pytest.mark.parametrize("seed", range(10))
def test_memory_of_inference_is_its_peak(seed):
    """Nothing but weights stays, so the estimate is the fullest moment itself."""
    plan = plan_graph(random_dag(seed), BOX, time_limit=0.1, training=False)

    for device, peak in plan.timeline.peak_bytes.items():
        assert plan.memory[device].total == peak


def test_memory_of_a_pipeline_is_that_of_its_step():
    """Calls that run as one keep no more than they do one by one."""
    where = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:0", "c": "gpu:1"}
    plan = score(chain(kept=True, keeps_output=True), BOX, where, optimizer="sgd")
    peak = simulate(plan, microbatches=2).peak_bytes

    # a, b and the input; while it goes back, a gradient of half a batch and its copy
    assert peak["gpu:0"] // MIB == 4
    assert simulate(plan, microbatches=2, recompute=True).peak_bytes["gpu:0"] < 4 * MIB


def test_keeps_of_group_leaves_out_inputs_and_views():
    """A group keeps what was made in it, each tensor once."""
    graph = chain(kept=True, kind="Flatten", keeps_output=True)
    calls = graph.calls[1:]
    readers = {tensor.source: [tensor] for tensor in graph.tensors[1:]}

    assert keeps_of_group(calls, readers) == (2 * MIB, {"a", "b", "c"})
    unsaid = [*calls, call("d")]
    assert keeps_of_group(unsaid, readers) == (None, frozenset())


def held_by(graph: Graph, kind: str, x: str) -> int:
    """Bytes that come and go on a worker's device, without what its process needs."""
    home = f"worker:0/{kind}:0"
    cluster = Cluster.of("worker:0/cpu:0", "worker:0/gpu:0", "cpu")
    where = {"x": x.format(home)} | dict.fromkeys("abc", home)
    memory = score(graph, cluster, where, optimizer="sgd").memory[home]
    calls = 3 + (x == "{}")
    process = 4_000_000 + 100_000 * calls if kind == "cpu" else 0
    return memory.activations + memory.receive_buffers + memory.workspace - process


@pytest.mark.parametrize("size", [3 * MIB // 2, 64 * MIB])
def test_memory_of_a_worker_is_that_of_its_allocator(size: int) -> None:
    """Blocks of one size follow each other without holes, but for ends of regions."""
    graph = chain(kept=True, out=size)

    more = held_by(graph, "cpu", "{}") / held_by(graph, "gpu", "{}")
    assert 1 <= more < 1.02


@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_memory_of_a_message_is_of_no_use_for_tensors(size: int) -> None:
    """It came in small pieces, so its memory stays beside that of large tensors."""
    graph = chain(kept=True, out=size)

    more = held_by(graph, "cpu", "cpu:0") - held_by(graph, "gpu", "cpu:0")
    assert more == pytest.approx(size, rel=0.02)


def test_memory_of_code_counts_every_call_of_a_pipeline() -> None:
    """Calls that run as one have their kernels once for each micro-batch."""
    graph = chain(kept=True)
    for one in (1, 4):
        calls = {call.name: [call] * one for call in graph.calls}
        assert code_bytes(graph, 0, calls) == [100_000 * one] * 4
    assert sum(code_bytes(graph, 2)) == 4 * 100_000 + 2 * 2 * 150_000


def test_resident_bytes_are_the_highest_of_each_allocator() -> None:
    """Large tensors and messages never use each other's room."""
    tensor, message = (0.0, 1.0, 4 * MIB), (1.0, 2.0, 3 * MIB)

    assert peak_bytes([tensor, message]) == 4 * MIB
    assert resident_bytes([tensor], [message]) == 7 * MIB


def test_inputs_of_a_bounded_pipeline_arrive_before_their_turn() -> None:
    """The stage waits for room, its input does not: it is there meanwhile."""
    graph = chain(kept=True)
    cluster = Cluster.of("2*gpu", "cpu", link="1000 GB/s", latency=0)
    where = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:0", "c": "gpu:1"}
    plan = score(graph, cluster, where, optimizer="sgd")
    made = simulate(plan, microbatches=8, schedule="1f1b")

    arrived = [c.stop for c in made.copies if c.target_device == "gpu:0"]
    began = sorted(t.start for t in made.tasks if t.device == "gpu:0")
    assert sorted(c for c in arrived)[:8] <= [began[-1]] * 8
    assert sum(c.source_device == "cpu:0" for c in made.copies) == 8
