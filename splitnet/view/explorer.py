"""The data of the report's script: blocks, links, tasks, memory and what moves cost.

Times are whole nanoseconds; parts and devices are numbers, in the order of their lists.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from splitnet.core.errors import format_bytes
from splitnet.core.plan import Plan
from splitnet.core.timeline import PHASES, Copy, Span, Task, Timeline
from splitnet.core.timeline import critical_path as path_of
from splitnet.core.timeline import waits as waits_of
from splitnet.planner.analysis import reason_text
from splitnet.planner.evaluate import evaluator_of
from splitnet.planner.what_if import heaviest_moves
from splitnet.simulator.event_loop import run_step
from splitnet.simulator.memory import memory_detail
from splitnet.view.blocks import Block, block_of, fold
from splitnet.view.diagram import links_of, look_of, running_order
from splitnet.view.facts import PartFacts, part_facts
from splitnet.view.style import clean, colors_of, shape_text

__all__ = ["explorer_json"]

_MOST_OPEN = 24  # boxes at first
_MOST_POINTS = 400  # of a memory curve
_MOST_HELD = 5  # tensors at the peak


def explorer_json(plan: Plan, measured: Timeline | None = None) -> str:
    """Everything that the page's script shows, as JSON that HTML may hold."""
    facts = part_facts(plan)
    order = running_order(plan, facts)
    number = {name: at for at, name in enumerate(order)}
    device = {one.name: at for at, one in enumerate(plan.cluster)}
    colors = colors_of(device)
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
                "said": [
                    format_bytes(plan.memory[one.name].total),
                    format_bytes(one.memory_bytes),
                ],
                "busy": plan.timeline.utilization[one.name],
            }
            for one in plan.cluster
        ],
        "parts": [_part(plan, facts[name], device) for name in order],
        "blocks": _blocks(plan, order, facts, number),
        "links": [
            (
                number[link.source],
                number[link.target],
                link.bytes,
                link.sent_bytes,
                link.returned_bytes,
                int(link.weights),
            )
            for link in links_of(plan, {name: name for name in order})
        ],
        "moves": {
            str(number[part]): [
                (
                    *(device[a.device], a.value, int(a.fits)),
                    *(a.transfer_bytes, a.held_bytes, int(a.estimated)),
                )
                for a in its
            ]
            for part, its in heaviest_moves(plan).items()
        },
        "planned": _timeline(plan.timeline, number, device),
        "memory": _memory(plan, number),
    }
    if measured is not None:
        found["measured"] = _timeline(measured, number, device)
    return msgspec.json.encode(found).decode().replace("<", "\\u003c")


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def _part(plan: Plan, one: PartFacts, device: Mapping[str, int]) -> dict[str, Any]:
    calls = plan.graph.calls_of[one.name]
    return {
        "name": clean(one.name),
        "pin": one.name.encode(errors="replace").decode(),
        "kind": one.kind,
        "device": device[one.device],
        "reason": clean(reason_text(plan, plan[one.name])),
        "requested": one.fallback.requested if one.fallback else "",
        "layers": [clean(f"{call.name}: {call.kind}") for call in calls],
        "outputs": [shape_text(shape) for shape in one.shapes],
        "weights": one.weight_bytes,
        "saved": one.activation_bytes,
        "times": [_nanoseconds(one.seconds.get(phase, 0.0)) for phase in PHASES],
        "output": one.is_output,
        "where": clean(one.where),
    }


def _blocks(
    plan: Plan,
    order: list[str],
    facts: Mapping[str, PartFacts],
    number: Mapping[str, int],
) -> list[Any]:
    """A tree for each device that is used; a leaf is the number of its part."""
    look = {name: look_of(facts[name]) for name in order}
    place = {name: facts[name].device for name in order}
    shown = {block.members for block in fold(order, place, look, most=_MOST_OPEN)}

    def tree(block: Block) -> Any:
        if not block.children:
            return number[block.members[0]]
        opened = block.members not in shown
        return {
            "times": block.times,
            "open": opened,
            "inside": [tree(child) for child in block.children],
        }

    lanes: dict[str, list[str]] = {}
    for name in order:
        lanes.setdefault(place[name], []).append(name)
    return [tree(block_of(names, look)) for names in lanes.values()]


def _timeline(
    timeline: Timeline, number: Mapping[str, int], device: Mapping[str, int]
) -> dict[str, Any]:
    """Tasks and copies, the critical path through them, and each device's gaps."""
    tasks, copies = timeline.tasks, timeline.copies
    at = {id(event): n for n, event in enumerate((*tasks, *copies))}

    def spans(its: Iterable[Span]) -> list[tuple[int, int, int]]:
        return [
            (
                at[id(s.event)] if s.event else -1,
                _nanoseconds(s.start),
                _nanoseconds(s.stop),
            )
            for s in its
        ]

    def ends(event: Task | Copy) -> tuple[int, int, int]:
        return (
            _nanoseconds(event.start),
            _nanoseconds(event.stop),
            event.microbatch,
        )

    return {
        "tasks": [
            (number.get(t.part, -1), device[t.device], PHASES.index(t.phase), *ends(t))
            for t in tasks
        ],
        "copies": [
            (
                number[c.source],
                number[c.target],
                device[c.source_device],
                device[c.target_device],
                c.kind,
                c.bytes,
                *ends(c),
            )
            for c in copies
        ],
        "path": spans(path_of(timeline)) if copies else [],
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
    for detail in memory_detail(step, where, run, _MOST_HELD):
        every = max(1, len(detail.curve) // _MOST_POINTS)
        runs = (
            detail.curve[at : at + every] for at in range(0, len(detail.curve), every)
        )
        points = [max(its, key=lambda point: sum(point[1])) for its in runs]
        found.append(
            {
                "curve": [(_nanoseconds(time), *held) for time, held in points],
                "largest": [
                    (kind, number[p], size) for kind, p, size in detail.largest
                ],
            }
        )
    return found
