"""Plain data, without a framework.

Methods of values, such as `Plan.save`, need functions of packages above this one.
`splitnet/__init__.py` says where they are, and each is imported when it is first used.
"""

from pkgutil import resolve_name
from typing import Any

HOOKS: dict[str, str] = {}
"""Name -> "package.module:function"."""


def hook(name: str) -> Any:
    """Import a function of an upper package."""
    return resolve_name(HOOKS[name])


class Pictured:
    """A value that a notebook shows as a picture."""

    def _repr_mimebundle_(self, **_which: object) -> Any:
        return hook("notebook")(self)
