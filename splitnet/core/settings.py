"""Runtime settings: what can be set, from which source, and which source wins.

Code overrides the environment (`SPLITNET_*`), which overrides a file (`splitnet.toml`,
or `[tool.splitnet]` of `pyproject.toml`), which overrides the default. Nothing is
applied here; `splitnet.tf.runtime.configure` does that.
"""

import difflib
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from splitnet.core.checks import Count, Positive, words
from splitnet.core.errors import (
    ConfigError,
    PlanFileError,
    SplitnetError,
    listed,
    parse_bytes,
    repeated,
)
from splitnet.core.serialization import read_toml

ENVIRONMENT_PREFIX = "SPLITNET_"


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
_share = _parser(Annotated[float, Meta(ge=0.001, le=1)])


def _amount(value: object) -> int:
    try:
        count = parse_bytes(value, "memory")
    except SplitnetError:
        count = 0
    if count < 2**20:
        raise ValueError("must be 1 MiB or more, such as '4 GiB' or a number of bytes")
    return count


def _visible(value: object) -> tuple[int, ...] | None:
    """The indices of GPUs; "all" is None, "none" is ()."""
    if isinstance(value, str):
        words = {"all": None, "none": (), "": ()}
        if value.strip().lower() in words:
            return words[value.strip().lower()]
        value = [part.strip() for part in value.split(",")]
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
    """A runtime setting: its name, how its value is read, and what it means."""

    name: str
    parse: Callable[[object], object]
    about: str

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def is_flag(self) -> bool:
        """Whether it is true or false."""
        return self.parse is _flag


_TABLE = (
    (
        "visible",
        _visible,
        "which GPUs to use, counted under CUDA_VISIBLE_DEVICES: '0,1', all, none",
    ),
    ("memory_growth", _flag, "take GPU memory as it is needed; all visible GPUs alike"),
    ("memory_limit", _amount, "memory of each GPU that may be used: '4 GiB'"),
    ("memory_fraction", _share, "as a share of each card: 0.5 (needs nvidia-ml-py)"),
    ("logical_gpus", _count, "cut each GPU into so many; needs a limit or fraction"),
    ("cpu_devices", _count, "how many CPU devices; stand-ins for GPUs are of them"),
    (
        "cpu_threads",
        _count,
        "threads within an operation, and across unless said otherwise",
    ),
    ("inter_op_threads", _count, "threads across operations"),
    (
        "soft_placement",
        _flag,
        "may TensorFlow silently use another device if one is missing",
    ),
    ("log_placement", _flag, "a line of TensorFlow's for every op"),
    ("determinism", _flag, "the same bits in every run; slower"),
)
OPTIONS: Mapping[str, Option] = {row[0]: Option(*row) for row in _TABLE}

FILE_VARIABLE = "SPLITNET_CONFIG"
# Variables that are splitnet's and no settings; the second row is of a job's hosts.
_OTHER_VARIABLES = (
    f"{FILE_VARIABLE} SPLITNET_CLUSTER SPLITNET_WORKLOADS "
    "SPLITNET_ALLOW_REMOTE SPLITNET_CLIENT SPLITNET_GPUS_PER_HOST SPLITNET_GPU_PRESET "
    "SPLITNET_PORT SPLITNET_SERVICE SPLITNET_STATEFUL_SET SPLITNET_WORKERS"
).split()
ORIGINS = ("default", "file", "environment", "code")


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

    `source` is the variable, the file or the call that said it; `set_aside` says why a
    value that was given does not count.
    """

    name: str
    value: object
    origin: str
    source: str
    set_aside: str = ""


@dataclass(frozen=True, slots=True)
class Settings:
    """Every option, resolved."""

    all: tuple[Setting, ...]

    def __getitem__(self, name: str) -> object:
        """The value that counts: None where TensorFlow's own is left."""
        setting = self.of(name)
        return None if setting.set_aside else setting.value

    def __iter__(self) -> Iterator[Setting]:
        """The settings, in the order of `OPTIONS`."""
        return iter(self.all)

    def of(self, name: str) -> Setting:
        """One setting with its origin."""
        return next(setting for setting in self.all if setting.name == name)


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
    found: dict[str, Setting] = {}
    for origin, rows in (
        ("file", _from_file(environ, folder, faults)),
        (
            "environment",
            [
                (name.removeprefix(ENVIRONMENT_PREFIX).lower(), environ[name], name)
                for name in sorted(environ)
                if name.startswith(ENVIRONMENT_PREFIX) and name not in _OTHER_VARIABLES
            ],
        ),
        ("code", [(name, value, "sn.configure") for name, value in code.items()]),
    ):
        for name, value, source in rows:
            if name not in OPTIONS:
                faults.append(_unknown(name, source))
                continue
            try:
                parsed = OPTIONS[name].parse(value)
            except (ValueError, SplitnetError) as error:
                faults.append(f"{name} {error}. Received: {value!r} ({source}).")
                continue
            found[name] = Setting(name, parsed, origin, source)
    faults += _resolve_conflicts(found)
    if faults:
        raise ConfigError(listed("invalid runtime settings.", faults))
    return Settings(
        tuple(
            found.get(name, Setting(name, None, "default", "TensorFlow"))
            for name in OPTIONS
        )
    )


