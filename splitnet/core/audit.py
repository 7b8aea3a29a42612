"""Audits: a plan compared with what one observed step ran.

`splitnet.tf` makes the `Observation`; what decides needs no TensorFlow, so that a wrong
one can be shown to fail.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from splitnet.core import Pictured
from splitnet.core.errors import AuditError, format_bytes, listed
from splitnet.core.plan import Plan
from splitnet.core.replication import microbatch_growth
from splitnet.core.timeline import PHASES

ASPECTS = {one: one for one in ("forward", "backward")}
ASPECTS |= {one: f"{one}s" for one in ("variable", "slot", "update")}
"""What was seen -> the aspect of a part that it belongs to."""

_TOLERATED_BYTES = 64  # a smaller copy, such as a shape, need not be planned

_Route = tuple[str, str, str]  # source device, target device, kind


@dataclass(frozen=True, slots=True)
class SeenOp:
    """One op of a graph that ran; without a part, `expected` is its planned device."""

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
    """A tensor that crossed devices in the graph that ran; `bytes` may be unknown.

    `kind` is "input", "activation", "gradient", "weights", "weights gradient",
    "update", "mask", "logits" (of probabilities that are sent too), "target" (labels,
    sample weights or constants, sent to a loss or metric), "state" (seeds and moving
    averages, sent back by a call on another device, and constants) or "other".
    """

    name: str
    kind: str
    source: str
    target: str
    bytes: int | None


@dataclass(frozen=True)
class Observation:
    """What one step of `batch` samples (0: as planned) ran, in the observed `phases`.

    TensorFlow leaves out `unneeded` parts, which lead to nothing, as without a loss.
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
    """One difference from the plan; `aspect` is one of a `Row`, or "transfers"."""

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
class Audit(Pictured):
    """A plan compared with one step; `moved` has planned and actual bytes by route."""

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
        """Return the audit if it is clean, or raise `AuditError` with every finding."""
        if self.ok:
            return self
        raise AuditError(str(self))

    def __repr__(self) -> str:
        return f"<{str(self).partition(chr(10))[0]}>"

    def __str__(self) -> str:
        found = f"{len(self.findings)} findings: the step differs from the plan"
        counts = f"{len(self.rows)} parts, {sum(row.ops for row in self.rows)} ops"
        head = f"audit of {self.plan.graph.name!r}: {counts}, "
        head += "all as planned" if self.ok else found
        return listed(head, [finding.text for finding in self.findings])


def audit_of(plan: Plan, seen: Observation) -> Audit:
    """Compare an observation with its plan."""
    return _Comparison(plan, seen).audit()


