"""Costs of calls that differ in sizes alone, from the traces of a few of them.

Most costs are sums over tensors of so much per element. So a call whose numbers of
elements are a linear combination of those of traced calls costs the same combination.
That is checked against two more traces before it is used, and sums are exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

from splitnet.tf.reading.traced import Size, Work

__all__ = ["Scaled"]

_SUMS = ("matrix_flops", "other_flops", "inner_bytes", "workspace_bytes", "moved_bytes")
_CHECKS = 2


class Scaled:
    """The costs of calls that differ in sizes alone."""

    def __init__(self) -> None:
        # (place of the leading 1, sizes and sums) in echelon form
        self._rows: list[tuple[int, list[Fraction]]] = []
        self._like: Work | None = None
        self._right = 0
        self._linear = True

    def cost(self, sizes: Sequence[Size], trace: Callable[[], Work]) -> Work:
        """The cost of a call whose tensors have these sizes; traced if need be."""
        counts = [1, *(size.elements for size in sizes)]
        rest = self._reduced([*counts, *[0] * len(_SUMS)])
        combined = not any(rest[: len(counts)])
        guess = self._guess([-value for value in rest[len(counts) :]])
        if self._linear and combined and guess and self._right >= _CHECKS:
            return guess
        work = trace()
        self._like = self._like or work
        if self._linear and combined:
            self._right += 1
            self._linear = guess == work
        elif self._linear:
            self._right = 0
            self._linear = replace(work, **_sums(self._like)) == self._like
            self._learn(counts, work)
        return work

    def _guess(self, sums: Sequence[Fraction]) -> Work | None:
        """The cost with these sums; None if no call can have them."""
        if self._like is None or any(value < 0 for value in sums):
            return None
        kinds = [type(value) for value in _sums(self._like).values()]
        if any(kind is int and v.denominator != 1 for kind, v in zip(kinds, sums)):
            return None
        return replace(
            self._like,
            **{name: kind(v) for name, kind, v in zip(_SUMS, kinds, sums)},
        )

    def _learn(self, counts: list[int], work: Work) -> None:
        row = self._reduced([*counts, *_sums(work).values()])
        place = next(i for i, value in enumerate(row) if value)
        self._rows.append((place, [value / row[place] for value in row]))

    def _reduced(self, row: Sequence[float]) -> list[Fraction]:
        rest = list(map(Fraction, row))
        for place, known in self._rows:
            factor = rest[place]
            if factor:
                rest = [a - factor * b for a, b in zip(rest, known)]
        return rest


def _sums(work: Work) -> dict[str, float]:
    return {name: getattr(work, name) for name in _SUMS}
