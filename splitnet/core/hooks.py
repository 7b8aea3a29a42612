"""Registry of the functions of other packages that methods of core values call.

Core imports nothing above it. `Plan.explain`, `Plan.save`, the pictures in a notebook
and the number of outputs of a branch need functions of `planner`, `view` and `tf`;
`splitnet/__init__.py` declares where each of them is, once. A function is imported when
it is first called.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["HOOKS", "call", "declare", "function"]

HOOKS = (
    "load_cluster",  # (path) -> the cluster of a TOML file
    "output_keys",  # (net, ref) -> the keys of a branch's outputs, None if it has one
    "explain",  # (plan, part) -> the explanation
    "compare",  # (plan, other) -> the comparison
    "save_plan",  # (plan, path)
    "plan_svg",  # (plan) -> SVG text
    "plan_html",  # (plan) -> HTML text
    "timeline_svg",  # (timeline) -> SVG text
    "audit_html",  # (audit) -> HTML text
)

_declared: dict[str, str] = {}


def declare(functions: Mapping[str, str]) -> None:
    """Say where each hook's function is: name -> "package.module:function".

    Raises:
        ValueError: the names are not exactly those of `HOOKS`.
    """
    if set(functions) != set(HOOKS):
        wrong = sorted(set(functions) ^ set(HOOKS))
        raise ValueError(f"hooks must be declared all together; see {wrong}")
    _declared.update(functions)


def function(name: str) -> Any:
    """Import the function of a hook.

    Raises:
        KeyError: no such hook, or hooks are not declared.
    """
    module, _, attribute = _declared[name].partition(":")
    return getattr(import_module(module), attribute)


def call(name: str, *arguments: Any) -> Any:
    """Call the function of a hook."""
    return function(name)(*arguments)
