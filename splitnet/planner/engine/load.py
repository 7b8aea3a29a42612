"""Loads of devices, kept up to date move by move, and one annealing schedule on them.

Simulated annealing (Kirkpatrick, Gelatt and Vecchi 1983). The energy is the sum over
devices of (load / largest load at the start) to the power 12 or 24, so that all busy
devices count and the busiest most. Too little memory costs extra, by a factor that
adapts until plans fit.
"""

from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    uniform,
)
from splitnet.planner.problem import (
    Bools,
    Floats,
    ForwardGraph,
    Ints,
    LoadGraph,
    Problem,
)

__all__ = [
    "CONVEX",
    "FREE",
    "PIPELINE",
    "Cooling",
    "Rules",
    "cool",
    "fits",
    "is_contiguous",
    "rules_of",
    "load_tables",
]

FREE, CONVEX, PIPELINE = 0, 1, 2
"""Sets of assignments: any; no device's forward calls are left and entered again;
devices stand in a line that no forward edge goes back on."""

Tables = tuple[Floats, Floats, Ints]
"""Load and bytes of every device, and the number of pins of every net on each."""


class Rules(NamedTuple):
    """The set of assignments to stay in, and what tells whether one is in it.

    `line` is the place of each device in the pipeline, `left` scratch per forward call.
    """

    mode: int
    line: Ints
    forward: ForwardGraph
    left: Bools


def rules_of(problem: Problem, contiguity: str) -> Rules:
    """Rules for "free", "convex" or "pipeline"; the line is not known yet."""
    mode = ("free", "convex", "pipeline").index(contiguity)
    forward = problem.forward
    line = np.zeros(problem.device_count, np.int32)
    return Rules(mode, line, forward, np.zeros(len(forward.group), np.bool_))


@compiled
def load_tables(graph: LoadGraph, place: Ints) -> Tables:
    """Tables of an assignment."""
    devices, nets = len(graph.capacity_bytes), len(graph.net_start) - 1
    load, used = np.zeros(devices), np.zeros(devices)
    pins = np.zeros((nets, devices), np.int32)
    for group in range(len(place)):
        load[place[group]] += graph.seconds[group, graph.kind[place[group]]]
        used[place[group]] += graph.size_bytes[group]
    for net in range(nets):
        size = graph.net_start[net + 1] - graph.net_start[net]
        for e in range(graph.net_start[net], graph.net_start[net + 1]):
            pins[net, place[graph.net_pins[e]]] += 1
        for device in range(devices):
            if 0 < pins[net, device] < size:
                load[device] += graph.net_seconds[net, graph.kind[device]]
    return load, used, pins


@compiled
def change(
    graph: LoadGraph, pins: Ints, group: int, a: int, b: int
) -> tuple[float, float]:
    """What moving a group from device a to device b adds to their loads."""
    kind_a, kind_b = graph.kind[a], graph.kind[b]
    add_a, add_b = -graph.seconds[group, kind_a], graph.seconds[group, kind_b]
    for e in range(graph.group_start[group], graph.group_start[group + 1]):
        net = graph.group_nets[e]
        size = graph.net_start[net + 1] - graph.net_start[net]
        on_a, on_b = pins[net, a], pins[net, b]
        if on_a == size:
            add_a += graph.net_seconds[net, kind_a]
        elif on_a == 1:
            add_a -= graph.net_seconds[net, kind_a]
        if on_b == 0:
            add_b += graph.net_seconds[net, kind_b]
        elif on_b == size - 1:
            add_b -= graph.net_seconds[net, kind_b]
    return add_a, add_b


@compiled
def move(
    graph: LoadGraph,
    place: Ints,
    load: Floats,
    used: Floats,
    pins: Ints,
    group: int,
    b: int,
    add_a: float,
    add_b: float,
) -> None:
    """Move a group to device b; what it adds to the two loads comes from `change`."""
    a = place[group]
    place[group] = b
    load[a] += add_a
    load[b] += add_b
    used[a] -= graph.size_bytes[group]
    used[b] += graph.size_bytes[group]
    for e in range(graph.group_start[group], graph.group_start[group + 1]):
        pins[graph.group_nets[e], a] -= 1
        pins[graph.group_nets[e], b] += 1


