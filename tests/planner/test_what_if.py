"""Plans under other costs, and the largest batch."""

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError
from splitnet.core.plan import PlanOptions
from splitnet.planner import what_if
from splitnet.planner.evaluate import score
from splitnet.planner.what_if import heaviest_moves, largest_batch, sensitivity
from tests.planner.quick import find_plan
from tests.zoo import chain, random_dag, wide

BOX = Cluster.of("2*gpu", "cpu")


def test_sensitivity_of_a_clear_decision_is_low():
    """Two heavy towers stay apart whatever ten percent do."""
    found = sensitivity(find_plan(wide(2), BOX), draws=5)

    assert found.changed == 0.0
    assert found.regret == 0.0


def test_sensitivity_of_a_close_decision_names_the_part():
    """Where costs decide narrowly, some draws change the plan, and lose little."""
    plan = find_plan(random_dag(7, 8), BOX)
    found = sensitivity(plan, 0.5, draws=2)

    assert 0 <= found.regret < 1
    assert (found.changed > 0) == bool(found.moved)
    assert "costs off by up to 50%" in str(found)


def test_sensitivity_keeps_the_feasible_set():
    """A pipeline is compared with pipelines, not with the better free plan."""
    graph = random_dag(6, 8)
    busy = {
        contiguity: find_plan(
            graph, BOX, objective="throughput", contiguity=contiguity, time_limit=0.5
        )
        for contiguity in ("free", "pipeline")
    }

    assert busy["free"].value < 0.99 * busy["pipeline"].value
    assert sensitivity(busy["pipeline"], 0.0, draws=1).changed == 0.0


def test_sensitivity_refuses_nonsense():
    """A perturbation of more than all is refused."""
    with pytest.raises(DeclarationError, match="at least 0 and below 1"):
        sn.sensitivity(find_plan(chain(), BOX), 1.5)


def test_largest_batch_fits_and_the_next_does_not():
    """The largest batch is the last that can be placed."""
    box = Cluster.of("gpu", memory="1 GiB")
    most = largest_batch(chain(3), box)
    kept = largest_batch(chain(3), box, device_of={f"c{i}": "gpu:0" for i in range(3)})

    assert most > 32
    assert kept == most


def test_largest_batch_is_zero_where_the_weights_do_not_fit():
    """No batch helps a model whose weights are too large."""
    assert largest_batch(chain(3), Cluster.of("gpu", memory="5 MiB")) == 0


@pytest.mark.parametrize("objective", ["latency", "throughput"])
def test_heaviest_moves_of_a_large_net_are_what_score_says(objective, monkeypatch):
    """Where memory is estimated, value and transfers are those of the placement."""
    monkeypatch.setattr(what_if, "_MOST_DETAILED", 0)
    graph, options = random_dag(7, 12), PlanOptions(objective=objective)
    places = {part.name: f"gpu:{n % 2}" for n, part in enumerate(graph.parts[1:])}
    places["x"] = "cpu:0"
    plan = score(graph, BOX, places, options)
    moves = heaviest_moves(plan, most=12)

    assert len(moves) == 12
    for part, alternatives in moves.items():
        for one in alternatives:
            there = score(graph, BOX, plan.device_of | {part: one.device}, options)
            assert one.value == pytest.approx(there.value)
            assert one.transfer_bytes == there.transfer_bytes
