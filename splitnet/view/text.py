"""Plain text for terminals: tables of plans, clusters and audits, timelines as text.

Nothing here colours or asks a terminal for its width, so the same value gives the same
text, which tests keep in golden files.
"""

import textwrap
from collections.abc import Iterable, Mapping, Sequence

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Timeline
from splitnet.core.units import format_bytes, format_count, format_seconds
from splitnet.view.facts import PartFacts, part_facts
from splitnet.view.words import bytes_or_dash, clean, counted, padded, shortened, width

__all__ = ["chart", "columns", "table"]

_WIDTH = 100
_MOST_ROWS = 20


def table(thing: Plan | Cluster) -> str:
    """Write a plan or a cluster as text of at most 100 columns; print nothing.

    A plan's table lists each branch with its device, the reason, memory in bytes and
    seconds per step, then transfers, fallbacks, memory per device and the verdict.
    """
    if isinstance(thing, Cluster):
        return _cluster_table(thing)
    return _plan_table(thing)


def columns(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Sequence[int] = (),
    total: Sequence[str] = (),
    widest: Mapping[int, int] | None = None,
) -> str:
    """Set rows in columns under a head with a rule; no line ends in a space.

    Args:
        head: a word per column.
        rows: a text per column.
        right: columns to set flush right, by number.
        total: a last row under a rule of its own.
        widest: the most that a column may take; longer texts lose their middle.
    """
    limits = widest or {}
    body = [
        [shortened(text, limits.get(n, _WIDTH)) for n, text in enumerate(row)]
        for row in rows
    ]
    lines = [list(head), *body, *([list(total)] if total else [])]
    sizes = [max(width(line[n]) for line in lines) for n in range(len(head))]

    def set_line(line: Sequence[str]) -> str:
        return "  ".join(
            padded(text, sizes[n], n in right) for n, text in enumerate(line)
        ).rstrip()

    rule = "─" * (sum(sizes) + 2 * (len(sizes) - 1))
    text = [set_line(lines[0]), rule, *(set_line(line) for line in body)]
    if total:
        text += [rule, set_line(lines[-1])]
    return "\n".join(text)


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
    kind = "training" if plan.training else "inference"
    words = f"batch {plan.batch}, {kind} step {format_seconds(plan.timeline.seconds)}"
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
    return f"asked {one.fallback.asked}" if one.fallback else one.why


def _devices_table(plan: Plan) -> str:
    kinds = ("weights", "gradients", "slots", "activations", "transfers", "workspace")
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
                f"{1 - plan.timeline.idle.get(device.name, 1.0):.0%}",
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


_SHORT = {"activations": "activ.", "gradients": "grads", "transfers": "transit"}


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
        why, *more = textwrap.wrap(clean(one.why), 46) or [""]
        rows.append((one.part, one.asked, one.got, why))
        rows += [("", "", "", line) for line in more]
    head = ("fallback", "asked", "got", "why")
    return columns(head, rows, widest={0: 22, 1: 14, 2: 12})


def _verdict(plan: Plan) -> str:
    """Whether it pays, what cannot be beaten, and advice; wrapped to the width."""
    lines = [f"{plan.objective}, by {plan.strategy}", *str(plan.verdict).split("\n")]
    return "\n".join(
        textwrap.fill(line, _WIDTH, subsequent_indent="    ") for line in lines
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


def chart(timeline: Timeline, *, width: int = 72) -> str:
    """Write a timeline as text: a lane per device, a letter per stretch of time.

    F is forward, B backward, U update; a dot is waiting; `~` marks the devices that a
    transfer leaves or reaches while they wait. Times are seconds since the step began.
    """
    whole = timeline.seconds
    if not whole:
        return "nothing runs"
    names = max(len(device) for device in timeline.devices)
    lines = []
    for device in timeline.devices:
        lane = _lane(timeline, device, width)
        idle = timeline.idle[device]
        lines.append(f"{device.ljust(names)}  {lane}  {1 - idle:>4.0%} busy")
    scale = format_seconds(whole)
    lines.append(" " * names + "  0" + scale.rjust(width - 1))
    lines.append("F forward  B backward  U update  ~ transfer  . waiting")
    return "\n".join(lines)


def _lane(timeline: Timeline, device: str, size: int) -> str:
    """What a device does most in each of `size` equal stretches of the step."""
    letters = dict(zip(PHASES, "FBU", strict=True))
    spent: list[dict[str, float]] = [{} for _ in range(size)]
    stretch = timeline.seconds / size
    for task in timeline.tasks:
        if task.device == device:
            _spread(spent, letters[task.phase], task.start, task.stop, stretch)
    for copy in timeline.copies:
        if device in (copy.source_device, copy.target_device):
            _spread(spent, "~", copy.start, copy.stop, stretch)
    lane = []
    for cell in spent:
        work = {letter: cell[letter] for letter in "FBU" if letter in cell}
        waits = sum(work.values()) < stretch / 2
        if waits and "~" in cell:
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
