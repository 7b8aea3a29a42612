"""Towers taken together again: the graph as if each body ran once on the batch."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from splitnet.core.graph import Call, Graph, Tensor
from splitnet.core.towers import tower_part, towers_in, weights_part

__all__ = ["collapse"]


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
        if call.part not in gone
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
    return replace(
        sum_,
        output_shapes=shapes,
        output_bytes=sum_.output_bytes + call.output_bytes,
        forward_flops=sum_.forward_flops + call.forward_flops,
        backward_flops=sum_.backward_flops + call.backward_flops,
        moved_bytes=sum_.moved_bytes + call.moved_bytes,
        activation_bytes=sum_.activation_bytes + call.activation_bytes,
        workspace_bytes=sum_.workspace_bytes + call.workspace_bytes,
    )


def _collapsed_tensors(
    graph: Graph, plain: Mapping[str, str], joins: Mapping[str, str]
) -> Iterable[Tensor]:
    """Tensors between whole calls, their bytes added up over the towers."""
    found: dict[tuple[str, str, int], Tensor] = {}
    for t in graph.tensors:
        if t.target in joins:
            continue
        source, target = plain.get(t.source, t.source), plain.get(t.target, t.target)
        key = (source, target, t.index)
        before = found.get(key)
        count = t.bytes + (before.bytes if before else 0)
        found[key] = replace(t, source=source, target=target, bytes=count)
    return found.values()
