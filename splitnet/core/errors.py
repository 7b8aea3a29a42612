"""The exception tree, in one leaf module that every room can import."""

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
    "listed",
]


class SplitnetError(Exception):
    """Everything that splitnet raises on purpose."""


class DeclarationError(SplitnetError, ValueError):
    """A net, or a model given in its place, cannot be what its author meant."""


class DeviceError(SplitnetError, ValueError):
    """A device, a link or a cluster that cannot be, or is not here."""


class InfeasibleError(SplitnetError, RuntimeError):
    """No placement keeps every pin and fits every memory."""


class PlanFileError(SplitnetError, ValueError):
    """A plan, cluster, cost or workload file that cannot be read as one."""


class AuditError(SplitnetError, RuntimeError):
    """What ran is not what was planned."""


class ConfigError(SplitnetError, RuntimeError):
    """A runtime setting that contradicts another, or comes too late."""


class WorkerError(SplitnetError, RuntimeError):
    """A worker of the cluster that is not there, died, hangs or came back empty."""


def listed(headline: str, faults: Iterable[str]) -> str:
    """Join all faults under one headline, a bullet each.

    >>> print(listed("net 'a' has 2 faults.", ["first", "second"]))
    net 'a' has 2 faults.
      - first
      - second
    """
    return "\n".join([headline, *(f"  - {fault}" for fault in faults)])


def first_line(error: BaseException) -> str:
    """What an error of a stranger says, without the pages that Keras adds to it."""
    text = str(error).split("Arguments received by")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else "no message"
