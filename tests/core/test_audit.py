"""Audits: each wrong observation gives the finding that names it."""

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


def test_audit_of_a_faultless_step_is_clean(plan: sn.Plan) -> None:
    """Everything seen is as planned, so `check` hands the audit back."""
    audit = audit_of(plan, as_planned(plan))

    assert audit.check() is audit
    assert audit.ok
    assert "all as planned" in str(audit)
    assert all(planned == actual for planned, actual in audit.moved.values())


def test_audit_rows_show_where_each_aspect_was(plan: sn.Plan) -> None:
    """A row per part, with the device of each of its aspects."""
    rows = {row.part: row for row in audit_of(plan, as_planned(plan)).rows}

    assert rows["tell"].planned == "gpu:1"
    assert {
        rows["tell"].forward,
        rows["tell"].backward,
        rows["tell"].variables,
        rows["tell"].slots,
        rows["tell"].updates,
    } == {"gpu:1"}
    assert rows["join"].backward == ""


@pytest.mark.parametrize("phase", PHASES)
def test_audit_finds_a_strayed_op(plan: sn.Plan, phase: str) -> None:
    """An op of any phase on another device is found, with its type and name."""
    seen = as_planned(plan)
    ops = tuple(
        replace(op, device="cpu:0") if (op.part, op.phase) == ("tell", phase) else op
        for op in seen.ops
    )
    (finding,) = audit_of(plan, replace(seen, ops=ops)).findings

    assert finding.aspect == ("updates" if phase == "update" else phase)
    assert (finding.part, finding.planned, finding.actual) == ("tell", "gpu:1", "cpu:0")
    assert f"MatMul (tell/{phase}) ran on cpu:0, planned on gpu:1" in finding.text


def test_audit_counts_strayed_ops_together(plan: sn.Plan) -> None:
    """Many ops that strayed alike are one finding with a count."""
    seen = as_planned(plan)
    strays = tuple(SeenOp(f"t{i}", "Add", "tell", "forward", "cpu:0") for i in range(9))
    (finding,) = audit_of(plan, replace(seen, ops=seen.ops + strays)).findings

    assert "9 Add (t0) ran on cpu:0" in finding.text


def test_audit_finds_an_op_of_no_part_by_what_it_expects(plan: sn.Plan) -> None:
    """Update arithmetic of no part in particular says itself where it belongs."""
    seen = as_planned(plan)
    stray = SeenOp("adam/mul", "Mul", "", "update", "cpu:0", expected="gpu:0")
    (finding,) = audit_of(plan, replace(seen, ops=(*seen.ops, stray))).findings

    assert "update of 'all parts'" in finding.text


@pytest.mark.parametrize("kind", ["variable", "slot"])
def test_audit_finds_a_strayed_variable(plan: sn.Plan, kind: str) -> None:
    """A weight or a slot that lives elsewhere is named."""
    seen = as_planned(plan)
    variables = tuple(
        replace(v, device="cpu:0") if (v.weight, v.kind) == ("see/w", kind) else v
        for v in seen.variables
    )
    (finding,) = audit_of(plan, replace(seen, variables=variables)).findings

    assert finding.aspect == f"{kind}s"
    assert f"{kind} 'see/w/{kind}' of 'see' is on cpu:0, planned on gpu:0" == (
        finding.text.rstrip(".")
    )


@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_audit_is_not_clean_where_nothing_was_seen(plan: sn.Plan, phase: str) -> None:
    """A device with work of which nothing was seen is not proven."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if (op.part, op.phase) != ("tell", phase))
    (finding,) = audit_of(plan, replace(seen, ops=ops)).findings

    assert f"{phase} of 'tell': nothing of it was seen to run on gpu:1" in finding.text


def test_audit_excuses_what_the_step_does_not_need(plan: sn.Plan) -> None:
    """An output without a loss is left out of a training step; the audit notes it."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if op.part != "tell")
    audit = audit_of(plan, replace(seen, ops=ops, unneeded=("tell",)))

    assert audit.ok
    assert audit.notes == ("nothing in this step needs 'tell'.",)
    assert not audit_of(plan, replace(seen, ops=ops)).ok


