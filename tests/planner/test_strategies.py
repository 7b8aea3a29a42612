"""One device, the plan, towers and a pipeline, compared with the same costs."""

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.planner.strategies import compare_strategies
from tests.planner.quick import find_plan, plan_graph
from tests.zoo import MIB, chain

BOX = Cluster.of("2*gpu", "cpu")
HALVES = {"c[01]": "gpu:0", "c[23]": "gpu:1"}


def two_stages() -> Plan:
    """Four equal calls, the first half on one GPU, the rest on the other."""
    return plan_graph(chain(4, flops=4e11), BOX, pins=HALVES)


def test_the_fastest_of_a_heavy_chain_is_named():
    """A chain gains nothing from its own plan; towers and a pipeline do."""
    found = compare_strategies(two_stages())

    assert found.best.kind == "towers"
    assert found["pipeline"].seconds < found["one device"].seconds
    assert "times as fast as one device" in str(found)


def test_a_losing_plan_is_not_called_a_win():
    """Where a model is small, one device is the answer."""
    pins = {"c[02]": "gpu:0", "c[13]": "gpu:1"}
    found = compare_strategies(
        find_plan(chain(4, flops=1e3, out=64 * MIB), BOX, pins=pins)
    )

    assert found.best.kind == "one device"
    assert "not worth distributing" in str(found)


def test_a_chain_on_one_device_is_cut_into_stages():
    """A pipeline needs stages; where the plan has none, they are of equal work."""
    plan = find_plan(chain(4, flops=4e11), BOX, pins={"*": "gpu:0"})
    found = compare_strategies(plan)

    assert "objective='throughput'" in found["pipeline"].how
    assert found["pipeline"].seconds < 0.6 * found["one device"].seconds


def test_cpus_are_used_where_there_are_no_gpus():
    """The devices beside the first are equals: towers and stages may use them."""
    pins = {"c[01]": "cpu:1", "c[23]": "cpu:2"}
    plan = find_plan(chain(4, flops=4e11), Cluster.of("3*cpu"), pins=pins)

    assert "devices=['cpu:1', 'cpu:2']" in compare_strategies(plan)["towers"].how


def test_the_verdict_compares_strategies():
    """A chain's plan is no win: the verdict names what is, and how to get it."""
    said = str(two_stages().verdict)

    assert "strategies: towers " in said
    assert "faster than this plan: data_parallel(model, devices=" in said


def test_the_verdict_has_one_figure_for_one_device():
    """The headline's single device is the one of the comparison."""
    verdict = two_stages().verdict

    assert verdict.single_device_value == verdict.strategies["one device"].seconds


def test_the_verdict_of_inference_compares_no_strategies():
    """Micro-batches and gradients belong to training."""
    plan = plan_graph(chain(4), BOX, training=False)

    assert plan.verdict.strategies is None


def test_a_strategy_that_cannot_be_is_a_key_error():
    """One call makes no pipeline."""
    single = find_plan(chain(1), Cluster.of("gpu", "cpu"))

    with pytest.raises(KeyError, match="pipeline"):
        compare_strategies(single)["pipeline"]