def config_file(environ: Mapping[str, str], folder: Path) -> Path | None:
    """The file that settings would be read from: the nearest one upwards, or none.

    `SPLITNET_CONFIG` names another.
    """
    if environ.get(FILE_VARIABLE):
        return Path(environ[FILE_VARIABLE])
    for place in (folder, *folder.parents):
        if (place / "splitnet.toml").is_file():
            return place / "splitnet.toml"
        if _has_settings(place / "pyproject.toml"):
            return place / "pyproject.toml"
    return None


def _has_settings(project: Path) -> bool:
    """Whether a project file has a table for splitnet, however TOML spells it."""
    text = ""
    try:
        if project.is_file():
            text = project.read_text(encoding="utf-8")
        tool = tomllib.loads(text).get("tool")
    except (OSError, ValueError, RecursionError):
        return "[tool.splitnet]" in text
    return isinstance(tool, dict) and "splitnet" in tool


def _from_file(
    environ: Mapping[str, str], folder: Path, faults: list[str]
) -> list[tuple[str, object, str]]:
    path = config_file(environ, folder)
    if path is None:
        return []
    try:
        table = read_toml(path, "settings file")
    except PlanFileError as error:
        faults.append(str(error))
        return []
    if path.name == "pyproject.toml":
        tool = table.get("tool")
        table = tool.get("splitnet", {}) if isinstance(tool, dict) else {}
    if not isinstance(table, dict):
        faults.append(f"tool.splitnet ({path.name}) must be a table, not {table!r}")
        return []
    return [(name, value, path.name) for name, value in table.items()]


def _unknown(name: str, source: str) -> str:
    close = difflib.get_close_matches(name, OPTIONS, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"there is no setting {name!r} ({source}).{hint} Known: {', '.join(OPTIONS)}"


def _resolve_conflicts(found: dict[str, Setting]) -> list[str]:
    """Resolve conflicts: the stronger origin wins, equal ones are a fault."""

    def counts(name: str) -> bool:
        return name in found and bool(found[name].value) and not found[name].set_aside

    faults = []
    for pair in _CLASHES:
        if not all(map(counts, pair)):
            continue
        one, other = (found[name] for name in pair)
        if one.origin == other.origin:
            faults.append(
                f"{one.name} ({one.source}) and {other.name} ({other.source}) cannot "
                "both be set; TensorFlow takes one of them for a GPU. Drop one"
            )
            continue
        weak, strong = sorted((one, other), key=lambda s: ORIGINS.index(s.origin))
        reason = f"{strong.name} of the {strong.origin} counts instead"
        found[weak.name] = replace(weak, set_aside=reason)
    sized = counts("memory_limit") or counts("memory_fraction")
    if counts("logical_gpus") and found["logical_gpus"].value != 1 and not sized:
        cut = found["logical_gpus"]
        faults.append(
            f"logical_gpus={cut.value} ({cut.source}) needs the memory of each: set "
            "memory_limit='4 GiB', or memory_fraction"
        )
    return faults
