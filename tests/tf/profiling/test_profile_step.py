"""Measured timelines: which part ran when, on which device."""

import numpy as np
import pytest
from keras import layers

import splitnet as sn


@pytest.fixture(scope="module")
def model(cluster):
    net = sn.Net("profiled")
    one, two = net.input("one", (8,)), net.input("two", (8,))
    shared = layers.Dense(4)
    left = net.branch("left", one, shared, on="gpu:0")
    right = net.branch("right", two, shared, on="gpu:1")
    joined = net.merge("joined", [left, right], layers.Concatenate())
    net.output(net.branch("head", joined, layers.Dense(2), on="gpu:1"))
    made = sn.emit(net, sn.plan(net, cluster, batch=16, time_limit=0.1))
    made.compile("adam", "mse")
    return made


def batch():
    x = np.ones((16, 8), "float32")
    return [x, x], np.ones((16, 2), "float32")


def test_profile_step_tells_micro_batches_apart(cluster):
    """Four micro-batches of two stages are 16 tasks, each stage's in their order."""
    net = sn.Net("chain")
    first = net.branch("first", net.input("x", (8,)), layers.Dense(8), on="gpu:0")
    net.output(net.branch("last", first, layers.Dense(2), on="gpu:1"))
    plan = sn.plan(net, cluster, batch=16, time_limit=0.1)
    model = sn.emit(net, plan, microbatches=4)
    model.compile("sgd", "mse")
    x, y = np.ones((16, 8), "float32"), np.ones((16, 2), "float32")

    tasks = [t for t in sn.profile_step(model, (x, y)).tasks if t.phase != "update"]

    assert len(tasks) == 16
    forward = [t for t in tasks if (t.part, t.phase) == ("first", "forward")]
    assert [t.microbatch for t in forward] == [0, 1, 2, 3]


def test_profile_step_tells_when_each_part_ran(model):
    before = [np.copy(weight) for weight in model.get_weights()]
    plan = sn.plan_of(model)

    timeline = sn.profile_step(model, batch())

    assert timeline.devices == ("gpu:0", "gpu:1", "gpu:2", "cpu:0")
    assert {task.part for task in timeline.tasks} >= {"left", "right", "joined", "head"}
    assert all(plan.device_of[task.part] == task.device for task in timeline.tasks)
    assert min(task.start for task in timeline.tasks) == 0
    first = {
        phase: min(
            t.start for t in timeline.tasks if (t.part, t.phase) == ("left", phase)
        )
        for phase in ("forward", "backward")
    }
    assert first["forward"] < first["backward"]
    for device in timeline.devices:
        mine = [task for task in timeline.tasks if task.device == device]
        assert all(a.stop <= b.start for a, b in zip(mine, mine[1:]))
    after = model.get_weights()
    assert all(map(np.array_equal, before, after))


def test_profile_step_refuses_what_cannot_be_measured(model):
    plain = sn.unplace(model)
    inputs, targets = batch()

    with pytest.raises(sn.PlanFileError, match="has no plan"):
        sn.profile_step(plain, (inputs, targets))
    with pytest.raises(
        sn.AuditError, match="compile it, and give a batch with targets"
    ):
        sn.profile_step(model, (inputs,))


def test_a_gpus_kernels_count_and_not_their_launches():
    """A profile made by hand: the kernel names its op in a statistic of its own."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from splitnet.tf.profiling.profile_step import _events

    space = xplane_pb2.XSpace()
    host, card = (
        space.planes.add(name="/host:CPU"),
        space.planes.add(name="/device:GPU:0"),
    )
    for plane, name, start in (
        (host, "m/sn_k1_/d/MatMul:MatMul", 0),
        (card, "sgemm", 7),
    ):
        plane.event_metadata[1].name = name
        event = plane.lines.add(timestamp_ns=1).events.add(metadata_id=1)
        event.offset_ps, event.duration_ps = start * 10**6, 2 * 10**6
    card.stat_metadata[5].name = "tf_op"
    card.lines[0].events[0].stats.add(
        metadata_id=5, str_value="m/sn_k1_/d/MatMul:MatMul"
    )

    found = list(_events([space.SerializeToString()]))

    assert [(one.name, one.kind, one.on_gpu) for one in found] == [
        ("m/sn_k1_/d/MatMul", "MatMul", False),
        ("m/sn_k1_/d/MatMul", "MatMul", True),
    ]
    assert [round((one.stop - one.start) * 1e6) for one in found] == [2, 2]
