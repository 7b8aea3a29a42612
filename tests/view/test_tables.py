"""Tables and charts as plain text: verdict first, at any width from 60 columns."""

from dataclasses import replace

import pytest
from rich.cells import cell_len

import splitnet as sn
from splitnet.core.audit import Audit, Finding, Row
from splitnet.core.timeline import Task, Timeline
from splitnet.view.facts import objective_text
from splitnet.view.tables import Grid, chart, grid_text, table
from tests.view import plans

SIAMESE = plans.siamese()
STRAY = "the backward pass of 'left' ran on cpu:0, planned on gpu:0 (3 ops)"
STRAYED = Audit(
    SIAMESE,
    (
        Row("left", "gpu:0", "gpu:0", "cpu:0", "gpu:0", "gpu:0", "gpu:0", 12),
        Row("right", "gpu:1", "gpu:1", "gpu:1", "gpu:1", "", "gpu:1", 11),
    ),
    (Finding("backward", "left", "gpu:0", "cpu:0", STRAY),),
    {("cpu:0", "gpu:0", "activation"): (65536, 131072)},
    ("eager calls are not seen",),
)
"""An audit with one finding and one note."""


def test_tables_are_the_golden_texts():
    """Verdict first; a change of a table of any kind, or of a chart, is reviewed."""
    cluster = sn.Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
    for text, name in (
        (table(SIAMESE), "siamese_table.txt"),
        (table(SIAMESE, width=120), "siamese_table_wide.txt"),
        (table(cluster), "cluster_table.txt"),
        (table(STRAYED), "audit_table.txt"),
        (chart(SIAMESE.timeline), "siamese_chart.txt"),
    ):
        plans.assert_golden(text + "\n", name)


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_fits_its_width_with_any_names(width):
    for plan in (plans.one(), plans.towers(300), plans.nasty()):
        text = table(plan, width=width)
        assert all(cell_len(s) <= width and s == s.rstrip() for s in text.splitlines())
    assert "two lines" in text
    ends = "worker:0/gpu:1 → worker:1/gpu:1"
    assert ends in grid_text(Grid([{"transfer": ends, "kind": "gradient"}], 2), 60)
    assert grid_text(Grid([{"a": "b" * 99, "k": "gradient"}], 2), 60).count("\n") == 2
    row = {"a": "n" * 15, "k": ends, "utilization": "9 %"}  # words of heads stay whole
    assert all(word in grid_text(Grid([row], 3), 40) for word in ("n" * 15, [*row][2]))
    cells = {f"kind {n}": "1.00 GiB" for n in range(12)}  # no column is cut or dropped
    text = grid_text(Grid([{"device": "worker:10/gpu:10"} | cells], 1, cells), width)
    assert text.count("1.00 GiB") == 24
    assert "per call" in table(sn.Cluster.of("worker:10/gpu:10"), width=width)
    assert "No transfers" in table(plans.one())


def test_table_takes_the_terminals_width(monkeypatch):
    """On a terminal of 120 columns memory is broken down; in a pipe it is not."""
    monkeypatch.setenv("COLUMNS", "120")
    piped = table(SIAMESE)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert table(SIAMESE) == table(SIAMESE, width=120)
    monkeypatch.setattr("sys.stdout", None)  # closed
    assert piped == table(SIAMESE, width=80) == table(SIAMESE)


def test_table_marks_a_device_that_holds_too_much():
    small = sn.Cluster.of("gpu:0", "gpu:1", "cpu", memory="1 MiB")
    text = table(plans.moved_to(SIAMESE, small))
    assert all(said in text for said in ("36.4 MiB!", "! exceeds the limit"))


def test_text_of_nothing_in_no_width_or_with_markup():
    """No division by zero, no traceback; brackets in names are no styles."""
    nothing = Timeline((), (), ("gpu:0",), {})
    assert (chart(nothing), nothing.utilization["gpu:0"]) == ("Nothing runs.", 0.0)
    alone = Timeline((Task("a", "gpu:0", "forward", 0.0, 1.0),), (), ("gpu:0",), {})
    assert chart(alone).endswith("\nF forward  ~ transfer  . idle")
    with pytest.raises(sn.SplitnetError, match="width= must be int >= 1 and <= 10000"):
        sn.chart(plans.one().timeline, width=0)
    assert "[bold]x[/bold]" in grid_text(Grid([{"a": "[bold]x[/bold]"}]), width=60)


def test_objective_text_says_what_the_value_counts():
    """A pipeline's value is no step, and a memory plan's value is no time."""
    piped = replace(SIAMESE, objective="throughput", value=2.0)
    small = replace(SIAMESE, objective="memory", value=2.0)
    assert objective_text(piped) == ("busiest device", "2.00 s")
    assert objective_text(small) == ("fullest device", "2 B")
