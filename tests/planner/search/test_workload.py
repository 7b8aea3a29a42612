"""Workload files: what is read, what is refused, and how a split is scored."""

import copy
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from splitnet.core.errors import PlanFileError
from splitnet.planner.search import search
from splitnet.planner.search.latency import call_latency, is_convex, is_pipeline
from splitnet.planner.search.problem import max_load
from splitnet.planner.splits import score_split
from splitnet.planner.workload import (
    parse_workload,
    problem_of,
    split_of,
    workload_of,
)


def node(key: int, **rest: Any) -> dict[str, Any]:
    """Return one node of a workload file."""
    row = {"id": key, "supportedOnFpga": 1, "fpgaLatency": 1.0, "cpuLatency": 10.0}
    return row | {"size": 4.0} | rest


def diamond() -> dict[str, Any]:
    """Return 3 -> (5, 8) -> 13 with transfers of 0.5."""
    pairs = ((3, 5), (3, 8), (5, 13), (8, 13))
    return {
        "maxFPGAs": 2,
        "maxCPUs": 1,
        "maxSizePerFPGA": 12.0,
        "nodes": [node(key) for key in (3, 5, 8, 13)],
        "edges": [{"sourceId": a, "destId": b, "cost": 0.5} for a, b in pairs],
    }


def test_a_file_is_read_as_a_value(tmp_path: Path) -> None:
    """Fields land where they belong; the name is the file's."""
    path = tmp_path / "diamond.json"
    path.write_text(json.dumps(diamond()))
    workload = parse_workload(path)

    assert (workload.name, workload.accelerators, workload.cpus) == ("diamond", 2, 1)
    assert [n.id for n in workload.nodes] == [3, 5, 8, 13]
    assert workload.edges == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert [n.transfer for n in workload.nodes] == [0.5, 0.5, 0.5, 0.0]


def test_a_split_is_scored_by_hand_counted_values() -> None:
    """Two branches on two accelerators: every number counted by hand."""
    workload = workload_of(diamond())
    split = {"fpgas": [{"nodes": [3, 5, 13]}, {"nodes": [8]}], "cpus": [{"nodes": []}]}
    score = score_split(workload, split)

    # gpu:0 computes 3, sends 3's output once, receives 8's: 4.0; gpu:1: 1 + 0.5 + 0.5.
    assert score.max_load == pytest.approx(4.0)
    # Calls {3, 5} (2 + 0.5 + 0.5 for 5's output to the second call), {8}, {13}.
    assert score.call_latency == pytest.approx(3.0 + 2.0 + 2.0)
    assert (score.convex, score.pipeline) == (False, False)
    assert score.violations == ()


def test_calls_that_a_split_names_run_one_after_the_other() -> None:
    """`subgraphs` are an accelerator's calls in order, each counted by hand."""
    workload = workload_of(diamond() | {"maxSizePerFPGA": 16.0})
    alone = {"fpgas": [{"nodes": [3, 5, 8, 13]}], "cpus": []}
    called = {"fpgas": [{"subgraphs": [[3], [5], [8, 13]]}], "cpus": []}
    turned = {"fpgas": [{"subgraphs": [[5], [3], [8, 13]]}], "cpus": []}

    assert score_split(workload, alone).call_latency == pytest.approx(4.0)
    # 3 sends once; 5 receives and sends; 8 and 13 receive from 3 and from 5.
    assert score_split(workload, called).call_latency == pytest.approx(1.5 + 2.0 + 3.0)
    assert score_split(workload, called).max_load == pytest.approx(4.0)
    assert score_split(workload, called).violations == ()
    assert score_split(workload, turned).call_latency == float("inf")
    with pytest.raises(
        PlanFileError, match=r"fpgas\[0\].subgraphs: expected a list of"
    ):
        score_split(workload, {"fpgas": [{"subgraphs": [3]}]})


FAULTS = [
    ({"maxFPGAs": 0, "maxCPUs": 0}, "there is no device"),
    ({"maxFPGAs": -1}, "maxFPGAs: expected a whole number"),
    ({"maxFPGAs": 2.5}, "maxFPGAs: expected a whole number"),
    ({"maxFPGAs": True}, "maxFPGAs: expected a whole number"),
    ({"maxFPGAs": 10**30}, "maxFPGAs: at most"),
    ({"maxFPGAs": float("nan")}, "maxFPGAs: expected a whole number"),
    ({"maxCPUs": "one"}, "maxCPUs: expected a whole number"),
    ({"maxSizePerFPGA": float("nan")}, "maxSizePerFPGA: expected a finite number"),
    ({"maxSizePerFPGA": 10**400}, "maxSizePerFPGA: expected a finite number"),
    ({"maxSizePerFPGA": None}, "maxSizePerFPGA: expected a number"),
    ({"nodes": {}}, "nodes: expected a list"),
    ({"edges": None}, "edges: expected a list"),
    ({"nodes": [7]}, r"nodes\[0\]: expected an object"),
    ({"edges": ["x"]}, r"edges\[0\]: expected an object"),
]


