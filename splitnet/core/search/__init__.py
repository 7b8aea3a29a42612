"""The search engine of the planner: the best plan within a time limit, and a bound.

problem       groups, nets, devices as plain numbers; loads and checks
baselines     list schedulers and other simple rules
chain         dynamic programming over the cuts of one order
multilevel    coarsen, anneal, refine, recombine (max-load)
pipeline      many orders, cut by `chain`
calls         single-sample latency
exhaustive    tiny problems
bounds        what no plan can beat
portfolio     `search`: runs them all
"""

from splitnet.core.search.portfolio import (
    CONTIGUITIES,
    OBJECTIVES,
    Progress,
    Result,
    search,
)
from splitnet.core.search.problem import (
    Device,
    Net,
    Nodes,
    Problem,
    build_problem,
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
