"""Random nets: whatever is declared, the plan is valid and the model transparent."""

from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from keras import layers

import splitnet as sn

pytestmark = pytest.mark.tf

WIDTH = 3
ON = ["auto", "gpu", "gpu:0", "gpu:1", "gpu:2", "cpu", ["gpu:7", "gpu:1"], "gpu:9"]


KINDS = ["dense", "shared", "norm", "drop"]

# what is drawn: the number of inputs, and for each branch what it reads, is and wishes
BRANCHES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), min_size=1, max_size=3),
        st.sampled_from(KINDS),
        st.sampled_from(ON),
    ),
    min_size=1,
    max_size=5,
)


def declare(inputs: int, branches: list[tuple[list[int], str, Any]]) -> sn.Net:
    """The net of a drawing: a DAG in which everything leads to one head."""
    net = sn.Net("random")
    made = [net.input(f"x{i}", (WIDTH,)) for i in range(inputs)]
    unread = list(made)
    shared: list[Any] = []
    for number, (reads, kind, on) in enumerate(branches):
        sources = list(dict.fromkeys(made[i % len(made)] for i in reads))
        body: list[Any] = [layers.Add()] if len(sources) > 1 else []
        if kind == "norm":
            body.append(layers.BatchNormalization())
        elif kind == "drop":
            body.append(layers.Dropout(0.4))
        else:
            if kind == "dense" or not shared:
                shared.append(layers.Dense(WIDTH, activation="tanh"))
            body.append(shared[reads[0] % len(shared)])
        fed = sources if len(sources) > 1 else sources[0]
        ref = net.branch(f"b{number}", fed, body, on=on)
        unread = [one for one in unread if one not in sources] + [ref]
        made.append(ref)
    last = net.merge("end", unread, layers.Add()) if len(unread) > 1 else unread[0]
    net.output(net.branch("head", last, layers.Dense(1)))
    return net


@pytest.mark.slow
@settings(
    max_examples=10,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(inputs=st.integers(1, 2), branches=BRANCHES)
def test_every_net_is_planned_and_transparent(
    inputs: int, branches: Any, cluster: sn.Cluster
) -> None:
    """Every part has a device that is here; training equals plain; audits are clean."""
    net = declare(inputs, branches)
    graph = sn.read(net, batch=4)
    plan = sn.plan(graph, cluster, time_limit=0.05)
    placed = sn.emit(net, plan)
    plain = sn.unplace(placed)
    draw = np.random.default_rng(0)
    x = [draw.standard_normal((6, WIDTH)).astype("float32") for _ in placed.inputs]
    x = x[0] if len(x) == 1 else x
    y = draw.standard_normal((6, 1)).astype("float32")
    seen = []
    for model in (placed, plain):
        model.compile("sgd", "mse", run_eagerly=model is plain)
        history = model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
        seen.append([*history.history["loss"], *model.get_weights()])

    assert set(plan.device_of) == set(graph.part)
    assert set(plan.device_of.values()) <= {device.name for device in cluster}
    for mine, its in zip(*seen, strict=True):  # sums within a call round differently
        np.testing.assert_allclose(mine, its, rtol=1e-4, atol=1e-5)
    batch = keras.tree.map_structure(lambda a: a[:4], (x, y))
    sn.audit(placed, plan, batch).check()
