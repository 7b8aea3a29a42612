"""Memory of small steps: every tensor once, for as long as something reads it."""

from dataclasses import replace

import pytest

from splitnet.core.graph import Part
from splitnet.core.timeline import Execution, Memory
from splitnet.simulator.step_graph import step_graph
from tests.simulator.small import Seconds, box, dense, graph, outcome, spans, view


def at(found, device, moment):
    curve = found.timeline.memory[device]
    return [count for time, count in curve if time <= moment][-1]


def chain(part=None, weight_bytes=1000, **more):
    """Calls a, b, c: outputs of 100, 10 and 1 bytes."""
    outputs = ("a", 100), ("b", 10), ("c", 1)
    calls = [dense(name, part, out=out, **more) for name, out in outputs]
    return graph(calls, "a-b b-c", weight_bytes=weight_bytes)


CHAIN = chain()


def test_outputs_stay_until_their_last_reader_forward_or_backward():
    """A 0-1, b 1-2, c 2-3, c' 3-5, b' 5-7, the update of c 7-8, a' 8-10.

    At 2.5 the outputs of a (read by b'), b (read by c') and c (read by the loss) are
    there; if no backward task reads them, b's and c's. At 8 a' begins: the gradients of
    b and c have been used, and that of a's output came from b'. At 9 a's own is there.
    """
    found = outcome(CHAIN, box(1), "000")
    tensors = tuple(replace(t, kept=False) for t in CHAIN.tensors)
    freed = outcome(replace(CHAIN, tensors=tensors), box(1), "000")
    assert at(found, "gpu:0", 2.5) == 3000 + 111
    assert at(found, "gpu:0", 8) == 3000 + 100
    assert at(found, "gpu:0", 9) == 3000 + 1000 + 100
    assert at(freed, "gpu:0", 2.5) == 3000 + 11


@pytest.mark.parametrize(("optimizer", "slots"), [("sgd", 0), ("lion", 1), ("adam", 2)])
def test_slots_and_the_temporaries_of_updates_count_by_the_optimizer(optimizer, slots):
    """A weight's gradient, all slots, and 1,000 bytes a slot in an update.

    B's is updated while a' has the 100 bytes that it is given. Inference saves nothing.
    Ten weights of one part are updated one after the other.
    """
    memory = outcome(CHAIN, box(1), "000", optimizer=optimizer).memory["gpu:0"]
    assert (memory.weights, memory.gradients) == (3000, 1000)
    assert memory.slots == slots * 3000
    assert memory.workspace == 100 + (slots * 1000 or 10)
    free = outcome(CHAIN, box(1), "000", training=False).memory["gpu:0"]
    assert free == Memory(weights=3000, activations=110)
    edges = " ".join(f"d{i}-d{i + 1}" for i in range(9))
    ten = graph([dense(f"d{i}", "all") for i in range(10)], edges, weight_bytes=1000)
    memory = outcome(ten, box(1), "0", optimizer="adam").memory["gpu:0"]
    assert memory.workspace == 2 * 1000


def test_a_received_tensor_is_a_buffer_until_its_last_reader():
    """B on gpu:1 saves a's 100 bytes until b' ends; a' does not read its output."""
    found = outcome(CHAIN, box(), "010")
    free = outcome(CHAIN, box(), "010", training=False)
    assert spans(found)["a>b"] == (1, 101)
    assert at(found, "gpu:1", 50) == 1000 + 100
    assert at(found, "gpu:1", 105) == 1000 + 100 + 10
    assert free.memory["gpu:1"] == Memory(1000, activations=10, receive_buffers=100)
    assert at(found, "gpu:0", 100) == 2000 + 100
    assert at(found, "gpu:0", 101.5) == 2000


TABLE = {"weights": ("t",), "lookups": ("t",)}
LOOKUP = graph([dense("a", out=10, **TABLE)], "", weight_bytes=1000)
FROZEN = replace(LOOKUP, weights=(replace(LOOKUP.weights[0], trainable=False),))
WHOLE = replace(LOOKUP, calls=(replace(LOOKUP.calls[0], lookups=()),))
WORK = [dense(n, "p", inner_bytes=7, workspace_bytes=w) for n, w in zip("ab", (5, 9))]
VIEWED = [dense("a", "p", out=100), view("v", "p", 100), dense("b", "p")]
EARLY = [dense(n, "p", inner_bytes=9, early_bytes=7) for n in "ab"]
LEARN = [dense("a", "p", out=10), dense("b", "p", out=10, workspace_bytes=2000)]
LEARN.append(dense("c", "p"))
LEARNING = graph(LEARN, "a-b b-c", weight_bytes=1000)
READ = [dense(name, "p", out=out) for name, out in zip("abcde", (100, 1, 1, 1, 1))]
READ = graph(READ, "a-b a-c a-d b-e c-e d-e")
PART = chain("p")


