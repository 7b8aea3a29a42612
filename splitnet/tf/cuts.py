"""Cuts: what a call on one device reads from another, and how it gets there once.

TensorFlow itself moves a tensor once to each device that reads it, but knows nothing of
cuts: its optimizers fuse an addition into a product on another device, and a loop that
reads from afar waits for it in every turn. So what crosses arrives by an identity on
the reader's device, before the reader starts. Gradient tapes do not see it, so they sum
gradients in the order of plain Keras (`tf/sums.py` says where). A weight away from home
is fetched once as well.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from splitnet.tf.internals import keras_api
from splitnet.tf.internals.gradient_marks import same_to_tapes, signed
from splitnet.tf.marks import PASSING, key_in, scope_of
from splitnet.tf.reading.variables import variables_of, weights_of
from splitnet.tf.reads import ReadScope, one_by_one

if TYPE_CHECKING:
    from splitnet.tf.placement import Placed

__all__ = ["CARRIED", "Cuts", "Fetched"]

CARRIED = ("_keras_mask", "_keras_logits")  # what Keras hangs on a tensor


class Cuts:
    """The hand-overs of one run of a placed model."""

    def __init__(self, placed: "Placed") -> None:
        self._placed = placed
        self._arrived: dict[tuple[int, str], Any] = {}

    def seen_from(self, key: str, node: Any, tensors: dict[int, Any]) -> dict[int, Any]:
        """The values of a node's inputs as its part sees them, by tensor id."""
        if not self._placed.target_of:
            return tensors
        return {
            id(tensor): self._seen(key, node, tensor, tensors[id(tensor)])
            for tensor in node.input_tensors
        }

    def _seen(self, key: str, node: Any, tensor: Any, value: Any) -> Any:
        """A value as it is, or arrived from elsewhere with all that hangs on it."""
        placed = self._placed
        source = placed.key_of[id(keras_api.producer(tensor))]
        if placed.target_of[source] == placed.target_of[key]:
            return value
        if not isinstance(value, tf.Tensor):
            return value
        alone = placed.segments  # functions of their own sum what they read
        copy = tf.identity if alone else same_to_tapes
        return _with_all(value, self.arrive(value, key, copy))

    def made(self, key: str, value: Any) -> Any:
        """What a call made, with a sign where it hands its gradient on as it is."""
        placed = self._placed
        if len(dict.fromkeys(placed.target_of.values())) < 2 or placed.segments:
            return value
        if not isinstance(value, tf.Tensor) or not _hands_on(value, key):
            return value
        return _with_all(value, self.arrive(value, key, signed))

    def take_masks(
        self, node: Any, seen: dict[int, Any], tensors: dict[int, Any]
    ) -> None:
        """Take a mask off a value where the call took it off what it saw of it.

        Keras' attention does, so that whoever reads the value after it sees none.
        """
        for old in node.input_tensors:
            value, mine = tensors[id(old)], seen[id(old)]
            if mine is not value and getattr(value, CARRIED[0], None) is not None:
                setattr(value, CARRIED[0], getattr(mine, CARRIED[0], None))

    def arrive(
        self, value: Any, key: str, copy: Callable[[Any], Any] = tf.identity
    ) -> Any:
        """The value on the device of part `key`."""
        with tf.name_scope(scope_of(key)), tf.device(self._placed.target_of[key]):
            return copy(value)

    @contextlib.contextmanager
    def weights_at(self, key: str, operation: Any) -> Iterator[None]:
        """Let a call away from its weights' home see them as tensors on its device."""
        away = self.away(key, operation)
        if not away or keras_api.in_stateless_scope():
            yield
            return
        local = {id(v): self.weight_at(v, key) for v in away}
        handles: dict[int, Any] = {}
        if not self._placed.fetched:
            one_by_one(away, local, handles)
        with ReadScope([(v, local[id(v)]) for v in away], handles) as scope:
            yield
        for variable in variables_of(operation):
            value = scope.assigned(variable)
            if value is not None and value is not local.get(id(variable)):
                self._send_home(variable, value)
        if scope.losses:
            operation.add_loss(scope.losses)

    def _send_home(self, variable: Any, value: Any) -> None:
        home = self._placed.home_of[id(variable)]
        with (
            tf.name_scope(scope_of(home)),
            tf.device(self._placed.target_of[home]),
        ):
            variable.assign(value)

    def away(self, key: str, operation: Any) -> list[Any]:
        """Weights of a call whose home is another device, but for tables of rows.

        TensorFlow brings a table to its reader itself; our copy's gradient would be
        dense, the size of the table.
        """
        targets, homes = self._placed.target_of, self._placed.home_of
        return [
            v
            for v in variables_of(operation)
            if id(v) in homes
            and targets[homes[id(v)]] != targets[key]
            and v.name != "embeddings"
        ]

    def weight_at(self, variable: Any, key: str) -> Any:
        """A weight on the device of part `key`; what calls change is read each time."""
        if not variable.trainable and id(variable) not in self._weights:
            with tf.device(self._placed.target_of[key]):
                return tf.identity(variable.value)
        place = (id(variable), self._placed.target_of[key])
        if place not in self._arrived:
            fetched = self._placed.fetched[-1] if self._placed.fetched else None
            self._arrived[place] = (
                self.arrive(variable.value, key)
                if fetched is None
                else fetched.at(
                    place,
                    lambda: self.arrive(variable.value, key),
                    trained=variable.trainable,
                )
            )
        return self._arrived[place]

    @functools.cached_property
    def _weights(self) -> frozenset[int]:
        """What calls only read, frozen or not, by the ids of variables."""
        operations = {id(n.operation): n.operation for n in self._placed.flow.nodes}
        return frozenset(id(v) for one in operations.values() for v in weights_of(one))


def _with_all(value: Any, copy: Any) -> Any:
    """A copy of a value, with what Keras hung on it."""
    for name in CARRIED:
        hung = getattr(value, name, None)
        if hung is not None:
            setattr(copy, name, hung)
    return copy


def _hands_on(value: Any, key: str) -> bool:
    """Whether the gradient of what part `key` made is one of what it read, as it is."""
    if tf.executing_eagerly() or not value.dtype.is_floating:
        return False
    if value.op.type == "Identity":  # what it copies has its readers' gradients
        return False
    found = [value.op]
    for op in found:  # grows: the ops before
        if op.type in PASSING:
            before = [tensor.op for tensor in op.inputs]
            if any(key_in(one.name) != key for one in before):
                return True
            found += before
    return False


class Fetched:
    """Weights away from home that several runs of one step share.

    Each crosses once, and stands for its variable: `watch` lets a tape take gradients
    by it, which are summed where it is before they go home. `weights` are those that
    are trained.
    """

    def __init__(self) -> None:
        self.weights: dict[tuple[int, str], Any] = {}
        self._frozen: dict[tuple[int, str], Any] = {}
        self._tape: Any = None

    def at(
        self, place: tuple[int, str], fetch: Callable[[], Any], *, trained: bool
    ) -> Any:
        """The weight of a variable's id on a device."""
        known = self.weights if trained else self._frozen
        if place not in known:
            known[place] = tf.stop_gradient(fetch())
        if trained:
            self._tape.watch(known[place])
        return known[place]

    def watch(self, tape: Any) -> None:
        """Let a tape take gradients by weights that are used from now on."""
        self._tape = tape
