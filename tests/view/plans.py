"""Plans of placements made by hand, so that the views are tested alone; their texts."""

import os
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.plan import Fallback, Verdict
from splitnet.planner.evaluate import score

_FLOPS = {"LSTM": 8e10, "Dense": 1e9}


class Draft:
    """A graph in the making: parts of one or more calls, tensors between, devices."""

    def __init__(self, name, batch=256):
        self.name, self.batch = name, batch
        self.parts, self.calls, self.tensors = [], [], []
        self.weights, self.last, self.places = {}, {}, {}

    def source(self, name, shape=(64,)):
        return self.part(name, kind="input", shape=shape, on="cpu:0", weight_bytes=0)

    def merge(self, name, sources, layer, at="cpu:0", on="auto", shape=(64,)):
        its = {"kind": "merge", "weight_bytes": 0, "on": on, "shape": shape}
        return self.part(name, sources, [layer], at, **its)

    def part(
        self,
        name,
        sources=(),
        kinds=("Dense",),
        at="",
        *,
        kind="branch",
        shape=(64,),
        on="auto",
        weight="",
        weight_bytes=65536,
    ):
        """Add a part: calls of `kinds` in a row, the first reading all sources."""
        self.parts.append(Part(name, kind, (on,), where="/home/someone/net.py:12"))
        self.places[name] = at or on
        size = 4 * self.batch * prod(shape)
        before = [self.last[source] for source in sources]
        for number, layer in enumerate(kinds):
            key = f"{weight or name + '/' + layer + str(number)}/kernel"
            if weight_bytes:
                self.weights.setdefault(key, Weights(key, weight_bytes, (64, 256)))
            flops = 0.0 if kind == "input" else _FLOPS.get(layer, 1e8)
            call = Call(
                name if len(kinds) == 1 else f"{name}/{layer.lower()}_{number}",
                name,
                layer,
                layer=weight or f"{name}_{layer.lower()}",
                output_shapes=((self.batch, *shape),),
                output_dtypes=("float32",),
                output_bytes=size,
                activation_bytes=0 if kind == "input" else size,
                forward_flops=flops,
                backward_flops=2 * flops,
                weights=(key,) if weight_bytes else (),
            )
            self.tensors += [
                Tensor(b.name, call.name, 0, b.output_shapes[0], bytes=b.output_bytes)
                for b in before
            ]
            self.calls.append(call)
            before = [call]
        self.last[name] = before[0]
        return name

    def graph(self, *outputs):
        fields = self.calls, self.tensors, self.weights.values(), self.parts
        outputs = outputs or [*self.last][-1:]
        ends = tuple(self.last[name].name for name in outputs)
        return Graph(self.name, self.batch, *map(tuple, fields), ends)

    def plan(self, *machine, outputs=(), fallbacks=()):
        """The placement of its parts; usually on GPUs of 16 GiB and a CPU."""
        machine = Cluster.of(*machine, "cpu", memory="16 GiB", link="25 GB/s")
        return plan_by_hand(self.graph(*outputs), machine, self.places, fallbacks)


def plan_by_hand(graph, cluster, device_of, fallbacks=()):
    """Put parts where the caller says; the verdict is made up."""
    plan = score(graph, cluster, device_of)
    plan = replace(plan, bound=0.9 * plan.seconds)
    advice = ("the CPU merge 'join' costs 12 %: on='gpu:0' would save it",)
    verdict = Verdict(plan, "gpu:0", 1.5 * plan.seconds, advice)
    reasons = {p.name: "cost" if p.on == ("auto",) else "pin" for p in graph.parts}
    reasons |= {p.name: p.kind for p in graph.parts if p.kind != "branch"}
    reasons |= {fallback.part: "fallback" for fallback in fallbacks}
    placements = tuple(replace(p, reason=reasons[p.part]) for p in plan.placements)
    made = {"placements": placements, "fallbacks": tuple(fallbacks)}
    return replace(plan, **made, verdict=verdict)


def moved_to(plan, cluster):
    return plan_by_hand(plan.graph, cluster, plan.device_of)


