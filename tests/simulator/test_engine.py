"""The event loop under the simulator and the searches: what a limit may cut off."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.planner.board import Board
from splitnet.planner.bounds import lower_bound
from splitnet.planner.constraints import resolve
from splitnet.planner.evaluate import Evaluator
from splitnet.planner.program import is_small, solve
from splitnet.planner.search_adapter import board_for
from splitnet.simulator.engine import run_step, run_within
from tests.zoo import random_dag

BOX = Cluster.of("2*gpu", "cpu")
ROAD = Link("*", "*", 1e9, 1e-4, 0.5)  # both ends work for half of a copy
WORKERS = Cluster(
    tuple(Device.of(f"worker:{k}/cpu:0", preset="CPU core") for k in (0, 1)), (ROAD,)
)
boxes = st.sampled_from([BOX, WORKERS])
seeds = st.integers(0, 10_000)


def board_of_random(seed: int, box: Cluster, *, training: bool = True) -> Board:
    """The board of a random graph of up to a dozen parts."""
    evaluator = Evaluator(random_dag(seed, 2 + seed % 11), box, training=training)
    return board_for(evaluator, resolve(evaluator.graph, box)[1])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(seeds, boxes, st.booleans())
def test_run_within_ends_early_only_where_it_must(seed, box, training):
    """A limit that can be met changes nothing; one that cannot may end the step."""
    board = board_of_random(seed, box, training=training)
    draw = random.Random(seed)
    for _ in range(4):
        chosen = tuple(draw.choice(devices) for devices in board.allowed)
        device = board.call_devices(chosen)
        whole = run_step(board.calls, device)

        for share in (1.0, 1.0 + 1e-12, 1.5):
            assert run_within(board.calls, device, whole.seconds * share) == whole
        cut = run_within(board.calls, device, whole.seconds * 0.9)
        assert cut is None or cut == whole


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds, boxes)
def test_tails_are_never_longer_than_what_follows(seed, box):
    """From the end of any task to the end of the step at least its tail passes."""
    board = board_of_random(seed, box)
    draw = random.Random(seed)
    chosen = tuple(draw.choice(devices) for devices in board.allowed)
    run = run_step(board.calls, board.call_devices(chosen))
    n = board.calls.count
    stop = [*run.stop[:n], *reversed(run.stop[n : 2 * n]), *run.stop[2 * n :]]
    ran = [*run.ran[:n], *reversed(run.ran[n : 2 * n]), *run.ran[2 * n :]]

    for task, tail in enumerate(board.calls.tails):
        if ran[task]:
            assert stop[task] + tail <= run.seconds * (1 + 1e-9)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(seeds, boxes)
def test_quick_scores_against_a_rival_as_without_one(seed, box):
    """A floor is worse than the rival, and never worse than the truth."""
    board = board_of_random(seed, box)
    draw = random.Random(seed)
    rival = board.quick(tuple(draw.choice(devices) for devices in board.allowed))
    for _ in range(6):
        chosen = tuple(draw.choice(devices) for devices in board.allowed)
        alone, against = board.quick(chosen), board.quick(chosen, rival)

        if against.tie == float("inf"):
            assert rival < against <= alone
        else:
            assert against == alone


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds)
def test_no_step_on_workers_is_shorter_than_what_is_proven(seed):
    """Gradients that leave before a pass has ended do not undercut the bounds."""
    board = board_of_random(seed, WORKERS)
    bound = lower_bound(board)
    if is_small(board):
        bound = max(bound, solve(board, 5.0).bound * (1 - 1e-6))
    draw = random.Random(seed)
    for _ in range(6):
        chosen = tuple(draw.choice(devices) for devices in board.allowed)
        run = run_step(board.calls, board.call_devices(chosen))
        assert run.seconds >= bound * (1 - 1e-9)
