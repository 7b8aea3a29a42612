"""Small steps whose times can be added up by hand.

Seconds of calls are their FLOPs, an update takes 1 second, and a link carries 1 byte a
second, so that figures in tests are small whole numbers.
"""

from dataclasses import dataclass, replace

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.graph import Call, Graph, Part, Tensor, Weights
from splitnet.simulator.memory import Outcome, outcome_of
from splitnet.simulator.step_graph import step_graph

__all__ = ["Seconds", "box", "dense", "graph", "outcome", "spans", "view"]


@dataclass(frozen=True)
class Seconds:
    """FLOPs are seconds on every device."""

    update: float = 1.0

    def forward_seconds(self, call: Call, device: Device) -> float:
        """Forward FLOPs."""
        return call.forward_flops

    def backward_seconds(self, call: Call, device: Device) -> float:
        """Backward FLOPs."""
        return call.backward_flops

    def update_seconds(self, count: int, device: Device, optimizer: str) -> float:
        """The same for every weight."""
        return self.update

    def link(self, source: str, target: str, cluster: Cluster) -> Link:
        """The cluster's own link."""
        return cluster.link(source, target)


def box(
    devices: int = 2, *, latency: float = 0.0, gap: float | None = None, part: float = 0
) -> Cluster:
    """GPUs, links of 1 byte a second, and `part` seconds for each call of a part."""
    return Cluster(
        tuple(
            replace(Device.of(f"gpu:{i}"), part_seconds=float(part))
            for i in range(devices)
        ),
        (Link("*", "*", 1.0, latency, gap_seconds=gap),),
    )


def dense(
    name: str,
    part: str | None = None,
    *,
    seconds: float = 1.0,
    out: int = 1,
    weights: tuple[str, ...] | None = None,
    **more: object,
) -> Call:
    """A call with a weight, `seconds` forward and twice that backward.

    Its backward pass reads its inputs alone.
    """
    values: dict[str, object] = {
        "kind": "Dense",
        "output_bytes": out,
        "forward_flops": seconds,
        "backward_flops": 2 * seconds,
        "inner_bytes": 0,
        "weights": (f"{name}/w",) if weights is None else weights,
    }
    return Call(name, part or name, **(values | more))  # type: ignore[arg-type]  # names of its fields


def view(name: str, part: str, out: int = 1) -> Call:
    """A call that only renames bytes."""
    return Call(name, part, "Flatten", output_bytes=out, inner_bytes=0)


def graph(
    calls: list[Call],
    edges: str,
    *,
    weight_bytes: int = 1,
    batch: int = 4,
    dtype: str = "float32",
) -> Graph:
    """A graph of edges such as "a-b a-c", whose readers' backward pass reads them."""
    made = {call.name: call for call in calls}
    pairs = [edge.split("-") for edge in edges.split()]
    weights = dict.fromkeys(name for call in calls for name in call.weights)
    return Graph(
        name="small",
        batch=batch,
        calls=tuple(calls),
        tensors=tuple(
            Tensor(
                a,
                b,
                bytes=made[a].output_bytes,
                dtype=dtype,
                kept=made[b].kind == "Dense",
            )
            for a, b in pairs
        ),
        weights=tuple(Weights(name, weight_bytes) for name in weights),
        parts=tuple(Part(name) for name in dict.fromkeys(c.part for c in calls)),
    )


def outcome(
    one: Graph,
    cluster: Cluster,
    devices: str,
    *,
    training: bool = True,
    optimizer: str = "sgd",
) -> Outcome:
    """Simulate parts, in order, on the GPUs whose digits `devices` lists."""
    step = step_graph(one, cluster, Seconds(), training=training, optimizer=optimizer)
    device_of = {p.name: f"gpu:{d}" for p, d in zip(one.parts, devices, strict=True)}
    return outcome_of(cluster, step, device_of)


def spans(found: Outcome) -> dict[str, tuple[float, float]]:
    """Start and end: of tasks as "a", "a'" and "a*", of copies as "a>b weights'"."""
    marks = {"forward": "", "backward": "'", "update": "*"}
    tasks = {
        f"{task.part}{marks[task.phase]}": (task.start, task.stop)
        for task in found.timeline.tasks
    }
    kinds = {"activation": "", "gradient": "'"}
    kinds |= {"weights": " weights", "weights gradient": " weights'"}
    copies = {
        f"{copy.source}>{copy.target}{kinds[copy.kind]}": (copy.start, copy.stop)
        for copy in found.timeline.copies
    }
    return tasks | copies
