"""Small graphs that every test shares, built from plain values."""

import random
from dataclasses import replace

import networkx as nx

from splitnet.core.graph import Call, Graph, Part, Tensor, Weights

MIB = 2**20


def call(name, part=None, *, flops=1e10, out=MIB, weights=(), **more):
    """A dense call of `flops` forward and twice that backward, `out` bytes wide."""
    values = {
        "name": name,
        "part": part or name,
        "kind": "Dense",
        "layer": name,
        "output_shapes": ((32, out // 128),),
        "output_dtypes": ("float32",),
        "output_bytes": out,
        "forward_flops": flops,
        "backward_flops": 2 * flops,
        "activation_bytes": out,
        "weights": weights,
    }
    return Call(**(values | more))  # type: ignore[arg-type]  # fields by name


def source(name, out=MIB):
    return call(name, flops=0.0, out=out, kind="InputLayer", activation_bytes=0)


def graph_of(name, calls, edges, *, parts=None, weight_bytes=MIB, batch=32):
    """A graph with a part per call unless told otherwise, and a tensor per edge."""
    by_name = {one.name: one for one in calls}
    weights = dict.fromkeys(w for one in calls for w in one.weights)
    read = {a for a, _ in edges}
    return Graph(
        name=name,
        batch=batch,
        calls=tuple(calls),
        tensors=tuple(
            Tensor(a, b, shape=(32, 8), bytes=by_name[a].output_bytes) for a, b in edges
        ),
        weights=tuple(Weights(w, weight_bytes) for w in weights),
        parts=tuple(
            parts
            or [
                Part(p, "input", ("cpu",)) if kind == "InputLayer" else Part(p)
                for p, kind in {one.part: one.kind for one in calls}.items()
            ]
        ),
        outputs=tuple(one.name for one in calls if one.name not in read),
    )


def altered(graph, field, name, **changes):
    """The graph with one of its calls, parts or weights changed."""
    its = getattr(graph, field)
    its = tuple(replace(one, **changes) if one.name == name else one for one in its)
    return replace(graph, **{field: its})


def chain(length=3, *, flops=1e10, out=MIB, names=()):
    names = ["x", *(names or (f"c{i}" for i in range(length)))]
    calls = [source("x", out)] + [
        call(n, flops=flops, out=out, weights=(f"{n}/w",)) for n in names[1:]
    ]
    return graph_of("chain", calls, list(zip(names, names[1:])))


JOIN = call("join", flops=0.0, kind="Concatenate")
MERGE = Part("join", "merge", ("cpu",))


def inputs(*names):
    return [Part(name, "input", ("cpu",)) for name in names]


def two_towers(*, on=("gpu:0", "gpu:1"), flops=1e11):
    """Two inputs, two pinned branches, a merge on the CPU, a head near the first."""
    calls = [
        source("image"),
        source("words"),
        call("see", flops=flops, weights=("see/w",)),
        call("tell", flops=flops, weights=("tell/w",)),
        JOIN,
        call("head", flops=1e6, out=1024, weights=("head/w",)),
    ]
    edges = [("image", "see"), ("words", "tell"), ("see", "join"), ("tell", "join")]
    parts = [*inputs("image", "words"), Part("see", on=(on[0],))]
    parts += [Part("tell", on=(on[1],)), MERGE, Part("head", near=("see",))]
    return graph_of("two_towers", calls, [*edges, ("join", "head")], parts=parts)


def shared(*, flops=1e11):
    """One layer called by two branches: its weight has one home and two users."""
    layer = {"weights": ("encoder/w",), "layer": "encoder"}
    sides = [call(name, flops=flops, **layer) for name in ("left", "right")]
    edges = [("a", "left"), ("b", "right"), ("left", "join"), ("right", "join")]
    parts = [*inputs("a", "b"), Part("left", on=("gpu:0",))]
    parts += [Part("right", on=("gpu:1",)), MERGE]
    calls = [source("a"), source("b"), *sides, JOIN]
    return graph_of("shared", calls, edges, parts=parts)


def wide(count=4, *, flops=1e11):
    """`count` equal branches side by side between one input and one merge."""
    names = [f"b{i}" for i in range(count)]
    sides = [call(n, flops=flops, weights=(f"{n}/w",)) for n in names]
    edges = [("x", n) for n in names] + [(n, "join") for n in names]
    parts = [*inputs("x"), *map(Part, names), MERGE]
    return graph_of("wide", [source("x"), *sides, JOIN], edges, parts=parts)


def random_dag(seed, count=8):
    """A random graph of `count` parts, some of which share weights."""
    draw = random.Random(seed)
    names = [f"p{i}" for i in range(count)]
    calls, edges = [source("x")], []
    for i, name in enumerate(names):
        weights = (f"w{draw.randrange(i + 1)}",) if draw.random() < 0.7 else ()
        flops = draw.choice([1e8, 1e9, 1e10, 1e11])
        out = draw.choice([1024, MIB, 2**26])
        calls.append(call(name, flops=flops, out=out, weights=weights))
        before = ["x", *names[:i]]
        for other in draw.sample(before, min(len(before), draw.randint(1, 3))):
            edges.append((other, name))
    return graph_of(f"random{seed}", calls, edges)


def between_parts(graph):
    """The graph of the parts, with the bytes between them; a tensor counts once."""
    part = {call.name: call.part for call in graph.calls}
    read = {(t.source, t.index, part[t.target]): t.bytes for t in graph.tensors}
    made = nx.DiGraph()
    for (source, _, target), count in read.items():
        ends = (part[source], target)
        if ends[0] != target:
            known = made.get_edge_data(*ends, {"bytes": 0})["bytes"]
            made.add_edge(*ends, bytes=known + count)
    return made
