"""Simulated annealing of one objective, with the loads of devices kept up to date.

Kirkpatrick, Gelatt and Vecchi (1983). Proposals move a group to a device, mostly one
where a group is that it shares a net with, or let two groups change places; those of a
makespan may move blocks of neighbours. They are accepted by one of two energies:

loads     Sum over devices of (load / largest load) to the power 12 or 24, so that all
          busy devices count and the busiest most; with a cut penalty, times
          (1 + penalty x cut size) to the same power. Too little memory costs extra, by
          a factor that adapts until plans fit.
makespan  Seconds of the step times (1 + penalty x cut size). The limit that a proposal
          must keep is drawn before it is evaluated (the threshold of Metropolis et al.
          1953), so that most refused ones end early. What a device has no room
          for is refused.

Compiled functions consist of loops over scalars: numba compiles them several times
faster than array expressions. It compiles a version per energy, without the other: what
asks whether `tasks is None` is left out before types are inferred.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner.engine.compiler import (
    RandomState,
    below,
    compiled,
    entry,
    uniform,
)
from splitnet.planner.engine.load_graph import (
    Bools,
    Floats,
    ForwardGraph,
    Ints,
    LoadGraph,
    bytes_per_device,
    cut_size,
    loads,
    pins_per_device,
)
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.tasks import EVENTS, Tasks

CONTIGUITIES = ("free", "convex", "pipeline")
"""Sets of assignments: all; no device's forward calls are left and entered again;
devices stand in a line that no forward edge goes back on."""

BEST, MEMORY, CUTS, VALUE = range(4)
"""Numbers of a state: the best value so far, the memory penalty, the cut size, and the
value (of a makespan)."""

STEPS_PER_EVENT, STEPS_PER_RUN = 0.025, 0.25
"""Steps of an event of the makespan, and of a run of it besides."""

_GUIDED, _SWAPS, _BLOCKS = 0.5, 0.1, 0.6
"""Of the proposals for a step, those that move something on the critical path; of all,
those that exchange two groups; of the others for a step, those that move blocks."""


class State(NamedTuple):
    """An assignment with load, bytes, energy per device, and pins per net and device.

    `best` is the best assignment so far, `numbers` holds its value and more. Scratch:
    the groups of a proposal, and stamps of groups with the last stamp behind.
    """

    place: Ints
    best: Ints
    load: Floats
    used: Floats
    energy: Floats
    pins: Ints
    numbers: Floats
    block: Ints
    mark: Ints


class Rules(NamedTuple):
    """An annealing schedule of so many steps, and the set of assignments to stay in.

    A proposal takes `each`. `hot` and `cold` are fractions of the energy, held for a
    number of proposals. Blocks have at most `largest` groups. `mode` is a number in
    `CONTIGUITIES`, `line` the place of each device in the pipeline, `left` scratch per
    forward call.
    """

    steps: float
    each: float
    proposals: int
    hot: float
    cold: float
    exponent: int
    largest: int
    cut_penalty: float
    mode: int
    line: Ints
    forward: ForwardGraph
    left: Bools


def state_of(graph: LoadGraph, place: Ints) -> State:
    """State of an assignment; no value is known yet."""
    return State(
        place.copy(),
        place.copy(),
        np.array(loads(graph, place)),
        bytes_per_device(graph, place),
        np.zeros(len(graph.capacity_bytes)),
        pins_per_device(graph, place),
        np.array([inf, 1.0, float(cut_size(graph, place)), inf]),
        np.zeros(len(place) + 1, np.int64),
        np.zeros(len(place) + 1, np.int64),
    )


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
def shift(graph: LoadGraph, state: State, group: int, device: int) -> None:
    """Move a group to another device."""
    a = state.place[group]
    added = change(graph, state.pins, group, a, device)
    move(graph, state, group, a, device, added)


@compiled
def may_be(graph: LoadGraph, rules: Rules, place: Ints, group: int) -> bool:
    """Whether a group may be where it is, whatever the memory and convex sets."""
    device = place[group]
    if not graph.allowed[group, device]:
        return False
    for e in range(graph.apart_start[group], graph.apart_start[group + 1]):
        if place[graph.apart[e]] == device:
            return False
    if rules.mode == 2:
        here, start = rules.line[device], graph.predecessor_start
        for e in range(start[group], start[group + 1]):
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
        if left[call] or place[forward.group[call]] == device:
            first = forward.successor_start[call]
            for e in range(first, forward.successor_start[call + 1]):
                target = forward.successors[e]
                if place[forward.group[target]] != device:
                    left[target] = True
                elif left[call]:
                    return False
    return True


@compiled
def grow(graph: LoadGraph, state: State, seed: int, first: int, most: int) -> int:
    """Write a block around a seed, from `first` on, breadth first; returns its end.

    The groups are on one device and at most `most`; edges are followed both ways.
    """
    place, block, mark = state.place, state.block, state.mark
    stamp = mark[len(place)] = mark[len(place)] + 1
    block[first], mark[seed] = seed, stamp
    head, end = first, first + 1
    while head < end:
        u = block[head]
        head += 1
        for back in range(2):
            start, items = graph.successor_start, graph.successors
            if back:
                start, items = graph.predecessor_start, graph.predecessors
            for e in range(start[u], start[u + 1]):
                v = items[e]
                if end < first + most and mark[v] != stamp and place[v] == place[u]:
                    block[end], mark[v] = v, stamp
                    end += 1
    return end


@compiled
def exchange(
    graph: LoadGraph, state: State, device: int, size: int, random: RandomState
) -> int:
    """Add groups to a block that leave its new device, until it has room there.

    They are neighbours, too, around any group of the device. Returns the end.
    """
    place, block = state.place, state.block
    need = state.used[device] - graph.capacity_bytes[device]
    for i in range(size):
        need += graph.size_bytes[block[i]]
    for _ in range(30 if need > 0 else 0):
        y = below(random, len(place))
        if place[y] == device:
            last, end = grow(graph, state, y, size, len(place) - size), size
            while end < last and need > 0:
                need -= graph.size_bytes[block[end]]
                end += 1
            return end
    return size


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
    """Keep the loads' assignment if it fits and is better; whether it fits."""
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


