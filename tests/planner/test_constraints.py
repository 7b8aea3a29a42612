"""What requests, pins, near and apart make of a cluster, and what breaks them."""

from dataclasses import replace

import pytest

from splitnet import Cluster, DeclarationError, DeviceError, SplitnetError
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import violations
from splitnet.planner.evaluate import score
from splitnet.planner.problem import in_calls
from tests.planner.quick import plan_graph
from tests.zoo import altered, chain, two_towers, wide

TWO = "2*gpu cpu"
BOX = Cluster.of(*TWO.split())
CALLS = chain(names=("dense", "dense_1", "enc_0", "enc_1"))
"""A chain of calls with a part each, as a Keras model is read."""
APART = altered(two_towers(), "parts", "tell", apart=("see",))
AT_HOME = {"see": "cpu:0", "tell": "cpu:0"}
ON_WORKER = dict.fromkeys(AT_HOME, "worker:0/cpu:0")
OTHER_GPU = "gpu:5 is not available; another gpu is used"
NEXT_CPU = "gpu:9 is not available; cpu is next in the list"
NEXT_GPU = "gpu:0 is full; gpu:1 is next in the list"
RULED_OUT = "gpu:0 is full or ruled out by near= or apart=; cpu:0 is next in the list"


def wanting(graph, **on):
    for name, devices in on.items():
        graph = altered(graph, "parts", name, on=tuple(devices.split()))
    return graph


@pytest.mark.parametrize(
    ("graph", "box", "expected", "reason"),
    [
        (wanting(two_towers(), tell="gpu:5"), TWO, {"tell": "gpu:1"}, OTHER_GPU),
        (wanting(chain(1), c0="gpu:9 cpu"), TWO, {"c0": "cpu:0"}, NEXT_CPU),
        (wanting(two_towers(), tell="gpu:0 gpu:1"), TWO, {"tell": "gpu:1"}, NEXT_GPU),
        (wanting(APART, tell="gpu:0 cpu"), TWO, {"tell": "cpu:0"}, RULED_OUT),
        (two_towers(), "cpu", AT_HOME, "there is no gpu available"),
        (APART, "2*cpu", AT_HOME | {"tell": "cpu:1"}, "there is no gpu available"),
        (two_towers(), "cpu worker:0/cpu", ON_WORKER, "there is no gpu available"),
    ],
)
def test_what_is_not_there_is_replaced_and_recorded(graph, box, expected, reason):
    """By the list first, then by the kind, then by the CPU."""
    plan = plan_graph(graph, Cluster.of(*box.split(), memory="15 MiB"))
    assert {f.part: f.assigned for f in plan.fallbacks} == expected
    assert {part: plan.device_of[part] for part in expected} == expected
    for fallback in plan.fallbacks:
        assert fallback.reason == reason
        assert fallback.requested == graph.part[fallback.part].on[0]


@pytest.mark.parametrize(("memory", "together"), [("1 GiB", True), ("10 MiB", False)])
def test_what_requested_one_device_stays_together_if_it_fits(memory, together):
    """All that requested gpu:7 goes to one substitute, or to several where it must."""
    graph = wanting(wide(2), b0="gpu:7", b1="gpu:7")
    plan = plan_graph(graph, Cluster.of("2*gpu", "cpu", memory=memory))
    assert (plan.device_of["b0"] == plan.device_of["b1"]) == together
    assert plan.fallbacks[0].reason == "gpu:7 is not available; another gpu is used"


def test_missing_error_names_every_device():
    with pytest.raises(DeviceError, match=r"(?s)'see' requests gpu:4.*'tell' requests"):
        plan_graph(two_towers(on=("gpu:4", "gpu:5")), BOX, missing="error")
    plan = plan_graph(wanting(chain(1), c0="gpu:7 gpu:1"), BOX, missing="error")
    assert plan.device_of["c0"] == "gpu:1"
    assert plan.fallbacks[0].requested == "gpu:7"


_ALIKE = tuple(replace(call, layer="dense") for call in chain(3).calls)
ONE_LAYER = replace(chain(3), calls=_ALIKE)


@pytest.mark.parametrize(
    ("graph", "pins", "expected"),
    [
        (two_towers(), {"see": "gpu:1", "j*": "gpu:0"}, "see gpu:1 join gpu:0"),
        (two_towers(), {"see": "gpu:1", "tell": "gpu:0"}, "head gpu:1"),
        (altered(two_towers(), "parts", "join", near=("tell",)), None, "join gpu:1"),
        (chain(2), {"*": "gpu:1"}, "x cpu:0 c0 gpu:1 c1 gpu:1"),
        (chain(2), lambda part: {"c1": "gpu:1"}.get(part.name), "c1 gpu:1"),
        (chain(2), {"c*": "gpu:0", "c0": "gpu:1"}, "c0 gpu:1 c1 gpu:0"),
        (chain(2), {"c0": "gpu:1", "c*": "gpu:0"}, "c0 gpu:1 c1 gpu:0"),
        (chain(3), {"c[01]": "gpu:0", "*": "gpu:1"}, "c0 gpu:0 c1 gpu:0 c2 gpu:1"),
        (ONE_LAYER, {"dense": "gpu:1", "c1": "gpu:0"}, "c0 gpu:1 c1 gpu:0 c2 gpu:1"),
        (chain(4), {"c0 .. c2": "gpu:1", "c1": "gpu:0"}, "c0 gpu:1 c1 gpu:0 c2 gpu:1"),
        (chain(4), {"c0, c2": "gpu:1"}, "c0 gpu:1 c2 gpu:1"),
    ],
    ids=[
        *("a pin beats the declaration", "near follows a pin"),
        *("near beats a merge's default", "inputs stay", "a function"),
        *("a name beats a pattern", "in any order", "the first pattern wins"),
        *("a layer means its calls", "a range means its calls", "a list"),
    ],
)
def test_pins_say_where(graph, pins, expected):
    """A part gets the most specific pin that means it, or else the first pattern."""
    device_of = plan_graph(graph, BOX, pins=pins).device_of
    words = expected.split()
    for part, device in zip(words[::2], words[1::2]):
        assert device_of[part] == device


