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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec

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
_HOST_NAME = re.compile(r"([a-z]\w*)(?::(\d{1,4}))?")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*)):(\d{1,5})")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_AT_PATH = re.compile(r"(.*?)(?: - at `\$(.*)`)?", re.DOTALL)


def load_json(path: str | Path, what: str, build: Callable[[Any], Value]) -> Value:
    """Read a JSON file and build a value of it; errors name the file.

    Args:
        path: the file.
        what: what it holds, for errors: "plan".
        build: makes the value; raises `SplitnetError` if it cannot.

    Raises:
        PlanFileError: the file cannot be read, or does not hold such a value.
    """
    values = read_json(path, what)
    try:
        return build(values)
    except SplitnetError as error:
        raise PlanFileError(f"cannot load the {what} {str(path)!r}: {error}") from None


def read_json(path: str | Path, what: str) -> Any:
    """Read a JSON file as plain values.

    Raises:
        PlanFileError: not a regular file, too large, not JSON, or a repeated key.
    """

    def refused(name: str) -> float:
        raise ValueError(f"it holds {name}, which is not a number")

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if twice := repeated(name for name, _ in pairs):
            raise ValueError(f"a table has the key {twice[0]!r} twice")
        return dict(pairs)

    parse = partial(json.loads, parse_constant=refused, object_pairs_hook=table)
    return _read(path, what, "JSON", parse)


def read_toml(path: str | Path, what: str) -> dict[str, Any]:
    """Read a TOML file as plain values.

    Raises:
        PlanFileError: not a regular file, too large, or not TOML.
    """
    values: dict[str, Any] = _read(path, what, "TOML", tomllib.loads)
    return values


