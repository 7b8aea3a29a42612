"""The words in a placement diagram: header, legend, lane titles, boxes, tooltips."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan
from splitnet.view.diagram import Box, Diagram, DiagramEdge
from splitnet.view.facts import bottleneck_text, objective_text, verdict_lines
from splitnet.view.style import (
    ALARM,
    INK,
    QUIET,
    THIN,
    Line,
    Row,
    Shape,
    clean,
    counted,
    mixed,
    percent,
    ranged,
    shape_text,
    shortened,
    size_of,
)

__all__ = [
    "box_rows",
    "box_tooltip",
    "header_rows",
    "lane_rows",
    "layers_text",
    "link_text",
    "link_tooltip",
]


def header_rows(
    plan: Plan,
    shown: Diagram,
    width: float,
    *,
    other: Plan | None,
    audit: Audit | None,
) -> list[Row]:
    """The title, the totals and the verdict, then the legend."""
    rows = _title_rows(plan, width)
    if audit is not None:
        found = counted(len(audit.findings), "finding")
        said = "all as planned" if audit.ok else f"{found} not as planned"
        rows.append(
            (Line(f"audit: {said}", 11, INK if audit.ok else ALARM, bold=True),)
        )
    if other is not None:
        rows.append((Line(_comparison_text(plan, other), 11, bold=True),))
    used = {device for devices in shown.lanes.values() for device in devices}
    unused = ", ".join(d.name for d in plan.cluster if d.name not in used)
    notes = [f"not used: {shortened(unused, 90)}"] if unused else []
    if shown.left_out:
        notes.append(
            f"the {len(shown.links)} largest of {len(shown.links) + shown.left_out} "
            "lines are drawn"
        )
    rows += [(Line(note, 9, QUIET),) for note in notes]
    return rows + _legend(shown, width, compared=other is not None)


def _title_rows(plan: Plan, width: float) -> list[Row]:
    moved = format_bytes(plan.transfer_bytes)
    transfers = counted(len(plan.transfers), "transfer")
    facts = [
        f"batch {plan.batch}",
        " ".join(objective_text(plan)),
        f"{moved} between devices in {transfers}" if plan.transfers else "no transfers",
    ]
    if plan.fallbacks:
        facts.append(counted(len(plan.fallbacks), "fallback"))
    fits = plan.verdict is None or not plan.verdict.overfull
    verdict = shortened(verdict_lines(plan)[0], int(width / 5))
    return [
        (Line(shortened(plan.graph.name, int(width / 9)), 15, INK, bold=True),),
        (Line(" · ".join(facts), 11),),
        (Line(verdict, 11, INK if fits else ALARM, bold=not fits),),
        (Line(bottleneck_text(plan), 11),),
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


def _legend(shown: Diagram, width: float, *, compared: bool) -> list[Row]:
    """Explain the signs that this picture holds, and no others."""
    boxes, links = shown.boxes, shown.links
    inside = any(any(box.moved) for box in boxes)
    where = "in, out: bytes per step" if inside else "bytes per step"
    kinds = {box.facts.kind for box in boxes}
    signs = [
        (any(x.moved_bytes for x in links), "▬▬", INK, f"between devices ({where})"),
        (any(x.both_ways for x in links), "◄►", INK, "both ways"),
        (any(not x.crosses for x in links), "──", THIN, "within a device"),
        (
            any(x.crosses and not x.moved_bytes for x in links),
            "- - -",
            THIN,
            "reuses a copy",
        ),
        (any(x.weights for x in links), "····", INK, "weights, and gradients back"),
        (any(b.shares for b in boxes), "shares", INK, "weights stored once"),
        ("weights" in kinds, "cylinder", INK, "weights of towers"),
        ("merge" in kinds, "cut corners", INK, "merge"),
        ("input" in kinds, "square corners", INK, "input"),
        (any(b.facts.is_output for b in boxes), "double edge", INK, "output"),
        (any(b.facts.fallback for b in boxes), "dashed edge", ALARM, "fallback"),
        (any(b.group.times > 1 for b in boxes), "×n", INK, "n equal branches"),
        (any(b.strayed for b in boxes), "thick edge", ALARM, "ran elsewhere"),
        (compared, "thick edge", ALARM, "moved"),
    ]
    rows: list[Row] = [(Line(" ", 4),), ()]
    for holds, sign, color, text in signs:
        entry = Line(sign, 9, color, bold=True), Line(f"  {text}      ", 9, QUIET)
        if holds and size_of([(*rows[-1], *entry)])[0] > width:
            rows.append(())
        rows[-1] += entry if holds else ()
    return [row for row in rows if row]


def lane_rows(plan: Plan, devices: Sequence[str], color: str) -> list[Row]:
    """A lane's device, its memory peak against its limit, its utilization.

    Of several devices the highest figures.
    """
    names = [device.rpartition("/")[2] for device in devices]
    strong = mixed(color, "#000000", 0.25)
    rows: list[Row] = [(Line(clean(ranged(names, 30)), 13, strong, bold=True),)]
    many = len(devices) > 1
    if many:
        rows.append((Line(f"{len(devices)} devices, each at most", 9, QUIET),))
    fullest = plan.cluster[max(devices, key=lambda d: plan.memory[d].total)]
    held = plan.memory[fullest.name].total
    words = f"{format_bytes(held)} of {format_bytes(fullest.memory_bytes)}"
    over = held > fullest.memory_bytes
    words += ": too much" if over else ""
    rows.append((Line(words, 9, ALARM if over else QUIET, bold=over),))
    if fullest.stand_in:
        target = "CPUs" if many else fullest.target.removeprefix("/device:")
        rows.append((Line(f"stand-in on {target}", 9, QUIET),))
    used = max(plan.timeline.utilization[device] for device in devices)
    rows.append((Line(f"utilization {percent(used)}", 9, QUIET),))
    return rows


def box_rows(box: Box) -> list[Row]:
    """Name, layers, shape, memory and time; what is unusual in red."""
    members, facts = box.group.members, box.facts
    many = len(members) > 1
    times = f" ×{box.group.times}" if many and box.group.times else ""
    rows: list[Row] = [(Line(box.name + times, 10, bold=True),)]
    small: list[str] = []
    if many and not box.group.times:
        small.append(counted(len(members), "branch"))
    if not box.group.times and len(members) <= 6 and max(map(len, members)) <= 13:
        rows_of_three = range(0, len(members), 3)
        small += [", ".join(map(clean, members[at : at + 3])) for at in rows_of_three]
    if facts.layers and facts.kind != "input":
        small.append(layers_text(facts.layers))
    rows += [(Line(text, 8.5, QUIET),) for text in small]
    if shapes := _unique_shapes(facts.shapes):
        more = f" + {len(shapes) - 2} more" if len(shapes) > 2 else ""
        rows.append((Line(shortened(", ".join(shapes[:2]), 40) + more),))
    costs = []
    if facts.total_bytes and facts.kind != "input":
        costs.append(format_bytes(facts.total_bytes))
    if facts.total_seconds:
        costs.append(format_seconds(facts.total_seconds))
    if costs:
        rows.append((Line(" · ".join(costs) + (" in total" if many else "")),))
    if any(box.moved):
        ways = zip(("in", "out"), box.moved, strict=True)
        words = [f"{way} {format_bytes(count)}" for way, count in ways if count]
        rows.append((Line(" · ".join(words)),))
    if box.shares:
        shared = f"shares {shortened(', '.join(box.shares), 30)}"
        rows.append((Line(shared, 8.5, QUIET),))
    if any(box.weights):
        rows.append((Line(f"weights {_there_and_back(*box.weights)}", 8.5, QUIET),))
    alarms = [f"requested {facts.fallback.requested}"] if facts.fallback else []
    alarms += [f"was on {box.moved_from}"] if box.moved_from else []
    alarms += box.strayed[:3]
    if len(box.strayed) > 3:
        alarms.append(f"and {len(box.strayed) - 3} more")
    rows += [(Line(shortened(text, 34), 9, ALARM, bold=True),) for text in alarms]
    return rows


def box_tooltip(box: Box) -> str:
    """The tooltip of a box: everything that is known about it."""
    facts, names = box.facts, box.group.members
    lines = [
        ranged(names, 120) + (f" ({len(names)})" if len(names) > 1 else ""),
        f"{facts.kind} on {facts.device}, reason: {', '.join(box.reasons)}",
    ]
    if facts.fallback:
        fell = facts.fallback
        lines.append(f"requested {fell.requested}: {clean(fell.reason)}")
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


def link_text(link: DiagramEdge) -> str:
    """What a link moves between devices in a step, there and back."""
    if link.both_ways:
        return f"{format_bytes(link.moved_bytes)} both ways"
    return _there_and_back(link.sent_bytes, link.returned_bytes)


def _there_and_back(sent: int, returned: int) -> str:
    if sent == returned:
        return f"{format_bytes(sent)} each way"
    words = [format_bytes(sent)] if sent else []
    return " + ".join(words + [f"{format_bytes(returned)} back"] * (returned > 0))


def link_tooltip(link: DiagramEdge, name_of: Mapping[str, str]) -> str:
    """The tooltip of a link: everything that is known about it."""
    lines = [f"{name_of[link.source]} → {name_of[link.target]}"]
    if link.weights:
        lines.append("weights that are stored once")
    else:
        lines.append("; ".join(_unique_shapes(link.shapes[:6])))
        lines.append(f"{format_bytes(link.bytes)} of tensors")
    if link.moved_bytes:
        lines.append(
            f"copied per step: {format_bytes(link.sent_bytes)} there, "
            f"{format_bytes(link.returned_bytes)} back"
        )
        if link.seconds:
            lines.append(f"copying takes {format_seconds(link.seconds)}")
    elif link.reuses:
        lines.append("reads a copy that is already on this device")
    return "\n".join(line for line in lines if line)


def layers_text(layers: Sequence[str]) -> str:
    """The kinds of layers in a row, equal neighbours counted."""
    runs = [(name, len(list(its))) for name, its in groupby(layers)]
    texts = [f"{count} {name}" if count > 1 else name for name, count in runs]
    if len(texts) > 4:
        texts = [*texts[:2], "…", texts[-1]]
    return shortened(" → ".join(texts), 44)


def _unique_shapes(shapes: Iterable[Shape]) -> list[str]:
    return list(dict.fromkeys(shape_text(shape) for shape in shapes))
