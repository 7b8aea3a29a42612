"""Tables and charts as plain text: verdict first, at any width from 60 columns."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

import splitnet as sn
from splitnet.core.audit import Audit, Finding, Row
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError, format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Task, Timeline
from splitnet.view.facts import objective_text, part_facts
from splitnet.view.tables import Grid, chart, grid_text, table
from tests.view import plans
from tests.view.golden import assert_golden


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


def test_tables_are_the_golden_texts() -> None:
    """Verdict first; a change of a table of any kind, or of a chart, is reviewed."""
    cluster = Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")

    assert_golden(table(plans.siamese()) + "\n", "siamese_table.txt")
    assert_golden(table(plans.siamese(), width=120) + "\n", "siamese_table_wide.txt")
    assert_golden(table(cluster) + "\n", "cluster_table.txt")
    assert_golden(table(strayed()) + "\n", "audit_table.txt")
    assert_golden(chart(plans.siamese().timeline) + "\n", "siamese_chart.txt")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_fits_its_width_with_any_names(width: int) -> None:
    """Long, wide and broken names are shortened, and make no line of their own."""
    for plan in (plans.one(), plans.towers(300), plans.nasty()):
        text = table(plan, width=width)
        assert max(cell_len(line) for line in text.splitlines()) <= width
        assert all(line == line.rstrip() for line in text.splitlines())
    assert "two lines" in text


def test_table_takes_the_terminals_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal of 120 columns memory is broken down; in a pipe it is not."""
    monkeypatch.setenv("COLUMNS", "120")
    piped = table(plans.siamese())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)

    assert table(plans.siamese()) == table(plans.siamese(), width=120)
    assert piped == table(plans.siamese(), width=80)


def test_table_totals_are_the_sums_of_the_plan() -> None:
    """Summed independently, from the graph and the timeline; a shared weight once."""
    plan = plans.towers(30)
    lines = table(plan, width=120).splitlines()
    (total,) = [line for line in lines if line.startswith("33 parts")]
    spent = [sum(t.stop - t.start for t in _of(plan, phase)) for phase in PHASES]
    kept = sum(call.activation_bytes for call in plan.graph.calls)
    held = sum(weight.bytes for weight in plan.graph.weights)
    for word in (*map(format_bytes, (held, kept)), *map(format_seconds, spent)):
        assert word in total
    facts = part_facts(plans.siamese())
    assert [facts[n].weight_bytes for n in ("left", "right")] == [330_000, 0]


def _of(plan: Plan, phase: str) -> list[Task]:
    return [task for task in plan.timeline.tasks if task.phase == phase]


def test_table_shows_the_five_largest_transfers_and_their_total() -> None:
    """Eight pairs of devices and kind: five lines, and a total of all."""
    plan = plans.siamese()
    lines = table(plan).splitlines()
    (total,) = [line for line in lines if line.startswith("all in a step (3 more)")]

    assert format_bytes(sum(t.bytes for t in plan.transfers)) in total
    assert sum(" -> " in line for line in lines) == 5
    assert "No transfers" in table(plans.one())


def test_table_marks_a_device_that_holds_too_much() -> None:
    """More than the limit is a mark and a footnote."""
    plan = plans.siamese()
    small = Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")
    text = table(plans.plan_by_hand(plan.graph, small, plan.device_of))

    assert "36.4 MiB!" in text
    assert "! exceeds the limit" in text


def test_grid_text_takes_markup_as_text() -> None:
    """Brackets in names are no styles."""
    text = grid_text(Grid([{"a": "[bold]x[/bold]"}]), width=60)
    assert "[bold]x[/bold]" in text


def test_chart_of_nothing_or_in_no_width_says_so() -> None:
    """An empty timeline is no division by zero, a width of 0 no traceback."""
    assert chart(Timeline((), (), ("gpu:0",), {})) == "Nothing runs."
    with pytest.raises(SplitnetError, match="width= must be int >= 1 and <= 10000"):
        sn.chart(plans.one().timeline, width=0)


def test_part_facts_have_no_folder_of_the_author() -> None:
    """A declaration's file is named without its path."""
    plan = plans.siamese()
    parts = (replace(one, where="/home/someone/net.py:12") for one in plan.graph.parts)
    graph = replace(plan.graph, parts=tuple(parts))
    found = part_facts(plans.plan_by_hand(graph, plan.cluster, plan.device_of))
    assert {one.where for one in found.values()} == {"net.py:12"}


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("latency", ("training step", "113 ms")),
        ("throughput", ("busiest device", "2.00 s")),
        ("memory", ("fullest device", "2 B")),
    ],
)
def test_objective_text_says_what_the_value_counts(
    objective: str, words: tuple[str, str]
) -> None:
    """A pipeline's value is no step, and a memory plan's value is no time."""
    plan = replace(plans.siamese(), objective=objective, value=2.0)
    assert objective_text(plan) == words
