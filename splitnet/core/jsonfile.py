"""JSON files that come from strangers, and JSON files that are never half written."""

import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from splitnet.core.errors import PlanFileError

__all__ = ["read_json", "write_json"]

_MOST_BYTES = 1 << 30


def read_json(path: str | Path, what: str) -> object:
    """Read a JSON file that may come from a stranger; only regular files, no NaN.

    Raises:
        PlanFileError: not a file, too large, or not JSON.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise PlanFileError(f"it is not a file; a {what} is a JSON file.")
            if status.st_size > _MOST_BYTES:
                raise PlanFileError(
                    f"it has {status.st_size} bytes; at most {_MOST_BYTES} are read."
                )
            text = file.read().decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanFileError(f"it cannot be read: {reason}.") from None
    try:
        return json.loads(
            text, parse_constant=_no_constant, object_pairs_hook=_no_twins(what)
        )
    except RecursionError:
        raise PlanFileError("it is nested too deeply.") from None
    except json.JSONDecodeError as error:
        raise PlanFileError(
            f"it is not JSON (cut off, or edited wrongly?): {error}."
        ) from None
    except ValueError as error:
        raise PlanFileError(str(error)) from None


def _no_constant(name: str) -> float:
    raise PlanFileError(f"it holds {name}, which is no number.")


def _no_twins(what: str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) != len(pairs):
            names = [name for name, _ in pairs]
            twice = next(n for i, n in enumerate(names) if n in names[:i])
            raise PlanFileError(f"a table of the {what} holds {twice!r} twice.")
        return made

    return table


def write_json(values: object, path: str | Path, what: str) -> None:
    """Write JSON beside `path` and rename it into place, so no half file is ever seen.

    Raises:
        PlanFileError: the folder is not there, or not to be written to.
    """
    target = Path(path)
    beside = None
    try:
        if target.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        handle, beside = tempfile.mkstemp(
            prefix=f".{target.name}.", dir=target.parent, text=True
        )
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(beside, 0o666 & ~_umask())
        os.replace(beside, target)
    except (OSError, ValueError, TypeError) as error:
        if beside is not None:
            Path(beside).unlink(missing_ok=True)
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanFileError(
            f"cannot write the {what} {str(path)!r}: {reason}."
        ) from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
