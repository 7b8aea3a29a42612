from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError, SplitnetError
from splitnet.planner.constraints import violations
from splitnet.planner.evaluate import score
from tests.planner.quick import find_plan
from tests.zoo import chain, shared, two_towers, wide

BOX = Cluster.of("2*gpu", "cpu")


def with_part(graph, name, **changes):
    """The graph with one part changed."""
    parts = tuple(replace(p, **changes) if p.name == name else p for p in graph.parts)
    return replace(graph, parts=parts)


def wanting(graph, **on):
    """The graph whose parts request other devices."""
    for name, devices in on.items():
        graph = with_part(graph, name, on=tuple(devices.split()))
    return graph


@pytest.mark.parametrize(
    ("graph", "cluster", "expected", "reason"),
    [
        (
            two_towers(on=("gpu:0", "gpu:5")),
            BOX,
            {"tell": "gpu:1"},
            "gpu:5 is not available; the least loaded gpu is used",
        ),
        (
            wanting(chain(1), c0="gpu:9 cpu"),
            BOX,
            {"c0": "cpu:0"},
            "gpu:9 is not available; cpu is next in the list",
        ),
        (
            two_towers(),
            Cluster.of("cpu"),
            {"see": "cpu:0", "tell": "cpu:0"},
            "there is no gpu available",
        ),
        (
            wanting(two_towers(on=("gpu:0", "gpu:0")), tell="gpu:0 gpu:1"),
            Cluster.of("2*gpu", "cpu", memory="15 MiB"),
            {"tell": "gpu:1"},
            "gpu:0 is full; gpu:1 is next in the list",
        ),
    ],
)
def test_what_is_not_there_is_replaced_and_recorded(graph, cluster, expected, reason):
    """By the list first, then by the kind, then by the CPU."""
    plan = find_plan(graph, cluster)

    assert {f.part: f.assigned for f in plan.fallbacks} == expected
    assert {part: plan.device_of[part] for part in expected} == expected
    for fallback in plan.fallbacks:
        assert fallback.reason == reason
        assert fallback.requested == graph.part[fallback.part].on[0]


@pytest.mark.parametrize(("memory", "together"), [("1 GiB", True), ("10 MiB", False)])
def test_what_requested_one_device_stays_together_if_it_fits(memory, together):
    """All that requested gpu:7 goes to one substitute, or to several where it must."""
    graph = wanting(wide(2), b0="gpu:7", b1="gpu:7")
    plan = find_plan(graph, Cluster.of("2*gpu", "cpu", memory=memory))

    assert (plan.device_of["b0"] == plan.device_of["b1"]) == together
    used = "the least loaded gpu" if together else "a gpu with enough memory"
    assert plan.fallbacks[0].reason == f"gpu:7 is not available; {used} is used"


def test_missing_error_names_every_device():
    """missing="error" refuses, with every part that requests a missing device."""
    with pytest.raises(DeviceError, match=r"(?s)'see' requests gpu:4.*'tell' requests"):
        find_plan(two_towers(on=("gpu:4", "gpu:5")), BOX, missing="error")


ONE_LAYER = replace(
    chain(3), calls=tuple(replace(call, layer="dense") for call in chain(3).calls)
)


