"""Draw DOT text with pygraphviz, as a program: `FORMAT ENGINE [ARGUMENT ...]`.

Reads standard input, writes the picture to standard output. It is a process of its own
because a fault in Graphviz's C code would end the process that trains.

Graphviz routes the lines; their labels are placed on them here, because Graphviz lets
labels touch foreign lines.
"""

import math
import sys
from collections.abc import Iterable, Sequence

import pygraphviz

Point = tuple[float, float]
Rect = tuple[float, float, float, float]
"""Left, bottom, right, top."""

_GAP = 2.0  # between a label and what it must not touch
_SAMPLES = 16  # of each piece of a spline
_CROSSED = 1.0  # lengths of the line that another line under a label is worth


def free_places(
    lines: Sequence[Sequence[Point]], sizes: Iterable[Point], boxes: Iterable[Rect]
) -> list[Point | None]:
    """The middles of labels on their lines, near their middle; None without room.

    No label touches a box or another label, and foreign lines are avoided. The first
    of the lines, given by points, are those of the labels.
    """
    taken = list(boxes)
    found: list[Point | None] = []
    for number, (wide, tall) in enumerate(sizes):
        line = lines[number]
        others = [point for n, its in enumerate(lines) if n != number for point in its]
        best, place = math.inf, None
        for at, (x, y) in enumerate(line):
            rect = x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2
            if not any(_touch(rect, other) for other in taken):
                cost = abs(2 * at / (len(line) - 1) - 1)
                cost += _CROSSED * any(_touch(rect, (*p, *p)) for p in others)
                if cost < best:
                    best, place, room = cost, (x, y), rect
        if place is not None:
            taken.append(room)
        found.append(place)
    return found


def _touch(one: Rect, other: Rect) -> bool:
    return (
        one[0] < other[2] + _GAP
        and other[0] < one[2] + _GAP
        and one[1] < other[3] + _GAP
        and other[1] < one[3] + _GAP
    )


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split(",")]


def _points(spline: str) -> list[Point]:
    """Points along a spline as Graphviz writes it: cubic Bezier curves in a row."""
    words = (word.split(",") for word in spline.split() if word[0] not in "es")
    ends = [(float(x), float(y)) for x, y in words]
    points: list[Point] = []
    for at in range(0, len(ends) - 3, 3):
        for step in range(_SAMPLES):
            t = step / (_SAMPLES - 1)
            shares = (1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3
            piece = list(zip(shares, ends[at : at + 4], strict=True))
            points.append(
                (sum(s * x for s, (x, _) in piece), sum(s * y for s, (_, y) in piece))
            )
    return points


def _place_labels(graph: pygraphviz.AGraph) -> None:
    """Set the position of each line's label; `comment` has its width and height."""
    lines = [line for line in graph.edges() if line.attr["pos"]]
    lines.sort(key=lambda line: not line.attr["comment"])
    sizes = [_numbers(n.attr["comment"]) for n in lines if n.attr["comment"]]
    boxes = []
    for node in graph.nodes():
        x, y = _numbers(node.attr["pos"])
        wide, tall = (36 * float(node.attr[side]) for side in ("width", "height"))
        boxes.append((x - wide, y - tall, x + wide, y + tall))
    points = [_points(line.attr["pos"]) for line in lines]
    places = free_places(points, [(wide, tall) for wide, tall in sizes], boxes)
    for line, place in zip(lines, places, strict=False):
        if place is None:
            line.attr["xlabel"] = ""
        else:
            line.attr["xlp"] = f"{place[0]:.2f},{place[1]:.2f}"


def main(kind: str, engine: str, *arguments: str) -> None:
    """Lay a graph out, place its labels, write the picture."""
    graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
    if engine == "nop1":
        sizes = [(n, n.attr["width"], n.attr["height"]) for n in graph.nodes()]
        graph.layout(prog=engine, args=" ".join(arguments))
        _place_labels(graph)
        for node, wide, tall in sizes:  # the layout added the double edge of outputs
            node.attr.update(width=wide, height=tall)
        engine = "nop2"
    picture = graph.draw(format=kind, prog=engine, args=" ".join(arguments))
    sys.stdout.buffer.write(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
