"""Towers: one body on several devices, each with its share of the batch.

    x --+-- enc/0  (gpu:0, samples 0-3) --+-- enc --      enc/weights on the CPU,
        +-- enc/1  (gpu:1, samples 4-6) --+               read by both

A branch "enc" of kind "towers" becomes parts of the graph: "enc/weights", where the
weights are; "enc/0", "enc/1" and so on, one per tower; and "enc", which joins their
outputs. So towers are planned, simulated, drawn and audited like everything else.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from splitnet.core.graph import Call, Graph, Part, Tensor
from splitnet.core.net import BATCH_NORMS, Towers

_SUMMED = (
    *("output_bytes", "moved_bytes", "activation_bytes", "workspace_bytes"),
    *("early_bytes", "forward_flops", "backward_flops"),
)

JOINS = ("HeadSum", "SideBySide")
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
        found[part.name] = Towers(
            tuple(
                graph.part[tower_part(part.name, i)].on
                for i in range(int(options["towers"]))
            ),
            home.on if home else ("cpu",),
            options.get("batch_norm", BATCH_NORMS[0]),
            tuple(filter(None, options.get("broadcast", "").split("\n"))),
        )
    return found


def broadcast_inputs(graph: Graph) -> set[str]:
    """The input parts that towers read whole and nothing else reads."""
    split: set[str] = set()
    whole: set[str] = set()
    towers = towers_in(graph)
    names = {tower_part(n, i): n for n, one in towers.items() for i in range(one.count)}
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
    """State of one expansion."""

    def __init__(
        self, graph: Graph, smaller: Mapping[int, Graph], towers: Mapping[str, Towers]
    ) -> None:
        self.whole, self.towers = graph, towers
        self.parts = {
            name: [smaller[max(1, n)] for n in batch_shares(graph.batch, one.count)]
            for name, one in towers.items()
        }
        self.joined = {
            t.source
            for t in graph.tensors
            if self._of(t.source) and not self._aligned(t)
        } | {name for name in graph.outputs if self._of(name)}
        self.join_of = {
            name: f"{graph.call[name].part}/join{'' if i == 0 else f'@{i + 1}'}"
            for part in towers
            for i, name in enumerate(
                c.name for c in graph.calls_of[part] if c.name in self.joined
            )
        }
        # A synchronised BatchNormalization -> the calls with the moments of each share,
        # and last, at home, of the batch.
        self.moments = {
            call.name: [
                *(f"{_inside(call.name, part, i)}/moments" for i in range(one.count)),
                f"{weights_part(part)}/{call.name.removeprefix(f'{part}/')}/moments",
            ]
            for part, one in towers.items()
            for call in graph.calls_of[part]
            if one.batch_norm == "synchronised"
            and call.kind == "BatchNormalization"
            and call.weights
        }

    def graph(self) -> Graph:
        """The expanded graph."""
        return replace(
            self.whole,
            calls=tuple(self._calls()),
            tensors=tuple(dict.fromkeys(self._tensors())),
            parts=tuple(self._parts()),
            outputs=tuple(self.join_of.get(n, n) for n in self.whole.outputs),
        )

    def _of(self, call: str) -> str:
        """The towers' name that a call belongs to, or ""."""
        part = self.whole.call[call].part
        return part if part in self.towers else ""

    def _aligned(self, tensor: Tensor) -> bool:
        """Whether tower i of the source feeds tower i of the target directly."""
        source, target = self._of(tensor.source), self._of(tensor.target)
        if not source or not target:
            return False
        return source == target or (
            self.towers[source].count == self.towers[target].count
            and source not in self.towers[target].broadcast
        )

    def _parts(self) -> Iterable[Part]:
        for part in self.whole.parts:
            if part.name not in self.towers:
                yield part
                continue
            one = self.towers[part.name]
            if any(call.weights for call in self.whole.calls_of[part.name]):
                yield Part(
                    weights_part(part.name), "weights", one.weights_on, where=part.where
                )
            for i, on in enumerate(one.on):
                yield Part(tower_part(part.name, i), "tower", on, where=part.where)
            options = [("towers", str(one.count)), ("batch_norm", one.batch_norm)]
            if one.broadcast:
                options.append(("broadcast", "\n".join(one.broadcast)))
            yield replace(part, kind="merge", options=tuple(options))

    def _calls(self) -> Iterable[Call]:
        begun: set[str] = set()
        for call in self.whole.calls:
            name = self._of(call.name)
            if not name:
                yield call
                continue
            if name not in begun:
                begun.add(name)
                yield from self._weights(name)
            yield from self._moments(call, name)
            for i, smaller in enumerate(self.parts[name]):
                yield replace(
                    smaller.call[call.name],
                    name=_inside(call.name, name, i),
                    part=tower_part(name, i),
                )
            if call.name in self.joined:
                yield self._join(call)

    def _weights(self, name: str) -> Iterable[Call]:
        calls = self.whole.calls_of[name]
        used = tuple(dict.fromkeys(w for call in calls for w in call.weights))
        if used:
            part = weights_part(name)
            yield Call(f"{part}/hold", part, "Weights", weights=used)

    def _moments(self, call: Call, name: str) -> Iterable[Call]:
        """Mean and variance of each share, and from these of the batch, at home."""
        places = [tower_part(name, i) for i in range(self.towers[name].count)]
        its = self.moments.get(call.name, ())
        for one, part in zip(its, (*places, weights_part(name)), strict=False):
            size = self.whole.weight[call.weights[0]]
            yield Call(
                one,
                part,
                MOMENTS,
                output_shapes=((2, *size.shape),),
                output_dtypes=(size.dtype,),
                output_bytes=2 * size.bytes,
            )

    def _meeting(self, tensor: Tensor, name: str) -> Iterable[Tensor]:
        """The moments that go home from each tower, and come back, for a tensor."""
        *towers, home = self.moments[tensor.target]
        size = self.whole.weight[self.whole.call[tensor.target].weights[0]]
        shape, size_bytes = (2, *size.shape), 2 * size.bytes
        for i, one in enumerate(towers):
            into = _inside(tensor.target, name, i)
            yield Tensor(one, home, 0, shape, size.dtype, size_bytes)
            yield Tensor(home, into, 0, shape, size.dtype, size_bytes)

    def _join(self, call: Call) -> Call:
        return Call(
            self.join_of[call.name],
            call.part,
            "Concatenate",
            output_shapes=call.output_shapes,
            output_dtypes=call.output_dtypes,
            output_bytes=call.output_bytes,
            moved_bytes=2.0 * call.output_bytes,
        )

    def _tensors(self) -> Iterable[Tensor]:
        for number, tensor in enumerate(self.whole.tensors):
            source, target = self._of(tensor.source), self._of(tensor.target)
            if source and not self._aligned(tensor):
                yield from self._to_join(tensor, source)
                tensor = replace(tensor, source=self.join_of[tensor.source])
                source = ""
            if not target:
                yield tensor
                continue
            from_part = self.whole.call[self.whole.tensors[number].source].part
            broadcast = from_part in self.towers[target].broadcast
            for i, smaller in enumerate(self.parts[target]):
                share = tensor if broadcast else smaller.tensors[number]
                if source:
                    share = replace(share, source=_inside(tensor.source, source, i))
                else:
                    share = replace(share, source=tensor.source)
                yield replace(share, target=_inside(tensor.target, target, i))
                if tensor.target in self.moments:
                    moments = self.moments[tensor.target][i]
                    yield replace(share, target=moments, kept=False)
            if tensor.target in self.moments:
                yield from self._meeting(tensor, target)
        for name in self.whole.outputs:
            part = self._of(name)
            if part:
                call = self.whole.call[name]
                for index, shape in enumerate(call.output_shapes):
                    one = Tensor(name, name, index, shape, call.output_dtypes[index])
                    yield from self._to_join(one, part)

    def _to_join(self, tensor: Tensor, part: str) -> Iterable[Tensor]:
        """What the towers send to be joined; bytes by the calls' own outputs."""
        for i, smaller in enumerate(self.parts[part]):
            call = smaller.call[tensor.source]
            shape = call.output_shapes[tensor.index]
            whole = sum(_count(s) for s in call.output_shapes) or 1
            yield Tensor(
                _inside(tensor.source, part, i),
                self.join_of[tensor.source],
                tensor.index,
                shape,
                call.output_dtypes[tensor.index],
                call.output_bytes * _count(shape) // whole,
            )


