"""Files that commands are given."""

import json
from pathlib import Path

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.serialization import encode
from splitnet.planner.planner import plan_graph
from tests.cli.given import towers


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    """A saved graph."""
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(encode(towers())))
    return str(path)


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """A saved plan for two GPUs and a CPU."""
    path = tmp_path / "plan.json"
    plan_graph(towers(), Cluster.of("2*gpu", "cpu")).save(path)
    return str(path)


@pytest.fixture
def workload_file(tmp_path: Path) -> str:
    """A benchmark workload: a chain of three, two accelerators and a core."""
    nodes = [
        {
            "id": i,
            "fpgaLatency": 1.0,
            "cpuLatency": 10.0,
            "size": 1,
            "supportedOnFpga": True,
            "isBackwardNode": False,
        }
        for i in (1, 2, 3)
    ]
    edges = [
        {"sourceId": 1, "destId": 2, "cost": 0.25},
        {"sourceId": 2, "destId": 3, "cost": 0.25},
    ]
    path = tmp_path / "workload.json"
    path.write_text(
        json.dumps(
            {
                "maxFPGAs": 2,
                "maxCPUs": 1,
                "maxSizePerFPGA": 100,
                "nodes": nodes,
                "edges": edges,
            }
        )
    )
    return str(path)
