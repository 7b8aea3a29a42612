import pytest

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.cost import Measured
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Part
from splitnet.planner.evaluate import score
from splitnet.planner.planner import plan_graph
from splitnet.simulator.old_simulate import simulate, simulate_step
from tests.zoo import MIB, call, chain, diamond, graph_of, random_dag, shared, source

BOX = Cluster.of("2*gpu", "cpu", link="1 GB/s", latency=0)

SHARED = {
    "a": "cpu:0",
    "b": "cpu:0",
    "left": "gpu:0",
    "right": "gpu:1",
    "join": "cpu:0",
}


def phases(timeline, name):
    """The phases that a call went through, in order."""
    return [task.phase for task in timeline.tasks if task.call == name]


def test_simulate_runs_forward_then_backward_then_update():
    """A call with weights has all three phases, an input only the first."""
    device_of = {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0", "c2": "gpu:0"}
    timeline = simulate_step(chain(), BOX, device_of)

    assert phases(timeline, "c1") == ["forward", "backward", "update"]
    assert phases(timeline, "x") == ["forward"]


def test_simulate_of_inference_has_forward_only():
    """Without training nothing runs backward and nothing is updated."""
    device_of = {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0", "c2": "gpu:0"}
    timeline = simulate_step(chain(), BOX, device_of, training=False)

    assert {task.phase for task in timeline.tasks} == {"forward"}


def test_simulate_waits_for_inputs_and_devices():
    """No task starts before its inputs arrive; no device does two things at once."""
    graph = diamond()
    device_of = {"x": "cpu:0", "top": "gpu:0", "left": "gpu:0", "right": "gpu:1"}
    timeline = simulate_step(graph, BOX, device_of | {"join": "cpu:0"})

    stop = {(t.call, t.phase): t.stop for t in timeline.tasks}
    for task in timeline.tasks:
        for tensor in graph.tensors:
            if task.phase == "forward" and tensor.target == task.call:
                assert task.start >= stop[tensor.source, "forward"]
    for device in timeline.devices:
        busy = [t for t in timeline.tasks if t.device == device and t.stop > t.start]
        assert all(a.stop <= b.start for a, b in zip(busy, busy[1:]))


def test_simulate_sends_once_per_device():
    """Two readers on one device share one copy, and one gradient comes back."""
    calls = [source("x"), call("a", weights=("w",))]
    calls += [call(n, weights=(f"{n}/w",)) for n in ("b", "c")]
    graph = graph_of("fan", calls, [("x", "a"), ("a", "b"), ("a", "c")])
    device_of = {"x": "cpu:0", "a": "gpu:0", "b": "gpu:1", "c": "gpu:1"}
    copies = simulate_step(graph, BOX, device_of).copies

    assert [(c.kind, c.source, c.target) for c in copies] == [
        ("activation", "x", "a"),
        ("activation", "a", "b"),
        ("gradient", "b", "a"),
    ]


def workers(share: float = 0.0) -> Cluster:
    """Two processors of workers, and a road that keeps both busy for a share of it."""
    names = ("cpu:0", "worker:0/cpu:0", "worker:1/cpu:0")
    road = Link("*", "*", 1e9, 0.0, share)
    return Cluster(tuple(Device.of(name) for name in names), (road,))


def test_simulate_lets_a_worker_follow_what_it_has_just_computed():
    """Where a GPU takes calls in turn, a worker ends one chain before the other."""
    calls = [source("x"), *(call(n) for n in ("a1", "b1", "a2", "b2"))]
    wires = [("x", "a1"), ("x", "b1"), ("a1", "a2"), ("b1", "b2")]
    graph = graph_of("chains", calls, wires)
    order = {}
    for box, home in ((BOX, "gpu:0"), (workers(), "worker:0/cpu:0")):
        device_of = dict.fromkeys(("x", "a1", "b1", "a2", "b2"), home)
        timeline = simulate_step(graph, box, device_of, training=False)
        order[home] = [task.call for task in timeline.tasks]

    assert order["gpu:0"] == ["x", "a1", "b1", "a2", "b2"]
    assert order["worker:0/cpu:0"] == ["x", "b1", "b2", "a1", "a2"]


def test_simulate_sends_a_gradient_before_those_of_the_weights():
    """On a worker it leaves when half of the pass of a dense call is done."""
    calls = [source("x"), call("a", weights=("a/w",)), call("b", weights=("b/w",))]
    graph = graph_of("pair", calls, [("x", "a"), ("a", "b")])
    device_of = {"x": "worker:0/cpu:0", "a": "worker:0/cpu:0", "b": "worker:1/cpu:0"}
    timeline = simulate_step(graph, workers(), device_of)
    [back] = [t for t in timeline.tasks if (t.call, t.phase) == ("b", "backward")]
    [gradient] = [c for c in timeline.copies if c.kind == "gradient"]

    assert gradient.start == pytest.approx((back.start + back.stop) / 2)


def test_simulate_sends_gradients_of_a_workers_readers_one_by_one():
    """TensorFlow adds them up where they arrive."""
    calls = [source("x"), call("a", weights=("w",))]
    calls += [call(n, weights=(f"{n}/w",)) for n in ("b", "c")]
    graph = graph_of("fan", calls, [("x", "a"), ("a", "b"), ("a", "c")])
    one, other = "worker:0/cpu:0", "worker:1/cpu:0"
    device_of = {"x": one, "a": one, "b": other, "c": other}
    timeline = simulate_step(graph, workers(), device_of)
    start = {
        task.call: task.start for task in timeline.tasks if task.phase == "backward"
    }
    arrived = [copy.stop for copy in timeline.copies if copy.kind == "gradient"]

    assert len(arrived) == 2
    assert start["a"] == max(arrived)


def test_simulate_slows_what_arrives_at_a_processor_that_computes():
    """The copy and the call share it for as long as the copy needs it."""
    calls = [source("x"), call("a", flops=1e8), call("b", flops=1e9), call("c")]
    graph = graph_of("late", calls, [("x", "a"), ("x", "b"), ("a", "c")])
    one, other = "worker:0/cpu:0", "worker:1/cpu:0"
    device_of = {"x": "cpu:0", "a": one, "b": other, "c": other}
    seconds = {}
    for share in (0.0, 0.5):
        copies = simulate_step(graph, workers(share), device_of, training=False).copies
        [last] = [copy for copy in copies if copy.source == "a"]
        seconds[share] = last.stop - last.start

    copy = MIB / 1e9
    assert seconds[0.0] == pytest.approx(copy)
    assert seconds[0.5] == pytest.approx(1.5 * copy)


def test_simulate_begins_when_each_device_may():
    """What was measured to come before the first call of a step does so."""
    device_of = {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0", "c2": "gpu:1"}
    late = Measured(start_seconds={"gpu": 0.25, "gpu:1": 9.0})
    plain = simulate_step(chain(), BOX, device_of, Measured(), training=False)
    timeline = simulate_step(chain(), BOX, device_of, late, training=False)
    start = {task.call: task.start for task in timeline.tasks}

    assert max(task.stop for task in plain.tasks) < 0.25
    assert (start["x"], start["c0"], start["c2"]) == (0.0, 0.25, 9.0)


def test_updates_need_room_for_their_steps():
    """An update makes a temporary of its weight's size for each slot, at least one."""
    device_of = {"x": "cpu:0", "c0": "gpu:0"}
    graph = chain(1, out=4)
    slots = {"sgd": 0, "lion": 1, "adam": 2}
    for optimizer, count in slots.items():
        plan = score(graph, BOX, device_of, optimizer=optimizer)
        assert plan.memory["gpu:0"].workspace == MIB * max(1, count)


def test_simulate_moves_a_shared_weight_and_its_gradient():
    """A weight is at home with its first user; the other device gets it and answers."""
    copies = simulate_step(shared(), BOX, SHARED).copies
    of_weights = [c for c in copies if "weights" in c.kind]

    assert [(c.kind, c.source_device, c.target_device) for c in of_weights] == [
        ("weights", "gpu:0", "gpu:1"),
        ("weights gradient", "gpu:1", "gpu:0"),
    ]


def test_simulate_updates_a_shared_weight_once_at_home():
    """The owner updates, after the other user's gradient has come."""
    timeline = simulate_step(shared(), BOX, SHARED)
    updates = [task for task in timeline.tasks if task.phase == "update"]
    last = max(c.stop for c in timeline.copies if c.kind == "weights gradient")

    assert [(task.call, task.device) for task in updates] == [("left", "gpu:0")]
    assert updates[0].start >= last


def test_simulate_sends_no_gradient_to_inputs_or_for_integers():
    """What is not differentiable, or needs no gradient, gets none."""
    graph = random_dag(1)
    device_of = {p.name: "gpu:0" for p in graph.parts} | {"x": "cpu:0"}
    copies = simulate_step(graph, BOX, device_of).copies

    assert copies
    assert all(copy.kind == "activation" for copy in copies)


def test_simulate_holds_the_peak_within_the_memory_estimate():
    """At no time does a device use more than `plan.memory` says."""
    for seed in range(20):
        plan = plan_graph(random_dag(seed), BOX, time_limit=0.1)
        for device, peak in plan.timeline.peak_bytes.items():
            assert 0 <= peak <= plan.memory[device].total


def test_simulate_ends_with_what_stays():
    """At the end weights, slots and gradients are left, and nothing else."""
    device_of = {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0", "c2": "gpu:0"}
    timeline = simulate_step(chain(), BOX, device_of)

    assert timeline.memory["gpu:0"][-1][1] == 0
    assert timeline.memory["gpu:0"][-2][1] >= 3 * 4 * MIB


def test_simulate_names_parts_without_a_device():
    """A placement that forgets a part, or invents a device, is refused by name."""
    with pytest.raises(PlanFileError, match=r"part 'c2' is on 'no device'"):
        simulate_step(chain(), BOX, {"x": "cpu:0", "c0": "gpu:0", "c1": "gpu:0"})


def test_simulate_marks_explicit_backward_calls():
    """A graph with backward calls of its own gets no second backward pass."""
    calls = [source("x"), call("f", weights=("w",)), call("b", "f", backward=True)]
    graph = graph_of(
        "explicit",
        calls,
        [("x", "f"), ("f", "b")],
        parts=[Part("x", "input"), Part("f")],
    )
    timeline = simulate_step(graph, BOX, {"x": "cpu:0", "f": "gpu:0"})

    assert [(t.call, t.phase) for t in timeline.tasks] == [
        ("x", "forward"),
        ("f", "forward"),
        ("b", "backward"),
    ]


def test_simulate_of_a_plan_is_its_timeline():
    """Playing a plan again gives the very same times."""
    plan = plan_graph(diamond(), BOX)

    assert simulate(plan) == plan.timeline
