"""Audits: a plan compared with what one observed step ran.

`splitnet.tf` makes the `Observation`; everything that decides is here and needs no
TensorFlow, so that a wrong observation can be shown to fail.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from splitnet.core import hook
from splitnet.core.errors import AuditError, format_bytes, listed
from splitnet.core.plan import Plan
from splitnet.core.replication import microbatch_growth

ASPECTS = ("forward", "backward", "variables", "slots", "updates", "transfers")
_PHASES = ("forward", "backward", "update")
TOLERATED_BYTES = 64
"""Size of the largest copy, such as a shape or a scalar, that need not be planned."""


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
    "update", "mask", "target" (labels or sample weights, sent to a loss), "state"
    (seeds and moving averages, sent back by a call on another device) or "other".
    `bytes` is None if the size is unknown; `each_time` says that it crosses in every
    iteration of a loop.
    """

    name: str
    kind: str
    source: str
    target: str
    bytes: int | None
    each_time: bool = False


@dataclass(frozen=True)
class Observation:
    """What one observed step ran. `phases` are those that could be observed.

    `unneeded` are parts that lead to nothing the step gives or changes, as those do
    whose outputs have no loss: TensorFlow leaves them out. The batch was split into so
    many `microbatches`; `batch` counts its samples, 0 for as many as were planned.
    """

    ops: tuple[SeenOp, ...] = ()
    variables: tuple[SeenVariable, ...] = ()
    copies: tuple[SeenCopy, ...] = ()
    phases: tuple[str, ...] = ("forward", "backward", "update")
    notes: tuple[str, ...] = ()
    unneeded: tuple[str, ...] = ()
    microbatches: int = 1
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from the plan; `aspect` is one of `ASPECTS`."""

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
    """A plan compared with one observed step.

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
                f"{count} finding{'s' if count > 1 else ''}: the step differs from the "
                f"plan of {self.plan.graph.name!r}.",
                [finding.text for finding in self.findings],
            )
        )

    def _repr_html_(self) -> str:
        """The diagram with the findings, and the table, for a notebook."""
        return str(hook("html")(self))

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


def audit_of(plan: Plan, seen: Observation) -> Audit:
    """Compare an observation with its plan."""
    planned = _planned_bytes(plan, seen.batch or plan.batch, 1)
    actual: Counter[tuple[str, str, str]] = Counter()
    for copy in seen.copies:
        actual[copy.source, copy.target, _kind(copy)] += copy.bytes or 0
    moved = {key: (planned[key], actual[key]) for key in sorted({*planned, *actual})}
    unproven, notes = _unproven(plan, seen)
    if seen.unneeded:
        names = ", ".join(map(repr, seen.unneeded))
        notes.append(f"nothing in this step needs {names}.")
    findings = [
        *_strayed_ops(plan, seen),
        *unproven,
        *_strayed_variables(plan, seen),
        *_strayed_copies(plan, seen, moved),
    ]
    rows = tuple(_rows(plan, seen))
    return Audit(plan, rows, tuple(findings), moved, (*seen.notes, *notes))


def _strayed_ops(plan: Plan, seen: Observation) -> list[Finding]:
    """One finding per part, phase and wrong device, with a count and an example."""
    wrong: dict[tuple[str, str, str, str], list[SeenOp]] = {}
    for op in seen.ops:
        planned = op.expected or plan.device_of.get(op.part, "")
        if planned and op.device != planned:
            key = (op.part, op.phase, planned, op.device)
            wrong.setdefault(key, []).append(op)
    return [
        Finding(
            _aspect(phase),
            part,
            planned,
            device,
            f"{phase} of {part or 'all parts'!r}: {_some(ops)} ran on {device}, "
            f"planned on {planned}.",
        )
        for (part, phase, planned, device), ops in wrong.items()
    ]


def _aspect(phase: str) -> str:
    return "updates" if phase == "update" else phase


def _some(ops: list[SeenOp]) -> str:
    types = [
        f"{n} {t}" if n > 1 else t for t, n in Counter(o.type for o in ops).items()
    ]
    return f"{', '.join(types[:4])}{' ...' if len(types) > 4 else ''} ({ops[0].name})"


def _unseen(plan: Plan, seen: Observation) -> Iterator[tuple[str, str, str]]:
    """Each (phase, part, device) with work to do of which nothing was seen.

    Where no gradient reaches a part it has neither backward ops nor updates.
    """
    there = {
        phase: {op.part for op in seen.ops if op.phase == phase} for phase in _PHASES
    }
    for part in plan.graph.parts:
        calls = plan.graph.calls_of[part.name]
        idle = part.name in seen.unneeded
        if idle or not any(call.forward_flops for call in calls):
            continue
        due = ["forward"]
        homes = (plan.graph.parts_of_weights[w][0] for c in calls for w in c.weights)
        if any(home in there["update"] for home in homes):
            due.append("backward")
        elif not there["update"] and any(
            plan.graph.weight[w].trainable for c in calls for w in c.weights
        ):
            due += ["backward", "update"]
        for phase in due:
            if phase in seen.phases and part.name not in there[phase]:
                yield phase, part.name, plan.device_of[part.name]


