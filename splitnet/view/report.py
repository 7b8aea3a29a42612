"""One self-contained HTML page about a plan: explorer, step, memory, tables.

In the data of the page's script times are whole nanoseconds; parts and devices are
numbers, in the order of their lists.
"""

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from splitnet import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.plan import Plan, Strategy
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import PHASES, Span, Timeline, critical_path, waits
from splitnet.planner.analysis import reason_text
from splitnet.planner.evaluate import evaluator_of
from splitnet.planner.what_if import heaviest_moves
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.view.diagram import (
    Block,
    block_of,
    fold,
    links_of,
    look_of,
    running_order,
    tensor_sizes,
)
from splitnet.view.facts import (
    PartFacts,
    algorithm_text,
    bottleneck_text,
    fullest_device,
    objective_text,
    part_facts,
    transfer_sums,
    verdict_lines,
)
from splitnet.view.style import clean, colors_of, shape_text
from splitnet.view.tables import PAGE, audit_grids, plan_grids
from splitnet.view.timeline import path_text

_MOST_OPEN = 24  # boxes at first
_MOST_POINTS = 400  # of a memory curve
_MOST_HELD = 5  # tensors at the peak
_MOST_LISTED = 4  # devices without a matrix of transfers
_MOST_ERRORS = 5


def report(
    thing: Plan | Audit,
    path: str | os.PathLike[str],
    *,
    measured: Timeline | None = None,
) -> Path:
    """Write one self-contained HTML page about a plan, completely or not at all.

    Args:
        thing: a plan, or an audit, whose plan and findings are then shown.
        path: the file, usually "report.html".
        measured: the step as it ran; drawn below the planned one, on the same scale.

    Raises:
        SplitnetError: the thing is neither a plan nor an audit, the file cannot be
            written, or Graphviz is missing.
    """
    page = report_html(thing, measured=measured)
    write_bytes(page.encode(), Path(path), "report")
    return Path(path)


