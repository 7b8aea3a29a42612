"""Dynamic programming over ideals: the best pipeline of all, where ideals are few.

An ideal (downset) holds with every group all that its forward edges come from. What the
first stages of a pipeline hold together is an ideal, so a pipeline is a chain of them:

    {} = I0  <=  I1  <=  I2  <=  all          stage n holds what In has and In-1 has not

A chain of groups has as many ideals as groups, and each independent branch multiplies.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from splitnet.planner.search.chain import cut_table, state_count
from splitnet.planner.search.problem import Problem, device_classes

__all__ = ["MAX_STATES", "ideal_partition", "ideal_seconds", "ideals_of"]

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MAX_STATES = 600


def ideals_of(problem: Problem, most: int) -> list[int] | None:
    """Return all ideals as sets of bits, the empty one first; None beyond `most`.

    A smaller ideal comes before a larger one. O(ideals x width).
    """
    if problem.group_count >= most:  # even a chain has one more than groups
        return None
    before = [0] * problem.group_count
    after: list[list[int]] = [[] for _ in before]
    for a, b in problem.forward:
        before[b] |= 1 << a
        after[a].append(b)
    first = sum(1 << group for group, mask in enumerate(before) if not mask)
    found: list[int] = []
    level = {0: first}
    while level:
        found.extend(level)
        larger: dict[int, int] = {}
        for ideal, ready in level.items():
            rest = ready
            while rest:
                bit = rest & -rest
                rest ^= bit
                grown = ideal | bit
                if grown in larger:
                    continue
                able = ready ^ bit
                for target in after[bit.bit_length() - 1]:
                    if not before[target] & ~grown:
                        able |= 1 << target
                larger[grown] = able
                if len(found) + len(larger) > most:
                    return None
        level = larger
    return found


def ideal_seconds(problem: Problem, ideals: int) -> float:
    """Return roughly how long `ideal_partition` takes, erring on the slow side."""
    paying = sum(
        any(net.seconds[kind] for net in problem.nets)
        for kind in range(problem.kind_count)
    )
    pins = problem.group_count + 4 * paying * len(problem.nets)
    states = state_count(problem) * (1 + max(device_classes(problem), default=0))
    return ideals**2 * (3e-10 * pins + 1.2e-8 * (states + 6))


def ideal_partition(
    problem: Problem, ideals: Sequence[int]
) -> tuple[float, list[int]] | None:
    """Return the best pipeline of all, its value and assignment; None if none fits.

    Objective: max-load over plans whose devices can be ordered so that no forward edge
    goes back: every such plan is a chain of the `ideals`, which must be all of them.
    The forward graph must have no circle (`fuse_cycles`). O(ideals^2 x (pins + states))
    in numpy, 8 bytes x ideals^2 of memory per class of devices. Source: the dynamic
    program of Tarnawski et al. (NeurIPS 2020), all pairs of ideals at once.
    """
    if state_count(problem) > MAX_STATES:
        raise ValueError("too many classes of devices for the exact program")
    inside = _members(ideals, problem.group_count)
    found = cut_table(_ideal_loads(problem, inside), problem)
    if found is None:
        return None
    value, cuts = found
    assignment = [0] * problem.group_count
    for device, start, stop in cuts:
        for group in np.flatnonzero(inside[stop] & ~inside[start]):
            assignment[group] = device
    return value, assignment


def _members(ideals: Sequence[int], groups: int) -> NDArray[np.bool_]:
    """Spread the bits: row per ideal, column per group."""
    width = (groups + 7) // 8
    packed = b"".join(ideal.to_bytes(width, "little") for ideal in ideals)
    rows = np.frombuffer(packed, dtype=np.uint8).reshape(len(ideals), width)
    bits = np.unpackbits(rows, axis=1, bitorder="little", count=groups)
    return bits.astype(np.bool_)


def _ideal_loads(problem: Problem, inside: NDArray[np.bool_]) -> list[Floats]:
    """Return per device the load of ideal j without ideal i at [i, j]; inf: not so."""
    real = inside.astype(np.float32)
    apart = real @ real.T < real.sum(axis=1)[:, None]
    flat = inside.astype(np.float64)
    times = np.asarray(problem.seconds, dtype=np.float64)
    size = flat @ np.asarray(problem.size_bytes, dtype=np.float64)
    transfer = _transfers(problem, inside)
    shared: dict[int, Floats] = {}
    result = []
    for device, number in enumerate(device_classes(problem)):
        if number not in shared:
            kind = problem.devices[device].kind
            able = np.asarray([device in row for row in problem.allowed])
            work = flat @ np.where(able, times[:, kind], 0.0)
            load = transfer[kind] + (work[None, :] - work[:, None])
            np.fill_diagonal(load, 0.0)
            bad = flat @ (~able).astype(np.float64)
            load[bad[None, :] - bad[:, None] > 0.5] = np.inf
            # Rounding in the sums must not refuse what exactly fits.
            capacity = problem.devices[device].capacity_bytes * (1 + 1e-13)
            load[size[None, :] - size[:, None] > capacity] = np.inf
            load[apart] = np.inf
            shared[number] = load
        result.append(shared[number])
    return result


def _transfers(problem: Problem, inside: NDArray[np.bool_]) -> list[Floats]:
    """Return per kind what the nets cost that ideal j without ideal i cuts, at [i, j].

    A net is cut unless no pin is between the two (both hold equally many) or all are
    (j holds all, i none). Either is a product of what is known of i and of j alone, so
    the sum over nets is a product of matrices.
    """
    nets = problem.nets
    pins = np.zeros((problem.group_count, len(nets)), dtype=np.float32)
    for index, net in enumerate(nets):
        pins[[net.producer, *net.consumers], index] = 1.0
    held: Counts = np.rint(inside.astype(np.float32) @ pins).astype(np.int64)
    whole: Counts = np.rint(pins.sum(axis=0)).astype(np.int64)
    tables = []
    for kind in range(problem.kind_count):
        cost = np.asarray([net.seconds[kind] for net in nets], dtype=np.float64)
        table = np.full((len(inside), len(inside)), float(cost.sum()))
        for number in range(int(whole.max(initial=-1)) + 1 if cost.any() else 0):
            some = np.flatnonzero((whole >= number) & (cost > 0))
            same = (held[:, some] == number).astype(np.float64)
            table -= (same * cost[some]) @ same.T
        if cost.any():
            none = (held == 0).astype(np.float64)
            table -= (none * cost) @ (held == whole).astype(np.float64).T
        tables.append(table)
    return tables
