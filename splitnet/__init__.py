"""Declare, plan, emit, train, audit, draw: Keras models on several devices.

    import splitnet as sn

Importing this package loads neither TensorFlow nor Keras and patches nothing: each
public name is imported, from the module that `__init__.pyi` says, when it is first used
(Scientific Python's SPEC 1).
"""

import re
from importlib import import_module
from pathlib import Path
from types import FunctionType
from typing import Any

from splitnet.core import HOOKS
from splitnet.core.checks import checked

__version__ = "0.1.0"

_STUB = Path(__file__).with_name("__init__.pyi").read_text(encoding="utf-8")
_MODULE_OF = {n: module for module, n in re.findall(r"from (\S+) import (\w+)", _STUB)}
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
