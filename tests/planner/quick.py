"""Planning in few steps, which are enough for the graphs of these tests."""

from functools import partial

from splitnet.planner import planner

plan_graph = partial(planner.plan_graph, time_limit=5.0, effort=50_000)


def has_room(plan):
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)
