"""One self-contained HTML page about a plan: explorer, step, memory, tables.

In the data of the page's script times are seconds; parts are numbers, in running order.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec

from splitnet import __version__
from splitnet.core.audit import Audit
from splitnet.core.errors import format_bytes, format_seconds
from splitnet.core.graph import grouped
from splitnet.core.plan import Plan, Strategy
from splitnet.core.serialization import AnyPath, write_bytes
from splitnet.core.timeline import Copy, Span, Task, Timeline
from splitnet.planner.analysis import heaviest_moves, reason_text
from splitnet.planner.evaluate import evaluator_of
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_of
from splitnet.view import diagram, facts
from splitnet.view.style import clean, colors_of
from splitnet.view.tables import PAGE, audit_grids, plan_grids
from splitnet.view.timeline import path_text

_MOST_OPEN = 24  # boxes at first
_MOST_POINTS = 400  # of a memory curve
_MOST_HELD = 5  # tensors at the peak
_MOST_LISTED = 4  # devices without a matrix of transfers
_MOST_ERRORS = 5


def report(
    thing: Plan | Audit, path: AnyPath, *, measured: Timeline | None = None
) -> Path:
    """Write one self-contained HTML page about a plan, completely or not at all.

    Args:
        thing: a plan, or an audit, whose plan and findings are then shown.
        path: the file, usually "report.html".
        measured: the step as it ran; drawn below the planned one, on the same scale.

    Raises:
        SplitnetError: the thing is no plan or audit, or the file cannot be written.
    """
    return write_bytes(report_html(thing, measured=measured).encode(), path, "report")


def report_html(thing: Plan | Audit, *, measured: Timeline | None = None) -> str:
    """Make the page of `report` as text, and write no file."""
    # Jinja takes longer to import than the rest of the view, and only pages need it.
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    plan, audit = (thing.plan, thing) if isinstance(thing, Audit) else (thing, None)
    how: Any = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    loader = PackageLoader("splitnet.view")
    environment = Environment(loader=loader, undefined=StrictUndefined, **how)
    used = set(plan.device_of.values())
    script = files("splitnet.view").joinpath("vendor", "d3.min.js")
    return environment.get_template("report.html.j2").render(
        version=__version__,
        name=clean(plan.graph.name),
        verdict=[
            clean(line)
            for line in (*str(plan.verdict).splitlines(), facts.bottleneck_text(plan))
            if not line.startswith("strategies: ")  # they are bars
        ],
        worth=plan.verdict.worth_distributing,
        figures=[
            facts.objective_text(plan),
            ("batch", str(plan.batch)),
            ("parts", str(len(plan.placements))),
            ("devices", f"{len(used)} of {len(plan.cluster)}"),
            ("transferred per step", format_bytes(plan.transfer_bytes)),
            ("memory peak", format_bytes(max(m.total for m in plan.memory.values()))),
        ],
        idle=", ".join(name for name in plan.cluster.names if name not in used),
        strategies=_strategies(plan),
        path=path_text(plan.timeline.critical_path) if plan.transfers else "",
        errors=_errors(plan.timeline, measured) if measured is not None else [],
        matrix=_matrix(plan),
        measured=measured is not None,
        algorithm=facts.algorithm_text(plan),
        colors=colors_of(plan.cluster.names),
        grids=plan_grids(plan, PAGE),
        audit=audit,
        audited=audit_grids(audit) if audit is not None else {},
        clean=clean,
        data=Markup(explorer_json(plan, measured)),
        d3=Markup(script.read_text(encoding="utf-8")),
    )


def _strategies(plan: Plan) -> list[tuple[Strategy, list[tuple[str, float]]]]:
    every = compared.all if (compared := plan.verdict.strategies) else ()
    columns = [(x.seconds, x.peak_bytes, x.copied_bytes) for x in every]
    most = [max(column) or 1 for column in zip(*columns)]
    says = format_seconds, format_bytes, format_bytes
    return [
        (one, [(say(n), n / top) for say, n, top in zip(says, figures, most)])
        for one, figures in zip(every, columns)
    ]


def _errors(planned: Timeline, measured: Timeline) -> list[tuple[str, str, str]]:
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
    """Bytes between devices, and their shares of the largest, for more than four."""
    sums = facts.sums_sent(plan, "source_device", "target_device")
    used = [n for n in plan.cluster.names if any(n in ends for ends in sums)]
    if len(used) <= _MOST_LISTED:
        return {}
    most = max(size for _, size, _ in sums.values()) or 1
    cells = {ends: (format_bytes(n), n / most) for ends, (_, n, _) in sums.items()}
    return {a: [cells.get((a, b), ("", 0.0)) for b in used] for a in used}


def explorer_json(plan: Plan, measured: Timeline | None = None) -> str:
    """The data of the page's script, as JSON that is safe inside HTML."""
    known, graph = facts.part_facts(plan), plan.graph
    order = diagram.running_order(plan, known)
    number = {name: at for at, name in enumerate(order)}
    colors = colors_of(plan.cluster.names)
    look = {name: diagram.look_of(known[name]) for name in order}
    place = {name: (known[name].device, known[name].kind == "input") for name in order}
    shown = {b.members for b in diagram.fold(order, place, look, most=_MOST_OPEN)}
    trees = grouped((n for n in order if known[n].layers), place.__getitem__).values()
    at = {c.name: n for its in graph.calls_of.values() for n, c in enumerate(its)}

    def layer(call: str) -> tuple[int, int]:
        return number[graph.call[call].part], at[call]

    sizes = diagram.tensor_sizes(graph).items()
    found = {
        "objective": plan.objective,
        "value": plan.value,
        "transferred": plan.transfer_bytes,
        "devices": [
            {
                "name": one.name,
                "host": one.host,
                "color": colors[one.name],
                "limit": one.memory_bytes,
                "held": plan.memory[one.name].total,
                "busy": plan.timeline.utilization[one.name],
            }
            for one in plan.cluster
        ],
        "parts": [
            msgspec.to_builtins(known[name])
            | {"pin": repr(name), "reason": reason_text(plan, plan[name])}
            | {"seconds": [*known[name].seconds.values()]}
            | _layers(plan, name)
            for name in order
        ],
        "blocks": [_tree(diagram.block_of(its, look), number, shown) for its in trees],
        "links": [
            (number[x.source], number[x.target], x.bytes)
            + (x.sent_bytes, x.returned_bytes, x.weights)
            for x in diagram.links_of(plan, {name: name for name in order})
        ],
        "tensors": [(*layer(a), *layer(b), size) for (a, b), size in sizes],
        "moves": {number[part]: its for part, its in heaviest_moves(plan).items()},
        "planned": _step(plan.timeline, number),
        "measured": measured and _step(measured, number),
        "memory": [*_memory(plan, number)],
    }
    # ASCII: a name may hold what has no place in UTF-8.
    text = json.dumps(_packed(msgspec.to_builtins(found)), separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _packed(value: Any) -> Any:
    """Values for the page: clean texts, nine digits, and records as a table."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: _packed(one) for key, one in value.items()}
    if not isinstance(value, list | tuple):
        return value
    heads = list(value[0]) if value and isinstance(value[0], dict) else []
    if heads and all(isinstance(one, dict) and [*one] == heads for one in value):
        return {"heads": heads, "rows": [_packed([*one.values()]) for one in value]}
    return [_packed(one) for one in value]


def _layers(plan: Plan, part: str) -> dict[str, Any]:
    calls, device = plan.graph.calls_of[part], plan.cluster[plan.device_of[part]]
    costs, training = plan.costs, plan.training
    layers = [
        {
            "name": call.name,
            "kind": call.kind,
            "shapes": call.output_shapes,
            "seconds": [
                costs.forward_seconds(call, device),
                training * costs.backward_seconds(call, device),
            ],
            "weight_bytes": sum(plan.graph.weight[name].bytes for name in call.weights),
            "activation_bytes": call.activation_bytes,
        }
        for call in calls
    ]
    number = {call.name: at for at, call in enumerate(calls)}
    look = {call.name: (call.kind, call.output_shapes) for call in calls}
    tree = _tree(diagram.block_of(list(number), look), number) if calls[1:] else None
    return {"layers": layers, "tree": tree}


def _tree(
    block: diagram.Block, row: Mapping[str, int], closed: Collection[Sequence[str]] = ()
) -> Any:
    if not block.children:
        return row[block.members[0]]
    return {
        "times": block.times,
        "open": block.members not in closed,
        "inside": [_tree(child, row, closed) for child in block.children],
    }


def _step(timeline: Timeline, number: Mapping[str, int]) -> dict[str, Any]:
    at = {event: n for n, event in enumerate(timeline.events)}

    def numbered(spans: Iterable[Span]) -> list[tuple[float | None, ...]]:
        return [(at[one] if one else None, *times) for one, *times in spans]

    def rows(events: Iterable[Task | Copy]) -> list[dict[str, Any]]:
        its = [msgspec.to_builtins(event) for event in events]
        for row in its:
            for key in {"part", "source", "target"} & set(row):
                row[key] = number.get(row[key], row[key])
        return its

    return {
        "tasks": rows(timeline.tasks),
        "copies": rows(timeline.copies),
        "path": numbered(timeline.critical_path if timeline.copies else ()),
        "waits": {name: numbered(its) for name, its in timeline.waits.items()},
    }


def _memory(plan: Plan, number: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Per device, bytes by kind over time and the largest at the fullest moment."""
    step = evaluator_of(plan).step_of(plan.device_of)
    where = [plan.cluster.number[plan.device_of[part]] for part in step.parts]
    for one in memory_of(step, where, run_step(step, where)):
        kinds = list(zip(one.times.tolist(), one.held.tolist()))
        every = max(1, len(kinds) // _MOST_POINTS)
        runs = (kinds[at : at + every] for at in range(0, len(kinds), every))
        points = [max(its, key=lambda point: sum(point[1])) for its in runs]
        ranked = one.largest(step.parts, _MOST_HELD)
        largest = [(kind, number[part], size) for kind, part, size in ranked]
        yield {"curve": [(t, *held) for t, held in points], "largest": largest}
