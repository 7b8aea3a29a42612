"""Declare, plan, emit, train, audit, draw: Keras models on several devices.

    import splitnet as sn

Importing this package loads neither TensorFlow nor Keras: each public name is fetched
from its room when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from splitnet._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import keras

    from splitnet.core.audit import Audit, Finding
    from splitnet.core.cluster import Cluster, Device, Link
    from splitnet.core.declare import Net, Ref
    from splitnet.core.errors import (
        AuditError,
        ConfigError,
        DeclarationError,
        DeviceError,
        InfeasibleError,
        PlanFileError,
        SplitnetError,
    )
    from splitnet.core.graph import Graph
    from splitnet.core.plan import Plan
    from splitnet.core.planfile import load_plan
    from splitnet.core.simulate import simulate
    from splitnet.core.workload import read_workload
    from splitnet.tf.emit import emit
    from splitnet.tf.observe import audit
    from splitnet.tf.persist import plan_of, unplace
    from splitnet.tf.placement import placement_scope
    from splitnet.tf.read import read
    from splitnet.tf.runtime import configure, force_cpu, local_cluster
    from splitnet.view.dot import draw
    from splitnet.view.report import report
    from splitnet.view.text import chart, table
    from splitnet.view.trace import trace

# name -> the module that has it
_HOMES = {
    "Audit": "core.audit",
    "AuditError": "core.errors",
    "Cluster": "core.cluster",
    "ConfigError": "core.errors",
    "DeclarationError": "core.errors",
    "Device": "core.cluster",
    "DeviceError": "core.errors",
    "Finding": "core.audit",
    "Graph": "core.graph",
    "InfeasibleError": "core.errors",
    "Link": "core.cluster",
    "Net": "core.declare",
    "Plan": "core.plan",
    "PlanFileError": "core.errors",
    "Ref": "core.declare",
    "SplitnetError": "core.errors",
    "audit": "tf.observe",
    "chart": "view.text",
    "configure": "tf.runtime",
    "draw": "view.dot",
    "emit": "tf.emit",
    "force_cpu": "tf.runtime",
    "load_plan": "core.planfile",
    "local_cluster": "tf.runtime",
    "placement_scope": "tf.placement",
    "plan_of": "tf.persist",
    "read": "tf.read",
    "read_workload": "core.workload",
    "report": "view.report",
    "simulate": "core.simulate",
    "table": "view.text",
    "trace": "view.trace",
    "unplace": "tf.persist",
}

__all__ = sorted([*_HOMES, "__version__", "place", "plan", "score"])


def plan(
    source: "Net | keras.Model | Graph",
    cluster: "Cluster | None" = None,
    *,
    batch: int = 32,
    objective: str = "latency",
    pins: "Mapping[str, Any] | Callable[[Any], Any] | None" = None,
    missing: str = "fallback",
    costs: Any = None,
    optimizer: str = "adam",
    strategy: str = "auto",
    time_limit: float = 5.0,
    **more: Any,
) -> "Plan":
    """Decide which part lives on which device; builds nothing and runs nothing.

    Args:
        source: a `Net`, a Keras model, or a `Graph`.
        cluster: the machine to plan for; None means this one, `local_cluster()`.
        batch: samples per step. A `Graph` has its own.
        objective: "latency" (one step, in seconds), "throughput" (the busiest device of
            a pipeline) or "memory" (the fullest device, in bytes).
        pins: name patterns -> `on=`, or a function of a part; they beat the declaration.
        missing: a device that is not there: "fallback" (with a receipt), "warn", "error".
        costs: a cost model, or the file of a measured one; None estimates.
        optimizer: whose slots count as memory: "sgd", "momentum", "adam" and so on.
        strategy: the name of one algorithm, or "auto" for the best of all.
        time_limit: seconds to search at most.
        **more: `training=False`, `contiguity=`, `seed=`, `on_progress=` of the planner.

    Raises:
        DeclarationError: the source cannot be read; with every fault found.
        DeviceError: an impossible pin, or a device that is missing under "error".
        InfeasibleError: nothing fits; with what would make it fit.
    """
    from splitnet.core.planner import plan_graph

    cluster = _this_machine() if cluster is None else cluster
    return _pictured(
        plan_graph(
            _graph_of(source, batch),
            cluster,
            objective=objective,
            pins=pins,
            missing=missing,
            costs=costs,
            optimizer=optimizer,
            strategy=strategy,
            time_limit=time_limit,
            **more,
        )
    )


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
    **options: Any,
) -> "Plan":
    """Judge a placement made by a person: the same figures, none of the choices.

    Args:
        source: a `Net`, a Keras model, or a `Graph`.
        cluster: the machine.
        device_of: part -> device, for every part.
        batch: samples per step. A `Graph` has its own.
        **options: `objective=`, `costs=`, `optimizer=`, `training=` of the planner.

    Raises:
        PlanFileError: a part is missing or unknown.
        DeviceError: a device is not in the cluster.
    """
    from splitnet.core.planner import score as score_graph

    return _pictured(
        score_graph(_graph_of(source, batch), cluster, device_of, **options)
    )


def _graph_of(source: Any, batch: int) -> "Graph":
    from splitnet.core.graph import Graph

    if isinstance(source, Graph):
        return source
    from splitnet.tf.read import read

    return read(source, batch)


def _this_machine() -> "Cluster":
    from splitnet.tf.runtime import local_cluster

    return local_cluster()


def _pictured(plan: "Plan") -> "Plan":
    """Hand the plan back; as a side effect plans can show themselves in notebooks."""
    _hang_hooks("Plan")
    return plan


def _outline(net: "Net", ref: "Ref") -> "list[int | str] | None":
    from splitnet.tf.blueprint import outline

    return outline(net, ref)


def _hang_hooks(name: str) -> None:
    """Give core values what only the other rooms can do, when they are first asked for."""
    if name in ("Net", "Ref"):
        from splitnet.core.declare import Net

        Net.outline = staticmethod(_outline)
    if name in ("Plan", "load_plan"):
        from splitnet.core.plan import Plan

        Plan.pictures = staticmethod(_svg_of)


def _svg_of(plan: "Plan") -> str:
    from splitnet.view.dot import svg_of

    return svg_of(plan)


def __getattr__(name: str) -> Any:
    """Fetch a public name from its room, once (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'splitnet' has no attribute {name!r}")
    value = getattr(import_module(f"splitnet.{_HOMES[name]}"), name)
    _hang_hooks(name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
