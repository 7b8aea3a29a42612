"""Simulated annealing on the loads of devices, which are kept up to date move by move.

Kirkpatrick, Gelatt and Vecchi (1983). The energy is the sum over devices of (load /
largest load at the start) to the power 12 or 24, so that all busy devices count and the
busiest most; with a cut penalty, times 1 + penalty x cut size to the same power. Too
little memory costs extra, by a factor that adapts until plans fit.

Compiled functions consist of loops over scalars: numba compiles them several times
faster than array expressions.
"""

from math import ceil, inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    entry,
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
    "BEST",
    "CONVEX",
    "CUTS",
    "FREE",
    "MEMORY",
    "PIPELINE",
    "Cooling",
    "Rules",
    "VALUE",
    "State",
    "change",
    "cool",
    "cooling_of",
    "fill",
    "is_convex",
    "may_go",
    "move",
    "rules_of",
    "state_of",
]

FREE, CONVEX, PIPELINE = 0, 1, 2
"""Sets of assignments: any; no device's forward calls are left and entered again;
devices stand in a line that no forward edge goes back on."""

BEST, MEMORY, CUTS, VALUE = range(4)
"""Numbers of a state: the best value so far, the memory penalty, the cut size, and the
value (of a makespan)."""


class Rules(NamedTuple):
    """The set of assignments to stay in, and what tells whether one is in it.

    `line` is the place of each device in the pipeline, `left` scratch per forward call.
    """

    mode: int
    line: Ints
    forward: ForwardGraph
    left: Bools


def rules_of(problem: Problem, contiguity: str, line: Ints | None = None) -> Rules:
    """Rules for "free", "convex" or "pipeline" along a line of devices."""
    mode = ("free", "convex", "pipeline").index(contiguity)
    if line is None:
        line = np.arange(problem.device_count)
    forward = problem.forward
    return Rules(mode, line, forward, np.zeros(len(forward.group), np.bool_))


class State(NamedTuple):
    """An assignment with load, bytes, energy per device, and pins per net and device.

    `best` is the best assignment so far, `numbers` holds its value and more.
    """

    place: Ints
    best: Ints
    load: Floats
    used: Floats
    energy: Floats
    pins: Ints
    numbers: Floats


def state_of(graph: LoadGraph, place: Ints) -> State:
    """State of an assignment, which is the best one so far."""
    devices, nets = len(graph.capacity_bytes), len(graph.net_start) - 1
    state = State(
        place.copy(),
        place.copy(),
        np.zeros(devices),
        np.zeros(devices),
        np.zeros(devices),
        np.zeros((nets, devices), np.int64),
        np.array([inf, 1.0, 0.0, inf]),
    )
    fill(graph, state)
    return state


@entry
def fill(graph: LoadGraph, state: State) -> None:
    """Compute loads, bytes, pins and cut size, which are all zero so far."""
    load, used, pins = state.load, state.used, state.pins
    for group in range(len(state.place)):
        device = state.place[group]
        load[device] += graph.seconds[group, graph.kind[device]]
        used[device] += graph.size_bytes[group]
    for net in range(len(graph.net_start) - 1):
        size = graph.net_start[net + 1] - graph.net_start[net]
        for e in range(graph.net_start[net], graph.net_start[net + 1]):
            pins[net, state.place[graph.net_pins[e]]] += 1
        touched = 0
        for device in range(len(load)):
            touched += pins[net, device] > 0
            if 0 < pins[net, device] < size:
                load[device] += graph.net_seconds[net, graph.kind[device]]
        state.numbers[CUTS] += (touched - 1) * graph.net_weight[net]


@compiled
def change(
    graph: LoadGraph, pins: Ints, group: int, a: int, b: int
) -> tuple[float, float, float]:
    """What moving a group from device a to b adds to their loads and to the cuts."""
    kind_a, kind_b = graph.kind[a], graph.kind[b]
    add_a, add_b = -graph.seconds[group, kind_a], graph.seconds[group, kind_b]
    cuts = 0.0
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
            cuts += graph.net_weight[net]
        elif on_b == size - 1:
            add_b -= graph.net_seconds[net, kind_b]
        if on_a == 1:
            cuts -= graph.net_weight[net]
    return add_a, add_b, cuts


