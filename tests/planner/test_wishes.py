import warnings
from dataclasses import replace

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.errors import DeclarationError, DeviceError, InfeasibleError
from splitnet.planner.planner import plan_graph
from tests.zoo import chain, two_towers, wide

BOX = Cluster.of("2*gpu", "cpu")


def with_part(graph, name, **changes):
    """The graph with one part changed."""
    parts = tuple(replace(p, **changes) if p.name == name else p for p in graph.parts)
    return replace(graph, parts=parts)


def test_fallback_takes_the_least_loaded_of_the_kind():
    """gpu:5 is not here; gpu:1 has nothing to do, so it takes the branch."""
    plan = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX)

    assert plan.device_of["tell"] == "gpu:1"
    (receipt,) = plan.fallbacks
    assert (receipt.part, receipt.requested, receipt.assigned) == (
        "tell",
        "gpu:5",
        "gpu:1",
    )
    assert receipt.reason == "gpu:5 is not here; the least loaded gpu takes it"


def test_fallback_keeps_together_what_asked_for_one_device():
    """All that asked for gpu:7 goes to one heir, as its author meant it."""
    graph = wide(3)
    for name in ("b0", "b1"):
        graph = with_part(graph, name, on=("gpu:7",))
    plan = plan_graph(graph, BOX)

    assert plan.device_of["b0"] == plan.device_of["b1"]


def test_fallback_parts_what_no_heir_has_room_for():
    """Where one heir cannot hold all that asked for one device, it is spread."""
    graph = wide(2)
    for name in ("b0", "b1"):
        graph = with_part(graph, name, on=("gpu:7",))
    plan = plan_graph(graph, Cluster.of("2*gpu", "cpu", memory="10 MiB"))

    assert plan.device_of["b0"] != plan.device_of["b1"]
    assert (
        plan.fallbacks[0].reason
        == "gpu:7 is not here; one with room of kind gpu takes it"
    )


def test_fallback_goes_down_the_list_first():
    """The next name of a preference list is taken before the kind is looked at."""
    plan = plan_graph(with_part(chain(1), "c0", on=("gpu:9", "cpu")), BOX)

    assert plan.device_of["c0"] == "cpu:0"
    assert plan.fallbacks[0].reason == "gpu:9 is not here; cpu is next in the list"


def test_fallback_ends_at_the_cpu():
    """Without any GPU the CPU takes it, with a receipt."""
    plan = plan_graph(two_towers(), Cluster.of("cpu"))

    assert set(plan.device_of.values()) == {"cpu:0"}
    assert [f.reason for f in plan.fallbacks] == ["there is no gpu here"] * 2


def test_fallback_moves_on_when_the_first_choice_is_full():
    """A list of devices is also an order in which to look for room."""
    graph = with_part(two_towers(on=("gpu:0", "gpu:0")), "tell", on=("gpu:0", "gpu:1"))
    plan = plan_graph(graph, Cluster.of("2*gpu", "cpu", memory="15 MiB"))

    assert plan.device_of["tell"] == "gpu:1"
    assert plan.fallbacks[0].reason == (
        "gpu:0 has no room left; gpu:1 is further down the list"
    )


def test_missing_error_names_every_device():
    """missing="error" refuses, with every part that asks for what is not here."""
    with pytest.raises(DeviceError, match=r"(?s)'see' asks for gpu:4.*'tell' asks"):
        plan_graph(two_towers(on=("gpu:4", "gpu:5")), BOX, missing="error")


def test_missing_warn_warns_once():
    """missing="warn" gives one warning for all, and the same plan."""
    with pytest.warns(UserWarning, match=r"tell \(gpu:5\)") as caught:
        plan = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX, missing="warn")

    assert len(caught) == 1
    assert plan.device_of["tell"] == "gpu:1"


