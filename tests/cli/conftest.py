"""Files that commands are given."""

import json

import pytest

import splitnet as sn
from splitnet.planner.plan_file import plan_to_dict
from tests.planner.test_workloads import MACHINE, node
from tests.zoo import shared


@pytest.fixture(scope="session")
def saved_plan():
    plan = sn.plan(shared(flops=1e9), sn.Cluster.of("2*gpu", "cpu"))
    return json.dumps(plan_to_dict(plan))


@pytest.fixture
def plan_file(tmp_path, saved_plan):
    path = tmp_path / "plan.json"
    path.write_text(saved_plan)
    return str(path)


@pytest.fixture
def workload_file(tmp_path):
    nodes = [node(i, size=1) for i in (1, 2, 3)]
    edges = [{"sourceId": i, "destId": i + 1, "cost": 0.25} for i in (1, 2)]
    path = tmp_path / "workload.json"
    path.write_text(json.dumps(MACHINE | {"nodes": nodes, "edges": edges}))
    return str(path)
