"""Files that commands are given."""

import json
from pathlib import Path

import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner.planner import plan_graph
from tests.cli.given import workload
from tests.zoo import shared


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    """A saved plan for two GPUs and a CPU."""
    path = tmp_path / "plan.json"
    plan_graph(shared(flops=1e9), Cluster.of("2*gpu", "cpu")).save(path)
    return str(path)


@pytest.fixture
def workload_file(tmp_path: Path) -> str:
    """A workload of three nodes, two accelerators and a core."""
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(workload(3)))
    return str(path)
