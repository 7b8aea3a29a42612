"""Runtime settings: what can be set, from which source, and which source wins.

Code overrides the environment (`SPLITNET_*`), which overrides a file (`splitnet.toml`,
or `[tool.splitnet]` of `pyproject.toml`), which overrides the default. Nothing is
applied here; `splitnet.tf.runtime.configure` does that.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from splitnet.core.checks import Count, Positive, words
from splitnet.core.errors import (
    ConfigError,
    SplitnetError,
    collected,
    listed,
    parse_bytes,
    repeated,
)
from splitnet.core.serialization import read_toml

_ORIGINS = ("default", "file", "environment", "code")
# Variables of splitnet that are no settings; the second line is of a job's hosts.
_OTHER_VARIABLES = (
    "CONFIG CLUSTER WORKLOADS ALLOW_REMOTE CLIENT GPUS_PER_HOST GPU_PRESET "
    "PORT SERVICE STATEFUL_SET WORKERS"
)


def _parser(kind: Any) -> Callable[[object], object]:
    """Read a value, or its text in an environment variable, as a type."""

    def parse(value: object) -> object:
        try:
            return msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"must be {words(kind)}") from None

    return parse


_flag = _parser(bool)
_count = _parser(Positive)


def _memory(value: object) -> int:
    try:
        count = parse_bytes(value)
    except SplitnetError:
        count = 0
    if count < 2**20:
        raise ValueError("must be 1 MiB or more, such as '4 GiB' or a number of bytes")
    return count


def _gpus(value: object) -> tuple[int, ...] | None:
    """The indices of GPUs; "all" is None, "none" is ()."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("all", "none", ""):
            return None if text == "all" else ()
        value = text.split(",")
    items = list(value) if isinstance(value, list | tuple | range) else [value]
    try:
        indices = msgspec.convert(items, tuple[Count, ...], strict=False)
    except msgspec.ValidationError:
        indices = (0, 0)
    if repeated(map(str, indices)):
        raise ValueError(
            "must be GPU indices such as '0,1', each once, 'all' or 'none'"
        )
    return indices


@dataclass(frozen=True, slots=True)
class Option:
    """A runtime setting: how its value is read, and what it means."""

    parse: Callable[[object], object]
    about: str

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return self.parse is _flag


OPTIONS: Mapping[str, Option] = {
    "visible": Option(
        _gpus,
        "which GPUs to use, counted under CUDA_VISIBLE_DEVICES: '0,1', all, none",
    ),
    "memory_growth": Option(
        _flag, "take GPU memory as it is needed; all visible GPUs alike"
    ),
    "memory_limit": Option(_memory, "memory of each GPU that may be used: '4 GiB'"),
    "memory_fraction": Option(
        _parser(Annotated[float, Meta(ge=0.001, le=1)]),
        "as a share of each card: 0.5 (needs nvidia-ml-py)",
    ),
    "logical_gpus": Option(
        _count, "cut each GPU into so many; needs a limit or fraction"
    ),
    "cpu_devices": Option(
        _count, "how many CPU devices; stand-ins for GPUs are of them"
    ),
    "cpu_threads": Option(
        _count, "threads within an operation, and across unless said otherwise"
    ),
    "inter_op_threads": Option(_count, "threads across operations"),
    "soft_placement": Option(
        _flag, "may TensorFlow silently use another device if one is missing"
    ),
    "log_placement": Option(_flag, "a line of TensorFlow's for every op"),
    "determinism": Option(_flag, "the same bits in every run; slower"),
}

# Pairs that cannot both be: TensorFlow refuses them with a bare ValueError.
_CLASHES = (
    ("memory_growth", "memory_limit"),
    ("memory_growth", "memory_fraction"),
    ("memory_growth", "logical_gpus"),
    ("memory_limit", "memory_fraction"),
)


