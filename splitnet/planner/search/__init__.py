"""The search engine of the planner: the best plan within a time limit, and a bound.

portfolio, run                 `search`: runs the others, keeps the best plan
problem, contract              numbers to place, fewer of them
judge, latency                 what a plan costs
baselines, exhaustive          simple rules; tiny problems
chain, orders                  dynamic programming over the cuts of one order
multilevel, anneal, coarsen    max-load without contiguity
pipeline, stages, ideals       max-load of pipelines
convex                         max-load of convex sets
calls, call_chain, call_graph  single-sample latency
recombine                      two of its plans joined at a cut
bounds, flow, program          what no plan can beat
feasibility                    why nothing fits
"""

from splitnet.planner.search.contract import build_problem
from splitnet.planner.search.portfolio import (
    CONTIGUITIES,
    OBJECTIVES,
    Progress,
    Result,
    search,
)
from splitnet.planner.search.problem import (
    Device,
    Net,
    Nodes,
    Problem,
    check,
    loads,
    max_load,
)

__all__ = [
    "CONTIGUITIES",
    "OBJECTIVES",
    "Device",
    "Net",
    "Nodes",
    "Problem",
    "Progress",
    "Result",
    "build_problem",
    "check",
    "loads",
    "max_load",
    "search",
]
