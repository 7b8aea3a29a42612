"""Plans of placements made by hand, so that the views are tested alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

from splitnet.core.cluster import Cluster
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.core.plan import Fallback, Plan, Verdict
from splitnet.planner.evaluate import score

_FLOPS = {"LSTM": 8e10, "Dense": 1e9}


class Draft:
    """A graph in the making: parts of one or more calls, and tensors between them."""

    def __init__(self, name: str, batch: int = 256) -> None:
        self.name = name
        self.batch = batch
        self.parts: list[Part] = []
        self.calls: list[Call] = []
        self.tensors: list[Tensor] = []
        self.weights: dict[str, Weights] = {}
        self.last: dict[str, Call] = {}

    def part(
        self,
        name: str,
        sources: Sequence[str] = (),
        kinds: Sequence[str] = ("Dense",),
        *,
        kind: str = "branch",
        shape: tuple[int, ...] = (64,),
        on: str = "auto",
        weight: str | None = None,
        weight_bytes: int = 65536,
    ) -> str:
        """Add a part: calls of `kinds` in a row, the first reading all sources."""
        self.parts.append(Part(name, kind, (on,), where="net.py:12"))
        size = 4 * self.batch
        for length in shape:
            size *= length
        before = [self.last[source] for source in sources]
        for number, layer in enumerate(kinds):
            owned: tuple[str, ...] = ()
            if weight_bytes and kind != "input":
                key = f"{weight or name + '/' + layer + str(number)}/kernel"
                self.weights.setdefault(key, Weights(key, weight_bytes, (64, 256)))
                owned = (key,)
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
                weights=owned,
            )
            self.tensors += [
                Tensor(b.name, call.name, 0, b.output_shapes[0], bytes=b.output_bytes)
                for b in before
            ]
            self.calls.append(call)
            before = [call]
        self.last[name] = before[0]
        return name

    def graph(self, *outputs: str) -> Graph:
        """The finished graph."""
        return Graph(
            self.name,
            self.batch,
            tuple(self.calls),
            tuple(self.tensors),
            tuple(self.weights.values()),
            tuple(self.parts),
            tuple(self.last[name].name for name in outputs),
        )


def plan_by_hand(
    graph: Graph,
    cluster: Cluster,
    device_of: Mapping[str, str],
    fallbacks: Sequence[Fallback] = (),
) -> Plan:
    """Put parts where the caller says; the verdict is made up."""
    plan = score(graph, cluster, device_of)
    plan = replace(plan, bound=0.9 * plan.seconds)
    advice = ("the CPU merge 'join' costs 12%: on='gpu:0' would save it",)
    verdict = Verdict(plan, "gpu:0", 1.5 * plan.seconds, advice)
    reasons = {part.name: part.kind for part in graph.parts}
    reasons |= {
        part.name: "cost" if part.on == ("auto",) else "pin"
        for part in graph.parts
        if part.kind == "branch"
    }
    reasons |= {fallback.part: "fallback" for fallback in fallbacks}
    placements = tuple(replace(p, reason=reasons[p.part]) for p in plan.placements)
    made = {"placements": placements, "fallbacks": tuple(fallbacks)}
    return replace(plan, **made, verdict=verdict)


def machine(gpus: int) -> Cluster:
    """So many GPUs of 16 GiB and a CPU."""
    return Cluster.of(f"{gpus}*gpu", "cpu", memory="16 GiB", link="25 GB/s")


@cache
def one() -> Plan:
    """A single branch on a single device."""
    draft = Draft("one", 32)
    draft.part("x", kind="input", shape=(28, 28), on="cpu:0")
    draft.part("only", ["x"], ["Flatten", "Dense"], shape=(10,))
    graph = draft.graph("only")
    return plan_by_hand(graph, Cluster.of("cpu"), {"x": "cpu:0", "only": "cpu:0"})


@cache
def siamese() -> Plan:
    """Two branches that share an encoder, merged on the CPU; one fell back."""
    draft = Draft("siamese")
    draft.part("tweet_a", kind="input", shape=(140, 256), on="cpu:0")
    draft.part("tweet_b", kind="input", shape=(140, 256), on="cpu:0")
    encoder = {"weight": "encoder", "weight_bytes": 330_000}
    draft.part("left", ["tweet_a"], ["LSTM"], on="gpu:0", **encoder)
    draft.part("right", ["tweet_b"], ["LSTM"], on="gpu:3", **encoder)
    both, merge = ["left", "right"], {"kind": "merge", "on": "cpu:0", "weight_bytes": 0}
    draft.part("join", both, ["Concatenate"], shape=(128,), **merge)
    draft.part("verdict", ["join"], ["Dense"], shape=(1,), on="cpu:0", weight_bytes=516)
    places = dict.fromkeys(draft.last, "cpu:0") | {"left": "gpu:0", "right": "gpu:1"}
    fell = Fallback("right", "gpu:3", "gpu:1", "there is no gpu:3 here; gpu:1 is free")
    return plan_by_hand(draft.graph("verdict"), machine(2), places, [fell])


@cache
def towers(count: int, gpus: int = 4, names: str = "tower") -> Plan:
    """Like branches over several devices, one merge, one head."""
    draft = Draft(f"{names}s of {count}", 64)
    draft.part("pixels", kind="input", shape=(32, 32, 3), on="cpu:0")
    places = {"pixels": "cpu:0"}
    for number in range(count):
        name = f"{names}_{number}"
        draft.part(name, ["pixels"], ["Conv2D", "Pool", "Dense"], shape=(64,))
        places[name] = f"gpu:{number % gpus}"
    its, merge = list(places)[1:], {"kind": "merge", "weight_bytes": 0}
    draft.part("average", its, ["Average"], **merge)
    draft.part("head", ["average"], ["Dense"], shape=(10,))
    places |= {"average": "cpu:0", "head": "gpu:0"}
    return plan_by_hand(draft.graph("head"), machine(gpus), places)


@cache
def chain(count: int, gpus: int = 4) -> Plan:
    """A chain of like blocks, cut into one stretch per device."""
    draft = Draft(f"chain of {count}", 64)
    draft.part("tokens", kind="input", shape=(128,), on="cpu:0")
    places, before = {"tokens": "cpu:0"}, "tokens"
    for number in range(count):
        name = f"block_{number}"
        draft.part(name, [before], ["LayerNorm", "Attention", "Dense"], shape=(128, 64))
        places[name] = f"gpu:{number * gpus // count}"
        before = name
    draft.part("logits", [before], ["Dense"], shape=(128, 1000))
    places["logits"] = f"gpu:{gpus - 1}"
    return plan_by_hand(draft.graph("logits"), machine(gpus), places)


@cache
def tangle(count: int, gpus: int = 4) -> Plan:
    """An irregular graph: unlike parts, long and short edges, no repetition."""
    draft = Draft(f"tangle of {count}", 32)
    draft.part("start", kind="input", shape=(64,), on="cpu:0")
    places, names = {"start": "cpu:0"}, ["start"]
    for number in range(count):
        reach = number * 7 % 5, number * 13 % 11
        sources = dict.fromkeys(names[max(number - back, 0)] for back in reach)
        kinds = ["Dense"] * (1 + number % 3)
        name = f"part_{number}"
        draft.part(name, list(sources), kinds, shape=(32 + number % 7,))
        places[name] = f"gpu:{(number // 3 + number * 5) % gpus}"
        names.append(name)
    return plan_by_hand(draft.graph(names[-1]), machine(gpus), places)


NASTY = (
    "<script>alert(1)</script>",
    'a"b',
    "a\\nb\\l\\G",
    "two\nlines",
    "{record|<port>}",
    "&amp; &lt; &",
    "漢字かな交じり",
    "x" * 500,
    "\u202ebackwards",
    "<b>bold</b>",
    "nul\0l",
    "]]>",
    "-> {a}",
)


@cache
def nasty() -> Plan:
    """A plan whose branches are named to break DOT, HTML, XML and terminals."""
    draft = Draft('<i>net</i> & "co" \n --', 8)
    draft.part("in<put>", kind="input", on="cpu:0")
    places = {"in<put>": "cpu:0"}
    for number, name in enumerate(NASTY):
        draft.part(name, ["in<put>"], [f"<{name[:9]}>"], weight=name, on="gpu:0")
        places[name] = f"gpu:{number % 2}"
    cluster = Cluster.of("2*gpu", "cpu")
    return plan_by_hand(draft.graph(*NASTY), cluster, places)