@dataclass(frozen=True, slots=True)
class Setting:
    """An option's value and where it comes from.

    `origin` is "default", "file", "environment" or "code"; `source` is the variable,
    the file or the call that said it; `set_aside` says why a value that was given does
    not count.
    """

    name: str
    value: object = None
    origin: str = "default"
    source: str = "TensorFlow"
    set_aside: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option, resolved."""

    all: Mapping[str, Setting]

    def __getitem__(self, name: str) -> object:
        """The value that counts: None where TensorFlow's own is left."""
        setting = self.all[name]
        return None if setting.set_aside else setting.value

    def __iter__(self) -> Iterator[Setting]:
        """The settings, in the order of `OPTIONS`."""
        return iter(self.all.values())

    def of(self, name: str) -> Setting:
        """One setting with its origin."""
        return self.all[name]


def resolve(
    code: Mapping[str, object], environ: Mapping[str, str], folder: Path
) -> Settings:
    """Merge all sources; reads at most one file and applies nothing.

    Args:
        code: what the program said.
        environ: the environment.
        folder: where the search for a file begins; it goes up to the root.

    Raises:
        ConfigError: unknown names, impossible values and contradictions, all at once.
    """
    faults: list[str] = []
    given: list[tuple[str, object, str, str]] = []
    with collected(faults):
        if path := config_file(environ, folder):
            given += [(*row, "file", path.name) for row in _table_of(path).items()]
    for variable in sorted(environ):
        name = variable.removeprefix("SPLITNET_")
        if name != variable and name not in _OTHER_VARIABLES.split():
            given.append((name.lower(), environ[variable], "environment", variable))
    given += [(*row, "code", "sn.configure") for row in code.items()]
    found = {name: Setting(name) for name in OPTIONS}
    for name, value, origin, source in given:
        if name not in OPTIONS:
            near = difflib.get_close_matches(name, OPTIONS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            faults.append(
                f"there is no setting {name!r} ({source}).{hint} Known: "
                f"{', '.join(OPTIONS)}"
            )
            continue
        try:
            parsed = OPTIONS[name].parse(value)
        except (ValueError, SplitnetError) as error:
            faults.append(f"{name} {error}. Received: {value!r} ({source}).")
        else:
            found[name] = Setting(name, parsed, origin, source)
    faults += _resolve_conflicts(found)
    if faults:
        raise ConfigError(listed("invalid runtime settings.", faults))
    return Settings(found)


def config_file(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The file that settings would be read from: the nearest one upwards, or none.

    `SPLITNET_CONFIG` names another.
    """
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


def _table_of(path: Path) -> Mapping[str, object]:
    """The settings of a file, values as they are."""
    table: object = read_toml(path, "settings file")
    if path.name == "pyproject.toml":
        for key in ("tool", "splitnet"):
            table = table.get(key, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise ConfigError(f"tool.splitnet ({path.name}) must be a table, not {table!r}")
    return table


def _resolve_conflicts(found: dict[str, Setting]) -> Iterator[str]:
    """Resolve conflicts: the stronger origin wins, equal ones are a fault."""

    def counts(name: str) -> bool:
        return bool(found[name].value) and not found[name].set_aside

    for pair in _CLASHES:
        if not all(map(counts, pair)):
            continue
        one, other = (found[name] for name in pair)
        if one.origin == other.origin:
            yield (
                f"{one.name} ({one.source}) and {other.name} ({other.source}) cannot "
                "both be set; TensorFlow takes one of them for a GPU. Drop one"
            )
            continue
        weak, strong = sorted((one, other), key=lambda s: _ORIGINS.index(s.origin))
        reason = f"{strong.name} of the {strong.origin} counts instead"
        found[weak.name] = replace(weak, set_aside=reason)
    sized = counts("memory_limit") or counts("memory_fraction")
    cut = found["logical_gpus"]
    if counts("logical_gpus") and cut.value != 1 and not sized:
        yield (
            f"logical_gpus={cut.value} ({cut.source}) needs the memory of each: set "
            "memory_limit='4 GiB', or memory_fraction"
        )
