"""Exceptions, and quantities as people write them: "16 GiB", "25 GB/s", "12 ms"."""

import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable

__all__ = [
    "AuditError",
    "ConfigError",
    "DeclarationError",
    "DeviceError",
    "InfeasibleError",
    "PlanFileError",
    "SplitnetError",
    "WorkerError",
    "first_line",
    "format_bytes",
    "format_count",
    "format_seconds",
    "listed",
    "parse_bytes",
    "parse_quantity",
    "repeated",
    "shown",
    "warn",
]


_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_NOT_USERS = ("splitnet.", "keras.", "tensorflow.", "contextlib")


class SplitnetError(Exception):
    """Base class of all errors that splitnet raises."""


class DeclarationError(SplitnetError, ValueError):
    """An invalid net, model or argument."""


class DeviceError(SplitnetError, ValueError):
    """An invalid device, link or cluster, or a device that is not available."""


class InfeasibleError(SplitnetError, RuntimeError):
    """No placement satisfies every constraint and fits every memory."""


class PlanFileError(SplitnetError, ValueError):
    """A plan, cost or workload file that cannot be read or written."""


class AuditError(SplitnetError, RuntimeError):
    """The observed step differs from the plan."""


class ConfigError(SplitnetError, RuntimeError):
    """A runtime setting that conflicts with another, or comes too late."""


class WorkerError(SplitnetError, RuntimeError):
    """A worker that is unreachable, died, is unresponsive or was restarted."""


def warn(message: str) -> None:
    """Warn at the user's line: the first that is not of a framework's or this one's."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(_NOT_USERS):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, stacklevel=level)


def listed(headline: str, faults: Iterable[str]) -> str:
    """Join all faults under one headline, a bullet each.

    >>> print(listed("net 'a' has 2 faults.", ["first", "second"]))
    net 'a' has 2 faults.
      - first
      - second
    """
    return "\n".join([headline, *(f"  - {fault}" for fault in faults)])


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, each once.

    >>> repeated(["a", "b", "a", "a"])
    ['a']
    """
    return [name for name, count in Counter(names).items() if count > 1]


def first_line(error: BaseException) -> str:
    """First lines of a third-party exception, without Keras' appended text."""
    text = _CONTROL.sub("?", str(error).split("Arguments received by")[0])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else "no message"


def shown(value: object) -> str:
    """A value and its type for an error, on one short line.

    >>> shown(3), shown("4")
    ('3 (int)', "'4' (str)")
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of 5,000 digits; an object that cannot be shown
        text = "a value"
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} ({type(value).__name__})"


_PREFIXES = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40, "PI": 2**50}
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SCALES = {
    unit: {f"{prefix}{name}": scale for name in names for prefix, scale in known}
    for unit, names, known in (
        ("B", ("B",), (_PREFIXES | _BINARY).items()),
        ("B/s", ("B/S",), (_PREFIXES | _BINARY).items()),
        ("FLOP/s", ("FLOP/S", "FLOPS"), _PREFIXES.items()),
    )
} | {"s": {name.upper(): scale for name, scale in _SECONDS.items()}}
_EXAMPLES = {"B": "16 GiB", "B/s": "25 GB/s", "FLOP/s": "19.5 TFLOP/s", "s": "10 us"}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)\s*([^\s\d]*)\s*")


def parse_quantity(value: object, what: str, unit: str) -> float:
    """Read a number, or a text with a unit, as a finite, non-negative number of `unit`.

    Args:
        value: "16 GiB", "25 GB/s", "19.5 TFLOP/s", "10 ms", or a number.
        what: whose value it is, for errors.
        unit: "B", "B/s", "FLOP/s" or "s"; rates must be more than zero.

    Raises:
        DeviceError: none of these.

    >>> parse_quantity("25 GB/s", "link", "B/s"), parse_quantity("10 ms", "wait", "s")
    (25000000000.0, 0.01)
    """
    example = _EXAMPLES[unit]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise DeviceError(
            f"{what} must be a number or a text such as {example!r}. "
            f"Received: {shown(value)}."
        )
    if isinstance(value, int | float):
        number = value if abs(value) < 1e30 else math.inf
    else:
        match = _QUANTITY.fullmatch(value)
        if match is None:
            raise DeviceError(
                f"{what} must look like {example!r}. Received: {shown(value)}."
            )
        scale = _SCALES[unit].get(match[2].upper()) if match[2] else 1
        if scale is None:
            raise DeviceError(
                f"{what} has an unknown unit {match[2]!r} in {value!r}. Write it as "
                f"{example!r}."
            )
        number = float(match[1]) * scale
    if not math.isfinite(number) or number < 0:
        raise DeviceError(
            f"{what} must be finite and not negative. Received: {shown(value)}."
        )
    if number == 0 and unit.endswith("/s"):
        raise DeviceError(f"{what} must be more than zero. Received: {shown(value)}.")
    return number


def parse_bytes(value: object, what: str = "memory") -> int:
    """Read an amount of memory in bytes.

    >>> parse_bytes("16 GiB"), parse_bytes("1.5 MB"), parse_bytes(1024)
    (17179869184, 1500000, 1024)
    """
    return round(parse_quantity(value, what, "B"))


def format_bytes(count: float) -> str:
    """Write an amount of memory with three significant figures.

    >>> [format_bytes(n) for n in (0, 512, 1536, 18.2 * 2**30)]
    ['0 B', '512 B', '1.50 KiB', '18.2 GiB']
    """
    return _format(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def format_count(count: float) -> str:
    """Write a large number, such as FLOPs, with a decimal prefix.

    >>> [format_count(n) for n in (0, 999, 1_500, 7.75e9)]
    ['0', '999', '1.50 K', '7.75 G']
    """
    return _format(count, 1000, ("", "K", "M", "G", "T", "P")).strip()


def _format(count: float, step: int, units: tuple[str, ...]) -> str:
    scale = 0
    while count >= step * 0.9995 and scale < len(units) - 1:
        count /= step
        scale += 1
    if scale == 0:
        return f"{count:.0f} {units[0]}"
    return f"{_three_figures(count)} {units[scale]}"


def format_seconds(seconds: float) -> str:
    """Write a time with three significant figures.

    >>> [format_seconds(t) for t in (0, 2.5e-6, 0.0123, 4.2)]
    ['0 s', '2.50 us', '12.3 ms', '4.20 s']
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns")):
        if seconds / scale >= 0.9995:
            return f"{_three_figures(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{seconds:.2g} s"


def _three_figures(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
