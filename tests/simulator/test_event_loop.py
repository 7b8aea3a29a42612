"""The event loop: tasks and copies of small steps at times computed by hand."""

from tests.simulator.small import box, dense, graph, outcome, spans


def test_a_step_on_one_device_runs_forward_backward_and_updates():
    """A 0-1, b 1-3; b' 3-7, a' 7-9; updates when their gradients are there.

    The update of b is ready at 7 and queues behind a', which is ready as early and has
    a lower number: a' 7-9, b's update 9-10, a's 10-11.
    """
    one = graph([dense("a"), dense("b", seconds=2.0)], "a-b")
    found = spans(outcome(one, box(1), "00"))

    assert found == {
        "a forward": (0, 1),
        "b forward": (1, 3),
        "b backward": (3, 7),
        "a backward": (7, 9),
        "b update": (9, 10),
        "a update": (10, 11),
    }


def test_a_step_on_two_devices_copies_an_activation_and_its_gradient():
    """3 bytes take 3 seconds each way; b updates while its gradient is on the way."""
    one = graph([dense("a", out=3), dense("b")], "a-b")
    found = spans(outcome(one, box(), "01"))

    assert found["a>b activation"] == (1, 4)
    assert found["b forward"] == (4, 5)
    assert found["b backward"] == (5, 7)
    assert found["b>a gradient"] == (7, 10)
    assert found["b update"] == (7, 8)
    assert found["a backward"] == (10, 12)


def test_inference_has_forward_tasks_only():
    """Without training nothing runs backward and nothing is updated."""
    one = graph([dense("a"), dense("b")], "a-b")

    assert list(spans(outcome(one, box(1), "00", training=False))) == [
        "a forward",
        "b forward",
    ]


def test_an_output_is_copied_once_per_device_and_its_gradients_are_summed_there():
    """B and c share the copy of a's output, and one gradient crosses after both.

    a 0-1, copy 1-2, b 2-3, c 3-4, b' 4-6 (ready at 3), c' 6-8, and the sum leaves at 8.
    """
    one = graph([dense("a"), dense("b"), dense("c")], "a-b a-c")
    found = outcome(one, box(), "011")

    assert [(c.kind, c.start, c.stop) for c in found.timeline.copies] == [
        ("activation", 1, 2),
        ("gradient", 8, 9),
    ]


def test_a_part_starts_when_all_inputs_of_its_calls_are_there():
    """The first call of the part does not need b, but the part is one function."""
    calls = [dense("a"), dense("b", seconds=5.0), dense("c1", "c"), dense("c2", "c")]
    one = graph(calls, "a-c1 c1-c2 b-c2")
    found = spans(outcome(one, box(), "010", training=False))

    assert found["b>c activation"] == (5, 6)
    assert found["c forward"] == (6, 8)


def test_a_shared_weight_visits_its_user_and_its_gradient_comes_home():
    """Left and right share w, at home with left on gpu:0; 4 bytes each way."""
    calls = [dense(name, weights=("w",)) for name in ("left", "right")]
    one = graph(
        [*calls, dense("join", weights=())], "left-join right-join", weight_bytes=4
    )
    found = spans(outcome(one, box(), "010"))

    assert found["left>right weights"] == (0, 4)
    assert found["right forward"] == (4, 5)
    assert found["right>left weights gradient"][1] == found["left update"][0]
    assert "right update" not in found


def test_a_link_carries_one_copy_at_a_time():
    """Two outputs of 2 bytes for gpu:1: 1-3 and 3-5; the other way is free."""
    calls = [dense("a", out=2), dense("b"), dense("c")]
    one = graph(calls, "a-b a-c")
    many = graph([dense("a", out=2), dense("d", out=2), *calls[1:]], "a-b d-c")
    assert spans(outcome(one, box(), "011"))["a>b activation"] == (1, 3)
    found = spans(outcome(many, box(), "0011", training=False))

    assert found["a>b activation"] == (1, 3)
    assert found["d>c activation"] == (3, 5)


def test_the_gap_of_a_latency_occupies_the_link_and_the_rest_does_not():
    """Latency 10, gap 1, 2 bytes: arrivals 13 and 16, 3 seconds apart."""
    calls = [dense("a", out=2), dense("d", seconds=0.0, out=2)]
    one = graph([*calls, dense("b"), dense("c")], "a-b d-c")
    found = spans(outcome(one, box(latency=10.0, gap=1.0), "0011", training=False))

    assert found["d>c activation"] == (0, 12)
    assert found["a>b activation"] == (3, 15)


def test_calling_a_part_costs_its_device_once_forward_and_once_backward():
    """Two calls of a part pay one call of a function, forward and backward."""
    one = graph([dense("a1", "a"), dense("a2", "a")], "a1-a2")
    found = spans(outcome(one, box(1, part=10), "0"))

    assert found["a forward"] == (0, 12)
    assert found["a backward"] == (12, 26)
    assert found["a update"] == (26, 28)


def test_a_tensor_of_integers_gets_no_gradient():
    """Nothing flows back through what is not differentiable."""
    one = graph([dense("a"), dense("b")], "a-b", dtype="int32")
    found = outcome(one, box(), "01")

    assert [copy.kind for copy in found.timeline.copies] == ["activation"]