@pytest.mark.parametrize(("change", "message"), FAULTS)
def test_a_bad_field_is_named(change: dict[str, Any], message: str) -> None:
    """Each wrong value is refused by the name of its field."""
    with pytest.raises(PlanFileError, match=message):
        workload_of(diamond() | change)


NODE_FAULTS = [
    ({"fpgaLatency": -1.0}, r"nodes\[1\].fpgaLatency: .* found -1.0"),
    ({"fpgaLatency": float("inf")}, r"nodes\[1\].fpgaLatency: .* found inf"),
    ({"cpuLatency": float("nan")}, r"nodes\[1\].cpuLatency: .* found nan"),
    ({"cpuLatency": "3"}, r"nodes\[1\].cpuLatency: expected a number"),
    ({"size": -4}, r"nodes\[1\].size: .* found -4"),
    ({"supportedOnFpga": 2}, r"nodes\[1\].supportedOnFpga: expected true"),
    ({"supportedOnFpga": None}, r"nodes\[1\].supportedOnFpga: expected true"),
    ({"isBackwardNode": "no"}, r"nodes\[1\].isBackwardNode: expected true"),
    ({"colorClass": [1]}, r"nodes\[1\].colorClass: expected a whole"),
    ({"id": 3}, r"nodes\[1\].id: 3 is already the id of nodes\[0\]"),
    ({"id": "5"}, r"nodes\[1\].id: expected a whole number"),
]


@pytest.mark.parametrize(("change", "message"), NODE_FAULTS)
def test_a_bad_node_is_named(change: dict[str, Any], message: str) -> None:
    """The place and the field of the fault are in the message."""
    data = diamond()
    data["nodes"][1].update(change)

    with pytest.raises(PlanFileError, match=message):
        workload_of(data)


EDGE_FAULTS = [
    ({"destId": 99}, r"edges\[1\].destId: no node has id .*99"),
    ({"sourceId": [3]}, r"edges\[1\].sourceId: no node has id"),
    ({"cost": -0.5}, r"edges\[1\].cost: .* found -0.5"),
    ({"cost": 0.7}, r"edges\[1\].cost: 0.7 differs from 0.5 in edges\[0\]; node 3"),
    ({"sourceId": 8, "destId": 8}, "edges form a cycle: 8 -> 8"),
    ({"sourceId": 13, "destId": 3}, r"cycle: (3 -> 5 -> 13 -> 3|3 -> 8 -> 13 -> 3)"),
]


@pytest.mark.parametrize(("change", "message"), EDGE_FAULTS)
def test_a_bad_edge_is_named(change: dict[str, Any], message: str) -> None:
    """Edges name their ends, their cost, or the circle they close."""
    data = diamond()
    data["edges"][1].update(change)

    with pytest.raises(PlanFileError, match=message):
        workload_of(data)


def test_a_cycle_is_a_path_along_edges() -> None:
    """The named circle follows edges of the file and closes."""
    random = Random(1)
    data = diamond()
    data["nodes"] = [node(key) for key in range(30)]
    pairs = {(random.randrange(30), random.randrange(30)) for _ in range(60)}
    data["edges"] = [
        {"sourceId": a, "destId": b, "cost": 1.0} for a, b in sorted(pairs)
    ]
    with pytest.raises(PlanFileError) as caught:
        workload_of(data)

    walk = [int(key) for key in str(caught.value).split("cycle: ")[1].split(" -> ")]
    assert walk[0] == walk[-1]
    assert set(zip(walk, walk[1:], strict=False)) <= pairs


def test_all_faults_come_together() -> None:
    """One error lists every fault, shortened when there are many."""
    data = diamond()
    data["maxCPUs"] = -1
    data["nodes"][0]["size"] = "big"
    data["edges"][0]["destId"] = 77
    with pytest.raises(PlanFileError, match="faults: 3") as caught:
        workload_of(data)
    for text in ("maxCPUs", r"nodes[0].size", r"edges[0].destId"):
        assert text in str(caught.value)

    data["nodes"] = [7] * 100
    with pytest.raises(PlanFileError, match="more"):
        workload_of(data)


