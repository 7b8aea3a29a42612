"""Where a placement diagram puts its boxes: a lane per device, a column per depth.

Plain geometry in points, from the top left. Graphviz only draws the lines around boxes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Layout", "Rect", "arrange", "below", "columns_of"]

Size = tuple[float, float]
"""Width and height."""

_PADDING = 12.0  # from a frame to its boxes
_STACK = 18.0  # between boxes of one lane and column
_COLUMN = 46.0  # between columns; more where labels are
_LANE = 12.0  # between lanes
_HOST = 22.0  # above the lanes of a host, for its name


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its edges, in points."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    def moved(self, down: float) -> "Rect":
        """The same, further down."""
        return Rect(self.left, self.top + down, self.right, self.bottom + down)


@dataclass(frozen=True, slots=True)
class Layout:
    """Rectangles by name: of boxes, titles and labels, of lanes, and of hosts."""

    boxes: Mapping[str, Rect]
    lanes: Mapping[str, Rect]
    hosts: Mapping[str, Rect]
    whole: Rect


def columns_of(
    boxes: Sequence[str], links: Iterable[tuple[str, str]], most: int
) -> dict[str, int]:
    """The column of each box: its depth in the graph, from 0, in `most` columns.

    Args:
        boxes: in running order; links against it do not count.
        links: from box to box.
        most: in a deeper graph several depths share a column.
    """
    number = {box: at for at, box in enumerate(boxes)}
    depth = dict.fromkeys(boxes, 0)
    for source, target in sorted(links, key=lambda ends: number[ends[0]]):
        if number[source] < number[target]:
            depth[target] = max(depth[target], depth[source] + 1)
    deepest = max(depth.values(), default=0) + 1
    return {box: at * min(most, deepest) // deepest for box, at in depth.items()}


def arrange(
    sizes: Mapping[str, Size],
    columns: Mapping[str, int],
    lane_of: Mapping[str, str],
    host_of: Mapping[str, str],
    labels: Mapping[str, tuple[str, str]],
    *,
    upright: bool,
) -> Layout:
    """Place boxes in lanes and columns, and labels between columns.

    Nothing overlaps. Boxes of one lane and column are stacked in their order.

    Args:
        sizes: of boxes, titles and labels.
        columns: the column of each box; -1 for a lane's title.
        lane_of: the lane of each box and title.
        host_of: the host of each lane, in the order of drawing.
        labels: by name the boxes that a labelled line leaves and reaches.
        upright: lanes are side by side and columns follow downwards, instead of lanes
            below one another and columns to the right.
    """
    # Lengths lie along the columns' direction, widths across it.
    length = {name: size[upright] for name, size in sizes.items()}
    width = {name: size[not upright] for name, size in sizes.items()}
    spans, end = _column_spans(length, columns, labels)
    lead = _PADDING if upright else _HOST
    lanes, hosts, whole = _lane_spans(width, columns, lane_of, host_of, lead)
    boxes: dict[str, tuple[float, float, float, float]] = {}
    for lane, (start, stop) in lanes.items():
        for names in _cells(columns, lane_of, lane).values():
            tall = sum(width[name] + _STACK for name in names) - _STACK
            at = (start + stop - tall) / 2
            for name in names:
                first, last = spans[columns[name]]
                if columns[name] < 0:
                    last = first + length[name]
                middle = (first + last) / 2
                half = length[name] / 2
                boxes[name] = middle - half, at, middle + half, at + width[name]
                at += width[name] + _STACK
    short = _short_labels(labels, columns, lane_of, lanes)
    for name, across in short.items():
        first, last = spans[columns[labels[name][0]]]
        left, top = (first + last - length[name]) / 2, across - width[name] / 2
        boxes[name] = left, top, left + length[name], top + width[name]
    long = {name: ends for name, ends in labels.items() if name not in short}
    boxes |= _label_places(boxes, spans, columns, long, length, width, whole)

    def rect(left: float, top: float, right: float, bottom: float) -> Rect:
        edges = (top, left, bottom, right) if upright else (left, top, right, bottom)
        return Rect(*edges)

    return Layout(
        {name: rect(*edges) for name, edges in boxes.items()},
        {lane: rect(0, start, end, stop) for lane, (start, stop) in lanes.items()},
        {
            host: rect(-_PADDING - _HOST * upright, start, end + _PADDING, stop)
            for host, (start, stop) in hosts.items()
        },
        rect(0, 0, end, whole),
    )


def below(layouts: Sequence[Layout]) -> Layout:
    """Set layouts below one another; a host's frame goes around all its lanes."""
    boxes: dict[str, Rect] = {}
    lanes: dict[str, Rect] = {}
    hosts: dict[str, Rect] = {}
    right = down = 0.0
    for layout in layouts:
        for found, rects in ((boxes, layout.boxes), (lanes, layout.lanes)):
            found |= {name: rect.moved(down) for name, rect in rects.items()}
        for host, rect in layout.hosts.items():
            last = hosts.get(host, rect.moved(down))
            edges = max(last.right, rect.right), rect.bottom + down
            hosts[host] = Rect(last.left, last.top, *edges)
        right = max(right, layout.whole.right)
        frame = _HOST + 2 * _PADDING if layout.hosts else 0.0
        down += layout.whole.bottom + _LANE + frame
    return Layout(boxes, lanes, hosts, Rect(0, 0, right, down))


