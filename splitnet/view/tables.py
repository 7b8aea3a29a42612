"""Tables of plans, clusters and audits as text; timelines as text.

They fit the terminal's width, or 80 columns in a pipe. The report shows the same grids.
"""

import io
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import accumulate
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from splitnet.core.audit import ASPECTS, Audit
from splitnet.core.checks import Width
from splitnet.core.cluster import Cluster
from splitnet.core.errors import format_bytes, format_count, format_seconds, percent
from splitnet.core.plan import Plan, StrategyComparison
from splitnet.core.timeline import PHASES, Timeline
from splitnet.view import facts
from splitnet.view.style import clean, counted, shape_text, shortened

NARROW, WIDE, PAGE = 0, 1, 2
_KINDS = ("weights", "grads", "slots", "activ.", "receive", "workspace")
_LEAST_WIDTH, _WIDE_FROM, _FOLDED = 56, 110, 8  # columns
_MOST_TRANSFERS = 5
_MOST_LINKS = 12


@dataclass(frozen=True, slots=True)
class Grid:
    """Rows by their heads, a last row, lines below; `left` columns are flush left."""

    rows: Sequence[Mapping[str, str]] = ()
    left: int = 1
    total: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def heads(self) -> list[str]:
        """The heads of the columns."""
        return list(self.rows[0]) if self.rows else []


def table(
    thing: Plan | Audit | Cluster | StrategyComparison, *, width: Width | None = None
) -> str:
    """Write a plan, an audit, a cluster or strategies as text; print nothing.

    A plan's table begins with the verdict; then come its devices, its branches with
    their memory and time per step, the largest transfers, and fallbacks. `width` counts
    columns; None takes the terminal's, or 80 where there is none. From 110 columns on,
    memory and time are broken down.
    """
    columns = max(terminal_width() if width is None else width, _LEAST_WIDTH)
    lines: list[str] = []
    if isinstance(thing, Plan):
        title = f"batch {thing.batch}, {' '.join(facts.objective_text(thing))}"
        lines = [f"{shortened(thing.graph.name, columns // 2)}: {title}"]
        lines += str(thing.verdict).splitlines()
        lines += [facts.bottleneck_text(thing), facts.algorithm_text(thing)]
        grids = plan_grids(thing, WIDE if columns >= _WIDE_FROM else NARROW)
    elif isinstance(thing, Audit):
        name = shortened(thing.plan.graph.name, columns // 2)
        lines = [f"audit of {name}: {facts.audit_text(thing)}"]
        lines += [f"! {finding.text}" for finding in thing.findings]
        lines += [f"note: {note}" for note in thing.notes]
        grids = audit_grids(thing)
    elif isinstance(thing, StrategyComparison):
        lines, grids = str(thing).splitlines(), dict[str, Grid]()
    else:
        grids = _cluster_grids(thing)
    head = [textwrap.fill(clean(x), columns, subsequent_indent="    ") for x in lines]
    texts = ["\n".join(head), *(grid_text(grid, columns) for grid in grids.values())]
    return "\n\n".join(text for text in texts if text)


def terminal_width(otherwise: int = 80) -> int:
    """Columns of the terminal, if standard output is one."""
    shown = sys.stdout is not None and sys.stdout.isatty()  # None: closed
    return shutil.get_terminal_size().columns if shown else otherwise


def grid_text(grid: Grid, width: int) -> str:
    """Set a grid as text; the first column is shortened, to a third or what is left.

    Columns that have no room stand below, beside the first one again.
    """
    if not grid.rows:
        return "\n".join(grid.notes)
    texts = [dict(zip(grid.heads, grid.heads)), *grid.rows, grid.total]
    wide = [max(cell_len(clean(x.get(h, ""))) for x in texts) for h in grid.heads]
    most = max(max(width, _LEAST_WIDTH) // 3, width - sum(n + 2 for n in wide[1:]))
    words = [max(_FOLDED, *map(cell_len, head.split())) for head in grid.heads]
    least = [*map(min, wide, words)][: grid.left] + wide[grid.left :]
    ends = accumulate((n + 2 for n in least[1:]), initial=min(wide[0], most))
    fit = max(sum(end <= width for end in ends), 2)
    made = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), show_edge=False)
    for number, head in enumerate(grid.heads[:fit]):
        how: Any = {"justify": "right" if number >= grid.left else "left"}
        how["no_wrap"] = number == 0 or least[number] == wide[number]
        made.add_column(head, overflow="fold", **how)
    for row in grid.rows:
        first, *others = map(clean, row.values())
        made.add_row(Text(shortened(first, most)), *map(Text, others[: fit - 1]))
    if grid.total:
        made.add_section()
        made.add_row(*(Text(grid.total.get(head, "")) for head in grid.heads[:fit]))
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, legacy_windows=False).print(made)
    lines = [line.rstrip() for line in out.getvalue().rstrip().splitlines()]
    if beyond := grid.heads[fit:]:
        rows = [{h: row[h] for h in (grid.heads[0], *beyond)} for row in grid.rows]
        rest = replace(grid, rows=rows, left=max(grid.left + 1 - fit, 1))
        return "\n".join([*lines, "", grid_text(rest, width)])
    return "\n".join([*lines, *grid.notes])


