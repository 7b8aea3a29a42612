"""The verbs that go through several rooms at once: plan, place, score."""

from contextlib import suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import keras

    from splitnet.core.cluster import Cluster
    from splitnet.core.declare import Net
    from splitnet.core.graph import Graph
    from splitnet.core.plan import Plan

__all__ = ["place", "plan", "score"]

_SLACK = 0.02
"""What a plan of a model that nobody declared gives up so as not to run to and fro."""


def plan(
    source: "Net | keras.Model | Graph",
    cluster: "Cluster | None" = None,
    *,
    batch: int = 32,
    objective: str = "latency",
    pins: "Mapping[str, Any] | Callable[[Any], Any] | Plan | str | None" = None,
    missing: str = "fallback",
    costs: Any = None,
    optimizer: str = "adam",
    strategy: str = "auto",
    time_limit: float = 5.0,
    parts: int | None = None,
    nested: "str | Sequence[str]" = "open",
    **more: Any,
) -> "Plan":
    """Decide which part lives on which device; builds nothing and runs nothing.

    Args:
        source: a `Net`, a Keras model, or a `Graph`.
        cluster: the machine to plan for; None means this one, `local_cluster()`.
        batch: samples per step. A `Graph` has its own.
        objective: "latency" (one step, in seconds), "throughput" (the busiest device of
            a pipeline) or "memory" (the fullest device, in bytes).
        pins: name patterns -> `on=`, a function of a part, or a plan or its file, maybe
            edited by hand, to be kept; they beat the declaration.
        missing: a device that is not there: "fallback" (with a
            receipt), "warn" or "error".
        costs: a cost model, or the file of a measured one; None estimates.
        optimizer: whose slots count as memory: "sgd", "momentum", "adam" and so on.
        strategy: the name of one algorithm, or "auto" for the best of all.
        time_limit: seconds to search at most.
        parts: about how many parts the calls of a Keras model are grouped into; None
            takes six for each device that is not a CPU, at least 12 and at most 48.
            The branches of a `Net` and the parts of a `Graph` are as declared.
        nested: models inside a Keras model: "open", "whole", or patterns of the names
            of those to open; see `read`.
        **more: `training=False`, `contiguity=`, `seed=`, `slack=`, `on_progress=` of
            the planner. For the throughput of a Keras model, and for the memory of any
            but a `Graph`, `contiguity` is "convex", so that no device is returned to,
            unless nothing fits so.

    Raises:
        DeclarationError: the source cannot be read; with every fault found.
        DeviceError: an impossible pin, or a device that is missing under "error".
        InfeasibleError: nothing fits; with what would make it fit.
    """
    from splitnet.core.errors import InfeasibleError
    from splitnet.core.graph import Graph
    from splitnet.planner.planner import plan_graph

    cluster = _this_machine() if cluster is None else cluster
    costs = _costs_of(costs)
    graph = _graph_of(source, batch, nested)
    pins = _pins_of(pins, graph)
    own, whole = not _has_parts(source), not isinstance(source, Graph)
    if own:
        graph, pins = _grouped(graph, cluster, pins, parts, costs), None
    ask = partial(
        plan_graph,
        graph,
        cluster,
        objective=objective,
        pins=pins,
        missing=missing,
        costs=costs,
        optimizer=optimizer,
        strategy=strategy,
        time_limit=time_limit,
    )
    if own or whole and objective == "memory":
        more = {"slack": _SLACK} | more
    calm = objective == "throughput" and own or objective == "memory" and whole
    if calm and more.get("contiguity") is None:
        with suppress(InfeasibleError):  # as where pins ask for a return
            return ask(**more | {"contiguity": "convex"})
    return ask(**more)


def place(
    source: "Net | keras.Model", cluster: "Cluster | None" = None, **plan_options: Any
) -> "keras.Model":
    """Read, plan and emit in one line; `plan_of(model)` returns the plan.

    The model that is given stays as it was. Prints nothing and hides nothing.

    Raises:
        SplitnetError: whatever `plan` and `emit` raise.
    """
    from splitnet.tf.emit import emit

    return emit(source, plan(source, cluster, **plan_options))


def score(
    source: "Net | keras.Model | Graph",
    cluster: "Cluster",
    device_of: "Mapping[str, str]",
    *,
    batch: int = 32,
    costs: Any = None,
    nested: "str | Sequence[str]" = "open",
    **options: Any,
) -> "Plan":
    """Judge a placement made by a person: the same figures, none of the choices.

    Args:
        source: a `Net`, a Keras model, or a `Graph`.
        cluster: the machine.
        device_of: part -> device, for every part.
        batch: samples per step. A `Graph` has its own.
        costs: a cost model, or the file of a measured one; None estimates.
        nested: as in `read`.
        **options: `objective=`, `optimizer=`, `training=` of the planner.

    Raises:
        PlanFileError: a part is missing or unknown.
        DeviceError: a device is not in the cluster.
    """
    from splitnet.planner.score import score as score_graph
    from splitnet.planner.words import with_verdict

    return with_verdict(
        score_graph(
            _graph_of(source, batch, nested),
            cluster,
            device_of,
            costs=_costs_of(costs),
            **options,
        )
    )


def _graph_of(source: Any, batch: int, nested: Any) -> "Graph":
    from splitnet.core.graph import Graph

    if isinstance(source, Graph):
        return source
    from splitnet.tf.read import read

    return read(source, batch, nested=nested)


def _has_parts(source: Any) -> bool:
    """Whether a person made the parts: of a net, or of a graph."""
    from splitnet.core.declare import Net
    from splitnet.core.graph import Graph

    return isinstance(source, Net | Graph)


def _grouped(
    graph: "Graph", cluster: "Cluster", pins: Any, parts: int | None, costs: Any
) -> "Graph":
    """A model's calls in few parts, with the pins written into their wishes."""
    from splitnet.core.cost import Roofline
    from splitnet.planner.grouping import group, pinned

    fast = max(cluster, key=lambda device: device.flops_per_second)
    model = costs or Roofline()
    if parts is None:
        parts = min(max(6 * len(cluster.of_kind("gpu")), 12), 48)
    return group(
        pinned(graph, pins),
        parts,
        lambda call: (
            model.forward_seconds(call, fast) + model.backward_seconds(call, fast)
        ),
    )


def _pins_of(pins: Any, graph: "Graph") -> Any:
    """Pins as they are, or those that another plan or its file makes."""
    from splitnet.core.plan import Plan
    from splitnet.planner.pins import pins_of
    from splitnet.planner.planfile import load_plan

    if isinstance(pins, str | PathLike):
        pins = load_plan(Path(pins))
    return pins_of(pins, graph) if isinstance(pins, Plan) else pins


def _costs_of(costs: Any) -> Any:
    """A cost model as it is, or read from its file."""
    if not isinstance(costs, str | PathLike):
        return costs
    from splitnet.core.costfile import load_costs

    return load_costs(costs)


def _this_machine() -> "Cluster":
    from splitnet.tf.runtime.devices import local_cluster

    return local_cluster()
