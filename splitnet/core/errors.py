"""Exceptions, and quantities as people write them: "16 GiB", "25 GB/s", "12 ms"."""

import math
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Characters that no name, and no line on a terminal, may have."""
_NOT_USERS = ("splitnet.", "keras.", "tensorflow.", "contextlib")


class SplitnetError(Exception):
    """Base class of all errors that splitnet raises; `faults` follow its message."""

    def __init__(self, message: str = "", faults: Iterable[str] = ()) -> None:
        self.faults = (*faults,)
        super().__init__(listed(message, self.faults))


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
    """Join all faults under one headline, a bullet each."""
    return "\n".join([headline, *(f"  - {fault}" for fault in faults)])


@contextmanager
def collected(faults: list[str], where: str = "") -> Iterator[None]:
    """Add the faults of an error that is raised in this block to a list of them."""
    try:
        yield
    except SplitnetError as error:
        text = str(error).removesuffix(".")
        faults += (f"{where}{fault}" for fault in error.faults or [text])


_TRACE = re.compile(r'$|Graph execution |Detected at |<stack|File "|\d root error')


def repeated(names: Iterable[str]) -> list[str]:
    """The names that occur more than once, each once."""
    return [name for name, count in Counter(names).items() if count > 1]


def first_line(error: BaseException) -> str:
    """First lines of a third-party exception, without Keras' appended text."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error)).split("Arguments received by")[0]
    text = re.sub(r"(?s)^in user code:.*\n\n *(\w+: )?", "", text.strip())  # AutoGraph
    lines = [CONTROL.sub("?", line.strip()) for line in text.split("\n")]
    return " ".join([x for x in lines if not _TRACE.match(x)][:2])[:300] or "no message"


def shown(value: object) -> str:
    """A value and its type for an error, on one short line: "3 (int)"."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # a whole number of 5,000 digits; an object that cannot be shown
        text = "a value"
    text = text if len(text) <= 60 else f"{text[:57]}..."
    large = isinstance(value, int | float) and abs(value) > 2**60
    return f"{text} ({type(value).__name__}{', out of range' * large})"


_DECIMAL = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15, "e": 1e18}
_BINARY = {f"{one}i": 1024.0**n for n, one in enumerate("kmgtpe", 1)}
# Unit -> an example, its spellings in lower case, and its prefixes.
_UNITS = {
    "B": ("16 GiB", "b", _DECIMAL | _BINARY),
    "B/s": ("25 GB/s", "b/s", _DECIMAL | _BINARY),
    "FLOP/s": ("19.5 TFLOP/s", "flop/?s", _DECIMAL),
    "s": ("10 us", "s", {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}),
}


def parse_quantity(value: object, what: str, unit: str) -> float:
    """Read a number, or a text with a unit, as a finite, non-negative number of `unit`.

    `unit` is "B", "B/s", "FLOP/s" or "s"; rates must be more than zero.

    >>> parse_quantity("25 GB/s", "link", "B/s"), parse_quantity("10 ms", "wait", "s")
    (25000000000.0, 0.01)
    """
    example, spelled, scales = _UNITS[unit]
    number = math.nan
    if isinstance(value, str):
        digits = r"((?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)"
        pattern = rf"{digits}\s*(?:({'|'.join(scales)}){spelled})?"
        bits = re.search(r"[KMGTPE]b/s", value)  # not bytes
        text = value.strip().lower().replace("\u03bc", "u")  # the Greek letter
        if not bits and (match := re.fullmatch(pattern, text, re.ASCII)):
            number = float(match[1]) * scales[match[2] or ""]
    elif isinstance(value, int | float) and not isinstance(value, bool):
        number = value
    rate = unit.endswith("/s")
    if not 0 <= number < 1e30 or rate and number == 0:
        least = "more than zero" if rate else "zero or more"
        known = f"a number, or a text such as {example!r}"
        least += " and in range" * (number >= 1e30)
        raise DeviceError(f"{what} must be {least}: {known}. Received: {shown(value)}.")
    return number


def format_bytes(count: float) -> str:
    """Write an amount of memory with three significant figures: "18.2 GiB".

    >>> [format_bytes(n) for n in (0, 512, 1536, 18.2 * 2**30)]
    ['0 B', '512 B', '1.50 KiB', '18.2 GiB']
    """
    scales = {f"{one}iB": 1024.0**n for n, one in enumerate("KMGTPE", 1)}
    return _scaled(count, scales) or f"{count:.0f} B"


def format_count(count: float) -> str:
    """Write a large number, such as FLOPs, with a decimal prefix: "7.75 G"."""
    scales = {one: 1000.0**n for n, one in enumerate("KMGTPE", 1)}
    return _scaled(count, scales) or f"{count:.0f}"


def format_seconds(seconds: float) -> str:
    """Write a time with three significant figures: "2.50 us"."""
    scales = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
    return _scaled(seconds, scales) or f"{seconds:.2g} s"


def percent(share: float) -> str:
    """Write a share of 1 in per cent.

    >>> [percent(share) for share in (1.25, 0.914, 0.002, 1e-6)]
    ['125 %', '91 %', '0.2 %', '<0.1 %']
    """
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{100 * share:.1f} %" if 0 < share < 0.0095 else f"{100 * share:.0f} %"


def _scaled(value: float, scales: dict[str, float]) -> str:
    """Three significant figures in the largest unit that is reached, "" if none is."""
    for unit, scale in reversed(scales.items()):
        count = value / scale
        if count >= 0.9995:
            decimals = 2 if count < 9.995 else 1 if count < 99.95 else 0
            return f"{count:.{decimals}f} {unit}"
    return ""
