"""What `emit` was asked besides placement: micro-batches, recomputation, XLA."""

from dataclasses import dataclass, replace
from typing import Any

from splitnet.core.errors import DeclarationError, warn
from splitnet.core.plan import Plan
from splitnet.simulator.microbatch import Pipeline, pipeline_of
from splitnet.tf.parallel.lowering import lowered
from splitnet.tf.parallel.pipeline_checks import check_pipeline
from splitnet.tf.parallel.recompute import how_to_run
from splitnet.tf.placement.placed import Placed

__all__ = ["Way", "lay_out", "way_of"]


@dataclass(frozen=True, slots=True)
class Way:
    """How a placed model runs; `how` is "", "recompute" or "xla", for these devices."""

    pipeline: Pipeline
    how: str
    devices: tuple[str, ...]


def way_of(
    plan: Plan, microbatches: int, *, schedule: str, recompute: bool | str, xla: bool
) -> Way:
    """Check the options of `emit` against a plan and against each other.

    Raises:
        DeclarationError: an option that cannot be, or two that exclude each other.
    """
    pipeline = pipeline_of(plan, microbatches, schedule)
    if not (isinstance(recompute, bool) or recompute == "auto"):
        raise DeclarationError(
            f"recompute= must be True, False or 'auto'. Received: {recompute!r}."
        )
    if not isinstance(xla, bool):
        raise DeclarationError(f"xla= must be True or False. Received: {xla!r}.")
    if schedule == "1f1b" and microbatches == 1:
        raise DeclarationError(
            "schedule='1f1b' bounds the micro-batches in flight, and there is one; "
            "give microbatches=2 or more, or leave schedule out."
        )
    devices = tuple(device.name for device in plan.cluster)
    if recompute == "auto":
        devices = tuple(
            device.name
            for device in plan.cluster
            if plan.memory[device.name].total > device.memory_bytes
        )
    if xla and recompute and devices:
        raise DeclarationError(
            "xla=True and recompute= exclude each other: XLA decides by itself what it "
            "computes again. Leave one of them out."
        )
    how = "xla" if xla else "recompute" if recompute and devices else ""
    return Way(pipeline, how, devices)


def lay_out(model: Any, placed: Placed, way: Way) -> Placed:
    """The placement with its segments and its pipeline; warns of what it cannot do."""
    check_pipeline(model, way.pipeline)
    placed = replace(placed, pipeline=way.pipeline)
    if not way.how:
        return lowered(placed)
    plan = placed.plan

    def wanted(key: str) -> bool:
        part = placed.part_of[key]
        return plan.device_of[part] in way.devices and any(
            call.forward_flops for call in plan.graph.calls_of[part]
        )

    how_of, fallbacks = how_to_run(placed, way.how, wanted)
    for one in fallbacks:
        warn(f"{one.requested}: {one.part!r} runs {one.assigned}: {one.reason}.")
    return lowered(placed, how_of)
