"""The words in a placement diagram: header, legend, device titles, boxes, tooltips."""

from collections.abc import Sequence
from dataclasses import dataclass

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.view.edges import THIN, BoxLink
from splitnet.view.facts import PartFacts, objective_text, utilization, verdict_lines
from splitnet.view.folding import Fold
from splitnet.view.style import (
    ALARM,
    INK,
    clean,
    counted,
    label_text,
    mixed,
    percent,
    quiet_label,
    ranged,
    shape_text,
    shortened,
)

__all__ = ["Box", "box_label", "box_tooltip", "device_label", "header_label"]

_NAME_WIDTH = 30
_TABLE = '<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="{}">{}</TABLE>'


@dataclass(frozen=True, slots=True)
class Box:
    """One box of the diagram: a part, folded parts, or calls of an opened part.

    `facts` are sums over all members. `moved_from` is the device of the compared plan,
    "" where it is the same; `inside` the opened part that its calls belong to; `shares`
    names the layers whose weights other parts use too; `strayed` says what an audit saw
    on another device. `moved` are the bytes received from and sent to other devices,
    where the box says them because there are too many edges to label.
    """

    id: str
    group: Fold
    facts: PartFacts
    reasons: tuple[str, ...]
    moved_from: str = ""
    shares: tuple[str, ...] = ()
    inside: str = ""
    strayed: tuple[str, ...] = ()
    moved: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """The first and the last member."""
        return ranged(self.group.members, 60)


def header_label(
    plan: Plan,
    boxes: Sequence[Box],
    links: Sequence[BoxLink],
    *,
    other: Plan | None,
    audit: Audit | None,
    headed: bool,
) -> str:
    """The title, the totals and the verdict, if `headed`, then the legend."""
    rows = _title_rows(plan) if headed else []
    if audit is not None:
        found = counted(len(audit.findings), "finding")
        said = "all as planned" if audit.ok else f"{found} not as planned"
        color = INK if audit.ok else ALARM
        rows.append(f'<FONT COLOR="{color}"><B>audit: {said}</B></FONT>')
    if other is not None:
        rows.append(f"<B>{label_text(_comparison_text(plan, other))}</B>")
    used = {box.facts.device for box in boxes}
    unused = ", ".join(d.name for d in plan.cluster if d.name not in used)
    rows += [quiet_label("not used: " + shortened(unused, 90))] if unused else []
    return _stacked([*rows, _legend(boxes, links, compared=other is not None)])


def _title_rows(plan: Plan) -> list[str]:
    moved = format_bytes(sum(transfer.bytes for transfer in plan.transfers))
    transfers = counted(len(plan.transfers), "transfer")
    facts = [
        f"batch {plan.batch}",
        " ".join(objective_text(plan)),
        f"{moved} between devices in {transfers}" if plan.transfers else "no transfers",
    ]
    if plan.fallbacks:
        facts.append(counted(len(plan.fallbacks), "fallback"))
    verdict = verdict_lines(plan)[0]
    fits = plan.verdict is None or not plan.verdict.overfull
    name = shortened(plan.graph.name, 80)
    return [
        f'<FONT POINT-SIZE="15"><B>{label_text(name)}</B></FONT>',
        label_text(" · ".join(facts)),
        label_text(verdict) if fits else _alarm(verdict, 120, 11),
    ]


def _comparison_text(plan: Plan, other: Plan) -> str:
    """How many parts moved since another plan, and what the step costs now."""
    found = other.compare(plan)
    moved = sum(1 for m in found.moved if m[1] and m[2])
    new = sum(1 for m in found.moved if not m[1])
    gone = sum(1 for m in found.moved if not m[2])
    words = [f"{counted(moved, 'part')} moved"]
    words += [f"{new} new"] if new else []
    words += [f"{gone} removed"] if gone else []
    before, now = (format_seconds(seconds) for seconds in found.seconds)
    return ", ".join([*words, f"step {before} before, {now} now"])


def _legend(boxes: Sequence[Box], links: Sequence[BoxLink], *, compared: bool) -> str:
    """Explain the signs that this picture holds, and no others."""
    crossing = [link for link in links if link.crosses and not link.is_reuse]
    inside = any(any(box.moved) for box in boxes)
    where = "in, out: bytes per step" if inside else "bytes per step"
    kinds = {box.facts.kind for box in boxes}
    marked = [
        (bool(crossing), "▬▬", INK, f"between devices ({where})"),
        (any(x.both_ways for x in crossing), "◄►", INK, "both ways"),
        (any(not x.crosses for x in links), "──", THIN, "within a device"),
        (any(x.is_reuse for x in links), "- - -", THIN, "reuses a copy"),
        (any(b.shares for b in boxes), "shares", INK, "weights stored once"),
        ("weights" in kinds, "cylinder", INK, "weights of towers"),
        ("merge" in kinds, "hexagon", INK, "merge"),
        ("input" in kinds, "square corners", INK, "input"),
        (any(b.facts.is_output for b in boxes), "double edge", INK, "output"),
        (any(b.facts.fallback for b in boxes), "dashed edge", ALARM, "fallback"),
        (any(b.group.times > 1 for b in boxes), "×n", INK, "n equal branches"),
        (any(b.strayed for b in boxes), "thick edge", ALARM, "ran elsewhere"),
        (compared, "thick edge", ALARM, "moved"),
    ]
    return "&#160;&#160;&#160; ".join(
        f'<FONT POINT-SIZE="9" COLOR="{color}"><B>{sign}</B></FONT> {quiet_label(text)}'
        for holds, sign, color, text in marked
        if holds
    )


