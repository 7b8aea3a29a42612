"""What other machines wait for goes first."""

import pytest

pytestmark = pytest.mark.tf

HERE = "/job:worker/replica:0/task:0/device:CPU:0"
THERE = "/job:worker/replica:0/task:1/device:CPU:0"


@pytest.fixture
def step():
    """A graph in which one of two products of a tensor is read by another worker."""
    import tensorflow as tf

    graph = tf.Graph()
    with graph.as_default(), tf.device(HERE):
        made = tf.nn.relu(tf.ones([4, 4], name="given"))
        kept = tf.matmul(made, made, name="kept")
        sent = tf.matmul(made, made, name="sent")
        tf.nn.relu(kept, name="later")
        with tf.device(THERE):
            tf.nn.relu(sent, name="reader")
            tf.add(sent, sent, name="twice")
    return graph


def test_send_first_gates_what_crosses_between_workers(step):
    """Readers elsewhere get the tensor through an operation beside its maker."""
    from splitnet.tf.sends import send_first

    send_first(step, [HERE, THERE])
    reader, twice = (step.get_operation_by_name(name) for name in ("reader", "twice"))
    [gate] = {tensor.op for tensor in (*reader.inputs, *twice.inputs)}
    assert gate.type == "PlaceholderWithDefault"
    assert (gate.name, gate.device) == ("sent/PlaceholderWithDefault", HERE)
    assert gate.inputs[0].op.name == "sent"


def test_send_first_lets_what_starts_beside_it_wait(step):
    """Another product of the same input waits for the one that is sent; others not."""
    from splitnet.tf.sends import send_first

    send_first(step, [HERE, THERE])
    waits = {
        op.name: [one.name for one in op.control_inputs]
        for op in step.get_operations()
        if op.control_inputs
    }
    assert waits == {"kept": ["sent"]}


def test_send_first_leaves_a_step_of_one_machine_alone(step):
    """Stand-ins of one process hand tensors over without sending them."""
    from splitnet.tf.sends import send_first

    before = step.as_graph_def()
    send_first(step, ["/device:CPU:0", "/device:CPU:1"])
    assert step.as_graph_def() == before
