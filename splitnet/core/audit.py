"""Audits: a plan compared with what one observed step ran.

`splitnet.tf` makes the `Observation`; everything that decides is here and needs no
TensorFlow, so that a wrong observation can be shown to fail.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from splitnet.core import hook
from splitnet.core.errors import AuditError, format_bytes, listed
from splitnet.core.plan import Plan
from splitnet.core.replication import microbatch_growth
from splitnet.core.timeline import PHASES

_ASPECTS = {
    "forward": "forward",
    "backward": "backward",
    "variable": "variables",
    "slot": "slots",
    "update": "updates",
}
"""What was seen -> the aspect of a part that it belongs to."""

_TOLERATED_BYTES = 64
"""Size of the largest copy, such as a shape or a scalar, that need not be planned."""

_Route = tuple[str, str, str]  # source device, target device, kind


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
    `bytes` is None if the size is unknown.
    """

    name: str
    kind: str
    source: str
    target: str
    bytes: int | None


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
    phases: tuple[str, ...] = PHASES
    notes: tuple[str, ...] = ()
    unneeded: tuple[str, ...] = ()
    microbatches: int = 1
    batch: int = 0


@dataclass(frozen=True, slots=True)
class Finding:
    """One difference from the plan.

    `aspect` is "forward", "backward", "variables", "slots", "updates" or "transfers".
    """

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
    moved: Mapping[_Route, tuple[int, int]]
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
        raise AuditError(str(self))

    def _repr_html_(self) -> str:
        """The diagram with the findings, and the table, for a notebook."""
        return str(hook("html")(self))

    def __repr__(self) -> str:
        return f"<{str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        """The verdict in a line, and what was found."""
        found = f"{len(self.findings)} findings: the step differs from the plan"
        head = (
            f"audit of {self.plan.graph.name!r}: {len(self.rows)} parts, "
            f"{sum(row.ops for row in self.rows)} ops, "
            f"{'all as planned' if self.ok else found}"
        )
        return listed(head, [finding.text for finding in self.findings])


def audit_of(plan: Plan, seen: Observation) -> Audit:
    """Compare an observation with its plan."""
    where: dict[tuple[str, str], list[str]] = defaultdict(list)  # part, what -> devices
    findings = [*_strayed_ops(plan, seen, where)]
    unproven, notes = _unproven(plan, seen, where)
    findings += [*unproven, *_strayed_variables(plan, seen, where)]
    moved, strayed = _compared_copies(plan, seen)
    if seen.unneeded:
        names = ", ".join(map(repr, seen.unneeded))
        notes.append(f"nothing in this step needs {names}.")
    rows = []
    for name, device in plan.device_of.items():
        its = {
            aspect: " + ".join(dict.fromkeys(where[name, what]))
            for what, aspect in _ASPECTS.items()
        }
        ops = sum(len(where[name, phase]) for phase in PHASES)
        rows.append(Row(name, device, **its, ops=ops))
    found = (*findings, *strayed)
    return Audit(plan, tuple(rows), found, moved, (*seen.notes, *notes))


def _strayed_ops(
    plan: Plan, seen: Observation, where: dict[tuple[str, str], list[str]]
) -> Iterator[Finding]:
    """One finding per part, phase and wrong device, with a count and an example."""
    wrong: dict[tuple[str, str, str, str], list[SeenOp]] = defaultdict(list)
    for op in seen.ops:
        where[op.part, op.phase].append(op.device)
        planned = op.expected or plan.device_of.get(op.part, "")
        if planned and op.device != planned:
            wrong[op.part, op.phase, planned, op.device].append(op)
    for (part, phase, planned, device), ops in wrong.items():
        counts = Counter(op.type for op in ops).items()
        types = [f"{count} {type_}" if count > 1 else type_ for type_, count in counts]
        some = f"{', '.join(types[:4])}{' ...' if len(types) > 4 else ''}"
        text = (
            f"{phase} of {part or 'all parts'!r}: {some} ({ops[0].name}) ran on "
            f"{device}, planned on {planned}."
        )
        yield Finding(_ASPECTS[phase], part, planned, device, text)


def _strayed_variables(
    plan: Plan, seen: Observation, where: dict[tuple[str, str], list[str]]
) -> Iterator[Finding]:
    for one in seen.variables:
        for part in plan.graph.parts_of_weights.get(one.weight, ())[:1]:
            where[part, one.kind].append(one.device)
            if one.device != (planned := plan.device_of[part]):
                text = f"{one.kind} {one.name!r} of {part!r} is on {one.device}"
                text += f", planned on {planned}."
                yield Finding(_ASPECTS[one.kind], part, planned, one.device, text)


def _unproven(
    plan: Plan, seen: Observation, where: Mapping[tuple[str, str], list[str]]
) -> tuple[list[Finding], list[str]]:
    """Findings and notes on parts with work to do of which nothing was seen.

    TensorFlow fuses and merges what runs on one device, so a part may show under the
    name of another that was seen there: a note. Where nothing was seen, nothing is
    proven: a finding. Where no gradient reaches a part it has neither backward ops nor
    updates.
    """
    busy = {(p, device) for (part, p), its in where.items() if part for device in its}
    updates = {part for part, phase in where if phase == "update"}
    findings, notes = [], []
    for name, calls in plan.graph.calls_of.items():
        if name in seen.unneeded or not any(call.forward_flops for call in calls):
            continue
        weights = [plan.graph.weight[w] for call in calls for w in call.weights]
        homes = (plan.graph.parts_of_weights[one.name][0] for one in weights)
        due = ["forward"]
        if any(home in updates for home in homes):
            due.append("backward")
        elif not updates and any(one.trainable for one in weights):
            due += ["backward", "update"]
        device = plan.device_of[name]
        for phase in due:
            if phase not in seen.phases or (name, phase) in where:
                continue
            if (phase, device) in busy:
                merged = f"TensorFlow merged it with other work on {device}."
                notes.append(f"{phase} of {name!r}: {merged}")
            else:
                text = (
                    f"{phase} of {name!r}: nothing of it was seen to run on {device}."
                )
                findings.append(
                    Finding(_ASPECTS[phase], name, device, "not seen", text)
                )
    return findings, notes


def _compared_copies(
    plan: Plan, seen: Observation
) -> tuple[dict[_Route, tuple[int, int]], list[Finding]]:
    """Planned and actual bytes by route, and copies that the plan does not have."""
    copies: dict[_Route, list[SeenCopy]] = defaultdict(list)
    for copy in seen.copies:  # a model's input is planned as the activation of its part
        kind = "activation" if copy.kind == "input" else copy.kind
        copies[copy.source, copy.target, kind].append(copy)
    planned = _planned_bytes(plan, seen.batch or plan.batch, 1)
    grown = _planned_bytes(plan, seen.batch or plan.batch, seen.microbatches)
    passes, moved, findings = _gradient_passes(seen), {}, []
    for route in sorted({*planned, *copies}):
        source, target, kind = route
        its, due = copies[route], planned[route]
        actual = sum(copy.bytes or 0 for copy in its)
        moved[route] = due, actual
        most = max(due, grown[route]) * (passes if "gradient" in kind else 1)
        crossed = [c for c in its if c.bytes is None or c.bytes > _TOLERATED_BYTES]
        unknown = not most and any(copy.bytes is None for copy in its)
        excess = unknown or sum(copy.bytes or 0 for copy in crossed) > most
        if excess and kind not in ("mask", "target", "state"):
            names = ", ".join(copy.name for copy in crossed[:3])
            size = "unknown size" if unknown else format_bytes(actual)
            wanted = format_bytes(due)
            text = f"transfers of {kind} from {source} to {target}: {size}, planned "
            text += f"{wanted} ({names})."
            findings.append(Finding("transfers", "", wanted, size, text))
    return moved, findings


def _gradient_passes(seen: Observation) -> int:
    """How often the step asks for gradients: backward calls per forward call.

    A step of the user's own may do so several times, such as for two optimizers.
    """
    most: Counter[tuple[str, str]] = Counter()  # calls of the part's function
    times = Counter((op.part, op.phase, op.name) for op in seen.ops if op.part)
    for (part, phase, _), count in times.items():
        most[part, phase] = max(most[part, phase], count)
    passes = (
        count // (most[part, "forward"] or count)
        for (part, phase), count in list(most.items())
        if phase == "backward"
    )
    return max([1, *passes])


def _planned_bytes(plan: Plan, batch: int, microbatches: int) -> Counter[_Route]:
    """Planned bytes per link and kind, for a batch whose micro-batches towers share."""
    found: Counter[_Route] = Counter()
    times = microbatch_growth(plan.graph, microbatches, batch)
    for t in plan.transfers:
        size = t.bytes
        if t.kind in ("activation", "gradient"):
            towers = [times[part] for part in (t.source, t.target) if part in times]
            whole = -(-size * batch // plan.batch)
            size = round(size * max(towers)) if towers else whole
        found[t.source_device, t.target_device, t.kind] += size
    return found