def _count(shape: tuple[int | None, ...]) -> int:
    return prod(extent or 1 for extent in shape)


def _inside(call: str, part: str, number: int) -> str:
    """The name of a call in one tower: "enc/dense" of "enc" is "enc/0/dense"."""
    return f"{tower_part(part, number)}/{call.removeprefix(part + '/')}"


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


def as_one_part(graph: Graph) -> Graph:
    """All calls but the inputs as one part, the last, named for the model."""
    inputs = {p.name for p in graph.parts if p.kind == "input"}
    name = graph.name
    while name in inputs:
        name += "_towers"
    calls = (c if c.part in inputs else replace(c, part=name) for c in graph.calls)
    parts = (*(p for p in graph.parts if p.name in inputs), Part(name, "towers"))
    return replace(graph, calls=tuple(calls), parts=parts)


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
    plain: dict[str, str] = {}
    whole: dict[str, Call] = {}
    for name, one in towers.items():
        for i in range(one.count):
            for call in graph.calls_of[tower_part(name, i)]:
                if call.kind == MOMENTS:
                    continue
                own = f"{name}/{call.name.removeprefix(call.part + '/')}"
                plain[call.name] = own
                whole[own] = _summed(whole.get(own), call, own, name)
    gone = {*towers, *map(weights_part, towers)}
    joins = {
        t.target: t.source for t in graph.tensors if graph.call[t.target].part in towers
    }
    for join, source in joins.items():
        plain[join] = plain[source]
    calls = {
        own: whole.get(own, call)
        for call in graph.calls
        if call.part not in gone and call.kind != MOMENTS
        for own in (plain.get(call.name, call.name),)
    }
    return replace(
        graph,
        calls=tuple(calls.values()),
        tensors=tuple(_collapsed_tensors(graph, plain, joins)),
        parts=tuple(
            replace(p, kind="branch", options=()) if p.name in towers else p
            for p in graph.parts
            if p.kind not in ("tower", "weights")
        ),
        outputs=tuple(dict.fromkeys(plain.get(n, n) for n in graph.outputs)),
    )


