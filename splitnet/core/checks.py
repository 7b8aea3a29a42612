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
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from msgspec import Meta

from splitnet.core.errors import DeclarationError, SplitnetError, listed, shown

Count = Annotated[int, Meta(ge=0, le=2**60)]
Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Rate = Annotated[float, Meta(ge=1, le=1e30)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Width = Annotated[int, Meta(ge=1, le=10_000)]
Function = TypeVar("Function", bound=Callable[..., Any])

_LARGEST = {int: 2**63, float: 1e308}
_SIGNS = {"ge": ">=", "le": "<=", "lt": "<"}


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; unknown types fit anything.

    >>> fits(3, int), fits(True, int), fits(3, float | None), fits(0, Positive)
    (True, False, True, False)
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        kind, limits = arguments
        if isinstance(limits, tuple):
            return fits(value, kind) and value in limits
        if not isinstance(limits, Meta):  # a type that a type checker need not know
            return fits(value, limits)
        return fits(value, kind) and (
            (limits.ge is None or value >= limits.ge)
            and (limits.le is None or value <= limits.le)
            and (limits.lt is None or value < limits.lt)
        )
    if origin in (Union, UnionType):
        return any(fits(value, one) for one in arguments)
    if kind in _LARGEST:
        number = isinstance(value, int if kind is int else int | float)
        return number and not isinstance(value, bool) and abs(value) < _LARGEST[kind]
    kind = origin or kind
    if kind is Any or not isinstance(kind, type):
        return True
    if kind is Sequence or arguments[1:] == (...,):
        several = isinstance(value, kind) and not isinstance(value, str | bytes)
        return several and all(fits(one, arguments[0]) for one in value)
    return isinstance(value, kind)


def words(kind: Any) -> str:
    """A type in words.

    >>> words(Positive | None), words(Annotated[str, ("a", "b")])
    ('int >= 1 or None', "one of 'a', 'b'")
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        kind, limits = arguments
        if isinstance(limits, tuple):
            return f"one of {', '.join(map(repr, limits))}"
        if not isinstance(limits, Meta):
            return words(limits)
        ends = {sign: getattr(limits, name) for name, sign in _SIGNS.items()}
        signs = [f"{sign} {end:g}" for sign, end in ends.items() if end is not None]
        return f"{words(kind)} {' and '.join(signs)}"
    if origin in (Union, UnionType):
        return " or ".join(map(words, arguments))
    return (
        "None" if kind is NoneType else str(getattr(origin or kind, "__name__", kind))
    )


def check_fields(
    value: Any,
    more: Iterable[str] = (),
    error: type[SplitnetError] = DeclarationError,
) -> None:
    """Raise an `error` with every fault of type of a dataclass, or else with `more`."""
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    name = type(value).__name__
    faults = [*_faults(given, type(value).__init__)] or [*more]
    if faults:
        raise error(_told(name, faults))


def checked(function: Function) -> Function:
    """The function, with its arguments checked against its annotations.

    `**options: Annotated[Any, Options]` stands for the fields of a dataclass.
    """
    signature, name = inspect.signature(function), function.__qualname__
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    for one in signature.parameters.values():
        if one.kind in several and get_origin(one.annotation) is Annotated:
            table = inspect.signature(get_args(one.annotation)[1])
            named = {**signature.parameters, **table.parameters}
            del named[one.name]  # the fields of its table stand for it
            signature = signature.replace(parameters=[*named.values()])
    single = {n for n, one in signature.parameters.items() if one.kind not in several}

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            unknown = next((one for one in named if one not in single), "")
            near = difflib.get_close_matches(unknown, single, n=1)
            hint = f" Did you mean {near[0]}=?" if near else ""
            raise DeclarationError(f"{name}: {error}.{hint}") from None
        faults = _faults({n: one for n, one in given.items() if n in single}, function)
        if faults:
            raise DeclarationError(_told(name, faults))
        return function(*arguments, **named)

    call.__signature__ = signature  # type: ignore[attr-defined]  # help() reads it
    return call  # type: ignore[return-value]  # of the same signature


def _faults(values: Mapping[str, object], function: Any) -> list[str]:
    """The values that do not fit the annotations of a function's arguments."""
    kinds = _kinds(function)
    return [
        f"{name}= must be {words(kinds[name])}. Received: {shown(value)}"
        for name, value in values.items()
        if name in kinds and not fits(value, kinds[name])
    ]


def _told(name: str, faults: list[str]) -> str:
    if len(faults) == 1:
        return f"{name}: {faults[0]}."
    return listed(f"{name}: {len(faults)} arguments are wrong.", faults)


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