def plan_grids(plan: Plan, detail: int) -> dict[str, Grid]:
    """A plan's tables: NARROW; WIDE, with kinds of memory and time; PAGE, with all."""
    grids = {
        "devices": _devices_grid(plan, detail),
        "parts": _parts_grid(plan, detail),
        "transfers": _transfers_grid(plan, detail),
    }
    if plan.fallbacks:
        rows = [asdict(fallback) for fallback in plan.fallbacks]
        grids["fallbacks"] = Grid([{"fallback": r.pop("part")} | r for r in rows], 4)
    if plan.reused:
        heads = "the source's own layer", "why it cannot be rebuilt"
        grids["reused"] = Grid([dict(zip(heads, x)) for x in plan.reused.items()], 2)
    return grids


def _bytes(count: float) -> str:
    """An amount of memory; zero is a dash."""
    return format_bytes(count) if count else "-"


def _devices_grid(plan: Plan, detail: int) -> Grid:
    counts = Counter(plan.device_of.values())
    rows, notes = [], _stand_in_note(plan.cluster)
    for one in plan.cluster:
        memory = plan.memory[one.name]
        over = memory.total > one.memory_bytes
        notes += ["! exceeds the limit"] * over
        used = percent(plan.timeline.utilization[one.name])
        row = {"device": one.name + "*" * one.stand_in, "parts": str(counts[one.name])}
        row |= {word: _bytes(n) for word, n in zip(_KINDS, astuple(memory)) if detail}
        row |= {"memory peak": _bytes(memory.total) + "!" * over}
        row |= {"limit": format_bytes(one.memory_bytes), "utilization": used}
        rows.append(row)
    return Grid(rows, notes=list(dict.fromkeys(notes)))


def _stand_in_note(cluster: Cluster) -> list[str]:
    note = "* stand-in: shows placement, not speed or memory"
    return [note] if any(device.stand_in for device in cluster) else []


def _parts_grid(plan: Plan, detail: int) -> Grid:
    parts = list(facts.part_facts(plan).values())
    phases = PHASES if plan.training else PHASES[:1]

    def costs(one: facts.PartFacts) -> dict[str, str]:
        seconds = {phase: one.seconds[phase] for phase in phases}
        held = {"weights": one.weight_bytes, "activations": one.activation_bytes}
        if not detail:
            seconds, held = {"time": sum(seconds.values())}, {"memory": one.total_bytes}
        times = {word: format_seconds(n) if n else "-" for word, n in seconds.items()}
        return {word: _bytes(n) for word, n in held.items()} | times

    rows = []
    for one in parts:
        reason = f"requested {one.fallback.requested}" if one.fallback else one.reason
        row = {"branch": one.name, "device": one.device, "reason": reason}
        if detail == PAGE:
            row["layers"] = ", ".join(dict.fromkeys(one.layers))
            row["outputs"] = ", ".join(dict.fromkeys(map(shape_text, one.shapes)))
        rows.append(row | costs(one))
    used = counted(len({one.device for one in parts}), "device")
    total = {"branch": counted(len(parts), "part"), "device": used}
    total |= costs(facts.summed(parts))
    return Grid(rows, 5 if detail == PAGE else 3, total)


