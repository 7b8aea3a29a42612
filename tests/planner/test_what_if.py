"""Plans under other costs, and the largest batch."""

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError
from splitnet.planner.what_if import largest_batch, sensitivity
from tests.planner.quick import find_plan
from tests.zoo import chain, random_dag, wide

BOX = Cluster.of("2*gpu", "cpu")


def test_sensitivity_counts_draws_that_change_the_decision():
    """Heavy towers stay apart whatever ten percent do; close decisions name a part."""
    clear = sensitivity(find_plan(wide(2), BOX), draws=5)
    close = sensitivity(find_plan(random_dag(7, 8), BOX), 0.5, draws=2)

    assert (clear.changed, clear.regret, clear.moved) == (0.0, 0.0, {})
    assert 0 <= close.regret < 1
    assert (close.changed > 0) == bool(close.moved)
    assert "costs off by up to 50%" in str(close)
    with pytest.raises(DeclarationError, match=">= 0 and < 1"):
        sn.sensitivity(find_plan(chain(), BOX), 1.5)


def test_sensitivity_keeps_the_feasible_set():
    """A pipeline is compared with pipelines, not with the better free plan."""
    graph = random_dag(6, 8)
    how = {"objective": "throughput", "time_limit": 10.0}
    free, piped = (
        find_plan(graph, BOX, contiguity=one, **how) for one in ("free", "pipeline")
    )

    assert free.value < 0.99 * piped.value
    assert sensitivity(piped, 0.0, draws=1).changed == 0.0


def test_largest_batch_fits_and_the_next_does_not():
    box = Cluster.of("gpu", memory="1 GiB")
    most = largest_batch(chain(3), box)
    kept = largest_batch(chain(3), box, device_of={f"c{i}": "gpu:0" for i in range(3)})

    assert most > 32
    assert kept == most
    # No batch helps a model whose weights are too large.
    assert largest_batch(chain(3), Cluster.of("gpu", memory="5 MiB")) == 0
