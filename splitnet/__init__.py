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

if TYPE_CHECKING:  # as in _MODULES below; `as` tells type checkers: public
    from splitnet.api import compare_strategies as compare_strategies
    from splitnet.api import largest_batch as largest_batch
    from splitnet.api import place as place
    from splitnet.api import plan as plan
    from splitnet.api import score as score
    from splitnet.callbacks import PlacementCallback as PlacementCallback
    from splitnet.callbacks import ResumeTraining as ResumeTraining
    from splitnet.core.audit import Audit as Audit
    from splitnet.core.audit import Finding as Finding
    from splitnet.core.cluster import Cluster as Cluster
    from splitnet.core.cluster import Device as Device
    from splitnet.core.cluster import Link as Link
    from splitnet.core.costs import save_costs as save_costs
    from splitnet.core.errors import AuditError as AuditError
    from splitnet.core.errors import ConfigError as ConfigError
    from splitnet.core.errors import DeclarationError as DeclarationError
    from splitnet.core.errors import DeviceError as DeviceError
    from splitnet.core.errors import InfeasibleError as InfeasibleError
    from splitnet.core.errors import PlanFileError as PlanFileError
    from splitnet.core.errors import SplitnetError as SplitnetError
    from splitnet.core.errors import WorkerError as WorkerError
    from splitnet.core.graph import Graph as Graph
    from splitnet.core.net import Net as Net
    from splitnet.core.net import Ref as Ref
    from splitnet.core.plan import Plan as Plan
    from splitnet.planner.plan_file import load_plan as load_plan
    from splitnet.planner.what_if import sensitivity as sensitivity
    from splitnet.planner.what_if import simulate as simulate
    from splitnet.planner.workloads import read_workload as read_workload
    from splitnet.tf.audit.observe import audit as audit
    from splitnet.tf.emit import emit as emit
    from splitnet.tf.emit import plan_of as plan_of
    from splitnet.tf.emit import summary as summary
    from splitnet.tf.emit import unplace as unplace
    from splitnet.tf.parallel.data_parallel import data_parallel as data_parallel
    from splitnet.tf.placement.overlay import placement_scope as placement_scope
    from splitnet.tf.profiling.measure import measure as measure
    from splitnet.tf.profiling.profile_step import profile_step as profile_step
    from splitnet.tf.reading.read import read as read
    from splitnet.tf.runtime.configure import configure as configure
    from splitnet.tf.runtime.configure import force_cpu as force_cpu
    from splitnet.tf.runtime.devices import local_cluster as local_cluster
    from splitnet.tf.workers.connect import connect as connect
    from splitnet.tf.workers.start import local_workers as local_workers
    from splitnet.view.render import draw as draw
    from splitnet.view.report import report as report
    from splitnet.view.tables import chart as chart
    from splitnet.view.tables import table as table
    from splitnet.view.timeline import trace as trace

_MODULES: dict[str, list[str]] = {
    "splitnet.api": ["compare_strategies", "largest_batch", "place", "plan", "score"],
    "splitnet.callbacks": ["PlacementCallback", "ResumeTraining"],
    "splitnet.core.audit": ["Audit", "Finding"],
    "splitnet.core.cluster": ["Cluster", "Device", "Link"],
    "splitnet.core.costs": ["save_costs"],
    "splitnet.core.errors": [
        *("AuditError", "ConfigError", "DeclarationError", "DeviceError"),
        *("InfeasibleError", "PlanFileError", "SplitnetError", "WorkerError"),
    ],
    "splitnet.core.graph": ["Graph"],
    "splitnet.core.net": ["Net", "Ref"],
    "splitnet.core.plan": ["Plan"],
    "splitnet.planner.plan_file": ["load_plan"],
    "splitnet.planner.what_if": ["sensitivity", "simulate"],
    "splitnet.planner.workloads": ["read_workload"],
    "splitnet.tf.audit.observe": ["audit"],
    "splitnet.tf.emit": ["emit", "plan_of", "summary", "unplace"],
    "splitnet.tf.parallel.data_parallel": ["data_parallel"],
    "splitnet.tf.placement.overlay": ["placement_scope"],
    "splitnet.tf.profiling.measure": ["measure"],
    "splitnet.tf.profiling.profile_step": ["profile_step"],
    "splitnet.tf.reading.read": ["read"],
    "splitnet.tf.runtime.configure": ["configure", "force_cpu"],
    "splitnet.tf.runtime.devices": ["local_cluster"],
    "splitnet.tf.workers.connect": ["connect"],
    "splitnet.tf.workers.start": ["local_workers"],
    "splitnet.view.render": ["draw"],
    "splitnet.view.report": ["report"],
    "splitnet.view.tables": ["chart", "table"],
    "splitnet.view.timeline": ["trace"],
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [*_MODULE_OF, "__version__"]

HOOKS |= {
    "load_cluster": "splitnet.core.serialization:load_cluster",
    "output_keys": "splitnet.tf.reading.source:output_keys",
    "explain": "splitnet.planner.analysis:explain",
    "compare": "splitnet.planner.analysis:compare",
    "compare_plan": "splitnet.planner.strategies.candidates:compare_plan",
    "save_plan": "splitnet.planner.plan_file:save_plan",
    "notebook": "splitnet.view.render:notebook_output",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module, once (PEP 562); functions are checked."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'splitnet' has no attribute {name!r}")
    value = getattr(import_module(_MODULE_OF[name]), name)
    if isinstance(value, FunctionType):
        value = checked(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
