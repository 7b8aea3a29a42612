"""Memory of small steps: every tensor once, for as long as something reads it."""

from dataclasses import replace

import pytest

from splitnet.core.costs import VIEWS
from splitnet.core.timeline import Execution, Memory
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.simulator.microbatch import in_schedule, pipeline_of
from splitnet.simulator.step_graph import step_graph
from tests.simulator.small import Seconds, box, dense, graph, outcome, view


def at(found, device: str, moment: float) -> int:
    """Bytes in use on a device at a moment."""
    curve = found.timeline.memory[device]
    return [count for time, count in curve if time <= moment][-1]


def chain(**more: object):
    """Parts a, b, c: outputs of 100, 10 and 1 bytes, weights of 1,000 bytes each."""
    calls = [
        dense(name, out=out, **more) for name, out in (("a", 100), ("b", 10), ("c", 1))
    ]
    return graph(calls, "a-b b-c", weight_bytes=1000)


def test_outputs_that_backward_tasks_read_stay_until_then():
    """A 0-1, b 1-2, c 2-3, c' 3-5, b' 5-7, the update of c 7-8, a' 8-10.

    At 2.5 the outputs of a (read by b'), b (read by c') and c (read by the loss) are
    there. At 8 a' runs: the gradient of b is there, that of c has been used, and a's
    arises; the gradient of a's output came from b'. What was saved is still there,
    because the three parts run as one function.
    """
    found = outcome(chain(), box(1), "000")

    assert at(found, "gpu:0", 2.5) == 3000 + 111
    assert at(found, "gpu:0", 8) == 3000 + 2000 + 100 + 111


def test_outputs_that_no_backward_task_reads_are_freed_after_their_readers():
    """At 2.5 c runs: what b reads has gone, what c reads is there."""
    one = chain()
    one = replace(one, tensors=tuple(replace(t, kept=False) for t in one.tensors))
    found = outcome(one, box(1), "000")

    assert at(found, "gpu:0", 2.5) == 3000 + 11


def test_inference_saves_nothing():
    """The fullest moment is when b runs, with its input and its output."""
    found = outcome(chain(), box(1), "000", training=False)

    assert found.memory["gpu:0"] == Memory(weights=3000, activations=110)


@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("lion", 1), ("adam", 2)])
def test_slots_and_the_temporaries_of_updates_count_by_the_optimizer(optimizer, slots):
    """The end: weights, gradients, slots, and 1,000 bytes a slot in an update.

    Without slots, the last backward task with the 100 bytes that it is given.
    """
    found = outcome(chain(), box(1), "000", optimizer=optimizer)

    memory = found.memory["gpu:0"]
    assert (memory.weights, memory.gradients) == (3000, 3000)
    assert memory.slots == slots * 3000
    assert memory.workspace == (slots * 1000 or 100)


def test_updates_need_room_for_the_largest_weight_only():
    """Ten weights of one part are updated one after the other."""
    calls = [dense(f"d{i}", "all") for i in range(10)]
    edges = " ".join(f"d{i}-d{i + 1}" for i in range(9))
    one = graph(calls, edges, weight_bytes=1000)
    found = outcome(one, box(1), "0", optimizer="adam")

    assert found.memory["gpu:0"].workspace == 2 * 1000


def test_a_received_tensor_is_a_buffer_until_its_last_reader():
    """B on gpu:1 receives a's 100 bytes at 1 and saves them until b' ends."""
    found = outcome(chain(), box(), "010")
    free = outcome(chain(), box(), "010", training=False)

    copy = found.timeline.copies[0]
    assert (copy.start, copy.stop) == (1, 101)
    assert at(found, "gpu:1", 50) == 1000 + 100
    assert at(found, "gpu:1", 105) == 1000 + 100 + 10
    assert free.memory["gpu:1"] == Memory(1000, activations=10, receive_buffers=100)


def test_a_sender_frees_its_output_when_the_copy_has_left():
    """A's backward task does not read its output: gone at 101, when b has it."""
    found = outcome(chain(), box(), "010")

    assert at(found, "gpu:0", 100) == 2000 + 100
    assert at(found, "gpu:0", 101.5) == 2000


