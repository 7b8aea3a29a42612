"""How the engine's search and the local one share the time."""

import pytest

from splitnet.core.cluster import Cluster
from splitnet.planner.planner import plan_graph
from tests.zoo import chain

BOX = Cluster.of("4*gpu", "cpu", memory="6 GiB", cpu_memory="1 GiB")


@pytest.mark.parametrize("objective", ["throughput", "call_latency"])
def test_large_graphs_are_the_engines_alone(
    objective: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A local search would try too few moves to better the engine's plan of them."""

    def local_search(*_: object, **__: object) -> None:
        pytest.fail("the local search began")

    monkeypatch.setattr("splitnet.planner.steady_search.best_assignment", local_search)
    plan = plan_graph(chain(1100), BOX, objective=objective, time_limit=1.0)

    assert len(set(plan.device_of.values())) > 1
    assert all(plan.memory[d.name].total <= d.memory_bytes for d in BOX)