def _cells(
    columns: Mapping[str, int], lane_of: Mapping[str, str], lane: str
) -> dict[int, list[str]]:
    """The boxes of a lane by column."""
    cells: dict[int, list[str]] = {}
    for name, its in lane_of.items():
        if its == lane:
            cells.setdefault(columns[name], []).append(name)
    return cells


def _column_spans(
    length: Mapping[str, float],
    columns: Mapping[str, int],
    labels: Mapping[str, tuple[str, str]],
) -> tuple[dict[int, tuple[float, float]], float]:
    """Where each column begins and ends, and where the last one's gap ends."""
    longest: dict[int, float] = {}
    for name, column in columns.items():
        longest[column] = max(longest.get(column, 0.0), length[name])
    gaps = dict.fromkeys(longest, _COLUMN) | {-1: 2 * _PADDING, max(longest): _PADDING}
    for name, ends in labels.items():
        column = _gap(columns, ends)
        gaps[column] = max(gaps[column], length[name] + 40)
    spans: dict[int, tuple[float, float]] = {}
    at = _PADDING
    for column in sorted(longest):
        spans[column] = at, at + longest[column]
        at += longest[column] + gaps[column]
    return spans, at


def _gap(columns: Mapping[str, int], ends: tuple[str, str]) -> int:
    """The column after which a line's label stands."""
    return min(columns[end] for end in ends)


def _lane_spans(
    width: Mapping[str, float],
    columns: Mapping[str, int],
    lane_of: Mapping[str, str],
    host_of: Mapping[str, str],
    lead: float,
) -> tuple[dict[str, Size], dict[str, Size], float]:
    """Where each lane and each host begins and ends, and the end of all.

    `lead` is the room between a host's frame and its first lane.
    """
    lanes: dict[str, Size] = {}
    hosts: dict[str, Size] = {}
    framed = any(host_of.values())
    at = 0.0
    for host in dict.fromkeys(host_of.values()):
        first = at
        at += lead if framed else 0.0
        for lane in (lane for lane, its in host_of.items() if its == host):
            cells = _cells(columns, lane_of, lane).values()
            widest = max(sum(width[n] + _STACK for n in names) for names in cells)
            lanes[lane] = at, at + widest - _STACK + 2 * _PADDING
            at = lanes[lane][1] + _LANE
        if framed:
            hosts[host] = first, at
            at += _LANE
    return lanes, hosts, at


def _short_labels(
    labels: Mapping[str, tuple[str, str]],
    columns: Mapping[str, int],
    lane_of: Mapping[str, str],
    lanes: Mapping[str, Size],
) -> dict[str, float]:
    """Labels of lines within a column: between the source's lane and the next one.

    One in each place; others go beside the column.
    """
    taken: dict[tuple[int, float], str] = {}
    for name, (source, target) in labels.items():
        start, stop = lanes[lane_of[source]]
        after = lanes[lane_of[target]][0] > start
        if columns[source] == columns[target] and lane_of[source] != lane_of[target]:
            across = stop + _LANE / 2 if after else start - _LANE / 2
            taken.setdefault((columns[source], across), name)
    return {name: across for (_, across), name in taken.items()}


def _label_places(
    boxes: Mapping[str, tuple[float, float, float, float]],
    spans: Mapping[int, Size],
    columns: Mapping[str, int],
    labels: Mapping[str, tuple[str, str]],
    length: Mapping[str, float],
    width: Mapping[str, float],
    whole: float,
) -> dict[str, tuple[float, float, float, float]]:
    """Labels between columns, near the straight line, one beside the other."""
    found: dict[str, tuple[float, float, float, float]] = {}
    rows: dict[int, list[tuple[float, str]]] = {}
    for name, (source, target) in labels.items():
        share = 0.5 if columns[target] <= columns[source] + 1 else 0.2
        one, other = (sum(boxes[end][1::2]) / 2 for end in (source, target))
        middle = one + share * (other - one)
        rows.setdefault(_gap(columns, (source, target)), []).append((middle, name))
    for column, row in rows.items():
        later = [spans[c][0] for c in spans if c > column]
        start = spans[column][1]
        stop = min(later, default=start + max(length[n] for _, n in row) + 40)
        tops: list[float] = []
        row.sort()
        free = 0.0
        for middle, name in row:
            tops.append(max(middle - width[name] / 2, free))
            free = tops[-1] + width[name] + 3
        free = whole
        for at, (_, name) in reversed(list(enumerate(row))):  # back into the picture
            tops[at] = min(tops[at], free - width[name])
            free = tops[at] - 3
            left = (start + stop - length[name]) / 2
            ends = left + length[name], tops[at] + width[name]
            found[name] = left, tops[at], *ends
    return found
