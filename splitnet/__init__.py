"""Declare, plan, emit, train, audit, draw: Keras models on several devices.

    import splitnet as sn

Importing this package loads neither TensorFlow nor Keras and patches nothing: each
public name is imported from its module when it is first used.
"""

from importlib import import_module
from types import FunctionType
from typing import TYPE_CHECKING, Any

from splitnet.core import HOOKS
from splitnet.core.checks import checked

__version__ = "0.1.0"

if TYPE_CHECKING:
    from splitnet.api import compare_strategies, largest_batch, place, plan, score
    from splitnet.callbacks import PlacementCallback
    from splitnet.core.audit import Audit, Finding
    from splitnet.core.cluster import Cluster, Device, Link
    from splitnet.core.costs import save_costs
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
    from splitnet.planner.what_if import sensitivity, simulate
    from splitnet.planner.workloads import read_workload
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
    from splitnet.view.render import draw, trace
    from splitnet.view.report import report
    from splitnet.view.tables import chart, table

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
    "ResumeTraining",
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

# module -> its public names
_NAMES = {
    "api": "compare_strategies largest_batch place plan score",
    "callbacks": "PlacementCallback ResumeTraining",
    "core.audit": "Audit Finding",
    "core.cluster": "Cluster Device Link",
    "core.costs": "save_costs",
    "core.errors": "AuditError ConfigError DeclarationError DeviceError "
    "InfeasibleError PlanFileError SplitnetError WorkerError",
    "core.graph": "Graph",
    "core.net": "Net Ref",
    "core.plan": "Plan",
    "planner.plan_file": "load_plan",
    "planner.what_if": "sensitivity simulate",
    "planner.workloads": "read_workload",
    "tf.audit.observe": "audit",
    "tf.emit": "emit plan_of unplace",
    "tf.parallel.data_parallel": "data_parallel",
    "tf.placement.overlay": "placement_scope",
    "tf.placement.summary": "summary",
    "tf.profiling.measure": "measure",
    "tf.profiling.profile_step": "profile_step",
    "tf.reading.read": "read",
    "tf.runtime.configure": "configure force_cpu",
    "tf.runtime.devices": "local_cluster",
    "tf.workers.connect": "connect",
    "tf.workers.start": "local_workers",
    "view.render": "draw trace",
    "view.report": "report",
    "view.tables": "chart table",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


HOOKS.update(
    {
        "load_cluster": "splitnet.core.serialization:load_cluster",
        "output_keys": "splitnet.tf.reading.source:output_keys",
        "explain": "splitnet.planner.analysis:explain",
        "compare": "splitnet.planner.analysis:compare",
        "save_plan": "splitnet.planner.plan_file:save_plan",
        "html": "splitnet.view.notebook:html_of",
        "net_svg": "splitnet.view.notebook:svg_of_net",
        "timeline_svg": "splitnet.view.notebook:svg_of_timeline",
    }
)


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once (PEP 562); functions are checked."""
    if name not in _HOMES:
        raise AttributeError(f"module 'splitnet' has no attribute {name!r}")
    value = getattr(import_module(f"splitnet.{_HOMES[name]}"), name)
    if isinstance(value, FunctionType):
        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
