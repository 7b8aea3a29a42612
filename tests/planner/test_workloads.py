"""The benchmark's workload files: read, planned for their maximum load, refused."""

from copy import deepcopy

import pytest

from splitnet.core.errors import PlanFileError
from splitnet.planner.constraints import violations
from splitnet.planner.workloads import workload_of
from tests.planner.quick import plan_graph


def node(number, *, accelerator=1.0, size=4.0, **more):
    seconds = {"fpgaLatency": accelerator, "cpuLatency": 10.0}
    kinds = {"supportedOnFpga": 1, "isBackwardNode": 0}
    return {"id": number, "size": size} | seconds | kinds | more


MACHINE = {"maxFPGAs": 2.0, "maxCPUs": 1, "maxSizePerFPGA": 9}
NODES = [node(9, size=0.5), node(3, colorClass=1), node(5, accelerator=4.0)]
NODES += [node(7, accelerator=4.0, colorClass=1)]
ENDS = (3, 5), (3, 7), (5, 9), (7, 9)
EDGES = [{"sourceId": a, "destId": b, "cost": 0.25} for a, b in ENDS]
DIAMOND = MACHINE | {"nodes": NODES, "edges": EDGES}
"""Two of its nodes share a colour, on two accelerators and a core."""
NEITHER = r"nodes\[1\].supportedOnFpga: expected `int` <= 1"


def max_load(data, device_of):
    """Load of the busiest device: its nodes, and what accelerators send or receive."""
    busy = dict.fromkeys(device_of.values(), 0.0)
    for one in data["nodes"]:
        here = device_of[str(one["id"])]
        busy[here] += one["fpgaLatency" if "gpu" in here else "cpuLatency"]
        out = [edge for edge in data["edges"] if edge["sourceId"] == one["id"]]
        ends = {here, *(device_of[str(edge["destId"])] for edge in out)}
        for device in ends if len(ends) > 1 else ():
            busy[device] += out[0]["cost"] * ("gpu" in device)
    return max(busy.values())


def test_workload_becomes_a_graph_with_a_part_per_node():
    graph, cluster = workload_of(DIAMOND | {"maxSizePerFPGA": 8.8})
    assert [part.name for part in graph.parts] == ["9", "3", "5", "7"]
    assert [call.name for call in graph.calls] == ["3", "5", "7", "9"]
    assert cluster.names == ("gpu:0", "gpu:1", "cpu:0")
    assert [call.size_bytes for call in graph.calls] == [4, 4, 4, 1]
    assert cluster["gpu:0"].memory_bytes == 8


@pytest.mark.parametrize("data", [DIAMOND, DIAMOND | {"edges": []}])
@pytest.mark.parametrize("contiguity", ["free", "convex", "pipeline"])
def test_a_planned_workload_is_worth_its_maximum_load(data, contiguity):
    """That of the busiest device; classes and memory are kept, long nodes spread."""
    how = {"objective": "throughput", "contiguity": contiguity}
    plan = plan_graph(*workload_of(data), **how)
    assert plan.value == pytest.approx(max_load(data, plan.device_of))
    assert plan.bound <= plan.value
    assert plan.device_of["3"] == plan.device_of["7"]
    assert violations(plan) == []
    assert data["edges"] or plan.value == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.update(maxFPGAs=2.5), r"maxFPGAs: .*multiple of 1.0"),
        (lambda w: w.update(maxFPGAs=-1), r"maxFPGAs: expected `float` >= 0"),
        (lambda w: w.update(maxFPGAs=0, maxCPUs=0), "there is no device"),
        (lambda w: w.update(nodes=[], edges=[]), "there is nothing to place"),
        (lambda w: w["nodes"][1].update(id=9), r"nodes\[0\].id: 9 is the id"),
        (lambda w: w["nodes"][1].update(size=-1), r"\[1\].size: expected `float` >= 0"),
        (lambda w: w["nodes"][1].pop("cpuLatency"), "cpuLatency"),
        (lambda w: w["nodes"][1].update(supportedOnFpga=2), NEITHER),
        (lambda w: w["edges"][0].update(destId=4), "no node has id 4"),
        (lambda w: w["edges"][1].update(cost=9.0), "node 3 has one output cost"),
        (lambda w: w["edges"][0].update(sourceId=9, destId=3, cost=0), "a cycle"),
    ],
)
def test_broken_workload_names_the_field(change, message):
    data = deepcopy(DIAMOND)
    change(data)
    with pytest.raises(PlanFileError, match=message):
        workload_of(data)