def test_saved_activations_inside_a_part_stay_until_its_backward_task_ends():
    """A part of a, b, c: nothing of it leaves but the output of c."""
    calls = [dense(n, "p", out=o) for n, o in (("a", 100), ("b", 10), ("c", 1))]
    step = step_graph(graph(calls, "a-b b-c"), box(1), Seconds(), optimizer="sgd")

    assert step.units[0].memory.saved == 110
    assert [(edge.bytes, edge.saved_by) for edge in step.edges] == [(1, (0,))]


def test_inner_bytes_and_workspaces_of_calls_count_for_their_part():
    """Inner bytes add up over calls, workspaces follow one another."""
    calls = [dense(n, "p", inner_bytes=7, workspace_bytes=w) for n, w in ("a5", "b9")]
    calls = [replace(c, workspace_bytes=int(c.workspace_bytes)) for c in calls]
    step = step_graph(graph(calls, "a-b"), box(1), Seconds())

    assert step.units[0].memory.saved == 7 + 7 + 1
    assert step.units[0].memory.forward == 9


def test_passing_tensors_inside_a_part_overlap_only_while_they_are_read():
    """In inference a part needs two neighbouring outputs at a time: 100 and 10."""
    calls = [dense(n, "p", out=o) for n, o in (("a", 100), ("b", 10), ("c", 1))]
    step = step_graph(graph(calls, "a-b b-c"), box(1), Seconds(), training=False)

    assert step.units[0].memory.saved == 0
    assert step.units[0].memory.forward == 110


def test_a_view_inside_a_part_shares_the_memory_of_its_input():
    """Flatten makes nothing; the reader of the view saves what it shows."""
    assert "Flatten" in VIEWS
    calls = [dense("a", "p", out=100), view("v", "p", 100), dense("b", "p")]
    step = step_graph(graph(calls, "a-v v-b"), box(1), Seconds())

    assert step.units[0].memory.saved == 100


def test_recomputing_saves_the_inputs_of_parts_only():
    """The part's backward task makes its 110 bytes again, beside its gradients.

    When b's 10 are no longer needed, a's gradient of 100 stands beside a's own.
    """
    calls = [dense("x"), *(dense(n, "p", out=o) for n, o in (("a", 100), ("b", 10)))]
    calls.append(dense("c", "p"))
    one = graph(calls, "x-a a-b b-c")
    plain, again = (
        step_graph(one, box(1), Seconds(), recompute=some) for some in ("", "p")
    )

    before, after = plain.units[1].memory, again.units[1].memory
    assert (before.saved, after.saved) == (110, 0)
    assert after.backward == before.backward + 110
    backward = [step.task_seconds[0][2 * step.count - 2] for step in (plain, again)]
    assert backward[1] == backward[0] + plain.task_seconds[0][1]


def test_recomputing_starts_no_gradient_from_saved_tensors():
    """Without it TensorFlow makes 7 bytes a call as the backward pass begins."""
    calls = [dense(n, "p", inner_bytes=9, early_bytes=7) for n in "ab"]
    plain, again = (
        step_graph(graph(calls, "a-b"), box(1), Seconds(), recompute=some)
        for some in ("", "p")
    )

    before, after = plain.units[0].memory, again.units[0].memory
    assert before.early == 14
    assert after.early == before.saved + 1


def test_what_is_surely_saved_is_that_of_the_fullest_of_several_ends():
    """Two losses over one trunk: one may be done before the other begins."""
    one = graph([dense("t", out=8), dense("l", out=10), dense("r", out=100)], "t-l t-r")
    step = step_graph(one, box(1), Seconds())

    assert [unit.saved_floor for unit in step.units] == [0, 0, 100]