def assert_golden(text, name):
    """Compare with the text of a file; `UPDATE_GOLDEN=1 pytest` writes it anew."""
    path = Path(__file__).parents[1] / "golden" / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@cache
def one():
    draft = Draft("one", 32)
    draft.source("x", (28, 28))
    draft.part("only", ["x"], ["Flatten", "Dense"], "cpu:0", shape=(10,))
    return moved_to(draft.plan(), Cluster.of("cpu"))


@cache
def siamese():
    """Two branches that share an encoder, merged on the CPU; one fell back."""
    draft = Draft("siamese")
    draft.source("tweet_a", (140, 256))
    draft.source("tweet_b", (140, 256))
    encoder = {"weight": "encoder", "weight_bytes": 330_000}
    draft.part("left", ["tweet_a"], ["LSTM"], on="gpu:0", **encoder)
    draft.part("right", ["tweet_b"], ["LSTM"], "gpu:1", on="gpu:3", **encoder)
    draft.merge("join", ["left", "right"], "Concatenate", on="cpu:0", shape=(128,))
    draft.part("verdict", ["join"], shape=(1,), on="cpu:0", weight_bytes=516)
    fell = Fallback("right", "gpu:3", "gpu:1", "there is no gpu:3 here; gpu:1 is free")
    return draft.plan("2*gpu", fallbacks=[fell])


@cache
def towers(count, gpus=4, names="tower"):
    """Like branches over several devices, one merge, one head."""
    draft = Draft(f"{names}s of {count}", 64)
    x, kinds = [draft.source("pixels", (32, 32, 3))], ["Conv2D", "Pool", "Dense"]
    at = [f"gpu:{n % gpus}" for n in range(count)]
    its = [draft.part(f"{names}_{n}", x, kinds, on) for n, on in enumerate(at)]
    draft.merge("average", its, "Average")
    draft.part("head", ["average"], at="gpu:0", shape=(10,))
    return draft.plan(f"{gpus}*gpu")


@cache
def chain(count, gpus=4):
    """A chain of like blocks, cut into one stretch per device."""
    draft = Draft(f"chain of {count}", 64)
    before = draft.source("tokens", (128,))
    kinds, shape = ["LayerNorm", "Attention", "Dense"], (128, 64)
    for n in range(count):
        at = f"gpu:{n * gpus // count}"
        before = draft.part(f"block_{n}", [before], kinds, at, shape=shape)
    draft.part("logits", [before], at=f"gpu:{gpus - 1}", shape=(128, 1000))
    return draft.plan(f"{gpus}*gpu")


@cache
def tangle(count, gpus=4):
    """An irregular graph: unlike parts, long and short edges, no repetition."""
    draft = Draft(f"tangle of {count}", 32)
    names = [draft.source("start")]
    for n in range(count):
        reach = n * 7 % 5, n * 13 % 11
        sources = list(dict.fromkeys(names[max(n - back, 0)] for back in reach))
        kinds, at = ["Dense"] * (1 + n % 3), f"gpu:{(n // 3 + n * 5) % gpus}"
        names.append(draft.part(f"part_{n}", sources, kinds, at, shape=(32 + n % 7,)))
    return draft.plan(f"{gpus}*gpu")


NASTY = (
    *("<script>alert(1)</script>", 'a"b', "a\\nb\\l\\G", "two\nlines"),
    *("{record|<port>}", "&amp; &lt; &", "漢字かな交じり", "x" * 500),
    *("\u202ebackwards", "<b>bold</b>", "nul\0l", "]]>", "-> {a}"),
)


@cache
def nasty():
    """A plan whose branches are named to break DOT, HTML, XML and terminals."""
    draft = Draft('<i>net</i> & "co" \n --', 8)
    draft.source("in<put>")
    for n, name in enumerate(NASTY):
        kinds, at = [f"<{name[:9]}>"], f"gpu:{n % 2}"
        draft.part(name, ["in<put>"], kinds, at, weight=name, on="gpu:0")
    return moved_to(draft.plan("2*gpu", outputs=NASTY), Cluster.of("2*gpu", "cpu"))
