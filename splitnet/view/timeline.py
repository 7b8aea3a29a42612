"""The step as a Gantt chart with its critical path, and as a trace for Perfetto.

The chart is DOT text in which every rectangle and text has its position.
"""

import json
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from pathlib import Path
from typing import TypeVar

import graphviz
from rich.cells import cell_len

from splitnet.core.errors import format_bytes, format_seconds, percent
from splitnet.core.graph import grouped
from splitnet.core.plan import Plan
from splitnet.core.serialization import AnyPath, write_bytes
from splitnet.core.timeline import PHASES, Copy, Span, Task, Timeline
from splitnet.view import style
from splitnet.view.facts import equivalent_devices
from splitnet.view.style import QUIET, Line, clean, counted, mixed

Event = TypeVar("Event", Task, Copy)
Place = tuple[float, float, float, float]
"""Left, top, width and height, in points."""

_LEFT, _WIDE = 196.0, 860.0
_LANE, _LINK_LANE, _GAP = 34.0, 14.0, 8.0
_MOST_LINKS = 12
_NARROW = 2.0  # points; narrower neighbours become one bar
_SHORTEST_NAME = 7
_NOISE = 1e-12  # seconds, of sums of floats
_IDLE, _WAIT, _GRID, _PALE = "#eef0f3", "#c3cad3", "#d5dae0", "#f4f6f8"
_GREY, _PATH = "#57606a", "#c2185b"
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))


def dot_of_steps(timelines: Mapping[str, Timeline]) -> str:
    """Set timelines of a machine below each other, under headings, on one scale."""
    chart = _Chart(list(timelines.values()))
    chart.legend([*timelines.values()])
    for heading, timeline in timelines.items():
        chart.step(heading, timeline)
    return str(chart.dot.source)


def path_text(path: Sequence[Span]) -> str:
    """Time on the critical path by device, and in copies."""
    spent: dict[str, float] = {}
    for event, start, stop in path:
        name = event.device if isinstance(event, Task) else "copies"
        spent[name] = spent.get(name, 0.0) + stop - start
    largest = sorted(spent, key=lambda name: -spent[name])
    words = [f"{name} {format_seconds(spent[name])}" for name in largest[:4]]
    more = sum(spent[name] for name in largest[4:])
    words += [f"others {format_seconds(more)}"] if more else []
    return ", ".join(words)


def tick_seconds(seconds: float) -> list[float]:
    """Choose round times from 0 to `seconds`, at most nine and the zero."""
    if seconds <= 0:
        return [0.0]
    rough = seconds / 9 * (1 - 1e-9)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    ticks = range(int(seconds / step * (1 + 1e-9)) + 1)
    return [float(f"{number * step:.12g}") for number in ticks]


def _look(color: str, phase: str) -> tuple[str, str]:
    """Fill and outline of a bar: plain forward, pale backward, dark update."""
    if phase == "backward":
        return mixed(color, "#ffffff", 0.7), color
    return (mixed(color, "#000000", 0.6) if phase == "update" else color), ""


