"""Samples cut over towers, and put together again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from splitnet.core.replication import batch_shares
from splitnet.tf.internals.keras_api import CARRIED

__all__ = ["Shards", "as_tensor"]


@dataclass(frozen=True)
class Shards:
    """How many samples there are, and over how many towers they go.

    `extent` is a number where it is known when the step is traced, else a scalar.
    """

    extent: Any
    count: int

    @staticmethod
    def of(value: Any, count: int) -> "Shards":
        """The samples of a tensor's first axis."""
        known = value.shape[0] if value.shape.rank else None
        return Shards(tf.shape(value)[0] if known is None else int(known), count)

    @property
    def known(self) -> bool:
        """Whether the number of samples is known when the step is traced."""
        return isinstance(self.extent, int)

    def sizes(self) -> Any:
        """The samples of each tower, at least one: the last may be copies."""
        if self.known:
            return list(batch_shares(max(self.extent, self.count), self.count))
        padded = tf.maximum(self.extent, self.count)
        return (padded + self.count - 1 - tf.range(self.count)) // self.count

    def real(self) -> list[Any]:
        """1 for each tower that has a sample, else 0."""
        if self.known:
            return [int(i < self.extent) for i in range(self.count)]
        return [tf.cast(i < self.extent, tf.int32) for i in range(self.count)]

    def weights(self) -> list[Any]:
        """Each tower's share of the samples, float64; the sum is 1."""
        if self.known:
            sizes = batch_shares(self.extent, self.count)
            return [np.float64(size / max(1, self.extent)) for size in sizes]
        sizes = (self.extent + self.count - 1 - tf.range(self.count)) // self.count
        return tf.unstack(sizes / tf.maximum(self.extent, 1), self.count)

    def split(self, value: Any) -> list[Any]:
        """Cut a tensor, and its mask, into one piece for each tower."""
        pieces = self._split(value)
        for name in CARRIED:
            hung = getattr(value, name, None)
            if hung is not None:
                for piece, one in zip(pieces, self._split(hung)):
                    setattr(piece, name, one)
        return pieces

    def _split(self, value: Any) -> list[Any]:
        if not self.known:
            missing = tf.maximum(self.count - self.extent, 0)
            value = tf.concat([value, _copies(value, missing)], 0)
        elif self.extent < self.count:
            value = tf.concat([value, _copies(value, self.count - self.extent)], 0)
        return list(tf.split(value, self.sizes(), 0, num=self.count))

    def join(self, pieces: list[Any]) -> Any:
        """Put pieces together in the order of the samples, without the copies."""
        whole = self._join(pieces)
        for name in CARRIED:
            hung = [getattr(piece, name, None) for piece in pieces]
            if all(one is not None for one in hung):
                setattr(whole, name, self._join(hung))
        return whole

    def _join(self, pieces: list[Any]) -> Any:
        whole = tf.concat(pieces, 0)
        if self.known and self.extent >= self.count:
            return whole
        return whole[: self.extent]

    def mean(self, values: list[Any]) -> Any:
        """The mean over towers, each weighted by its samples."""
        return tf.add_n(
            [tf.cast(w, v.dtype) * v for w, v in zip(self.weights(), values)]
        )


def as_tensor(value: Any) -> Any:
    """Arrays, which an eager step is given, as tensors; all else as it is."""
    return tf.constant(value) if isinstance(value, np.ndarray) else value


def _copies(value: Any, number: Any) -> Any:
    """Copies of the first sample; no gradient comes back through them."""
    return tf.repeat(tf.stop_gradient(value[:1]), number, axis=0)
