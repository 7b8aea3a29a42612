"""Join two plans at a cut: what one does best early with what the other does late.

    order     a b c d | e f g h       every edge goes right
    left      0 0 . 1 | 1 1 2 2       . = host
    right     3 3 3 3 | 3 . 5 5
    child     0 0 . 1 | 1 . 5 5       3 goes on where 1 was, as both cross the cut

The latency of a long graph is nearly a sum along it, so good pieces of different plans
are good together.
"""

from collections.abc import Sequence

from splitnet.planner.search.problem import Problem

__all__ = ["recombine"]


def recombine(
    problem: Problem,
    left: Sequence[int],
    right: Sequence[int],
    order: Sequence[int],
    cut: int,
) -> list[int] | None:
    """Take `left` for the first `cut` groups of `order`, and `right` for the others.

    Accelerators of `right` that `left` has in use are renamed to equal ones, or, where
    none is left, their groups go to the host. Returns None if there is no host for
    them or a memory overflows; O(groups + devices^2).
    """
    devices = problem.devices
    host = next((i for i, d in enumerate(devices) if d.pooled), -1)
    child, late = list(left), order[cut:]
    taken = dict.fromkeys(left[group] for group in order[:cut])
    name = _crossing(left, right, order, cut, host)
    for group in late:
        old = right[group]
        if old in name or old == host:
            continue
        same = [
            device
            for device in (old, *range(len(devices)))
            if device not in taken and _equal(problem, device, old)
        ]
        name[old] = same[0] if same else host
        taken[name[old]] = None
    for group in late:
        device = name.get(right[group], right[group])
        if device not in problem.allowed[group]:
            device = host
        if device < 0 or device not in problem.allowed[group]:
            return None
        child[group] = device
    used = [0.0] * len(devices)
    for group, device in enumerate(child):
        used[device] += problem.size_bytes[group]
    fits = all(
        size <= device.capacity_bytes * (1 + 1e-12)
        for size, device in zip(used, devices, strict=True)
    )
    return child if fits else None


def _crossing(
    left: Sequence[int], right: Sequence[int], order: Sequence[int], cut: int, host: int
) -> dict[int, int]:
    """Name accelerators that cross the cut in both plans after their partners."""
    late_left = {left[group] for group in order[cut:]}
    late_right = {right[group] for group in order[cut:]}
    shared: dict[tuple[int, int], int] = {}
    for group in order[:cut]:
        pair = left[group], right[group]
        if host in pair or pair[0] not in late_left or pair[1] not in late_right:
            continue
        shared[pair] = shared.get(pair, 0) + 1
    name: dict[int, int] = {}
    for (a, b), _ in sorted(shared.items(), key=lambda row: (-row[1], row[0])):
        if b not in name and a not in name.values():
            name[b] = a
    return name


def _equal(problem: Problem, a: int, b: int) -> bool:
    one, other = problem.devices[a], problem.devices[b]
    return (one.kind, one.capacity_bytes, one.pooled) == (
        other.kind,
        other.capacity_bytes,
        other.pooled,
    )
