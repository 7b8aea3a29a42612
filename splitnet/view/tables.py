"""Plain text for terminals: tables of plans, clusters and audits, timelines as text.

Tables fit the terminal's width, and 80 columns where there is no terminal, so that the
same value gives the same text.
"""

import io
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splitnet.core.audit import Audit, Row
from splitnet.core.cluster import Cluster
from splitnet.core.errors import (
    SplitnetError,
    format_bytes,
    format_count,
    format_seconds,
)
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Timeline
from splitnet.view.facts import (
    algorithm_text,
    objective_text,
    part_facts,
    phases_of,
    reason_text,
    transfer_sums,
    utilization,
    verdict_lines,
)
from splitnet.view.style import (
    bytes_or_dash,
    clean,
    counted,
    percent,
    seconds_or_dash,
    shortened,
)

__all__ = ["ASPECTS", "chart", "rows_text", "table"]

WIDTH = 80
"""Columns where there is no terminal."""
ASPECTS = ("forward", "backward", "variables", "slots", "updates")
_NARROW, _WIDE = 56, 110
_MEMORY = {
    "weights": "weights",
    "gradients": "grads",
    "slots": "slots",
    "activations": "activ.",
    "receive_buffers": "receive",
    "workspace": "workspace",
}
_MOST_TRANSFERS = 5
_MOST_LINKS = 12
_STAND_IN = "* stand-in: shows placement, not speed or memory"


def table(thing: Plan | Audit | Cluster, *, width: int | None = None) -> str:
    """Write a plan, an audit or a cluster as text; print nothing.

    A plan's table begins with the verdict; then come its devices, its branches with
    their memory and time per step, the largest transfers, and fallbacks.

    Args:
        thing: what to write.
        width: columns; None takes the terminal's, or 80 where there is none. From 110
            columns on, memory and time are broken down.

    Raises:
        SplitnetError: there is no table of such a thing.
    """
    columns = max(_terminal_width() if width is None else width, _NARROW)
    if isinstance(thing, Plan):
        blocks = _plan_blocks(thing, columns)
    elif isinstance(thing, Audit):
        blocks = _audit_blocks(thing, columns)
    elif isinstance(thing, Cluster):
        blocks = _cluster_blocks(thing, columns)
    else:
        raise SplitnetError(
            f"there is no table of a {type(thing).__name__}. Give a plan, an audit or "
            "a cluster."
        )
    return "\n\n".join(block for block in blocks if block)


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH


