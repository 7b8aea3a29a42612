"""Towers: one body on several devices, each with its share of the batch.

    x --+-- enc/0  (gpu:0, samples 0-3) --+-- enc --      enc/weights on the CPU,
        +-- enc/1  (gpu:1, samples 4-6) --+               read by both

A branch "enc" of kind "towers" becomes parts of the graph: "enc/weights", where the
weights are; "enc/0", "enc/1" and so on; and "enc", which joins their outputs.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from splitnet.core.graph import Call, Graph, Part, Tensor, Towers


def batch_shares(batch: int, count: int) -> tuple[int, ...]:
    """Split a batch as evenly as can be, the larger shares first: 2, 2, 2, 1."""
    base, rest = divmod(batch, count)
    return tuple(base + (i < rest) for i in range(count))


def tower_part(name: str, number: int) -> str:
    """The part of one tower."""
    return f"{name}/{number}"


def weights_part(name: str) -> str:
    """The part that holds the weights of all towers."""
    return f"{name}/weights"


def microbatch_growth(graph: Graph, count: int, batch: int) -> dict[str, float]:
    """Samples per tower, each micro-batch split anew, as a multiple of its share."""
    found = {}
    for name, one in graph.towers.items():
        cuts = [batch_shares(n, one.count) for n in batch_shares(batch, count)]
        for i, share in enumerate(batch_shares(graph.batch, one.count)):
            asked = sum(max(1, cut[i]) for cut in cuts)  # of no sample, a copy of one
            found[tower_part(name, i)] = asked / max(1, share)
    return found


def split_layers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The name of each layer that was cut into slices, and the calls of the slices."""
    joins = {c.name: c.layer for c in graph.calls if c.kind == "SliceJoin"}
    ends = [(t.source, t.target) for t in graph.tensors]
    return {
        layer.removesuffix("_join"): tuple(a for a, b in ends if b == name)
        for name, layer in joins.items()
    }


def expand(graph: Graph, smaller: dict[int, Graph], towers: dict[str, Towers]) -> Graph:
    """Write each of `towers`, by part, out as a part with the costs of its share.

    A tower without a sample runs one that counts for nothing, and is charged for it.
    `smaller` is the graph as it is read for each share of the batch.
    """
    return _Expansion(graph, smaller, towers).graph() if towers else graph


