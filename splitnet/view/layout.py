"""Layout of a placement diagram: lanes below one another, or cards in rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from splitnet.view.diagram import MOST_LANES

_PADDING = 12.0  # from a frame to what is in it
_STACK = 18.0  # between boxes of one lane and column
_COLUMN = 46.0  # between columns
_LANE = 12.0  # between lanes
_HOST = 22.0  # above the lanes of a host, for its name
_COLUMNS = 6  # at most
_CARDS = 4  # in a row


class Rect(NamedTuple):
    """A rectangle by its edges, in points; `y` counts from the top."""

    left: float
    top: float
    right: float
    bottom: float


def around(rects: Iterable[Rect]) -> Rect:
    """The smallest rectangle that holds others."""
    lefts, tops, rights, bottoms = zip(*rects, strict=True)
    return Rect(min(lefts), min(tops), max(rights), max(bottoms))


@dataclass(frozen=True, slots=True)
class Layout:
    """Rectangles by name: of boxes and titles, of lanes, of hosts if there are any."""

    boxes: dict[str, Rect] = field(default_factory=dict)
    lanes: dict[str, Rect] = field(default_factory=dict)
    hosts: dict[str, Rect] = field(default_factory=dict)


def place_boxes(
    sizes: Mapping[str, tuple[float, float]],
    lanes: Mapping[str, Sequence[str]],
    links: Sequence[tuple[str, str]],
) -> Layout:
    """Lanes of equal columns below one another; nothing overlaps.

    More lanes than `MOST_LANES` are cards of one column in rows, each host's in rows of
    its own. Boxes of one lane and column are stacked in their order.

    Args:
        sizes: width and height of boxes and titles, boxes in running order.
        lanes: what each lane holds, its title first; lanes of a host are neighbours.
        links: pairs of boxes; the target stands in a later column.
    """
    cards = len(lanes) > MOST_LANES
    titles = dict.fromkeys((names[0] for names in lanes.values()), -1)
    boxes = [name for name in sizes if name not in titles]
    column_of = titles | _columns_of(boxes, links, 1 if cards else _COLUMNS)
    in_a_row = _CARDS if cards else 1
    widths: dict[int, float] = {}
    for name, column in column_of.items():
        widths[column] = max(widths.get(column, 0.0), sizes[name][0])
    begin, end = {}, _PADDING
    for column, width in sorted(widths.items()):
        begin[column] = end + (2 * _PADDING if column == 0 else 0.0)
        end = begin[column] + width + (_COLUMN if column >= 0 else 0.0)
    whole = end + _PADDING - (_COLUMN if max(widths) >= 0 else 0.0)

    def height(stack: Sequence[str]) -> float:
        return sum(sizes[name][1] + _STACK for name in stack) - _STACK

    layout, y = Layout(), 0.0
    framed = any("/" in lane for lane in lanes)
    for host, group in groupby(lanes, key=lambda lane: lane.rpartition("/")[0]):
        y += _HOST + _PADDING if y else 0.0
        its = list(group)
        for row in (its[n : n + in_a_row] for n in range(0, len(its), in_a_row)):
            stacks: dict[tuple[int, int], list[str]] = {}
            for place, lane in enumerate(row):
                for name in lanes[lane]:
                    stacks.setdefault((place, column_of[name]), []).append(name)
            tall = max(map(height, stacks.values())) + 2 * _PADDING
            for place, lane in enumerate(row):
                x = place * (whole + _LANE)
                layout.lanes[lane] = Rect(x, y, x + whole, y + tall)
            for (place, column), stack in stacks.items():
                top = y + (tall - height(stack)) / 2
                for name in stack:
                    wide, high = sizes[name]
                    room = widths[column] - wide if column >= 0 else 0.0
                    x = place * (whole + _LANE) + begin[column] + room / 2
                    layout.boxes[name] = Rect(x, top, x + wide, top + high)
                    top += high + _STACK
            y += tall + _LANE
        if framed:
            left, top, right, bottom = around(layout.lanes[lane] for lane in its)
            edges = left - _PADDING, top - _HOST, right + _PADDING, bottom + _PADDING
            layout.hosts[host] = Rect(*edges)
    return layout


def _columns_of(
    boxes: Sequence[str], links: Iterable[tuple[str, str]], most: int
) -> dict[str, int]:
    """The column of each box: its depth in the graph, from 0.

    Links against the running order of the boxes do not count. In a graph deeper than
    `most`, several depths share a column.
    """
    number = {box: at for at, box in enumerate(boxes)}
    depth = dict.fromkeys(boxes, 0)
    for source, target in sorted(links, key=lambda ends: number[ends[0]]):
        if number[source] < number[target]:
            depth[target] = max(depth[target], depth[source] + 1)
    deepest = max(depth.values(), default=0) + 1
    return {box: at * min(most, deepest) // deepest for box, at in depth.items()}
