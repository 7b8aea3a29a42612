"""What of the activations is surely held together."""

from splitnet.planner.planner import plan_graph
from splitnet.simulator.kept import kept_at_once
from splitnet.simulator.wires import Net
from tests.planner.test_certificates import wished


def net(source: int, *readers: int) -> Net:
    """An output of 8 bytes whose readers all send a gradient back."""
    return Net(source, readers, 8, readers)


def test_kept_at_once_takes_all_that_leads_to_one_end():
    """One loss: nothing is freed before its forward pass is over."""
    nets = [net(0, 1, 2), net(1, 3), net(2, 3)]
    assert kept_at_once(nets, [True] * 4, [1, 10, 100, 1000]) == [1, 10, 100, 1000]


def test_kept_at_once_takes_the_fullest_of_several_ends():
    """Two losses over one trunk may be done one after the other."""
    nets = [net(0, 1, 2)]
    assert kept_at_once(nets, [True] * 3, [1, 10, 100]) == [1, 0, 100]


def test_kept_at_once_leaves_out_what_has_no_backward_pass():
    """No gradients, nothing kept; a reader without one holds nothing either."""
    assert kept_at_once([net(0, 1)], [False] * 2, [0, 0]) == [0, 0]
    frozen = Net(0, (1,), 8, ())
    assert kept_at_once([frozen], [True, False], [5, 0]) == [5, 0]


def test_memory_bound_knows_that_ends_may_follow_each_other():
    """Three outputs, each keeping much: the best placement is found and proven."""
    graph, cluster = wished(17)
    assert len(graph.outputs) == 3

    plan = plan_graph(graph, cluster, objective="memory", time_limit=5.0)

    assert plan.value == 76_547_072
    assert plan.bound <= plan.value
