"""The report: one page, complete, without a network, safe against names."""

import json
import re
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest

from splitnet.core.audit import Audit, Finding
from splitnet.core.errors import format_bytes
from splitnet.core.plan import Strategy, StrategyComparison
from splitnet.planner.engine.solve import warm_up
from splitnet.planner.evaluate import score
from splitnet.view.report import explorer_json, report_html
from splitnet.view.style import clean
from tests.view import plans
from tests.view.test_tables import STRAYED

VOID = {"meta", "link", "input", "br", "img", "rect", "path", "polygon", "polyline"}


class Page(HTMLParser):
    """What a page holds: tags, attributes, texts, and whether its tags pair up."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.open, self.words = [], [], [], []
        self.feed(text)
        self.close()
        self.ids = [value for name, value in self.attributes if name == "id"]

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag):
        """Check that it closes the last tag that was opened."""
        assert tag in VOID or self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data):
        self.words.append(data)


PLANS = {"siamese": plans.siamese(), "towers": plans.towers(30), "one": plans.one()}
PLANS["tangle"] = plans.tangle(300, 8)


@cache
def page_of(name):
    warm_up("latency")  # with which large graphs have moves of all parts
    return report_html(PLANS[name])


def data_of(text):
    (found,) = re.findall(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)
    return read(found)


def read(text):
    """The page's data, as its script reads them: tables are records again."""

    def records(one):
        rows = one.get("rows") if "heads" in one else None
        return one if rows is None else [dict(zip(one["heads"], row)) for row in rows]

    return json.loads(text, object_hook=records)


@pytest.mark.parametrize("name", PLANS)
def test_report_is_whole_small_and_needs_no_network(name):
    """Tags pair up, ids are unique, nothing is fetched, under 2 MB at 300 branches."""
    text = page_of(name)
    page = Page(text)
    links = [v for n, v in page.attributes if n in ("href", "src", "action") and v]
    assert not page.open
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith(("#", "data:")) for link in links)
    assert len(text.encode()) < 2_000_000
    # A section for all that there is, and for nothing else; one verdict.
    wanted = {"placement", "timeline", "memory", "devices", "parts", "transfers"}
    assert wanted <= set(page.ids)
    assert ("fallbacks" in page.ids) == (name == "siamese")
    assert not {"strategies", "audit"} & set(page.ids)
    # A declaration's file is named without the folder of its author.
    assert "net.py:12" in text
    assert "someone" not in text
    assert text.count(str(PLANS[name].verdict).splitlines()[0]) == 1


def test_report_compares_strategies_with_bars():
    rows = (
        Strategy("plan", 1.0, "emit(net, plan): on 2 GPUs", True, 0.5, 1024, 4096),
        Strategy("towers", 2.0, "sn.data_parallel(model)", False, 0.5, 2048, 1024),
    )
    verdict = replace(plans.siamese().verdict, known=StrategyComparison(rows))
    text = report_html(replace(plans.siamese(), verdict=verdict))
    widths = re.findall(r'<i style="width: ([\d.]+)%">', text)
    assert widths == ["50.0", "100.0", "50.0", "100.0", "25.0", "100.0"]
    assert text.count('class="strategy bad"') == 1
    for line in ("sn.emit(net, plan)", "sn.data_parallel(model)"):
        assert f"<code>{line}</code> <button" in text


def leaves(tree):
    if isinstance(tree, int):
        return [tree]
    return [part for child in tree["inside"] for part in leaves(child)]


def test_explorer_json_has_each_part_in_one_block_of_its_device():
    """300 branches: every part once, on one device, and about 24 boxes open."""
    data = data_of(page_of("tangle"))
    found = [leaves(tree) for tree in data["blocks"]]
    assert sorted(part for its in found for part in its) == list(range(301))
    assert all(len({data["parts"][p]["device"] for p in its}) == 1 for its in found)

    def shown(tree):
        opened = not isinstance(tree, int) and tree["open"]
        return sum(map(shown, tree["inside"])) if opened else 1

    assert 10 <= sum(map(shown, data["blocks"])) <= 24


def test_explorer_json_has_a_tree_of_the_layers_of_each_part():
    """Repeats are a block; links say from which layer to which."""
    draft = plans.Draft("blocks", 8)
    draft.source("x")
    draft.part("body", ["x"], ["Conv2D", "ReLU"] * 5, "gpu:0")
    draft.part("head", ["body"], at="gpu:0")
    data = read(explorer_json(draft.plan("2*gpu")))
    x, body, head = data["parts"]
    assert (body["tree"]["times"], len(body["tree"]["inside"])) == (5, 5)
    assert body["tree"]["inside"][4]["inside"] == [8, 9]
    assert (x["tree"], head["tree"]) == (None, None)
    size, ends = 4 * 8 * 64, [[1, n, 1, n + 1] for n in range(9)]
    ends = [[0, 0, 1, 0], *ends, [1, 9, 2, 0]]
    assert data["tensors"] == [[*one, size] for one in ends]
    layer = body["layers"][8]
    assert (layer["name"], layer["kind"]) == ("body/conv2d_8", "Conv2D")
    assert layer["shapes"] == [[8, 64]]
    assert layer["seconds"][1] > layer["seconds"][0] > 0
    assert (layer["weight_bytes"], layer["activation_bytes"]) == (65536, 4 * 8 * 64)


