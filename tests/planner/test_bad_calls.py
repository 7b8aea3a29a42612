"""What the public functions of planning say to arguments that cannot be."""

import re
from typing import Any

import pytest

import splitnet as sn
from tests.planner.quick import plan_graph
from tests.zoo import chain

BOX = sn.Cluster.of("2*gpu", "cpu")
GRAPH = chain(3)
PLAN = plan_graph(GRAPH, BOX)
NAN, HUGE = float("nan"), 10**400

OPTIONS = {
    "batch": [0, 1.5, "32", None, True],
    "objective": ["fast", None, ["latency"]],
    "pins": [
        *(3, ["c0"], {"c0": 3}, {"c0": None}, {"c0": []}, {3: "gpu:0"}, {"zz": "gpu"}),
        *({"c0": "tpu:0"}, {"c0": "gpu:-1"}, {"c0": ["gpu", 3]}, {"c1 .. c0": "gpu"}),
        *(lambda part: 3, "no_file.json", "", {"x": "gpu:0"}, BOX, GRAPH),
    ],
    "missing": [None, "no"],
    "costs": [3, {}, object(), "no_file.json"],
    "optimizer": [3, "sophia", None, object()],
    "time_limit": [NAN, -1, "5", None, HUGE],
    "effort": [0, 1.5, "a"],
    "training": [None, 1],
    "contiguity": ["line", []],
    "seed": [None, 1.5],
    "cut_penalty": [NAN, -1, 1, None],
    "regroup": [2, "a"],
    "nested": [3, None],
    "on_progress": [3],
}
PLACEMENTS = [
    *(None, 3, [], {}, {"c0": "gpu"}, {"*": 3}, {"*": "tpu"}, {"*": ["gpu"]}, "gpu:0"),
    *({3: "gpu", "*": "cpu"}, {"zz": "cpu", "*": "cpu"}, GRAPH, {"*": "\ud800"}),
]
NO_PLANS = [None, 3, GRAPH, "plan.json", BOX]
PATHS = [None, 3, "", "no_file", "/", "/dev/null", b"x", "a\0b", ["x"]]

CALLS: list[tuple[str, Any]] = [
    *[
        (
            f"plan({name}={value!r})",
            lambda n=name, v=value: sn.plan(GRAPH, BOX, **{n: v}),
        )
        for name, values in OPTIONS.items()
        for value in values
    ],
    *[(f"score({x!r})", lambda x=x: sn.score(GRAPH, BOX, x)) for x in PLACEMENTS],
    *[
        (f"largest_batch({x})", lambda x=x: sn.largest_batch(GRAPH, BOX, **x))
        for x in (
            *({"most": 0}, {"most": "a"}, {"pins": 3}, {"optimizer": 3}),
            *({"training": "a"}, {"device_of": 3}, {"device_of": {}}),
        )
    ],
    *[
        (f"{verb.__name__}({x!r})", lambda verb=verb, x=x: verb(x))
        for verb in (sn.compare_strategies, sn.sensitivity, sn.simulate, PLAN.compare)
        for x in NO_PLANS
        if (verb, x) != (sn.compare_strategies, GRAPH)  # which is a source
    ],
    *[
        (f"sensitivity({x})", lambda x=x: sn.sensitivity(PLAN, **x))
        for x in ({"perturbation": NAN}, {"perturbation": "a"}, {"draws": 1.5})
    ],
    *[
        (f"{verb.__name__}({x!r})", lambda verb=verb, x=x: verb(x))
        for verb in (sn.load_plan, sn.read_workload)
        for x in PATHS
    ],
    *[
        (f"save({x!r})", lambda x=x: PLAN.save(x))
        for x in (None, 3, "", "/", "/dev/null", "/no/folder/plan.json")
    ],
    *[
        (f"{verb.__name__}({x!r})", lambda verb=verb, x=x: verb(x))
        for verb in (PLAN.__getitem__, PLAN.explain)
        for x in (None, 3, "zz", "", ["c0"])
        if (verb, x) != (PLAN.explain, None)  # of all of it
    ],
]


@pytest.mark.parametrize(
    "call",
    [call for _, call in CALLS],
    ids=[re.sub(" at 0x[0-9a-f]+", "", name) for name, _ in CALLS],  # equal anywhere
)
def test_every_bad_call_is_answered(call: Any) -> None:
    """No traceback but an error of splitnet, which says something short."""
    with pytest.raises(sn.SplitnetError) as error:
        call()

    assert 10 < len(str(error.value)) < 1500
