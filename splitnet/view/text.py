"""Plain text for terminals: tables of plans, clusters and audits, timelines as text.

Nothing here colours or asks a terminal for its width, so the same value gives the same
text, which tests keep in golden files.
"""

import textwrap
from collections.abc import Sequence

from splitnet.core.audit import Audit
from splitnet.core.cluster import Cluster
from splitnet.core.errors import SplitnetError
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES
from splitnet.core.units import format_bytes, format_count, format_seconds
from splitnet.view.chart import chart
from splitnet.view.columns import WIDTH, columns
from splitnet.view.facts import (
    PartFacts,
    audit_row,
    objective_text,
    part_facts,
    search_text,
)
from splitnet.view.words import bytes_or_dash, clean, counted, shortened

__all__ = ["chart", "table"]

_MOST_ROWS = 20


def table(thing: Plan | Audit | Cluster) -> str:
    """Write a plan, an audit or a cluster as text of 100 columns; print nothing.

    A plan's table lists each branch with its device, the reason, memory in bytes and
    seconds per step, then transfers, fallbacks, memory per device and the verdict.
    """
    if isinstance(thing, Cluster):
        return _cluster_table(thing)
    if isinstance(thing, Audit):
        return _audit_table(thing)
    if isinstance(thing, Plan):
        return _plan_table(thing)
    raise SplitnetError(
        f"there is no table of a {type(thing).__name__}. Give a plan, an audit or a "
        "cluster."
    )


def _plan_table(plan: Plan) -> str:
    blocks = [
        _title(plan),
        _parts_table(plan, list(part_facts(plan).values())),
        _devices_table(plan),
        _transfers_table(plan),
        _fallbacks_table(plan),
        _verdict(plan),
    ]
    return "\n\n".join(block for block in blocks if block)


def _title(plan: Plan) -> str:
    words = f"batch {plan.batch}, {' '.join(objective_text(plan))}"
    return f"{shortened(plan.graph.name, 60)}: {words}"


def _parts_table(plan: Plan, facts: Sequence[PartFacts]) -> str:
    rows = [
        (
            one.name,
            one.device,
            _why(one),
            bytes_or_dash(one.weight_bytes),
            bytes_or_dash(one.activation_bytes),
            *(_seconds(one.seconds.get(phase, 0.0)) for phase in _phases(plan)),
        )
        for one in facts
    ]
    total = (
        counted(len(facts), "part"),
        counted(len({one.device for one in facts}), "device"),
        "",
        bytes_or_dash(sum(one.weight_bytes for one in facts)),
        bytes_or_dash(sum(one.activation_bytes for one in facts)),
        *(
            _seconds(sum(one.seconds.get(phase, 0.0) for one in facts))
            for phase in _phases(plan)
        ),
    )
    head = ("branch", "device", "why", "weights", "activations", *_phases(plan))
    return columns(
        head,
        rows,
        right=range(3, len(head)),
        total=total,
        widest={0: 26, 1: 14, 2: 16},
    )


def _phases(plan: Plan) -> tuple[str, ...]:
    return PHASES if plan.training else PHASES[:1]


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds else "-"


def _why(one: PartFacts) -> str:
    return f"asked {one.fallback.requested}" if one.fallback else one.reason


def _devices_table(plan: Plan) -> str:
    kinds = (
        "weights",
        "gradients",
        "slots",
        "activations",
        "receive_buffers",
        "workspace",
    )
    rows = []
    for device in plan.cluster:
        memory = plan.memory.get(device.name)
        counts = [getattr(memory, kind) if memory else 0 for kind in kinds]
        held = sum(counts)
        over = "!" if held > device.memory_bytes else ""
        rows.append(
            (
                device.name + ("*" if device.stand_in else ""),
                *(bytes_or_dash(count) for count in counts),
                bytes_or_dash(held) + over,
                format_bytes(device.memory_bytes),
                f"{plan.timeline.utilization.get(device.name, 0.0):.0%}",
            )
        )
    text = columns(
        ("device", *(_SHORT.get(k, k) for k in kinds), "total", "limit", "busy"),
        rows,
        right=range(1, 10),
        widest={0: 14},
    )
    if any(device.stand_in for device in plan.cluster):
        text += "\n* a stand-in: it proves placement, not speed or memory"
    if any(row[7].endswith("!") for row in rows):
        text += "\n! more than the device has"
    return text


