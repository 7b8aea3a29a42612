"""What a prompt or a notebook shows of a value: one line, however large it is."""

import pytest

import splitnet as sn
from splitnet.core.audit import Audit, Finding
from tests.view import plans

PLAN = plans.chain(300)
FINDING = Finding("forward", "left", "gpu:0", "cpu:0", "left ran on cpu:0.")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (PLAN, "<Plan of 'chain of 300': "),
        (PLAN.graph, "<Graph 'chain of 300': batch "),
        (PLAN.cluster, "<Cluster of 5: gpu:0, gpu:1, gpu:2, gpu:3, cpu:0>"),
        (PLAN.timeline, "<Timeline: "),
        (Audit(PLAN, (), (FINDING,), {}), "<audit of 'chain of 300': "),
    ],
    ids=["plan", "graph", "cluster", "timeline", "audit"],
)
def test_repr_is_one_short_line(value: object, said: str) -> None:
    """A plan of 300 branches does not flood the screen."""
    shown = repr(value)

    assert shown.startswith(said)
    assert shown.endswith(">")
    assert len(shown) < 120
    assert "\n" not in shown


def test_answers_show_themselves_as_text() -> None:
    """A verdict, an explanation and their like are sentences where they are shown."""
    small = sn.score(plans.siamese().graph, PLAN.cluster, {"*": "gpu:0"})
    answers = (
        small.verdict,
        small.explain("left"),
        small.compare(small),
        sn.compare_strategies(small),
        sn.sensitivity(small, draws=1),
    )
    for answer in answers:
        assert repr(answer) == str(answer)
        assert "(" not in repr(answer).split()[0]


def test_timelines_and_audits_show_themselves_in_a_notebook() -> None:
    """A chart of the step, and a diagram with what strayed and the findings below."""
    assert callable(sn.simulate)
    siamese = plans.siamese()
    audit = sn.Audit(siamese, (), (FINDING,), {})

    chart, page = siamese.timeline._repr_svg_(), audit._repr_html_()

    assert chart is not None
    assert chart.startswith("<svg")
    assert page is not None
    assert "<svg" in page
    assert "left ran on cpu:0." in page
    assert "<script" not in page
