"""Samples cut over towers, and put together again."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from splitnet.core.replication import batch_shares
from splitnet.tf.internals.keras_api import CARRIED


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

    def _shares(self, extent: Any) -> Any:
        """How many samples go to each tower, earlier ones first."""
        if self.known:
            return list(batch_shares(extent, self.count))
        return (extent + self.count - 1 - tf.range(self.count)) // self.count

    def real(self) -> list[Any]:
        """1 for each tower that has a sample, else 0."""
        if self.known:
            return [int(i < self.extent) for i in range(self.count)]
        return [tf.cast(i < self.extent, tf.int32) for i in range(self.count)]

    def weights(self) -> list[Any]:
        """Each tower's share of the samples, float64; the sum is 1."""
        sizes = self._shares(self.extent)
        if self.known:
            return [np.float64(size / max(1, self.extent)) for size in sizes]
        return tf.unstack(sizes / tf.maximum(self.extent, 1), self.count)

    def split(self, value: Any) -> list[Any]:
        """Cut a tensor, and its mask, into one piece for each tower.

        Each has a sample: the last may be copies of the first sample, through which no
        gradient comes back.
        """
        most = max if self.known else tf.maximum
        missing = most(self.count - self.extent, 0)
        sizes = self._shares(most(self.extent, self.count))

        def cut(whole: Any) -> list[Any]:
            if not self.known or missing:
                first = tf.stop_gradient(whole[:1])
                whole = tf.concat([whole, tf.repeat(first, missing, axis=0)], 0)
            return list(tf.split(whole, sizes, 0, num=self.count))

        pieces = cut(value)
        for name in CARRIED:
            attached = getattr(value, name, None)
            if attached is not None:
                for piece, one in zip(pieces, cut(attached)):
                    setattr(piece, name, one)
        return pieces

    def join(self, pieces: list[Any]) -> Any:
        """Put pieces together in the order of the samples, without the copies."""

        def joined(parts: list[Any]) -> Any:
            whole = tf.concat(parts, 0)
            full = self.known and self.extent >= self.count
            return whole if full else whole[: self.extent]

        whole = joined(pieces)
        for name in CARRIED:
            attached = [getattr(piece, name, None) for piece in pieces]
            if all(one is not None for one in attached):
                setattr(whole, name, joined(attached))
        return whole

    def mean(self, values: list[Any]) -> Any:
        """The mean over towers, each weighted by its samples."""
        pairs = zip(self.weights(), values)
        return tf.add_n([tf.cast(weight, v.dtype) * v for weight, v in pairs])
