"""Lower bounds of a placement problem: no assignment has a smaller value.

    critical path   longest chain of tasks, each on its fastest device
    work            all seconds (or bytes) shared by all devices, groups divisible
    program         mixed-integer program (HiGHS), stopped early; its dual bound

Variables of the program: x[g, d] = 1 if group g is on device d, T the value. Minimise T
so that every group is somewhere and every device has room. For loads, device d pays for
net e if y[e, d] = 1, which is at least x[u, d] - x[v, d] for two pins u, v. For a step,
a task starts when the tasks before it on any chain have ended and, if the two groups
are on different devices, the fastest copy has arrived. That devices and links do one
thing at a time is left out.
"""

from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np

from splitnet.planner.load_graph import Floats
from splitnet.planner.problem import Problem, equivalent_devices

_MOST_GROUPS, _MOST_NODES = 50, 300  # of the program, and of its branch and bound
_MOST_COLUMNS = 20_000  # of the linear program of the work bound
_LEAST, _MOST = 1.1e-9, 1e6  # coefficient, of what is about 1; less is taken for none
_Arc = tuple[int, int, list[list[float]], float]  # task, its group, copies, the least
_SAFETY = 1 - 1e-6  # what tolerances and sums in another order may hide


def lower_bound(
    problem: Problem, objective: str, *, hard: bool = False, time_limit: float = 1.0
) -> float:
    """The best proven lower bound; if `hard`, by the program too if that is small."""
    count, devices = problem.group_count, problem.device_count
    if not count or not problem.graph.allowed.any(axis=1).all():
        return 0.0
    cost = cost_per_device(problem, objective)
    # The longest group, and all work shared by all devices if groups were divisible.
    found = [float(cost.min(axis=1).max()), float(cost.min(axis=1).sum()) / devices]
    classes = len(set(equivalent_devices(problem)))
    if classes > 1 and count * classes <= _MOST_COLUMNS and found[1]:
        found.append(_Program(problem, cost, whole=False).relaxed())
    if objective == "latency":
        found.append(CriticalPath(problem).length([-1] * count))
    best = max(found) * _SAFETY
    if hard and count <= _MOST_GROUPS:
        program = _Program(problem, cost, whole=True)
        best = max(best, program.bound(objective, time_limit))
    return best


def cost_per_device(problem: Problem, objective: str) -> Floats:
    """Per group and device, what it adds to the device's load or bytes."""
    graph = problem.graph
    cost = graph.seconds[:, graph.kind]
    if objective == "memory":
        cost = graph.size_bytes[:, None]  # on any device
    return np.where(graph.allowed, cost, inf)


class CriticalPath:
    """Longest chain of tasks and copies, as far as groups have devices.

    Others are on their fastest device, with no copy between what could share one.
    """

    def __init__(self, problem: Problem) -> None:
        step, n = problem.step, problem.step.count
        group = problem.group_of_unit[[*range(n), *range(n - 1, -1, -1), *range(n)]]
        allowed = problem.graph.allowed[group].T
        self.group: list[int] = group.tolist()
        self.seconds = step.task_seconds
        times = np.where(allowed, np.array(step.task_seconds), inf)
        self.fastest: list[float] = times.min(axis=0).tolist()
        self.arcs: list[list[_Arc]] = [[] for _ in group]
        latency, per_byte = np.array(step.latency), np.array(step.seconds_per_byte)

        @cache
        def table(size: float, fixed: float | None) -> list[list[float]]:
            seconds = latency + size * per_byte
            if fixed is not None:
                seconds[:] = fixed
            np.fill_diagonal(seconds, 0.0)
            rows: list[list[float]] = seconds.tolist()
            return rows

        for source, target, item in step.arcs():
            seconds, least = table(0.0, 0.0), 0.0
            if item is not None:
                seconds = table(0.0 if item.row_bytes else item.bytes, item.seconds)
            ends = allowed[:, source], allowed[:, target]
            if not (ends[0] & ends[1]).any():
                froms, tos = (end.nonzero()[0].tolist() for end in ends)
                least = min((seconds[a][b] for a in froms for b in tos), default=0.0)
            self.arcs[target].append((source, self.group[source], seconds, least))

    def length(self, device_of: Sequence[int]) -> float:
        """Seconds of the longest chain; -1 is the device of groups without one."""
        ends: list[float] = []
        for task, arcs in enumerate(self.arcs):
            device, start = device_of[self.group[task]], 0.0
            for source, group, table, least in arcs:
                other = device_of[group]
                copy = table[other][device] if device >= 0 and other >= 0 else least
                start = max(start, ends[source] + copy)
            took = self.fastest[task] if device < 0 else self.seconds[device][task]
            ends.append(start + took)
        return max(ends, default=0.0)


