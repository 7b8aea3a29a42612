"""Types of arguments and fields, checked where values enter the library.

An annotation says what is allowed, ranges included: `Annotated[int, Meta(ge=1)]`. It
holds for a file (msgspec decodes by it), for a constructor (`check_fields`) and for a
public function (`checked`, which the package applies to each of its public names).
Annotations that cannot be evaluated, because they name Keras, are not checked.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, Unpack, get_args, get_origin

from msgspec import Meta

from splitnet.core.errors import DeclarationError, SplitnetError, listed, shown

Count = Annotated[int, Meta(ge=0, le=2**60)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Rate = Annotated[float, Meta(ge=1, le=1e30)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Width = Annotated[int, Meta(ge=1, le=10_000)]
Function = TypeVar("Function", bound=Callable[..., Any])

_NAMES: dict[Any, str] = {
    int: "a whole number",
    float: "a finite number",
    str: "a text",
    bool: "True or False",
    NoneType: "None",
    Sequence: "a list",
    Mapping: "a table",
    dict: "a table",
    tuple: "a tuple",
    Callable: "a function",
    Path: "a path",
    PathLike: "a path",
}
# Where to get one, for those that people meet.
_SOURCES = {
    "Cluster": "a Cluster, such as splitnet.Cluster.of('2*gpu', 'cpu')",
    "Plan": "a plan, from splitnet.plan(source, cluster) or splitnet.load_plan(path)",
    "Model": "a Keras model",
    "Timeline": "a timeline, from splitnet.simulate(plan)",
    "Audit": "an audit, from splitnet.audit(model, plan, batch)",
    "Measured": "costs, from splitnet.measure(source, cluster)",
}
_LARGEST = {int: 2**63, float: 1e308}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; unknown types fit anything.

    >>> fits(3, int), fits(True, int), fits(3, float | None), fits(0, Positive)
    (True, False, True, False)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        kind, limits = arguments
        if not fits(value, kind):
            return False
        if isinstance(limits, tuple):
            return value in limits
        return (
            (limits.ge is None or value >= limits.ge)
            and (limits.le is None or value <= limits.le)
            and (limits.lt is None or value < limits.lt)
        )
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else int | float)
        return number and not isinstance(value, bool) and abs(value) < _LARGEST[kind]
    kind = origin or kind
    protocol = getattr(kind, "_is_protocol", False)
    if kind is Any or protocol or not isinstance(kind, type):
        return True
    if kind is Sequence or arguments[1:] == (...,):
        several = isinstance(value, kind) and not isinstance(value, str | bytes)
        return several and all(fits(one, arguments[0]) for one in value)
    return isinstance(value, kind)


def words(kind: Any) -> str:
    """A type in words.

    >>> words(Positive | None), words(Annotated[str, ("a", "b")])
    ('a whole number, 1 or more, or None', "one of 'a', 'b'")
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = arguments[1]
        if isinstance(limits, tuple):
            return f"one of {', '.join(map(repr, limits))}"
        text = words(arguments[0])
        if limits.lt is not None:
            return f"{text}, at least {limits.ge} and below {limits.lt}"
        if limits.le is not None:
            return f"{text}, {limits.ge} to {limits.le:g}"
        return f"{text}, {limits.ge} or more"
    if origin in (Union, UnionType):
        arguments = tuple(words(one) for one in arguments)
        if sum(one in _SOURCES.values() for one in arguments) > 1:
            arguments = tuple(one.partition(",")[0] for one in arguments)
        first = ", ".join(arguments[:-1])
        return f"{first}{',' if ',' in first else ''} or {arguments[-1]}"
    kind = origin or kind
    name = _NAMES.get(kind) or str(getattr(kind, "__name__", kind))
    return _SOURCES.get(name, name)


def check_fields(
    value: Any,
    more: Iterable[str] = (),
    error: type[SplitnetError] = DeclarationError,
) -> None:
    """Check the fields of a dataclass against their types, and then `more`.

    Raises:
        SplitnetError: an `error` with every fault of type, or else with all of `more`.
    """
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    _check(type(value).__name__, given, type(value).__init__, more, error)


def checked(function: Function) -> Function:
    """The function, with its arguments checked against its annotations.

    Raises:
        DeclarationError: with every argument that does not fit, or that is unknown.
    """
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    if parameters and get_origin(parameters[-1].annotation) is Unpack:
        (table,) = get_args(parameters.pop().annotation)  # its names for `**` (PEP 692)
        parameters += inspect.signature(table).parameters.values()
        signature = signature.replace(parameters=parameters)
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    single = {n for n, one in signature.parameters.items() if one.kind not in several}

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            unknown = next((one for one in named if one not in single), "")
            near = difflib.get_close_matches(unknown, single, n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            name = function.__qualname__
            raise DeclarationError(f"{name}: {error}.{hint}") from None
        given = {name: value for name, value in given.items() if name in single}
        _check(function.__qualname__, given, function)
        return function(*arguments, **named)

    call.__signature__ = signature  # type: ignore[attr-defined]  # help() reads it
    return call  # type: ignore[return-value]  # of the same signature


def _check(
    name: str,
    values: Mapping[str, object],
    function: Callable[..., Any],
    more: Iterable[str] = (),
    error: type[SplitnetError] = DeclarationError,
) -> None:
    """Check values against the annotations of a function's arguments."""
    kinds = _kinds(function)
    faults = [
        f"{name}= must be {words(kinds[name])}. Received: {shown(value)}"
        for name, value in values.items()
        if name in kinds and not fits(value, kinds[name])
    ] or list(more)
    if len(faults) == 1:
        raise error(f"{name}: {faults[0]}.")
    if faults:
        raise error(listed(f"{name}: {len(faults)} arguments are wrong.", faults))


@cache
def _kinds(function: Any) -> dict[str, Any]:
    """The types of a function's arguments, those that can be evaluated."""
    kinds = {}
    for name, kind in inspect.get_annotations(function).items():
        try:
            kinds[name] = (
                eval(kind, function.__globals__) if isinstance(kind, str) else kind
            )
        except NameError:
            continue
    return kinds
