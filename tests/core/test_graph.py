"""Graphs: each fault of one is named, and all of them at once."""

from dataclasses import replace
from typing import Any

import pytest

from splitnet.core.errors import DeclarationError
from splitnet.core.graph import Part, Tensor
from tests.zoo import diamond

GRAPH = diamond()
CALL, LAST = GRAPH.calls[0], GRAPH.calls[-1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "batch= must be int >= 1"),
        ({"calls": (*GRAPH.calls, CALL)}, f"call {CALL.name!r} is repeated"),
        ({"parts": ()}, f"names the part {CALL.part!r}, which does not exist"),
        (
            {"parts": (*GRAPH.parts, Part("p", near=("q",)))},
            "names the part 'q', which",
        ),
        ({"calls": (replace(CALL, weights=("w",)),)}, "'w', which does not exist"),
        (
            {"calls": (replace(CALL, output_shapes=((1,),), output_dtypes=()),)},
            "0 dtypes",
        ),
        ({"tensors": (Tensor("no", LAST.name),)}, "names the call 'no', which"),
        ({"tensors": (Tensor(CALL.name, LAST.name, 99),)}, "there is no output 99"),
        ({"outputs": ("no",)}, "output names the call 'no', which"),
        ({"calls": GRAPH.calls[::-1]}, "its calls are not in topological order"),
        (
            {"tensors": (*GRAPH.tensors, Tensor(LAST.name, CALL.name))},
            f"{LAST.name} -> {CALL.name}: its calls are not in topological order",
        ),
    ],
)
def test_a_broken_graph_is_refused(change: dict[str, Any], said: str) -> None:
    """Repeated and missing names, impossible outputs, cycles."""
    with pytest.raises(DeclarationError) as caught:
        replace(GRAPH, **change)

    assert said in str(caught.value)