@pytest.mark.parametrize("text", ["", '{"nodes": [', "[1, 2]", "\x00", '"x"', "null"])
def test_text_that_is_no_workload_is_refused(text: str, tmp_path: Path) -> None:
    """Truncated and foreign files give the project's own error."""
    path = tmp_path / "bad.json"
    path.write_text(text)

    with pytest.raises(PlanFileError, match=r"bad\.json"):
        parse_workload(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Missing files, folders, other encodings and towers of brackets."""
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe9"}')
    (tmp_path / "deep.json").write_text("[" * 200_000)
    for name in ("missing.json", ".", "latin.json", "deep.json"):
        with pytest.raises(PlanFileError):
            parse_workload(tmp_path / name)


def test_scoring_names_what_a_split_breaks() -> None:
    """Memory, support, double and missing nodes are all reported."""
    data = diamond()
    data["nodes"][3]["supportedOnFpga"] = False
    workload = workload_of(data)
    split = {"fpgas": [{"nodes": [3, 5, 8, 13, 13]}], "cpus": []}
    faults = "\n".join(score_split(workload, split).violations)

    assert "node 13 is placed twice" in faults
    assert "node 13 is not supported" in faults
    assert "gpu:0 needs 16 bytes, has 12" in faults
    empty = score_split(workload, {"fpgas": [{"nodes": [4]}], "cpus": []})
    assert any("no node has id 4" in fault for fault in empty.violations)
    with pytest.raises(PlanFileError, match="expected a list"):
        score_split(workload, {"fpgas": 3})


def random_workload(seed: int) -> dict[str, Any]:
    """Return a random workload with gaps in its ids, colours and backward nodes."""
    random = Random(seed)
    count = random.randint(3, 20)
    late = random.randint(2, count)
    nodes = [
        node(
            3 + 7 * index,
            fpgaLatency=random.random(),
            cpuLatency=5 * random.random(),
            isBackwardNode=index >= late,
        )
        | ({"colorClass": random.randrange(6)} if random.random() < 0.4 else {})
        for index in range(count)
    ]
    cost = [random.random() for _ in range(count)]
    edges = [
        {"sourceId": 3 + 7 * a, "destId": 3 + 7 * b, "cost": cost[a]}
        for b in range(count)
        for a in range(b)
        if random.random() < 0.25
    ]
    return diamond() | {"nodes": nodes, "edges": edges, "maxSizePerFPGA": 1e3}


@pytest.mark.parametrize("seed", range(30))
def test_contracted_and_original_values_agree(seed: int) -> None:
    """The search's numbers equal those of the scorer, which walks the nodes."""
    workload = workload_of(random_workload(seed))
    random = Random(seed)
    for objective in ("throughput", "call_latency"):
        problem = problem_of(workload, objective=objective)
        plan = [random.choice(row) for row in problem.allowed]
        score = score_split(workload, split_of(workload, problem, plan))
        assert max_load(problem, plan) == pytest.approx(score.max_load)
        assert call_latency(problem, plan) == pytest.approx(score.call_latency)
        assert is_convex(problem, plan) == score.convex
        assert is_pipeline(problem, plan) == score.pipeline


def test_order_of_nodes_and_edges_does_not_matter() -> None:
    """A shuffled file has the same optimum."""
    data = random_workload(4)
    data["nodes"], data["edges"] = data["nodes"][:8], data["edges"]
    keys = {row["id"] for row in data["nodes"]}
    data["edges"] = [
        e for e in data["edges"] if e["sourceId"] in keys and e["destId"] in keys
    ]
    shuffled = copy.deepcopy(data)
    Random(0).shuffle(shuffled["nodes"])
    Random(1).shuffle(shuffled["edges"])
    values = [
        search(problem_of(workload_of(d)), iterations=400_000).value
        for d in (data, shuffled)
    ]

    assert values[0] == pytest.approx(values[1])


REFERENCE = os.environ.get("SPLITNET_WORKLOADS", "")


@pytest.mark.skipif(not REFERENCE, reason="SPLITNET_WORKLOADS names no folder")
def test_reference_optima_are_reached() -> None:
    """On the published tiny workloads every optimum is found and proven."""
    for entry in json.loads((Path(REFERENCE) / "tiny_exact.json").read_text()):
        workload = workload_of(entry["workload"])
        for key, optimum in entry["optimum"].items():
            latency = key.startswith("latency")
            objective = "call_latency" if latency else "throughput"
            contiguity = "free" if latency else key.rsplit("_", 1)[1]
            problem = problem_of(workload, objective=objective)
            result = search(problem, objective, contiguity, time_limit=5.0)
            # Reference latencies allow one call per accelerator; more may be faster.
            assert result.value <= optimum + 1e-6
            assert result.bound <= optimum + 1e-6
            if not latency:
                assert result.value == pytest.approx(optimum)