@pytest.mark.parametrize(
    ("graph", "pins", "expected"),
    [
        (two_towers(), {"see": "gpu:1", "j*": "gpu:0"}, "see gpu:1 join gpu:0"),
        (two_towers(), {"see": "gpu:1", "tell": "gpu:0"}, "head gpu:1"),
        (with_part(two_towers(), "join", near=("tell",)), None, "join gpu:1"),
        (chain(2), {"*": "gpu:1"}, "x cpu:0 c0 gpu:1 c1 gpu:1"),
        (chain(2), lambda part: {"c1": "gpu:1"}.get(part.name), "c1 gpu:1"),
        (chain(2), {"c*": "gpu:0", "c0": "gpu:1"}, "c0 gpu:1 c1 gpu:0"),
        (chain(2), {"c0": "gpu:1", "c*": "gpu:0"}, "c0 gpu:1 c1 gpu:0"),
        (chain(3), {"c[01]": "gpu:0", "*": "gpu:1"}, "c0 gpu:0 c1 gpu:0 c2 gpu:1"),
        (ONE_LAYER, {"dense": "gpu:1", "c1": "gpu:0"}, "c0 gpu:1 c1 gpu:0 c2 gpu:1"),
        (
            chain(4),
            {"c0 .. c2": "gpu:1", "c1": "gpu:0", "*": "cpu"},
            "c0 gpu:1 c1 gpu:0 c2 gpu:1 c3 cpu:0",
        ),
    ],
    ids=[
        *("a pin beats the declaration", "near follows a pin"),
        *("near beats a merge's default", "inputs stay", "a function"),
        *("a name beats a pattern", "in any order", "the first pattern wins"),
        *("a layer means its calls", "a range means its calls"),
    ],
)
def test_pins_say_where(graph, pins, expected):
    """A part gets the most specific pin that means it, or else the first pattern."""
    device_of = find_plan(graph, BOX, pins=pins).device_of
    words = expected.split()

    for part, device in zip(words[::2], words[1::2]):
        assert device_of[part] == device


def test_two_layers_of_one_part_cannot_be_apart():
    """A branch is placed whole, and the message names the layers."""
    graph = chain(2)
    calls = tuple(replace(call, part="c0") for call in graph.calls[1:])
    graph = replace(graph, calls=graph.calls[:1] + calls, parts=graph.parts[:2])
    pins = {"c1": "gpu:1"}

    assert find_plan(graph, BOX, pins=pins).device_of["c0"] == "gpu:1"
    layers = tuple(replace(c, name=f"c0/{c.name}") for c in calls)
    tensors = tuple(
        replace(t, source=t.source.replace("c", "c0/c"), target=f"c0/{t.target}")
        for t in graph.tensors
    )
    graph = replace(
        graph,
        calls=graph.calls[:1] + layers,
        tensors=tensors,
        outputs=("c0/c1",),
    )
    with pytest.raises(DeclarationError, match="'c0' is placed whole.*c0/c0 and c0/c1"):
        find_plan(graph, BOX, pins={"c0/c0": "gpu:0", "c0/c1": "gpu:1"})


def test_contradictory_constraints_are_all_named():
    """near= between two pins, and apart= on one device, are reported together."""
    graph = with_part(two_towers(), "tell", near=("see",))
    graph = with_part(graph, "head", near=(), on=("cpu",), apart=("join",))
    with pytest.raises(DeviceError, match=r"(?s)cannot share a device.*are on cpu:0"):
        find_plan(graph, BOX)


def test_a_call_without_gpu_kernel_stays_on_the_cpu():
    """No kernel, no choice; and it is recorded if a GPU was requested."""
    graph = chain(2)
    calls = tuple(replace(c, cpu_only=c.name == "c0") for c in graph.calls)
    graph = with_part(replace(graph, calls=calls), "c0", on=("gpu:0",))
    plan = find_plan(graph, BOX)

    assert (plan["c0"].device, plan["c0"].reason) == ("cpu:0", "no kernel")
    assert plan.fallbacks[0].reason == "Dense 'c0' has no GPU kernel"


def test_a_call_without_gpu_kernel_needs_a_cpu():
    """On a machine of GPUs alone the message says what is missing."""
    graph = chain(1)
    calls = tuple(replace(c, cpu_only=c.name == "c0") for c in graph.calls)
    with pytest.raises(DeviceError, match="Add 'cpu' to the cluster"):
        find_plan(replace(graph, calls=calls), Cluster.of("gpu"))


