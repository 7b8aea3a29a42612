"""Tables and charts as plain text."""

import pytest

from splitnet.core.audit import Audit, Finding, Row
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.chart import chart
from splitnet.view.columns import columns
from splitnet.view.text import table
from splitnet.view.words import width
from tests.view import plans
from tests.view.golden import assert_golden
from tests.view.test_draw import nasty_plan


def test_table_of_siamese_is_the_golden_text() -> None:
    """A change of the table is seen in review."""
    assert_golden(table(plans.siamese()) + "\n", "siamese_table.txt")


def test_table_of_a_cluster_is_the_golden_text() -> None:
    """Devices with their figures, and the links."""
    cluster = Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    assert_golden(table(cluster) + "\n", "cluster_table.txt")


def test_table_of_an_audit_is_the_golden_text() -> None:
    """Where each part was planned and seen, and what strayed."""
    assert_golden(table(strayed()) + "\n", "audit_table.txt")


def strayed() -> Audit:
    """An audit with one finding and one note."""
    rows = (
        Row("left", "gpu:0", "gpu:0", "cpu:0", "gpu:0", "gpu:0", "gpu:0", 12),
        Row("right", "gpu:1", "gpu:1", "gpu:1", "gpu:1", "", "gpu:1", 11),
    )
    text = "the backward pass of 'left' ran on cpu:0, planned on gpu:0 (3 ops)"
    finding = Finding("backward", "left", "gpu:0", "cpu:0", text)
    moved = {("cpu:0", "gpu:0", "activation"): (65536, 131072)}
    return Audit(
        plans.siamese(), rows, (finding,), moved, ("eager calls are not seen",)
    )


@pytest.mark.parametrize("count", [1, 3, 30, 300])
def test_table_fits_a_hundred_columns(count: int) -> None:
    """Whatever the number of branches."""
    text = table(plans.towers(count))
    assert max(width(line) for line in text.splitlines()) <= 100


def test_table_fits_a_hundred_columns_with_nasty_names() -> None:
    """Long, wide and broken names lose their middle, and make no line of their own."""
    text = table(nasty_plan())
    assert max(width(line) for line in text.splitlines()) <= 100
    assert "two lines" in text


def test_table_totals_are_the_sums_of_the_plan() -> None:
    """Summed independently, from the graph and the timeline."""
    plan = plans.towers(30)
    (total,) = [
        line for line in table(plan).splitlines() if line.startswith("33 parts")
    ]
    weights = sum(weight.bytes for weight in plan.graph.weights)
    kept = sum(call.activation_bytes for call in plan.graph.calls)
    spent = dict.fromkeys(("forward", "backward", "update"), 0.0)
    for task in plan.timeline.tasks:
        spent[task.phase] += task.stop - task.start
    for text in (
        format_bytes(weights),
        format_bytes(kept),
        *(format_seconds(seconds) for seconds in spent.values()),
    ):
        assert text in total


def test_table_sums_the_transfers() -> None:
    """The last line of the transfers is all of them."""
    plan = plans.towers(30)
    (line,) = [li for li in table(plan).splitlines() if li.startswith("in a step")]
    assert format_bytes(sum(t.bytes for t in plan.transfers)) in line
    assert f" {len(plan.transfers)} " in line


def test_table_says_when_nothing_moves() -> None:
    """A plan on one device has no transfer."""
    assert "nothing moves between devices" in table(plans.one())


def test_table_marks_a_device_that_holds_too_much() -> None:
    """More than the limit is a mark and a footnote."""
    plan = plans.siamese()
    small = Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")
    text = table(plans.plan_by_hand(plan.graph, small, plan.device_of))
    assert "1.32 MiB!" in text
    assert "! more than the device has" in text


def test_table_gives_the_receipts_of_fallbacks() -> None:
    """Asked, got and why."""
    (line,) = [
        li
        for li in table(plans.siamese()).splitlines()
        if li.startswith("right     gpu:3")
    ]
    assert "gpu:3  gpu:1  there is no gpu:3 here" in line


def test_table_refuses_what_it_does_not_know() -> None:
    """A number has no table."""
    with pytest.raises(SplitnetError, match="no table of a int"):
        table(3)  # type: ignore[arg-type]  # the fault on trial


def test_columns_leave_no_space_at_the_end_of_a_line() -> None:
    """Text that is pasted into a file stays clean."""
    text = columns(("a", "b"), [("long cell", ""), ("", "x")])
    assert all(line == line.rstrip() for line in text.splitlines())


def test_chart_of_siamese_is_the_golden_text() -> None:
    """A lane per device; forward, backward, update, transfers and waiting."""
    assert_golden(chart(plans.siamese().timeline) + "\n", "siamese_chart.txt")


def test_chart_of_nothing_says_so() -> None:
    """An empty timeline is no division by zero."""
    from splitnet.core.timeline import Timeline

    assert chart(Timeline((), (), ("gpu:0",), {})) == "nothing runs"
