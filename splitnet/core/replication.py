"""Towers: one body on several devices, each with its share of the batch.

    x --+-- enc/0  (gpu:0, samples 0-3) --+-- enc --      enc/weights on the CPU,
        +-- enc/1  (gpu:1, samples 4-6) --+               read by both

A branch "enc" of kind "towers" becomes parts of the graph: "enc/weights", where the
weights are; "enc/0", "enc/1" and so on, one per tower; and "enc", which joins their
outputs. So towers are planned, simulated, drawn and audited like everything else.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from math import prod

from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.net import BATCH_NORMS, Towers

JOINS = ("SliceJoin",)
"""Kinds of calls that make one layer's output of its slices'."""
MOMENTS = "Moments"
"""Kind of the calls that compute the moments of a batch that towers share."""


def batch_shares(batch: int, count: int) -> tuple[int, ...]:
    """Split a batch as evenly as can be, the larger shares first.

    >>> batch_shares(7, 4), batch_shares(2, 4)
    ((2, 2, 2, 1), (1, 1, 0, 0))
    """
    base, rest = divmod(batch, count)
    return tuple(base + (i < rest) for i in range(count))


def tower_part(name: str, number: int) -> str:
    """The part of one tower."""
    return f"{name}/{number}"


def weights_part(name: str) -> str:
    """The part that holds the weights of all towers."""
    return f"{name}/weights"


def towers_in(graph: Graph) -> dict[str, Towers]:
    """The towers of an expanded graph, by the name of their branch."""
    found: dict[str, Towers] = {}
    for part in graph.parts:
        options = dict(part.options)
        if "towers" not in options:
            continue
        home = graph.part.get(weights_part(part.name))
        numbers = range(int(options["towers"]))
        found[part.name] = Towers(
            tuple(graph.part[tower_part(part.name, i)].on for i in numbers),
            home.on if home else ("cpu",),
            options.get("batch_norm", BATCH_NORMS[0]),
            tuple(filter(None, options.get("broadcast", "").split("\n"))),
        )
    return found


def broadcast_inputs(graph: Graph) -> set[str]:
    """The input parts that towers read whole and nothing else reads."""
    towers = towers_in(graph)
    names = {tower_part(n, i): n for n, one in towers.items() for i in range(one.count)}
    split, whole = set[str](), set[str]()
    for tensor in graph.tensors:
        source = graph.call[tensor.source].part
        reader = names.get(graph.call[tensor.target].part)
        known = reader is not None and source in towers[reader].broadcast
        (whole if known else split).add(source)
    return {name for name in whole - split if graph.part[name].kind == "input"}


def microbatch_growth(
    graph: Graph, count: int, batch: int | None = None
) -> dict[str, float]:
    """Samples per tower with micro-batches, as a multiple of its share of the batch.

    Each micro-batch is split anew: of 7 samples in two micro-batches the first of two
    towers gets two of each, and a tower without a sample a copy of one. `batch` is that
    of the micro-batches, if it is not the graph's.
    """
    found = {}
    whole = graph.batch if batch is None else batch
    for name, one in towers_in(graph).items():
        cuts = [batch_shares(n, one.count) for n in batch_shares(whole, count)]
        for i, share in enumerate(batch_shares(graph.batch, one.count)):
            asked = sum(max(1, cut[i]) for cut in cuts)
            found[tower_part(name, i)] = asked / max(1, share)
    return found


def split_layers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The name of each layer that was cut into slices, and the calls of the slices."""
    return {
        call.layer.removesuffix("_join"): tuple(
            t.source for t in graph.tensors if t.target == call.name
        )
        for call in graph.calls
        if call.kind in JOINS
    }


def expand(
    graph: Graph, smaller: Mapping[int, Graph], towers: Mapping[str, Towers]
) -> Graph:
    """Write each tower out as a part of its own, with the costs of its share.

    A tower without a sample, where the batch is smaller than their number, runs one
    that counts for nothing, and is charged for it. `smaller` is the graph as it is read
    for each share of the batch; `towers` is by the name of a part.
    """
    return _Expansion(graph, smaller, towers).graph() if towers else graph


