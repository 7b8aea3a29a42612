"""JSON and TOML files: checked when read, replaced atomically when written.

Files may come from anyone. Reading refuses what is not a regular file, is too large,
repeats a key, is nested too deeply, or holds numbers and texts that no value can have.
"""

import json
import os
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from splitnet.core import errors
from splitnet.core.checks import checked
from splitnet.core.cluster import Cluster, Device, Host, Link, default_link, first_name
from splitnet.core.errors import DeviceError, PlanFileError, SplitnetError, shown

AnyPath = str | os.PathLike[str]
Value = TypeVar("Value")

PICTURES = ("svg", "png", "pdf", "dot")  # suffixes that no other file may have
_MOST_BYTES = 1 << 30
_MOST_DEPTH = 64
_MOST_LETTERS = 10_000
_MOST_FAULTS = 8
_hints = cache(get_type_hints)


def user_cache() -> list[Path]:
    """The user's cache folder for splitnet; none if the user has no home."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return [Path(home, "splitnet")] if os.path.isabs(home) else []


@contextmanager
def _file(
    act: str, path: AnyPath, error: type[SplitnetError] = PlanFileError
) -> Iterator[None]:
    """Raise what goes wrong in this block as an `error` that names the file."""
    try:
        yield
        return
    except SplitnetError as found:
        reason = f"{found.faults[0]}." if len(found.faults) == 1 else str(found)
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text."
    except RecursionError:
        reason = "it is nested too deeply."
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as found:
        language = "JSON" if isinstance(found, json.JSONDecodeError) else "TOML"
        reason = f"it is not {language} (cut off, or edited wrongly?): {found}."
    except (OSError, OverflowError, TypeError, ValueError) as found:
        reason = f"{getattr(found, 'strerror', None) or found}."
    raise error(f"cannot {act} {str(path)!r}: {reason}")


def load_file(
    path: str | Path,
    what: str,
    build: Callable[[Any], Value],
    language: str = "JSON",
    error: type[SplitnetError] = PlanFileError,
) -> Value:
    """Read a JSON or TOML file, which should hold a `what`, "plan", and `build` it."""
    from_json = partial(json.loads, object_pairs_hook=_table)
    parse = from_json if language == "JSON" else tomllib.loads
    with _file(f"load the {what}", path, error):
        status = os.stat(path)
        _check_regular(status)  # a pipe would never end
        if status.st_size > _MOST_BYTES:
            raise ValueError(f"it is larger than {_MOST_BYTES} bytes")
        values = parse(Path(path).read_text("utf-8-sig"))
        if faults := [*islice(_value_faults(values), _MOST_FAULTS)]:
            raise ValueError(errors.CONTROL.sub("?", "; ".join(faults)))
        return build(values)


def _check_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if twice := errors.repeated(name for name, _ in pairs):
        raise ValueError(f"a table has the key {twice[0]!r} twice")
    return dict(pairs)


def _value_faults(value: Any, path: str = "", depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        if errors.CONTROL.search(value):
            yield f"{path}: control characters in {shown(value)}"
        elif len(value) > _MOST_LETTERS:
            yield f"{path}: a text of {len(value)} characters"
    elif isinstance(value, int | float):
        if not abs(value) <= (2**60 if isinstance(value, int) else 1e30):
            yield f"{path}: the number is out of range"
    elif isinstance(value, dict | list) and depth >= _MOST_DEPTH:
        yield f"{path}: nested too deeply"
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            step = f"[{key}]" if isinstance(key, int) else f".{key}"
            yield from _value_faults(key, f"{path} (a key)")
            yield from _value_faults(inner, f"{path}{step}".lstrip("."), depth + 1)


def decode(values: object, kind: type[Value], where: str = "") -> Value:
    """Build a value of a dataclass, or of any type, from plain values of a file.

    `PlanFileError` tells unknown fields and choices, or the path, which begins with
    `where`, of the first value of another type: "batch: expected `int`, got `str`."
    """
    if faults := [*islice(_field_faults(values, kind, where), _MOST_FAULTS)]:
        raise PlanFileError(f"{'; '.join(faults)}.")
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at `$")
        text = text.replace("Expected", "expected").replace("Object missing", "missing")
        path = f"{where}{path.removesuffix('`')}".removeprefix(".")
        raise PlanFileError(f"{path}: {text}".strip(":. ") + ".") from None


def _field_faults(values: Any, kind: Any, where: str) -> Iterator[str]:
    if NoneType in get_args(kind) and values is not None:
        kind = get_args(kind)[0]
    allowed = get_args(kind) if get_origin(kind) is Literal else ()
    if allowed and values not in allowed:
        words = "one of " * bool(allowed[1:]) + ", ".join(map(repr, allowed))
        yield f"{where}: must be {words}. Received: {shown(values)}".lstrip(": ")
    elif is_dataclass(kind) and isinstance(values, Mapping):
        known = _hints(kind)  # type: ignore[arg-type]  # a class, not an instance
        for name, inner in values.items():
            if name in known:
                path = f"{where}.{name}".lstrip(".")
                yield from _field_faults(inner, known[name], path)
            else:
                yield f"{where}: unknown field {shown(name)}".lstrip(": ")
    elif get_origin(kind) is tuple and isinstance(values, list):
        for i, inner in enumerate(values):
            yield from _field_faults(inner, get_args(kind)[0], f"{where}[{i}]")


def encode(value: Any) -> Any:
    """The plain values of a dataclass, tables and tuples; defaults are left out."""
    if is_dataclass(value):
        given = {one: getattr(value, one.name) for one in fields(value)}
        value = {one.name: its for one, its in given.items() if its != one.default}
    if isinstance(value, Mapping):
        return {key: encode(inner) for key, inner in value.items()}
    return [*map(encode, value)] if isinstance(value, list | tuple) else value


def write_json(values: object, path: str | Path, what: str) -> None:
    """Write JSON atomically; `PlanFileError` if it cannot be."""
    with _file(f"write the {what}", path):
        text = json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False)
        content = f"{text}\n".encode()
    write_bytes(content, path, what)


def check_place(path: AnyPath, what: str) -> tuple[Path, int | None]:
    """The file to write, and the mode of the one there; an error if it cannot be."""
    with _file(f"write the {what}", path):
        suffix = Path(path).suffix.lower()
        if what != "picture" and suffix[1:] in PICTURES:
            raise ValueError(f"{suffix} is of pictures, which sn.draw makes")
        target = Path(os.path.realpath(path))
        if not target.parent.is_dir():
            raise ValueError(f"there is no folder {str(target.parent)!r}")
        if not os.path.lexists(target):
            return target, None
        _check_regular(status := target.lstat())
        if not os.access(target, os.W_OK):
            raise ValueError("it is write-protected")
    return target, status.st_mode


def write_bytes(content: bytes, path: AnyPath, what: str) -> Path:
    """Write a file atomically, with its mode and link; nothing half is seen or left."""
    target, mode = check_place(path, what)
    with _file(f"write the {what}", path):
        beside = target.with_name(f".{secrets.token_hex(12)}.part")
        try:
            with open(beside, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(beside, stat.S_IMODE(mode))
            os.replace(beside, target)
        finally:  # nothing is left beside, even when interrupted
            with suppress(OSError):
                beside.unlink()
    return Path(path)


def load_cluster(path: str | Path) -> Cluster:
    """Read a cluster from a TOML file; `DeviceError` with every fault."""
    how = "TOML", DeviceError
    return load_file(path, "cluster file", lambda keys: cluster_file(**keys), *how)


@checked
def cluster_file(
    device: Any = (),
    link: object = None,
    latency: object = None,
    links: Any = (),
    hosts: Any = {},  # noqa: B006  # never changed
) -> Cluster:
    """Devices, the keys of each as `Device.of` takes them, links, and hosts."""
    faults: list[str] = []
    for key, given in {"device": device, "links": links, "hosts": hosts}.items():
        rows = [given] if key == "hosts" else given
        if not isinstance(rows, list | tuple) or {*map(type, rows)} - {dict}:
            form = f"[{key}], once" if rows is not given else f"[[{key}]], for each one"
            raise DeviceError(f"{key}: write {form}. Received: {shown(given)}.")
    devices, made = list[Device](), list[Link]()
    for number, row in enumerate(device):
        with errors.collected(faults, f"device[{number}]: "):
            devices.append(Device.of(**row))
    usual: dict[str, Any] = {"bandwidth": link, "latency": latency}
    with errors.collected(faults):
        everywhere = default_link(**usual)
    for number, row in enumerate(links):
        with errors.collected(faults, f"links[{number}]: "):
            made += link_table(**usual | row)
    faults += (f"hosts: {n} and {n}:0 are the same" for n in hosts if f"{n}:0" in hosts)
    if faults:
        raise DeviceError("invalid cluster.", faults)
    if ("*", "*") not in ((one.source, one.target) for one in made):
        made.append(everywhere)
    named = {n if ":" in n else f"{n}:0": one for n, one in hosts.items()}
    found = tuple(Host(name, str(address)) for name, address in named.items())
    return Cluster(tuple(devices), tuple(made), found)


@checked
def link_table(
    between: Any,
    bandwidth: object = None,
    latency: object = None,
    gap: object = None,
    overhead_per_byte: object = 0.0,
    one_way: bool = False,
) -> tuple[Link, ...]:
    """A `[[links]]` table: both directions, or the one from the first device."""
    two = between if isinstance(between, list) else []
    ends = [end if end == "*" else first_name(end) for end in two]
    if len(ends) != 2 or ends[0] == ends[1] != "*":
        raise DeviceError(f"between= must name two devices. Received: {between!r}.")
    link = default_link(bandwidth, latency)
    pause = None if gap is None else errors.parse_quantity(gap, "gap", "s")
    busy = errors.parse_quantity(overhead_per_byte, "overhead_per_byte", "s")
    link = replace(link, gap_seconds=pause, overhead_per_byte=busy)
    ways = dict.fromkeys([(*ends,), (*reversed(ends),)][: 2 - one_way])
    return tuple(replace(link, source=a, target=b) for a, b in ways)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write the TOML file that `load_cluster` reads."""
    hosts: dict[str, object] = {f'"{x.name}"': x.address for x in cluster.hosts}
    tables = [("[hosts]", hosts)]
    for x in cluster:
        row = {"name": x.name, "memory": x.memory_bytes, "speed": x.flops_per_second}
        row |= {"bandwidth": x.bytes_per_second, "overhead": x.call_seconds}
        row |= {"half_speed": x.half_speed, "target": x.target, "stand_in": x.stand_in}
        tables.append(("[[device]]", row))
    links = {(x.source, x.target): x for x in cluster.links}
    for (a, b), link in links.items():
        both = links.get((b, a)) == replace(link, source=b, target=a)
        if both and a > b:
            continue
        between, rate = [a, b], link.bytes_per_second
        row = {"between": between, "bandwidth": rate, "latency": link.latency_seconds}
        row |= {"overhead_per_byte": link.overhead_per_byte, "one_way": not both}
        row |= {} if link.gap_seconds is None else {"gap": link.gap}
        tables.append(("[[links]]", row))
    lines = []
    for head, row in tables:
        lines += [head, *(f"{key} = {json.dumps(one)}" for key, one in row.items())]
    write_bytes("\n".join([*lines, ""]).encode(), path, "cluster")
