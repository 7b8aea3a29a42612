"""The words in a placement diagram, as Graphviz' HTML-like labels and tooltips."""

from collections.abc import Sequence

from splitnet.core.audit import Audit
from splitnet.core.plan import Plan
from splitnet.core.units import format_bytes, format_seconds
from splitnet.view.boxes import Box, Boxes
from splitnet.view.colors import INK, mixed
from splitnet.view.facts import objective_text, verdict_line
from splitnet.view.link_labels import MOST_LABELS, is_fetched
from splitnet.view.words import (
    clean,
    counted,
    label_text,
    quiet_label,
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
]

ALARM = "#b3261e"
THIN = "#8b949e"
_NAME_WIDTH = 30


def header_label(
    plan: Plan,
    shown: Boxes,
    other: Plan | None,
    audit: Audit | None,
    *,
    headed: bool = True,
) -> str:
    """The title, the totals, the verdict and the legend, above the picture."""
    moved = sum(t.bytes for t in plan.transfers)
    transfers = counted(len(plan.transfers), "transfer")
    sent = f"{format_bytes(moved)} between devices in {transfers}"
    facts = [
        f"batch {plan.batch}",
        " ".join(objective_text(plan)),
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
    if not headed:
        rows.clear()
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
        rows.append(quiet_label("not used: " + shortened(", ".join(unused), 90)))
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


def _legend(shown: Boxes, compared: bool) -> str:
    """Explain only what this picture holds."""
    entries = []
    crossing = sum(link.crosses for link in shown.links)
    boxes = shown.boxes
    if crossing:
        few = f", the {MOST_LABELS} largest labelled" if crossing > MOST_LABELS else ""
        entries.append(("▬▬", INK, f"crosses devices (bytes per step{few})"))
    if any(not link.crosses for link in shown.links):
        entries.append(("──", THIN, "stays on its device"))
    if any(is_fetched(link) for link in shown.links):
        entries.append(("- - -", THIN, "reads a copy that is there already"))
    if shown.sharings:
        entries.append(("· · ·", INK, "shares weights"))
    elif any(box.shares for box in boxes):
        entries.append(("shares", INK, "the same weights, held once"))
    if any(box.kind == "weights" for box in boxes):
        entries.append(("cylinder", INK, "weights of towers"))
    if any(box.kind == "merge" for box in boxes):
        entries.append(("hexagon", INK, "merge"))
    if any(box.kind == "input" for box in boxes):
        entries.append(("square corners", INK, "input"))
    if any(box.is_output for box in boxes):
        entries.append(("double edge", INK, "output"))
    if any(box.fallback_why for box in boxes):
        entries.append(("dashed edge", ALARM, "not where it was asked"))
    if any(box.group.times > 1 for box in boxes):
        entries.append(("×n", INK, "n like branches in one box"))
    if any(box.strayed for box in boxes):
        entries.append(("thick edge", ALARM, "ran elsewhere"))
    if compared:
        entries.append(("thick edge", ALARM, "moved"))
    return "&#160;&#160;&#160; ".join(
        f'<FONT POINT-SIZE="9" COLOR="{color}"><B>{sign}</B></FONT> {quiet_label(text)}'
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
    used = plan.timeline.utilization.get(device)
    if used is not None and plan.timeline.seconds:
        words.append(f"busy {used:.0%}")
    name = label_text(device.rpartition("/")[2])
    strong = mixed(color, "#000000", 0.25)
    title = f'<FONT POINT-SIZE="13" COLOR="{strong}"><B>{name}</B></FONT>'
    if not tall:
        return f"<{title}&#160; {quiet_label(' · '.join(words))}>"
    rows = [title, *(quiet_label(word) for word in words)]
    cells = "".join(f'<TR><TD ALIGN="LEFT">{row}</TD></TR>' for row in rows)
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{cells}</TABLE>>'


def box_label(box: Box) -> str:
    """Name, layers, shape, memory and time; what is unusual in red."""
    members = box.group.members
    many = len(members) > 1
    times = f" ×{box.group.times}" if many and box.group.times else ""
    rows = [f"<B>{label_text(ranged(members, _NAME_WIDTH))}{times}</B>"]
    if many and not box.group.times:
        rows.append(quiet_label(counted(len(members), "branch"), 8.5))
    if 2 < len(members) <= 9:
        rows += [
            quiet_label(
                ", ".join(shortened(name, 13) for name in members[at : at + 3]), 8
            )
            for at in range(0, len(members), 3)
        ]
    if box.layers and box.kind != "input":
        rows.append(quiet_label(_layers_text(box.layers), 8.5))
    if box.shapes:
        rows.append(_small(_shapes_text(box.shapes)))
    costs = []
    if box.total_bytes and box.kind != "input":
        costs.append(format_bytes(box.total_bytes))
    if box.total_seconds:
        costs.append(format_seconds(box.total_seconds))
    if costs:
        rows.append(_small(" · ".join(costs) + (" in all" if many else "")))
    rows += _weights_rows(box)
    if box.fallback_why:
        rows.append(_alarm(f"asked {box.asked}"))
    if box.moved_from:
        rows.append(_alarm(f"was on {box.moved_from}"))
    rows += [_alarm(text) for text in box.strayed[:3]]
    if len(box.strayed) > 3:
        rows.append(_alarm(f"and {len(box.strayed) - 3} more"))
    cells = "".join(f"<TR><TD>{row}</TD></TR>" for row in rows)
    return f'<<TABLE BORDER="0" CELLSPACING="0" CELLPADDING="0">{cells}</TABLE>>'


def _weights_rows(box: Box) -> list[str]:
    """What a box uses of weights that live elsewhere."""
    fetched = f"fetches {format_bytes(box.fetched_bytes)}" if box.fetched_bytes else ""
    if box.shares:
        names = shortened(", ".join(box.shares), 30)
        return [quiet_label(f"shares {names}{', ' + fetched if fetched else ''}", 8.5)]
    return [quiet_label(f"{fetched} of weights", 8.5)] if fetched else []


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
