"""One self-contained HTML page about a plan: explorer, step, memory, tables.

In the data of the page's script times are whole nanoseconds; parts and devices are
numbers, in the order of their lists.
"""

import os
from collections.abc import Container, Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from splitnet import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.graph import Graph
from splitnet.core.plan import Plan, Strategy
from splitnet.core.serialization import write_bytes
from splitnet.core.timeline import PHASES, Span, Timeline, critical_path
from splitnet.core.timeline import waits as waits_of
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

_Sizes = dict[tuple[int, int], int]
"""Bytes from layer to layer."""

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
    figures = [(one.seconds, one.peak_bytes, one.copied_bytes) for one in every]
    largest = [max(column) or 1 for column in zip(*figures, strict=True)]
    words = (format_seconds, format_bytes, format_bytes)
    return [
        (
            one,
            [
                (say(figure), figure / most)
                for say, figure, most in zip(words, its, largest, strict=True)
            ],
        )
        for one, its in zip(every, figures, strict=True)
    ]


def _errors(planned: Timeline, measured: Timeline) -> list[tuple[str, str, str]]:
    """The parts whose measured time differs most from the planned one."""
    spent: dict[str, list[float]] = {}
    for turn, timeline in enumerate((planned, measured)):
        for task in timeline.tasks:
            both = spent.setdefault(task.part, [0.0, 0.0])
            both[turn] += task.stop - task.start
    worst = sorted(spent, key=lambda part: -abs(spent[part][0] - spent[part][1]))
    return [
        (clean(part), format_seconds(spent[part][0]), format_seconds(spent[part][1]))
        for part in worst[:_MOST_ERRORS]
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
    colors, layers = colors_of(device), _layer_links(plan.graph)
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
    links = []
    for link in links_of(plan, {name: name for name in order}):
        ends = link.source, link.target
        sizes = layers.get(ends, {}) if not link.weights else {}
        back = layers.get(ends[::-1], {}) if not link.weights else {}
        between = [(*pair, size) for pair, size in sizes.items()]
        between += [(*pair[::-1], size) for pair, size in back.items()]
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
            _part(plan, facts[name], device, layers.get((name, name), {}))
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
    plan: Plan, one: PartFacts, device: Mapping[str, int], sizes: _Sizes
) -> dict[str, Any]:
    """A part with its layers; several layers are a tree, with the tensors in it.

    A layer has name, kind, outputs, time of both passes, weights and activations.
    """
    calls = plan.graph.calls_of[one.name]
    layers = []
    for call in calls:
        seconds = plan.costs.forward_seconds(call, plan.cluster[one.device])
        if plan.training:
            seconds += plan.costs.backward_seconds(call, plan.cluster[one.device])
        held = sum(plan.graph.weight[name].bytes for name in call.weights)
        shapes = ", ".join(map(shape_text, call.output_shapes))
        words = clean(call.name), clean(call.kind), shapes
        layers.append((*words, _nanoseconds(seconds), held, call.activation_bytes))
    found: dict[str, Any] = {
        "name": clean(one.name),
        "pin": one.name.encode(errors="replace").decode(),
        "kind": one.kind,
        "device": device[one.device],
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
        found["layer_links"] = [(*ends, size) for ends, size in sizes.items()]
    return found


def _layer_links(graph: Graph) -> dict[tuple[str, str], _Sizes]:
    """Bytes from layer to layer, by their parts; layers by their number in the part.

    A tensor counts for the first layer of a part that reads it.
    """
    at = {call.name: n for its in graph.calls_of.values() for n, call in enumerate(its)}
    found: dict[tuple[str, str], _Sizes] = {}
    counted: set[tuple[str, int, str]] = set()
    for tensor in graph.tensors:
        source, target = graph.call[tensor.source].part, graph.call[tensor.target].part
        sizes = found.setdefault((source, target), {})
        ends = at[tensor.source], at[tensor.target]
        key = tensor.source, tensor.index, target
        sizes[ends] = sizes.get(ends, 0) + (0 if key in counted else tensor.bytes)
        counted.add(key)
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

    def spans(its: Iterable[Span]) -> list[tuple[int, int, int]]:
        number = ((at[id(s.event)] if s.event else -1, s) for s in its)
        return [(n, _nanoseconds(s.start), _nanoseconds(s.stop)) for n, s in number]

    return {
        "tasks": [
            (
                *(number.get(t.part, -1), device[t.device], PHASES.index(t.phase)),
                *(_nanoseconds(t.start), _nanoseconds(t.stop), t.microbatch),
            )
            for t in tasks
        ],
        "copies": [
            (
                *(number[c.source], number[c.target]),
                *(device[c.source_device], device[c.target_device], c.kind, c.bytes),
                *(_nanoseconds(c.start), _nanoseconds(c.stop), c.microbatch),
            )
            for c in copies
        ],
        "path": spans(critical_path(timeline)) if copies else [],
        "waits": [spans(gaps) for gaps in waits_of(timeline).values()],
        "pipelined": any(task.microbatch for task in tasks),
    }


def _memory(plan: Plan, number: Mapping[str, int]) -> list[dict[str, Any]]:
    """Per device, bytes by kind over time and the largest at the fullest moment."""
    place = {one.name: at for at, one in enumerate(plan.cluster)}
    step = evaluator_of(plan).step_of(plan.device_of)
    where = [place[plan.device_of[part]] for part in step.parts]
    run = run_step(step, where)
    found = []
    for one in memory_of(step, where, run):
        kinds = list(zip(one.times.tolist(), one.held.tolist()))
        every = max(1, len(kinds) // _MOST_POINTS)
        runs = (kinds[at : at + every] for at in range(0, len(kinds), every))
        points = [max(its, key=lambda point: sum(point[1])) for its in runs]
        curve = [(_nanoseconds(time), *held) for time, held in points]
        ranked = one.largest(step.parts, _MOST_HELD)
        largest = [(kind, number[part], size) for kind, part, size in ranked]
        found.append({"curve": curve, "largest": largest})
    return found
