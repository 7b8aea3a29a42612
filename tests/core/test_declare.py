"""Declarations: what they hold, and every fault at once, with its file and line."""

import re
from collections.abc import Callable
from typing import Any

import pytest

import splitnet as sn

BODY = object()


def faults(declare: Callable[[sn.Net], Any]) -> str:
    """What is said of a net that `declare` builds."""
    net = sn.Net("broken")
    declare(net)
    with pytest.raises(sn.DeclarationError) as caught:
        net.check()
    return str(caught.value)


def finish(net: sn.Net, *refs: Any) -> None:
    """Make every reference an output."""
    for ref in refs:
        net.output(ref)


def test_net_holds_what_was_declared() -> None:
    """Branches stand in order, with their devices in canonical spelling."""
    net = sn.Net("small")
    x = net.input("x", (4, None), dtype="int32")
    a = net.branch("a", x, BODY, on="/GPU:1")
    b = net.branch("b", x, BODY, on=["/device:GPU:0", "gpu"], apart=a)
    net.output(net.merge("both", [a, b], BODY), "answer")
    net.check()

    assert [(b.name, b.kind, b.on) for b in net.branches] == [
        ("x", "input", ("cpu",)),
        ("a", "branch", ("gpu:1",)),
        ("b", "branch", ("gpu:0", "gpu")),
        ("both", "merge", ("cpu",)),
    ]
    assert (net.branches[0].shape, net.branches[0].dtype) == ((4, None), "int32")
    assert net.branches[2].apart == ("a",)
    assert [output.name for output in net.outputs] == ["answer"]


def test_net_never_touches_a_body() -> None:
    """It is looked at when the net is read; nor does a prompt, or `if ref:`, do so."""

    class Hostile:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(f"declaring looked at {name}")

        def __call__(self, *_: Any) -> Any:
            raise AssertionError("declaring called the body")

    net = sn.Net("careful")
    net.output(ref := net.branch("a", net.input("x", (4,)), Hostile()))

    assert net.faults() == []
    assert repr(net) == "<Net 'careful': 2 branches, 1 outputs>"
    assert ref


def test_all_faults_come_at_once_with_their_lines() -> None:
    """One error tells everything, each fault with the file and line it stands in."""

    def declare(net: sn.Net) -> None:
        x = net.input("x", (4,))
        net.branch("a", x, BODY, on="gpx:1")
        a = net.branch("a", x, BODY)
        net.merge("alone", [a], BODY)
        net.output("a")

    text = faults(declare)

    assert text.startswith("net 'broken' has ")
    for words in ("on='gpx:1'", "the name 'a' is taken", "merge 'alone' joins 1 input"):
        assert words in text
    assert len(set(re.findall(r"test_declare\.py:(\d+): ", text))) >= 4


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda net: None, "net 'broken' is empty"),
        (
            lambda net: net.branch("a", net.input("x", (4,)), BODY),
            "net 'broken' has no output; say net.output(ref) for each",
        ),
        (
            lambda net: finish(net, net.branch("a", [], BODY)),
            "branch 'a' takes what a branch returned. Received: []",
        ),
        (
            lambda net: finish(net, net.input("x", (4,)), net.input("x", (4,))),
            "the name 'x' is taken by the input at",
        ),
        (
            lambda net: (net.input("y", (4,)), finish(net, net.input("x", (4,)))),
            "input 'y' leads to no output; use it or remove it",
        ),
        (
            lambda net: (
                net.branch("dead", x := net.input("x", (4,)), BODY),
                finish(net, net.branch("a", x, BODY)),
            ),
            "branch 'dead' leads to no output; use it or remove it",
        ),
        (
            lambda net: finish(net, sn.Net("other").input("x", (4,))),
            "the output uses 'x' of another net, 'other'",
        ),
        (
            lambda net: finish(
                net, net.branch("a", sn.Net("other").input("x", (4,)), BODY)
            ),
            "branch 'a' uses 'x' of another net, 'other'",
        ),
        (lambda net: net.input("x", 4), "the shape must be a tuple such as (28, 28)"),
        (lambda net: net.input("x", b"ab"), "the shape must be a tuple such as"),
        *(
            (lambda net, n=name: net.input(n, (3,)), "needs a name of printable")
            for name in ("", 3, ["x"], "a/b", "a\x1b[2J")
        ),
        (
            lambda net: net.output(net.input("x", (3,)), "_x"),
            "an output needs a name of printable",
        ),
        (
            lambda net: [net.output(net.input(n, (3,)), "y") for n in "ab"],
            "the name 'y' is taken by the output at",
        ),
        (
            lambda net: net.branch("a", net.input("x", (3,)), BODY, near="x"),
            "near= takes what a branch returned. Received: 'x'",
        ),
    ],
)
def test_fault_is_told(declare: Callable[[sn.Net], Any], words: str) -> None:
    """Each fault of a declaration has words that say what to do."""
    assert words in faults(declare)


@pytest.mark.parametrize("name", ["_x", "a/b", "", " ", "-a", "a\n", 7])
def test_net_names_that_tensorflow_refuses_are_faults(name: Any) -> None:
    """A model's name is a scope of TensorFlow's graph."""
    with pytest.raises(sn.DeclarationError, match="a net needs a name of printable"):
        sn.Net(name).check()


@pytest.mark.parametrize("on", [[], None, 3, "", "gpu:-1", "gpu:x", ["gpu:0", 4]])
def test_impossible_device_is_told(on: Any) -> None:
    """Whatever is no device is refused with what was asked."""
    text = faults(lambda net: net.branch("a", net.input("x", (3,)), BODY, on=on))

    assert f"branch 'a': on={on!r}: " in text


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (
            ({}, {"near": "a"}, {"near": "b", "apart": "a"}),
            r"\.py:\d+: 'c' must be apart from 'a', but near= binds them to one device",
        ),
        (
            ({"on": "gpu:0"}, {"near": "a"}, {"on": "gpu:1", "near": "b"}),
            r"\.py:\d+: near= binds .* share a device: 'a' on gpu:0; 'c' on gpu:1",
        ),
        (
            ({"on": "gpu:0"}, {"on": "gpu:0", "apart": "a"}),
            "'b' must be apart from 'a', but both are on gpu:0",
        ),
        (
            (
                *({"on": "gpu:0"}, {"near": "a"}),
                *({"on": "gpu:0"}, {"near": "c", "apart": "b"}),
            ),
            "'d' must be apart from 'b', but both are on gpu:0",
        ),
        (
            (
                *({"on": "gpu:0"}, {"near": "a", "on": "gpu:0"}),
                *({"apart": "a", "on": "gpu:1"}, {"near": "c"}),
            ),
            "^$",
        ),
    ],
    ids=["near and apart", "pins through others", "equal pins", "neighbours", "none"],
)
def test_conflicting_constraints_are_told(
    constraints: tuple[dict[str, Any], ...], said: str
) -> None:
    """Near binds to one device, however long the chain; a neighbour's pin counts."""
    net = sn.Net("constrained")
    x = net.input("x", (4,))
    refs: dict[str, Any] = {}
    for letter, given in zip("abcd", constraints):
        named = {word: refs.get(value, value) for word, value in given.items()}
        refs[letter] = net.branch(letter, x, BODY, **named)
        net.output(refs[letter])

    assert re.search(said, "\n".join(net.faults()))
