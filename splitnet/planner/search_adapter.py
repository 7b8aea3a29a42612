"""The search behind one function, until the compiled engine takes its place."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from time import monotonic
from typing import TYPE_CHECKING

from splitnet.planner.board import Assignment, Board, board_of
from splitnet.planner.bounds import lower_bound
from splitnet.planner.calm import calmed
from splitnet.planner.constraints import Group
from splitnet.planner.portfolio import best_assignment, proven_bound
from splitnet.planner.search import build_problem, search
from splitnet.planner.search.problem import Device, Problem
from splitnet.planner.steady import Steady, steady_of
from splitnet.planner.steady_search import convex_starts, search_steady

if TYPE_CHECKING:
    from splitnet.planner.evaluate import Evaluator
    from splitnet.planner.workloads import Workload

__all__ = [
    "Progress",
    "Solution",
    "board_for",
    "lower_bound_of",
    "max_load_of",
    "solve",
    "solve_workload",
    "workload_problem",
]

Progress = Callable[[float, float], None]
"""Called with the share of the work done, 0 to 1, and the best value so far."""


@dataclass(frozen=True, slots=True)
class Solution:
    """The best assignment found (a device number per group), and a lower bound.

    `value` is `inf` if nothing fits; the assignment is then the least broken one.
    """

    assignment: Assignment
    value: float
    bound: float
    algorithm: str
    ended_by_clock: bool = False


def solve(
    evaluator: "Evaluator",
    groups: Sequence[Group],
    *,
    contiguity: str | None = None,
    time_limit: float,
    seed: int = 0,
    cut_penalty: float = 0.0,
    patience: float = 1.0,
    first_fit: bool = False,
    on_progress: Progress | None = None,
) -> Solution:
    """Search an assignment of the groups to the cluster's devices.

    Raises:
        InfeasibleError: nothing is in the feasible set of the contiguity.
    """
    began = monotonic()
    board = board_for(evaluator, groups)
    memory = evaluator.objective == "memory"
    loads = evaluator.objective == "throughput"
    if first_fit:
        if board.overfull:
            return Solution((), inf, 0.0, "")
        found = best_assignment(board, time_limit=time_limit, content=True)
        value = 0.0 if found.feasible else inf
        return Solution(found.chosen, value, found.bound, found.strategy)
    search_seconds = (0.95 if cut_penalty else 1.0) * time_limit
    starts: list[Assignment] = []
    if loads or (memory and contiguity not in (None, "free")):
        steady = _steady(evaluator, groups)
        found = search_steady(
            steady,
            board,
            contiguity=contiguity,
            strategy="auto",
            time_limit=search_seconds,
            seed=seed,
            on_progress=on_progress,
            patience=patience,
        )
        board = replace(board, worth=steady.worth(contiguity))
    else:
        if cut_penalty and not board.roomy:
            counts = (
                _steady(replace(evaluator, objective=one), groups)
                for one in ("throughput", "memory")
            )
            starts = convex_starts(counts, board, time_limit=search_seconds, seed=seed)
        found = best_assignment(
            board,
            time_limit=search_seconds,
            seed=seed,
            on_progress=on_progress,
            starts=starts,
            patience=patience,
        )
    if not found.feasible:
        return Solution(found.chosen, inf, found.bound, found.strategy)
    chosen = found.chosen
    end = began + time_limit
    late = monotonic() > began + 0.95 * search_seconds
    if cut_penalty:
        chosen = calmed(
            board,
            chosen,
            cut_penalty=cut_penalty,
            late=lambda: monotonic() > end,
            others=starts,
        )
    value = board.exact(chosen).value
    return Solution(chosen, value, min(found.bound, value), found.strategy, late)


def lower_bound_of(
    evaluator: "Evaluator", groups: Sequence[Group], *, hard: bool = False
) -> float:
    """What no assignment of the groups can be below; `hard` takes seconds."""
    if evaluator.objective == "throughput":
        return _steady(evaluator, groups).bound()
    board = board_for(evaluator, groups)
    return proven_bound(board) if hard else lower_bound(board)


def max_load_of(evaluator: "Evaluator", device_of: Mapping[str, str]) -> float:
    """Seconds of the busiest device, with what it sends and receives."""
    everywhere = tuple(device.name for device in evaluator.cluster)
    groups = [Group((part.name,), everywhere) for part in evaluator.graph.parts]
    places = [device_of[call.part] for call in evaluator.graph.calls]
    return _steady(evaluator, groups).value(places)


def solve_workload(
    workload: "Workload",
    *,
    contiguity: str,
    time_limit: float,
    seed: int,
    on_progress: Progress | None,
) -> tuple[list[str], float, float]:
    """The device of each node of a workload, the maximum load, and its bound."""
    problem = workload_problem(workload)
    result = search(
        problem,
        "throughput",
        contiguity,
        time_limit=time_limit,
        seed=seed,
        on_progress=(
            None
            if on_progress is None
            else lambda p: on_progress(
                min(1.0, p.seconds / max(time_limit, 1e-9)), p.value
            )
        ),
    )
    where = result.assignment
    chosen = [problem.devices[where[group]].name for group in problem.nodes.group]
    return chosen, result.value, result.bound


def workload_problem(workload: "Workload") -> Problem:
    """A workload as the search's problem; devices are gpu:0 ... then cpu:0 ..."""
    nodes, memory = workload.nodes, workload.memory_bytes
    devices = [Device(f"gpu:{i}", 0, memory) for i in range(workload.accelerators)]
    devices += [Device(f"cpu:{i}", 1, pooled=True) for i in range(workload.cpus)]
    return build_problem(
        [str(node.id) for node in nodes],
        seconds=[(n.accelerator if n.supported else inf, n.cpu) for n in nodes],
        size_bytes=[node.size_bytes for node in nodes],
        edges=workload.edges,
        transfer_seconds=[(node.transfer, 0.0) for node in nodes],
        devices=devices,
        together=[node.color for node in nodes],
        backward=[node.backward for node in nodes],
    )


def board_for(evaluator: "Evaluator", groups: Sequence[Group]) -> Board:
    """The problem of the search by units and calls."""
    return board_of(
        evaluator.graph,
        evaluator.cluster,
        evaluator.step,
        groups,
        evaluator.objective,
    )


def _steady(evaluator: "Evaluator", groups: Sequence[Group]) -> Steady:
    return steady_of(
        evaluator.graph,
        evaluator.cluster,
        evaluator.step,
        evaluator.costs,
        groups,
        objective=evaluator.objective,
        optimizer=evaluator.optimizer,
        training=evaluator.training,
    )
