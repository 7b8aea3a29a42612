"""Random problems for the tests of the search engine, and an independent judge."""

from collections.abc import Sequence
from itertools import product
from math import inf

from hypothesis import strategies as st

from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.problem import Device, Problem


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_nodes: int = 10,
    kinds: int = 2,
    pins: bool = True,
    colors: bool = True,
    backward: bool = True,
    host: bool = True,
) -> Problem:
    """Draw a small directed acyclic graph on a small machine; it may be infeasible."""
    count = draw(st.integers(1, max_nodes))
    number = st.integers(0, 40).map(lambda value: value / 4)
    edges = [
        (a, b)
        for b in range(count)
        for a in range(max(0, b - 4), b)
        if draw(st.booleans())
    ]
    late = [False] * count
    if backward and draw(st.booleans()):
        first = draw(st.integers(0, count))
        late = [node >= first for node in range(count)]
    devices = [
        Device(f"gpu:{index}", 0, draw(st.sampled_from([inf, 12.0, 30.0])))
        for index in range(draw(st.integers(0 if host else 1, 3)))
    ]
    if kinds > 2 and draw(st.booleans()):
        devices.append(Device("tpu:0", 2, draw(st.sampled_from([inf, 20.0]))))
    if host or not devices:
        devices += [
            Device(f"cpu:{index}", 1, pooled=True)
            for index in range(draw(st.integers(0 if devices else 1, 2)))
        ]
    rates = (1.0, 8.0, 0.5)[: max(kinds, 2)]
    base = [draw(number) for _ in range(count)]
    send = [draw(number) for _ in range(count)]
    supported = [draw(st.integers(0, 9)) > 0 for _ in range(count)]
    colored = colors and draw(st.booleans())
    together = [
        draw(st.integers(0, 3)) if colored and draw(st.booleans()) else None
        for _ in range(count)
    ]
    pinned = {}
    if pins and draw(st.booleans()):
        node = draw(st.integers(0, count - 1))
        pinned[node] = (draw(st.integers(0, len(devices) - 1)),)
    return build_problem(
        [f"n{node}" for node in range(count)],
        seconds=[
            tuple(
                value * rate if kind == 1 or fine else inf
                for kind, rate in enumerate(rates)
            )
            for value, fine in zip(base, supported, strict=True)
        ],
        size_bytes=[float(draw(st.integers(0, 8))) for _ in range(count)],
        edges=edges,
        transfer_seconds=[
            tuple(0.0 if kind == 1 else value for kind in range(len(rates)))
            for value in send
        ],
        devices=devices,
        together=together,
        backward=late,
        pins=pinned,
    )


def slow_loads(problem: Problem, assignment: Sequence[int]) -> list[float]:
    """Recompute the loads on the original nodes, device by device."""
    nodes = problem.nodes
    place = [assignment[group] for group in nodes.group]
    result = []
    for index, device in enumerate(problem.devices):
        inside = {node for node, where in enumerate(place) if where == index}
        total = sum(nodes.seconds[node][device.kind] for node in inside)
        for node, targets in enumerate(nodes.successors):
            sends = node in inside and any(t not in inside for t in targets)
            receives = node not in inside and any(t in inside for t in targets)
            if sends or receives:
                total += nodes.transfer_seconds[node][device.kind]
        result.append(total)
    return result


def feasible_plans(problem: Problem) -> list[tuple[int, ...]]:
    """List every assignment that keeps pins and memory."""
    plans = []
    for plan in product(*problem.allowed):
        used = [0.0] * len(problem.devices)
        for group, device in enumerate(plan):
            used[device] += problem.size_bytes[group]
        if all(
            bytes_ <= device.capacity_bytes
            for bytes_, device in zip(used, problem.devices, strict=True)
        ):
            plans.append(plan)
    return plans


def convex_by_paths(problem: Problem, assignment: Sequence[int]) -> bool:
    """Test convexity by reachability: no u -> v -> w with u, w inside, v outside."""
    nodes = problem.nodes
    count = len(nodes.group)
    reach = [[False] * count for _ in range(count)]
    for node in reversed(range(count)):
        for target in nodes.successors[node]:
            if not nodes.backward[node] and not nodes.backward[target]:
                reach[node][target] = True
                for far in range(count):
                    reach[node][far] = reach[node][far] or reach[target][far]
    place = [assignment[group] for group in nodes.group]
    return not any(
        reach[u][v] and reach[v][w] and place[u] == place[w] != place[v]
        for u in range(count)
        for v in range(count)
        for w in range(count)
    )