class _Expansion:
    """State of one expansion: of which calls there are several, and what joins them."""

    def __init__(
        self, graph: Graph, smaller: Mapping[int, Graph], towers: Mapping[str, Towers]
    ) -> None:
        self.whole, self.towers = graph, towers
        self.part = {c.name: c.part for c in graph.calls if c.part in towers}
        self.shares: dict[str, list[Graph]] = {}
        self.places: dict[str, list[str]] = {}
        self.copies: dict[str, list[str]] = {}
        self.join_of: dict[str, str] = {}
        # A synchronised BatchNormalization -> calls that compute the moments of each
        # share, and, the last, from these at home those of the batch.
        self.moments: dict[str, list[Call]] = {}
        ended = {t.source for t in graph.tensors if not self._aligned(t)}
        ended |= {*graph.outputs}
        for part, one in towers.items():
            calls, home = graph.calls_of[part], weights_part(part)
            shares = batch_shares(graph.batch, one.count)
            self.shares[part] = [smaller[max(1, n)] for n in shares]
            self.places[part] = [tower_part(part, i) for i in range(one.count)]
            # "enc/dense" of "enc" is "enc/0/dense" in a tower, if all calls are so.
            named = all(call.name.startswith(f"{part}/") for call in calls)
            for i, name in enumerate(c.name for c in calls if c.name in ended):
                self.join_of[name] = f"{part}/join{f'@{i + 1}' if i else ''}"
            for call in calls:
                bare = call.name.removeprefix(f"{part}/" if named else "")
                self.copies[call.name] = [f"{to}/{bare}" for to in self.places[part]]
                synchronised = one.batch_norm == "synchronised" and call.batch_moments
                if synchronised and call.weights:
                    size = graph.weight[call.weights[0]]
                    out = ((2, *size.shape),), (size.dtype,), 2 * size.bytes
                    one_size = Call("", part, "Moments", "", *out, fixed_outputs=(0,))
                    self.moments[call.name] = [
                        replace(one_size, name=f"{to}/{bare}/moments", part=to)
                        for to in (*self.places[part], home)
                    ]

    def graph(self) -> Graph:
        kinds = dict.fromkeys(self.towers, "branch")
        plain = (replace(p, kind=kinds.get(p.name, p.kind)) for p in self.whole.parts)
        return replace(
            self.whole,
            calls=tuple(self._calls()),
            tensors=tuple(dict.fromkeys(self._tensors())),
            parts=tuple(self._parts()),
            outputs=tuple(self.join_of.get(n, n) for n in self.whole.outputs),
            towers=self.towers,
            plain=replace(self.whole, parts=tuple(plain)),
        )

    def _aligned(self, tensor: Tensor) -> bool:
        """Whether no join is between: tower i, or what is none, feeds tower i."""
        source, target = self.part.get(tensor.source), self.part.get(tensor.target)
        if source is None or target is None or source == target:
            return source is None or source == target
        return self.towers[source].count == self.towers[target].count

    def _parts(self) -> Iterator[Part]:
        for part in self.whole.parts:
            if (one := self.towers.get(part.name)) is None:
                yield part
                continue
            if any(call.weights for call in self.whole.calls_of[part.name]):
                home = weights_part(part.name)
                yield Part(home, "weights", one.weights_on, where=part.where)
            for place, on in zip(self.places[part.name], one.on):
                yield Part(place, "tower", on, where=part.where)
            yield replace(part, kind="merge")

    def _calls(self) -> Iterator[Call]:
        for call in self.whole.calls:
            if call.name not in self.part:
                yield call
                continue
            its = self.whole.calls_of[call.part]
            if call is its[0]:
                names = chain.from_iterable(one.weights for one in its)
                if used := tuple(dict.fromkeys(names)):
                    home = weights_part(call.part)
                    yield Call(f"{home}/hold", home, "Weights", weights=used)
            yield from self.moments.get(call.name, ())
            copies = zip(self.copies[call.name], self.places[call.part])
            for (name, to), smaller in zip(copies, self.shares[call.part]):
                yield replace(smaller.call[call.name], name=name, part=to)
            if call.name in self.join_of:
                out = call.output_shapes, call.output_dtypes, call.output_bytes
                join = Call(self.join_of[call.name], call.part, "Concatenate", "", *out)
                yield replace(join, moved_bytes=2.0 * call.output_bytes)

    def _tensors(self) -> Iterator[Tensor]:
        for number, tensor in enumerate(self.whole.tensors):
            target = self.part.get(tensor.target)
            starts = self.copies.get(tensor.source)
            if not self._aligned(tensor):
                yield from self._to_join(tensor.source, tensor.index)
                tensor = replace(tensor, source=self.join_of[tensor.source])
                starts = None
            if target is None:
                yield tensor
                continue
            moments = self.moments.get(tensor.target)
            for i, into in enumerate(self.copies[tensor.target]):
                share = self.shares[target][i].tensors[number]
                start = starts[i] if starts else tensor.source
                share = replace(share, source=start, target=into)
                yield share
                if moments:
                    yield replace(share, target=moments[i].name, kept=False)
                    for one, to in (moments[i], moments[-1].name), (moments[-1], into):
                        out = one.output_shapes[0], one.output_dtypes[0]
                        yield Tensor(one.name, to, 0, *out, one.output_bytes)
        for name in self.whole.outputs:
            if name in self.part:
                for index in range(len(self.whole.call[name].output_shapes)):
                    yield from self._to_join(name, index)

    def _to_join(self, name: str, index: int) -> Iterator[Tensor]:
        """What the towers send to be joined; bytes by the calls' own outputs."""
        for own, smaller in zip(self.copies[name], self.shares[self.part[name]]):
            call = smaller.call[name]
            out = call.output_shapes[index], call.output_dtypes[index]
            yield Tensor(own, self.join_of[name], index, *out, call.bytes_of([index]))


def fold(graph: Graph) -> tuple[Call, ...]:
    """The calls of the graph before `expand`, with the parts of this one."""
    return tuple(graph.call.get(c.name, c) for c in (graph.plain or graph).calls)


def in_pieces(graph: Graph, kept: Collection[str]) -> tuple[Graph, list[str]]:
    """All calls but inputs and kept parts as few parts, and the names of these."""
    still = {*kept, *(part.name for part in graph.parts if part.kind == "input")}
    stays = {call.name: call.part in still for call in graph.calls}
    level = dict.fromkeys(graph.call, 0)  # times that data have left a kept part before
    for t in sorted(graph.tensors, key=lambda tensor: graph.number[tensor.target]):
        leaves = stays[t.source] and not stays[t.target]
        level[t.target] = max(level[t.target], level[t.source] + leaves)
    name = graph.name
    while name in still:
        name += "_towers"
    levels = sorted({level[call] for call in level if not stays[call]})
    names = {n: f"{name}_{n}" for n in levels[:-1]} | dict.fromkeys(levels[-1:], name)
    part = {call: names[level[call]] for call in level if not stays[call]}
    calls = (replace(c, part=part.get(c.name, c.part)) for c in graph.calls)
    parts = [replace(p, near=(), apart=()) for p in graph.parts if p.name in still]
    parts += [Part(one, "towers") for one in names.values()]
    return replace(graph, calls=tuple(calls), parts=tuple(parts)), list(names.values())