def _unproven(plan: Plan, seen: Observation) -> tuple[list[Finding], list[str]]:
    """Findings and notes on parts of which nothing was seen.

    TensorFlow fuses and merges what runs on one device, so a part may show under the
    name of another that was seen there: a note. Where nothing was seen, nothing is
    proven: a finding.
    """
    busy = {(op.phase, op.device) for op in seen.ops if op.part}
    findings, notes = [], []
    for phase, part, device in _unseen(plan, seen):
        if (phase, device) in busy:
            notes.append(
                f"{phase} of {part!r}: TensorFlow merged it with other work on "
                f"{device}."
            )
            continue
        text = f"{phase} of {part!r}: nothing of it was seen to run on {device}."
        findings.append(Finding(_aspect(phase), part, device, "not seen", text))
    return findings, notes


def _strayed_variables(plan: Plan, seen: Observation) -> list[Finding]:
    users = plan.graph.parts_of_weights
    findings = []
    for variable in seen.variables:
        parts = users.get(variable.weight, ())
        planned, device = plan.home.get(variable.weight, ""), variable.device
        if parts and device != planned:
            what = "slot" if variable.kind == "slot" else "variable"
            text = (
                f"{what} {variable.name!r} of {parts[0]!r} is on {device}, planned on "
                f"{planned}."
            )
            findings.append(Finding(f"{what}s", parts[0], planned, device, text))
    return findings


def _strayed_copies(
    plan: Plan,
    seen: Observation,
    moved: Mapping[tuple[str, str, str], tuple[int, int]],
) -> list[Finding]:
    """Tensors that cross where the plan has no crossing, or in every iteration."""
    findings = [
        Finding(
            "transfers",
            "",
            "once",
            "every iteration",
            f"transfer {copy.name!r} crosses from {copy.source} to {copy.target} in "
            "every iteration of a loop.",
        )
        for copy in seen.copies
        if copy.each_time
    ]
    grown = _planned_bytes(plan, seen.batch or plan.batch, seen.microbatches)
    passes = _gradient_passes(seen)
    for (source, target, kind), (planned, actual) in moved.items():
        if kind in ("mask", "target", "state"):
            continue
        most = max(planned, grown.get((source, target, kind), 0))
        most *= passes if "gradient" in kind else 1
        crossed = [
            copy
            for copy in seen.copies
            if (copy.source, copy.target, _kind(copy)) == (source, target, kind)
            and (copy.bytes is None or copy.bytes > TOLERATED_BYTES)
        ]
        unknown = not most and any(copy.bytes is None for copy in crossed)
        if unknown or sum(copy.bytes or 0 for copy in crossed) > most:
            names = ", ".join(copy.name for copy in crossed[:3])
            size = "unknown size" if unknown else format_bytes(actual)
            due = format_bytes(planned)
            ends = f"from {source} to {target}"
            text = f"transfers of {kind} {ends}: {size}, planned {due} ({names})."
            findings.append(Finding("transfers", "", due, size, text))
    return findings


def _gradient_passes(seen: Observation) -> int:
    """How often the step asks for gradients: backward calls per forward call.

    A step of the user's own may do so several times, such as for two optimizers.
    """
    most: Counter[tuple[str, str]] = Counter()  # calls of the part's function
    times = Counter((op.part, op.phase, op.name) for op in seen.ops if op.part)
    for (part, phase, _), count in times.items():
        most[part, phase] = max(most[part, phase], count)
    parts = {part for part, phase in most if phase == "backward"}
    ahead = {part: most[part, "forward"] or most[part, "backward"] for part in parts}
    return max([1, *(most[part, "backward"] // ahead[part] for part in parts)])


def _planned_bytes(
    plan: Plan, batch: int, microbatches: int
) -> Counter[tuple[str, str, str]]:
    """Planned bytes per link and kind, for a batch whose micro-batches towers share."""
    found: Counter[tuple[str, str, str]] = Counter()
    times = microbatch_growth(plan.graph, microbatches, batch)
    for t in plan.transfers:
        size = t.bytes
        if t.kind in ("activation", "gradient"):
            towers = [times[part] for part in (t.source, t.target) if part in times]
            whole = -(-size * batch // plan.batch)
            size = round(size * max(towers)) if towers else whole
        found[t.source_device, t.target_device, t.kind] += size
    return found


def _kind(copy: SeenCopy) -> str:
    """A model's input is planned as the activation of its part."""
    return "activation" if copy.kind == "input" else copy.kind


def _rows(plan: Plan, seen: Observation) -> Iterable[Row]:
    ops: dict[str, list[SeenOp]] = {}
    for op in seen.ops:
        ops.setdefault(op.part, []).append(op)
    held: dict[tuple[str, str], list[str]] = {}
    for variable in seen.variables:
        for home in plan.graph.parts_of_weights.get(variable.weight, ())[:1]:
            held.setdefault((home, variable.kind), []).append(variable.device)
    for part in plan.graph.parts:
        mine = ops.get(part.name, [])
        forward, backward, update = (
            [op.device for op in mine if op.phase == phase] for phase in _PHASES
        )
        kept = [held.get((part.name, kind), []) for kind in ("variable", "slot")]
        columns = (forward, backward, *kept, update)
        runs, back, variables, slots, updates = (
            " + ".join(dict.fromkeys(devices)) for devices in columns
        )
        planned = plan.device_of[part.name]
        yield Row(part.name, planned, runs, back, variables, slots, updates, len(mine))