class _Chart:
    """A chart that is drawn lane by lane; `y` is where the next begins, in points."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        self.seconds = max(timeline.seconds for timeline in timelines)
        names = (name for timeline in timelines for name in timeline.devices)
        self.colors = style.colors_of(dict.fromkeys(names))
        self.y = 16.0
        self.lanes: dict[Hashable, float] = {}  # of devices and links: their middle
        self.dot = style.page(graphviz.Graph(), pad="0.2", splines="false", tooltip=" ")

    def mark(self, place: Place, fill: str, outline: str = "", tip: str = "") -> None:
        x, y, wide, tall = place
        look = style.place_of(x, y, x + wide, y + tall) | {"fillcolor": fill}
        look |= {"color": outline or "#ffffff00", "penwidth": str(int(bool(outline)))}
        look |= {"tooltip": style.tip(tip)} if tip else {}
        self.dot.node(f"mark-{len(self.dot.body)}", "", **look)

    def say(self, x: float, down: float, line: Line) -> None:
        """Write words into the lane, from their left end or around their middle."""
        top = self.y + down - style.size_of([line])[1] / 2
        style.text_node(self.dot, f"text-{len(self.dot.body)}", [line], x, top)

    def x(self, moment: float) -> float:
        return _LEFT + _WIDE * (moment / self.seconds if self.seconds else 0.0)

    def legend(self, timelines: Sequence[Timeline]) -> None:
        """The shades of what is there, in grey: the hues are the devices'."""
        copies = any(timeline.copies for timeline in timelines)
        seen = {task.phase for timeline in timelines for task in timeline.tasks}
        looks = [(one, *_look(_GREY, one), 10.0) for one in PHASES if one in seen]
        looks += [("waiting for other devices" if copies else "idle", _IDLE, "", 10.0)]
        if copies:
            looks += [("waiting for a copy", _WAIT, "", 10.0)]
            looks += [("transfer (thin lanes)", _GREY, "", 4.0)]
            looks += [("critical path", _PATH, "", 2.0)]
        x = 16.0
        for word, fill, outline, tall in looks:
            self.mark((x, self.y - tall / 2, 26, tall), fill, outline)
            self.say(x + 32, 0, Line(word, 10, QUIET))
            x += 50 + style.text_width(word, 10)
        self.y += 24

    def step(self, heading: str, timeline: Timeline) -> None:
        path = timeline.critical_path if timeline.copies else []
        words = f"{heading}: " if heading else ""
        words += f"one step, {format_seconds(timeline.seconds)}"
        words += f"; critical path: {path_text(path)}" if path else ""
        self.say(16, 8, Line(words, 11, bold=True))
        self.y += 38
        top, behind, self.lanes = self.y - 16, len(self.dot.body), {}
        for devices in equivalent_devices(timeline):
            self._device(timeline, devices)
        self._links(timeline, path)
        self._path(path)
        # Ticks with their times, all in one unit, behind what is drawn since.
        ticks, first = tick_seconds(self.seconds), len(self.dot.body)
        unit, name = next((u for u in _UNITS if ticks[-1] >= u[0]), _UNITS[-1])
        for moment in ticks:
            x, words = self.x(moment), f"{moment / unit:g} {name}"
            self.mark((x, top + 12, 0.6, self.y - top - _GAP - 12), _GRID)
            self.say(x, top + 4 - self.y, Line(words, 9, QUIET, centered=True))
        self.dot.body[behind:] = self.dot.body[first:] + self.dot.body[behind:first]
        if idle := [d for d in timeline.devices if not timeline.compute_seconds[d]]:
            names = style.shortened(", ".join(idle), 150)
            self.say(16, 6, Line(f"idle throughout: {names}", 9, QUIET))
            self.y += 18
        self.y += _GAP

    def _device(self, timeline: Timeline, devices: Sequence[str]) -> None:
        device, pipelined = devices[0], any(task.microbatch for task in timeline.tasks)
        gaps = timeline.waits[device]
        name = style.ranged(devices, 26) + (f" ({len(devices)})" if devices[1:] else "")
        strong = mixed(self.colors[device], "#000000", 0.25)
        self.say(16, 6, Line(name, 11, strong, bold=True))
        self._shares(timeline, device, gaps)
        self.mark((_LEFT, self.y, _WIDE, _LANE), _IDLE)
        for gap in gaps:
            fill = _WAIT if isinstance(gap.event, Copy) else _IDLE
            tip = f"{device} waits for {_said([gap.event])}" if gap.event else ""
            x, right = self.x(gap.start), self.x(gap.stop)
            if right - x >= 1:
                place = x, self.y, right - x + 0.3 * bool(tip), _LANE  # no seams
                self.mark(place, fill, tip=tip or f"{device} is idle")
        # A micro-batch of a stage is one bar, otherwise a part.
        for group in self._merged(
            [task for task in timeline.tasks if task.device == device],
            lambda t: t.phase == "forward",
            lambda t: (t.phase, t.microbatch, not pipelined and t.part),
        ):
            self._bar(group, pipelined=pipelined)
        self.lanes |= dict.fromkeys(devices, self.y + _LANE - 6)
        self.y += _LANE + _GAP

    def _shares(self, timeline: Timeline, device: str, gaps: Sequence[Span]) -> None:
        """What a device does in the step, in words and as a bar below its name."""
        whole = timeline.seconds or 1.0
        waited = sum(g.stop - g.start for g in gaps if isinstance(g.event, Copy))
        busy, copies = timeline.compute_seconds[device] / whole, waited / whole
        words = f"computing {percent(busy)}"
        if timeline.copies:
            others = max(1 - busy - copies, 0.0)
            words += f", copies {percent(copies)}, others {percent(others)}"
        self.say(16, 28, Line(words, 8, QUIET))
        shares = {_IDLE: 1.0, _WAIT: busy + copies, self.colors[device]: busy}
        for fill, share in shares.items():
            wide = (_LEFT - 32) * min(share, 1.0)
            self.mark((16, self.y + 14, wide, 6), fill, tip=words)

    def _bar(self, group: Sequence[Task], *, pipelined: bool) -> None:
        """A bar with the name of its part, in a pipeline of its micro-batch."""
        x, right = self.x(group[0].start), self.x(group[-1].stop)
        longest = max(group, key=lambda task: task.stop - task.start)
        fill, outline = _look(self.colors[longest.device], longest.phase)
        inset = 0.4 if right - x > 3 else 0.0
        place = x + inset, self.y + 2, max(right - x - 2 * inset, 0.5), _LANE - 4
        tip = f"{_said(group)} from {format_seconds(group[0].start)}"
        self.mark(place, fill, outline, tip)
        names = {f"#{task.microbatch}" if pipelined else task.part for task in group}
        if len(names) > 1 or (pipelined and longest.phase == "update"):
            return
        name, room = names.pop(), right - x - 6
        whole = cell_len(name)
        tried = whole, *range(int(room / 5.6), min(whole, _SHORTEST_NAME) - 1, -1)
        texts = (style.shortened(name, most) for most in tried)
        if text := next((t for t in texts if style.text_width(t, 9) <= room), ""):
            ink = style.readable_on(fill)
            self.say((x + right) / 2, _LANE / 2, Line(text, 9, ink, centered=True))

    def _links(self, timeline: Timeline, path: Sequence[Span]) -> None:
        """Lanes for critical and busy links; copies that overlap have own rows."""
        far = len({*self.lanes.values()}) > 16  # the path would cover what is between
        links = grouped(timeline.copies, _lane_of)
        first = {_lane_of(span.event) for span in path}
        busy = {ends: sum(c.stop - c.start for c in its) for ends, its in links.items()}
        shown = sorted(links, key=lambda ends: (ends not in first, -busy[ends]))
        for ends, copies in links.items():
            if ends not in shown[:_MOST_LINKS]:
                continue
            source, target = copies[0].source_device, copies[0].target_device
            self.say(16, 7, Line(style.shortened(f"{source} → {target}", 38)))
            self.mark((_LEFT, self.y, _WIDE, _LINK_LANE), _PALE)
            rows = stacked(copies)
            high = 8.0 / len(rows)
            for row, members in enumerate(rows):
                for group in self._merged(members, lambda c: "gradient" in c.kind, id):
                    x = self.x(group[0].start)
                    wide = max(self.x(max(copy.stop for copy in group)) - x, 0.8)
                    phase = "backward" if "gradient" in group[0].kind else "forward"
                    place = x, self.y + 3 + row * high, wide, high
                    self.mark(place, *_look(self.colors[source], phase), _said(group))
            total = format_bytes(sum(copy.bytes for copy in copies))
            self.say(_LEFT + _WIDE + 6, 7, Line(total, 8, QUIET))
            self.lanes |= {} if far else {ends: self.y + _LINK_LANE / 2}
            self.y += _LINK_LANE + _GAP / 2
        if more := shown[_MOST_LINKS:]:
            words = f"and {counted(len(more), 'more link')}"
            self.say(16, 5, Line(words, 9, QUIET))
            self.y += 14
        self.y += _GAP

    def _path(self, path: Sequence[Span]) -> None:
        """The critical path: one line through the lanes, from bar to copy to bar."""
        last: float | None = None
        for lane, group in groupby(path, key=lambda span: _lane_of(span.event)):
            spans = list(group)
            x, y = self.x(spans[0].start), self.lanes.get(lane)
            wide = self.x(spans[-1].stop) - x
            if y is None or (last is not None and wide < _NARROW / 2):
                continue  # one of many links, or too short to be seen
            tip = f"critical path: {_said([span.event for span in spans])}"
            if last is not None:
                place = x - 0.75, min(last, y) - 1.25, 1.5, abs(last - y) + 2.5
                self.mark(place, _PATH)
            self.mark((x, y - 2, wide, 4), "#ffffff")
            self.mark((x, y - 1.25, wide, 2.5), _PATH, tip=tip)
            last = y

    def _merged(
        self,
        events: Iterable[Event],
        look: Callable[[Event], Hashable],
        key: Callable[[Event], Hashable],
    ) -> list[list[Event]]:
        """Join neighbours of one key, or of one look and too narrow to be seen."""
        groups: list[list[Event]] = []
        for event in sorted(events, key=lambda event: (event.start, event.stop)):
            last = groups[-1][-1] if groups else event
            adjacent = self.x(event.start) - self.x(last.stop) < 0.5
            widths = (self.x(one.stop) - self.x(one.start) for one in (last, event))
            narrow = look(last) == look(event) and max(widths) < _NARROW
            if groups and adjacent and (narrow or key(last) == key(event)):
                groups[-1].append(event)
            else:
                groups.append([event])
        return groups


