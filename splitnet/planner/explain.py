"""Say why a part is where it is, and what every other device would cost."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.plan import value_text
from splitnet.planner.replay import (
    bound_to,
    change_text,
    fits,
    played,
    step_of_plan,
)

if TYPE_CHECKING:
    from splitnet.core.plan import Placement, Plan

__all__ = ["Alternative", "Explanation", "explain"]

_REASONS = {
    "pin": "it is pinned there: on={asked!r}",
    "preference": "it asked for {asked}, and this is the one that is here",
    "near": "near= binds it to a part that must be there",
    "cost": "{best} that way",
    "memory": "a quicker device for it has no room left",
    "merge": "merges live on the CPU unless told otherwise",
    "input": "inputs are fed from the host",
    "no kernel": "it holds a call that has no GPU kernel",
    "only choice": "it is the only device it may use",
    "tie": "another device would do as well; the first declared was taken",
    "fallback": "it asked for {asked}, which is not here",
    "given": "a person put it there",
}


_BEST = {
    "latency": "the step is shortest",
    "throughput": "the busiest device has least to do",
    "call_latency": "one sample is through soonest",
    "memory": "the fullest device holds least",
}


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the objective would count with a part, and what is near it, elsewhere.

    `value` is in seconds, or in bytes for the objective "memory".
    """

    device: str
    value: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a part is where it is; `str()` gives the sentence and a line per device.

    `value` is what the objective counts for the plan: seconds, or bytes for "memory".
    """

    placement: "Placement"
    reason: str
    objective: str
    value: float
    alternatives: tuple[Alternative, ...]

    def __str__(self) -> str:
        """The reason, and what each other device would cost."""
        one = self.placement
        lines = [f"{one.part!r} is on {one.device}: {self.reason}."]
        if self.alternatives:
            width = max(len(a.device) for a in self.alternatives)
            width = max(width, len(one.device))
            lines.append(
                f"  {one.device:<{width}}  {value_text(self.objective, self.value)}"
            )
            lines += [
                f"  {a.device:<{width}}  {value_text(self.objective, a.value)}, "
                f"{change_text(self.objective, self.value, a.value)}"
                f"{'' if a.fits else '; does not fit its memory'}"
                for a in self.alternatives
            ]
        return "\n".join(lines)


def explain(plan: "Plan", name: str) -> Explanation:
    """Say why a part is on its device, and try every other device for it.

    The part moves with what near= binds to it; all else stays. Values are what the
    plan's objective counts.

    Raises:
        PlanFileError: the plan has no such part.
    """
    one = plan[name]
    step = step_of_plan(plan)
    together = bound_to(plan, name)
    alternatives = []
    for device in plan.cluster:
        if device.name != one.device:
            moved = dict(plan.device_of) | dict.fromkeys(together, device.name)
            value = played(plan, step, moved)
            alternatives.append(
                Alternative(device.name, value, fits(plan, step, moved))
            )
    receipt = next((f for f in plan.fallbacks if f.part == name), None)
    known = _REASONS.get(one.reason, one.reason)
    best = _BEST.get(plan.objective, "")
    reason = receipt.reason if receipt else known.format(asked=one.requested, best=best)
    return Explanation(one, reason, plan.objective, plan.value, tuple(alternatives))
