"""Measured timelines: which part ran when, on which device."""

import numpy as np
import pytest
from keras import layers

import splitnet as sn
from tests.tf.check import emitted, numbers
from tests.tf.zoo import two_branches


@pytest.fixture(scope="module")
def model(cluster):
    """Two branches that share a layer, and a head; in micro-batches."""
    shared = layers.Dense(4)
    net = two_branches(shared, shared).source
    return emitted(net, cluster, {"microbatches": 4}, ("adam", "mse"), batch=16)


DATA = numbers(6, count=16), numbers(2, count=16)


def test_profile_step_tells_when_each_part_ran(model):
    """Each micro-batch of each part, forward and backward, one after the other."""
    before = [np.copy(weight) for weight in model.get_weights()]
    plan = sn.plan_of(model)
    timeline = sn.profile_step(model, DATA)
    assert timeline.devices == ("gpu:0", "gpu:1", "gpu:2", "cpu:0")
    assert {task.part for task in timeline.tasks} >= {"left", "right", "both", "head"}
    assert all(plan.device_of[task.part] == task.device for task in timeline.tasks)
    assert min(task.start for task in timeline.tasks) == 0
    left = [task for task in timeline.tasks if task.part == "left"]
    ahead = [task for task in left if task.phase == "forward"]
    back = [task for task in left if task.phase == "backward"]
    assert [task.microbatch for task in ahead] == [0, 1, 2, 3]
    assert len(back) == 4
    assert ahead[0].start < back[0].start
    for device in timeline.devices:
        mine = [task for task in timeline.tasks if task.device == device]
        assert all(a.stop <= b.start for a, b in zip(mine, mine[1:]))
    assert all(map(np.array_equal, before, model.get_weights()))


def test_profile_step_refuses_what_cannot_be_measured(model):
    with pytest.raises(sn.PlanFileError, match="has no plan"):
        sn.profile_step(sn.unplace(model), DATA)
    with pytest.raises(sn.AuditError, match="compile it, and give a batch with tar"):
        sn.profile_step(model, DATA[:1])


def test_a_gpus_kernels_count_and_not_their_launches():
    """A profile made by hand: the kernel names its op in a statistic of its own."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    from splitnet.tf.profiling.profile_step import _events

    space, op = xplane_pb2.XSpace(), "m/sn_k1_/d/MatMul:MatMul"
    for plane, name, start in (("host:CPU", op, 0), ("device:GPU:0", "sgemm", 7)):
        made = space.planes.add(name=f"/{plane}")
        made.event_metadata[1].name = name
        made.stat_metadata[5].name = "tf_op"
        event = made.lines.add(timestamp_ns=1).events.add(metadata_id=1)
        event.offset_ps, event.duration_ps = start * 10**6, 2 * 10**6
    event.stats.add(metadata_id=5, str_value=op)
    found = list(_events([space.SerializeToString()]))
    name = op.partition(":")[0]
    assert [one[:2] for one in found] == [(name, False), (name, True)]
    assert [round((stop - start) * 1e6) for *_, (start, stop) in found] == [2, 2]
