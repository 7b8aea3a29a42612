"""Check that private names exist, and say which versions have them."""

import inspect
import re
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from splitnet.core.errors import ConfigError, listed

__all__ = ["Needed", "is_there", "missing", "refuse"]

Needed = Sequence[tuple[Any, tuple[str, ...]]]
"""Owners (modules or classes) with the names that splitnet reads of them."""


def missing(needed: Needed) -> list[str]:
    """A fault for each name that its owner no longer has."""
    return [
        f"{owner.__name__}.{name} is gone"
        for owner, names in needed
        for name in names
        if not is_there(owner, name)
    ]


def is_there(owner: Any, name: str) -> bool:
    """Whether a module or class has a name, or the class' source sets it on objects."""
    if hasattr(owner, name) or isinstance(owner, ModuleType):
        return hasattr(owner, name)
    homes = {kind.__module__ for kind in owner.__mro__} - {"builtins"}
    return any(
        re.search(rf"self\.{name}\b.*=", inspect.getsource(sys.modules[home]))
        for home in homes
    )


def refuse(
    library: str, here: str, supported: Sequence[tuple[int, int]], faults: list[str]
) -> None:
    """Raise if a version is outside the tested range, or if there are other faults.

    Raises:
        ConfigError: says which version is here, which are supported, and what to do.
    """
    (low, high), package = supported, library.lower()
    lowest, highest = (".".join(map(str, version)) for version in (low, high))
    major, minor = (int(number) for number in here.split(".")[:2])
    if not low <= (major, minor) <= high:
        faults = [*faults, f"{library} {here} is outside {lowest} to {highest}"]
    if faults:
        raise ConfigError(
            listed(
                f"splitnet cannot place models with {library} {here}; it is tested "
                f"with {lowest} to {highest}. Try: pip install "
                f"'{package}>={lowest},<{high[0]}.{high[1] + 1}'",
                faults,
            )
        )
