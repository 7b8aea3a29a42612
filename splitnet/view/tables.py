"""Tables of plans, clusters and audits as text; timelines as text.

They fit the terminal's width, or 80 columns in a pipe. The report shows the same grids.
"""

import io
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splitnet.core.audit import Audit
from splitnet.core.checks import Width
from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_count, format_seconds
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Timeline
from splitnet.view.facts import (
    PartFacts,
    algorithm_text,
    audit_text,
    bottleneck_text,
    objective_text,
    part_facts,
    transfer_sums,
    verdict_lines,
)
from splitnet.view.style import clean, counted, percent, shape_text, shortened

NARROW, WIDE, PAGE = 0, 1, 2
_ASPECTS = ("forward", "backward", "variables", "slots", "updates")
_MEMORY = {
    "weights": "weights",
    "gradients": "grads",
    "slots": "slots",
    "activations": "activ.",
    "receive_buffers": "receive",
    "workspace": "workspace",
}
_WIDTH, _LEAST_WIDTH, _WIDE_FROM = 80, 56, 110  # columns; the first if no terminal
_MOST_TRANSFERS = 5
_MOST_LINKS = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows under their heads; `right` columns are flush right, by number.

    `total` is a last row under a rule, `notes` are lines below.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: range = range(0)
    total: Sequence[str] = ()
    notes: Sequence[str] = ()


