"""Types of arguments and fields, checked where values enter the library.

An annotation says what is allowed, ranges included: `Annotated[int, Meta(ge=1)]`. It
holds for a file (msgspec decodes by it), for a constructor (`check_fields`) and for a
public function (`checked`, which the package applies to each of its public names).
Annotations that cannot be evaluated, because they name Keras, are not checked.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from os import PathLike
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, Unpack, get_args, get_origin

from msgspec import Meta

from splitnet.core.errors import DeclarationError, SplitnetError, listed, shown

__all__ = [
    "Amount",
    "Count",
    "Positive",
    "Rate",
    "Seconds",
    "Width",
    "check_fields",
    "checked",
    "faults_of",
]

Count = Annotated[int, Meta(ge=0, le=2**60)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Rate = Annotated[float, Meta(ge=1, le=1e30)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Width = Annotated[int, Meta(ge=1, le=10_000)]

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
Function = TypeVar("Function", bound=Callable[..., Any])


def fits(value: object, kind: Any) -> bool:
    """Whether a value is of an annotated type; unknown types fit anything.

    >>> fits(3, int), fits(True, int), fits(3, float | None), fits(0, Positive)
    (True, False, True, False)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return fits(value, arguments[0]) and _within(value, arguments[1])
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if kind is None or kind is NoneType:
        return value is None
    if kind in (int, float):
        types = (int,) if kind is int else (int, float)
        number = isinstance(value, types) and not isinstance(value, bool)
        return number and abs(value) < _LARGEST[kind]  # type: ignore[arg-type]  # a number
    if origin is tuple or kind is tuple:
        items = arguments[0] if arguments[1:] == (...,) else Any
        return isinstance(value, tuple) and all(fits(one, items) for one in value)
    if origin is Sequence:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            return False
        return all(fits(one, arguments[0]) for one in value)
    if origin in (Mapping, dict):
        return isinstance(value, Mapping)
    if origin is Callable or kind is Callable:
        return callable(value)
    kind = origin or kind
    if (
        kind is Any
        or not isinstance(kind, type)
        or getattr(kind, "_is_protocol", False)
    ):
        return True
    return isinstance(value, kind)


def _within(value: Any, limits: Meta | tuple[str, ...]) -> bool:
    """Whether a value is in a range, or one of some."""
    if isinstance(limits, tuple):
        return value in limits
    return (
        (limits.ge is None or value >= limits.ge)
        and (limits.le is None or value <= limits.le)
        and (limits.lt is None or value < limits.lt)
    )


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
        comma = "," if "," in first else ""
        return f"{first}{comma} or {arguments[-1]}"
    kind = origin or kind
    name = _NAMES.get(kind) or str(getattr(kind, "__name__", kind))
    return _SOURCES.get(name, name)


def faults_of(values: Mapping[str, object], kinds: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with named values, one text for each."""
    for name, value in values.items():
        if name in kinds and not fits(value, kinds[name]):
            yield f"{name}= must be {words(kinds[name])}. Received: {shown(value)}"


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
    kinds = _kinds(type(value).__init__)
    name = type(value).__name__
    _raise(name, list(faults_of(given, kinds)) or list(more), error)


def checked(function: Function) -> Function:
    """The function, with its arguments checked against its annotations.

    Raises:
        DeclarationError: with every argument that does not fit, or that is unknown.
    """
    signature = inspect.signature(function)
    if signature.parameters:
        signature = _named(signature)
    name = function.__qualname__
    single = {
        parameter.name
        for parameter in signature.parameters.values()
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    }

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            unknown = next((one for one in named if one not in single), "")
            near = difflib.get_close_matches(unknown, single, n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            raise DeclarationError(f"{name}: {error}.{hint}") from None
        given = {n: value for n, value in given.items() if n in single}
        _raise(name, list(faults_of(given, _kinds(function))))
        return function(*arguments, **named)

    call.__signature__ = signature  # type: ignore[attr-defined]  # help() reads it
    return call  # type: ignore[return-value]  # of the same signature


def _named(signature: inspect.Signature) -> inspect.Signature:
    """A signature with the names of `**options: Unpack[Some]` spelled out (PEP 692)."""
    *before, last = [*signature.parameters.values()]
    if get_origin(last.annotation) is not Unpack:
        return signature
    (table,) = get_args(last.annotation)
    options = inspect.signature(table).parameters.values()
    return signature.replace(parameters=[*before, *options])


def _raise(
    name: str, faults: list[str], error: type[SplitnetError] = DeclarationError
) -> None:
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
