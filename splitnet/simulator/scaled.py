"""Calls for a share of the batch, and what they cost by what the whole call costs."""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.costs.model import CostModel
from splitnet.core.costs.roofline import VIEWS
from splitnet.core.graph import Call, Graph, Tensor
from splitnet.simulator.kept import keeps_of_group

__all__ = ["ScaledCosts", "merged_graph", "scaled_call", "scaled_graph"]


def scaled_call(call: Call, name: str, share: float) -> Call:
    """The call for a share of its samples; what does not grow with them stays."""
    return replace(
        call,
        name=name,
        output_bytes=round(call.output_bytes * share),
        forward_flops=call.forward_flops * share,
        backward_flops=call.backward_flops * share,
        moved_bytes=call.moved_bytes * share,
        activation_bytes=round(call.activation_bytes * share),
        workspace_bytes=round(call.workspace_bytes * share),
        inner_bytes=None
        if call.inner_bytes is None
        else round(call.inner_bytes * share),
        seconds_on=tuple((kind, s * share) for kind, s in call.seconds_on),
        transfer_seconds=None
        if call.transfer_seconds is None
        else call.transfer_seconds * share,
    )


def scaled_graph(graph: Graph, batch: int) -> Graph:
    """The graph for another batch, by proportion; reading the model is more exact."""
    share = batch / graph.batch

    def shape(extents: tuple[int | None, ...]) -> tuple[int | None, ...]:
        batched = bool(extents) and extents[0] == graph.batch
        return (batch, *extents[1:]) if batched else extents

    return replace(
        graph,
        batch=batch,
        calls=tuple(
            replace(
                scaled_call(call, call.name, share),
                output_shapes=tuple(shape(one) for one in call.output_shapes),
            )
            for call in graph.calls
        ),
        tensors=tuple(
            replace(t, shape=shape(t.shape), bytes=round(t.bytes * share))
            for t in graph.tensors
        ),
    )


@dataclass(frozen=True)
class ScaledCosts:
    """A cost model for shares of calls whose whole it knows.

    A share takes its part of what the whole takes, but what a call costs however small
    (`Device.call_seconds`) is paid in full. `whole` maps a call's name to the calls
    that it stands for and the share of them, 0 to 1; any other is charged as it stands.
    `again` says that a backward pass computes the forward pass once more. `added` maps
    a call's name to the bytes of gradients that its backward pass adds to a sum.
    """

    costs: CostModel
    whole: Mapping[str, tuple[tuple[Call, ...], float]]
    again: bool = False
    added: Mapping[str, int] = field(default_factory=dict)

    @property
    def start_seconds(self) -> Mapping[str, float]:
        """What a step takes before each device computes, where that was measured."""
        known: Mapping[str, float] = getattr(self.costs, "start_seconds", {})
        return known

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of a share's forward pass."""
        wholes, share = self.whole.get(call.name, ((call,), 1.0))
        return sum(
            _part(self.costs.forward_seconds(one, device), share, device)
            for one in wholes
        )

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of a share's backward pass."""
        wholes, share = self.whole.get(call.name, ((call,), 1.0))
        seconds = sum(
            _part(self.costs.backward_seconds(one, device), share, device)
            for one in wholes
        )
        if self.again:
            seconds += self.forward_seconds(call, device)
        if count := self.added.get(call.name, 0):
            # A sum reads two tensors and writes one, as the plainest update does.
            seconds += self.costs.update_seconds(count, device, "sgd")
        return seconds

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """Seconds of an update, which no share makes shorter."""
        return self.costs.update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The road between two devices."""
        return self.costs.link(source, target, cluster)


def _part(seconds: float, share: float, device: Device) -> float:
    fixed = min(seconds, device.call_seconds)
    return fixed + (seconds - fixed) * share


def merged_graph(
    graph: Graph, device_of: Mapping[str, str]
) -> tuple[Graph, dict[str, tuple[Call, ...]]]:
    """Calls of one device that run one after the other as one call.

    Calls are grouped by device and by how many hops of devices lie before them, so that
    none waits for another that waits for it. A group has the name and the part of
    its first call.

    Returns:
        The graph of groups, and the calls of each group by its name.
    """
    before: dict[str, list[str]] = {}
    for tensor in graph.tensors:
        before.setdefault(tensor.target, []).append(tensor.source)
    color: dict[str, str] = {}
    level: dict[str, int] = {}
    groups: dict[tuple[int, str], list[Call]] = {}
    for call in graph.calls:
        # Inputs and what holds weights stay by themselves: nothing runs there.
        alone = graph.part[call.part].kind in ("input", "weights")
        own = f"#{call.name}" if alone else device_of[call.part]
        sources = before.get(call.name, ())
        color[call.name] = own
        level[call.name] = max(
            (level[s] + (color[s] != own) for s in sources), default=0
        )
        groups.setdefault((level[call.name], own), []).append(call)
    ranked = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
    first = {call.name: calls[0].name for calls in ranked for call in calls}
    leaving = {t.source for t in graph.tensors if first[t.source] != first[t.target]}
    readers: dict[str, list[Tensor]] = {}
    for tensor in graph.tensors:
        if first[tensor.source] == first[tensor.target]:
            readers.setdefault(tensor.source, []).append(tensor)
    tensors: dict[tuple[str, str, int], Tensor] = {}
    index: dict[tuple[str, int], int] = {}
    for t in graph.tensors:
        source, target = first[t.source], first[t.target]
        if source != target:
            number = index.setdefault((t.source, t.index), len(index))
            key = (source, target, number)
            kept = t.kept or (key in tensors and tensors[key].kept)
            tensors[key] = replace(
                t, source=source, target=target, index=number, kept=kept
            )
    merged = replace(
        graph,
        calls=tuple(_merged(calls, readers, leaving) for calls in ranked),
        tensors=tuple(tensors.values()),
        outputs=tuple(dict.fromkeys(first[name] for name in graph.outputs)),
    )
    return merged, {calls[0].name: tuple(calls) for calls in ranked}


def _merged(
    calls: list[Call], readers: Mapping[str, Sequence[Tensor]], leaving: Container[str]
) -> Call:
    """One call for all; of their outputs, those count that leave the group."""
    gone = [call for call in calls if call.name in leaving] or calls[-1:]
    inner, kept = keeps_of_group(calls, readers)
    whole = all(call.name in kept for call in gone)
    if inner is not None and whole:
        inner -= sum(call.output_bytes for call in gone)
    return replace(
        next((call for call in calls if call.kind not in VIEWS), calls[0]),
        name=calls[0].name,
        part=calls[0].part,
        output_bytes=sum(call.output_bytes for call in gone),
        forward_flops=sum(call.forward_flops for call in calls),
        backward_flops=sum(call.backward_flops for call in calls),
        moved_bytes=sum(call.moved_bytes for call in calls),
        activation_bytes=sum(call.activation_bytes for call in calls),
        workspace_bytes=max(call.workspace_bytes for call in calls),
        inner_bytes=inner,
        keeps_output=whole,
        weights=tuple(dict.fromkeys(w for call in calls for w in call.weights)),
    )
