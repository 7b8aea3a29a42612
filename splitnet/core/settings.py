"""Runtime settings: what can be set, from which source, and which source wins.

Code overrides the environment (`SPLITNET_*`), which overrides a file (`splitnet.toml`,
or `[tool.splitnet]` of `pyproject.toml`), which overrides the default.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from splitnet.core.checks import Count, Positive, rule_of
from splitnet.core.errors import ConfigError, collected, parse_quantity
from splitnet.core.serialization import load_file

_ORIGINS = ("default", "file", "environment", "code")
# Variables of splitnet that are no settings; the second line is of a job's hosts.
_OTHER_VARIABLES = "CONFIG CLUSTER WORKLOADS ALLOW_REMOTE"
_OTHER_VARIABLES += " CLIENT GPUS_PER_HOST GPU_PRESET PORT SERVICE STATEFUL_SET WORKERS"
_Gpus = tuple[Count, ...]
_Bytes = Annotated[int, Meta(ge=2**20)]
_Share = Annotated[float, Meta(ge=0.001, le=1)]

OPTIONS: Mapping[str, tuple[Any, str]] = {
    "visible": (_Gpus, "GPUs to use (of CUDA_VISIBLE_DEVICES): '0,1', all, none."),
    "memory_growth": (bool, "Take GPU memory as it is needed, on all GPUs."),
    "memory_limit": (_Bytes, "Memory of each GPU that may be used: '4 GiB'."),
    "memory_fraction": (_Share, "Share of each GPU's memory; needs nvidia-ml-py."),
    "logical_gpus": (Positive, "Devices on each GPU; needs a limit or fraction."),
    "cpu_devices": (Positive, "Number of CPU devices, stand-ins included."),
    "cpu_threads": (Positive, "Threads within an operation; default across them."),
    "inter_op_threads": (Positive, "Threads across operations."),
    "soft_placement": (bool, "TensorFlow may silently use another device."),
    "log_placement": (bool, "TensorFlow prints the device of every operation."),
    "determinism": (bool, "Bitwise equal runs; slower."),
}
"""Runtime settings: the type of a value, and what it means."""

# Pairs that cannot both be: TensorFlow refuses them with a bare ValueError.
_LIMITS = "memory_limit", "memory_fraction"
_CLASHES = [*product(["memory_growth"], [*_LIMITS, "logical_gpus"]), _LIMITS]


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value, None for TensorFlow's own, and the variable, file or call."""

    name: str
    value: Any = None
    origin: str = "default"
    source: str = "TensorFlow"


@dataclass(frozen=True, slots=True)
class Settings:
    """The value of every option; iterates over them in the order of `OPTIONS`."""

    all: Mapping[str, Setting]

    def __getitem__(self, name: str) -> Any:
        return self.all[name].value

    def __iter__(self) -> Iterator[Setting]:
        return iter(self.all.values())


def resolve(code: Mapping[str, object], env: Mapping[str, str], root: Path) -> Settings:
    """Merge what the program said, the environment, and a file in or above a folder.

    `ConfigError` tells unknown names, impossible values and contradictions at once.
    """
    faults, given = list[str](), list[tuple[str, object, str, str]]()
    with collected(faults):
        if path := config_file(env, root):
            table: Any = load_file(path, "settings file", dict, "TOML")
            if path.name == "pyproject.toml":
                tool = table.get("tool")
                table = tool.get("splitnet", {}) if isinstance(tool, dict) else tool
            if not isinstance(table, dict):
                here = f"tool.splitnet ({path.name})"
                raise ConfigError(f"{here} must be a table, not {table!r}")
            given += [(*row, "file", path.name) for row in table.items()]
    for variable in sorted(env):
        name = variable.removeprefix("SPLITNET_")
        if name != variable and name not in _OTHER_VARIABLES.split():
            given.append((name.lower(), env[variable], "environment", variable))
    given += [(*row, "code", "sn.configure") for row in code.items()]
    found = {name: Setting(name) for name in OPTIONS}
    for name, value, origin, source in given:
        if name in OPTIONS:
            with collected(faults):
                parsed = _parsed(name, value, source)
                found[name] = Setting(name, parsed, origin, source)
            continue
        near = difflib.get_close_matches(name, OPTIONS, n=1)
        hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(OPTIONS)}"
        faults.append(f"there is no setting {name!r} ({source}). {hint}")
    faults += _resolve_conflicts(found)
    if faults:
        raise ConfigError("invalid runtime settings.", faults)
    return Settings(found)


def _parsed(name: str, value: object, source: str) -> Any:
    """A value, or its text in an environment variable, as the type of its option."""
    kind, _ = OPTIONS[name]
    allowed, meant = "true or false" if kind is bool else rule_of(kind)[0], value
    if name == "memory_limit":
        allowed = "1 MiB or more, such as '4 GiB' or a number of bytes"
        meant = round(parse_quantity(value, f"{name} ({source})", "B"))
    elif name == "visible":
        allowed = "GPU indices such as '0,1', each once, 'all' or 'none'"
        meant = value if isinstance(value, list | tuple) else [value]
        if isinstance(value, str):
            text = value.strip().lower()
            if text == "all":
                return None
            meant = [] if text in ("none", "") else text.split(",")
    with suppress(msgspec.ValidationError, ValueError):
        found = msgspec.convert(meant, kind, strict=False)
        if kind is not _Gpus or len(found) == len({*found}):
            return found
    raise ConfigError(f"{name} must be {allowed}. Received: {value!r} ({source}).")


def config_file(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The file that settings are read from: `SPLITNET_CONFIG`, or the nearest up."""
    if environ.get("SPLITNET_CONFIG"):
        return Path(environ["SPLITNET_CONFIG"])
    for place in (folder, *folder.parents):
        if (place / "splitnet.toml").is_file():
            return place / "splitnet.toml"
        project = place / "pyproject.toml"
        with suppress(OSError, ValueError, RecursionError):  # others say so
            tool = tomllib.loads(project.read_text("utf-8")).get("tool")
            if isinstance(tool, dict) and "splitnet" in tool:
                return project
    return None


def _resolve_conflicts(found: dict[str, Setting]) -> Iterator[str]:
    """Resolve conflicts: the stronger origin wins, equal ones are a fault."""
    for pair in _CLASHES:
        both = [found[name] for name in pair]
        weak, strong = sorted(both, key=lambda one: _ORIGINS.index(one.origin))
        if not (weak.value and strong.value):
            continue
        if weak.origin == strong.origin:
            two = f"{weak.name} ({weak.source}) and {strong.name} ({strong.source})"
            yield f"{two} cannot both be set. Drop one"
        else:
            wins = f"overridden by {strong.name} of the {strong.origin}"
            source = f"{weak.source} ({weak.value}), {wins}"
            found[weak.name] = replace(weak, value=None, source=source)
    cut = found["logical_gpus"]
    sized = found["memory_limit"].value or found["memory_fraction"].value
    if (cut.value or 1) > 1 and not sized:
        needs = "needs the memory of each: set memory_limit= or memory_fraction="
        yield f"logical_gpus={cut.value} ({cut.source}) {needs}"
