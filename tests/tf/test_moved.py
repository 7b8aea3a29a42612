"""Saved on four devices, loaded on eight, two and one; planned for what is not here."""

import numpy as np
import pytest
from keras import layers

import splitnet as sn


@pytest.fixture(scope="module")
def far():
    net = sn.Net("far")
    x = net.input("x", (6,))
    its = [layers.Dense(3, name=f"d{i}") for i in range(4)]
    branches = [net.branch(f"b{i}", x, d, on=f"gpu:{i}") for i, d in enumerate(its)]
    net.output(net.merge("sum", branches, layers.Add(), on=["gpu:3", "cpu"]))
    box = sn.Cluster.of("5*gpu", "cpu", memory="16 GiB")
    return net, sn.plan(net, box, batch=4, time_limit=0.1)


MOVED = {"b3": "gpu:", "sum": "cpu:0"}  # here are three stand-ins
BATCH_HERE = np.ones((4, 6), "float32"), np.ones((4, 3), "float32")


def test_a_plan_for_missing_devices_is_planned_anew_and_says_so(far, cluster):
    """Names are kept, what moved is recorded, and an audit by the old plan names it."""
    net, plan = far
    with pytest.warns(UserWarning, match="not on this machine") as caught:
        placed = sn.place(net, plan.cluster, batch=4, time_limit=0.1)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for part, there in MOVED.items():
        assert f"{part} (gpu:3 -> {there}" in str(caught[0].message)
    here = sn.plan_of(placed)
    requested = {one.part: one.requested for one in here.fallbacks}
    assert requested == dict.fromkeys(MOVED, "gpu:3")
    for i in range(3):
        assert here.device_of[f"b{i}"] == f"gpu:{i}"
        assert placed.get_layer(f"d{i}").kernel.value.device.endswith(f"CPU:{i + 1}")
    placed.compile("sgd", "mse")
    sn.audit(placed, None, BATCH_HERE).check()
    found = sn.audit(placed, plan, BATCH_HERE).findings
    assert {one.part for one in found if one.part} == set(MOVED)
    aspects = {one.aspect for one in found if one.part == "b3"}
    assert aspects >= {"forward", "backward", "variables"}


@pytest.mark.filterwarnings("always:not on this machine")
def test_the_command_audits_by_the_plan_of_the_file(far, tmp_path, cli):
    """`splitnet audit --plan --stand-ins` names every part that was moved."""
    far[1].save(tmp_path / "plan.json")
    (tmp_path / "far.py").write_text(
        "from tests.tf.test_moved import far\ndeclare = lambda: far.__wrapped__()[0]\n"
    )
    words = f"audit {tmp_path}/far.py:declare --json --stand-ins 2"
    said = cli(f"{words} --plan {tmp_path}/plan.json", 1)
    assert said.err.count("not on this machine: gpu:3.") == 1
    found = said.answer["findings"]
    assert all(any(f"'{part}'" in one for one in found) for part in MOVED)
