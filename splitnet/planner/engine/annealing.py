"""Simulated annealing: of the loads of devices, or of the makespan of a step.

Kirkpatrick, Gelatt and Vecchi (1983). Proposals move a group to a device, mostly one
where a group is that it shares a net with, or let two groups change places; those of a
makespan may move blocks of neighbours. What is minimised:

loads     Sum over devices of (load / largest load) to the power 12, so that all busy
          devices count and the busiest most; with a cut penalty, times
          (1 + penalty x cut size) to the same power. Too little memory costs extra, by
          a factor that adapts until plans fit.
makespan  Seconds of the step times (1 + penalty x cut size). The limit that a proposal
          must keep is drawn before it is evaluated (the threshold of Metropolis et al.
          1953): most refused ones end early. What a device has no room for is refused.
"""

from math import inf
from typing import NamedTuple

import numpy as np

from splitnet.planner import load_graph
from splitnet.planner.engine.compiler import Xorshift, below, compiled, entry, uniform
from splitnet.planner.engine.makespan import makespan
from splitnet.planner.engine.tasks import Records, Tasks, fields, records
from splitnet.planner.load_graph import Bools, Floats, ForwardGraph, Ints, LoadGraph

# Steps of an event of the makespan, and of a run of it besides.
STEPS_PER_EVENT, STEPS_PER_RUN = 0.025, 0.25
# Of the proposals for a step, those that move something on the critical path; of all,
# those that exchange two groups; of the others for a step, those that move blocks.
_GUIDED, _SWAPS, _BLOCKS = 0.5, 0.1, 0.6
_STRETCH = 20_000.0  # steps between two looks at the clock
# What an excess of memory costs in the value of the best assignment for a step, a
# multiple of it; on the way that is adapted, as by Gendreau, Hertz and Laporte (1994).
OVERFULL = 30.0
# Values of the best assignment and of this one, cut size, price and excess of memory.
_NUMBERS = fields("", "best value cuts memory excess")


class State(NamedTuple):
    """An assignment with load, bytes, energy per device, and pins per net and device.

    `best` is the best assignment so far, `movable` what may move. Scratch: the groups
    of a proposal, and stamps of groups with the last stamp behind.
    """

    place: Ints
    best: Ints
    movable: Ints
    load: Floats
    used: Floats
    energy: Floats
    pins: Ints
    numbers: Records
    block: Ints
    mark: Ints
    random: Xorshift


class Rules(NamedTuple):
    """An annealing schedule of so many steps, and the set of assignments to stay in.

    A proposal takes `each`; a fraction, `guided`, prefers groups on the busiest device.
    `hot` and `cold` are fractions of the value, held for a number of proposals. `mode`
    is a number in `CONTIGUITIES`, `line` the order of devices; `left` is scratch.
    """

    steps: float
    each: float
    proposals: int
    hot: float
    cold: float
    guided: float
    cut_penalty: float
    mode: int
    line: Ints
    forward: ForwardGraph
    left: Bools


def state_of(graph: LoadGraph, place: Ints, random: Xorshift) -> State:
    """State of an assignment; no value is known yet."""
    cuts = load_graph.cut_size(graph, place)
    return State(
        *(place.copy(), place.copy(), np.flatnonzero(graph.allowed.sum(axis=1) > 1)),
        np.array(load_graph.loads(graph, place)),
        load_graph.bytes_per_device(graph, place),
        np.zeros(len(graph.capacity_bytes)),
        load_graph.pins_per_device(graph, place),
        records(_NUMBERS, 1, best=[inf], cuts=[cuts], memory=[1.0])[0],
        np.zeros(len(place) + 1, np.int64),
        np.zeros(len(place) + 1, np.int64),
        random,
    )


@compiled
def shift(graph: LoadGraph, state: State, group: int, b: int) -> None:
    """Move a group to device b; loads stay as they are."""
    a, pins = state.place[group], state.pins
    state.place[group] = b
    state.used[a] -= graph.size_bytes[group]
    state.used[b] += graph.size_bytes[group]
    for e in range(graph.group_start[group], graph.group_start[group + 1]):
        net = graph.group_nets[e]
        pins[net, a] -= 1
        pins[net, b] += 1
        if pins[net, a] == 0:
            state.numbers.cuts -= graph.net_weight[net]
        if pins[net, b] == 1:
            state.numbers.cuts += graph.net_weight[net]


@compiled
def is_convex(forward: ForwardGraph, left: Bools, place: Ints, device: int) -> bool:
    """Whether no path of forward calls leaves the device and comes back."""
    left[:] = False
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
def is_legal(
    graph: LoadGraph, rules: Rules, state: State, size: int, a: int, b: int
) -> bool:
    """Whether the block's first groups, now on a or b, may be there, memory aside."""
    place, line = state.place, rules.line
    for i in range(size):
        group = state.block[i]
        device = place[group]
        if not graph.allowed[group, device]:
            return False
        for e in range(graph.apart_start[group], graph.apart_start[group + 1]):
            if place[graph.apart[e]] == device:
                return False
        if rules.mode == 2:
            for side in range(2):
                start, ends = graph.successor_start, graph.successors
                if side:
                    start, ends = graph.predecessor_start, graph.predecessors
                for e in range(start[group], start[group + 1]):
                    if (line[place[ends[e]]] - line[device]) * (1 - 2 * side) < 0:
                        return False
    return rules.mode != 1 or (
        is_convex(rules.forward, rules.left, place, a)
        and is_convex(rules.forward, rules.left, place, b)
    )


