import json

import pytest

from splitnet.core.errors import InfeasibleError, PlanFileError
from splitnet.planner.constraints import violations
from splitnet.planner.workloads import device_of_split, read_workload, workload_of
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


def max_load(path, device_of):
    """Load of the busiest device: its nodes, and what accelerators send or receive."""
    data = json.loads(path.read_text())
    busy = dict.fromkeys(device_of.values(), 0.0)
    for one in data["nodes"]:
        here = device_of[str(one["id"])]
        busy[here] += one["fpgaLatency" if "gpu" in here else "cpuLatency"]
        out = [edge for edge in data["edges"] if edge["sourceId"] == one["id"]]
        ends = {here, *(device_of[str(edge["destId"])] for edge in out)}
        for device in ends if len(ends) > 1 else ():
            busy[device] += out[0]["cost"] * ("gpu" in device)
    return max(busy.values())


def changed(path, **changes):
    """The graph and cluster of the file with other fields."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return read_workload(path)


def test_workload_becomes_a_graph_with_a_part_per_node(workload):
    """Parts keep the file's ids and order, calls run in order; bytes are whole."""
    graph, cluster = changed(workload, maxSizePerFPGA=8.8)

    assert [part.name for part in graph.parts] == ["9", "3", "5", "7"]
    assert [call.name for call in graph.calls] == ["3", "5", "7", "9"]
    assert [device.name for device in cluster] == ["gpu:0", "gpu:1", "cpu:0"]
    assert [call.size_bytes for call in graph.calls] == [4, 4, 4, 1]
    assert cluster["gpu:0"].memory_bytes == 8


def test_workload_without_edges_is_spread(workload):
    """Nodes that send nothing: the busiest device has one of the two long ones."""
    graph, cluster = changed(workload, edges=[])
    plan = find_plan(graph, cluster, objective="throughput", time_limit=1.0)

    assert plan.value == pytest.approx(5.0)


def test_workload_that_fits_nowhere_says_so(workload):
    """Without a CPU and with too little memory the reason is given."""
    graph, cluster = changed(workload, maxCPUs=0, maxSizePerFPGA=3)
    with pytest.raises(InfeasibleError, match="does not fit"):
        find_plan(graph, cluster)


@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_a_planned_workload_is_worth_its_maximum_load(workload, contiguity):
    """The load of the busiest device; colour classes and memory are kept."""
    how = {"objective": "throughput", "contiguity": contiguity, "time_limit": 0.5}
    plan = find_plan(*read_workload(workload), **how)

    assert plan.value == pytest.approx(max_load(workload, plan.device_of))
    assert plan.bound <= plan.value
    assert plan.device_of["3"] == plan.device_of["7"]
    assert violations(plan) == []


def test_a_split_is_a_placement():
    """Of the benchmark's own form; a node cannot be in two places."""
    rows = [{"nodes": [3, 5]}, {"nodes": [7]}]
    split = {"fpgas": rows, "cpus": [{"nodes": [9]}]}

    assert device_of_split(split) == {
        **{"3": "gpu:0", "5": "gpu:0"},
        **{"7": "gpu:1", "9": "cpu:0"},
    }
    with pytest.raises(PlanFileError, match="places nodes twice: 7"):
        device_of_split({"fpgas": [*rows, {"nodes": [7]}]})
    with pytest.raises(PlanFileError, match=r"split.fpgas\[0\].nodes\[0\]: expected"):
        device_of_split({"fpgas": [{"nodes": ["3"]}]})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update(maxFPGAs="two"), r"maxFPGAs: expected `float`"),
        (lambda w: w.update(maxFPGAs=2.5), r"maxFPGAs: .*multiple of 1.0"),
        (lambda w: w.update(maxFPGAs=-1), r"maxFPGAs: expected `float` >= 0"),
        (lambda w: w.update(maxFPGAs=0, maxCPUs=0), "there is no device"),
        (lambda w: w.update(nodes=[], edges=[]), "there is nothing to place"),
        (
            lambda w: w["nodes"][1].update(id=9),
            r"nodes\[0\].id: 9 is the id",
        ),
        (
            lambda w: w["nodes"][1].update(size=-1),
            r"nodes\[1\].size: expected `float` >= 0",
        ),
        (lambda w: w["nodes"][1].pop("cpuLatency"), "cpuLatency"),
        (
            lambda w: w["nodes"][1].update(supportedOnFpga=2),
            r"nodes\[1\].supportedOnFpga: expected `int` <= 1",
        ),
        (lambda w: w["edges"][0].update(destId=4), "no node has id 4"),
        (lambda w: w["edges"][1].update(cost=9.0), "node 3 has one output cost"),
        (lambda w: w["edges"][0].update(sourceId=9, destId=3, cost=0), "a cycle"),
        (lambda w: w.clear(), "missing required field"),
    ],
)
def test_broken_workload_names_the_field(workload, change, message):
    """Every fault is named with its field."""
    data = json.loads(workload.read_text())
    change(data)
    with pytest.raises(PlanFileError, match=message):
        workload_of(data)
