"""Declare, plan, emit, train, audit, draw: Keras models on several devices.

    import splitnet as sn

Importing this package loads neither TensorFlow nor Keras and patches nothing: each
public name is imported from its module when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from splitnet._version import __version__
from splitnet.core import hooks

if TYPE_CHECKING:
    from splitnet.api import largest_batch, place, plan, score
    from splitnet.callbacks import PlacementCallback
    from splitnet.core.audit import Audit, Finding
    from splitnet.core.cluster import Cluster, Device, Link
    from splitnet.core.costs.table import save_costs
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
    from splitnet.core.net import Net, Ref
    from splitnet.core.plan import Plan
    from splitnet.planner.plan_file import load_plan
    from splitnet.planner.strategies import compare_strategies
    from splitnet.planner.what_if import sensitivity
    from splitnet.planner.workloads import read_workload
    from splitnet.simulator.simulate import simulate
    from splitnet.tf.audit.observe import audit
    from splitnet.tf.emit import emit, plan_of, unplace
    from splitnet.tf.parallel.data_parallel import data_parallel
    from splitnet.tf.placement.overlay import placement_scope
    from splitnet.tf.placement.summary import summary
    from splitnet.tf.profiling.measure import measure
    from splitnet.tf.profiling.profile_step import profile_step
    from splitnet.tf.reading.read import read
    from splitnet.tf.runtime.configure import configure, force_cpu
    from splitnet.tf.runtime.devices import local_cluster
    from splitnet.tf.workers.connect import connect
    from splitnet.tf.workers.start import local_workers
    from splitnet.view.render import draw
    from splitnet.view.report import report
    from splitnet.view.tables import chart, table
    from splitnet.view.trace import trace

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
    "compare_strategies",
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
    "profile_step",
    "report",
    "save_costs",
    "score",
    "sensitivity",
    "simulate",
    "summary",
    "table",
    "trace",
    "unplace",
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
    "Link": "core.cluster",
    "Net": "core.net",
    "PlacementCallback": "callbacks",
    "Plan": "core.plan",
    "PlanFileError": "core.errors",
    "Ref": "core.net",
    "SplitnetError": "core.errors",
    "WorkerError": "core.errors",
    "audit": "tf.audit.observe",
    "chart": "view.tables",
    "compare_strategies": "planner.strategies",
    "configure": "tf.runtime.configure",
    "data_parallel": "tf.parallel.data_parallel",
    "connect": "tf.workers.connect",
    "draw": "view.render",
    "emit": "tf.emit",
    "force_cpu": "tf.runtime.configure",
    "largest_batch": "api",
    "load_plan": "planner.plan_file",
    "local_cluster": "tf.runtime.devices",
    "local_workers": "tf.workers.start",
    "measure": "tf.profiling.measure",
    "place": "api",
    "placement_scope": "tf.placement.overlay",
    "plan": "api",
    "plan_of": "tf.emit",
    "read": "tf.reading.read",
    "read_workload": "planner.workloads",
    "profile_step": "tf.profiling.profile_step",
    "report": "view.report",
    "save_costs": "core.costs.table",
    "score": "api",
    "sensitivity": "planner.what_if",
    "simulate": "simulator.simulate",
    "summary": "tf.placement.summary",
    "table": "view.tables",
    "trace": "view.trace",
    "unplace": "tf.emit",
}


hooks.declare(
    {
        "load_cluster": "splitnet.core.serialization:load_cluster",
        "output_keys": "splitnet.tf.reading.source:output_keys",
        "explain": "splitnet.planner.analysis:explain",
        "compare": "splitnet.planner.analysis:compare",
        "save_plan": "splitnet.planner.plan_file:save_plan",
        "plan_svg": "splitnet.view.render:svg_of_plan",
        "plan_html": "splitnet.view.render:html_of_plan",
        "timeline_svg": "splitnet.view.render:svg_of_timeline",
        "audit_html": "splitnet.view.render:html_of_audit",
    }
)


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module 'splitnet' has no attribute {name!r}")
    value = getattr(import_module(f"splitnet.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
