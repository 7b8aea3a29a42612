"""Types of arguments and fields, checked where values enter the library.

An annotation says what is allowed, ranges included: `Annotated[int, Meta(ge=1)]`. It
holds for a file (msgspec decodes by it), for a constructor (`check_fields`) and for a
public function (`checked`). Those that cannot be evaluated, as they name Keras, do not.
"""

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache, wraps
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from splitnet.core.errors import DeclarationError, SplitnetError, shown

Count = Annotated[int, Meta(ge=0, le=2**60)]
Positive = Annotated[int, Meta(ge=1, le=2**60)]
Amount = Annotated[float, Meta(ge=0, le=1e30)]
Rate = Annotated[float, Meta(ge=1, le=1e30)]
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Width = Annotated[int, Meta(ge=1, le=10_000)]
Function = TypeVar("Function", bound=Callable[..., Any])

_SIGNS = {"ge": ">=", "le": "<=", "lt": "<"}
_PLAIN: dict[Any, Any] = {int: Annotated[int, Meta(ge=-(2**60), le=2**60)]}
_PLAIN[float] = Annotated[float, Meta(ge=-1e30, le=1e30)]
_BY_MSGSPEC = (str, bool, NoneType, list, tuple, dict, Sequence, Mapping, *_PLAIN)


def rule_of(kind: Any) -> tuple[str, Callable[[Any], bool]]:
    """A type in words, and whether a value is of it; anything is of unknown types.

    >>> [rule_of(Positive | None)[1](value) for value in (3, 0, True, None)]
    [True, False, False, True]
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        words, tests = zip(*map(rule_of, arguments))
        return " or ".join(words), lambda value: any(fits(value) for fits in tests)
    plain, limits = origin or kind, None
    if origin is Annotated:
        plain, limits = arguments
        if isinstance(limits, tuple):
            one_of = f"one of {', '.join(map(repr, limits))}"
            return one_of, lambda value: isinstance(value, plain) and value in limits
        if not isinstance(limits, Meta):  # a type that a type checker need not know
            return rule_of(limits)
    word = "None" if plain is NoneType else str(getattr(plain, "__name__", plain))
    if origin in (Mapping, dict):
        word += " of {} to {}".format(*(rule_of(one)[0] for one in arguments))
    ends = {sign: getattr(limits, name, None) for name, sign in _SIGNS.items()}
    told = {sign: end for sign, end in ends.items() if end is not None and end < 1e18}
    word += " and".join(f" {sign} {end:g}" for sign, end in told.items())
    known = object if plain is Any or not isinstance(plain, type) else plain

    def fits(value: Any) -> bool:
        if plain not in _BY_MSGSPEC or plain is tuple and not isinstance(value, tuple):
            return isinstance(value, known)
        value = float(value) if isinstance(value, float) else value  # of NumPy as well
        try:
            msgspec.convert(value, _PLAIN.get(kind, kind))
        except (msgspec.ValidationError, AttributeError, ValueError):
            return False  # or no keys beside items, or half of a surrogate pair
        return True

    return word, fits


def check_fields(
    value: Any,
    more: Iterable[str] = (),
    error: type[SplitnetError] = DeclarationError,
    called: str = "",
) -> None:
    """Raise an `error` with every fault of type of a dataclass, or else with `more`."""
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    if faults := [*(_faults(given, type(value).__init__) or more)]:
        raise _error(called or type(value).__name__, faults, error)


def checked(function: Function) -> Function:
    """The function, with its arguments checked against its annotations.

    `**options: Annotated[Any, Options]` stands for the fields of a dataclass.
    """
    signature, name = inspect.signature(function), function.__qualname__
    several = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    takes = dict(signature.parameters)
    for one in signature.parameters.values():
        if one.kind in several and get_origin(one.annotation) is Annotated:
            takes |= inspect.signature(get_args(one.annotation)[1]).parameters
            del takes[one.name]  # the fields of its table stand for it
    single = [n for n, one in takes.items() if one.kind not in several]
    kinds = {n: one.annotation for n, one in takes.items()}
    read = {n: kind for n, kind in kinds.items() if not isinstance(kind, str)}
    kinds |= get_type_hints(SimpleNamespace(__annotations__=read))  # without ranges
    plain = [one.replace(annotation=kinds[n]) for n, one in takes.items()]
    signature = signature.replace(parameters=plain)

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            given = signature.bind(*arguments, **named).arguments
        except TypeError as error:
            unknown = next((one for one in named if one not in single), "")
            near = difflib.get_close_matches(unknown, single, n=1)
            known = ", ".join(n for n in single if n not in ("cls", "self"))
            hint = f"did you mean {near[0]}=?" if near else f"known: {known}"
            fault = f"there is no {unknown}= ({hint})" if unknown else str(error)
            raise _error(name, [fault], DeclarationError) from None
        values = {n: one for n, one in given.items() if n in single}
        if faults := _faults(values, function):
            raise _error(name, faults, DeclarationError)
        return function(*arguments, **named)

    call.__signature__ = signature  # type: ignore[attr-defined]  # help() reads it
    return call  # type: ignore[return-value]  # of the same signature


def _faults(values: Mapping[str, object], function: Any) -> list[str]:
    rules = _rules(function)
    wrong = [n for n in values if n in rules and not rules[n][1](values[n])]
    return [f"{n}= must be {rules[n][0]}. Received: {shown(values[n])}" for n in wrong]


def _error(name: str, faults: list[str], kind: type[SplitnetError]) -> SplitnetError:
    if len(faults) > 1:
        return kind(f"{name}: {len(faults)} arguments are wrong.", faults)
    error = kind(f"{name}: {faults[0]}.")
    error.faults = (*faults,)
    return error


@cache
def _rules(function: Any) -> dict[str, tuple[str, Callable[[Any], bool]]]:
    rules = {}
    for name, kind in inspect.get_annotations(function).items():
        with suppress(NameError):
            read = eval(kind, function.__globals__) if isinstance(kind, str) else kind
            rules[name] = rule_of(read)
    return rules
