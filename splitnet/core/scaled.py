"""Calls for a share of the batch, and what they cost by what the whole call costs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from splitnet.core.cluster import Cluster, Link
from splitnet.core.cost import CostModel
from splitnet.core.devices import Device
from splitnet.core.graph import Call, Graph

__all__ = ["ScaledCosts", "scaled_call", "scaled_graph"]


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
    it is (`Device.call_seconds`) is paid in full. `whole` maps a call's name to the whole
    call and the share, 0 to 1; a call that is not there is charged as it stands.
    `again` says that a backward pass computes the forward pass once more.
    """

    costs: CostModel
    whole: Mapping[str, tuple[Call, float]]
    again: bool = False

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of a share's forward pass."""
        whole, share = self.whole.get(call.name, (call, 1.0))
        return _part(self.costs.forward_seconds(whole, device), share, device)

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Seconds of a share's backward pass."""
        whole, share = self.whole.get(call.name, (call, 1.0))
        seconds = _part(self.costs.backward_seconds(whole, device), share, device)
        return seconds + (self.forward_seconds(call, device) if self.again else 0.0)

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """Seconds of an update, which no share makes shorter."""
        return self.costs.update_seconds(count, device, optimizer)

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The road between two devices."""
        return self.costs.link(source, target, cluster)


def _part(seconds: float, share: float, device: Device) -> float:
    fixed = min(seconds, device.call_seconds)
    return fixed + (seconds - fixed) * share