@compiled
def move(
    graph: LoadGraph,
    state: State,
    group: int,
    a: int,
    b: int,
    added: tuple[float, float, float],
) -> None:
    """Move a group from device a to b; what it adds comes from `change`."""
    state.place[group] = b
    state.load[a] += added[0]
    state.load[b] += added[1]
    state.numbers[CUTS] += added[2]
    state.used[a] -= graph.size_bytes[group]
    state.used[b] += graph.size_bytes[group]
    for e in range(graph.group_start[group], graph.group_start[group + 1]):
        state.pins[graph.group_nets[e], a] -= 1
        state.pins[graph.group_nets[e], b] += 1


@compiled
def may_go(
    graph: LoadGraph, rules: Rules, place: Ints, group: int, device: int, leaving: int
) -> bool:
    """Whether a group may be on a device that another group, if any, is leaving.

    In a pipeline no forward edge may go back; `apart` groups may not meet.
    """
    if not graph.allowed[group, device]:
        return False
    for e in range(graph.apart_start[group], graph.apart_start[group + 1]):
        if graph.apart[e] != leaving and place[graph.apart[e]] == device:
            return False
    if rules.mode == PIPELINE:
        here = rules.line[device]
        for e in range(
            graph.predecessor_start[group], graph.predecessor_start[group + 1]
        ):
            if rules.line[place[graph.predecessors[e]]] > here:
                return False
        for e in range(graph.successor_start[group], graph.successor_start[group + 1]):
            if rules.line[place[graph.successors[e]]] < here:
                return False
    return True


@compiled
def is_convex(rules: Rules, place: Ints, device: int) -> bool:
    """Whether no path of forward calls leaves the device and comes back."""
    forward, left = rules.forward, rules.left
    for call in range(len(left)):
        left[call] = False
    for i in range(len(forward.order)):
        call = forward.order[i]
        inside = place[forward.group[call]] == device
        if inside or left[call]:
            first = forward.successor_start[call]
            for e in range(first, forward.successor_start[call + 1]):
                target = forward.successors[e]
                if place[forward.group[target]] != device:
                    left[target] = True
                elif left[call]:
                    return False
    return True


@compiled
def power(x: float, exponent: int) -> float:
    """The 12th or the 24th power, 0 below 0."""
    if x <= 0.0:
        return 0.0
    x4 = x * x * x * x
    x12 = x4 * x4 * x4
    return x12 if exponent == 12 else x12 * x12


@compiled
def note_best(graph: LoadGraph, state: State, cut_penalty: float) -> bool:
    """Keep the assignment if it fits and is better; whether it fits."""
    top = 0.0
    for device in range(len(state.load)):
        if state.used[device] > graph.capacity_bytes[device]:
            return False
        top = max(top, state.load[device])
    top *= 1.0 + cut_penalty * state.numbers[CUTS]
    gain = 1e-9 if len(state.place) < 5000 else 1e-4
    if top < state.numbers[BEST] * (1 - gain):
        state.numbers[BEST] = top
        for group in range(len(state.place)):
            state.best[group] = state.place[group]
    return True


class Cooling(NamedTuple):
    """An annealing schedule; `hot` and `cold` are fractions of the energy.

    Of the proposals, a fraction `swaps` exchanges two groups; `stray` of the moves
    that have no neighbour to follow go to any device.
    """

    strides: int
    proposals: int
    hot: float
    cold: float
    exponent: int
    swaps: float
    stray: float
    cut_penalty: float


def cooling_of(
    steps: float, each: float, hot: float, exponent: int, cut_penalty: float
) -> Cooling:
    """A schedule of so many steps, if a proposal takes `each`."""
    total = max(256.0, steps / each)
    strides = int(min(200, max(8, total / 256)))
    proposals = ceil(total / strides)
    return Cooling(strides, proposals, hot, 0.002, exponent, 0.2, 1.0, cut_penalty)