def _summed(sum_: Call | None, call: Call, name: str, part: str) -> Call:
    if sum_ is None:
        return replace(call, name=name, part=part)
    shapes = tuple(
        (a[0] + b[0], *a[1:]) if a and a[0] is not None and b[0] is not None else a
        for a, b in zip(sum_.output_shapes, call.output_shapes)
    )
    sums = {one: getattr(sum_, one) + getattr(call, one) for one in _SUMMED}
    return replace(sum_, output_shapes=shapes, **sums)


def _collapsed_tensors(
    graph: Graph, plain: Mapping[str, str], joins: Mapping[str, str]
) -> Iterable[Tensor]:
    """Tensors between whole calls, their bytes added up over the towers."""
    found: dict[tuple[str, str, int], Tensor] = {}
    whole = {c.name for name in broadcast_inputs(graph) for c in graph.calls_of[name]}
    for t in graph.tensors:
        kinds = graph.call[t.source].kind, graph.call[t.target].kind
        if t.target in joins or MOMENTS in kinds:
            continue
        source, target = plain.get(t.source, t.source), plain.get(t.target, t.target)
        key = (source, target, t.index)
        before = None if t.source in whole else found.get(key)
        count = t.bytes + (before.bytes if before else 0)
        found[key] = replace(t, source=source, target=target, bytes=count)
    return found.values()
