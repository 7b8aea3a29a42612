"""The words in a placement diagram, as Graphviz' HTML-like labels and tooltips."""

from collections.abc import Sequence

from splitnet.core.audit import Audit
from splitnet.core.plan import Plan
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.boxes import Box, Boxes
from splitnet.view.colors import INK, QUIET, mixed
from splitnet.view.facts import verdict_line
from splitnet.view.links import Link
from splitnet.view.words import (
    clean,
    counted,
    label_text,
    ranged,
    shape_text,
    shortened,
)

__all__ = [
    "ALARM",
    "THIN",
    "box_label",
    "box_tooltip",
    "comparison_text",
    "device_label",
    "header_label",
    "is_fetched",
    "labelled_links",
    "link_label",
    "link_tooltip",
]

ALARM = "#b3261e"
THIN = "#8b949e"
_NAME_WIDTH = 30
_MOST_LABELS = 24


def header_label(
    plan: Plan, shown: Boxes, other: Plan | None, audit: Audit | None
) -> str:
    """The title, the totals, the verdict and the legend, above the picture."""
    moved = sum(t.bytes for t in plan.transfers)
    step = plan.timeline.seconds
    transfers = counted(len(plan.transfers), "transfer")
    sent = f"{format_bytes(moved)} between devices in {transfers}"
    facts = [
        f"batch {plan.batch}",
        f"{'training' if plan.training else 'inference'} step {format_seconds(step)}",
        sent if plan.transfers else "nothing moves between devices",
    ]
    if plan.fallbacks:
        facts.append(counted(len(plan.fallbacks), "fallback"))
    name = label_text(shortened(plan.graph.name, 80))
    rows = [
        f'<FONT POINT-SIZE="15"><B>{name}</B></FONT>',
        label_text(" · ".join(facts)),
        label_text(verdict_line(plan)),
    ]
    if audit is not None:
        found = counted(len(audit.findings), "thing")
        said = "all as planned" if audit.ok else f"{found} did not run as planned"
        color = INK if audit.ok else ALARM
        rows.append(f'<FONT COLOR="{color}"><B>audit: {said}</B></FONT>')
    if other is not None:
        rows.append(f"<B>{label_text(comparison_text(plan, other))}</B>")
    used = {box.device for box in shown.boxes}
    unused = [device.name for device in plan.cluster if device.name not in used]
    if unused:
        rows.append(_quiet("not used: " + shortened(", ".join(unused), 90)))
    rows.append(_legend(shown, other is not None))
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="1">{cells}</TABLE>>'


def comparison_text(plan: Plan, other: Plan) -> str:
    """Say how many parts moved since another plan, and what the step costs now."""
    found = other.compare(plan)
    moved = [m for m in found.moved if m[1] and m[2]]
    new = sum(1 for m in found.moved if not m[1])
    gone = sum(1 for m in found.moved if not m[2])
    words = [f"{counted(len(moved), 'part')} moved"]
    words += [f"{new} new"] if new else []
    words += [f"{gone} gone"] if gone else []
    before, now = (format_seconds(seconds) for seconds in found.seconds)
    words.append(f"step {before} before, {now} now")
    return ", ".join(words)


def _quiet(text: str, size: float = 9) -> str:
    return f'<FONT POINT-SIZE="{size:g}" COLOR="{QUIET}">{label_text(text)}</FONT>'


