"""One story per bug: what happened, why, and that it does not happen again."""

from typing import Any

import pytest

import splitnet as sn

pytestmark = pytest.mark.tf


@pytest.fixture(scope="module")
def cluster() -> sn.Cluster:
    """The machine that all tests with TensorFlow share."""
    return sn.local_cluster(stand_in_gpus=3)


def fitted(body: Any, optimizer: Any, cluster: sn.Cluster) -> Any:
    """A placed model of two branches after one step."""
    from keras import layers

    from tests.tf.zoo import two_branches

    case = two_branches(body, layers.Dense(4))
    net = case.source
    model = sn.emit(net, sn.plan(net, cluster, batch=13, time_limit=0.1))
    model.compile(optimizer, "mse")
    model.fit(case.x, case.y, batch_size=13, verbose=0)
    return model, (case.x, case.y)


def test_several_optimizers_in_one_are_all_placed(cluster: sn.Cluster) -> None:
    """A MultiOptimizer's parts counted variables alike; findings named the wrong."""
    import keras
    from keras import layers

    if not hasattr(keras.optimizers, "MultiOptimizer"):
        pytest.skip("this Keras has no MultiOptimizer")  # not in every supported one
    sgd, adam = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.Adam()
    both = keras.optimizers.MultiOptimizer(
        lambda variable: adam if "kernel" in variable.path else sgd
    )
    model, data = fitted(layers.Dense(4), both, cluster)
    audit = sn.audit(model, None, data).check()

    assert {row.updates for row in audit.rows if row.part in ("left", "right")} == {
        "gpu:0",
        "gpu:1",
    }


def test_an_unbuilt_sequential_is_a_body(cluster: sn.Cluster) -> None:
    """Copying a Sequential without an input failed: Keras raises on its `inputs`."""
    import keras
    from keras import layers

    body = keras.Sequential([layers.Dense(5), layers.Dense(4)], name="body")
    model, _ = fitted(body, "sgd", cluster)

    assert not body.built
    assert model.get_layer("body").built


def test_equal_work_on_one_device_is_no_finding(cluster: sn.Cluster) -> None:
    """Parts that TensorFlow merged with others on their device failed the audit.

    Two branches that read one input have the same product in their gradients, which
    runs once; the part whose name is gone was "not seen".
    """
    from keras import layers

    from tests.tf.zoo import two_branches

    case = two_branches(layers.Dense(4), layers.Dense(4))
    alone = sn.Cluster.of("cpu")
    net = case.source
    model = sn.emit(net, sn.plan(net, alone, batch=13, time_limit=0.1))
    model.compile("sgd", "mse")

    assert sn.audit(model, None, (case.x, case.y)).ok


def test_swish_at_the_end_of_a_branch_goes_backward_there(cluster: sn.Cluster) -> None:
    """The gradient of swish, a function of its own, ran on the default device.

    TensorFlow gives the gradient of an op the op's name scope, and with it the mark,
    but that of a `tf.custom_gradient` none. Where such a function stood at a cut, the
    gradient from one device and the values of another left its place open.
    """
    import numpy as np
    from keras import layers

    net = sn.Net("swish")
    x = net.input("x", (16,))
    a = net.branch("a", x, layers.Dense(32, "silu"), on="gpu:0")
    b = net.branch("b", a, layers.Dense(32, "silu"), on="gpu:1")
    both = net.merge("both", [a, b], layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="cpu"))
    model = sn.emit(net, sn.plan(net, cluster, batch=64, time_limit=0.1))
    model.compile("adam", "mse")
    data = np.ones((64, 16), "float32"), np.ones((64, 1), "float32")
    audit = sn.audit(model, None, data).check()

    backward = {row.part: row.backward for row in audit.rows}
    assert (backward["a"], backward["b"]) == ("gpu:0", "gpu:1")


@pytest.mark.parametrize("rows", [8, 600])
def test_a_shared_embeddings_gradients_meet_at_its_table(
    rows: int, cluster: sn.Cluster
) -> None:
    """The sparse gradients of two branches were joined on the default device.

    Gradients of an `Embedding` are rows and their numbers; TensorFlow adds them up by
    joining them, in an op without a mark that had as much from one device as from the
    other. Sums of dense gradients went home, this one did not. The plan counted a whole
    table, of which a small one has less than the rows that were looked up.
    """
    import numpy as np
    from keras import layers

    net = sn.Net("shared_table")
    one, two = (net.input(name, (5,), dtype="int32") for name in ("one", "two"))
    table = [layers.Embedding(rows, 4), layers.GlobalAveragePooling1D()]
    left = net.branch("left", one, table, on="gpu:0")
    right = net.branch("right", two, table, on="gpu:1")
    both = net.merge("both", [left, right], layers.Concatenate())
    net.output(net.branch("head", both, layers.Dense(1), on="cpu"))
    model = sn.emit(net, sn.plan(net, cluster, batch=32, time_limit=0.1))
    model.compile("adam", "mse")
    data = [np.ones((32, 5), "int32")] * 2, np.ones((32, 1), "float32")
    audit = sn.audit(model, None, data).check()

    sent = {ends: size for ends, size in audit.moved.items() if "weights g" in ends[2]}
    size = 32 * 5 * (4 + 1) * 4
    assert sent == {("gpu:1", "gpu:0", "weights gradient"): (size, size)}
