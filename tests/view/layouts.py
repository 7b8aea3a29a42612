"""Random nets for diagrams, and the faults of a finished layout."""

import json
import random
from typing import Any

from splitnet.core.cluster import Cluster
from splitnet.core.plan import Plan
from splitnet.view.dot import dot_of
from splitnet.view.render import render_dot
from tests.view import plans

_TEXTS = ("box-", "title-", "header", "host-", "label-")
Rect = tuple[float, float, float, float]


def random_plan(seed: int) -> Plan:
    """A net of 3 to 400 branches with skips on 1 to 32 devices, placed at random."""
    draw = random.Random(seed)
    count = round(3 * (400 / 3) ** draw.random())
    gpus = draw.randint(1, 31)
    hosts = draw.choice([1, 1, 1, 4])
    names = [
        f"worker:{n % hosts}/gpu:{n // hosts}" if hosts > 1 else f"gpu:{n}"
        for n in range(gpus)
    ]
    net = plans.Draft(f"random {seed}", 32)
    net.part("x", kind="input", shape=(64,), on="cpu:0")
    before, places = ["x"], {"x": "cpu:0"}
    alike = draw.random() < 0.3
    for number in range(count):
        reach = draw.choice([1, 3, 12, 60])
        sources = draw.sample(
            before[-reach:], min(draw.randint(1, 3), len(before), reach)
        )
        name = f"part_{number}"
        kinds = ["Dense"] * (1 if alike else draw.randint(1, 3))
        kind = "merge" if len(sources) > 1 and draw.random() < 0.3 else "branch"
        net.part(
            name, sources, kinds, kind=kind, shape=(32 + (0 if alike else number % 7),)
        )
        places[name] = draw.choice([*names, "cpu:0"])
        before.append(name)
    cluster = Cluster.of(*names, "cpu", memory="16 GiB", link="25 GB/s")
    return plans.plan_by_hand(net.graph(before[-1]), cluster, places)


def layout_of(plan: Plan) -> dict[str, Any]:
    """Where Graphviz puts everything in a plan's diagram."""
    return dict(json.loads(render_dot(dot_of(plan), "json")))


def layout_faults(layout: dict[str, Any]) -> list[str]:
    """Texts and boxes that overlap, or are not in their lane, in words."""
    things = layout["objects"]
    boxes = {o["_gvid"]: _box(o) for o in things if o["name"].startswith(_TEXTS)}
    name = {o["_gvid"]: o["name"] for o in things}
    lanes = {
        o["name"]: (_rect(o["bb"]), set(o.get("nodes", ())))
        for o in things
        if o["name"].startswith("cluster_lane-")
    }
    faults = []
    ordered = list(boxes.items())
    for at, (one, rect) in enumerate(ordered):
        faults += [
            f"{name[one]} lies on {name[other]}"
            for other, second in ordered[at + 1 :]
            if _overlap(rect, second)
        ]
    for lane, (frame, members) in lanes.items():
        for one, rect in ordered:
            inside = (
                frame[0] <= rect[0]
                and rect[2] <= frame[2]
                and (frame[1] <= rect[1] and rect[3] <= frame[3])
            )
            if one in members and not inside:
                faults.append(f"{name[one]} is outside {lane}")
            label = name[one].startswith("label-")  # stands where its line is
            if one not in members and not label and _overlap(frame, rect):
                faults.append(f"{name[one]} is in {lane}")
    return faults


def _box(thing: dict[str, str]) -> Rect:
    x, y = (float(n) for n in thing["pos"].split(","))
    wide, tall = 36 * float(thing["width"]), 36 * float(thing["height"])
    return x - wide, y - tall, x + wide, y + tall


def _rect(text: str) -> Rect:
    left, bottom, right, top = (float(n) for n in text.split(","))
    return left, bottom, right, top


def _overlap(one: Rect, other: Rect) -> bool:
    slack = 0.5
    wide = min(one[2], other[2]) - max(one[0], other[0])
    tall = min(one[3], other[3]) - max(one[1], other[1])
    return wide > slack and tall > slack
