"""Layout of a placement diagram: boxes in lanes and columns, or on cards."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from splitnet.view.diagram import MOST_LANES

_PADDING = 12.0  # from a frame to what is in it
_STACK = 18.0  # between boxes of one lane and column
_COLUMN = 46.0  # between columns
_LANE = 12.0  # between lanes
_HOST = 22.0  # above the lanes of a host, for its name

_PAGE = 1050.0, 1000.0  # points
_CARDS = 6  # in a row
# Lanes below one another or upright, and the most columns.
_SHAPES = ((False, 9), (True, 12), (False, 6), (False, 4), (True, 6), (True, 4))


@dataclass(frozen=True, slots=True)
class Rect:
    """A rectangle by its edges, in points; `y` counts from the top."""

    left: float
    top: float
    right: float
    bottom: float

    @property
    def middle(self) -> tuple[float, float]:
        """Its middle."""
        return (self.left + self.right) / 2, (self.top + self.bottom) / 2

    @classmethod
    def around(cls, rects: Iterable["Rect"]) -> "Rect":
        """The smallest that holds others."""
        edges = [(one.left, one.top, one.right, one.bottom) for one in rects]
        lefts, tops, rights, bottoms = zip(*edges, strict=True)
        return cls(min(lefts), min(tops), max(rights), max(bottoms))


@dataclass(frozen=True, slots=True)
class Layout:
    """Rectangles by name: of boxes and titles, and of lanes."""

    boxes: dict[str, Rect] = field(default_factory=dict)
    lanes: dict[str, Rect] = field(default_factory=dict)

    @property
    def whole(self) -> Rect:
        """What all lanes take."""
        return Rect.around(self.lanes.values())

    @property
    def hosts(self) -> Mapping[str, Rect]:
        """A frame around the lanes of each host, if there are several."""
        hosts = dict.fromkeys(map(host_of, self.lanes))
        frames = {}
        for host in hosts if any(hosts) else ():
            its = Rect.around(
                r for lane, r in self.lanes.items() if host_of(lane) == host
            )
            edges = its.left - _PADDING, its.top - _HOST
            frames[host] = Rect(*edges, its.right + _PADDING, its.bottom + _PADDING)
        return frames


def host_of(lane: str) -> str:
    """The worker of a lane's device, "" on a single machine."""
    return lane.rpartition("/")[0]


def place_boxes(
    sizes: Mapping[str, tuple[float, float]],
    lanes: Mapping[str, Sequence[str]],
    links: Sequence[tuple[str, str]],
) -> Layout:
    """The first arrangement that fits a page, or else the one that comes nearest.

    More lanes than `MOST_LANES` are cards in rows, each host's in rows of its own.

    Args:
        sizes: width and height of boxes and titles, boxes in running order.
        lanes: what each lane holds, its title first.
        links: pairs of boxes; the target stands in a later column.
    """
    titles = [names[0] for names in lanes.values()]
    boxes = [name for name in sizes if name not in titles]
    if len(lanes) <= MOST_LANES:
        found: list[tuple[float, Layout]] = []
        for upright, most in _SHAPES:
            columns = dict.fromkeys(titles, -1) | _columns_of(boxes, links, most)
            layout = Layout()
            _arrange(layout, sizes, lanes, columns, upright=upright)
            page = layout.whole.right / _PAGE[0], layout.whole.bottom / _PAGE[1]
            found.append((round(max(*page, 1.0), 1), layout))
        return min(found, key=lambda one: one[0])[1]
    cards, top = Layout(), 0.0
    for host in dict.fromkeys(map(host_of, lanes)):
        its = [lane for lane in lanes if host_of(lane) == host]
        for row in (its[at : at + _CARDS] for at in range(0, len(its), _CARDS)):
            few = {lane: lanes[lane] for lane in row}
            columns = {
                name: at - 1 for its in few.values() for at, name in enumerate(its)
            }
            _arrange(cards, sizes, few, columns, upright=True, top=top)
            top = cards.whole.bottom + _LANE
        top += _HOST + _PADDING
    return cards


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


def _arrange(
    layout: Layout,
    sizes: Mapping[str, tuple[float, float]],
    lanes: Mapping[str, Sequence[str]],
    columns: Mapping[str, int],
    *,
    upright: bool,
    top: float = 0.0,
) -> None:
    """Add lanes with their boxes and titles, whose column is -1; nothing overlaps.

    Boxes of one lane and column are stacked in their order. Lanes are below one another
    and columns follow to the right; if `upright`, lanes are side by side and columns
    follow downwards from `top`.
    """
    # Lengths lie along the columns' direction, widths across it.
    length = {name: size[upright] for name, size in sizes.items()}
    width = {name: size[not upright] for name, size in sizes.items()}

    def rect(start: float, across: float, end: float, stop: float) -> Rect:
        if upright:
            return Rect(across, start, stop, end)
        return Rect(start, across, end, stop)

    longest: dict[int, float] = {}
    for name in (name for names in lanes.values() for name in names):
        longest[columns[name]] = max(longest.get(columns[name], 0.0), length[name])
    begin, end = {}, top + _PADDING
    for column in sorted(longest):
        begin[column] = end
        end += longest[column] + (2 * _PADDING if column < 0 else _COLUMN)
    end += _PADDING - (2 * _PADDING if max(longest) < 0 else _COLUMN)
    across, last = 0.0, host_of(next(iter(lanes)))
    for lane, names in lanes.items():
        if host_of(lane) != last:
            across, last = across + _HOST + _PADDING, host_of(lane)
        cells: dict[int, list[str]] = {}
        for name in names:
            cells.setdefault(columns[name], []).append(name)
        wide = {
            column: sum(width[name] + _STACK for name in its) - _STACK
            for column, its in cells.items()
        }
        whole = max(wide.values()) + 2 * _PADDING
        layout.lanes[lane] = rect(top, across, end, across + whole)
        for column, its in cells.items():
            at = across + (whole - wide[column]) / 2
            for name in its:
                room = 0.0 if column < 0 else longest[column] - length[name]
                start = begin[column] + room / 2
                edges = start, at, start + length[name], at + width[name]
                layout.boxes[name] = rect(*edges)
                at += width[name] + _STACK
        across += whole + _LANE
