"""Segments: calls of one device that run as one, to be recomputed or compiled.

Calls are grouped by their device and by how many hops of devices lie before them, so a
group reads only what is finished before it starts. A recomputed segment keeps its
inputs for the backward pass and nothing else; a compiled one is a function of its own
that XLA compiles for its device, forward and backward.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from splitnet.core.plan import Fallback
from splitnet.tf.cuts import CARRIED
from splitnet.tf.internals import keras_api
from splitnet.tf.marks import scope_of
from splitnet.tf.reading.sparse import is_sparse
from splitnet.tf.reading.variables import variables_of
from splitnet.tf.reads import StateScope
from splitnet.tf.xla import refusal

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["RunNode", "Segment", "run_segment", "segments_of"]

RunNode = Callable[[Any, dict[int, Any]], None]
_LOOPING = (keras.layers.RNN, keras.layers.Bidirectional, keras.layers.TimeDistributed)


@dataclass(eq=False)
class Segment:
    """Calls of one device, what they read from outside, and what others read of them.

    `reads` and `gives` are symbolic tensors; `how` is "recompute" or "xla".
    """

    key: str
    target: str
    how: str
    nodes: list[Any] = field(default_factory=list)
    reads: list[Any] = field(default_factory=list)
    gives: list[Any] = field(default_factory=list)

    @property
    def flows(self) -> list[Any]:
        """What it reads but truth values, which are no argument of a recomputation."""
        return [t for t in self.reads if str(t.dtype) != "bool"]

    @property
    def variables(self) -> list[Any]:
        """The variables of all calls, each once."""
        found = {id(v): v for node in self.nodes for v in variables_of(node.operation)}
        return list(found.values())


def segments_of(
    placed: "Placed", how: str, wanted: Callable[[str], bool]
) -> tuple[tuple[Any, ...], list[Fallback]]:
    """Group a model's calls; what cannot be grouped stays a call, with a receipt.

    Args:
        placed: the placement of an emitted model.
        how: "recompute" or "xla".
        wanted: whether the part of a key shall run so.

    Returns:
        Segments and single nodes in an order in which they may run, and the receipts.
    """
    level: dict[int, int] = {}
    color: dict[int, tuple[str, str]] = {}
    groups: dict[tuple[int, str, str], list[Any]] = {}
    receipts: dict[tuple[str, str], Fallback] = {}
    for number, node in enumerate(placed.flow.nodes):
        key = placed.key_of[id(node)]
        why = _obstacle(node, placed, how) if wanted(key) else "not asked"
        own = (placed.target_of[key], "") if not why else ("", f"{number:06d}")
        if why and why != "not asked":
            part = placed.part_of[key]
            receipts.setdefault((part, why), Fallback(part, how, "as it is", why))
        before = [keras_api.producer(t) for t in node.input_tensors]
        level[id(node)] = max(
            (level[id(b)] + (color[id(b)] != own) for b in before if id(b) in level),
            default=0,
        )
        color[id(node)] = own
        groups.setdefault((level[id(node)], *own), []).append(node)
    order = {id(node): i for i, node in enumerate(placed.flow.nodes)}
    ranked = sorted(
        groups.items(), key=lambda item: (item[0][0], order[id(item[1][0])])
    )
    steps = [
        _segment(placed, how, nodes) if target else nodes[0]
        for (_, target, _), nodes in ranked
    ]
    return tuple(steps), list(receipts.values())


def _obstacle(node: Any, placed: "Placed", how: str) -> str:
    """Why a call cannot be in a segment; "" if it can."""
    if id(node) in placed.replicas:
        return "towers fetch their weights once, outside"
    operation = node.operation
    if any(id(v) in placed.home_of for v in variables_of(operation)):
        return "it shares weights with another device"
    kinds = [*node.input_tensors, *node.outputs]
    if any(keras.backend.standardize_dtype(t.dtype) == "string" for t in kinds):
        return "it works on text"
    if any(map(is_sparse, kinds)):
        return "it works on sparse tensors"
    if how == "xla" and isinstance(operation, keras.layers.Layer):
        loops = [x for x in keras_api.sublayers(operation) if isinstance(x, _LOOPING)]
        if loops:
            return "XLA compiles its loop for one length only"
    return refusal(node) if how == "xla" else ""


def _segment(placed: "Placed", how: str, nodes: list[Any]) -> Segment:
    key = placed.key_of[id(nodes[0])]
    mine = {id(node) for node in nodes}
    reads: dict[int, Any] = {}
    for node in nodes:
        for tensor in node.input_tensors:
            if id(keras_api.producer(tensor)) not in mine:
                reads[id(tensor)] = tensor
    elsewhere = {id(t) for t in placed.flow.outputs} | {
        id(t)
        for node in placed.flow.nodes
        if id(node) not in mine
        for t in node.input_tensors
    }
    gives = [t for node in nodes for t in node.outputs if id(t) in elsewhere]
    return Segment(key, placed.target_of[key], how, nodes, list(reads.values()), gives)


def run_segment(
    segment: Segment,
    tensors: dict[int, Any],
    run_node: RunNode,
    context: Mapping[str, Any],
) -> None:
    """Run a segment as one, or its calls one by one where nothing is gained by it."""
    if segment.how == "recompute":
        idle = not context.get("training")
    else:
        idle = tf.executing_eagerly()
    missing = any(tensors.get(id(t)) is None for t in segment.reads)
    if idle or missing or keras_api.in_stateless_scope():
        _one_by_one(segment.nodes, tensors, run_node)
        return
    _Run(segment, tensors, run_node).run()


def _one_by_one(
    nodes: Iterable[Any], tensors: dict[int, Any], run_node: RunNode
) -> None:
    for node in nodes:
        run_node(node, tensors)


class _Run:
    """One run of a segment as a function of tensors.

    What calls change besides their outputs, states and losses, is returned by the
    function and given to them afterwards: a recomputation must neither see what the
    first run changed nor change it again.
    """

    def __init__(
        self, segment: Segment, tensors: dict[int, Any], run_node: RunNode
    ) -> None:
        self._segment, self._tensors, self._run_node = segment, tensors, run_node
        self._states = [v for v in segment.variables if not v.trainable]
        # A recomputation must see the masks that the first run saw.
        self._masks = {
            id(t): getattr(tensors[id(t)], CARRIED[0], None) for t in segment.reads
        }
        self._first: _Made | None = None

    def run(self) -> None:
        """Run it, and hand on outputs, losses and states."""
        segment = self._segment
        with tf.name_scope(scope_of(segment.key)), tf.device(segment.target):
            given = [self._arrived(t) for t in segment.flows]
            states = [tf.identity(v.value) for v in self._states]
            made = self._function(states)(*given)
        first = self._first
        assert first is not None
        outputs = list(made)
        for number, old in enumerate(segment.gives):
            place = first.place[number]
            value = outputs[place] if isinstance(place, int) else place
            for name, place in first.hung[number].items():
                hung = outputs[place] if isinstance(place, int) else place
                setattr(value, name, hung)
            self._tensors[id(old)] = value
        for operation, place in first.losses:
            operation.add_loss([outputs[place]])
        for variable, value in first.states:
            new = outputs[value] if isinstance(value, int) else value
            with tf.name_scope(scope_of(segment.key)), tf.device(segment.target):
                variable.assign(new)

    def _arrived(self, old: Any) -> Any:
        """An input on the segment's device, without what hangs on it."""
        return tf.identity(self._tensors[id(old)])

    def _function(self, states: list[Any]) -> Callable[..., Any]:
        if self._segment.how == "xla":
            return self._compiled(states)

        def again(*given: Any) -> list[Any]:
            return self._once(given, states)

        return tf.recompute_grad(again)

    def _compiled(self, states: list[Any]) -> Callable[..., Any]:
        def whole(given: list[Any], states: list[Any]) -> list[Any]:
            return self._once(given, states, everything=True)

        compiled = tf.function(whole, jit_compile=True, autograph=False)
        return lambda *given: compiled(list(given), states)

    def _once(
        self, given: Any, states: list[Any], *, everything: bool = False
    ) -> list[Any]:
        """All calls of the segment; the flat outputs that gradients flow through.

        `everything` makes outputs also of masks and states, which a compiled function
        can hand on in no other way.
        """
        segment = self._segment
        local: dict[int, Any] = {}
        flows = {id(old): value for old, value in zip(segment.flows, given)}
        for old in segment.reads:
            value = flows.get(id(old), self._tensors[id(old)])
            if self._masks[id(old)] is not None:
                setattr(value, CARRIED[0], self._masks[id(old)])
            local[id(old)] = value
        made = _Made()
        mapping = list(zip(self._states, states))
        for node in segment.nodes:
            with StateScope(
                mapping, collect_losses=True, initialize_variables=False
            ) as scope:
                self._run_node(node, local)
            mapping = [(v, scope.get_current_value(v)) for v in self._states]
            for loss in scope.losses:
                made.losses.append((node.operation, made.add(loss)))
        for old in segment.gives:
            made.give(local[id(old)], everything)
        for (variable, after), before in zip(mapping, states):
            if after is not before:
                made.states.append((variable, made.add(after) if everything else after))
        if self._first is None:
            self._first = made
            for old in segment.reads:
                left = getattr(local[id(old)], CARRIED[0], None)
                if self._masks[id(old)] is not None and left is None:
                    setattr(self._tensors[id(old)], CARRIED[0], None)
        return made.outputs


class _Made:
    """What one run of a segment made, and where in its flat outputs it stands."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self.place: list[Any] = []  # or what is no output: a truth value
        self.hung: list[dict[str, Any]] = []
        self.losses: list[tuple[Any, int]] = []
        self.states: list[tuple[Any, Any]] = []

    def add(self, value: Any) -> int:
        """The place of one more output."""
        self.outputs.append(value)
        return len(self.outputs) - 1

    def give(self, value: Any, everything: bool) -> None:
        """An output with what hangs on it; logits carry gradients, masks do not.

        Truth values carry none either, and a recomputation cannot return them.
        """
        flows = everything or value.dtype != tf.bool
        self.place.append(self.add(value) if flows else value)
        found: dict[str, Any] = {}
        for name in CARRIED:
            hung = getattr(value, name, None)
            if hung is not None:
                flows = everything or hung.dtype.is_floating
                found[name] = self.add(hung) if flows else hung
        self.hung.append(found)
