"""Audits: each wrong observation gives the finding that names it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import splitnet as sn
from splitnet.core.audit import (
    Observation,
    SeenCopy,
    SeenOp,
    SeenVariable,
    audit_of,
)
from splitnet.planner.planner import plan_graph
from tests import zoo

PHASES = ("forward", "backward", "update")


@pytest.fixture(scope="module")
def plan() -> sn.Plan:
    """Two towers on two GPUs, a merge on the CPU, a head near the first."""
    cluster = sn.Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    return plan_graph(zoo.two_towers(), cluster, time_limit=0.1)


def as_planned(plan: sn.Plan) -> Observation:
    """What a faultless step of this plan shows."""
    ops = [
        SeenOp(f"{part}/{phase}", "MatMul", part, phase, device)
        for part, device in plan.device_of.items()
        for phase in PHASES
        if phase == "forward" or part in ("see", "tell", "head")
    ]
    variables = [
        SeenVariable(f"{weight}/{kind}", kind, weight, plan.device_of[parts[0]])
        for weight, parts in plan.graph.parts_of_weights.items()
        for kind in ("variable", "slot")
    ]
    copies = [
        SeenCopy(t.source, t.kind, t.source_device, t.target_device, t.bytes)
        for t in plan.transfers
    ]
    return Observation(tuple(ops), tuple(variables), tuple(copies))


def moved(seen: Observation, part: str, phase: str) -> Observation:
    """The ops of a phase of a part on the CPU."""
    ops = (
        replace(op, device="cpu:0") if (op.part, op.phase) == (part, phase) else op
        for op in seen.ops
    )
    return replace(seen, ops=tuple(ops))


def without(seen: Observation, part: str, *phases: str) -> Observation:
    """The step without the ops of some phases of a part."""
    kept = (op for op in seen.ops if op.part != part or op.phase not in phases)
    return replace(seen, ops=tuple(kept))


def elsewhere(seen: Observation, kind: str) -> Observation:
    """The step with a variable or slot of `see` on the CPU."""
    variables = (
        replace(v, device="cpu:0") if (v.weight, v.kind) == ("see/w", kind) else v
        for v in seen.variables
    )
    return replace(seen, variables=tuple(variables))


def copied(seen: Observation, **changes: Any) -> Observation:
    """The step with one more tensor, of a megabyte, from gpu:0 to gpu:1."""
    one = SeenCopy("stray", "activation", "gpu:0", "gpu:1", zoo.MIB)
    return replace(seen, copies=(*seen.copies, replace(one, **changes)))


def test_audit_of_a_faultless_step_is_clean(plan: sn.Plan) -> None:
    """`check` hands the audit back; a row per part has the device of each aspect."""
    audit = audit_of(plan, as_planned(plan))
    tell = {row.part: row for row in audit.rows}["tell"]

    assert audit.check() is audit
    assert "all as planned" in str(audit)
    assert all(planned == actual for planned, actual in audit.moved.values())
    aspects = (tell.forward, tell.backward, tell.variables, tell.slots, tell.updates)
    assert set(aspects) == {"gpu:1"}
    assert {row.part: row.backward for row in audit.rows}["join"] == ""


STRAYS = [SeenOp(f"t{i}", "Add", "tell", "forward", "cpu:0") for i in range(9)]
UPDATE = SeenOp("adam/mul", "Mul", "", "update", "cpu:0", expected="gpu:0")
FINDINGS: dict[str, tuple[Callable[[Observation], Observation], str, str]] = {
    **{
        f"an op of the {phase}": (
            lambda seen, phase=phase: moved(seen, "tell", phase),
            "updates" if phase == "update" else phase,
            f"MatMul (tell/{phase}) ran on cpu:0, planned on gpu:1",
        )
        for phase in PHASES
    },
    "ops that strayed alike": (
        lambda seen: replace(seen, ops=(*seen.ops, *STRAYS)),
        "forward",
        "9 Add (t0) ran on cpu:0",
    ),
    "an op of no part": (
        lambda seen: replace(seen, ops=(*seen.ops, UPDATE)),
        "updates",
        "update of 'all parts'",
    ),
    **{
        f"a {kind}": (
            lambda seen, kind=kind: elsewhere(seen, kind),
            f"{kind}s",
            f"{kind} 'see/w/{kind}' of 'see' is on cpu:0, planned on gpu:0",
        )
        for kind in ("variable", "slot")
    },
    **{
        f"nothing of a {phase} pass": (
            lambda seen, phase=phase: without(seen, "tell", phase),
            phase,
            f"{phase} of 'tell': nothing of it was seen to run on gpu:1",
        )
        for phase in ("forward", "backward")
    },
    **{
        f"a copy of {kind}": (
            lambda seen, kind=kind: copied(seen, kind=kind),
            "transfers",
            f"transfers of {kind} from gpu:0 to gpu:1: 1.00 MiB, planned 0 B (stray)",
        )
        for kind in ("activation", "weights", "update", "gradient")
    },
    "a copy of unknown size": (
        lambda seen: copied(seen, bytes=None),
        "transfers",
        "unknown size",
    ),
    "the gradient of a small layer": (
        lambda seen: copied(seen, kind="weights gradient", bytes=65),
        "transfers",
        "65 B, planned 0 B",
    ),
}


@pytest.mark.parametrize("case", FINDINGS)
def test_audit_finds(case: str, plan: sn.Plan) -> None:
    """One wrong thing is one finding, which names what, where and where planned."""
    change, aspect, words = FINDINGS[case]
    (finding,) = audit_of(plan, change(as_planned(plan))).findings

    assert finding.aspect == aspect
    assert words in finding.text


def test_audit_forgives_what_no_plan_counts(plan: sn.Plan) -> None:
    """Labels, masks, seeds and scalars are in the figures, and are no fault."""
    changes: list[dict[str, Any]] = [
        *({"kind": kind} for kind in ("mask", "target", "state")),
        {"bytes": 8},
        {"kind": "weights gradient", "bytes": 64},
    ]
    for change in changes:
        assert audit_of(plan, copied(as_planned(plan), **change)).ok


def test_audit_notes_what_is_no_finding(plan: sn.Plan) -> None:
    """Parts without a loss, merged with a neighbour's, or in a pass not watched."""
    seen = as_planned(plan)
    without_loss = without(seen, "tell", *PHASES)
    ops = tuple(op for op in seen.ops if op.phase == "forward")

    assert not audit_of(plan, without_loss).ok
    assert plan.device_of["head"] == plan.device_of["see"]
    for step, note in (
        (
            replace(without_loss, unneeded=("tell",)),
            "nothing in this step needs 'tell'.",
        ),
        (
            without(seen, "see", "forward"),
            "forward of 'see': TensorFlow merged it with other work on gpu:0.",
        ),
        (replace(seen, ops=ops, phases=("forward",), notes=("a note",)), "a note"),
    ):
        assert audit_of(plan, step).check().notes == (note,)