def device_label(plan: Plan, device: str, color: str) -> str:
    """A device's name, its memory peak against its limit, its utilization."""
    rows = [
        f'<FONT POINT-SIZE="13" COLOR="{mixed(color, "#000000", 0.25)}"><B>'
        f"{label_text(device.rpartition('/')[2])}</B></FONT>"
    ]
    if device in plan.cluster:
        facts = plan.cluster[device]
        held = plan.memory[device].total if device in plan.memory else 0
        words = f"{format_bytes(held)} of {format_bytes(facts.memory_bytes)}"
        over = held > facts.memory_bytes
        rows.append(_alarm(f"{words}: too much", 40) if over else quiet_label(words))
        if facts.stand_in:
            rows.append(
                quiet_label(f"stand-in on {facts.target.removeprefix('/device:')}")
            )
    if plan.timeline.seconds and device in plan.timeline.utilization:
        rows.append(quiet_label(f"utilization {percent(utilization(plan, device))}"))
    return _stacked(rows, 0)


def box_label(box: Box) -> str:
    """Name, layers, shape, memory and time; what is unusual in red."""
    members, facts = box.group.members, box.facts
    many = len(members) > 1
    times = f" ×{box.group.times}" if many and box.group.times else ""
    rows = [f"<B>{label_text(ranged(members, _NAME_WIDTH))}{times}</B>"]
    if many and not box.group.times:
        rows.append(quiet_label(counted(len(members), "branch"), 8.5))
    if 2 < len(members) <= 9:
        for at in range(0, len(members), 3):
            names = (shortened(name, 13) for name in members[at : at + 3])
            rows.append(quiet_label(", ".join(names), 8))
    if facts.layers and facts.kind != "input":
        rows.append(quiet_label(_layers_text(facts.layers), 8.5))
    if facts.shapes:
        rows.append(_small(_shapes_text(facts.shapes)))
    costs = []
    if facts.total_bytes and facts.kind != "input":
        costs.append(format_bytes(facts.total_bytes))
    if facts.total_seconds:
        costs.append(format_seconds(facts.total_seconds))
    if costs:
        rows.append(_small(" · ".join(costs) + (" in total" if many else "")))
    if any(box.moved):
        ways = zip(("in", "out"), box.moved, strict=True)
        words = [f"{way} {format_bytes(count)}" for way, count in ways if count]
        rows.append(_small(" · ".join(words)))
    weights = [f"shares {shortened(', '.join(box.shares), 30)}"] if box.shares else []
    if facts.fetched_bytes:
        weights.append(f"reads {format_bytes(facts.fetched_bytes)} of remote weights")
    rows += [quiet_label(text, 8.5) for text in weights]
    if facts.fallback:
        rows.append(_alarm(f"requested {facts.requested}"))
    if box.moved_from:
        rows.append(_alarm(f"was on {box.moved_from}"))
    rows += [_alarm(text) for text in box.strayed[:3]]
    if len(box.strayed) > 3:
        rows.append(_alarm(f"and {len(box.strayed) - 3} more"))
    cells = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
    return f"<{_TABLE.format(0, cells)}>"


def box_tooltip(box: Box) -> str:
    """Everything about a box, for the pointer."""
    facts, names = box.facts, box.group.members
    lines = [
        ranged(names, 120) + (f" ({len(names)})" if len(names) > 1 else ""),
        f"{facts.kind} on {facts.device}, reason: {', '.join(box.reasons)}",
    ]
    if facts.fallback:
        lines.append(f"requested {facts.requested}: {clean(facts.fallback.reason)}")
    if box.moved_from:
        lines.append(f"was on {box.moved_from}")
    lines += [clean(text) for text in box.strayed]
    if facts.shapes:
        lines.append("outputs " + "; ".join(shape_text(s) for s in facts.shapes[:4]))
    lines.append(
        f"weights {format_bytes(facts.weight_bytes)}, "
        f"saved activations {format_bytes(facts.activation_bytes)}"
    )
    spent = [f"{phase} {format_seconds(s)}" for phase, s in facts.seconds.items() if s]
    lines += [", ".join(spent)] if spent else []
    lines += [f"declared at {clean(facts.where)}"] if facts.where else []
    return "\n".join(lines)


def _stacked(rows: Sequence[str], padding: int = 1) -> str:
    """Rows of an HTML-like label below one another, flush left."""
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
    return f"<{_TABLE.format(padding, cells)}>"


def _small(text: str) -> str:
    return f'<FONT POINT-SIZE="9">{label_text(text)}</FONT>'


def _alarm(text: str, most: int = 34, size: float = 9) -> str:
    short = label_text(shortened(text, most))
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{ALARM}"><B>{short}</B></FONT>'


def _layers_text(layers: Sequence[str]) -> str:
    """The kinds of layers in a row, equal neighbours counted."""
    words: list[tuple[str, int]] = []
    for layer in layers:
        if words and words[-1][0] == layer:
            words[-1] = (layer, words[-1][1] + 1)
        else:
            words.append((layer, 1))
    texts = [f"{count} {name}" if count > 1 else name for name, count in words]
    if len(texts) > 4:
        texts = [*texts[:2], "…", texts[-1]]
    return shortened(" → ".join(texts), 44)


def _shapes_text(shapes: Sequence[tuple[int | None, ...]]) -> str:
    texts = list(dict.fromkeys(shape_text(shape) for shape in shapes))
    more = f" + {len(texts) - 2} more" if len(texts) > 2 else ""
    return shortened(", ".join(texts[:2]), 40) + more