@compiled
def propose(graph: LoadGraph, state: State, x: int, random: RandomState) -> int:
    """A device for a group, mostly one where it shares a net with a group."""
    first = graph.group_start[x]
    degree = graph.group_start[x + 1] - first
    if degree and uniform(random) < 0.9:
        net = graph.group_nets[first + below(random, degree)]
        first, last = graph.net_start[net], graph.net_start[net + 1]
        near = graph.net_pins[first + below(random, last - first - 1)]
        device: int = state.place[graph.net_pins[last - 1] if near == x else near]
        return device
    return below(random, len(state.load))


@entry
def anneal(
    graph: LoadGraph,
    rules: Rules,
    state: State,
    movable: Ints,
    tasks: Tasks | None,
    spent: float,
    until: float,
    random: RandomState,
) -> float:
    """Cool down from the temperature after `spent` steps; the steps until now."""
    place, load, used, energy = state.place, state.load, state.used, state.energy
    numbers, block, room = state.numbers, state.block, graph.capacity_bytes
    exponent, penalty = rules.exponent, rules.cut_penalty
    while spent < until:
        part, evaluated = min(1.0, spent / rules.steps), 0
        heat = rules.hot * (rules.cold / rules.hot) ** part
        if tasks is not None:
            heat *= numbers[BEST]
        else:
            scale, total, factor = 0.0, 0.0, 1.0
            for d in range(len(load)):
                scale = max(scale, load[d])
            scale = 1.0 / max(scale, 1e-300)
            for d in range(len(load)):
                energy[d] = power(load[d] * scale, exponent)
                total += energy[d]
                energy[d] += numbers[MEMORY] * max(0.0, used[d] / room[d] - 1.0)
            heat *= total
            base = 1.0 + penalty * numbers[CUTS]
        for _ in range(rules.proposals):
            x = movable[below(random, len(movable))]
            if tasks is not None and uniform(random) < _GUIDED:
                x = tasks.critical[below(random, tasks.critical[-1])]
            a, size, end = place[x], 1, 1
            block[0] = x
            if uniform(random) < _SWAPS:
                block[1] = movable[below(random, len(movable))]
                b, end = place[block[1]], 2
            else:
                b = propose(graph, state, x, random)
                if tasks is not None:
                    if uniform(random) < _BLOCKS:
                        most = int(np.exp(uniform(random) * np.log(rules.largest)))
                        size = grow(graph, state, x, size - 1, 1 + most)
                    if a != b:
                        end = exchange(graph, state, b, size, random)
            if a == b or not graph.allowed[x, b]:
                continue
            used_a, used_b = used[a], used[b]
            for i in range(end - 1):
                shift(graph, state, block[i], b if i < size else a)
            z = block[end - 1]  # the last move of the proposal
            s, t = (a, b) if end == size else (b, a)
            added = change(graph, state.pins, z, s, t)
            full_s = (used[s] - graph.size_bytes[z]) / room[s]
            full_t = (used[t] + graph.size_bytes[z]) / room[t]
            if tasks is not None:
                was_s, was_t = (used_a, used_b) if end == size else (used_b, used_a)
                accepted = full_s <= max(1.0, was_s / room[s])
                accepted &= full_t <= max(1.0, was_t / room[t])
            else:
                energy_s = power((load[s] + added[0]) * scale, exponent)
                energy_t = power((load[t] + added[1]) * scale, exponent)
                energy_s += numbers[MEMORY] * max(0.0, full_s - 1.0)
                energy_t += numbers[MEMORY] * max(0.0, full_t - 1.0)
                rise, scaled = energy_s + energy_t - energy[s] - energy[t], factor
                if penalty > 0.0:
                    cuts = numbers[CUTS] + added[2]
                    scaled = power((1.0 + penalty * cuts) / base, exponent)
                    whole = 0.0
                    for d in range(len(load)):
                        whole += energy[d]
                    rise = (whole + rise) * scaled - whole * factor
                accepted = rise <= 0 or (
                    rise < 20.0 * heat and uniform(random) < np.exp(-rise / heat)
                )
            if accepted:
                move(graph, state, z, s, t, added)
                for i in range(end):
                    accepted &= may_be(graph, rules, place, block[i])
                if rules.mode == 1 and accepted:
                    accepted = is_convex(rules, place, s) and is_convex(rules, place, t)
                if tasks is not None and accepted:
                    limit = numbers[VALUE] - heat * np.log(1.0 - uniform(random))
                    cut = 1.0 + penalty * numbers[CUTS]
                    value = makespan(tasks, place, limit / cut) * cut
                    accepted = value < np.inf
                    evaluated += 1
                if not accepted:
                    shift(graph, state, z, s)
            if not accepted:
                for i in range(end - 1):
                    shift(graph, state, block[i], a if i < size else b)
            elif tasks is not None:
                numbers[VALUE] = value
                if value < numbers[BEST]:
                    numbers[BEST] = value
                    for group in range(len(place)):
                        state.best[group] = place[group]
            else:
                energy[s], energy[t], factor = energy_s, energy_t, scaled
                if load[s] < numbers[BEST] and load[t] < numbers[BEST]:
                    note_best(graph, state, penalty)
        spent += rules.each * rules.proposals
        if tasks is not None:
            spent += STEPS_PER_RUN * evaluated + STEPS_PER_EVENT * tasks.counted[EVENTS]
            tasks.counted[EVENTS] = 0
        else:
            price = numbers[MEMORY] * (0.8 if note_best(graph, state, penalty) else 1.5)
            numbers[MEMORY] = min(1e4, max(1e-3, price))
    return spent