class _Expansion:
    """State of one expansion: of which calls there are several, and what joins them."""

    def __init__(
        self, graph: Graph, smaller: Mapping[int, Graph], towers: Mapping[str, Towers]
    ) -> None:
        self.whole, self.towers = graph, towers
        self.shares = {
            name: [smaller[max(1, n)] for n in batch_shares(graph.batch, one.count)]
            for name, one in towers.items()
        }
        self.part = {c.name: c.part for c in graph.calls if c.part in towers}
        joined = {t.source for t in graph.tensors if not self._aligned(t)}
        self.join_of: dict[str, str] = {}
        for part in towers:
            names = (call.name for call in graph.calls_of[part])
            ends = [n for n in names if n in joined or n in graph.outputs]
            for i, name in enumerate(ends):
                self.join_of[name] = f"{part}/join{f'@{i + 1}' if i else ''}"
        # A synchronised BatchNormalization -> calls that compute the moments of each
        # share, and, the last, from these at home those of the batch.
        self.moments: dict[str, list[Call]] = {}
        for name, part in self.part.items():
            call, count = graph.call[name], towers[part].count
            synchronised = towers[part].batch_norm == "synchronised"
            if synchronised and call.batch_moments and call.weights:
                size = graph.weight[call.weights[0]]
                one = Call(
                    "",
                    "",
                    MOMENTS,
                    output_shapes=((2, *size.shape),),
                    output_dtypes=(size.dtype,),
                    output_bytes=2 * size.bytes,
                )
                places = [tower_part(part, i) for i in range(count)]
                self.moments[name] = [
                    replace(one, name=f"{_inside(name, part, to)}/moments", part=to)
                    for to in (*places, weights_part(part))
                ]

    def graph(self) -> Graph:
        """The expanded graph."""
        return replace(
            self.whole,
            calls=tuple(self._calls()),
            tensors=tuple(dict.fromkeys(self._tensors())),
            parts=tuple(self._parts()),
            outputs=tuple(self.join_of.get(n, n) for n in self.whole.outputs),
        )

    def _aligned(self, tensor: Tensor) -> bool:
        """Whether no join is between: tower i of the source feeds that of the target.

        Or whether the source is no call of towers at all.
        """
        source, target = self.part.get(tensor.source), self.part.get(tensor.target)
        if source is None or source == target:
            return True
        return (
            target is not None
            and self.towers[source].count == self.towers[target].count
            and source not in self.towers[target].broadcast
        )

    def _parts(self) -> Iterator[Part]:
        for part in self.whole.parts:
            if part.name not in self.towers:
                yield part
                continue
            name, one = part.name, self.towers[part.name]
            if any(call.weights for call in self.whole.calls_of[name]):
                home = weights_part(name)
                yield Part(home, "weights", one.weights_on, where=part.where)
            for i, on in enumerate(one.on):
                yield Part(tower_part(name, i), "tower", on, where=part.where)
            options = [("towers", str(one.count)), ("batch_norm", one.batch_norm)]
            if one.broadcast:
                options.append(("broadcast", "\n".join(one.broadcast)))
            yield replace(part, kind="merge", options=tuple(options))

    def _calls(self) -> Iterator[Call]:
        begun: set[str] = set()
        for call in self.whole.calls:
            if call.name not in self.part:
                yield call
                continue
            if call.part not in begun:
                begun.add(call.part)
                its = (c.weights for c in self.whole.calls_of[call.part])
                if used := tuple(dict.fromkeys(chain.from_iterable(its))):
                    home = weights_part(call.part)
                    yield Call(f"{home}/hold", home, "Weights", weights=used)
            yield from self.moments.get(call.name, ())
            for i, smaller in enumerate(self.shares[call.part]):
                to = tower_part(call.part, i)
                name = _inside(call.name, call.part, to)
                yield replace(smaller.call[call.name], name=name, part=to)
            if call.name in self.join_of:
                yield Call(
                    self.join_of[call.name],
                    call.part,
                    "Concatenate",
                    output_shapes=call.output_shapes,
                    output_dtypes=call.output_dtypes,
                    output_bytes=call.output_bytes,
                    moved_bytes=2.0 * call.output_bytes,
                )

    def _tensors(self) -> Iterator[Tensor]:
        for number, tensor in enumerate(self.whole.tensors):
            source, target = self.part.get(tensor.source), self.part.get(tensor.target)
            from_part = self.whole.call[tensor.source].part
            if not self._aligned(tensor):
                yield from self._to_join(tensor.source, tensor.index)
                tensor = replace(tensor, source=self.join_of[tensor.source])
                source = None
            if target is None:
                yield tensor
                continue
            moments = self.moments.get(tensor.target, [])
            for i, smaller in enumerate(self.shares[target]):
                whole = from_part in self.towers[target].broadcast
                share = tensor if whole else smaller.tensors[number]
                start = tensor.source
                if source is not None:
                    start = _inside(start, source, tower_part(source, i))
                into = _inside(tensor.target, target, tower_part(target, i))
                share = replace(share, source=start, target=into)
                yield share
                if moments:
                    yield replace(share, target=moments[i].name, kept=False)
            for i, one in enumerate(moments[:-1]):
                home, into = moments[-1], tower_part(target, i)
                yield _whole_output(one, home.name)
                yield _whole_output(home, _inside(tensor.target, target, into))
        for name in self.whole.outputs:
            if name in self.part:
                for index in range(len(self.whole.call[name].output_shapes)):
                    yield from self._to_join(name, index)

    def _to_join(self, name: str, index: int) -> Iterator[Tensor]:
        """What the towers send to be joined; bytes by the calls' own outputs."""
        part = self.part[name]
        for i, smaller in enumerate(self.shares[part]):
            call = smaller.call[name]
            sizes = [prod(extent or 1 for extent in s) for s in call.output_shapes]
            yield Tensor(
                _inside(name, part, tower_part(part, i)),
                self.join_of[name],
                index,
                call.output_shapes[index],
                call.output_dtypes[index],
                call.output_bytes * sizes[index] // (sum(sizes) or 1),
            )