def _lane_of(event: Task | Copy | None) -> Hashable:
    """The device of a task, the two ends of a copy's link."""
    if isinstance(event, Copy):
        return event.source_device, event.target_device
    return event and event.device


def _said(events: Sequence[Task | Copy | None]) -> str:
    """Tasks of one device, or copies of one link, in a few words, with their time."""
    its = [event for event in events if event]
    first, more = its[0], f" and {len(its) - 1} more" if len(its) > 1 else ""
    spent = format_seconds(max(event.stop for event in its) - first.start)
    if isinstance(first, Task):
        piece = f", micro-batch {first.microbatch}" if first.microbatch else ""
        what = f"the {first.phase} of {first.part}{piece}{more} on {first.device}"
        return f"{what} ({spent})"
    size = format_bytes(sum(one.bytes for one in its if isinstance(one, Copy)))
    ways = f"{first.source_device} → {first.target_device}"
    return f"the {first.kind} of {first.source}{more}, {size}, {ways} ({spent})"


def stacked(copies: Iterable[Copy]) -> list[list[Copy]]:
    """The copies of one link in rows without overlap.

    They share its bandwidth in turn, not its latency: one begins before another ends.
    """
    rows: list[list[Copy]] = []
    for copy in sorted(copies, key=lambda copy: (copy.start, copy.stop)):
        row = next((row for row in rows if row[-1].stop <= copy.start + _NOISE), None)
        if row is None:
            rows.append(row := [])
        row.append(copy)
    return rows