_SHORT = {"activations": "activ.", "gradients": "grads", "receive_buffers": "buffers"}


def _transfers_table(plan: Plan) -> str:
    """Bytes per pair of devices and kind, the heaviest first."""
    if not plan.transfers:
        return "nothing moves between devices"
    sums: dict[tuple[str, str, str], tuple[int, int, float]] = {}
    for t in plan.transfers:
        key = (t.source_device, t.target_device, t.kind)
        count, size, spent = sums.get(key, (0, 0, 0.0))
        sums[key] = (count + 1, size + t.bytes, spent + t.seconds)
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    rows = [
        (f"{a} -> {b}", kind, str(count), format_bytes(size), format_seconds(spent))
        for (a, b, kind), (count, size, spent) in ordered[:_MOST_ROWS]
    ]
    total = (
        "in a step" + (f" ({len(ordered)} roads)" if len(ordered) > len(rows) else ""),
        "",
        str(len(plan.transfers)),
        format_bytes(sum(t.bytes for t in plan.transfers)),
        format_seconds(sum(t.seconds for t in plan.transfers)),
    )
    head = ("transfer", "kind", "times", "bytes", "seconds")
    return columns(head, rows, right=(2, 3, 4), total=total, widest={0: 32})


def _fallbacks_table(plan: Plan) -> str:
    if not plan.fallbacks:
        return ""
    rows = []
    for one in plan.fallbacks:
        why, *more = textwrap.wrap(clean(one.reason), 46) or [""]
        rows.append((one.part, one.requested, one.assigned, why))
        rows += [("", "", "", line) for line in more]
    head = ("fallback", "asked", "got", "why")
    return columns(head, rows, widest={0: 22, 1: 14, 2: 12})


def _verdict(plan: Plan) -> str:
    """Whether it pays, what cannot be beaten, and advice; wrapped to the width."""
    lines = [search_text(plan), *str(plan.verdict).split("\n")]
    return "\n".join(
        textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines
    )


def _cluster_table(cluster: Cluster) -> str:
    rows = []
    for device in cluster:
        here = device.name if not device.stand_in else f"{device.name}*"
        rows.append(
            (
                here,
                device.target,
                format_bytes(device.memory_bytes),
                f"{format_count(device.flops_per_second)}FLOP/s",
                f"{format_count(device.bytes_per_second)}B/s",
                format_seconds(device.call_seconds),
            )
        )
    head = ("device", "TensorFlow's name", "memory", "speed", "bandwidth", "per call")
    text = columns(head, rows, right=(2, 3, 4, 5), widest={0: 20, 1: 36})
    links = [
        (
            f"{link.source} -> {link.target}",
            f"{format_count(link.bytes_per_second)}B/s",
            format_seconds(link.latency_seconds),
        )
        for link in cluster.links[:_MOST_ROWS]
    ]
    if links:
        roads = columns(("link", "bandwidth", "latency"), links, right=(1, 2))
        text += "\n\n" + roads.replace("* -> *", "all   ")
    if any(device.stand_in for device in cluster):
        text += "\n\n* a stand-in: it proves placement, not speed or memory"
    return text


def _audit_table(audit: Audit) -> str:
    """Where each part was planned and seen, what moved, and what strayed."""
    verdict = "all as planned" if audit.ok else f"{len(audit.findings)} not as planned"
    head = ("branch", "planned", "forward", "backward", "variables", "slots", "updates")
    blocks = [
        f"audit of {shortened(audit.plan.graph.name, 60)}: {verdict}",
        columns(
            (*head, "ops"),
            [audit_row(row) for row in audit.rows],
            right=(7,),
            widest={0: 22, **dict.fromkeys(range(1, 7), 14)},
        ),
    ]
    if audit.moved:
        rows = [
            (f"{a} -> {b}", kind, format_bytes(planned), format_bytes(actual))
            for (a, b, kind), (planned, actual) in audit.moved.items()
        ]
        roads = ("transfer", "kind", "planned", "actual")
        blocks.append(columns(roads, rows, right=(2, 3), widest={0: 32}))
    blocks.append(
        "\n".join(
            textwrap.fill(f"! {clean(f.text)}", WIDTH, subsequent_indent="  ")
            for f in audit.findings
        )
    )
    blocks.append(
        "\n".join(
            textwrap.fill(f"note: {clean(n)}", WIDTH, subsequent_indent="  ")
            for n in audit.notes
        )
    )
    return "\n\n".join(block for block in blocks if block)