def _read(
    path: str | Path, what: str, language: str, parse: Callable[[str], Any]
) -> Any:
    name = f"the {what} {str(path)!r}"
    try:
        status = os.stat(path)
        _check_regular(status.st_mode)  # a pipe would never end
        if status.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        values = parse(Path(path).read_text("utf-8"))
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    except RecursionError:
        reason = "it is nested too deeply"
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        reason = f"it is not {language} (cut off, or edited wrongly?): {error}"
    except (OSError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
    else:
        faults = [*islice(_value_faults(values), _MOST_FAULTS)]
        if not faults:
            return values
        faults = [_CONTROL.sub("?", fault) for fault in faults]
        raise PlanFileError(listed(f"cannot load {name}.", faults))
    raise PlanFileError(f"cannot load {name}: {reason}.")


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
            inside = f"{path}.{key}" if path else str(key)
            yield from _value_faults(inner, inside, depth + 1)
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _value_faults(inner, f"{path}[{i}]", depth + 1)


def decode(values: object, kind: type[Value], where: str = "") -> Value:
    """Build a value of a dataclass, or of any type, from plain values of a file.

    Args:
        values: what a file held.
        kind: the type to build; dataclasses may hold others, in tuples and tables.
        where: the path of the values in their file, for errors: "graph".

    Raises:
        PlanFileError: with all unknown fields, or with the path of the first value of
            another type or out of its range.

    >>> from splitnet.core.graph import Weights
    >>> decode({"name": "w", "bytes": "4"}, Weights, "weights[0]")
    Traceback (most recent call last):
    ...
    splitnet.core.errors.PlanFileError: weights[0].bytes: expected `int`, got `str`.
    """
    if faults := list(_unknown_fields(values, kind, where)):
        title = where or getattr(kind, "__name__", "the file").lower()
        raise PlanFileError(
            listed(f"{title} cannot be read.", faults[:_MOST_FAULTS])
            if len(faults) > 1
            else f"{faults[0].lstrip(': ')}."
        )
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        match = _AT_PATH.fullmatch(str(error))
        text, path = (match[1], match[2] or "") if match else (str(error), "")
        text = text.replace("Expected", "expected").replace("Object missing", "missing")
        path = f"{where}{path}".removeprefix(".")
        end = "" if text.endswith(".") else "."
        raise PlanFileError(
            f"{path}: {text}{end}" if path else f"{text}{end}"
        ) from None


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _unknown_fields(values: Any, kind: Any, where: str) -> Iterator[str]:
    """Fields that a dataclass does not have, here and below."""
    if is_dataclass(kind) and isinstance(values, Mapping):
        known = _hints(kind)  # type: ignore[arg-type]  # a class, not an instance
        for name, inner in values.items():
            if name not in known:
                yield f"{where}: unknown field {shown(name)}"
            elif isinstance(inner, list | dict):
                path = f"{where}.{name}" if where else str(name)
                yield from _unknown_fields(inner, known[name], path)
    elif get_origin(kind) is tuple and isinstance(values, list):
        item = get_args(kind)[0]
        if is_dataclass(item):
            for i, inner in enumerate(values):
                yield from _unknown_fields(inner, item, f"{where}[{i}]")


def encode(value: Any) -> Any:
    """The plain values of a dataclass, tables and tuples; defaults are left out.

    >>> from splitnet.core.graph import Weights
    >>> encode((Weights("w", 4),))
    [{'name': 'w', 'bytes': 4}]
    """
    if is_dataclass(value):
        return {
            one.name: encode(getattr(value, one.name))
            for one in fields(value)
            if one.default is MISSING or getattr(value, one.name) != one.default
        }
    if isinstance(value, Mapping):
        return {key: encode(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [encode(inner) for inner in value]
    return value


def write_json(values: object, path: str | Path, what: str) -> None:
    """Write JSON atomically.

    Raises:
        PlanFileError: the values are not JSON, or the file cannot be written.
    """
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

_Quantity = str | int | float | None


@dataclass(frozen=True, slots=True)
class _LinkTable:
    """A `[[links]]` table; it holds in both directions."""

    between: tuple[str, str]
    bandwidth: _Quantity = None
    latency: _Quantity = None


@dataclass(frozen=True, slots=True)
class _ClusterFile:
    """Devices, the keys of each as `Device.of` takes them, links, and hosts."""

    device: tuple[dict[str, Any], ...] = ()
    link: _Quantity = None
    latency: _Quantity = None
    links: tuple[_LinkTable, ...] = ()
    hosts: dict[str, str] = field(default_factory=dict)


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster from a TOML file; see `docs/how-to/not-here.md` for its keys.

    Raises:
        DeviceError: the file cannot be read, or describes no cluster; with every fault.
    """
    try:
        table = decode(read_toml(path, "cluster file"), _ClusterFile)
        return _cluster_of(table)
    except SplitnetError as error:
        known = repr(str(path)) in str(error)
        where = "" if known else f"in the cluster file {str(path)!r}: "
        raise DeviceError(f"{where}{error}") from None


def _cluster_of(table: _ClusterFile) -> Cluster:
    faults: list[str] = []
    devices: list[Device] = []
    links: dict[tuple[str, str], Link] = {}
    for number, row in enumerate(table.device):
        with collected(faults, f"device[{number}]: "):
            devices.append(Device.of(**row))
    for one in table.links:
        with collected(faults):
            a, b = (end if end == "*" else device_name(end) for end in one.between)
            link = default_link(one.bandwidth, one.latency)
            links[a, b] = replace(link, source=a, target=b)
            links[b, a] = replace(link, source=b, target=a)
    with collected(faults):
        links.setdefault(("*", "*"), default_link(table.link, table.latency))
    with collected(faults):
        hosts = hosts_from(table.hosts)
    if faults:
        raise DeviceError(listed("invalid cluster.", faults))
    return Cluster(tuple(devices), tuple(links.values()), hosts)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster as the TOML file that `load_cluster` reads.

    A link holds in both directions there, and gaps are not kept.
    """
    ends = {tuple(sorted((x.source, x.target))): x for x in reversed(cluster.links)}
    usual = ends.pop(("*", "*"), default_link(None, None))
    lines = [
        f"link = {usual.bytes_per_second!r}",
        f"latency = {usual.latency_seconds!r}",
        "[hosts]",
        *(f'"{host.name}" = "{host.address}"' for host in cluster.hosts),
    ]
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


def hosts_from(values: Mapping[str, str]) -> tuple[Host, ...]:
    """Read a table of names and addresses, such as `"worker:0" = "10.0.0.2:2222"`.

    Raises:
        DeviceError: with every entry that is not a host.

    >>> hosts_from({"client": "10.0.0.1:2222"})
    (Host(name='client:0', address='10.0.0.1:2222'),)
    """
    hosts, faults = [], []
    for name, address in values.items():
        match = _HOST_NAME.fullmatch(name)
        if match is None:
            faults.append(f"host {name!r} is not named like 'worker:0' or 'client'")
        port = _ADDRESS.fullmatch(address)
        if port is None or not 0 < int(port[2]) < 65536:
            faults.append(
                f"the address of {name!r} must be 'host:port' with a port from 1 to "
                f"65535. Received: {address!r}"
            )
        if match and port:
            hosts.append(Host(f"{match[1]}:{int(match[2] or 0)}", address))
    faults += [f"host {n!r} is repeated" for n in repeated(h.name for h in hosts)]
    addresses = (host.address for host in hosts)
    faults += [f"address {one!r} is repeated" for one in repeated(addresses)]
    tasks = sorted(host.task for host in hosts if host.job == "worker")
    if tasks != list(range(len(tasks))):
        faults.append(
            f"workers are numbered 0, 1, 2 and so on without a gap. Found: {tasks}"
        )
    if faults:
        raise DeviceError(listed("invalid hosts.", faults))
    return tuple(hosts)
