"""Small steps whose times can be added up by hand.

Seconds of calls are their FLOPs, an update takes 1 second, and a link carries 1 byte a
second, so that figures in tests are small whole numbers.
"""

from dataclasses import replace

from splitnet.core.cluster import Cluster, Device, Link
from splitnet.core.timeline import Execution
from splitnet.simulator.memory import outcome_of
from splitnet.simulator.microbatch import in_schedule, pipeline_of
from splitnet.simulator.step_graph import step_graph
from tests import zoo


class Seconds:
    """FLOPs are seconds on every device."""

    forward_seconds = staticmethod(lambda call, device: call.forward_flops)
    backward_seconds = staticmethod(lambda call, device: call.backward_flops)
    update_seconds = staticmethod(lambda count, device, optimizer: 1.0)
    link = staticmethod(lambda source, target, cluster: cluster.link(source, target))


def box(devices=2, *, latency=0.0, gap=None, part=0, overhead=0.0):
    """GPUs, links of 1 byte a second, and `part` seconds for each call of a part."""
    gpus = (Device.of(f"gpu:{i}") for i in range(devices))
    links = (Link("*", "*", 1.0, latency, gap, overhead),)
    return Cluster(tuple(replace(gpu, part_seconds=float(part)) for gpu in gpus), links)


def dense(name, part=None, *, seconds=1.0, out=1, weights=None, **more):
    """A call with a weight, `seconds` forward and twice that backward."""
    weights = (f"{name}/w",) if weights is None else weights
    bare = {"output_shapes": (), "output_dtypes": (), "inner_bytes": 0}
    its = bare | {"activation_bytes": 0} | more
    return zoo.call(name, part, flops=seconds, out=out, weights=weights, **its)


def view(name, part, out=1):
    return dense(name, part, seconds=0.0, out=out, weights=(), kind="Flatten")


def graph(calls, edges, *, dtype="float32", weight_bytes=1, batch=4):
    """A graph of edges such as "a-b a-c", whose readers' backward pass reads them."""
    pairs = [edge.split("-") for edge in edges.split()]
    made = zoo.graph_of("small", calls, pairs, weight_bytes=weight_bytes, batch=batch)
    tensors = (
        replace(t, dtype=dtype, kept=made.call[t.target].kind == "Dense")
        for t in made.tensors
    )
    return replace(made, tensors=tuple(tensors), outputs=())


def outcome(one, cluster, devices, how=None, *, training=True, optimizer="sgd"):
    """Simulate parts, in order, on the GPUs whose digits `devices` lists."""
    how = how or Execution()
    device_of = {p.name: f"gpu:{d}" for p, d in zip(one.parts, devices, strict=True)}
    more = {"optimizer": optimizer, "microbatches": how.microbatches}
    step = step_graph(one, cluster, Seconds(), training=training, **more)
    step = in_schedule(step, pipeline_of(one, device_of, how))
    return outcome_of(cluster, step, device_of)


def spans(found):
    """Start and end: of tasks as "a", "a'" and "a*", of copies as "a>b weights'"."""
    marks = {"forward": "", "backward": "'", "update": "*", "activation": ""}
    marks |= {"gradient": "'", "weights": " weights", "weights gradient": " weights'"}
    tasks = ((f"{t.part}{marks[t.phase]}", t) for t in found.timeline.tasks)
    sent = ((f"{c.source}>{c.target}{marks[c.kind]}", c) for c in found.timeline.copies)
    return {name: (one.start, one.stop) for name, one in (*tasks, *sent)}
