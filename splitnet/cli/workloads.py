"""`splitnet plan WORKLOAD.json --json`: from the file to the search and back, no more.

A plan of a graph is simulated, valued and given reasons, which for 100,000 nodes takes
longer than reading them. A program that asks for the benchmark's figures needs none of
that, so that nearly all of its time limit is left for the search.
"""

import time
from argparse import Namespace
from typing import Any

from splitnet.cli.screen import progress
from splitnet.planner.garbage import uncollected

__all__ = ["is_figures_only", "workload_figures"]

OBJECTIVE = "throughput"
LIMIT_SECONDS = 5.0


def is_figures_only(arguments: Namespace) -> bool:
    """Whether nothing is asked of a workload's plan but the benchmark's figures."""
    return (
        arguments.json
        and not (arguments.out or arguments.pin or arguments.costs)
        and not (arguments.cluster or arguments.stand_ins)
        and arguments.objective in (None, OBJECTIVE)
    )


def workload_figures(values: object, arguments: Namespace) -> dict[str, Any]:
    """Plan a decoded workload; reading counts against the time limit.

    Raises:
        PlanFileError: the workload is broken.
        InfeasibleError: nothing fits.
    """
    with uncollected():
        return _figures(values, arguments)


def _figures(values: object, arguments: Namespace) -> dict[str, Any]:
    from splitnet.planner.workloads import plan_workload, workload_of

    limit = LIMIT_SECONDS if arguments.time_limit is None else arguments.time_limit
    workload = workload_of(values)
    with progress("planning", total=1.0) as advance:
        found = plan_workload(
            workload,
            contiguity=arguments.contiguity or "free",
            time_limit=max(0.0, limit - (time.perf_counter() - arguments.began)),
            seed=arguments.seed or 0,
            on_progress=lambda share, value: advance(share, f"best {value:.4g}"),
        )
    gap = max(0.0, 1.0 - found.bound / found.value) if found.value > 0 else 0.0
    return {
        "objective": OBJECTIVE,
        "value": found.value,
        "bound": found.bound,
        "gap": gap,
        "seconds": round(time.perf_counter() - arguments.began, 3),
        "device_of": {str(key): name for key, name in found.device_of.items()},
    }
