"""JSON and TOML files: checked when read, replaced atomically when written.

Files may come from anyone. Reading refuses what is not a regular file, is too large,
repeats a key, is nested too deeply, or holds numbers and texts that no value of
splitnet can have. `decode` then checks types with msgspec and names the path of the
first fault; what the values mean is checked by the classes themselves.
"""

import json
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from splitnet.core.checks import checked
from splitnet.core.cluster import (
    Cluster,
    Device,
    Host,
    Link,
    default_link,
    device_name,
)
from splitnet.core.errors import (
    DeviceError,
    PlanFileError,
    SplitnetError,
    collected,
    listed,
    repeated,
    shown,
)

Value = TypeVar("Value")

_MOST_BYTES = 1 << 30
_MOST_DEPTH = 64
_MOST_LETTERS = 10_000
_MOST_FAULTS = 8
_hints = cache(get_type_hints)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def load_json(path: str | Path, what: str, build: Callable[[Any], Value]) -> Value:
    """Read a JSON file and `build` a value of it.

    Raises:
        PlanFileError: with the file and `what` it should hold, "plan".
    """
    values = read_values(path, what)
    try:
        return build(values)
    except SplitnetError as error:
        raise PlanFileError(f"cannot load the {what} {str(path)!r}: {error}") from None


def read_values(path: str | Path, what: str, language: str = "JSON") -> Any:
    """Read a JSON or TOML file as plain values.

    Raises:
        PlanFileError: not a regular file, too large, not of that language, or with a
            repeated key or a value that nothing of splitnet can have.
    """
    parse = tomllib.loads
    if language == "JSON":
        parse = partial(json.loads, parse_constant=_refuse, object_pairs_hook=_table)
    try:
        status = os.stat(path)
        _check_regular(status.st_mode)  # a pipe would never end
        if status.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        values = parse(Path(path).read_text("utf-8"))
        if faults := [*islice(_value_faults(values), _MOST_FAULTS)]:
            raise ValueError(_CONTROL.sub("?", "; ".join(faults)))
        return values
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except RecursionError:
        reason = "it is nested too deeply"
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        reason = f"it is not {language} (cut off, or edited wrongly?): {error}"
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    raise PlanFileError(f"cannot load the {what} {str(path)!r}: {reason}.")


def _refuse(name: str) -> float:
    raise ValueError(f"it holds {name}, which is not a number")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := repeated(name for name, _ in pairs):
        raise ValueError(f"a table has the key {twice[0]!r} twice")
    return dict(pairs)


def _check_regular(mode: int) -> None:
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe"}
        other = "a device, a socket or a link that leads nowhere"
        raise ValueError(f"it is {kinds.get(stat.S_IFMT(mode), other)}, not a file")


