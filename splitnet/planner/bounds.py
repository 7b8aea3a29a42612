"""What no placement can beat: proofs for `plan.bound`."""

from splitnet.planner.board import Board
from splitnet.planner.program import load_bound

__all__ = ["lower_bound"]

_ROUNDING = 1e-9
"""The share taken off for sums that are added up in another order than a step's."""


def lower_bound(board: Board) -> float:
    """The best proven lower bound on `Board.exact(...).value` over all assignments.

    For seconds: the critical path with every call on its fastest allowed device and
    free copies; the total work over devices that all work all the time; the same as a
    linear program that knows slow devices and memory. For bytes: all that must be held
    somewhere, shared evenly. 0 for an objective that is not played.
    """
    if board.worth is not None:
        return 0.0
    if board.objective == "memory":
        return _memory_bound(board)
    best = max(_critical_path(board), _work(board), load_bound(board))
    return best * (1 - _ROUNDING)


def _fastest(board: Board) -> tuple[list[float], list[float], list[float]]:
    """Forward, backward and update seconds of each call where it is fastest."""
    step = board.calls
    groups = [board.group_of_unit[unit] for unit in board.unit_of_call]
    distinct: dict[tuple[int, ...], tuple[int, ...]] = {}
    for devices in board.allowed:
        if devices not in distinct:
            one_each = {id(step.forward[d]): d for d in reversed(devices)}
            distinct[devices] = tuple(one_each.values())
    choices = [distinct[board.allowed[group]] for group in groups]
    forward, backward, update = (
        [min([table[d][call] for d in devices]) for call, devices in enumerate(choices)]
        for table in (step.forward, step.backward, step.update)
    )
    return forward, backward, update


def _critical_path(board: Board) -> float:
    """The longest chain forward, back and update; calls stand in running order."""
    step = board.calls
    n = step.count
    forward, backward, update = _fastest(board)
    done = [0.0] * n
    ready = [0.0] * n
    outgoing: list[list[int]] = [[] for _ in range(n)]
    for number, net in enumerate(step.nets):
        outgoing[net.source].append(number)
    for call in range(n):
        done[call] = ready[call] + forward[call]
        for number in outgoing[call]:
            for reader in step.nets[number].readers:
                ready[reader] = max(ready[reader], done[call])
    best = max(done, default=0.0)
    back = [0.0] * n
    late = step.late_share or [0.0] * n
    for call in reversed(range(n)):
        if not step.has_backward[call]:
            continue
        start = done[call]
        for number in outgoing[call]:
            for reader in step.nets[number].backward:
                sent = back[reader] - late[reader] * backward[reader]
                start = max(start, sent)
        back[call] = start + backward[call]
        best = max(best, back[call])
    ends = [back[call] + update[call] for call in range(n) if step.has_update[call]]
    return max([best, *ends])


def _work(board: Board) -> float:
    """All work at its fastest, shared over the devices that anybody may use.

    Refined by nested sets of devices: what may only run on some devices must share
    them.
    """
    rows = _fastest(board)
    total = [sum(times) for times in zip(*rows)]
    groups = [board.group_of_unit[unit] for unit in board.unit_of_call]
    work: dict[tuple[int, ...], float] = {}
    for call, group in enumerate(groups):
        key = tuple(sorted(board.allowed[group]))
        work[key] = work.get(key, 0.0) + total[call]
    best = 0.0
    for devices in work:
        inside = sum(v for key, v in work.items() if set(key) <= set(devices))
        best = max(best, inside / len(devices))
    return best


def _memory_bound(board: Board) -> float:
    """Everything held whatever the schedule, shared evenly, and the largest group."""
    need = board.group_bytes
    return max(sum(need) / len(board.capacity), float(max(need, default=0)))
