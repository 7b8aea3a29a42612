"""What a prompt or a notebook shows of a value: one line, however large it is."""

import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import splitnet as sn
from splitnet.core.audit import Audit, Finding
from splitnet.view.render import notebook_progress
from tests.view import plans

PLAN, SMALL = plans.chain(300), plans.siamese()
FINDING = Finding("forward", "left", "gpu:0", "cpu:0", "left ran on cpu:0.")


def test_repr_is_one_short_line():
    """A plan of 300 branches does not flood the screen; answers are sentences."""
    for value, said in (
        (PLAN, "<Plan of 'chain of 300': "),
        (PLAN.graph, "<Graph 'chain of 300': batch "),
        (PLAN.cluster, "<Cluster of 5: gpu:0, gpu:1, gpu:2, gpu:3, cpu:0>"),
        (PLAN.timeline, "<Timeline: "),
        (Audit(PLAN, (), (FINDING,), {}), "<audit of 'chain of 300': "),
    ):
        shown = repr(value)
        assert shown.startswith(said)
        assert shown.endswith(">")
        assert len(shown) < 120
        assert "\n" not in shown
    small = sn.score(SMALL.graph, PLAN.cluster, {"*": "gpu:0"})
    for answer in (
        *(small.verdict, small.explain("left"), small.compare(small)),
        *(sn.compare_strategies(small), sn.sensitivity(small, draws=1)),
    ):
        assert repr(answer) == str(answer)
        assert "(" not in repr(answer).split()[0]


def in_notebook(value, kind):
    shown = value._repr_mimebundle_(include=None, exclude=None)
    assert [*shown] == [kind]
    return shown[kind]


def test_plans_and_audits_show_themselves_in_a_notebook():
    audit = Audit(SMALL, (), (FINDING,), {})
    assert in_notebook(SMALL.timeline, "image/svg+xml").startswith("<svg")
    for value, said in ((audit, "left ran on cpu:0."), (SMALL, "1.50 times")):
        page = in_notebook(value, "text/html")
        svg, table = page.split(">", 1)[1].split("</div>")
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert said in table
        assert "<script" not in page


def test_nets_and_clusters_show_themselves_in_a_notebook():
    net = sn.Net("fusion")
    pixels = net.input("image<1>", (8,))
    seen = net.branch("see", pixels, lambda x: x, on="gpu:1")
    pair, free = [("gpu:2", "cpu"), "gpu:3"], ("gpu:4", "cpu")
    copies = net.towers("copies", pixels, lambda x: x, on=pair)
    slices = net.split("slices", pixels, lambda x: x, on=pair)
    rest = net.branch("rest", pixels, lambda x: x, on=free)
    its = [seen, pixels, copies, slices, rest]
    net.output(net.merge("join", its, lambda its: its[0]))
    picture = in_notebook(net, "image/svg+xml")
    assert picture.startswith("<svg")
    for words in ("image&lt;1&gt;", ">see<", "on gpu:1", ">join<", "on cpu"):
        assert words in picture.replace("&#45;", "-")
    assert picture.count(">on gpu:2 or cpu, gpu:3<") == 2
    assert ">on gpu:4 or cpu<" in picture
    svg, table = in_notebook(PLAN.cluster, "text/html").split("<pre>")
    assert svg.count(">gpu:3<") == 1
    assert "gpu:3" in table
    its = [net.branch(f"b_{n}", pixels, lambda x: x, on="gpu:0") for n in range(300)]
    net.output(net.merge("all", its, lambda its: its[0]))
    assert in_notebook(net, "image/svg+xml").count('class="node"') < 10  # blocks


def test_a_notebook_shows_a_bar_while_it_plans(monkeypatch):
    """Nothing elsewhere; in IPython's kernel a bar with the best value."""
    assert notebook_progress() is None
    shown, shell = [], type("ZMQInteractiveShell", (), {})()
    handle = SimpleNamespace(update=shown.append)
    display = SimpleNamespace(HTML=str, display=lambda it, display_id: handle)
    kernel = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    notebook_progress()(0.5, 0.0123)
    assert shown == ['planning <progress value="0.500"></progress> best 0.0123']
