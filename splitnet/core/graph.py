"""Dependency graph of a model: calls, the tensors between them, and weights.

The vertex is a call, not a layer: a layer that two branches share is called twice, and
a graph of layers could have a cycle.
"""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, prod
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Meta

from splitnet.core.checks import Amount, Count, Positive, check_fields
from splitnet.core.errors import DeclarationError, repeated

if TYPE_CHECKING:
    import networkx as nx

BATCH_NORMS = ("per_tower", "synchronised")
_MOST_BYTES = 2**58
_MOST_STEPS = 10**6
Kernels = Literal[
    "", "product", "convolution", "depthwise", "gather", "recurrence", "element-wise"
]
"""Classes of kernels; "" where the kind of a call tells."""
Shape = tuple[Count | None, ...]
Places = Mapping[str, str]  # such as the device of each part
Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Items by what they have in common, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one layer (or one raw operation) for one batch.

    A multiply-add counts as two FLOPs. `moved_bytes` is what the forward pass reads and
    writes in its device's memory; `activation_bytes` what stays until the backward
    pass, once for all that keep it: `inner_bytes` of it are no input and no output
    (None: unknown), and with `keeps_output` its backward pass reads its outputs. Of
    `workspace_bytes`, gone when the call is, `early_bytes` need no gradient: they are
    there when its function's backward pass begins. `given_bytes` are added if another
    function gives its gradient. `seconds_on`, ((device kind, seconds), ...), and
    `transfer_seconds` (of sending its output once) are known and beat any estimate; a
    workload file charges `size_bytes`. `cpu_only`: without a GPU kernel; `backward`: of
    the backward pass. `lookups` are weights of which it reads rows: their gradient has
    those rows alone. `sequential_steps` counts the steps of a recurrence, each of which
    waits for the one before. `efficiency` names the class of its kernels and `kernels`
    counts those of a forward pass, where the kind does not tell; compiled with XLA it
    has `fused_kernels`, which move `fused_bytes`, if any. `settings` fingerprint the
    layer's configuration. `batch_moments`: it normalizes by moments of the batch. The
    outputs in `fixed_outputs` have the same size for any batch.
    """

    name: str
    part: str
    kind: str
    layer: str = ""
    output_shapes: tuple[Shape, ...] = ()
    output_dtypes: tuple[str, ...] = ()
    output_bytes: Count = 0
    forward_flops: Amount = 0.0
    backward_flops: Amount = 0.0
    moved_bytes: Amount = 0.0
    activation_bytes: Count = 0
    workspace_bytes: Count = 0
    inner_bytes: Count | None = None
    keeps_output: bool = False
    early_bytes: Count = 0
    given_bytes: Count = 0
    weights: tuple[str, ...] = ()
    cpu_only: bool = False
    backward: bool = False
    size_bytes: Count = 0
    seconds_on: tuple[tuple[str, Amount], ...] = ()
    transfer_seconds: Amount | None = None
    lookups: tuple[str, ...] = ()
    sequential_steps: Annotated[int, Meta(ge=1, le=_MOST_STEPS)] = 1
    efficiency: Kernels = ""
    kernels: Annotated[int, Meta(ge=0, le=_MOST_STEPS)] = 0
    fused_kernels: Annotated[int, Meta(ge=0, le=_MOST_STEPS)] = 0
    fused_bytes: Amount = 0.0
    settings: str = ""
    batch_moments: bool = False
    fixed_outputs: tuple[Count, ...] = ()

    def bytes_of(self, outputs: Sequence[int]) -> int:
        """The bytes of some of its outputs, as if all had one type."""
        sizes = [prod(extent or 1 for extent in s) for s in self.output_shapes]
        some = sum(size for i, size in enumerate(sizes) if i in outputs)
        return self.output_bytes * some // (sum(sizes) or 1)


@dataclass(frozen=True, slots=True)
class Tensor:
    """What `target` reads of `source`, if `kept` again in its backward pass."""

    source: str
    target: str
    index: Count = 0
    shape: Shape = ()
    dtype: str = "float32"
    bytes: Count = 0
    kept: bool = False

    @property
    def differentiable(self) -> bool:
        """Whether a gradient of the same size comes back in training."""
        return "float" in self.dtype


@dataclass(frozen=True, slots=True)
class Weights:
    """One variable, counted once however many calls use it."""

    name: str
    bytes: Count
    shape: Shape = ()
    dtype: str = "float32"
    trainable: bool = True


@dataclass(frozen=True, slots=True)
class Part:
    """Calls that are placed together: a branch of a net, or a group of a model's calls.

    `kind` is "branch", "merge", "input", "tower" or "weights", `on` the devices in
    order of preference ("gpu:0", "gpu", "auto"), `pinned` by a pin, `where` in code.
    """

    name: str
    kind: str = "branch"
    on: tuple[str, ...] = ("auto",)
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    where: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Towers:
    """A replicated body: the devices of each tower, and of the weights."""

    on: tuple[tuple[str, ...], ...]
    weights_on: tuple[str, ...] = ("cpu",)
    batch_norm: str = BATCH_NORMS[0]

    @property
    def count(self) -> int:
        """How many towers there are."""
        return len(self.on)


@dataclass(frozen=True)
class Graph:
    """All calls of one model for one batch, in topological order.

    `towers`, by the part that joins them, are written out; `plain` is that before.
    """

    name: str
    batch: Positive
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...] = ()
    weights: tuple[Weights, ...] = ()
    parts: tuple[Part, ...] = ()
    outputs: tuple[str, ...] = ()
    towers: Mapping[str, Towers] = field(default_factory=dict, hash=False)
    plain: "Graph | None" = None
    training: bool | None = None  # what it was read for, if known

    def __post_init__(self) -> None:
        check_fields(self)
        if faults := list(_faults(self)):
            raise DeclarationError(f"the graph of {self.name!r} is broken.", faults)

    def __repr__(self) -> str:
        size = sum(weights.bytes for weights in self.weights)
        counts = f"{len(self.parts)} parts, {len(self.calls)} calls, {size:,} bytes of"
        return f"<Graph {self.name!r}: batch {self.batch}, {counts} weights>"

    @cached_property
    def call(self) -> Mapping[str, Call]:
        """Calls by name."""
        return {call.name: call for call in self.calls}

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The place of each call in the running order, by name."""
        return {call.name: i for i, call in enumerate(self.calls)}

    @cached_property
    def part(self) -> Mapping[str, Part]:
        """Parts by name."""
        return {part.name: part for part in self.parts}

    @cached_property
    def weight(self) -> Mapping[str, Weights]:
        """Weights by name."""
        return {weights.name: weights for weights in self.weights}

    @cached_property
    def calls_of(self) -> Mapping[str, tuple[Call, ...]]:
        """The calls of each part, in running order; a part may have none."""
        calls = grouped(self.calls, attrgetter("part"))
        return {part.name: tuple(calls.get(part.name, ())) for part in self.parts}

    @cached_property
    def parts_of_weights(self) -> Mapping[str, tuple[str, ...]]:
        """The parts that use each weight; the first of them is its home."""
        users: dict[str, dict[str, None]] = {w.name: {} for w in self.weights}
        for call in self.calls:
            for name in call.weights:
                users[name][call.part] = None
        return {name: tuple(parts) for name, parts in users.items()}

    @cached_property
    def uncounted(self) -> list[tuple[str, str]]:
        """Kind and name of each call, without the numbers that Keras gives."""
        return [(call.kind, re.sub(r"_\d+\b", "", call.name)) for call in self.calls]

    def networkx(self) -> "nx.DiGraph[str]":
        """The dependency graph: a vertex per call, an edge per pair with `bytes`."""
        import networkx as nx  # not where a net is declared

        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name, batch=self.batch)
        graph.add_nodes_from((c.name, {"call": c, "part": c.part}) for c in self.calls)
        tensors = grouped(self.tensors, attrgetter("source", "target"))
        for (source, target), its in tensors.items():
            graph.add_edge(source, target, bytes=sum(one.bytes for one in its))
        return graph


