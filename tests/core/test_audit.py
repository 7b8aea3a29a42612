"""Audits: each wrong observation gives the finding that names it."""

from dataclasses import replace

import pytest

import splitnet as sn
from splitnet.core.audit import Observation, SeenCopy, SeenOp, SeenVariable, audit_of
from tests import zoo

PHASES = ("forward", "backward", "update")
BOX = sn.Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
PLAN = sn.plan(zoo.two_towers(), BOX, time_limit=0.1)
"""Two towers on two GPUs, a merge on the CPU, a head near the first."""

SEEN = Observation(
    tuple(
        SeenOp(f"{part}/{phase}", "MatMul", part, phase, device)
        for part, device in PLAN.device_of.items()
        for phase in PHASES
        if phase == "forward" or part in ("see", "tell", "head")
    ),
    tuple(
        SeenVariable(f"{weight}/{kind}", kind, weight, PLAN.device_of[parts[0]])
        for weight, parts in PLAN.graph.parts_of_weights.items()
        for kind in ("variable", "slot")
    ),
    tuple(
        SeenCopy(t.source, t.kind, t.source_device, t.target_device, t.bytes)
        for t in PLAN.transfers
    ),
)
"""What a faultless step of this plan shows."""


def strays(field, **which):
    """The step with some ops or variables on the CPU."""
    there = (
        replace(one, device="cpu:0")
        if all(getattr(one, name) == value for name, value in which.items())
        else one
        for one in getattr(SEEN, field)
    )
    return replace(SEEN, **{field: tuple(there)})


def without(part, *phases):
    kept = (op for op in SEEN.ops if op.part != part or op.phase not in phases)
    return replace(SEEN, ops=tuple(kept))


def copied(**changes):
    """The step with one more tensor, of a megabyte, from gpu:0 to gpu:1."""
    one = SeenCopy("stray", "activation", "gpu:0", "gpu:1", zoo.MIB)
    return replace(SEEN, copies=(*SEEN.copies, replace(one, **changes)))


def test_audit_of_a_faultless_step_is_clean():
    audit = audit_of(PLAN, SEEN)
    tell = {row.part: row for row in audit.rows}["tell"]
    assert audit.check() is audit
    assert "all as planned" in str(audit)
    assert all(planned == actual for planned, actual in audit.moved.values())
    aspects = (tell.forward, tell.backward, tell.variables, tell.slots, tell.updates)
    assert set(aspects) == {"gpu:1"}
    assert {row.part: row.backward for row in audit.rows}["join"] == ""


ADDS = tuple(SeenOp(f"t{i}", "Add", "tell", "forward", "cpu:0") for i in range(9))
UPDATE = SeenOp("adam/mul", "Mul", "", "update", "cpu:0", expected="gpu:0")
RAN, LIES = "ran on cpu:0, planned on gpu:1", "' of 'see' is on cpu:0, planned on gpu:0"
NOTHING = "nothing of it was seen to run on gpu:1"
CROSSED = "from gpu:0 to gpu:1: 1.00 MiB, planned 0 B (stray)"


@pytest.mark.parametrize(
    ("aspect", "step", "words"),
    [
        *(
            (name, strays("ops", part="tell", phase=one), f"MatMul (tell/{one}) {RAN}")
            for one, name in zip(PHASES, ("forward", "backward", "updates"))
        ),
        *(
            (f"{one}s", strays("variables", weight="see/w", kind=one), f"{one}{LIES}")
            for one in ("variable", "slot")
        ),
        *(
            (phase, without("tell", phase), f"{phase} of 'tell': {NOTHING}")
            for phase in ("forward", "backward")
        ),
        *(
            ("transfers", copied(kind=kind), f"transfers of {kind} {CROSSED}")
            for kind in ("activation", "weights", "update", "gradient")
        ),
        ("forward", replace(SEEN, ops=SEEN.ops + ADDS), "9 Add (t0) ran on cpu:0"),
        ("updates", replace(SEEN, ops=(*SEEN.ops, UPDATE)), "update of 'all parts'"),
        ("transfers", copied(bytes=None), "unknown size"),
        ("transfers", copied(kind="weights gradient", bytes=65), "65 B, planned 0 B"),
    ],
)
def test_audit_finds(aspect, step, words):
    """One wrong thing is one finding, which names what, where and where planned."""
    (finding,) = audit_of(PLAN, step).findings
    assert finding.aspect == aspect
    assert words in finding.text


def test_audit_forgives_what_no_plan_counts():
    """Labels, masks, seeds and scalars are in the figures, and are no fault."""
    for kind in ("mask", "target", "state"):
        assert audit_of(PLAN, copied(kind=kind)).ok
    assert audit_of(PLAN, copied(bytes=8)).ok
    assert audit_of(PLAN, copied(kind="weights gradient", bytes=64)).ok


def test_audit_notes_what_is_no_finding():
    """Parts without a loss, merged with a neighbour's, or in a pass not watched."""
    missing = without("tell", *PHASES)
    forward = tuple(op for op in SEEN.ops if op.phase == "forward")
    assert not audit_of(PLAN, missing).ok
    merged = "forward of 'see': TensorFlow merged it with other work on gpu:0."
    for step, note in (
        (replace(missing, unneeded=("tell",)), "nothing in this step needs 'tell'."),
        (without("see", "forward"), merged),
        (replace(SEEN, ops=forward, phases=("forward",), notes=("a note",)), "a note"),
    ):
        assert audit_of(PLAN, step).check().notes == (note,)


def test_audit_is_not_clean_where_nothing_was_seen():
    """Neither an empty step, nor one without any update though it was watched."""
    ops = tuple(op for op in SEEN.ops if op.phase != "update")
    assert not audit_of(PLAN, Observation()).ok
    findings = audit_of(PLAN, replace(SEEN, ops=ops)).findings
    assert {finding.aspect for finding in findings} == {"updates"}


def test_audit_counts_the_calls_and_gradient_passes_of_a_step_of_ones_own():
    """A step that asks twice for gradients sends them twice; nothing else may cross."""
    sent = tuple(copy for copy in SEEN.copies if copy.kind == "gradient")
    back = tuple(op for op in SEEN.ops if op.phase == "backward")
    again = replace(SEEN, copies=SEEN.copies + sent)
    assert sent
    assert not audit_of(PLAN, again).ok
    assert audit_of(PLAN, replace(again, ops=SEEN.ops + back)).ok
    twice = audit_of(PLAN, replace(SEEN, ops=2 * SEEN.ops, copies=2 * SEEN.copies))
    assert (twice.ok, twice.notes) == (True, ("the step calls the model 2 times.",))


def test_audit_lists_every_finding():
    audit = audit_of(PLAN, strays("ops"))
    head = f"{len(audit.findings)} findings: the step differs from the plan"
    with pytest.raises(sn.AuditError, match=head) as caught:
        audit.check()
    assert str(caught.value).count("\n  - ") == len(audit.findings)
