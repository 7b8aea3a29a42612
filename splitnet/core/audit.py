"""Audits: what one watched step showed, and a plan held against it.

`core/judge.py` decides, `tf/observe.py` collects; these are the values between them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from splitnet.core import hooks
from splitnet.core.errors import AuditError, listed
from splitnet.core.plan import Plan

__all__ = [
    "Audit",
    "Finding",
    "Observation",
    "Row",
    "SeenCopy",
    "SeenOp",
    "SeenVariable",
]

ASPECTS = ("forward", "backward", "variables", "slots", "updates", "transfers")
_PHASES = ("forward", "backward", "update")
_SMALL_BYTES = 1024


@dataclass(frozen=True, slots=True)
class SeenOp:
    """One op of a graph that ran; `phase` is "forward", "backward" or "update".

    `part` is "" where the op belongs to the step and not to one part; `expected` then
    names the device it should be on, if that is known.
    """

    name: str
    type: str
    part: str
    phase: str
    device: str
    expected: str = ""


@dataclass(frozen=True, slots=True)
class SeenVariable:
    """A variable or an optimizer's slot of one; `weight` is the plan's name of it."""

    name: str
    kind: str
    weight: str
    device: str


@dataclass(frozen=True, slots=True)
class SeenCopy:
    """A tensor that crossed devices in the graph that ran.

    `kind` is "input", "activation", "gradient", "weights", "weights gradient",
    "update",
    "mask", "target" (labels or sample weights on the way to a loss), "state" (seeds and
    averages on the way home from a call elsewhere) or "other"; `bytes` is None where
    the size could not be known; `each_time` says that it crosses in every iteration of
    a loop.
    """

    name: str
    kind: str
    source: str
    target: str
    bytes: int | None
    each_time: bool = False


@dataclass(frozen=True)
class Observation:
    """What one watched step showed. `phases` are those that could be observed.

    `unneeded` are parts that lead to nothing the step gives or changes, as those do
    whose outputs have no loss: TensorFlow leaves them out. `owed` maps (source device,
    target device, kind) to the most bytes of gradients that what was read over this
    road can send back; None where it is not known. The batch came in so many `pieces`.
    """

    ops: tuple[SeenOp, ...] = ()
    variables: tuple[SeenVariable, ...] = ()
    copies: tuple[SeenCopy, ...] = ()
    phases: tuple[str, ...] = ("forward", "backward", "update")
    notes: tuple[str, ...] = ()
    unneeded: tuple[str, ...] = ()
    owed: Mapping[tuple[str, str, str], float] | None = None
    pieces: int = 1


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as planned; `aspect` is one of `ASPECTS`."""

    aspect: str
    part: str
    planned: str
    actual: str
    text: str


@dataclass(frozen=True, slots=True)
class Row:
    """One part: the devices on which each of its aspects was seen, "" if none."""

    part: str
    planned: str
    forward: str = ""
    backward: str = ""
    variables: str = ""
    slots: str = ""
    updates: str = ""
    ops: int = 0


@dataclass(frozen=True)
class Audit:
    """A plan held against one watched step.

    `moved` maps (source device, target device, kind) to (planned bytes, actual bytes).
    """

    plan: Plan
    rows: tuple[Row, ...]
    findings: tuple[Finding, ...]
    moved: Mapping[tuple[str, str, str], tuple[int, int]]
    notes: tuple[str, ...] = ()

    @cached_property
    def ok(self) -> bool:
        """Whether everything that was observed is as planned."""
        return not self.findings

    def check(self) -> "Audit":
        """Return the audit if it is clean.

        Raises:
            AuditError: lists every finding.
        """
        if self.ok:
            return self
        count = len(self.findings)
        raise AuditError(
            listed(
                f"{count} thing{'s' if count > 1 else ''} did not run as the plan of "
                f"{self.plan.graph.name!r} says.",
                [finding.text for finding in self.findings],
            )
        )

    def _repr_html_(self) -> str:
        """The diagram with the findings, and the table, for a notebook."""
        return str(hooks.call("audit_html", self))

    def __repr__(self) -> str:
        """A line for a prompt."""
        return f"<{str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """The verdict in a line, and what was found."""
        head = (
            f"audit of {self.plan.graph.name!r}: "
            f"{len(self.rows)} parts, {sum(row.ops for row in self.rows)} ops, "
            + ("all as planned" if self.ok else f"{len(self.findings)} findings")
        )
        return listed(head, [finding.text for finding in self.findings])