def trace(
    thing: Plan | Timeline, path: AnyPath, *, measured: Timeline | None = None
) -> Path:
    """Write a timeline as trace-event JSON, completely or not at all.

    A process per host, with a row per device and per link, and bytes in use per device.
    `measured`, a timeline of the same step as it ran, has processes of its own.
    """
    timelines = {"planned": thing.timeline if isinstance(thing, Plan) else thing}
    timelines |= {"measured": measured} if measured is not None else {}
    events: list[dict[str, object]] = []
    process = count(1)
    for name, timeline in timelines.items():
        hosts = grouped(timeline.devices, lambda name: name.rpartition("/")[0])
        for host, devices in hosts.items():
            words = f"{name}, {host or 'this machine'}" if len(hosts) > 1 else name
            its = {"pid": next(process)}
            named = {"name": "process_name", "args": {"name": words}}
            events.append(its | {"tid": 0, "ph": "M"} | named)
            events += (its | event for event in _events(timeline, devices))
    whole = {"displayTimeUnit": "ms", "otherData": {"made_by": "splitnet"}}
    text = json.dumps(whole | {"traceEvents": events}, indent=0)
    return write_bytes(text.encode(), path, "trace")


def _events(timeline: Timeline, devices: Sequence[str]) -> Iterator[dict[str, object]]:
    """Rows of a host's devices and of the links that leave them; curves of memory."""
    rows: list[tuple[str, Sequence[Task | Copy]]] = [
        (name, [t for t in timeline.tasks if t.device == name]) for name in devices
    ]
    sent = [copy for copy in timeline.copies if copy.source_device in devices]
    for its in grouped(sent, _lane_of).values():
        title = f"{its[0].source_device} -> {its[0].target_device}"
        rows += [(title, row) for row in stacked(its)]
    for number, (title, row) in enumerate(rows, 1):
        meta = {"tid": number, "ph": "M"}
        yield meta | {"name": "thread_name", "args": {"name": title}}
        yield meta | {"name": "thread_sort_index", "args": {"sort_index": number}}
        for event in row:
            args: dict[str, object] = {"microbatch": event.microbatch}
            if isinstance(event, Copy):
                name = f"{event.kind}: {event.source} -> {event.target}"
                category, args["bytes"] = f"transfer,{event.phase}", event.bytes
            else:
                name, category, args["phase"] = event.part, event.phase, event.phase
            span = {"tid": number, "ph": "X", "name": clean(name), "cat": category}
            span |= {"ts": event.start * 1e6, "dur": (event.stop - event.start) * 1e6}
            yield span | {"args": args}
    for device in devices:
        curve = {"tid": 0, "ph": "C", "name": f"memory of {device}"}
        for seconds, size in timeline.memory.get(device, ()):
            yield curve | {"ts": seconds * 1e6, "args": {"bytes": size}}