def _legend(shown: Boxes, compared: bool) -> str:
    """Explain only what this picture holds."""
    entries = []
    crossing = sum(link.crosses for link in shown.links)
    boxes = shown.boxes
    if crossing:
        few = (
            f", the {_MOST_LABELS} largest labelled" if crossing > _MOST_LABELS else ""
        )
        entries.append(("▬▬", INK, f"crosses devices (bytes per step{few})"))
    if any(not link.crosses for link in shown.links):
        entries.append(("──", THIN, "stays on its device"))
    if any(is_fetched(link) for link in shown.links):
        entries.append(("- - -", THIN, "reads a copy that is there already"))
    if shown.sharings:
        entries.append(("· · ·", INK, "shares weights"))
    elif any(box.shares for box in boxes):
        entries.append(("shares", INK, "the same weights, held once"))
    if any(box.kind == "merge" for box in boxes):
        entries.append(("hexagon", INK, "merge"))
    if any(box.kind == "input" for box in boxes):
        entries.append(("square corners", INK, "input"))
    if any(box.is_output for box in boxes):
        entries.append(("double edge", INK, "output"))
    if any(box.fallback_why for box in boxes):
        entries.append(("dashed edge", ALARM, "not where it was asked"))
    if any(len(box.group.members) > 1 for box in boxes):
        entries.append(("×n", INK, "n like branches in one box"))
    if any(box.strayed for box in boxes):
        entries.append(("thick edge", ALARM, "ran elsewhere"))
    if compared:
        entries.append(("thick edge", ALARM, "moved"))
    return "&#160;&#160;&#160; ".join(
        f'<FONT POINT-SIZE="9" COLOR="{color}"><B>{sign}</B></FONT> {_quiet(text)}'
        for sign, color, text in entries
    )


def device_label(plan: Plan, device: str, color: str, *, tall: bool = False) -> str:
    """Write a device's name, its fullest memory against its limit, its busy share."""
    words = []
    if device in plan.cluster:
        facts = plan.cluster[device]
        held = plan.memory[device].total if device in plan.memory else 0
        words.append(f"{format_bytes(held)} of {format_bytes(facts.memory_bytes)}")
        if facts.stand_in:
            words.append(f"stand-in on {facts.target}")
    idle = plan.timeline.idle.get(device)
    if idle is not None and plan.timeline.seconds:
        words.append(f"busy {1 - idle:.0%}")
    name = label_text(device.rpartition("/")[2])
    strong = mixed(color, "#000000", 0.25)
    title = f'<FONT POINT-SIZE="13" COLOR="{strong}"><B>{name}</B></FONT>'
    if not tall:
        return f"<{title}&#160; {_quiet(' · '.join(words))}>"
    rows = [title, *(_quiet(word) for word in words)]
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{cells}</TABLE>>'


def box_label(box: Box) -> str:
    """Name, layers, shape, memory and time; what is unusual in red."""
    members = box.group.members
    many = len(members) > 1
    times = f" ×{box.group.times}" if many and box.group.times else ""
    rows = [f"<B>{label_text(ranged(members, _NAME_WIDTH))}{times}</B>"]
    if many and not box.group.times:
        rows.append(_quiet(counted(len(members), "branch"), 8.5))
    if 2 < len(members) <= 9:
        rows += [
            _quiet(", ".join(shortened(name, 13) for name in members[at : at + 3]), 8)
            for at in range(0, len(members), 3)
        ]
    if box.layers and box.kind != "input":
        rows.append(_quiet(_layers_text(box.layers), 8.5))
    if box.shapes:
        rows.append(_small(_shapes_text(box.shapes)))
    costs = []
    if box.total_bytes and box.kind != "input":
        costs.append(format_bytes(box.total_bytes))
    if box.total_seconds:
        costs.append(format_seconds(box.total_seconds))
    if costs:
        rows.append(_small(" · ".join(costs) + (" in all" if many else "")))
    if box.shares:
        fetched = f", fetches {format_bytes(box.fetched_bytes)}"
        rows.append(
            _quiet(
                f"shares {shortened(', '.join(box.shares), 30)}"
                + (fetched if box.fetched_bytes else ""),
                8.5,
            )
        )
    if box.fallback_why:
        rows.append(_alarm(f"asked {box.asked}"))
    if box.moved_from:
        rows.append(_alarm(f"was on {box.moved_from}"))
    rows += [_alarm(text) for text in box.strayed[:3]]
    if len(box.strayed) > 3:
        rows.append(_alarm(f"and {len(box.strayed) - 3} more"))
    cells = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{cells}</TABLE>>'