def test_parts_of_one_function_hold_what_they_saved_to_its_end():
    """On one device a and b run as one function; on two each frees its own."""
    calls = [dense(n, out=o) for n, o in (("a", 100), ("b", 10), ("c", 1))]
    one = graph(calls, "a-b b-c", weight_bytes=0)
    step = step_graph(one, box(2), Seconds(), optimizer="sgd")
    stops = {}
    for where in ([0, 0, 0], [0, 0, 1]):
        run = run_step(step, where)
        curve = memory_of(step, where, run)[0].curve
        at = run.stop[step.count + 1]  # the end of the backward task of b
        stops[tuple(where)] = next(held for moment, held in curve if moment == at)

    assert stops == {(0, 0, 0): 100 + 10 + 1 + 100, (0, 0, 1): 100 + 100}


@pytest.mark.parametrize(("lookups", "made"), [((), 1000), (("t",), 10 + 2)])
def test_the_gradient_of_an_embedding_is_the_rows_that_are_read(lookups, made):
    """Rows of 10 bytes, found by numbers of 2 bytes, instead of a table of 1,000."""
    calls = [
        dense("x", weights=(), out=2),
        dense("a", weights=("t",), lookups=lookups, out=10),
    ]
    one = graph(calls, "x-a", weight_bytes=1000)
    step = step_graph(one, box(1), Seconds(), optimizer="sgd")
    [held] = memory_of(step, [0, 0], run_step(step, [0, 0]))

    assert held.held[:, 1].max() == made


def test_a_table_whose_rows_are_updated_is_copied_when_it_is_read():
    """1,000 bytes while the call runs; none if the table is frozen, or read whole."""
    calls = [dense("a", weights=("t",), lookups=("t",), out=10)]
    one = graph(calls, "", weight_bytes=1000)
    frozen = replace(one, weights=(replace(one.weights[0], trainable=False),))
    whole = replace(one, calls=(replace(calls[0], lookups=()),))

    for which, copied in ((one, 1000), (frozen, 0), (whole, 0)):
        step = step_graph(which, box(1), Seconds())
        assert step.units[0].memory.forward == copied


def test_rows_of_micro_batches_stand_side_by_side():
    """Each has rows of its own until they are put together; the table is copied."""
    calls = [
        dense("x", weights=(), out=8),
        dense("a", weights=("t",), lookups=("t",), out=40),
    ]
    one = graph(calls, "x-a", weight_bytes=1000)
    step = step_graph(one, box(1), Seconds(), optimizer="sgd", microbatches=4)
    there = dict.fromkeys("xa", "gpu:0")
    step = in_schedule(step, pipeline_of(one, there, Execution(4)))
    [held] = memory_of(step, [0] * step.count, run_step(step, [0] * step.count))

    assert held.held[:, 1].max() == 2 * 4 * (10 + 2)
    assert held.held[:, 5].max() == 1000


def test_gradients_of_a_part_arise_one_after_the_other():
    """Of a, b and c, c's first; a's, which needs no gradient of its input, last.

    b' needs 50 bytes beside, when the gradients of b and c are there: 2,050 and its
    output's gradient. At the end there are three, and the outputs that are saved.
    """
    calls = [dense("a", "p", out=10), dense("b", "p", out=10, workspace_bytes=2000)]
    calls.append(dense("c", "p"))
    step = step_graph(graph(calls, "a-b b-c", weight_bytes=1000), box(1), Seconds())
    [held] = memory_of(step, [0], run_step(step, [0]))

    inside = step.units[0].memory
    assert (inside.learned, inside.backward) == (2000, 2010)
    assert held.held[:, 1].max() == 3000


def test_each_weight_is_updated_when_its_gradients_are_there():
    """Two towers use v, whose gradients are there at 504, and w, at 1,504.

    The home of both has one update task, which ends when both are updated.
    """
    calls = [dense("h", seconds=0, weights=("v", "w"))]
    for tower in "ab":
        calls.append(dense(f"{tower}v", weights=("v",)))
        calls.append(dense(f"{tower}w", weights=("w",), seconds=500.0))
    step = step_graph(graph(calls, "", weight_bytes=100), box(2), Seconds())
    where = [0, 0, 0, 1, 1]
    home = memory_of(step, where, run_step(step, where))[0]
    late = home.held[home.times > 1000, 1]

    assert late.max() == 100
    assert home.held[:, 1].max() == 200