def rows_text(
    heads: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    width: int,
    right: Iterable[int] = (),
    total: Sequence[str] = (),
) -> str:
    """Set rows in columns under their heads; the first column is shortened to fit.

    Args:
        heads: a word per column.
        rows: a text per column.
        width: the most columns of a line.
        right: columns to set flush right, by number.
        total: a last row under a rule.
    """
    flush = set(right)
    grid = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for number, head in enumerate(heads):
        grid.add_column(
            head,
            justify="right" if number in flush else "left",
            no_wrap=number in flush or number == 0,
            overflow="fold",
        )
    for row in rows:
        first, *others = (clean(cell) for cell in row)
        grid.add_row(Text(shortened(first, width // 3)), *map(Text, others))
    if total:
        grid.add_section()
        grid.add_row(*map(Text, total))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())


def _wrapped(text: str, width: int, indent: str = "    ") -> str:
    return textwrap.fill(clean(text), width, subsequent_indent=indent)


def _plan_blocks(plan: Plan, width: int) -> list[str]:
    title = f"batch {plan.batch}, {' '.join(objective_text(plan))}"
    lines = [
        f"{shortened(plan.graph.name, width // 2)}: {title}",
        *verdict_lines(plan),
        algorithm_text(plan),
    ]
    return [
        "\n".join(_wrapped(line, width) for line in lines),
        _devices_table(plan, width),
        _parts_table(plan, width),
        _transfers_table(plan, width),
        _fallbacks_table(plan, width),
    ]


def _devices_table(plan: Plan, width: int) -> str:
    kinds = _MEMORY if width >= _WIDE else {}
    counts = {device.name: 0 for device in plan.cluster}
    for device in plan.device_of.values():
        counts[device] = counts.get(device, 0) + 1
    rows = []
    for one in plan.cluster:
        memory = plan.memory.get(one.name)
        held = memory.total if memory else 0
        rows.append(
            (
                one.name + ("*" if one.stand_in else ""),
                str(counts[one.name]),
                *(bytes_or_dash(getattr(memory, kind, 0)) for kind in kinds),
                bytes_or_dash(held) + ("!" if held > one.memory_bytes else ""),
                format_bytes(one.memory_bytes),
                percent(utilization(plan, one.name)),
            )
        )
    heads = ("device", "parts", *kinds.values(), "memory peak", "limit", "utilization")
    text = rows_text(heads, rows, width=width, right=range(1, len(heads)))
    if any(device.stand_in for device in plan.cluster):
        text += f"\n{_STAND_IN}"
    if any(cell.endswith("!") for row in rows for cell in row):
        text += "\n! exceeds the limit"
    return text


def _parts_table(plan: Plan, width: int) -> str:
    facts = list(part_facts(plan).values())
    phases = phases_of(plan)

    def costs(weights: int, activations: int, seconds: dict[str, float]) -> list[str]:
        if width >= _WIDE:
            sizes = [bytes_or_dash(weights), bytes_or_dash(activations)]
            return sizes + [seconds_or_dash(seconds.get(p, 0.0)) for p in phases]
        spent = sum(seconds.values())
        return [bytes_or_dash(weights + activations), seconds_or_dash(spent)]

    rows = [
        (
            one.name,
            one.device,
            reason_text(one),
            *costs(one.weight_bytes, one.activation_bytes, dict(one.seconds)),
        )
        for one in facts
    ]
    total = (
        counted(len(facts), "part"),
        counted(len({one.device for one in facts}), "device"),
        "",
        *costs(
            sum(one.weight_bytes for one in facts),
            sum(one.activation_bytes for one in facts),
            {p: sum(one.seconds.get(p, 0.0) for one in facts) for p in phases},
        ),
    )
    broken_down = ("weights", "activations", *phases)
    figures = broken_down if width >= _WIDE else ("memory", "time")
    heads = ("branch", "device", "reason", *figures)
    right = range(3, len(heads))
    return rows_text(heads, rows, width=width, right=right, total=total)


def _transfers_table(plan: Plan, width: int) -> str:
    """The largest transfers by pair of devices and kind."""
    if not plan.transfers:
        return "No transfers between devices."
    sums = transfer_sums(plan)
    rows = [
        (
            f"{one.source} -> {one.target}",
            one.kind,
            str(one.count),
            format_bytes(one.bytes),
            format_seconds(one.seconds),
        )
        for one in sums[:_MOST_TRANSFERS]
    ]
    more = len(sums) - len(rows)
    total = (
        "all in a step" + (f" ({more} more)" if more > 0 else ""),
        "",
        str(len(plan.transfers)),
        format_bytes(sum(one.bytes for one in sums)),
        format_seconds(sum(one.seconds for one in sums)),
    )
    heads = ("transfer", "kind", "count", "bytes", "time")
    return rows_text(heads, rows, width=width, right=(2, 3, 4), total=total)


def _fallbacks_table(plan: Plan, width: int) -> str:
    if not plan.fallbacks:
        return ""
    rows = [
        (one.part, one.requested, one.assigned, one.reason) for one in plan.fallbacks
    ]
    heads = ("fallback", "requested", "assigned", "reason")
    return rows_text(heads, rows, width=width)


def _cluster_blocks(cluster: Cluster, width: int) -> list[str]:
    heads = ("device", "memory", "speed", "bandwidth", "per call", "TensorFlow's name")
    rows = [
        (
            device.name + ("*" if device.stand_in else ""),
            format_bytes(device.memory_bytes),
            f"{format_count(device.flops_per_second)}FLOP/s",
            f"{format_count(device.bytes_per_second)}B/s",
            format_seconds(device.call_seconds),
            device.target,
        )
        for device in cluster
    ]
    links = [
        (
            f"{link.source} -> {link.target}".replace("* -> *", "all"),
            f"{format_count(link.bytes_per_second)}B/s",
            format_seconds(link.latency_seconds),
        )
        for link in cluster.links[:_MOST_LINKS]
    ]
    more = len(cluster.links) - len(links)
    return [
        rows_text(heads, rows, width=width, right=(1, 2, 3, 4)),
        rows_text(("link", "bandwidth", "latency"), links, width=width, right=(1, 2))
        if links
        else "",
        f"and {counted(more, 'more link')}" if more > 0 else "",
        _STAND_IN if any(device.stand_in for device in cluster) else "",
    ]


def _audit_blocks(audit: Audit, width: int) -> list[str]:
    """Where each part ran, what was copied, and every finding."""
    name = shortened(audit.plan.graph.name, width // 2)
    found = counted(len(audit.findings), "finding")
    verdict = "all as planned" if audit.ok else f"{found} not as planned"
    marked = [(finding.text, "! ") for finding in audit.findings]
    marked += [(note, "note: ") for note in audit.notes]
    heads = ("branch", "planned", *ASPECTS, "ops")
    copies = [
        (f"{a} -> {b}", kind, format_bytes(planned), format_bytes(actual))
        for (a, b, kind), (planned, actual) in audit.moved.items()
    ]
    return [
        f"audit of {name}: {verdict}",
        "\n".join(_wrapped(sign + text, width, "  ") for text, sign in marked),
        rows_text(heads, map(_audit_row, audit.rows), width=width, right=(7,)),
        rows_text(
            ("transfer", "kind", "planned", "actual"), copies, width=width, right=(2, 3)
        )
        if copies
        else "",
    ]


def _audit_row(row: Row) -> tuple[str, ...]:
    """The part, its planned device, and "ok" or the other device for each aspect."""
    seen = (getattr(row, aspect) for aspect in ASPECTS)
    cells = ("ok" if device == row.planned else device or "-" for device in seen)
    return (row.part, row.planned, *cells, str(row.ops))


def chart(timeline: Timeline, *, width: int | None = None) -> str:
    """Write a timeline as text: a lane per device, a letter per interval.

    F is forward, B backward, U update; a dot is idle; `~` marks the devices that a
    transfer leaves or reaches while they are idle.

    Args:
        timeline: what to write.
        width: columns of a line; None takes the terminal's, or 80 where there is none.

    Raises:
        SplitnetError: the width is not a positive number.
    """
    columns = _terminal_width() if width is None else width
    if columns < 1:
        raise SplitnetError(f"width={width!r}: a chart has at least one column.")
    whole = timeline.seconds
    if not whole:
        return "Nothing runs."
    names = [clean(device) for device in timeline.devices]
    longest = max(len(name) for name in names)
    size = max(columns - longest - 8, 10)
    lines = []
    for device, name in zip(timeline.devices, names, strict=True):
        lane = _lane(timeline, device, size)
        used = percent(timeline.utilization[device])
        lines.append(f"{name.ljust(longest)}  {lane} {used:>5}")
    lines.append(" " * longest + "  0" + format_seconds(whole).rjust(size - 1))
    lines.append("F forward  B backward  U update  ~ transfer  . idle")
    return "\n".join(lines)


def _lane(timeline: Timeline, device: str, size: int) -> str:
    """What a device does most in each of `size` equal intervals of the step."""
    letters = dict(zip(PHASES, "FBU", strict=True))
    spent: list[dict[str, float]] = [{} for _ in range(size)]
    interval = timeline.seconds / size
    for task in timeline.tasks:
        if task.device == device:
            _spread(spent, letters[task.phase], task.start, task.stop, interval)
    for copy in timeline.copies:
        if device in (copy.source_device, copy.target_device):
            _spread(spent, "~", copy.start, copy.stop, interval)
    lane = []
    for cell in spent:
        work = {letter: cell[letter] for letter in "FBU" if letter in cell}
        idle = sum(work.values()) < interval / 2
        if idle and "~" in cell:
            lane.append("~")
        else:
            lane.append(max(work, key=work.__getitem__) if work else ".")
    return "".join(lane)


def _spread(
    spent: list[dict[str, float]], letter: str, start: float, stop: float, size: float
) -> None:
    first = min(int(start / size), len(spent) - 1)
    last = min(int(stop / size), len(spent) - 1)
    for cell in range(first, last + 1):
        shared = min(stop, (cell + 1) * size) - max(start, cell * size)
        if shared > 0:
            spent[cell][letter] = spent[cell].get(letter, 0.0) + shared
