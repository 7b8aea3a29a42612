"""Check that private names exist, and say which versions have them."""

import dis
import inspect
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from splitnet.core.errors import ConfigError, listed

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
    """Whether a module or class has a name, or a method of the class sets it.

    Methods are searched as bytecode: an installation may have no sources.
    """
    members = [] if isinstance(owner, ModuleType) else owner.__mro__
    functions = [getattr(v, "fget", v) for one in members for v in vars(one).values()]
    codes = [getattr(inspect.unwrap(one), "__code__", None) for one in functions]
    steps = [
        step
        for code in codes
        if code is not None and name in code.co_names
        for step in dis.get_instructions(code)
    ]
    sets = any(one.opname == "STORE_ATTR" and one.argval == name for one in steps)
    return hasattr(owner, name) or sets


def refuse(
    library: str, here: str, supported: Sequence[tuple[int, int]], faults: list[str]
) -> None:
    """Raise if a version is outside the tested range, or if there are other faults.

    Raises:
        ConfigError: says which version is here, which are supported, and what to do.
    """
    low, high = supported
    lowest, highest = (".".join(map(str, version)) for version in supported)
    major, minor = (int(number) for number in here.split(".")[:2])
    if not low <= (major, minor) <= high:
        faults = [*faults, f"{library} {here} is outside {lowest} to {highest}"]
    if faults:
        raise ConfigError(
            listed(
                f"splitnet cannot place models with {library} {here}; it is tested "
                f"with {lowest} to {highest}. Try: pip install "
                f"'{library.lower()}>={lowest},<{high[0]}.{high[1] + 1}'",
                faults,
            )
        )
