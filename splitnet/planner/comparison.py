"""Say in words what moved from one plan to another, and what that changed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from splitnet.core.errors import format_bytes
from splitnet.core.plan import value_text
from splitnet.planner.replay import change_text

if TYPE_CHECKING:
    from splitnet.core.plan import Plan

__all__ = ["Comparison", "compare"]


@dataclass(frozen=True, slots=True)
class Comparison:
    """From one plan to another: `moved` holds (part, from, to); a gone part has "".

    `values` are what the objective counts, where both plans have the same one.
    Where the same calls are grouped into other parts, it holds runs of calls.
    """

    moved: tuple[tuple[str, str, str], ...]
    seconds: tuple[float, float]
    transfer_bytes: tuple[int, int]
    peak_bytes: tuple[int, int]
    objective: str = "latency"
    values: tuple[float, float] | None = None

    def __str__(self) -> str:
        """What moved, and what it changed."""
        lines = [
            _row("step", "latency", self.seconds),
            f"transfers {format_bytes(self.transfer_bytes[0])} -> "
            f"{format_bytes(self.transfer_bytes[1])}",
            f"fullest   {format_bytes(self.peak_bytes[0])} -> "
            f"{format_bytes(self.peak_bytes[1])}",
        ]
        if self.values and self.objective in _ROWS:
            lines.insert(0, _row(_ROWS[self.objective], self.objective, self.values))
        if not self.moved:
            return "\n".join(["nothing moved.", *lines])
        lines += [
            f"  {part}: {source or 'not there'} -> {target or 'not there'}"
            for part, source, target in self.moved
        ]
        count = len(self.moved)
        return "\n".join([f"{count} part{'s' * (count > 1)} moved.", *lines])


_ROWS = {"throughput": "busiest", "call_latency": "sample"}


def _row(name: str, objective: str, values: tuple[float, float]) -> str:
    a, b = (value_text(objective, value, long=False) for value in values)
    return f"{name:<9} {a} -> {b}, {change_text(objective, *values)}"


def compare(plan: "Plan", other: "Plan") -> Comparison:
    """Say what moved from one plan to another, and what that changed."""
    return Comparison(
        moved=tuple(_moved(plan, other)),
        seconds=(plan.seconds, other.seconds),
        transfer_bytes=(
            sum(t.bytes for t in plan.transfers),
            sum(t.bytes for t in other.transfers),
        ),
        peak_bytes=(
            max((m.total for m in plan.memory.values()), default=0),
            max((m.total for m in other.memory.values()), default=0),
        ),
        objective=plan.objective,
        values=(
            (plan.value, other.value) if plan.objective == other.objective else None
        ),
    )


def _moved(plan: "Plan", other: "Plan") -> list[tuple[str, str, str]]:
    """What is elsewhere: parts, or calls where the same calls are grouped anew.

    Calls that stand side by side and moved alike are told together.
    """
    a: Mapping[str, str] = plan.device_of
    b: Mapping[str, str] = other.device_of
    before, after = (_by_call(one) for one in (plan, other))
    regrouped = list(a) != list(b) and sorted(before) == sorted(after)
    if regrouped:
        a, b = before, after
    moved: list[tuple[str, str, str]] = []
    last = ""
    for name in dict.fromkeys([*a, *b]):
        change = (a.get(name, ""), b.get(name, ""))
        if change[0] == change[1]:
            last = ""
        elif regrouped and last and moved[-1][1:] == change:
            first = moved[-1][0].partition(" .. ")[0]
            moved[-1] = (f"{first} .. {name}", *change)
        else:
            moved.append((name, *change))
            last = name
    return moved


def _by_call(plan: "Plan") -> dict[str, str]:
    return {call.name: plan.device_of[call.part] for call in plan.graph.calls}
