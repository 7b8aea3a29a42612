"""Planning in few steps, which are enough for the graphs of these tests."""

from splitnet.core.plan import PlanOptions
from splitnet.planner.strategies.auto import plan_placement


def plan_graph(graph, cluster, **options):
    """As `splitnet.plan`; where nothing fits, no strategy is looked for."""
    how = PlanOptions(**{"time_limit": 5.0, "effort": 50_000} | options)
    return plan_placement(graph, cluster, how, lambda: None)


def has_room(plan):
    return all(plan.memory[d.name].total <= d.memory_bytes for d in plan.cluster)