@compiled
def power(x: float, exponent: int) -> float:
    """The 12th or the 24th power, 0 below 0."""
    x = max(x, 0.0)
    x2 = x * x
    x4 = x2 * x2
    x8 = x4 * x4
    return x8 * x4 if exponent == 12 else x8 * x8 * x8


@compiled
def goes_forward(
    graph: LoadGraph, place: Ints, line: Ints, group: int, device: int
) -> bool:
    """Whether a group may go to a device without a forward edge back along the line."""
    for e in range(graph.predecessor_start[group], graph.predecessor_start[group + 1]):
        if line[place[graph.predecessors[e]]] > line[device]:
            return False
    for e in range(graph.successor_start[group], graph.successor_start[group + 1]):
        if line[place[graph.successors[e]]] < line[device]:
            return False
    return True


@compiled
def is_convex(rules: Rules, place: Ints, device: int) -> bool:
    """Whether no path of forward calls leaves the device and comes back."""
    forward, left = rules.forward, rules.left
    left[:] = False
    for call in forward.order:
        inside = place[forward.group[call]] == device
        if inside or left[call]:
            first, last = (
                forward.successor_start[call],
                forward.successor_start[call + 1],
            )
            for e in range(first, last):
                target = forward.successors[e]
                if place[forward.group[target]] != device:
                    left[target] = True
                elif left[call]:
                    return False
    return True


@compiled
def is_pipeline(graph: LoadGraph, place: Ints) -> bool:
    """Whether devices can stand in a line that no forward edge goes back on."""
    devices = len(graph.capacity_bytes)
    feeds = np.zeros((devices, devices), np.bool_)
    for u in range(len(place)):
        for e in range(graph.successor_start[u], graph.successor_start[u + 1]):
            feeds[place[u], place[graph.successors[e]]] = True
    waits = np.zeros(devices, np.int32)
    for a in range(devices):
        feeds[a, a] = False
        for b in range(devices):
            waits[b] += feeds[a, b]
    done = 0
    for _ in range(devices):
        for d in range(devices):
            if waits[d] == 0:
                waits[d] = -1
                done += 1
                for b in range(devices):
                    waits[b] -= feeds[d, b]
    return done == devices


@compiled
def is_contiguous(graph: LoadGraph, rules: Rules, place: Ints) -> bool:
    """Whether an assignment is in the set of the rules."""
    if rules.mode == PIPELINE:
        return is_pipeline(graph, place)
    if rules.mode == CONVEX:
        for device in range(len(graph.capacity_bytes)):
            if not is_convex(rules, place, device):
                return False
    return True


@compiled
def is_apart(
    graph: LoadGraph, place: Ints, group: int, device: int, leaving: int
) -> bool:
    """Whether nothing on the device, but for a leaving group, must be elsewhere."""
    for e in range(graph.apart_start[group], graph.apart_start[group + 1]):
        other = graph.apart[e]
        if other != leaving and place[other] == device:
            return False
    return True


@compiled
def fits(graph: LoadGraph, used: Floats) -> bool:
    """Whether every device has room for what it holds."""
    for device in range(len(used)):
        if used[device] > graph.capacity_bytes[device]:
            return False
    return True