def test_missing_fallback_is_silent_but_for_the_receipt():
    """The default warns nobody; the receipt is in the plan."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = plan_graph(two_towers(on=("gpu:0", "gpu:5")), BOX)

    assert len(plan.fallbacks) == 1


def test_pins_beat_the_declaration():
    """A pin of the caller wins over on= of the declaration."""
    plan = plan_graph(two_towers(), BOX, pins={"see": "gpu:1", "j*": "gpu:0"})

    assert plan.device_of["see"] == "gpu:1"
    assert plan.device_of["join"] == "gpu:0"


def test_pins_do_not_touch_inputs():
    """A pattern for everything leaves inputs on the host."""
    plan = plan_graph(chain(2), BOX, pins={"*": "gpu:1"})

    assert plan.device_of == {"x": "cpu:0", "c0": "gpu:1", "c1": "gpu:1"}


def test_pins_may_be_a_function():
    """A function of the part pins what it returns something for."""
    plan = plan_graph(
        chain(2), BOX, pins=lambda part: "gpu:1" if part.name == "c1" else None
    )

    assert plan.device_of["c1"] == "gpu:1"
    assert plan["c1"].reason == "pin"


def test_pins_that_match_twice_are_refused():
    """Which of two patterns should win is not guessed."""
    with pytest.raises(DeclarationError, match=r"'c0' is matched by 'c\*' and 'c0'"):
        plan_graph(chain(2), BOX, pins={"c*": "gpu:0", "c0": "gpu:1"})


def test_pins_that_match_nothing_get_a_suggestion():
    """A misspelt name is answered with the nearest."""
    with pytest.raises(DeclarationError, match="'sea' matches no part.*mean 'see'"):
        plan_graph(two_towers(), BOX, pins={"sea": "gpu:0"})


def test_pins_on_inputs_are_explained():
    """An input cannot be pinned, and the message says why."""
    with pytest.raises(DeclarationError, match="inputs are fed from the host"):
        plan_graph(two_towers(), BOX, pins={"image": "gpu:0"})


def test_pins_to_impossible_devices_are_named():
    """The pattern stands before what is wrong with its device."""
    with pytest.raises(DeviceError, match="pin 'c0': there is no device 'tpu'"):
        plan_graph(chain(1), BOX, pins={"c0": "tpu"})


def test_near_follows_a_pin():
    """What is near a pinned part goes where it is."""
    plan = plan_graph(two_towers(), BOX, pins={"see": "gpu:1", "tell": "gpu:0"})

    assert plan.device_of["head"] == "gpu:1"


def test_near_beats_a_merges_default_home():
    """A merge that is near a GPU branch leaves the CPU, its default only."""
    plan = plan_graph(with_part(two_towers(), "join", near=("tell",)), BOX)

    assert plan.device_of["join"] == "gpu:1"


def test_contradictory_wishes_are_all_named():
    """near= between two pins, and apart= on one device, are told together."""
    graph = with_part(two_towers(), "tell", near=("see",))
    graph = with_part(graph, "head", near=(), on=("cpu",), apart=("join",))
    with pytest.raises(DeviceError, match=r"(?s)cannot share a device.*be on cpu:0"):
        plan_graph(graph, BOX)


def test_a_call_without_gpu_kernel_stays_on_the_cpu():
    """No kernel, no choice; a receipt if a GPU was asked for."""
    graph = chain(2)
    calls = tuple(replace(c, cpu_only=c.name == "c0") for c in graph.calls)
    graph = with_part(replace(graph, calls=calls), "c0", on=("gpu:0",))
    plan = plan_graph(graph, BOX)

    assert (plan["c0"].device, plan["c0"].reason) == ("cpu:0", "no kernel")
    assert plan.fallbacks[0].reason == "Dense 'c0' has no GPU kernel"


def test_a_call_without_gpu_kernel_needs_a_cpu():
    """On a machine of GPUs alone the message says what is missing."""
    graph = chain(1)
    calls = tuple(replace(c, cpu_only=c.name == "c0") for c in graph.calls)
    with pytest.raises(DeviceError, match="Add 'cpu' to the cluster"):
        plan_graph(replace(graph, calls=calls), Cluster.of("gpu"))


def test_infeasible_pin_names_needs_rooms_and_remedies():
    """The message of the design: needs, what is free where, and what to try."""
    box = Cluster.of("2*gpu", "cpu", memory="14 MiB")
    with pytest.raises(InfeasibleError) as caught:
        plan_graph(two_towers(on=("gpu:0", "gpu:0")), box)

    first, needs, gpu0, *_, last = str(caught.value).splitlines()
    assert first == (
        "branch 'see' (with 1 near it) does not fit on gpu:0, where it is declared."
    )
    assert needs.startswith("  needs     9.00 MiB  weights 2.00 MiB, gradients")
    assert gpu0.startswith("  gpu:0")
    assert "'tell' is pinned there with 5.00 MiB" in gpu0
    assert 'on="gpu" instead of on="gpu:0"' in last
    assert "more memory on gpu:0" in last


def test_infeasible_remedies_work():
    """The batch that the message names does fit, and the next larger one does not."""
    from splitnet.simulator.batches import rebatched

    box = Cluster.of("gpu", memory="15 MiB")
    graph = chain(3)
    with pytest.raises(InfeasibleError, match=r"batch <= (\d+)") as caught:
        plan_graph(graph, box)
    batch = int(str(caught.value).split("batch <= ")[1].split(",")[0])

    plan_graph(rebatched(graph, batch), box)
    with pytest.raises(InfeasibleError):
        plan_graph(rebatched(graph, batch + 1), box)


def test_infeasible_everywhere_says_so():
    """A part that is larger than every device is named as such."""
    box = Cluster.of("2*gpu", "cpu", memory="2 MiB", cpu_memory="3 MiB")
    with pytest.raises(InfeasibleError, match="does not fit on any device it may use"):
        plan_graph(wide(2), box)


def test_infeasible_together_says_so():
    """Parts that fit alone but not all at once are told from those that never do."""
    box = Cluster.of("2*gpu", "cpu", memory="8 MiB", cpu_memory="8 MiB")
    with pytest.raises(InfeasibleError, match="do not fit together"):
        plan_graph(wide(6), box)


def test_infeasible_apart_counts_devices():
    """Three parts that must all be apart need three devices."""
    graph = chain(3)
    graph = with_part(graph, "c1", apart=("c0",))
    graph = with_part(graph, "c2", apart=("c0", "c1"))
    with pytest.raises(InfeasibleError, match=r"(?s)apart= cannot be kept.*one device"):
        plan_graph(graph, Cluster.of("2*gpu"))