def _faults(graph: Graph) -> Iterator[str]:
    known = {"call": graph.call, "part": graph.part, "weight": graph.weight}
    for what, table in zip(known, (graph.calls, graph.parts, graph.weights)):
        own = map(attrgetter("name"), table)
        yield from (f"{what} {name!r} is repeated" for name in repeated(own))
    uses = [("output", "call", graph.outputs)]
    sizes = [weights.bytes for weights in graph.weights]
    for c in graph.calls:
        sizes += [c.output_bytes, c.activation_bytes, c.workspace_bytes, c.size_bytes]
        sizes.append(c.inner_bytes or 0)
        shapes, dtypes = len(c.output_shapes), len(c.output_dtypes)
        if shapes and shapes != dtypes:
            yield f"call {c.name!r} has {shapes} output shapes and {dtypes} dtypes"
        uses.append((f"call {c.name!r}", "part", (c.part,)))
        uses.append((f"call {c.name!r}", "weight", (*c.weights, *c.lookups)))
    uses += [(f"part {p.name!r}", "part", (*p.near, *p.apart)) for p in graph.parts]
    for tensor in graph.tensors:
        sizes.append(tensor.bytes)
        who = f"tensor {tensor.source} -> {tensor.target}"
        uses.append((who, "call", (tensor.source, tensor.target)))
        source = graph.call.get(tensor.source)
        if source and tensor.index >= (len(source.output_shapes) or 64):
            yield f"{who}: there is no output {tensor.index}"
        if graph.number.get(tensor.target, inf) <= graph.number.get(tensor.source, -1):
            yield f"{who}: its calls are not in topological order"
    for who, what, names in uses:
        for name in names:
            if name not in known[what]:
                yield f"{who} names the {what} {name!r}, which does not exist"
    if sum(sizes) > _MOST_BYTES:
        yield "its tensors and weights have more than 2**58 bytes together"