def _small(text: str) -> str:
    return f'<FONT POINT-SIZE="9">{label_text(text)}</FONT>'


def _alarm(text: str) -> str:
    short = label_text(shortened(text, 34))
    return f'<FONT POINT-SIZE="9" COLOR="{ALARM}"><B>{short}</B></FONT>'


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


def box_tooltip(box: Box) -> str:
    """Everything about a box, for a pointer that rests on it."""
    names = box.group.members
    lines = [
        clean(ranged(names, 120)) + (f" ({len(names)})" if len(names) > 1 else ""),
        f"{box.kind} on {box.device}, because: {', '.join(box.why)}",
    ]
    if box.fallback_why:
        lines.append(f"asked {box.asked}: {clean(box.fallback_why)}")
    if box.moved_from:
        lines.append(f"was on {box.moved_from}")
    lines += [clean(text) for text in box.strayed]
    if box.shapes:
        lines.append("gives " + "; ".join(shape_text(s) for s in box.shapes[:4]))
    lines.append(
        f"weights {format_bytes(box.weight_bytes)}, "
        f"activations {format_bytes(box.activation_bytes)}"
    )
    spent = [f"{phase} {format_seconds(s)}" for phase, s in box.seconds.items() if s]
    lines += [", ".join(spent)] if spent else []
    lines += [f"declared at {clean(box.where)}"] if box.where else []
    return "\n".join(lines)


def link_label(link: Link) -> str:
    """Write what a link moves in a step, in bytes there and back, and its shape."""
    rows = []
    if link.both_ways:
        total = format_bytes(link.sent_bytes + link.returned_bytes)
        rows.append(f"<B>{total} both ways</B>")
    elif link.sent_bytes or link.returned_bytes:
        words = [format_bytes(link.sent_bytes)] if link.sent_bytes else []
        if link.returned_bytes:
            words.append(f"{format_bytes(link.returned_bytes)} back")
        rows.append(f"<B>{label_text(' + '.join(words))}</B>")
    shapes = list(dict.fromkeys(shape_text(shape) for shape in link.shapes))
    if len(shapes) == 1:
        many = f"{len(link.shapes)} of " if len(link.shapes) > 1 else ""
        rows.append(_quiet(many + shapes[0], 8.5))
    # A blank in front keeps the words off a line that comes down on their left.
    cells = "".join(f"<TR><TD>&#160;{row}</TD></TR>" for row in rows)
    if not cells:
        return ""
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="1">{cells}</TABLE>>'


def link_tooltip(link: Link, shown: Boxes) -> str:
    """Say everything about a link, for a pointer that rests on it."""
    names = {box.id: box.group.members for box in shown.boxes}
    lines = [
        f"{ranged(names[link.source], 60)} → {ranged(names[link.target], 60)}",
        "; ".join(dict.fromkeys(shape_text(shape) for shape in link.shapes[:6])),
        f"{format_bytes(link.bytes)} of tensors",
    ]
    if link.crosses:
        lines.append(
            f"moved per step: {format_bytes(link.sent_bytes)} there, "
            f"{format_bytes(link.returned_bytes)} back"
        )
        if link.seconds:
            lines.append(f"{format_seconds(link.seconds)} on the way")
    return "\n".join(line for line in lines if line)


def is_fetched(link: Link) -> bool:
    """Whether a neighbour on the target's device has fetched all of it already."""
    return link.crosses and not (link.sent_bytes or link.returned_bytes)


def labelled_links(shown: Boxes) -> set[int]:
    """The numbers of the links that bear their bytes: all, or the heaviest of many."""
    crossing = [n for n, link in enumerate(shown.links) if link.crosses]
    crossing.sort(key=lambda n: -shown.links[n].bytes)
    return set(crossing[:_MOST_LABELS])
