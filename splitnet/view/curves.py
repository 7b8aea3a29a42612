"""Points along lines, close enough to find every cell of a grid that they cross."""

import math
from collections.abc import Iterator, Sequence

__all__ = ["CELL", "Point", "between", "curve"]

Point = tuple[float, float]

CELL = 3.0
"""The width of a cell, in points."""


def curve(points: Sequence[Point]) -> Iterator[Point]:
    """Walk along a chain of Bézier curves in steps shorter than a cell."""
    for at in range(0, len(points) - 3, 3):
        a, b, c, d = points[at : at + 4]
        length = math.dist(a, b) + math.dist(b, c) + math.dist(c, d)
        steps = max(int(length / CELL * 2), 1)
        for step in range(steps + 1):
            t = step / steps
            u = 1 - t
            w = (u * u * u, 3 * u * u * t, 3 * u * t * t, t * t * t)
            yield (
                sum(k * p[0] for k, p in zip(w, (a, b, c, d), strict=True)),
                sum(k * p[1] for k, p in zip(w, (a, b, c, d), strict=True)),
            )


def between(one: Point, other: Point) -> Iterator[Point]:
    """Walk along a straight line in such steps."""
    steps = max(int(math.dist(one, other) / CELL * 2), 1)
    for step in range(steps + 1):
        t = step / steps
        yield one[0] + t * (other[0] - one[0]), one[1] + t * (other[1] - one[1])