@pytest.mark.parametrize(
    ("name", "part", "close", "count"),
    [("siamese", "join", 0.0, 2), ("tangle", None, 0.15, 4)],
)
def test_explorer_json_says_what_each_move_costs(name, part, close, count):
    """As scoring the placement with that part elsewhere; memory estimated if large."""
    plan, data = PLANS[name], data_of(page_of(name))
    names = [one["name"] for one in data["parts"]]
    movable = [one for one in data["parts"] if one["kind"] != "input"]
    assert len(data["moves"]) == min(50, len(movable))
    number = str(names.index(part)) if part else next(iter(data["moves"]))
    moves = data["moves"][number]
    assert len(moves) == count
    for move in moves[:2]:
        to = move["device"]
        moved = {**plan.device_of, names[int(number)]: to}
        there = score(plan.graph, plan.cluster, moved)
        assert move["value"] == pytest.approx(there.seconds)
        assert (move["fits"], move["transfer_bytes"]) == (True, there.transfer_bytes)
        assert move["held_bytes"] == pytest.approx(there.memory[to].total, rel=close)
        assert move["estimated"] == (close > 0)


def test_explorer_json_accounts_for_memory_and_time():
    """Kinds add up to the peak; bars and gaps fill the step, as the critical path."""
    plan, data = plans.siamese(), data_of(page_of("siamese"))
    kinds = [{data["parts"][p]["kind"] for p in leaves(one)} for one in data["blocks"]]
    assert [its for its in kinds if "input" in its] == [{"input"}]  # at the left
    for device, memory in zip(plan.cluster, data["memory"], strict=True):
        peak = max(sum(held) for _, *held in memory["curve"])
        assert peak == plan.memory[device.name].total
        assert 0 < sum(size for _, _, size in memory["largest"]) <= peak
    step, whole = data["planned"], pytest.approx(plan.seconds)
    for device, waits in step["waits"].items():
        its = [task for task in step["tasks"] if task["device"] == device]
        filled = sum(task["stop"] - task["start"] for task in its)
        filled += sum(stop - start for _, start, stop in waits)
        assert filled == whole
    assert sum(stop - start for _, start, stop in step["path"]) == whole


def test_report_has_a_matrix_of_many_devices():
    """Each pair has its bytes in a cell; up to four devices have a list alone."""
    plan = plans.chain(12, 5)
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', report_html(plan), re.DOTALL)
    shares = r'<td class="n" style="--share: (\d+)%">([^<]*)'
    cells = [re.findall(shares, r) for r in rows]
    moved = Counter()
    for one in plan.transfers:
        moved[one.source_device, one.target_device] += one.bytes
    names, most = plan.cluster.names, max(moved.values())
    assert cells == [
        [(str(round(70 * n / most)), format_bytes(n) if n else "") for n in row]
        for row in ([moved[source, target] for target in names] for source in names)
    ]
    assert 'class="matrix"' not in page_of("siamese")


def test_report_of_an_audit_or_a_measured_step_says_what_differs():
    """Findings of an audit, which holds its plan; the five largest errors of times."""
    words = " ".join(Page(report_html(STRAYED)).words)
    assert "not as planned" in words
    assert "ran on cpu:0, planned on gpu:0" in words
    plan = plans.siamese()
    slow = tuple(
        replace(task, stop=2 * task.stop - task.start) if task.part == "left" else task
        for task in plan.timeline.tasks
    )
    plan = replace(plan, reused={"odd": "it has no config"})
    text = report_html(plan, measured=replace(plan.timeline, tasks=slow))
    words = "".join(Page(text).words)
    assert "it has no config" in words
    assert "Largest errors: left planned 96.2 ms, measured 192 ms;" in words
    assert len(data_of(text)["measured"]["tasks"]) == len(slow)


def test_report_shows_nasty_names_as_text():
    nasty = plans.nasty()
    found = tuple(Finding("slots", one, "a", "b", one) for one in plans.NASTY)
    text = report_html(Audit(nasty, (), found, {}), measured=nasty.timeline)
    page = Page(text)
    assert [c for c in text if c != "\n" and clean(c) != c] == []
    assert page.tags.count("script") == 3
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert any("<script>alert(1)</script>" in text for text in page.words)