def test_audit_notes_what_tensorflow_merged(plan: sn.Plan) -> None:
    """A part that shows under its neighbour's name, on their device, is noted."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if (op.part, op.phase) != ("see", "forward"))
    audit = audit_of(plan, replace(seen, ops=ops)).check()

    assert plan.device_of["head"] == plan.device_of["see"]
    assert audit.notes == (
        "forward of 'see': TensorFlow merged it with other work on gpu:0.",
    )


def test_audit_is_not_clean_where_no_update_was_seen(plan: sn.Plan) -> None:
    """A step without any update, though it was watched, proves nothing."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if op.phase != "update")
    audit = audit_of(plan, replace(seen, ops=ops))

    assert {finding.aspect for finding in audit.findings} == {"updates"}


def test_audit_of_an_empty_observation_is_not_clean(plan: sn.Plan) -> None:
    """Seeing nothing is the loudest alarm."""
    assert not audit_of(plan, Observation()).ok


def test_audit_excuses_phases_that_could_not_be_watched(plan: sn.Plan) -> None:
    """With the forward pass alone watched, the rest is not asked for; notes stay."""
    seen = as_planned(plan)
    ops = tuple(op for op in seen.ops if op.phase == "forward")
    seen = replace(seen, ops=ops, phases=("forward",), notes=("forward only",))

    assert audit_of(plan, seen).check().notes == ("forward only",)


def copied(plan: sn.Plan, **changes: Any) -> Any:
    """The findings where one more tensor of a megabyte crossed."""
    values: dict[str, Any] = {
        "name": "stray",
        "kind": "activation",
        "source": "gpu:0",
        "target": "gpu:1",
        "bytes": zoo.MIB,
    }
    seen = as_planned(plan)
    one = SeenCopy(**(values | changes))
    return audit_of(plan, replace(seen, copies=(*seen.copies, one))).findings


@pytest.mark.parametrize("kind", ["activation", "weights", "update", "gradient"])
def test_audit_finds_a_crossing_without_a_plan(plan: sn.Plan, kind: str) -> None:
    """Bytes that cross where the plan has nothing are found, by name."""
    (finding,) = copied(plan, kind=kind)

    assert finding.aspect == "transfers"
    assert (
        f"transfers of {kind} from gpu:0 to gpu:1: 1.00 MiB, planned 0 B"
        in finding.text
    )
    assert "(stray)" in finding.text


def test_audit_scales_planned_bytes_with_the_batch(plan: sn.Plan) -> None:
    """Twice the samples make activations and gradients twice as large."""
    seen = as_planned(plan)
    larger = tuple(replace(copy, bytes=2 * (copy.bytes or 0)) for copy in seen.copies)

    twice = replace(seen, copies=larger, batch=2 * plan.batch)

    assert {f.aspect for f in audit_of(plan, replace(twice, batch=0)).findings} == {
        "transfers"
    }
    assert [f for f in audit_of(plan, twice).findings if "weights" not in f.text] == []


@pytest.mark.parametrize(("size", "count"), [(64, 0), (65, 1), (864, 1)])
def test_audit_tolerates_shapes_and_scalars_alone(
    plan: sn.Plan, size: int, count: int
) -> None:
    """A copy of 64 bytes need not be planned; a small layer's gradient must be."""
    assert len(copied(plan, kind="weights gradient", bytes=size)) == count


def test_audit_finds_a_crossing_in_every_iteration(plan: sn.Plan) -> None:
    """A loop that waits for another device in every turn is found, however small."""
    (finding,) = copied(plan, bytes=4, each_time=True)

    assert "'stray' crosses from gpu:0 to gpu:1 in every iteration" in finding.text


def test_audit_finds_a_crossing_of_unknown_size(plan: sn.Plan) -> None:
    """What crosses without a plan and cannot be sized is not assumed to be small."""
    (finding,) = copied(plan, bytes=None)

    assert "unknown size" in finding.text


@pytest.mark.parametrize("kind", ["mask", "target", "state"])
def test_audit_forgives_what_no_plan_counts(plan: sn.Plan, kind: str) -> None:
    """Labels, masks and seeds are in the figures, and are no fault."""
    assert not copied(plan, kind=kind)


def test_audit_forgives_scalars(plan: sn.Plan) -> None:
    """A learning rate that crosses is no finding."""
    assert not copied(plan, bytes=8)


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