def _value_faults(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    """Numbers and texts that no value can have, and nesting beyond all use."""
    if isinstance(value, str):
        if _CONTROL.search(value):
            yield f"{path}: control characters in {shown(value)}"
        elif len(value) > _MOST_LETTERS:
            yield f"{path}: a text of {len(value)} characters"
    elif isinstance(value, int | float):
        if not abs(value) <= (2**60 if isinstance(value, int) else 1e30):
            yield f"{path}: the number is out of range"
    elif isinstance(value, dict | list) and depth >= _MOST_DEPTH:
        yield f"{path}: nested too deeply"
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _value_faults(key, f"{path} (a key)")
            yield from _value_faults(inner, f"{path}.{key}".lstrip("."), depth + 1)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _value_faults(inner, f"{path}[{i}]", depth + 1)


def decode(values: object, kind: type[Value], where: str = "") -> Value:
    """Build a value of a dataclass, or of any type, from plain values of a file.

    Raises:
        PlanFileError: with unknown fields, or with the path of the first value of
            another type or out of its range, which begins with `where`.

    >>> from splitnet.core.graph import Weights
    >>> decode({"name": "w", "bytes": "4"}, Weights, "weights[0]")
    Traceback (most recent call last):
    ...
    splitnet.core.errors.PlanFileError: weights[0].bytes: expected `int`, got `str`.
    """
    if faults := [*islice(_unknown_fields(values, kind, where), _MOST_FAULTS)]:
        raise PlanFileError(f"{'; '.join(faults)}.")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        text = text.replace("Expected", "expected").replace("Object missing", "missing")
        path = f"{where}{path.removesuffix('`')}".removeprefix(".")
        message = f"{path}: {text}" if path else text
        raise PlanFileError(f"{message.removesuffix('.')}.") from None


def _unknown_fields(values: Any, kind: Any, where: str) -> Iterator[str]:
    """Fields that a dataclass does not have, here and below."""
    if is_dataclass(kind) and isinstance(values, Mapping):
        known = _hints(kind)  # type: ignore[arg-type]  # a class, not an instance
        for name, inner in values.items():
            path = f"{where}.{name}".lstrip(".")
            if name not in known:
                yield f"{where}: unknown field {shown(name)}".lstrip(": ")
            else:
                yield from _unknown_fields(inner, known[name], path)
    elif get_origin(kind) is tuple and isinstance(values, list):
        for i, inner in enumerate(values):
            yield from _unknown_fields(inner, get_args(kind)[0], f"{where}[{i}]")


def encode(value: Any) -> Any:
    """The plain values of a dataclass, tables and tuples; defaults are left out.

    >>> from splitnet.core.graph import Weights
    >>> encode((Weights("w", 4),))
    [{'name': 'w', 'bytes': 4}]
    """
    if is_dataclass(value):
        found = {one.name: (getattr(value, one.name), one) for one in fields(value)}
        return {
            name: encode(inner)
            for name, (inner, one) in found.items()
            if one.default is MISSING or inner != one.default
        }
    if isinstance(value, Mapping):
        return {key: encode(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    return value


def write_json(values: object, path: str | Path, what: str) -> None:
    """Write JSON atomically; `PlanFileError` if it cannot be."""
    try:
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    except (TypeError, ValueError) as error:
        raise PlanFileError(
            f"cannot write the {what} {str(path)!r}: {error}."
        ) from None
    write_bytes(content, path, what)


def write_bytes(content: bytes, path: str | Path, what: str) -> None:
    """Write a file atomically: a new file beside it takes its place.

    The mode of an existing file is kept, and a link stays a link. A half-written file
    is never seen, and none is left behind if writing fails or is interrupted.

    Raises:
        PlanFileError: the place is not a regular file, or cannot be written to.
    """
    beside = None
    try:
        target = Path(os.path.realpath(path))
        mode = target.lstat().st_mode if os.path.lexists(target) else None
        if mode is not None:
            _check_regular(mode)
            if not os.access(target, os.W_OK):
                raise ValueError("it is write-protected")
        beside = target.with_name(f".{secrets.token_hex(12)}.part")
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            os.chmod(beside, stat.S_IMODE(mode))
        os.replace(beside, target)
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise PlanFileError(
            f"cannot write the {what} {str(path)!r}: {reason}. Name a file in a folder "
            "that exists and may be written to."
        ) from None
    finally:  # nothing is left beside, even when interrupted
        if beside is not None:
            with suppress(OSError):
                beside.unlink()


# Clusters: TOML that a person wrote.


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster from a TOML file; `DeviceError` with every fault."""
    try:
        return cluster_file(**read_values(path, "cluster file", "TOML"))
    except SplitnetError as error:
        known = repr(str(path)) in str(error)
        where = "" if known else f"in the cluster file {str(path)!r}: "
        raise DeviceError(f"{where}{error}") from None


@checked
def cluster_file(
    device: Sequence[dict[str, Any]] = (),
    link: object = None,
    latency: object = None,
    links: Sequence[dict[str, Any]] = (),
    hosts: dict[str, Any] | None = None,
) -> Cluster:
    """Devices, the keys of each as `Device.of` takes them, links, and hosts."""
    faults: list[str] = []
    devices: list[Device] = []
    made: dict[tuple[str, str], Link] = {}
    for number, row in enumerate(device):
        with collected(faults, f"device[{number}]: "):
            devices.append(Device.of(**row))
    usual = {"between": ("*", "*"), "bandwidth": link, "latency": latency}
    for number, row in enumerate((*links, usual)):
        with collected(faults, f"links[{number}]: "):
            one = link_table(**row)
            made.setdefault((one.source, one.target), one)
            back = replace(one, source=one.target, target=one.source)
            made.setdefault((back.source, back.target), back)
    if faults:
        raise DeviceError(listed("invalid cluster.", faults))
    named = {n if ":" in n else f"{n}:0": one for n, one in (hosts or {}).items()}
    found = tuple(Host(name, str(address)) for name, address in named.items())
    return Cluster(tuple(devices), tuple(made.values()), found)


@checked
def link_table(
    between: Sequence[str], bandwidth: object = None, latency: object = None
) -> Link:
    """A `[[links]]` table; it holds in both directions."""
    if len(between) != 2:
        raise DeviceError(f"between= must name two devices. Received: {between!r}.")
    a, b = (end if end == "*" else device_name(end) for end in between)
    return replace(default_link(bandwidth, latency), source=a, target=b)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster as the TOML file that `load_cluster` reads.

    A link holds in both directions there, and gaps are not kept.
    """
    ends = {tuple(sorted((x.source, x.target))): x for x in reversed(cluster.links)}
    lines = ["[hosts]", *(f'"{one.name}" = "{one.address}"' for one in cluster.hosts)]
    for device in cluster:
        lines += [
            "[[device]]",
            f'name = "{device.name}"',
            f"memory = {device.memory_bytes}",
            f"speed = {device.flops_per_second!r}",
            f"bandwidth = {device.bytes_per_second!r}",
            f"overhead = {device.call_seconds!r}",
        ]
    for link in reversed(ends.values()):
        lines += [
            "[[links]]",
            f'between = ["{link.source}", "{link.target}"]',
            f"bandwidth = {link.bytes_per_second!r}",
            f"latency = {link.latency_seconds!r}",
        ]
    write_bytes("\n".join([*lines, ""]).encode(), path, "cluster")
