"""Dependency graph of a model: calls, the tensors between them, and weights.

The vertex is a call, not a layer: a layer that two branches share is called twice, and
a graph of layers could have a cycle. Weights are stored once, however many calls use
them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

import networkx as nx
from msgspec import Meta

from splitnet.core.checks import Amount, Count, Positive, check_fields
from splitnet.core.errors import DeclarationError, listed, repeated

_MOST_BYTES = 2**58
_MOST_STEPS = 10**6
Kernels = Literal[
    "", "product", "convolution", "depthwise", "gather", "recurrence", "element-wise"
]
"""Classes of kernels; "" where the kind of a call tells."""

Shape = tuple[Count | None, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one layer (or one raw operation) for one batch.

    `forward_flops` and `backward_flops` count a multiply-add as two. `moved_bytes` is
    what the forward pass reads and writes in its device's memory. `activation_bytes` is
    what stays until the backward pass because of it, a tensor that several keep counted
    once; of that `inner_bytes` are no input and no output of it (None where nobody
    says), and `keeps_output` that its backward pass reads its outputs.
    `workspace_bytes` is what is gone when the call is; of that `early_bytes` need no
    gradient, so that they are there when the backward pass of its function begins.
    `seconds_on` holds known times, ((device kind, seconds), ...), which beat any
    estimate; `transfer_seconds` likewise for sending its output once; `size_bytes` is
    memory that a workload file charges to it. `cpu_only` marks a call without a GPU
    kernel, `backward` one that belongs to the backward pass by itself. `lookups` are
    those of its weights of which it reads rows: their gradient has those rows alone.
    `sequential_steps` counts the steps of a recurrence, each of which waits for the one
    before; FLOPs and bytes are those of all of them. `efficiency` names the class of
    its kernels and `kernels` counts those of a forward pass, where the kind does not
    tell. `settings` is a fingerprint of the layer's configuration, "" if unknown.
    `batch_moments` says that it normalizes by mean and variance over the batch, as a
    BatchNormalization and its subclasses do.
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
    settings: str = ""
    batch_moments: bool = False


@dataclass(frozen=True, slots=True)
class Tensor:
    """One output of `source` that `target` reads; bytes for the whole batch.

    `kept` says that the target's backward pass reads it again.
    """

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

    `kind` is "branch", "merge", "input", "tower" or "weights". `on` is the order of
    preference, canonical names and kinds ("gpu:0", "gpu", "auto"); `where` the user's
    file and line; `options` what a kind needs besides, (name, value).
    """

    name: str
    kind: str = "branch"
    on: tuple[str, ...] = ("auto",)
    near: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()
    where: str = ""
    options: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Graph:
    """All calls of one model for one batch, in topological order.

    `outputs` names the calls whose results leave the model.
    """

    name: str
    batch: Positive
    calls: tuple[Call, ...]
    tensors: tuple[Tensor, ...] = ()
    weights: tuple[Weights, ...] = ()
    parts: tuple[Part, ...] = ()
    outputs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an invalid graph.

        Raises:
            DeclarationError: with every fault found.
        """
        check_fields(self)
        faults = list(_faults(self)) or _cycle_faults(self)
        if faults:
            raise DeclarationError(
                listed(f"the graph of {self.name!r} is broken.", faults)
            )

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name!r}: batch {self.batch}, {len(self.parts)} parts, "
            f"{len(self.calls)} calls, {sum(w.bytes for w in self.weights):,} bytes of "
            "weights>"
        )

    @cached_property
    def call(self) -> Mapping[str, Call]:
        """Calls by name."""
        return {call.name: call for call in self.calls}

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
        found: dict[str, list[Call]] = {part.name: [] for part in self.parts}
        for call in self.calls:
            found[call.part].append(call)
        return {part: tuple(calls) for part, calls in found.items()}

    @cached_property
    def parts_of_weights(self) -> Mapping[str, tuple[str, ...]]:
        """The parts that use each weight; the first of them is its home."""
        users: dict[str, dict[str, None]] = {w.name: {} for w in self.weights}
        for call in self.calls:
            for name in call.weights:
                users[name][call.part] = None
        return {name: tuple(parts) for name, parts in users.items()}

    def networkx(self) -> "nx.DiGraph[str]":
        """The dependency graph: a vertex per call, an edge per pair with `bytes`."""
        graph: nx.DiGraph[str] = nx.DiGraph(name=self.name, batch=self.batch)
        for call in self.calls:
            graph.add_node(call.name, call=call, part=call.part)
        for tensor in self.tensors:
            ends = (tensor.source, tensor.target)
            known = graph.get_edge_data(*ends, {"bytes": 0})["bytes"]
            graph.add_edge(*ends, bytes=known + tensor.bytes)
        return graph


def _faults(graph: Graph) -> Iterator[str]:
    """Names that are repeated or missing, outputs that are not there, and the size."""
    for what, its in (
        ("call", graph.calls),
        ("part", graph.parts),
        ("weight", graph.weights),
    ):
        for name in repeated(one.name for one in its):
            yield f"{what} {name!r} is repeated"
    for call in graph.calls:
        if call.part not in graph.part:
            yield f"call {call.name!r} is of part {call.part!r}, which does not exist"
        for name in call.weights:
            if name not in graph.weight:
                yield f"call {call.name!r} uses weight {name!r}, which does not exist"
        shapes, dtypes = len(call.output_shapes), len(call.output_dtypes)
        if shapes and shapes != dtypes:
            yield f"call {call.name!r} has {shapes} output shapes and {dtypes} dtypes"
    for tensor in graph.tensors:
        head = f"tensor {tensor.source} -> {tensor.target}: there is no"
        for end in (tensor.source, tensor.target):
            if end not in graph.call:
                yield f"{head} call {end!r}"
        source = graph.call.get(tensor.source)
        if source and tensor.index >= (len(source.output_shapes) or 64):
            yield f"{head} output {tensor.index}"
    for part in graph.parts:
        for other in (*part.near, *part.apart):
            if other not in graph.part:
                yield f"part {part.name!r} names {other!r}, which is not a part"
    for name in graph.outputs:
        if name not in graph.call:
            yield f"output {name!r} is not a call"
    size = sum(tensor.bytes for tensor in graph.tensors)
    size += sum(weights.bytes for weights in graph.weights)
    size += sum(
        call.output_bytes
        + call.activation_bytes
        + call.workspace_bytes
        + (call.inner_bytes or 0)
        + call.size_bytes
        for call in graph.calls
    )
    if size > _MOST_BYTES:
        yield "its tensors and weights have more than 2**58 bytes together"


def _cycle_faults(graph: Graph) -> list[str]:
    """Calls must be in topological order."""
    position = {call.name: i for i, call in enumerate(graph.calls)}
    if all(position[t.source] < position[t.target] for t in graph.tensors):
        return []
    try:
        cycle = nx.find_cycle(graph.networkx())
    except nx.NetworkXNoCycle:
        return ["its calls are not in topological order"]
    return ["it has a cycle: " + " -> ".join([a for a, _ in cycle] + [cycle[0][0]])]


def names_of(graph: Graph, part: Part) -> dict[str, int]:
    """Every name that means a part, and its rank: the lower, the more specific.

    0 is the part's own name, 1 a call of it, 2 and more a model inside the model (the
    innermost first), then a layer. A call "stem@2/conv" also answers to "stem/conv".
    """
    names = {part.name: 0}
    for call in graph.calls_of[part.name]:
        names.setdefault(call.name, 1)
        steps = call.name.split("/")
        for end in range(len(steps) - 1, 0, -1):
            names.setdefault("/".join(steps[:end]), 1 + len(steps) - end)
        bare = [step.partition("@")[0] for step in steps]
        others = ["/".join(bare[:end]) for end in range(len(bare), 0, -1)]
        for other in (call.layer, *others):
            if other:
                names.setdefault(other, 100)
    return names


def parts_called(graph: Graph, name: str) -> tuple[str, ...]:
    """The parts that a name means: that part, or those with that call or layer."""
    if name in graph.part:
        return (name,)
    ranks = {
        part.name: rank
        for part in graph.parts
        if (rank := names_of(graph, part).get(name)) is not None
    }
    return tuple(p for p, rank in ranks.items() if rank == min(ranks.values()))


def near_groups(parts: Sequence[Any]) -> list[tuple[str, ...]]:
    """Names of parts, or of branches, bound by near=, in order of declaration."""
    bound = nx.utils.UnionFind([part.name for part in parts])
    for part in parts:
        bound.union(part.name, *part.near)
    members: dict[str, list[str]] = {}
    for part in parts:
        members.setdefault(bound[part.name], []).append(part.name)
    return [tuple(names) for names in members.values()]


def conflicts(
    parts: Sequence[Any], allowed: Mapping[str, tuple[str, ...]]
) -> Iterator[str]:
    """Conflicts of near= and apart= with each other and with the devices allowed.

    Args:
        parts: parts, or branches.
        allowed: the devices that each may use; one that is left out may use any.
    """
    groups = near_groups(parts)
    number = {name: i for i, names in enumerate(groups) for name in names}
    device: dict[str, str] = {}  # part -> the one device that it may use
    for names in groups:
        lists = [allowed[name] for name in names if name in allowed]
        common = in_all(lists)
        if lists and not common:
            wants = [f"{n!r} on {', '.join(allowed[n])}" for n in names if n in allowed]
            where = _place(part for part in parts if part.name in names)
            yield (
                f"{where}near= binds parts that cannot share a device: "
                f"{'; '.join(wants)}"
            )
        for name in names:
            choices = common or allowed.get(name, ())
            if len(choices) == 1:
                device[name] = choices[0]
    for part in parts:
        for other in part.apart:
            here = device.get(part.name)
            head = f"{_place([part])}{part.name!r} must be apart from {other!r}, but"
            if number[part.name] == number[other]:
                yield f"{head} near= binds them to one device"
            elif here and here == device.get(other):
                yield f"{head} both are on {here}"


def in_all(lists: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What stands in each of some lists, in the order of the first."""
    first = lists[0] if lists else ()
    return tuple(name for name in first if all(name in other for other in lists))


def _place(parts: Iterable[Any]) -> str:
    """Files and lines of the user's program, to begin a message with."""
    lines = ", ".join(dict.fromkeys(part.where for part in parts if part.where))
    return f"{lines}: " if lines else ""