def test_two_layers_of_one_part_cannot_be_apart():
    """A branch is placed whole, and the message names the layers."""
    graph = chain(2)
    calls = tuple(replace(call, part="both") for call in graph.calls[1:])
    parts = (graph.parts[0], replace(graph.parts[1], name="both"))
    graph = replace(graph, calls=graph.calls[:1] + calls, parts=parts)
    assert plan_graph(graph, BOX, pins={"c1": "gpu:1"}).device_of["both"] == "gpu:1"
    with pytest.raises(DeclarationError, match="'both' is placed whole.*c0 and c1"):
        plan_graph(graph, BOX, pins={"c0": "gpu:0", "c1": "gpu:1"})


def test_contradictory_constraints_are_all_named():
    graph = altered(two_towers(), "parts", "tell", near=("see",))
    graph = altered(graph, "parts", "head", near=(), on=("cpu",), apart=("join",))
    with pytest.raises(DeviceError, match=r"(?s)cannot share a device.*are on cpu:0"):
        plan_graph(graph, BOX)


def test_a_call_without_gpu_kernel_stays_on_the_cpu():
    graph = altered(chain(4), "calls", "c1", cpu_only=True)
    plan = plan_graph(graph, BOX, regroup=True)
    wants_gpu = plan_graph(wanting(graph, c1="gpu:0"), BOX)
    assert (plan["c1"].reason, plan["c1"].requested) == ("no kernel", "auto")
    assert not plan.fallbacks
    assert (wants_gpu["c1"].device, wants_gpu["c1"].reason) == ("cpu:0", "no kernel")
    assert wants_gpu.fallbacks[0].reason == "Dense 'c1' has no GPU kernel"
    with pytest.raises(DeviceError, match="Add 'cpu' to the cluster"):
        plan_graph(graph, Cluster.of("gpu"))


def test_the_devices_of_a_plan_of_parts_are_pins_of_its_calls():
    """As the plan itself, or its table of parts: what only their calls begin with."""
    plan = plan_graph(CALLS, BOX, pins={"dense*": "gpu:0", "*": "gpu:1"}, regroup=True)
    assert len(in_calls(plan.graph).parts) == len(CALLS.parts) > len(plan.graph.parts)
    declared = tuple(replace(part, where="net.py:1") for part in plan.graph.parts)
    whole = replace(plan.graph, parts=declared)
    assert in_calls(whole) == whole
    alone = score(CALLS, BOX, {"*": "gpu:0"}, regroup=True).value
    turns = {"dense": "gpu:0", "enc_0": "gpu:0", "*": "gpu:1"}
    for one in (plan, plan_graph(CALLS, BOX, pins=turns, regroup=True)):
        assert with_verdict(one).verdict.single_device_value == pytest.approx(alone)
    assert list(plan.device_of) == ["x", "dense .. dense_1", "enc"]
    assert plan["enc_0"].device == "gpu:1"
    for pins in (plan, plan.device_of):
        again = plan_graph(CALLS, BOX, pins=pins, regroup=True)
        assert again.device_of == plan.device_of
        scored = score(CALLS, BOX, pins, regroup=True)
        assert (scored.device_of, scored.value) == (plan.device_of, plan.value)


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"sea": "gpu:0"}, "'sea' matches no part.*mean 'see'"),
        ({"SEE": "gpu:0"}, "'SEE' matches no part.*mean 'see'"),
        ({"image": "gpu:0"}, "inputs are fed from the host"),
        ({"see": "tpu", "*": 3}, "pin 'see': there is no device 'tpu'.*\n.*pin '\\*'"),
        (["see"], r"pins= must be Mapping.*\['see'\]"),
        ({"tell .. see": "gpu:1"}, "range 'tell .. see' holds no call: no path joins"),
        ({"tell .. sea": "gpu:1"}, "'tell .. sea' holds .*: there is no call 'sea'"),
        (plan_graph(CALLS, BOX), "'dense' matches no part.*'dense_1' matches no part"),
    ],
)
def test_pins_that_cannot_be_kept_are_explained(pins, message):
    with pytest.raises(SplitnetError, match=f"(?s){message}"):
        plan_graph(two_towers(), BOX, pins=pins)


def test_a_placement_that_breaks_constraints_is_told():
    graph = altered(two_towers(), "parts", "tell", near=("see",))
    graph = altered(graph, "parts", "join", apart=("see",))
    graph = altered(graph, "calls", "tell", cpu_only=True)
    there = {"see": "gpu:0", "tell": "gpu:1", "join": "gpu:0", "head": "gpu:0"}
    lines = violations(score(graph, Cluster.of("2*gpu", "cpu", memory="10 MiB"), there))
    assert len(lines) == 4
    for said in (
        "near= binds parts that cannot share a device: 'see' on gpu:0; 'tell' on gpu:1",
        "'join' must be apart from 'see', but both are on gpu:0",
        "'tell' has no GPU kernel, but is on gpu:1",
        "gpu:0 needs ",
    ):
        assert any(said in line for line in lines), said
