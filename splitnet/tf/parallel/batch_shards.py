"""Samples cut over towers, and put together again."""

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from splitnet.tf.internals.keras_api import CARRIED


@dataclass(frozen=True)
class Shards:
    """How many samples there are, a scalar tensor, and over how many towers they go."""

    extent: Any
    count: int

    @staticmethod
    def of(value: Any, count: int) -> "Shards":
        """The samples of a tensor's first axis."""
        return Shards(tf.shape(value)[0], count)

    def _sizes(self, extent: Any) -> Any:
        """How many samples go to each tower, earlier ones first."""
        return (extent + self.count - 1 - tf.range(self.count)) // self.count

    def real(self) -> list[Any]:
        """1 for each tower that has a sample, else 0."""
        return [tf.cast(i < self.extent, tf.int32) for i in range(self.count)]

    def weights(self) -> list[Any]:
        """Each tower's share of the samples, float64; the sum is 1."""
        shares = self._sizes(self.extent) / tf.maximum(self.extent, 1)
        return list(tf.unstack(shares, self.count))

    def split(self, value: Any) -> list[Any]:
        """Cut a tensor, and its mask, into one piece for each tower.

        Each has a sample: the last may be copies of the first sample, through which no
        gradient comes back.
        """
        missing = tf.maximum(self.count - self.extent, 0)
        sizes = self._sizes(tf.maximum(self.extent, self.count))

        def cut(whole: Any) -> list[Any]:
            copies = tf.repeat(tf.stop_gradient(whole[:1]), missing, axis=0)
            return list(tf.split(tf.concat([whole, copies], 0), sizes, num=self.count))

        pieces = cut(value)
        for name in CARRIED:
            if (attached := getattr(value, name, None)) is not None:
                for piece, one in zip(pieces, cut(attached)):
                    setattr(piece, name, one)
        return pieces

    def join(self, pieces: list[Any]) -> Any:
        """Put pieces together in the order of the samples, without the copies."""
        whole = tf.concat(pieces, 0)[: self.extent]
        for name in CARRIED:
            attached = [getattr(piece, name, None) for piece in pieces]
            if all(one is not None for one in attached):
                setattr(whole, name, tf.concat(attached, 0)[: self.extent])
        return whole

    def mean(self, values: list[Any]) -> Any:
        """The mean over towers, each weighted by its samples."""
        pairs = zip(self.weights(), values)
        return tf.add_n([tf.cast(weight, v.dtype) * v for weight, v in pairs])
