"""The report: one page, complete, without a network, safe against names."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError, format_bytes
from splitnet.core.plan import Plan, Strategy, StrategyComparison
from splitnet.view.report import report, report_html
from tests.view import plans
from tests.view.test_tables import strayed

VOID = {"meta", "link", "input", "br", "img", "rect", "path", "polygon", "polyline"}


class Page(HTMLParser):
    """What a page holds: tags, attributes, texts, and whether its tags pair up."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.faults: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag and what it refers to."""
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "action") and value:
                self.links.append(value)
            if name.startswith("on"):
                self.handlers.append(name)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note a tag that closes itself."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Check that it closes the last tag that was opened."""
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data: str) -> None:
        """Keep the text."""
        self.words.append(data)


@pytest.mark.parametrize(
    "plan",
    [
        plans.one(),
        plans.siamese(),
        plans.towers(30),
        plans.chain(300),
        plans.tangle(300),
    ],
    ids=lambda plan: plan.graph.name,
)
def test_report_is_whole_small_and_needs_no_network(plan: Plan) -> None:
    """Tags pair up, ids are unique, nothing is fetched, under 2 MB at 300 branches."""
    text = report_html(plan)
    page = Page(text)
    assert not page.faults
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:")) for link in page.links)
    assert len(text.encode()) < 2_000_000


def test_report_has_a_section_for_all_that_there_is() -> None:
    """No fallback, no such section; no audit, no such section; one verdict."""
    plan = plans.siamese()
    text = report_html(plan)
    assert text.count(str(plan.verdict).splitlines()[0]) == 1
    page, other = Page(text), Page(report_html(plans.chain(3)))
    wanted = {"placement", "timeline", "memory", "devices", "parts", "transfers"}
    assert wanted | {"fallbacks"} <= set(page.ids)
    assert page.tags.count("svg") == 2
    assert wanted <= set(other.ids)
    assert not {"fallbacks", "audit"} & set(other.ids)


def test_report_compares_strategies_with_bars() -> None:
    """Lengths are times; what does not fit says so; without a comparison, no bars."""
    plan = plans.siamese()
    compared = StrategyComparison(
        (
            Strategy("plan", 1.0, "sn.emit(net, plan)"),
            Strategy("towers", 2.0, "sn.data_parallel(model)", fits=False),
        )
    )
    verdict = replace(plan.verdict, strategies=compared)
    text = report_html(replace(plan, verdict=verdict))
    widths = re.findall(r'<i style="width: ([\d.]+)%">', text)
    assert widths == ["50.0", "100.0"]
    assert "2.00 s, does not fit" in text
    assert "strategies" not in Page(report_html(plan)).ids


@pytest.mark.parametrize(
    ("memory", "said", "share"),
    [
        ("16 GiB", "36.4 MiB, 0.2 % of 16.0 GiB", "0.2"),
        ("50 MiB", "36.4 MiB, 73 % of 50.0 MiB", "72.8"),
        ("36 MiB", "36.4 MiB, 101 % of 36.0 MiB: too much", "100"),
    ],
)
def test_report_shows_how_full_a_device_is(memory: str, said: str, share: str) -> None:
    """A bar of the limit, and the pieces of the peak, which are as long as it."""
    plan = plans.siamese()
    cluster = Cluster.of("gpu:0", "gpu:1", "cpu", memory=memory)
    text = report_html(plans.plan_by_hand(plan.graph, cluster, plan.device_of))
    row = text[text.index('<span class="said">' + said) - 300 :]
    assert f'<i style="width: {share}' in row
    pieces = re.findall(
        r'title="(\w+) [^"]+" style="width: ([\d.]+)%', row.partition("</div>")[0]
    )
    wide = {word: float(share) for word, share in pieces}
    assert wide["slots"] == pytest.approx(2 * wide["weights"], abs=0.02)
    held = plan.memory["gpu:0"].total / plan.memory["cpu:0"].total
    assert sum(wide.values()) == pytest.approx(100 * held, abs=0.1)


def test_report_has_a_matrix_of_many_devices() -> None:
    """Each pair has its bytes in a cell; up to four devices have a list alone."""
    plan = plans.chain(12, 5)
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', report_html(plan), re.DOTALL)
    cells = [
        re.findall(r'<td class="n" style="--share: (\d+)%">([^<]*)', r) for r in rows
    ]
    assert len(cells) == 6
    assert all(len(row) == 6 for row in cells)
    moved: dict[tuple[str, str], int] = {}
    for one in plan.transfers:
        ends = one.source_device, one.target_device
        moved[ends] = moved.get(ends, 0) + one.bytes
    names = [device.name for device in plan.cluster]
    for row, source in zip(cells, names, strict=True):
        for (share, said), target in zip(row, names, strict=True):
            count = moved.get((source, target), 0)
            assert said == (format_bytes(count) if count else "")
            assert int(share) == round(70 * count / max(moved.values()))
    assert "matrix" not in report_html(plans.siamese()).partition("</style>")[2]


def test_report_of_an_audit_lists_its_findings() -> None:
    """An audit alone is enough: it holds its plan."""
    audit = strayed()
    text = report_html(audit)
    words = " ".join(Page(text).words)
    assert "not as planned" in words
    assert "ran on cpu:0, planned on gpu:0" in words


def test_report_sets_the_measured_timeline_below_the_planned() -> None:
    """Both headings are there."""
    plan = plans.siamese()
    words = "".join(Page(report_html(plan, measured=plan.timeline)).words)
    assert "planned: one step" in words
    assert "measured: one step" in words


def test_report_shows_nasty_names_as_text() -> None:
    """One script, the page's own; no handler; the name is there to be read."""
    page = Page(report_html(plans.nasty()))
    assert page.tags.count("script") == 1
    assert not page.handlers
    assert not page.faults
    assert any("<script>alert(1)</script>" in text for text in page.words)


def test_report_writes_its_file(tmp_path: Path) -> None:
    """The page is in the file that was asked for, alone; twice the same bytes."""
    path = report(plans.towers(30), tmp_path / "report.html")
    assert path.read_text(encoding="utf-8") == report_html(plans.towers(30))
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_report_refuses_what_is_no_plan(tmp_path: Path) -> None:
    """A timeline alone is no report."""
    timeline: Any = plans.one().timeline
    with pytest.raises(SplitnetError, match="thing= must be a plan or an audit"):
        sn.report(timeline, tmp_path / "x.html")


@pytest.mark.parametrize(
    ("plan", "shape"), [(plans.siamese(), "wide"), (plans.towers(20), "tall")]
)
def test_report_fits_its_frame_and_its_paper_to_the_diagram(
    plan: Plan, shape: str
) -> None:
    """The frame has the diagram's sides, and a tall one prints upright."""
    text = report_html(plan)
    match = re.search(r"--wide: (\d+); --tall: (\d+)", text)
    assert match is not None
    assert (int(match[1]) > int(match[2])) == (shape == "wide")
    assert f'<section id="placement" class="{shape}-picture">' in text