class _Comparison:
    def __init__(self, plan: Plan, seen: Observation) -> None:
        self.plan, self.seen = plan, seen
        self.findings: list[Finding] = []
        self.notes = [*seen.notes]
        self.where = defaultdict[tuple[str, str], list[str]](list)  # by part and aspect

    def audit(self) -> Audit:
        self._compare_ops()
        self._prove_all()
        for one in self.seen.variables:
            for part in self.plan.graph.parts_of_weights.get(one.weight, ())[:1]:
                self.where[part, one.kind].append(one.device)
                planned = self.plan.device_of[part]
                if one.device != planned:
                    on = f"is on {one.device}, planned on {planned}."
                    text = f"{one.kind} {one.name!r} of {part!r} {on}"
                    self._add(ASPECTS[one.kind], part, planned, one.device, text)
        moved, rows = self._compare_copies(), []
        for name, device in self.plan.device_of.items():
            at = {a: dict.fromkeys(self.where[name, w]) for w, a in ASPECTS.items()}
            its = {aspect: " + ".join(devices) for aspect, devices in at.items()}
            ops = sum(len(self.where[name, phase]) for phase in PHASES)
            rows.append(Row(name, device, **its, ops=ops))
        found = tuple(rows), tuple(self.findings), moved, tuple(self.notes)
        return Audit(self.plan, *found)

    def _add(self, *fields: str) -> None:
        self.findings.append(Finding(*fields))

    def _compare_ops(self) -> None:
        """One finding per part, phase and wrong device, with a count and an example."""
        wrong: dict[tuple[str, str, str, str], list[SeenOp]] = defaultdict(list)
        for op in self.seen.ops:
            self.where[op.part, op.phase].append(op.device)
            planned = op.expected or self.plan.device_of.get(op.part, "")
            if planned and op.device != planned:
                wrong[op.part, op.phase, planned, op.device].append(op)
        for (part, phase, planned, device), ops in wrong.items():
            counts = Counter(op.type for op in ops).items()
            types = [f"{count} {kind}" if count > 1 else kind for kind, count in counts]
            some = f"{', '.join(types[:4])}{' ...' if len(types) > 4 else ''}"
            text = f"{phase} of {part or 'all parts'!r}: {some} ({ops[0].name}) ran on "
            text += f"{device}, planned on {planned}."
            self._add(ASPECTS[phase], part, planned, device, text)

    def _prove_all(self) -> None:
        """Find parts with work to do of which nothing was seen, so nothing is proven.

        TensorFlow merges what runs on one device, so a part may show under the name of
        another there: a note. Without a gradient it has no backward ops and no updates.
        """
        graph, seen = self.plan.graph, {*self.where}
        busy = {(p, d) for (part, p), its in self.where.items() if part for d in its}
        updates = {part for part, phase in seen if phase == "update"}
        for name, calls in graph.calls_of.items():
            if name in self.seen.unneeded or not any(c.forward_flops for c in calls):
                continue
            weights = [graph.weight[w] for call in calls for w in call.weights]
            due = ["forward"]
            if any(graph.parts_of_weights[one.name][0] in updates for one in weights):
                due.append("backward")
            elif not updates and any(one.trainable for one in weights):
                due += ["backward", "update"]
            on = self.plan.device_of[name]
            for phase in due:
                if phase not in self.seen.phases or (name, phase) in seen:
                    continue
                if (phase, on) in busy:
                    merged = f"TensorFlow merged it with other work on {on}."
                    self.notes.append(f"{phase} of {name!r}: {merged}")
                    continue
                text = f"{phase} of {name!r}: nothing of it was seen to run on {on}."
                self._add(ASPECTS[phase], name, on, "not seen", text)
        if self.seen.unneeded:
            names = ", ".join(map(repr, self.seen.unneeded))
            self.notes.append(f"nothing in this step needs {names}.")

    def _compare_copies(self) -> dict[_Route, tuple[int, int]]:
        """Planned and actual bytes by route; what crosses without a plan is found."""
        copies: dict[_Route, list[SeenCopy]] = defaultdict(list)
        for copy in self.seen.copies:  # an input is planned as its part's activation
            kind = "activation" if copy.kind in ("input", "logits") else copy.kind
            copies[copy.source, copy.target, kind].append(copy)
        planned, moved = self._planned_bytes(), {}
        runs, passes = self._calls()
        self.notes += [f"the step calls the model {runs} times."] * (runs > 1)
        for route in sorted({*planned, *copies}):
            source, target, kind = route
            its, due = copies[route], planned[route]
            actual = sum(copy.bytes or 0 for copy in its)
            moved[route] = due, actual
            most = due * runs * (passes if "gradient" in kind else 1)
            crossed = [c for c in its if c.bytes is None or c.bytes > _TOLERATED_BYTES]
            crossed = [c for c in crossed if c.kind != "logits"]  # not in any plan
            unknown = not most and any(copy.bytes is None for copy in its)
            excess = unknown or sum(copy.bytes or 0 for copy in crossed) > most
            if excess and kind not in ("mask", "target", "state"):
                names = ", ".join(copy.name for copy in crossed[:3])
                size = "unknown size" if unknown else format_bytes(actual)
                sizes = f"{size}, planned {format_bytes(due)} ({names})."
                text = f"transfers of {kind} from {source} to {target}: {sizes}"
                self._add("transfers", "", format_bytes(due), size, text)
        return moved

    def _calls(self) -> tuple[int, int]:
        """Calls of the model, and backward calls of each; usually one and one."""
        most: Counter[tuple[str, str]] = Counter()  # calls of the part's function
        times = Counter((op.part, op.phase, op.name) for op in self.seen.ops if op.part)
        for (part, phase, _), count in times.items():
            most[part, phase] = max(most[part, phase], count)
        ahead = [n for (_, phase), n in most.items() if phase == "forward"]
        back = {part: n for (part, phase), n in most.items() if phase == "backward"}
        passes = (n // (most[part, "forward"] or n) for part, n in back.items())
        runs = min(ahead, default=1) // self.seen.microbatches
        return max(1, runs), max([1, *passes])

    def _planned_bytes(self) -> Counter[_Route]:
        """By link and kind, for the batch that was seen, in its micro-batches."""
        plan, count = self.plan, self.seen.microbatches
        planned = plan.execution.microbatches
        batch = max(self.seen.batch or plan.batch, count)  # each is of a sample or more
        times = microbatch_growth(plan.graph, count, batch)
        found: dict[_Route, float] = defaultdict(float)
        for t in plan.transfers:
            towers = (times[part] for part in (t.source, t.target) if part in times)
            share = max(towers, default=batch / plan.batch)
            route = t.source_device, t.target_device, t.kind
            again = count / planned if t.kind in ("activation", "gradient") else 1
            found[route] += t.batch_bytes * share + (t.bytes - t.batch_bytes) * again
        return Counter({route: round(size) for route, size in found.items()})
