"""Declare, plan, emit, train, audit, draw: Keras models on several devices.

    import splitnet as sn

Importing this package loads neither TensorFlow nor Keras: each public name is fetched
from its room when it is first used.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from splitnet._version import __version__
from splitnet.tf.first import watch_from_now

if TYPE_CHECKING:
    from splitnet.api import place, plan, score
    from splitnet.callbacks import PlacementCallback
    from splitnet.core.audit import Audit, Finding
    from splitnet.core.cluster import Cluster, Device
    from splitnet.core.costfile import save_costs
    from splitnet.core.declare import Net, Ref
    from splitnet.core.errors import (
        AuditError,
        ConfigError,
        DeclarationError,
        DeviceError,
        InfeasibleError,
        PlanFileError,
        SplitnetError,
        WorkerError,
    )
    from splitnet.core.graph import Graph
    from splitnet.core.links import Link
    from splitnet.core.plan import Plan
    from splitnet.core.timeline import Timeline
    from splitnet.planner.planfile import load_plan
    from splitnet.planner.weighing import ways
    from splitnet.planner.what_if import largest_batch, sensitivity
    from splitnet.planner.workgraph import read_workload
    from splitnet.simulator.simulate import simulate
    from splitnet.tf.connect import connect
    from splitnet.tf.emit import emit, plan_of, unplace
    from splitnet.tf.measure import measure
    from splitnet.tf.observe import audit
    from splitnet.tf.parallel import data_parallel
    from splitnet.tf.placement import placement_scope
    from splitnet.tf.read import read
    from splitnet.tf.record import record
    from splitnet.tf.runtime import configure, force_cpu, local_cluster
    from splitnet.tf.summary import summary
    from splitnet.tf.workers import local_workers
    from splitnet.view.draw import draw
    from splitnet.view.report import report
    from splitnet.view.text import chart, table
    from splitnet.view.trace import trace

watch_from_now()

__all__ = [
    "Audit",
    "AuditError",
    "Cluster",
    "ConfigError",
    "DeclarationError",
    "Device",
    "DeviceError",
    "Finding",
    "Graph",
    "InfeasibleError",
    "Link",
    "Net",
    "PlacementCallback",
    "Plan",
    "PlanFileError",
    "Ref",
    "SplitnetError",
    "WorkerError",
    "__version__",
    "audit",
    "chart",
    "configure",
    "connect",
    "data_parallel",
    "draw",
    "emit",
    "force_cpu",
    "largest_batch",
    "load_plan",
    "local_cluster",
    "local_workers",
    "measure",
    "place",
    "placement_scope",
    "plan",
    "plan_of",
    "read",
    "read_workload",
    "record",
    "report",
    "save_costs",
    "score",
    "sensitivity",
    "simulate",
    "summary",
    "table",
    "trace",
    "unplace",
    "ways",
]

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
    "Link": "core.links",
    "Net": "core.declare",
    "PlacementCallback": "callbacks",
    "Plan": "core.plan",
    "PlanFileError": "core.errors",
    "Ref": "core.declare",
    "SplitnetError": "core.errors",
    "WorkerError": "core.errors",
    "audit": "tf.observe",
    "chart": "view.text",
    "configure": "tf.runtime",
    "data_parallel": "tf.parallel",
    "connect": "tf.connect",
    "draw": "view.draw",
    "emit": "tf.emit",
    "force_cpu": "tf.runtime",
    "largest_batch": "planner.what_if",
    "load_plan": "planner.planfile",
    "local_cluster": "tf.runtime",
    "local_workers": "tf.workers",
    "measure": "tf.measure",
    "place": "api",
    "placement_scope": "tf.placement",
    "plan": "api",
    "plan_of": "tf.emit",
    "read": "tf.read",
    "read_workload": "planner.workgraph",
    "record": "tf.record",
    "report": "view.report",
    "save_costs": "core.costfile",
    "score": "api",
    "sensitivity": "planner.what_if",
    "simulate": "simulator.simulate",
    "summary": "tf.summary",
    "table": "view.text",
    "trace": "view.trace",
    "unplace": "tf.emit",
    "ways": "planner.weighing",
}


def _outline(net: "Net", ref: "Ref") -> "list[int | str] | None":
    from splitnet.tf.blueprint import outline

    return outline(net, ref)


def _hang_hooks(name: str) -> None:
    """Give core values what only the other rooms can do, when they are first used."""
    if name in ("Net", "Ref"):
        from splitnet.core.declare import Net

        Net.outline = staticmethod(_outline)
        if "tensorflow" in sys.modules:
            from splitnet.tf.runtime import make_room

            make_room()
    if name in ("Plan", "load_plan", "place", "plan", "score"):
        from splitnet.core.plan import Plan

        Plan.pictures = (_svg_of, _html_of)
    if name in ("Plan", "load_plan", "plan", "record", "score", "simulate"):
        from splitnet.core.timeline import Timeline

        Timeline.picture = _chart_of
    if name in ("Audit", "audit"):
        from splitnet.core.audit import Audit

        Audit.page = _page_of


def _svg_of(plan: "Plan") -> str:
    from splitnet.view.draw import svg_of

    return svg_of(plan)


def _html_of(plan: "Plan") -> str:
    from splitnet.view.draw import html_of

    return html_of(plan)


def _chart_of(timeline: "Timeline") -> str:
    from splitnet.view.draw import chart_of

    return chart_of(timeline)


def _page_of(audit: "Audit") -> str:
    from splitnet.view.draw import page_of

    return page_of(audit)


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