@compiled
def propose(graph: LoadGraph, place: Ints, x: int, random: Xorshift) -> int:
    """A device for a group, mostly one where it shares a net with a group."""
    first = graph.group_start[x]
    degree = graph.group_start[x + 1] - first
    if degree and uniform(random) < 0.9:
        net = graph.group_nets[first + below(random, degree)]
        first, last = graph.net_start[net], graph.net_start[net + 1]
        near = graph.net_pins[first + below(random, last - first - 1)]
        device: int = place[graph.net_pins[last - 1] if near == x else near]
        return device
    return below(random, len(graph.capacity_bytes))


@compiled
def change(
    graph: LoadGraph, pins: Ints, group: int, a: int, b: int
) -> tuple[float, float, float]:
    """What moving a group from device a to b adds to their loads and to the cuts."""
    kind_a, kind_b, cuts = graph.kind[a], graph.kind[b], 0.0
    add_a, add_b = -graph.seconds[group, kind_a], graph.seconds[group, kind_b]
    for e in range(graph.group_start[group], graph.group_start[group + 1]):
        net = graph.group_nets[e]
        size, weight = graph.net_start[net + 1] - graph.net_start[net], 0
        on_a, on_b = pins[net, a], pins[net, b]
        paid_a, paid_b = graph.net_seconds[net, kind_a], graph.net_seconds[net, kind_b]
        if on_a == size:
            add_a += paid_a
        elif on_a == 1:
            add_a -= paid_a
            weight -= 1
        if on_b == 0:
            add_b += paid_b
            weight += 1
        elif on_b == size - 1:
            add_b -= paid_b
        cuts += weight * graph.net_weight[net]
    return add_a, add_b, cuts


@compiled
def power(x: float) -> float:
    """The 12th power, 0 below 0."""
    x3 = x * x * x if x > 0.0 else 0.0
    return x3 * x3 * x3 * x3


@compiled
def note_best(graph: LoadGraph, state: State, cut_penalty: float) -> bool:
    """Keep the loads' assignment if it fits and is better; whether it fits."""
    top, numbers = 0.0, state.numbers
    for device in range(len(state.load)):
        if state.used[device] > graph.capacity_bytes[device]:
            return False
        top = max(top, state.load[device])
    top *= 1.0 + cut_penalty * numbers.cuts
    gain = 1e-9 if len(state.place) < 5000 else 1e-4
    if top < numbers.best * (1 - gain):
        numbers.best = top
        for group in range(len(state.place)):
            state.best[group] = state.place[group]
    return True


@entry
def anneal_loads(graph: LoadGraph, rules: Rules, state: State, spent: float) -> float:
    """Cool down a stretch from the temperature after `spent` steps; the steps then."""
    place, load, used, energy = state.place, state.load, state.used, state.energy
    numbers, block, room = state.numbers, state.block, graph.capacity_bytes
    movable, random = state.movable, state.random
    penalty, price = rules.cut_penalty, numbers.memory
    until = min(rules.steps, spent + _STRETCH)
    while spent < until:
        scale, total = 1e-300, 0.0
        for d in range(len(load)):
            scale = max(scale, load[d])
        for d in range(len(load)):
            energy[d] = power(load[d] / scale)
            total += energy[d]
            energy[d] += price * max(0.0, used[d] / room[d] - 1.0)
        heat = (rules.cold / rules.hot) ** min(1.0, spent / rules.steps)
        heat *= rules.hot * total
        for _ in range(rules.proposals):
            x, y, end = movable[below(random, len(movable))], 0, 1
            busiest, tries = load.argmax(), 8 * (uniform(random) < rules.guided)
            while tries > 0 and place[x] != busiest:
                x, tries = movable[below(random, len(movable))], tries - 1
            a = place[x]
            if uniform(random) < _SWAPS:
                y, end = movable[below(random, len(movable))], 2
                b = place[y]
            else:
                b = propose(graph, place, x, random)
            if a == b or not graph.allowed[x, b]:
                continue
            load_a, load_b, block[0], block[1] = load[a], load[b], x, y
            before = 1.0 + penalty * numbers.cuts
            if end == 2:
                add_b, add_a, cuts = change(graph, state.pins, y, b, a)
                load[a] += add_a
                load[b] += add_b
                shift(graph, state, y, a)
            add_a, add_b, cuts = change(graph, state.pins, x, a, b)
            full_a = (used[a] - graph.size_bytes[x]) / room[a]
            full_b = (used[b] + graph.size_bytes[x]) / room[b]
            energy_a = power((load[a] + add_a) / scale) + price * max(0.0, full_a - 1.0)
            energy_b = power((load[b] + add_b) / scale) + price * max(0.0, full_b - 1.0)
            rise = added = energy_a + energy_b - energy[a] - energy[b]
            if penalty > 0.0:
                cuts = 1.0 + penalty * (numbers.cuts + cuts)
                rise = (total + rise) * power(cuts / before) - total
            accepted = rise <= 0 or (
                rise < 20.0 * heat and uniform(random) < np.exp(-rise / heat)
            )
            if accepted:
                shift(graph, state, x, b)
                accepted = is_legal(graph, rules, state, end, a, b)
                if not accepted:
                    shift(graph, state, x, a)
            if accepted:
                load[a] += add_a
                load[b] += add_b
                energy[a], energy[b] = energy_a, energy_b
                total += added
                if load[a] < numbers.best and load[b] < numbers.best:
                    note_best(graph, state, penalty)
            elif end == 2:
                shift(graph, state, y, b)
                load[a], load[b] = load_a, load_b
        price *= 0.8 if note_best(graph, state, penalty) else 1.5
        price = numbers.memory = min(1e4, max(1e-3, price))
        spent += rules.each * rules.proposals
    return spent