def report_html(thing: Plan | Audit, *, measured: Timeline | None = None) -> str:
    """Make the page of `report` as text, and write no file."""
    # Jinja takes longer to import than the rest of the view, and only pages need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
    environment = Environment(
        loader=PackageLoader("splitnet.view"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    used = set(plan.device_of.values())
    fullest, _ = fullest_device(plan)
    script = files("splitnet.view").joinpath("vendor", "d3.min.js")
    return environment.get_template("report.html.j2").render(
        version=__version__,
        name=clean(plan.graph.name),
        verdict=[
            clean(line)
            for line in (*verdict_lines(plan), bottleneck_text(plan))
            if not line.startswith("strategies: ")  # they are bars
        ],
        worth=plan.verdict is None or plan.verdict.worth_distributing,
        figures=[
            objective_text(plan),
            ("batch", str(plan.batch)),
            ("parts", str(len(plan.placements))),
            ("devices", f"{len(used)} of {len(plan.cluster)}"),
            ("transferred per step", format_bytes(plan.transfer_bytes)),
            (f"memory peak: {fullest}", format_bytes(plan.memory[fullest].total)),
        ],
        idle=", ".join(d.name for d in plan.cluster if d.name not in used),
        strategies=_strategies(plan),
        path=path_text(critical_path(plan.timeline)) if plan.transfers else "",
        errors=_errors(plan.timeline, measured) if measured is not None else [],
        matrix=_matrix(plan),
        measured=measured is not None,
        algorithm=algorithm_text(plan),
        colors=colors_of(device.name for device in plan.cluster),
        grids=plan_grids(plan, PAGE),
        audit=audit,
        audited=audit_grids(audit) if audit is not None else {},
        clean=clean,
        data=Markup(explorer_json(plan, measured)),
        d3=Markup(script.read_text(encoding="utf-8")),
    )


def _strategies(plan: Plan) -> list[tuple[Strategy, list[tuple[str, float]]]]:
    """Each strategy with its time, memory and bytes, as shares of the largest."""
    compared = plan.verdict.strategies if plan.verdict is not None else None
    every = compared.all if compared is not None else ()
    columns = [(x.seconds, x.peak_bytes, x.copied_bytes) for x in every]
    most = [max(column) or 1 for column in zip(*columns)]
    says = format_seconds, format_bytes, format_bytes
    return [
        (one, [(say(n), n / top) for say, n, top in zip(says, figures, most)])
        for one, figures in zip(every, columns)
    ]


def _errors(planned: Timeline, measured: Timeline) -> list[tuple[str, str, str]]:
    """The parts whose measured time differs most from the planned one."""
    spent: dict[str, list[float]] = {}
    for turn, timeline in enumerate((planned, measured)):
        for task in timeline.tasks:
            spent.setdefault(task.part, [0.0, 0.0])[turn] += task.stop - task.start
    worst = sorted(spent.items(), key=lambda item: -abs(item[1][0] - item[1][1]))
    return [
        (clean(part), format_seconds(expected), format_seconds(taken))
        for part, (expected, taken) in worst[:_MOST_ERRORS]
    ]


def _matrix(plan: Plan) -> dict[str, list[tuple[str, float]]]:
    """Bytes from device to device in a step, each with its share of the largest.

    Empty for up to four devices: a list of transfers says as much.
    """
    sums = transfer_sums(plan, "source_device", "target_device")
    used = [d.name for d in plan.cluster if any(d.name in ends for ends in sums)]
    if len(used) <= _MOST_LISTED:
        return {}
    most = max(size for _, size, _ in sums.values()) or 1
    cells = {
        ends: (format_bytes(size), size / most) for ends, (_, size, _) in sums.items()
    }
    return {a: [cells.get((a, b), ("", 0.0)) for b in used] for a in used}


def explorer_json(plan: Plan, measured: Timeline | None = None) -> str:
    """The data of the page's script, as JSON that is safe inside HTML."""
    facts = part_facts(plan)
    order = running_order(plan, facts)
    number = {name: at for at, name in enumerate(order)}
    device = {one.name: at for at, one in enumerate(plan.cluster)}
    colors = colors_of(device)
    moves = {
        str(number[part]): [
            (
                *(device[a.device], a.value, int(a.fits)),
                *(a.transfer_bytes, a.held_bytes, int(a.estimated)),
            )
            for a in its
        ]
        for part, its in heaviest_moves(plan).items()
    }
    look = {name: look_of(facts[name]) for name in order}
    place = {name: facts[name].device for name in order}
    shown = {block.members for block in fold(order, place, look, most=_MOST_OPEN)}
    lanes: dict[str, list[str]] = {}
    for name in order:
        lanes.setdefault(place[name], []).append(name)
    at = {c.name: n for its in plan.graph.calls_of.values() for n, c in enumerate(its)}
    layers: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for (a, b), size in tensor_sizes(plan.graph).items():
        ends = plan.graph.call[a].part, plan.graph.call[b].part
        layers.setdefault(ends, []).append((at[a], at[b], size))
    links = []
    for link in links_of(plan, {name: name for name in order}):
        ends = link.source, link.target
        back = [(b, a, size) for a, b, size in layers.get(ends[::-1], ())]
        between = [] if link.weights else [*layers.get(ends, ()), *back]
        copied = link.bytes, link.sent_bytes, link.returned_bytes
        links.append((*map(number.get, ends), *copied, int(link.weights), between))
    found: dict[str, Any] = {
        "objective": plan.objective,
        "value": plan.value,
        "seconds": _nanoseconds(plan.seconds),
        "transferred": plan.transfer_bytes,
        "phases": PHASES,
        "devices": [
            {
                "name": clean(one.name),
                "host": clean(one.host or ""),
                "color": colors[one.name],
                "limit": one.memory_bytes,
                "held": plan.memory[one.name].total,
                "busy": plan.timeline.utilization[one.name],
            }
            for one in plan.cluster
        ],
        "parts": [
            {"device": device[place[name]]}
            | _part(plan, facts[name], layers.get((name, name), []))
            for name in order
        ],
        "blocks": [_tree(block_of(its, look), number, shown) for its in lanes.values()],
        "links": links,
        "moves": moves,
        "planned": _timeline(plan.timeline, number, device),
        "memory": _memory(plan, number),
    }
    if measured is not None:
        found["measured"] = _timeline(measured, number, device)
    return msgspec.json.encode(found).decode().replace("<", "\\u003c")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _part(
    plan: Plan, one: PartFacts, links: Sequence[tuple[int, int, int]]
) -> dict[str, Any]:
    """A part with its layers; several layers are a tree, with the tensors in it.

    A layer has name, kind, outputs, time of both passes, weights and activations.
    """
    calls, device = plan.graph.calls_of[one.name], plan.cluster[one.device]
    layers = []
    for call in calls:
        seconds = plan.costs.forward_seconds(call, device)
        if plan.training:
            seconds += plan.costs.backward_seconds(call, device)
        held = sum(plan.graph.weight[name].bytes for name in call.weights)
        shapes = ", ".join(map(shape_text, call.output_shapes))
        words = clean(call.name), clean(call.kind), shapes
        layers.append((*words, _nanoseconds(seconds), held, call.activation_bytes))
    found: dict[str, Any] = {
        "name": clean(one.name),
        "pin": one.name.encode(errors="replace").decode(),
        "kind": one.kind,
        "reason": clean(reason_text(plan, plan[one.name])),
        "requested": one.fallback.requested if one.fallback else "",
        "layers": layers,
        "outputs": [shape_text(shape) for shape in one.shapes],
        "weights": one.weight_bytes,
        "saved": one.activation_bytes,
        "times": [_nanoseconds(one.seconds.get(phase, 0.0)) for phase in PHASES],
        "output": one.is_output,
        "where": clean(one.where),
    }
    if len(calls) > 1:
        number = {call.name: at for at, call in enumerate(calls)}
        look = {call.name: (call.kind, call.output_shapes) for call in calls}
        found["tree"] = _tree(block_of(list(number), look), number, set())
        found["layer_links"] = links
    return found


def _tree(
    block: Block, number: Mapping[str, int], closed: Container[tuple[str, ...]]
) -> Any:
    """A block with its children; a leaf is the number of its member."""
    if not block.children:
        return number[block.members[0]]
    return {
        "times": block.times,
        "open": block.members not in closed,
        "inside": [_tree(child, number, closed) for child in block.children],
    }


def _timeline(
    timeline: Timeline, number: Mapping[str, int], device: Mapping[str, int]
) -> dict[str, Any]:
    """Tasks and copies, the critical path through them, and each device's gaps."""
    tasks, copies = timeline.tasks, timeline.copies
    at = {id(event): n for n, event in enumerate((*tasks, *copies))}

    def times(one: Any) -> tuple[int, int]:
        return _nanoseconds(one.start), _nanoseconds(one.stop)

    def spans(its: Iterable[Span]) -> list[tuple[int, int, int]]:
        return [(at[id(s.event)] if s.event else -1, *times(s)) for s in its]

    return {
        "tasks": [
            (
                *(number.get(t.part, -1), device[t.device], PHASES.index(t.phase)),
                *(*times(t), t.microbatch),
            )
            for t in tasks
        ],
        "copies": [
            (
                *(number[c.source], number[c.target]),
                *(device[c.source_device], device[c.target_device], c.kind, c.bytes),
                *(*times(c), c.microbatch),
            )
            for c in copies
        ],
        "path": spans(critical_path(timeline)) if copies else [],
        "waits": [spans(gaps) for gaps in waits(timeline).values()],
        "pipelined": any(task.microbatch for task in tasks),
    }


def _memory(plan: Plan, number: Mapping[str, int]) -> list[dict[str, Any]]:
    """Per device, bytes by kind over time and the largest at the fullest moment."""
    place = {one.name: at for at, one in enumerate(plan.cluster)}
    step = evaluator_of(plan).step_of(plan.device_of)
    where = [place[plan.device_of[part]] for part in step.parts]
    found = []
    for one in memory_of(step, where, run_step(step, where)):
        kinds = list(zip(one.times.tolist(), one.held.tolist()))
        every = max(1, len(kinds) // _MOST_POINTS)
        runs = (kinds[at : at + every] for at in range(0, len(kinds), every))
        points = [max(its, key=lambda point: sum(point[1])) for its in runs]
        curve = [(_nanoseconds(time), *held) for time, held in points]
        ranked = one.largest(step.parts, _MOST_HELD)
        largest = [(kind, number[part], size) for kind, part, size in ranked]
        found.append({"curve": curve, "largest": largest})
    return found
