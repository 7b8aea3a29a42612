"""The placement as a mixed-integer program, for small problems and for bounds.

    choose    x[g, d] = 1            group g runs on device d
              y[e, d] >= 0           device d pays for net e
    minimise  T
    with      sum_d x[g, d] = 1      every group runs once
              sum_g size_g x[g, d] <= capacity_d
              sum_g seconds x + sum_e cost y <= T      for every d
              y[e, d] >= x[u, d] - x[v, d]             for pins u, v of e

The last line makes y one as soon as some pin of the net is on d and some is not.
"""

from math import inf
from typing import Any

import numpy as np

from splitnet.planner.search.problem import Problem, device_classes

__all__ = ["integer_program", "program_size"]

THREADS = 1


def program_size(problem: Problem) -> int:
    """Return the number of variables, a measure of how hard the program is."""
    return (problem.group_count + len(problem.nets)) * len(problem.devices)


def integer_program(
    problem: Problem,
    seconds: float,
    *,
    known: float = inf,
) -> tuple[float, list[int] | None, float]:
    """Minimise the busiest device's seconds with HiGHS (max-load, `free`).

    Exact when the bound meets the value. Identical devices are ordered by symmetry
    breaking: the first movable group of a class may use one more device than the
    groups before it. Returns the value (infinite without a plan), the plan, and a
    proven lower bound. Exponential at worst. Source: the noncontiguous program of
    Tarnawski et al. (NeurIPS 2020), with pairs of pins instead of in and out variables.
    """
    import highspy  # heavy, and needed by this strategy only

    model: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # untyped there
    model.setOptionValue("output_flag", False)
    model.setOptionValue("threads", THREADS)
    model.setOptionValue("time_limit", max(0.05, seconds))
    _build(model, problem, known)
    model.run()
    info = model.getInfo()
    bound = float(info.mip_dual_bound) if np.isfinite(info.mip_dual_bound) else 0.0
    solution = model.getSolution()
    if not solution.value_valid:
        return inf, None, bound
    values = list(solution.col_value)
    width = len(problem.devices)
    plan = []
    for group in range(problem.group_count):
        row = values[group * width : (group + 1) * width]
        plan.append(max(problem.allowed[group], key=row.__getitem__))
    return float(info.objective_function_value), plan, bound


def _build(model: Any, problem: Problem, known: float) -> None:
    width, groups = len(problem.devices), problem.group_count
    kind = [device.kind for device in problem.devices]
    infinite = model.inf
    upper = _symmetry(problem)
    for group in range(groups):
        for device in range(width):
            model.addVar(0.0, upper[group][device])
    integers = np.arange(groups * width, dtype=np.int32)
    model.changeColsIntegrality(
        len(integers), integers, np.ones(len(integers), dtype=np.uint8)
    )
    count = groups * width
    pay: list[dict[int, int]] = []
    for net in problem.nets:
        row = {}
        for device in range(width):
            if net.seconds[kind[device]] > 0:
                row[device] = count
                model.addVar(0.0, 1.0)
                count += 1
        pay.append(row)
    busiest = count
    model.addVar(0.0, min(known, infinite))
    model.changeColCost(busiest, 1.0)
    for group in range(groups):
        columns = np.arange(group * width, (group + 1) * width, dtype=np.int32)
        model.addRow(1.0, 1.0, width, columns, np.ones(width))
    for device in range(width):
        _device_rows(model, problem, device, pay, busiest)
    for net, row in zip(problem.nets, pay, strict=True):
        pins = (net.producer, *net.consumers)
        for device, column in row.items():
            for first, second in zip(pins, (*pins[1:], pins[0]), strict=True):
                ends = [column, first * width + device, second * width + device]
                coefficients = np.array([1.0, -1.0, 1.0])
                model.addRow(
                    0.0, infinite, 3, np.array(ends, dtype=np.int32), coefficients
                )


def _device_rows(
    model: Any,
    problem: Problem,
    device: int,
    pay: list[dict[int, int]],
    busiest: int,
) -> None:
    """Add the load row and the memory row of one device."""
    width, kind = len(problem.devices), problem.devices[device].kind
    columns, values = [busiest], [-1.0]
    for group, allowed in enumerate(problem.allowed):
        if device in allowed and problem.seconds[group][kind] > 0:
            columns.append(group * width + device)
            values.append(problem.seconds[group][kind])
    for net, row in zip(problem.nets, pay, strict=True):
        if device in row:
            columns.append(row[device])
            values.append(net.seconds[kind])
    model.addRow(
        -model.inf, 0.0, len(columns), np.array(columns, dtype=np.int32), values
    )
    capacity = problem.devices[device].capacity_bytes
    if capacity < inf:
        # Shares of the capacity: bytes next to seconds would spoil the scaling.
        share = [size / (capacity or 1.0) for size in problem.size_bytes]
        full = [group for group, value in enumerate(share) if value > 0]
        model.addRow(
            -model.inf,
            1.0 if capacity else 0.0,
            len(full),
            np.array([group * width + device for group in full], dtype=np.int32),
            np.array([share[group] for group in full]),
        )


def _symmetry(problem: Problem) -> list[list[float]]:
    """Bound x so that devices of one class are opened in order by the heaviest groups.

    The i-th heaviest group may use only the first i + 1 devices of every class: among
    equal devices any plan can be renumbered so.
    """
    classes = device_classes(problem)
    rank = [0] * len(classes)
    seen: dict[int, int] = {}
    for device, number in enumerate(classes):
        rank[device] = seen.get(number, 0)
        seen[number] = rank[device] + 1
    weight = [max(v for v in row if v < inf) for row in problem.seconds]
    order = sorted(range(problem.group_count), key=lambda g: (-weight[g], g))
    upper = [[0.0] * len(classes) for _ in range(problem.group_count)]
    for position, group in enumerate(order):
        for device in problem.allowed[group]:
            upper[group][device] = 1.0 if rank[device] <= position else 0.0
    return upper