def table(thing: Plan | Audit | Cluster, *, width: Width | None = None) -> str:
    """Write a plan, an audit or a cluster as text; print nothing.

    A plan's table begins with the verdict; then come its devices, its branches with
    their memory and time per step, the largest transfers, and fallbacks.

    Args:
        thing: what to write.
        width: columns; None takes the terminal's, or 80 where there is none. From 110
            columns on, memory and time are broken down.
    """
    columns = max(_terminal_width() if width is None else width, _LEAST_WIDTH)
    lines: list[str] = []
    if isinstance(thing, Plan):
        title = f"batch {thing.batch}, {' '.join(objective_text(thing))}"
        lines = [
            f"{shortened(thing.graph.name, columns // 2)}: {title}",
            *verdict_lines(thing),
            bottleneck_text(thing),
            algorithm_text(thing),
        ]
        grids = plan_grids(thing, WIDE if columns >= _WIDE_FROM else NARROW)
    elif isinstance(thing, Audit):
        name = shortened(thing.plan.graph.name, columns // 2)
        lines = [f"audit of {name}: {audit_text(thing)}"]
        lines += [f"! {finding.text}" for finding in thing.findings]
        lines += [f"note: {note}" for note in thing.notes]
        grids = audit_grids(thing)
    else:
        grids = _cluster_grids(thing)
    head = [textwrap.fill(clean(x), columns, subsequent_indent="    ") for x in lines]
    texts = ["\n".join(head), *(grid_text(grid, columns) for grid in grids.values())]
    return "\n\n".join(text for text in texts if text)


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH


def grid_text(grid: Grid, width: int) -> str:
    """Set a grid as text; the first column is shortened to fit."""
    shown = Table(
        box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False
    )
    for number, head in enumerate(grid.heads):
        right = number in grid.right
        shown.add_column(
            head,
            justify="right" if right else "left",
            no_wrap=right or number == 0,
            overflow="fold",
        )
    for row in grid.rows:
        first, *others = (clean(cell) for cell in row)
        shown.add_row(Text(shortened(first, width // 3)), *map(Text, others))
    if grid.total:
        shown.add_section()
        shown.add_row(*map(Text, grid.total))
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    if grid.heads:
        console.print(shown)
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    return "\n".join([*lines, *grid.notes])


def plan_grids(plan: Plan, detail: int) -> dict[str, Grid]:
    """A plan's devices, branches, transfers and fallbacks.

    `detail` is NARROW; WIDE, where memory and time are broken down; or PAGE, with
    outputs and every transfer.
    """
    grids = {
        "devices": _devices_grid(plan, detail),
        "parts": _parts_grid(plan, detail),
        "transfers": _transfers_grid(plan, detail),
    }
    if plan.fallbacks:
        grids["fallbacks"] = Grid(
            ("fallback", "requested", "assigned", "reason"),
            [(f.part, f.requested, f.assigned, f.reason) for f in plan.fallbacks],
        )
    if plan.reused:
        heads = ("the source's own layer", "why it cannot be rebuilt")
        grids["reused"] = Grid(heads, list(plan.reused.items()))
    return grids


def _bytes(count: float) -> str:
    """An amount of memory; zero is a dash."""
    return format_bytes(count) if count else "-"


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _devices_grid(plan: Plan, detail: int) -> Grid:
    kinds = _MEMORY if detail else {}
    counts = Counter(plan.device_of.values())
    held = {name: memory.total for name, memory in plan.memory.items()}
    over = [one.name for one in plan.cluster if held[one.name] > one.memory_bytes]
    rows = [
        (
            one.name + "*" * one.stand_in,
            str(counts[one.name]),
            *(_bytes(getattr(plan.memory[one.name], kind)) for kind in kinds),
            _bytes(held[one.name]) + "!" * (one.name in over),
            format_bytes(one.memory_bytes),
            percent(plan.timeline.utilization[one.name]),
        )
        for one in plan.cluster
    ]
    heads = ("device", "parts", *kinds.values(), "memory peak", "limit", "utilization")
    notes = [*_stand_in_note(plan.cluster), *(["! exceeds the limit"] if over else [])]
    return Grid(heads, rows, range(1, len(heads)), notes=notes)


def _stand_in_note(cluster: Cluster) -> list[str]:
    its = any(device.stand_in for device in cluster)
    return ["* stand-in: shows placement, not speed or memory"] if its else []


def _parts_grid(plan: Plan, detail: int) -> Grid:
    facts = list(part_facts(plan).values())
    phases = PHASES if plan.training else PHASES[:1]

    def costs(its: Sequence[PartFacts]) -> list[str]:
        weights = sum(one.weight_bytes for one in its)
        saved = sum(one.activation_bytes for one in its)
        times = [sum(one.seconds.get(phase, 0.0) for one in its) for phase in phases]
        if detail:
            return [_bytes(weights), _bytes(saved), *map(_seconds, times)]
        return [_bytes(weights + saved), _seconds(sum(times))]

    rows = []
    for one in facts:
        fell = f"requested {one.fallback.requested}" if one.fallback else ""
        words = [one.name, one.device, fell or one.reason]
        if detail == PAGE:
            words.append(", ".join(dict.fromkeys(one.layers)))
            words.append(", ".join(dict.fromkeys(map(shape_text, one.shapes))))
        rows.append((*words, *costs([one])))
    more = ("layers", "outputs") if detail == PAGE else ()
    costly = ("weights", "activations", *phases) if detail else ("memory", "time")
    heads = ("branch", "device", "reason", *more, *costly)
    used = counted(len({one.device for one in facts}), "device")
    total = (counted(len(facts), "part"), used, "", *[""] * len(more), *costs(facts))
    return Grid(heads, rows, range(3 + len(more), len(heads)), total)


def _transfers_grid(plan: Plan, detail: int) -> Grid:
    """The largest transfers by pair of devices and kind."""
    if not plan.transfers:
        return Grid((), (), notes=["No transfers between devices."])
    sums = transfer_sums(plan, "source_device", "target_device", "kind")
    rows = [
        (
            *(f"{source} -> {target}", kind, str(count)),
            *(format_bytes(size), format_seconds(seconds)),
        )
        for (source, target, kind), (count, size, seconds) in sums.items()
    ]
    more = 0 if detail == PAGE else max(len(rows) - _MOST_TRANSFERS, 0)
    total = (
        "all in a step" + (f" ({more} more)" if more else ""),
        "",
        str(len(plan.transfers)),
        format_bytes(plan.transfer_bytes),
        format_seconds(sum(seconds for _, _, seconds in sums.values())),
    )
    heads = ("transfer", "kind", "count", "bytes", "time")
    return Grid(heads, rows[: len(rows) - more], range(2, 5), total)


def _cluster_grids(cluster: Cluster) -> dict[str, Grid]:
    heads = ("device", "memory", "speed", "bandwidth", "per call", "TensorFlow's name")
    rows = [
        (
            device.name + "*" * device.stand_in,
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
        for link in cluster.links
    ]
    grids = {"devices": Grid(heads, rows, range(1, 5), notes=_stand_in_note(cluster))}
    if links:
        more = len(links) - _MOST_LINKS
        notes = [f"and {counted(more, 'more link')}"] if more > 0 else []
        columns = ("link", "bandwidth", "latency")
        grids["links"] = Grid(columns, links[:_MOST_LINKS], range(1, 3), notes=notes)
    return grids


def audit_grids(audit: Audit) -> dict[str, Grid]:
    """Where each part ran, "ok" where it was planned, and what was copied."""
    rows = []
    for row in audit.rows:
        seen = (getattr(row, aspect) for aspect in _ASPECTS)
        cells = ("ok" if one == row.planned else one or "-" for one in seen)
        rows.append((row.part, row.planned, *cells, str(row.ops)))
    heads = ("branch", "planned", *_ASPECTS, "ops")
    grids = {"rows": Grid(heads, rows, range(7, 8))}
    if audit.moved:
        copies = [
            (f"{a} -> {b}", kind, format_bytes(planned), format_bytes(actual))
            for (a, b, kind), (planned, actual) in audit.moved.items()
        ]
        columns = ("transfer", "kind", "planned", "actual")
        grids["copies"] = Grid(columns, copies, range(2, 4))
    return grids


def chart(timeline: Timeline, *, width: Width | None = None) -> str:
    """Write a timeline as text: a lane per device, a letter per interval.

    F is forward, B backward, U update; a dot is idle; `~` marks the devices that a
    transfer leaves or reaches while they are idle.

    Args:
        timeline: what to write.
        width: columns of a line; None takes the terminal's, or 80 where there is none.
    """
    columns = _terminal_width() if width is None else width
    whole = timeline.seconds
    if not whole:
        return "Nothing runs."
    longest = max(len(clean(device)) for device in timeline.devices)
    size = max(columns - longest - 8, 10)
    lanes = {device: ["."] * size for device in timeline.devices}
    for copy in timeline.copies:
        first = min(round(copy.start / whole * size), size - 1)
        last = max(round(copy.stop / whole * size), first + 1)  # be it ever so short
        for device in (copy.source_device, copy.target_device):
            lanes[device][first:last] = "~" * (last - first)
    for task in timeline.tasks:  # work covers transfers
        first, last = (round(at / whole * size) for at in (task.start, task.stop))
        letter = task.phase[0].upper()
        lanes[task.device][first:last] = letter * (last - first)
    lines = []
    for device, lane in lanes.items():
        used = percent(timeline.utilization[device])
        lines.append(f"{clean(device).ljust(longest)}  {''.join(lane)} {used:>5}")
    lines.append(" " * longest + "  0" + format_seconds(whole).rjust(size - 1))
    lines.append("F forward  B backward  U update  ~ transfer  . idle")
    return "\n".join(lines)