@compiled
def stride(
    graph: LoadGraph,
    rules: Rules,
    place: Ints,
    tables: Tables,
    movable: Ints,
    best: float,
    best_place: Ints,
    proposals: int,
    heat: float,
    exponent: int,
    swaps: float,
    stray: float,
    penalty: float,
    state: RandomState,
) -> tuple[float, float]:
    """Proposals at one temperature; the best value so far and the new penalty."""
    load, used, pins = tables
    mode, line, separate = rules.mode, rules.line, len(graph.apart) > 0
    devices, count = len(load), len(movable)
    scale = 1.0 / max(load.max(), 1e-300)
    gain = 1e-9 if len(place) < 5000 else 1e-4
    energy, total = np.empty(devices), 0.0
    for d in range(devices):
        energy[d] = power(load[d] * scale, exponent)
        total += energy[d]
        if used[d] > graph.capacity_bytes[d]:
            energy[d] += penalty * (used[d] / graph.capacity_bytes[d] - 1.0)
    heat *= total
    for _ in range(proposals):
        # A group goes mostly to where a group is that it shares a net with.
        x, y = movable[below(state, count)], -1
        a = place[x]
        b = a
        if uniform(state) < swaps:
            y = movable[below(state, count)]
            b = place[y]
        else:
            net_first = graph.group_start[x]
            degree = graph.group_start[x + 1] - net_first
            if degree and uniform(state) < 0.7:
                net = graph.group_nets[net_first + below(state, degree)]
                first, last = graph.net_start[net], graph.net_start[net + 1]
                near = graph.net_pins[first + below(state, last - first - 1)]
                if near == x:
                    near = graph.net_pins[last - 1]
                b = place[near]
            if a == b and uniform(state) < stray:
                b = below(state, devices)
        if a == b or not graph.allowed[x, b] or (y >= 0 and not graph.allowed[y, a]):
            continue
        if mode == PIPELINE and not goes_forward(graph, place, line, x, b):
            continue
        if separate and not is_apart(graph, place, x, b, y):
            continue
        if separate and y >= 0 and not is_apart(graph, place, y, a, x):
            continue
        out, into = change(graph, pins, x, a, b)
        load_a, load_b = load[a] + out, load[b] + into
        used_a, used_b = used[a] - graph.size_bytes[x], used[b] + graph.size_bytes[x]
        if y >= 0:
            move(graph, place, load, used, pins, x, b, out, into)
            if mode == PIPELINE and not goes_forward(graph, place, line, y, a):
                out, into = change(graph, pins, x, b, a)
                move(graph, place, load, used, pins, x, a, out, into)
                continue
            out, into = change(graph, pins, y, b, a)
            load_a, load_b = load[a] + into, load[b] + out
            used_a, used_b = (
                used[a] + graph.size_bytes[y],
                used[b] - graph.size_bytes[y],
            )
        energy_a = power(load_a * scale, exponent)
        energy_b = power(load_b * scale, exponent)
        if used_a > graph.capacity_bytes[a]:
            energy_a += penalty * (used_a / graph.capacity_bytes[a] - 1.0)
        if used_b > graph.capacity_bytes[b]:
            energy_b += penalty * (used_b / graph.capacity_bytes[b] - 1.0)
        rise = energy_a + energy_b - energy[a] - energy[b]
        accepted = rise <= 0 or (
            rise < 20.0 * heat and uniform(state) < np.exp(-rise / heat)
        )
        if accepted and y >= 0:
            move(graph, place, load, used, pins, y, a, out, into)
        elif accepted:
            move(graph, place, load, used, pins, x, b, out, into)
        if accepted and mode == CONVEX:
            accepted = is_convex(rules, place, a) and is_convex(rules, place, b)
            if not accepted and y >= 0:
                out, into = change(graph, pins, y, a, b)
                move(graph, place, load, used, pins, y, b, out, into)
        if not accepted:
            if place[x] == b:
                out, into = change(graph, pins, x, b, a)
                move(graph, place, load, used, pins, x, a, out, into)
            continue
        energy[a], energy[b] = energy_a, energy_b
        if load[a] < best and load[b] < best:
            top = load.max()
            if top < best * (1 - gain) and fits(graph, used):
                best = top
                best_place[:] = place
    enough = fits(graph, used)
    if enough and load.max() < best:
        best = load.max()
        best_place[:] = place
    return best, min(1e4, max(1e-3, penalty * (0.8 if enough else 1.5)))


class Cooling(NamedTuple):
    """An annealing schedule; `hot` and `cold` are fractions of the energy."""

    strides: int
    proposals: int
    hot: float
    cold: float
    exponent: int
    swaps: float
    stray: float


@compiled
def cool(
    graph: LoadGraph,
    rules: Rules,
    place: Ints,
    tables: Tables,
    movable: Ints,
    best: float,
    best_place: Ints,
    penalty: float,
    cooling: Cooling,
    first: int,
    last: int,
    state: RandomState,
) -> tuple[float, float]:
    """Strides `first` to `last` of a schedule; the best value and the penalty."""
    for number in range(first, last):
        heat = cooling.hot * (cooling.cold / cooling.hot) ** (number / cooling.strides)
        best, penalty = stride(
            graph,
            rules,
            place,
            tables,
            movable,
            best,
            best_place,
            cooling.proposals,
            heat,
            cooling.exponent,
            cooling.swaps,
            cooling.stray,
            penalty,
            state,
        )
    return best, penalty
