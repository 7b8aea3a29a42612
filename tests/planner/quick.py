"""Planning with little time, which is enough for the graphs of these tests."""

from functools import partial

from splitnet.planner import planner

__all__ = ["find_plan", "has_room", "plan_graph"]

find_plan = partial(planner.find_plan, time_limit=0.3)
plan_graph = partial(planner.plan_graph, time_limit=0.3)


def has_room(plan):
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)