def names_of(graph: Graph, part: Part) -> dict[str, int]:
    """Every name that means a part, and its rank: 0 its own, 1 a call, then models.

    The last rank are layers. A call "stem@2/conv" also answers to "stem/conv".
    """
    names = {part.name: 0}
    for call in graph.calls_of[part.name]:
        steps = call.name.split("/")
        bare = [step.partition("@")[0] for step in steps]
        for end in range(len(steps), 0, -1):
            names.setdefault("/".join(steps[:end]), 1 + len(steps) - end)
        for other in (call.layer, *("/".join(bare[: n + 1]) for n in range(len(bare)))):
            names.setdefault(other, 100)
    return names


def parts_called(graph: Graph, name: str) -> tuple[str, ...]:
    """The parts that a name means: that part, or those with that call or layer."""
    if name in graph.part or not name:
        return (name,) if name else ()
    ranks = {part.name: names_of(graph, part).get(name) for part in graph.parts}
    best = min((rank for rank in ranks.values() if rank is not None), default=-1)
    return tuple(part for part, rank in ranks.items() if rank == best)


def near_groups(parts: Sequence[Any]) -> list[tuple[str, ...]]:
    """Names of parts, or of branches, bound by near=, in order of declaration."""
    import networkx as nx

    bound = nx.utils.UnionFind([part.name for part in parts])
    for part in parts:
        bound.union(part.name, *part.near)
    members = grouped((part.name for part in parts), bound.__getitem__)
    return [*map(tuple, members.values())]


def conflicts(
    parts: Sequence[Any], allowed: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """Conflicts of near=, apart= and `allowed` devices; one without may use any."""
    where = {part.name: f"{part.where}: " if part.where else "" for part in parts}
    group: dict[str, tuple[str, ...]] = {}
    device: dict[str, tuple[str, ...]] = {}  # the devices that a part may use
    for names in near_groups(parts):
        lists = {name: allowed[name] for name in names if name in allowed}
        common = in_all([*lists.values()])
        if lists and not common:
            wants = [f"{name!r} on {', '.join(its)}" for name, its in lists.items()]
            head = f"{where[names[0]]}near= binds parts that cannot share a device"
            yield f"{head}: {'; '.join(wants)}"
        group |= dict.fromkeys(names, names)
        device |= {name: common or allowed.get(name, ()) for name in names}
    for part in parts:
        for other in part.apart:
            here = device.get(part.name, ())
            head = f"{where[part.name]}{part.name!r} must be apart from {other!r}, but"
            if other in group[part.name]:
                yield f"{head} near= binds them to one device"
            elif len(here) == 1 and here == device.get(other):
                yield f"{head} both are on {here[0]}"


def in_all(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What stands in each of some lists, in the order of the first."""
    return tuple(x for x in (lists or [()])[0] if all(x in other for other in lists))