def test_missing_error_accepts_a_list_with_one_available_device():
    """Whoever lists an alternative has said what to do; it is still recorded."""
    graph = with_part(chain(1), "c0", on=("gpu:7", "gpu:1"))
    plan = find_plan(graph, BOX, missing="error")

    assert plan.device_of["c0"] == "gpu:1"
    assert plan.fallbacks[0].requested == "gpu:7"


def test_parts_that_share_weights_may_be_apart():
    """Sharing weights alone binds no declared branches."""
    plan = find_plan(shared(), BOX)

    assert plan.device_of["left"] != plan.device_of["right"]


def test_a_plan_of_another_model_is_refused_with_suggestions():
    """Names that are not here are listed, with those that are near."""
    with pytest.raises(DeclarationError, match="matches no part.*did you mean"):
        find_plan(chain(5), BOX, pins=find_plan(chain(8), BOX))


CALLS = chain(4)
"""A chain of calls with a part each, as a Keras model is read."""


def test_the_devices_of_a_plan_of_parts_are_pins_of_its_calls() -> None:
    """As `device_of` of a plan, the plan itself, or its table by names."""
    plan = find_plan(CALLS, BOX, pins={"c[01]": "gpu:0", "*": "gpu:1"}, regroup=True)
    assert list(plan.device_of) == ["x", "c0 .. c1", "c2 .. c3"]
    assert plan.device_of["c2"] == plan["c2"].device == "gpu:1"

    for pins in (plan, plan.device_of, dict(plan.device_of)):
        again = find_plan(CALLS, BOX, pins=pins, regroup=True)
        assert again.device_of == plan.device_of
        scored = score(CALLS, BOX, pins, regroup=True)
        assert scored.device_of == plan.device_of
        assert scored.value == plan.value


def test_a_call_without_a_kernel_says_so() -> None:
    """Not that somebody preferred the CPU."""
    calls = tuple(replace(c, cpu_only=c.name == "c1") for c in CALLS.calls)
    plan = find_plan(replace(CALLS, calls=calls), BOX, regroup=True)

    assert plan["c1"].reason == "no kernel"
    assert plan["c1"].requested == "auto"


@pytest.mark.parametrize(
    ("pins", "message"),
    [
        ({"sea": "gpu:0"}, "'sea' matches no part.*mean 'see'"),
        ({"SEE": "gpu:0"}, "'SEE' matches no part.*mean 'see'"),
        ({"image": "gpu:0"}, "inputs are fed from the host"),
        ({"see": "tpu"}, "pin 'see': there is no device 'tpu'"),
        (["see"], r"table of patterns.*\['see'\]"),
        ({"tell .. see": "gpu:1"}, "range 'tell .. see' holds no call"),
    ],
)
def test_pins_that_cannot_be_kept_are_explained(pins, message) -> None:
    """What was pinned, why it cannot be, and what may have been meant."""
    with pytest.raises(SplitnetError, match=message):
        find_plan(two_towers(), BOX, pins=pins)


def test_a_placement_that_breaks_constraints_is_told() -> None:
    """Near, apart, a missing kernel and too little memory: a line for each."""
    graph = with_part(two_towers(), "tell", near=("see",))
    graph = with_part(graph, "join", apart=("see",))
    calls = tuple(replace(c, cpu_only=c.name == "tell") for c in graph.calls)
    box = Cluster.of("2*gpu", "cpu", memory="10 MiB")
    there = {"see": "gpu:0", "tell": "gpu:1", "join": "gpu:0", "head": "gpu:0"}

    lines = violations(score(replace(graph, calls=calls), box, there))

    assert len(lines) == 4
    for said in (
        "near= binds parts that cannot share a device: 'see' on gpu:0; 'tell' on gpu:1",
        "'join' must be apart from 'see', but both are on gpu:0",
        "'tell' has no GPU kernel, but is on gpu:1",
        "gpu:0 needs ",
    ):
        assert any(said in line for line in lines), said
