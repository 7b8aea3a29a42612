"""What a declaration must keep, as far as it can be seen without Keras."""

from collections import defaultdict
from typing import TYPE_CHECKING

import networkx as nx

if TYPE_CHECKING:
    from splitnet.core.net import Branch, Net

__all__ = ["faults_of"]


def faults_of(net: "Net") -> list[str]:
    """Every fault of the whole declaration, each with its file and line."""
    if not net.branches:
        return [f"net {net.name!r} is empty; declare an input, a branch and an output."]
    return [
        *_twice(net),
        *_no_inputs(net),
        *_no_output(net),
        *_unused(net),
        *_contradictions(net),
        *_crowded(net),
    ]


def _twice(net: "Net") -> list[str]:
    first: dict[str, Branch] = {}
    faults = []
    for branch in net.branches:
        earlier = first.setdefault(branch.name, branch)
        if earlier is not branch:
            faults.append(
                f"{branch.where}: the name {branch.name!r} is taken by the "
                f"{earlier.kind} at {earlier.where}; names are unique in a net."
            )
    return faults


def _no_inputs(net: "Net") -> list[str]:
    return [
        f"{branch.where}: {branch.kind} {branch.name!r} reads nothing; give it what "
        "net.input or net.branch returned."
        for branch in net.branches
        if branch.kind in ("branch", "split", "towers") and not branch.sources
    ]


def _no_output(net: "Net") -> list[str]:
    if net.outputs:
        return []
    return [f"net {net.name!r} has no output; say net.output(ref) for each."]


def _unused(net: "Net") -> list[str]:
    """Inputs that nothing reads, and branches from which no output can be reached."""
    if not net.outputs:
        return []
    needed: set[int] = set()
    todo = [output.ref.number for output in net.outputs if output.ref.net is net]
    while todo:
        number = todo.pop()
        if number not in needed and number < len(net.branches):
            needed.add(number)
            todo += [r.number for r in net.branches[number].sources if r.net is net]
    faults = []
    for number, branch in enumerate(net.branches):
        if number in needed:
            continue
        if branch.kind == "input":
            what = "is read by no branch that leads to an output"
        else:
            what = "leads to no output"
        faults.append(
            f"{branch.where}: {branch.kind} {branch.name!r} {what}; use it or "
            "remove it."
        )
    return faults


def _contradictions(net: "Net") -> list[str]:
    """`near` binds branches into groups; `apart` and pins must not break one."""
    branches = {branch.name: branch for branch in net.branches}
    groups = nx.utils.UnionFind(branches)
    for branch in branches.values():
        for other in branch.near:
            if other in branches:
                groups.union(branch.name, other)
    pins: dict[str, dict[str, Branch]] = defaultdict(dict)
    for branch in branches.values():
        if len(branch.on) == 1 and ":" in branch.on[0]:
            pins[groups[branch.name]].setdefault(branch.on[0], branch)
    faults = []
    for devices in pins.values():
        first, *others = devices.values()
        faults += [
            f"{other.where}: branch {other.name!r} is on {other.on[0]}, but near= "
            f"binds it to {first.name!r}, which is on {first.on[0]} (at {first.where})."
            for other in others
        ]
    pin_of = {name: next(iter(pins.get(groups[name], {})), "") for name in branches}
    for branch in branches.values():
        for name in branch.apart:
            if name not in branches:
                continue
            head = f"{branch.where}: branch {branch.name!r} must be apart from {name!r}"
            if groups[name] == groups[branch.name]:
                faults.append(
                    f"{head} (at {branches[name].where}), but near= binds them to one "
                    "device."
                )
            elif pin_of[name] and pin_of[name] == pin_of[branch.name]:
                faults.append(f"{head}, but both are on {pin_of[name]}.")
    return faults


def _crowded(net: "Net") -> list[str]:
    """Towers or slices that are pinned to one device together."""
    faults = []
    for branch in net.branches:
        places = branch.towers.on if branch.towers is not None else branch.slices
        pins = [one[0] for one in places if len(one) == 1 and ":" in one[0]]
        share = "tower" if branch.towers is not None else "slice"
        faults += [
            f"{branch.where}: {branch.kind} {branch.name!r}: on= names {pin!r} "
            f"{pins.count(pin)} times. Several {share}s on one device gain nothing; "
            "give each a device of its own."
            for pin in dict.fromkeys(pins)
            if pins.count(pin) > 1
        ]
    return faults