def _whole_output(call: Call, target: str) -> Tensor:
    shape, dtype = call.output_shapes[0], call.output_dtypes[0]
    return Tensor(call.name, target, 0, shape, dtype, call.output_bytes)


def _inside(call: str, part: str, to: str) -> str:
    """The name of a call in a tower: "enc/dense" of "enc" is "enc/0/dense" there."""
    return f"{to}/{call.removeprefix(part + '/')}"


def fold(graph: Graph, *, bare: bool = False) -> tuple[Call, ...]:
    """The calls as they were before `expand`: one for all towers, and no joins.

    `bare` leaves the branch's name out of a call's, as in a Keras model.
    """
    calls, names = collapse(graph).calls, towers_in(graph)
    if not bare:
        return calls
    return tuple(
        replace(call, name=call.name.removeprefix(f"{call.part}/"))
        if call.part in names
        else call
        for call in calls
    )


def in_pieces(graph: Graph, kept: Collection[str] = ()) -> tuple[Graph, list[str]]:
    """All calls but the inputs and some parts as few parts, and their names.

    They are one part that is named for the model, unless data go through a part that is
    kept and come back.
    """
    still = {*kept, *(part.name for part in graph.parts if part.kind == "input")}
    reads: dict[str, list[str]] = {call.name: [] for call in graph.calls}
    for tensor in graph.tensors:
        reads[tensor.target].append(tensor.source)
    level: dict[str, int] = {}  # times that data have left a kept part before a call
    for call in graph.calls:
        moves = call.part not in still
        level[call.name] = max(
            (
                level[s] + (moves and graph.call[s].part in still)
                for s in reads[call.name]
            ),
            default=0,
        )
    name = graph.name
    while name in still:
        name += "_towers"
    levels = sorted({level[c.name] for c in graph.calls if c.part not in still})
    names = {n: f"{name}_{n}" for n in levels[:-1]} | dict.fromkeys(levels[-1:], name)
    calls = (
        call if call.part in still else replace(call, part=names[level[call.name]])
        for call in graph.calls
    )
    parts = [
        *(replace(p, near=(), apart=()) for p in graph.parts if p.name in still),
        *(Part(one, "towers") for one in names.values()),
    ]
    made = replace(graph, calls=tuple(calls), parts=tuple(parts))
    return made, list(names.values())


