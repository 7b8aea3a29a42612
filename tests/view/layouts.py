"""Random nets for diagrams, and the faults of a finished layout."""

import json
import random
from itertools import combinations

from splitnet.view.dot import dot_of
from splitnet.view.render import render_dot
from tests.view.plans import Draft

_TEXTS = ("box-", "title-", "header", "host-", "label-")


def random_plan(seed):
    """A net of 3 to 400 branches with skips on 1 to 32 devices, placed at random."""
    draw = random.Random(seed)
    count = round(3 * (400 / 3) ** draw.random())
    gpus = draw.randint(1, 31)
    hosts = draw.choice([1, 1, 1, 4])
    name = "worker:{1}/gpu:{0}" if hosts > 1 else "gpu:{0}"
    names = [name.format(*divmod(n, hosts)) for n in range(gpus)]
    net = Draft(f"random {seed}", 32)
    before = [net.source("x")]
    alike = draw.random() < 0.3
    for number in range(count):
        reach = draw.choice([1, 3, 12, 60])
        most = min(draw.randint(1, 3), len(before), reach)
        sources = draw.sample(before[-reach:], most)
        kinds = ["Dense"] * (1 if alike else draw.randint(1, 3))
        kind = "merge" if len(sources) > 1 and draw.random() < 0.3 else "branch"
        shape = (32 + (0 if alike else number % 7),)
        at = draw.choice([*names, "cpu:0"])
        made = net.part(f"part_{number}", sources, kinds, at, kind=kind, shape=shape)
        before.append(made)
    return net.plan(*names)


def layout_of(plan):
    return json.loads(render_dot(dot_of(plan), "json"))


def layout_faults(layout):
    """Texts and boxes that overlap, or are not in their lane, in words."""
    things = {thing["_gvid"]: thing for thing in layout["objects"]}
    boxes = {n: _box(o) for n, o in things.items() if o["name"].startswith(_TEXTS)}
    name = {number: thing["name"] for number, thing in things.items()}
    faults = [
        f"{name[one]} lies on {name[other]}"
        for (one, rect), (other, second) in combinations(boxes.items(), 2)
        if _overlap(rect, second)
    ]
    for lane in things.values():
        if not lane["name"].startswith("cluster_lane-"):
            continue
        left, low, right, high = frame = tuple(map(float, lane["bb"].split(",")))
        for one, rect in boxes.items():
            inside = left <= rect[0] and rect[2] <= right
            inside = inside and low <= rect[1] and rect[3] <= high
            if one in lane.get("nodes", ()):
                faults += [] if inside else [f"{name[one]} is outside {lane['name']}"]
            elif not name[one].startswith("label-") and _overlap(frame, rect):
                faults.append(f"{name[one]} is in {lane['name']}")
    return faults


def _box(thing):
    x, y = (float(n) for n in thing["pos"].split(","))
    wide, tall = 36 * float(thing["width"]), 36 * float(thing["height"])
    return x - wide, y - tall, x + wide, y + tall


def _overlap(one, other):
    wide = min(one[2], other[2]) - max(one[0], other[0])
    return min(wide, min(one[3], other[3]) - max(one[1], other[1])) > 0.5
