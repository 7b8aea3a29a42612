"""Keep a plan on a machine that lacks some of its devices."""

from dataclasses import replace

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Placement, Plan
from splitnet.planner.analysis import with_verdict
from splitnet.planner.constraints import fallbacks_of, resolve
from splitnet.planner.evaluate import evaluator_of

__all__ = ["relocate"]


def relocate(plan: Plan, cluster: Cluster) -> Plan:
    """The plan on another cluster, every part pinned to the device that it had.

    Substitutes for missing devices are those that planning with these pins uses; they
    are recorded in `fallbacks`. The figures are simulated again.

    Raises:
        DeviceError: parts that must be apart would share a device.
    """
    evaluator = replace(evaluator_of(plan), cluster=cluster)
    constraints, groups = resolve(
        plan.graph,
        cluster,
        pins=lambda part: None if part.kind == "input" else plan.device_of[part.name],
        load_of=evaluator.load,
    )
    device_of = {part: group.allowed[0] for group in groups for part in group.parts}
    moved = {one.part: one for one in fallbacks_of(constraints, device_of)}
    made = evaluator.plan(
        tuple(
            Placement(
                one.part,
                device_of[one.part],
                one.requested,
                "fallback" if one.part in moved else one.reason,
            )
            for one in plan.placements
        )
    )
    kept = [one for one in plan.fallbacks if one.part not in moved]
    return with_verdict(
        replace(
            made,
            fallbacks=(*kept, *moved.values()),
            strategy=plan.strategy,
            bound=made.value,
            options=plan.options,
        )
    )