@compiled
def grow(graph: LoadGraph, state: State, seed: int, first: int, most: int) -> int:
    """Write the groups near a seed, on its device, from `first` on, `most` at most."""
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
def exchange(graph: LoadGraph, state: State, device: int, size: int) -> int:
    """Add neighbours to a block that leave its new device, until it has room there."""
    place, block = state.place, state.block
    need = state.used[device] - graph.capacity_bytes[device]
    for i in range(size):
        need += graph.size_bytes[block[i]]
    for _ in range(30 if need > 0 else 0):
        y = below(state.random, len(place))
        if place[y] == device:
            last, end = grow(graph, state, y, size, len(place) - size), size
            while end < last and need > 0:
                need -= graph.size_bytes[block[end]]
                end += 1
            return end
    return size


@entry
def excess(tasks: Tasks, room: Floats) -> float:
    """What devices hold above their room at the peaks, as fractions of it, added up."""
    over = 0.0
    for device in range(len(room)):
        over += max(0.0, tasks.devices[device].peak / room[device] - 1.0)
    return over


@entry
def anneal_step(
    graph: LoadGraph, rules: Rules, state: State, spent: float, tasks: Tasks
) -> float:
    """As `anneal_loads`, of the makespan of a step, with estimated peaks."""
    place, used, numbers, block = state.place, state.used, state.numbers, state.block
    movable, random, room = state.movable, state.random, graph.capacity_bytes
    price, until = numbers.memory, min(rules.steps, spent + _STRETCH)
    while spent < until:
        heat = (rules.cold / rules.hot) ** min(1.0, spent / rules.steps)
        heat *= rules.hot * numbers.value
        for _ in range(rules.proposals):
            x, size, end = movable[below(random, len(movable))], 1, 1
            if uniform(random) < _GUIDED:
                x = tasks.critical[below(random, tasks.critical[-1])]
            a = place[x]
            block[0] = x
            if uniform(random) < _SWAPS:
                block[1], end = movable[below(random, len(movable))], 2
                b = place[block[1]]
            else:
                b = propose(graph, place, x, random)
                if uniform(random) < _BLOCKS:
                    most = (len(place) / 3) ** uniform(random)
                    first = 0 * size  # a literal would be compiled for anew
                    size = grow(graph, state, x, first, 1 + int(most))
                if a != b:
                    end = exchange(graph, state, b, size)
            if a == b or not graph.allowed[x, b]:
                continue
            room_a, room_b = max(room[a], used[a]), max(room[b], used[b])
            for i in range(end):
                shift(graph, state, block[i], b if i < size else a)
            value, over, fits = np.inf, 0.0, used[a] <= room_a and used[b] <= room_b
            if fits and is_legal(graph, rules, state, end, a, b):
                limit = numbers.value * (1.0 + price * numbers.excess)
                limit -= heat * np.log(1.0 - uniform(random))
                cut = 1.0 + rules.cut_penalty * numbers.cuts
                value = makespan(tasks, place, limit / cut) * cut
                spent += STEPS_PER_RUN
                over = excess(tasks, room)
                if value * (1.0 + price * over) > limit:
                    value = np.inf
            if value == np.inf:
                for i in range(end):
                    shift(graph, state, block[i], a if i < size else b)
                continue
            numbers.value, numbers.excess = value, over
            value *= 1.0 + OVERFULL * over
            if value < numbers.best:
                numbers.best = value
                for group in range(len(place)):
                    state.best[group] = place[group]
        price *= 1.2 if numbers.excess > 0.0 else 0.9
        price = numbers.memory = min(100.0, max(1.0, price))
        spent += rules.each * rules.proposals + STEPS_PER_EVENT * tasks.counted.events
        tasks.counted.events = 0
    return spent
