"""Check that private names exist, and say which versions have them."""

import dis
from collections.abc import Sequence
from types import FunctionType, ModuleType
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
    """Whether a module or class has a name, or a method of the class sets it."""
    if hasattr(owner, name):
        return True
    if isinstance(owner, ModuleType):
        return False
    return any(
        (step.opname, step.argval) == ("STORE_ATTR", name)
        for kind in owner.__mro__
        for function in map(_function, vars(kind).values())
        if function is not None and name in function.__code__.co_names
        for step in dis.get_instructions(function)
    )


def _function(member: Any) -> FunctionType | None:
    """The Python function behind a method, a property or a decorated method."""
    member = getattr(member, "fget", member)
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    member = getattr(member, "__func__", member)
    return member if isinstance(member, FunctionType) else None


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