def test_audit_is_not_clean_where_nothing_was_seen(plan: sn.Plan) -> None:
    """Neither an empty step, nor one without any update though it was watched."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if op.phase != "update")

    assert not audit_of(plan, Observation()).ok
    findings = audit_of(plan, replace(seen, ops=ops)).findings
    assert {finding.aspect for finding in findings} == {"updates"}


def test_audit_scales_planned_bytes_with_the_batch(plan: sn.Plan) -> None:
    """Twice the samples make activations and gradients twice as large."""
    seen = as_planned(plan)
    larger = tuple(replace(copy, bytes=2 * (copy.bytes or 0)) for copy in seen.copies)
    twice = replace(seen, copies=larger, batch=2 * plan.batch)

    assert not audit_of(plan, replace(twice, batch=0)).ok
    assert [f for f in audit_of(plan, twice).findings if "weights" not in f.text] == []


def test_audit_counts_the_gradient_passes_of_a_step_of_ones_own(plan: sn.Plan) -> None:
    """A step that asks twice for gradients sends them twice; nothing else may cross."""
    seen = as_planned(plan)
    sent = tuple(copy for copy in seen.copies if copy.kind == "gradient")
    back = tuple(op for op in seen.ops if op.phase == "backward")
    again = replace(seen, copies=seen.copies + sent)

    assert sent
    assert not audit_of(plan, again).ok
    assert audit_of(plan, replace(again, ops=seen.ops + back)).ok


def test_audit_lists_every_finding(plan: sn.Plan) -> None:
    """`check` raises one error with all of them."""
    seen = as_planned(plan)
    ops = tuple(replace(op, device="cpu:0") for op in seen.ops)
    audit = audit_of(plan, replace(seen, ops=ops))

    with pytest.raises(sn.AuditError) as caught:
        audit.check()
    head = f"{len(audit.findings)} findings: the step differs from the plan"
    assert head in str(caught.value)
    assert str(caught.value).count("\n  - ") == len(audit.findings)