@compiled
def stride(
    graph: LoadGraph,
    rules: Rules,
    state: State,
    movable: Ints,
    cooling: Cooling,
    heat: float,
    random: RandomState,
) -> None:
    """Proposals at one temperature, a fraction of the energy."""
    place, load, used, energy = state.place, state.load, state.used, state.energy
    penalty, exponent = state.numbers[MEMORY], cooling.exponent
    devices, count = len(load), len(movable)
    scale, total, factor = 0.0, 0.0, 1.0
    for d in range(devices):
        scale = max(scale, load[d])
    scale = 1.0 / max(scale, 1e-300)
    for d in range(devices):
        energy[d] = power(load[d] * scale, exponent)
        total += energy[d]
        if used[d] > graph.capacity_bytes[d]:
            energy[d] += penalty * (used[d] / graph.capacity_bytes[d] - 1.0)
    heat *= total
    base = 1.0 + cooling.cut_penalty * state.numbers[CUTS]
    for _ in range(cooling.proposals):
        # A group goes mostly to where a group is that it shares a net with.
        x, y = movable[below(random, count)], -1
        a = place[x]
        b = a
        if uniform(random) < cooling.swaps:
            y = movable[below(random, count)]
            b = place[y]
        else:
            net_first = graph.group_start[x]
            degree = graph.group_start[x + 1] - net_first
            if degree and uniform(random) < 0.7:
                net = graph.group_nets[net_first + below(random, degree)]
                first, last = graph.net_start[net], graph.net_start[net + 1]
                near = graph.net_pins[first + below(random, last - first - 1)]
                if near == x:
                    near = graph.net_pins[last - 1]
                b = place[near]
            if a == b and uniform(random) < cooling.stray:
                b = below(random, devices)
        if a == b or not may_go(graph, rules, place, x, b, y):
            continue
        z, s, t = x, a, b  # the last move of the proposal
        if y >= 0:
            move(graph, state, x, a, b, change(graph, state.pins, x, a, b))
            if not may_go(graph, rules, place, y, a, x):
                move(graph, state, x, b, a, change(graph, state.pins, x, b, a))
                continue
            z, s, t = y, b, a
        added = change(graph, state.pins, z, s, t)
        energy_s = power((load[s] + added[0]) * scale, exponent)
        energy_t = power((load[t] + added[1]) * scale, exponent)
        full_s = (used[s] - graph.size_bytes[z]) / graph.capacity_bytes[s]
        full_t = (used[t] + graph.size_bytes[z]) / graph.capacity_bytes[t]
        if full_s > 1.0:
            energy_s += penalty * (full_s - 1.0)
        if full_t > 1.0:
            energy_t += penalty * (full_t - 1.0)
        rise = energy_s + energy_t - energy[s] - energy[t]
        scaled = factor
        if cooling.cut_penalty > 0.0:
            cuts = state.numbers[CUTS] + added[2]
            scaled = power((1.0 + cooling.cut_penalty * cuts) / base, exponent)
            whole = 0.0
            for d in range(devices):
                whole += energy[d]
            rise = (whole + rise) * scaled - whole * factor
        accepted = rise <= 0 or (
            rise < 20.0 * heat and uniform(random) < np.exp(-rise / heat)
        )
        if accepted:
            move(graph, state, z, s, t, added)
            if rules.mode == CONVEX:
                accepted = is_convex(rules, place, s) and is_convex(rules, place, t)
                if not accepted:
                    move(graph, state, z, t, s, change(graph, state.pins, z, t, s))
        if not accepted:
            if y >= 0:
                move(graph, state, x, b, a, change(graph, state.pins, x, b, a))
            continue
        energy[s], energy[t], factor = energy_s, energy_t, scaled
        if load[s] < state.numbers[BEST] and load[t] < state.numbers[BEST]:
            note_best(graph, state, cooling.cut_penalty)
    enough = note_best(graph, state, cooling.cut_penalty)
    state.numbers[MEMORY] = min(1e4, max(1e-3, penalty * (0.8 if enough else 1.5)))


@entry
def cool(
    graph: LoadGraph,
    rules: Rules,
    state: State,
    movable: Ints,
    cooling: Cooling,
    first: int,
    last: int,
    random: RandomState,
) -> None:
    """Strides `first` to `last` of a schedule."""
    for number in range(first, last):
        heat = cooling.hot * (cooling.cold / cooling.hot) ** (number / cooling.strides)
        stride(graph, rules, state, movable, cooling, heat, random)