@pytest.mark.parametrize(
    ("one", "how", "expected"),
    [
        # Nothing of a part of a, b and c leaves but the output of c.
        (PART, {}, {"saved": 110}),
        # In inference two neighbouring outputs at a time; c's byte counts all along.
        (PART, {"training": False}, {"saved": 0, "forward": 110 - 1}),
        # Inner bytes add up over calls, workspaces follow one another.
        (graph(WORK, "a-b"), {}, {"saved": 7 + 7 + 1, "forward": 9}),
        # Flatten makes nothing; the reader of the view saves what it shows.
        (graph(VIEWED, "a-v v-b"), {}, {"saved": 100}),
        # What needs no gradient is there as the backward pass begins, unless it is
        # made again.
        (graph(EARLY, "a-b"), {}, {"early": 14, "saved": 19}),
        (graph(EARLY, "a-b"), {"recompute": "p"}, {"early": 19 + 1, "saved": 0}),
        # A table whose rows are updated is copied when it is read.
        (LOOKUP, {}, {"forward": 1000}),
        (FROZEN, {}, {"forward": 0}),
        (WHOLE, {}, {"forward": 0}),
        # When b' needs most, the gradients of b and c are there, and that of its
        # output; a needs no gradient of its input.
        (LEARNING, {}, {"learned": 2000, "backward": 2010}),
        # What c' and d' return for a's output is there until b' has, with b's and c's.
        (READ, {}, {"backward": 300 + 2}),
    ],
)
def test_memory_inside_a_part(one, how, expected):
    [unit] = step_graph(one, box(1), Seconds(), **how).units
    assert {name: getattr(unit.memory, name) for name in expected} == expected


def test_recomputing_saves_the_inputs_of_parts_only():
    """The part's backward task makes its 110 bytes again, beside its gradients."""
    one = graph([dense("x"), *PART.calls], "x-a a-b b-c")
    steps = [step_graph(one, box(1), Seconds(), recompute=some) for some in ("", "p")]
    plain, again = (step.units[1].memory for step in steps)
    forward, backward = steps[0].task_seconds[0][1:3]
    assert (plain.saved, again.saved) == (110, 0)
    assert again.backward == plain.backward + 110
    assert steps[1].task_seconds[0][2] == backward + forward


@pytest.mark.parametrize(
    ("kind", "again", "moved"),
    [("branch", "", 1), ("branch", "p", 5), ("tower", "", 5)],
)
def test_xla_compiles_neither_towers_nor_what_runs_forward_again(kind, again, moved):
    """Kernels move 5 GB, or 1 GB fused, at 80 % of 500 GB/s."""
    fused = dense("a", "p", moved_bytes=5e9, fused_kernels=1, fused_bytes=1e9)
    one = replace(graph([fused], ""), parts=(Part("p", kind),))
    row = step_graph(one, box(1), recompute=again).task_seconds[0]
    assert row[0] == pytest.approx(moved * 1e9 / (0.8 * 500e9), rel=0.01)


@pytest.mark.parametrize(("count", "held"), [(1, [260, 150]), (2, [111, 106])])
def test_functions_hold_what_they_saved_to_their_end(count, held):
    """A part is a function, and frees its own; in micro-batches a stage is one.

    As b' begins there are a's output, two gradients, and 50 bytes that are kept.
    """
    how = Execution(count)
    found = outcome(chain(weight_bytes=0, given_bytes=50), box(), "000", how)
    assert [at(found, "gpu:0", moment) for moment in spans(found)["b'"]] == held


@pytest.mark.parametrize(
    ("lookups", "read", "optimizer", "count", "made"),
    [
        ((), False, "sgd", 1, 1000),
        (("t",), True, "sgd", 1, 40 + 8),
        (("t",), False, "sgd", 1, 2 * (40 + 8)),
        (("t",), True, "lion", 1, 2 * (40 + 8) + 2 * 1000),
        (("t",), False, "sgd", 4, 2 * 4 * (10 + 2)),
    ],
)
def test_an_embeddings_gradient_is_the_rows_read(lookups, read, optimizer, count, made):
    """Rows of 40 bytes, found by numbers of 8 bytes, instead of a table of 1,000."""
    table = dense("a", "p", weights=("t",), lookups=lookups, out=40)
    read_it = [dense("b", "p", weights=())] * read
    calls = [dense("x", weights=(), out=8), table, *read_it]
    one = graph(calls, "x-a a-b"[: 3 + 4 * read], weight_bytes=1000)
    found = outcome(one, box(1), "00", Execution(count), optimizer=optimizer)
    *_, (_, updating), _ = found.timeline.memory["gpu:0"]
    assert updating == 1000 + made


def test_each_weight_is_updated_when_its_gradients_are_there():
    """Two towers use v, given at 504, and w, at 1,504; one task updates both."""
    calls = [dense("h", seconds=0, weights=("v", "w"))]
    for tower in "ab":
        calls.append(dense(f"{tower}v", weights=("v",)))
        calls.append(dense(f"{tower}w", weights=("w",), seconds=500.0))
    found = outcome(graph(calls, "", weight_bytes=100), box(), "00011")
    assert found.memory["gpu:0"].gradients == 200
    assert at(found, "gpu:0", 1504) == 200 + 100