def _coefficients(values: Floats) -> Floats:
    """None more than it is, so that bounds hold, and none that HiGHS refuses."""
    return np.where(values > _LEAST, np.minimum(values, _MOST), 0.0)


class _Program:
    """The program; times are in units of the work bound.

    Without `whole` groups may be divided, and equal devices are one: a linear program.
    """

    def __init__(self, problem: Problem, cost: Floats, *, whole: bool) -> None:
        import highspy

        self.problem = problem
        self.model: Any = highspy.Highs()  # type: ignore[no-untyped-call]  # untyped upstream
        self.model.silent()
        self.model.setOptionValue("threads", 1)
        self.model.setOptionValue("random_seed", 0)
        self.unit = float(cost.min(axis=1).sum()) / problem.device_count or 1.0
        self.cost = _coefficients(cost / self.unit)
        self.total = self.model.addVariable(obj=1.0)
        equal = range(problem.device_count) if whole else equivalent_devices(problem)
        self.number = {equal.index(one): equal.count(one) for one in equal}
        add = self.model.addBinary if whole else self.model.addVariable
        self.on: list[dict[int, Any]] = [
            {d: add() for d in self.number if row[d] < inf} for row in cost
        ]
        self.cut: dict[tuple[int, int], Any] = {}

    def relaxed(self) -> float:
        """The value of the linear program; 0 if it is not solved."""
        self._loads(paid=False)
        self.model.run()
        if str(self.model.getModelStatus()) != "HighsModelStatus.kOptimal":
            return 0.0
        return float(self.model.getInfo().objective_function_value) * self.unit

    def bound(self, objective: str, time_limit: float) -> float:
        """The dual bound after a limited number of nodes; 0 if there is none."""
        self._loads(paid=objective == "throughput")
        if objective == "latency":
            self._times(CriticalPath(self.problem))
        self.model.setOptionValue("mip_max_nodes", _MOST_NODES)
        self.model.setOptionValue("time_limit", float(time_limit))
        self.model.run()
        found = float(self.model.getInfo().mip_dual_bound)
        return found * self.unit * _SAFETY if 0 < found < inf else 0.0

    def _loads(self, *, paid: bool) -> None:
        """Groups are somewhere and have room; no device is busier than the value.

        If it is `paid`, a device is also busy with each net that crosses its border.
        """
        model, graph = self.model, self.problem.graph
        for columns in self.on:
            model.addConstr(model.qsum(columns.values()) == 1)
        for d, number in self.number.items():
            users = {g: columns[d] for g, columns in enumerate(self.on) if d in columns}
            room = float(graph.capacity_bytes[d] * number)
            if 0 < room < graph.size_bytes[list(users)].sum():
                share = _coefficients(graph.size_bytes / room)
                held = model.qsum(x * float(share[g]) for g, x in users.items())
                model.addConstr(held <= 1)
            load = [x * float(self.cost[g, d]) for g, x in users.items()]
            seconds = _coefficients(graph.net_seconds[:, graph.kind[d]] / self.unit)
            for net in np.flatnonzero(seconds).tolist() if paid else ():
                first, last = graph.net_start[net], graph.net_start[net + 1]
                pins = graph.net_pins[first:last].tolist()
                pays = model.addVariable(ub=1.0)
                load.append(pays * float(seconds[net]))
                for u, v in zip(pins, [*pins[1:], pins[0]]):
                    if u in users:
                        model.addConstr(pays >= users[u] - users.get(v, 0.0))
            if load:
                model.addConstr(model.qsum(load) <= self.total * float(number))

    def _times(self, path: CriticalPath) -> None:
        """Tasks start when what they read is there; the step ends after all."""
        model = self.model
        start = [model.addVariable() for _ in path.arcs]
        times = _coefficients(np.array(path.seconds) / self.unit).tolist()
        end = [
            start[task] + model.qsum(x * times[d][task] for d, x in self.on[g].items())
            for task, g in enumerate(path.group)
        ]
        for task, arcs in enumerate(path.arcs):
            model.addConstr(self.total >= end[task])
            for source, group, table, _ in arcs:
                copy = self._copy(group, path.group[task], table)
                model.addConstr(start[task] >= end[source] + copy)

    def _copy(self, a: int, b: int, table: list[list[float]]) -> Any:
        """Seconds of the fastest copy, if the two groups are on different devices."""
        links = [table[d][e] for d in self.on[a] for e in self.on[b] if d != e]
        least = float(_coefficients(np.array(min(links, default=0.0) / self.unit)))
        if a == b or not least:
            return 0.0
        pair = min(a, b), max(a, b)
        if pair not in self.cut:  # 1 if they are on different devices
            column = self.cut[pair] = self.model.addVariable(ub=1.0)
            for d, x in self.on[pair[0]].items():
                self.model.addConstr(column >= x - self.on[pair[1]].get(d, 0.0))
        return self.cut[pair] * least