def named_for(graph: Graph, parts: Collection[str]) -> Graph:
    """The calls of some parts named "part/call", as those of towers are."""
    new = {
        call.name: f"{call.part}/{call.name}" if call.part in parts else call.name
        for call in graph.calls
    }
    return replace(
        graph,
        calls=tuple(replace(call, name=new[call.name]) for call in graph.calls),
        tensors=tuple(
            replace(t, source=new[t.source], target=new[t.target])
            for t in graph.tensors
        ),
        outputs=tuple(new[name] for name in graph.outputs),
    )


def collapse(graph: Graph) -> Graph:
    """The graph as if each body ran once, on the whole batch: the inverse of `expand`.

    Costs of the towers are added up; a graph without towers is returned as it is.
    """
    towers = towers_in(graph)
    if not towers:
        return graph
    plain: dict[str, str] = {}  # call of a tower, or a join -> call of the whole batch
    whole: dict[str, Call] = {}
    for name, one in towers.items():
        for i in range(one.count):
            for call in graph.calls_of[tower_part(name, i)]:
                if call.kind != MOMENTS:
                    own = _inside(call.name, call.part, name)
                    plain[call.name] = own
                    added = replace(call, name=own, part=name)
                    known = whole.get(own)
                    whole[own] = _summed(known, added) if known else added
    for t in graph.tensors:
        if graph.call[t.target].part in towers:
            plain[t.target] = plain[t.source]
    homes = {*map(weights_part, towers)}
    calls = {
        name: whole.get(name, call)
        for call in graph.calls
        if call.kind != MOMENTS and call.part not in homes
        for name in (plain.get(call.name, call.name),)
    }
    return replace(
        graph,
        calls=tuple(calls.values()),
        tensors=tuple(_collapsed_tensors(graph, plain)),
        parts=tuple(
            replace(p, kind="branch", options=()) if p.name in towers else p
            for p in graph.parts
            if p.kind not in ("tower", "weights")
        ),
        outputs=tuple(dict.fromkeys(plain.get(n, n) for n in graph.outputs)),
    )


def _summed(one: Call, other: Call) -> Call:
    shapes = tuple(
        (a[0] + b[0], *a[1:]) if a and a[0] is not None and b[0] is not None else a
        for a, b in zip(one.output_shapes, other.output_shapes)
    )
    return replace(
        one,
        output_shapes=shapes,
        output_bytes=one.output_bytes + other.output_bytes,
        moved_bytes=one.moved_bytes + other.moved_bytes,
        activation_bytes=one.activation_bytes + other.activation_bytes,
        workspace_bytes=one.workspace_bytes + other.workspace_bytes,
        early_bytes=one.early_bytes + other.early_bytes,
        forward_flops=one.forward_flops + other.forward_flops,
        backward_flops=one.backward_flops + other.backward_flops,
    )


def _collapsed_tensors(graph: Graph, plain: Mapping[str, str]) -> Iterable[Tensor]:
    """Tensors between whole calls, their bytes added up over the towers."""
    found: dict[tuple[str, str, int], Tensor] = {}
    whole = {c.name for name in broadcast_inputs(graph) for c in graph.calls_of[name]}
    for t in graph.tensors:
        source, target = plain.get(t.source, t.source), plain.get(t.target, t.target)
        kinds = graph.call[t.source].kind, graph.call[t.target].kind
        if source == target or MOMENTS in kinds:
            continue
        key = (source, target, t.index)
        before = None if t.source in whole else found.get(key)
        count = t.bytes + (before.bytes if before else 0)
        found[key] = replace(t, source=source, target=target, bytes=count)
    return found.values()