def _transfers_grid(plan: Plan, detail: int) -> Grid:
    if not plan.transfers:
        return Grid(notes=["No transfers between devices."])

    def cells(count: int, size: int, seconds: float) -> dict[str, str]:
        spent = {"bytes": format_bytes(size), "time": format_seconds(seconds)}
        return {"count": str(count)} | spent

    sums = facts.sums_sent(plan, "source_device", "target_device", "kind")
    rows = [
        {"transfer": f"{source} → {target}", "kind": kind} | cells(*figures)
        for (source, target, kind), figures in sums.items()
    ]
    more = 0 if detail == PAGE else max(len(rows) - _MOST_TRANSFERS, 0)
    words = {"transfer": "all in a step" + (f" ({more} more)" if more else "")}
    total = words | cells(*map(sum, zip(*sums.values())))
    return Grid(rows[: len(rows) - more], 2, total)


def _cluster_grids(cluster: Cluster) -> dict[str, Grid]:
    devices = [
        {
            "device": device.name + "*" * device.stand_in,
            "TensorFlow's name": device.target,
            "memory": format_bytes(device.memory_bytes),
            "speed": f"{format_count(device.flops_per_second)}FLOP/s",
            "bandwidth": f"{format_count(device.bytes_per_second)}B/s",
            "per call": format_seconds(device.call_seconds),
        }
        for device in cluster
    ]
    links = [
        {
            "link": f"{link.source} → {link.target}".replace("* → *", "all"),
            "bandwidth": f"{format_count(link.bytes_per_second)}B/s",
            "latency": format_seconds(link.latency_seconds),
        }
        for link in cluster.links
    ]
    more = counted(len(links) - _MOST_LINKS, "more link")
    notes = [f"and {more}"] if links[_MOST_LINKS:] else []
    grids = {"devices": Grid(devices, 2, notes=_stand_in_note(cluster))}
    return grids | ({"links": Grid(links[:_MOST_LINKS], notes=notes)} if links else {})


def audit_grids(audit: Audit) -> dict[str, Grid]:
    """Where each part ran, "ok" where it was planned, and what was copied."""
    rows = []
    for row in audit.rows:
        seen = {aspect: getattr(row, aspect) for aspect in ASPECTS.values()}
        cells = {a: "ok" if d == row.planned else d or "-" for a, d in seen.items()}
        words = {"branch": row.part, "planned": row.planned}
        rows.append(words | cells | {"ops": str(row.ops)})
    copies = [
        {"transfer": f"{a} → {b}", "kind": kind}
        | {"planned": format_bytes(planned), "actual": format_bytes(actual)}
        for (a, b, kind), (planned, actual) in audit.moved.items()
    ]
    grids = {"rows": Grid(rows, 7), "copies": Grid(copies, 2)}
    return {name: grid for name, grid in grids.items() if grid.rows}


def chart(timeline: Timeline, *, width: Width | None = None) -> str:
    """Write a timeline as text: a lane per device, a letter per interval.

    F is forward, B backward, U update; a dot is idle; `~` marks the devices that a
    transfer leaves or reaches while they are idle. `width` is as in `table`.
    """
    if not (whole := timeline.seconds):
        return "Nothing runs."
    longest = max(len(clean(device)) for device in timeline.devices)
    size = max((terminal_width() if width is None else width) - longest - 8, 10)
    lanes = {device: ["."] * size for device in timeline.devices}
    for copy in timeline.copies:
        first = min(round(copy.start / whole * size), size - 1)
        last = max(round(copy.stop / whole * size), first + 1)  # be it ever so short
        for device in (copy.source_device, copy.target_device):
            lanes[device][first:last] = "~" * (last - first)
    for task in timeline.tasks:  # work covers transfers
        first, last = (round(at / whole * size) for at in (task.start, task.stop))
        lanes[task.device][first:last] = task.phase[0].upper() * (last - first)
    lines = []
    for device, lane in lanes.items():
        used = percent(timeline.utilization[device])
        lines.append(f"{clean(device).ljust(longest)}  {''.join(lane)} {used:>5}")
    lines.append(" " * longest + "  0" + format_seconds(whole).rjust(size - 1))
    seen = {task.phase for task in timeline.tasks}
    signs = [f"{phase[0].upper()} {phase}" for phase in PHASES if phase in seen]
    return "\n".join([*lines, "  ".join([*signs, "~ transfer", ". idle"])])
