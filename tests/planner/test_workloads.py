import json

import pytest

from splitnet.core.errors import InfeasibleError, PlanFileError
from splitnet.planner.workloads import (
    read_workload,
    score_split,
    workload_of,
)
from tests.planner.quick import find_plan


def node(number, *, accelerator=1.0, cpu=10.0, color=None, size=4.0, **more):
    """A node of the benchmark's file."""
    values = {
        "id": number,
        "fpgaLatency": accelerator,
        "cpuLatency": cpu,
        "size": size,
        "supportedOnFpga": 1,
        "isBackwardNode": 0,
    }
    return values | ({} if color is None else {"colorClass": color}) | more


@pytest.fixture
def workload(tmp_path):
    """A diamond of which two nodes share a colour, on two accelerators and a core."""
    path = tmp_path / "diamond.json"
    edges = [(3, 5), (3, 7), (5, 9), (7, 9)]
    data = {
        "maxFPGAs": 2.0,
        "maxCPUs": 1,
        "maxSizePerFPGA": 9,
        "nodes": [
            node(9, size=0.5),
            node(3, color=1),
            node(5, accelerator=4.0),
            node(7, accelerator=4.0, color=1),
        ],
        "edges": [{"sourceId": a, "destId": b, "cost": 0.25} for a, b in edges],
    }
    path.write_text(json.dumps(data))
    return path


def known(path):
    """The workload of a file."""
    return workload_of(json.loads(path.read_text()))


def test_workload_becomes_a_graph_with_a_part_per_node(workload):
    """Parts keep the file's ids and order; calls stand in running order."""
    graph, cluster = read_workload(workload)

    assert [part.name for part in graph.parts] == ["9", "3", "5", "7"]
    assert [call.name for call in graph.calls] == ["3", "5", "7", "9"]
    assert [device.name for device in cluster] == ["gpu:0", "gpu:1", "cpu:0"]


def test_workload_plan_is_worth_what_its_split_scores(workload):
    """The planner's value is the evaluator's, and no constraint is broken."""
    graph, cluster = read_workload(workload)
    plan = find_plan(graph, cluster, objective="throughput", time_limit=1.0)
    found = score_split(known(workload), dict(plan.device_of))

    assert plan.value == pytest.approx(found.max_load)
    assert not found.violations


def test_workload_plan_keeps_colour_classes_and_memory(workload):
    """A colour class shares a device, and every accelerator holds what it gets."""
    graph, cluster = read_workload(workload)
    plan = find_plan(graph, cluster, time_limit=1.0)

    assert plan.device_of["3"] == plan.device_of["7"]
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in cluster)


def test_workload_without_edges_is_spread(workload):
    """Nodes that send nothing: the busiest device has one of the two long ones."""
    data = json.loads(workload.read_text()) | {"edges": []}
    workload.write_text(json.dumps(data))
    graph, cluster = read_workload(workload)
    plan = find_plan(graph, cluster, objective="throughput", time_limit=1.0)

    assert plan.value == pytest.approx(5.0)


def test_workload_that_fits_nowhere_says_so(workload):
    """Without a CPU and with too little memory the reason is given."""
    data = json.loads(workload.read_text()) | {"maxCPUs": 0, "maxSizePerFPGA": 3}
    workload.write_text(json.dumps(data))
    graph, cluster = read_workload(workload)
    with pytest.raises(InfeasibleError, match="does not fit"):
        find_plan(graph, cluster)


def test_workload_without_nodes_is_named(tmp_path):
    """A file of another kind is refused with its faults."""
    path = tmp_path / "other.json"
    path.write_text("{}")
    with pytest.raises(PlanFileError, match="missing required field"):
        read_workload(path)


def test_fractions_of_a_byte_are_rounded(workload):
    """Sizes of a graph round up, memory down."""
    data = json.loads(workload.read_text())
    data |= {"maxSizePerFPGA": 8.8, "maxCPUs": 0}
    for row in data["nodes"]:
        row["size"] = 4.4
    workload.write_text(json.dumps(data))

    graph, cluster = read_workload(workload)

    assert [call.size_bytes for call in graph.calls] == [5] * 4
    assert cluster["gpu:0"].memory_bytes == 8


@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_planned_workload_scores_what_it_says(workload, contiguity):
    """The planner reports the evaluator's value, whatever may share a device."""
    how = {"objective": "throughput", "contiguity": contiguity, "time_limit": 0.5}
    found = find_plan(*read_workload(workload), **how)
    scored = score_split(known(workload), dict(found.device_of))

    assert found.value == pytest.approx(scored.max_load)
    assert found.bound <= found.value
    assert not scored.violations
    assert contiguity == "free" or getattr(scored, contiguity)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update(maxFPGAs="two"), r"Expected `float`.*maxFPGAs"),
        (lambda w: w.update(maxFPGAs=2.5), r"multiple of 1.0.*maxFPGAs"),
        (lambda w: w.update(maxFPGAs=-1), r"Expected `float` >= 0.*maxFPGAs"),
        (lambda w: w.update(maxFPGAs=0, maxCPUs=0), "there is no device"),
        (lambda w: w.update(nodes=[], edges=[]), "there is nothing to place"),
        (
            lambda w: w["nodes"][1].update(id=9),
            r"nodes\[0\].id: 9 is the id",
        ),
        (
            lambda w: w["nodes"][1].update(size=-1),
            r"Expected `float` >= 0.*nodes\[1\].size",
        ),
        (lambda w: w["nodes"][1].pop("cpuLatency"), "cpuLatency"),
        (
            lambda w: w["nodes"][1].update(supportedOnFpga=2),
            r"Expected `int` <= 1.*nodes\[1\].supportedOnFpga",
        ),
        (lambda w: w["edges"][0].update(destId=4), "no node has id 4"),
        (lambda w: w["edges"][1].update(cost=9.0), "node 3 has one output cost"),
        (lambda w: w["edges"][0].update(sourceId=9, destId=3, cost=0), "a cycle"),
    ],
)
def test_broken_workload_names_the_field(workload, change, message):
    """Every fault is named with its field."""
    data = json.loads(workload.read_text())
    change(data)
    workload.write_text(json.dumps(data))
    with pytest.raises(PlanFileError, match=message):
        known(workload)
