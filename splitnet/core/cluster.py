"""Machines as plain data: devices, links between them, and hosts."""

import re
import tomllib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from splitnet.core import Pictured, errors, hook
from splitnet.core.checks import Count, Rate, Seconds, check_fields, checked
from splitnet.core.errors import DeviceError, parse_quantity, repeated, shown

KINDS = ("gpu", "cpu")

# "gpu:1", "worker:1/gpu:0" and TensorFlow's own, in lower case.
_NAME = re.compile(
    r"/?(?:(?:job:)?([a-z_]\w*)(?:/replica:\d+)?(?:(?:/task)?:(\d+))?/)?"
    r"(?:device:)?(gpu|cpu):(\d+)"
)

_FIGURES = Path(__file__).with_name("presets.toml")
PRESETS: dict[str, list[Any]] = tomllib.loads(_FIGURES.read_text("utf-8"))
"""Memory, speed, bandwidth, overhead and half_speed of each GPU and CPU."""

# Seconds per call of a function: 6 to 9 us were measured on a CPU (TensorFlow 2.21).
PART_SECONDS = 10e-6


@dataclass(frozen=True, slots=True)
class Device:
    """One processor with memory of its own.

    `target` is its name in TensorFlow, `bytes_per_second` its memory's bandwidth;
    `call_seconds` is what starting a kernel costs, `part_seconds` what calling a part's
    function costs, `half_speed` how many times faster products are in 16 bits.
    """

    name: str
    target: str
    memory_bytes: Count
    flops_per_second: Rate
    bytes_per_second: Rate
    call_seconds: Seconds = 1e-5
    stand_in: bool = False
    part_seconds: Seconds = 0.0
    half_speed: Rate = 2.0

    def __post_init__(self) -> None:
        check_fields(self, error=DeviceError)
        if device_name(self.name) != self.name or self.name in KINDS:
            raise DeviceError(f"Device: its name must be {device_name(self.name)!r}.")
        target = device_name(self.target)
        if target in KINDS or self.target != tensorflow_name(target):
            raise DeviceError(f"Device: TensorFlow has no device {self.target!r}.")

    @property
    def kind(self) -> str:
        """Its kind: "gpu" or "cpu"."""
        return _kind_of(self.name)

    @property
    def host(self) -> str:
        """Its host: "worker:1", or "" for this machine."""
        return self.name.rpartition("/")[0]

    @classmethod
    @checked
    def of(
        cls,
        name: str,
        *,
        memory: object = None,
        speed: object = None,
        bandwidth: object = None,
        overhead: object = None,
        preset: str | None = None,
        target: str | None = None,
        stand_in: bool = False,
        half_speed: Rate | None = None,
    ) -> "Device":
        """Make a device from its name and known figures; presets give the rest.

        Quantities are texts, or numbers in their units: memory="16 GiB", speed="40
        TFLOP/s", bandwidth="1 TB/s" (of its memory), overhead="8 us" (lost per call).
        `preset` is "A100", "H100" and so on, `target` its name in TensorFlow, and a
        `stand_in` runs on a CPU device in its place. `half_speed` is as in `Device`.
        """
        name = first_name(name)
        if not (found := preset_of(_kind_of(name) if preset is None else preset)):
            known = ", ".join(PRESETS)
            raise DeviceError(f"there is no preset {preset!r}. Known: {known}.")
        *usual, gain = PRESETS[found]
        units = {"memory": "B", "speed": "FLOP/s", "bandwidth": "B/s", "overhead": "s"}
        given = zip(units.items(), (memory, speed, bandwidth, overhead), usual)
        size, flops, moved, call = (
            parse_quantity(figure if own is None else own, f"{what} of {name}", unit)
            for (what, unit), own, figure in given
        )
        target = tensorflow_name(name) if target is None else target
        gain = half_speed or (gain if speed is None else 2.0)
        figures = round(size), flops, moved, call, stand_in, PART_SECONDS, gain
        return cls(name, target, *figures)


def preset_of(text: str) -> str:
    """The preset of that name, in small letters as well; "" if there is none."""
    return next((name for name in PRESETS if name.lower() == text.lower()), "")


@cache
def _kind_of(name: str) -> str:
    return name.rpartition("/")[2].partition(":")[0]


def device_name(text: object) -> str:
    """Short device name: "gpu:1", "worker:1/gpu:0" on another host, or a kind: "gpu".

    >>> [device_name(t) for t in ("/device:GPU:1", "cpu", "/job:worker/task:1/GPU:0")]
    ['gpu:1', 'cpu', 'worker:1/gpu:0']
    """
    plain = text.strip().lower() if isinstance(text, str) else ""
    if plain.removeprefix("/device:").removeprefix("/") in KINDS:
        return plain[-3:]
    if (match := _NAME.fullmatch(plain)) is None:
        known = "'gpu:0', 'gpu', 'cpu', '/device:GPU:0' or 'worker:1/gpu:0'"
        raise DeviceError(f"there is no device {shown(text)}. Write {known}.")
    job, task, kind, number = match.groups()
    local = f"{kind}:{int(number)}"
    return local if job in (None, "localhost") else f"{job}:{int(task or 0)}/{local}"


def first_name(text: object) -> str:
    """Short device name; a kind stands for its first: "gpu" for "gpu:0"."""
    alone = re.search(r"(^|[/:])(gpu|cpu)\s*$", str(text), re.IGNORECASE)
    return device_name(f"{alone.string.rstrip()}:0" if alone else text)


def tensorflow_name(name: str) -> str:
    """TensorFlow's name: "/device:GPU:1", or with "/job:worker/replica:0/task:1"."""
    host, _, local = name.rpartition("/")
    kind, index = local.split(":")
    job, _, task = host.partition(":")
    place = f"/job:{job}/replica:0/task:{task}" if host else ""
    return f"{place}/device:{kind.upper()}:{index}"


@dataclass(frozen=True, slots=True)
class Link:
    """The link between two devices: bandwidth, latency and gap (LogGP).

    "*" stands for every device that no other link names. `gap_seconds` is the part of
    the latency in which a copy occupies the link; None means all of it. Each byte also
    occupies both ends, processors of two programs, for `overhead_per_byte` (LogGOPS).
    """

    source: str
    target: str
    bytes_per_second: Rate
    latency_seconds: Seconds = 0.0
    gap_seconds: Seconds | None = None
    overhead_per_byte: Seconds = 0.0

    def __post_init__(self) -> None:
        check_fields(self, error=DeviceError)
        if self.gap > self.latency_seconds:
            raise DeviceError("Link: gap_seconds= must be at most latency_seconds=.")

    def seconds(self, count: float) -> float:
        """The time that `count` bytes take, in seconds."""
        return self.latency_seconds + count / self.bytes_per_second

    @property
    def gap(self) -> float:
        """Seconds that a copy occupies the link besides its bytes."""
        return self.latency_seconds if self.gap_seconds is None else self.gap_seconds


def default_link(bandwidth: object, latency: object) -> Link:
    """The link between every two devices; None takes a usual figure."""
    speed = parse_quantity("12 GB/s" if bandwidth is None else bandwidth, "link", "B/s")
    delay = parse_quantity("10 us" if latency is None else latency, "latency", "s")
    return Link("*", "*", speed, delay)


_USUAL_LINK = default_link(None, None)
CLIENT = "client:0"


@dataclass(frozen=True, slots=True)
class Host:
    """A process: "worker:1", or "client:0" that trains; others reach its address."""

    name: str
    address: str

    @property
    def task(self) -> int:
        """Its number within its job."""
        return int(self.name.rpartition(":")[2])

    @property
    def job(self) -> str:
        """Its job in TensorFlow: "worker" or "client"."""
        return self.name.partition(":")[0]


_HOST_NAME = re.compile(r"[a-z]\w*:\d{1,4}")
_ADDRESS = re.compile(r"(?:\[[\dA-Fa-f:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*):(\d{1,5})")
_MANY = re.compile(r"\s*(?:(\d+)\s*\*)?\s*(?:(\S+)/)?(gpu|cpu)\s*", re.IGNORECASE)
_MOST_DEVICES = 4096


@dataclass(frozen=True)
class Cluster(Pictured):
    """The devices of one or several machines, their links, and addresses of workers.

    Examples:
        >>> box = Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
        >>> [device.name for device in box], box.link("gpu:0", "gpu:1").seconds(25e9)
        (['gpu:0', 'gpu:1', 'cpu:0'], 1.00001)
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self, error=DeviceError)
        if faults := [*self._faults()]:
            raise DeviceError("invalid cluster.", faults)

    def _faults(self) -> Iterator[str]:
        names, most = self.names, _MOST_DEVICES
        if not 1 <= len(names) <= most:
            yield f"it has {len(names)} devices; name 1 to {most}, such as 'cpu'"
        links = [f"{link.source} -> {link.target}" for link in self.links]
        for link in links:
            for end in (one for one in link.split(" -> ") if one not in ("*", *names)):
                here = f"which is not a device of it ({', '.join(names[:8])})"
                yield f"link {link} names {end!r}, {here}"
        hosts = [host.name for host in self.hosts]
        addresses = [host.address for host in self.hosts]
        known = {"device": names, "link": links, "host": hosts, "address": addresses}
        known["target="] = [device.target for device in self.devices]
        for what, its in known.items():
            yield from (f"{what} {one!r} is repeated" for one in repeated(its))
        for host in self.hosts:
            if not _HOST_NAME.fullmatch(host.name):
                yield f"host {host.name!r} is not named like 'worker:0' or 'client'"
            port = _ADDRESS.fullmatch(host.address)
            if port is None or not 0 < int(port[1]) < 65536:
                wanted = "must be 'host:port' with a port from 1 to 65535"
                yield f"address {host.address!r} of {host.name!r} {wanted}"
        workers = [name for name in hosts if name.startswith("worker:")]
        if {*workers} != {f"worker:{i}" for i in range(len(workers))}:
            yield f"workers must be numbered from 0 without a gap. Found: {workers}"

    @classmethod
    @checked
    def of(
        cls,
        *names: str,
        memory: object = None,
        link: object = None,
        latency: object = None,
        speed: object = None,
        preset: str | None = None,
        cpu_memory: object = None,
    ) -> "Cluster":
        """Describe a machine in a line: "gpu:0", "4*gpu", "cpu", "worker:1/gpu:0".

        `memory` ("16 GiB", or bytes), `speed` ("40 TFLOP/s") and `preset` ("A100") are
        of GPUs, `cpu_memory` of CPUs, `link` ("25 GB/s") and `latency` of all links.
        """
        faults, devices = list[str](), list[Device]()
        gpu: dict[str, Any] = {"memory": memory, "speed": speed, "preset": preset}
        for text in names:
            with errors.collected(faults):
                for name in _expanded(text, {device.name for device in devices}):
                    its = gpu if _kind_of(name) == "gpu" else {"memory": cpu_memory}
                    devices.append(Device.of(name, **its))
        with errors.collected(faults):
            usual = default_link(link, latency)
        if faults:
            raise DeviceError("invalid cluster.", dict.fromkeys(faults))
        return cls(tuple(devices), (usual,))

    @classmethod
    @checked
    def load(cls, path: str | Path) -> "Cluster":
        """Read a cluster from a TOML file; `docs/how-to/not-here.md` has its keys."""
        found: Cluster = hook("load_cluster")(path)
        return found

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the devices."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def number(self) -> dict[str, int]:
        """The place of each name among the names."""
        return {name: i for i, name in enumerate(self.names)}

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    def __repr__(self) -> str:
        more = " ..." if len(self) > 8 else ""
        return f"<Cluster of {len(self)}: {', '.join(self.names[:8])}{more}>"

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    def __len__(self) -> int:
        return len(self.devices)

    def __contains__(self, name: object) -> bool:
        return name in self.number

    def __getitem__(self, name: str) -> Device:
        known = isinstance(name, str) and name in self.number
        if (at := self.number.get(name if known else device_name(name))) is None:
            here = ", ".join(self.names)
            raise DeviceError(f"there is no device {name!r} here. Here: {here}.")
        return self.devices[at]

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The devices of one kind, "gpu" or "cpu"."""
        return tuple(device for device in self.devices if device.kind == kind)

    def without(self, *names: str) -> "Cluster":
        """The cluster without some devices, or without a host such as "worker:1"."""
        hosts = [device.host for device in self.devices]
        gone = {name if name in hosts else self[name].name for name in names}
        kept = [d for d in self.devices if not gone & {d.name, d.host}]
        ends = {*(device.name for device in kept), "*"}
        links = tuple(x for x in self.links if ends >= {x.source, x.target})
        return replace(self, devices=tuple(kept), links=links)

    @property
    def home(self) -> Device:
        """The device of inputs and merges: a CPU, of this machine if it has one."""
        return min(self.devices, key=lambda one: (one.kind != "cpu", one.host != ""))

    @property
    def free_devices(self) -> tuple[Device, ...]:
        """Devices for parts that ask for none: not the CPU that feeds workers."""
        away = tuple(d for d in self.devices if d.host or d.kind == "gpu")
        return away if any(device.host for device in away) else self.devices

    def link(self, source: str, target: str) -> Link:
        """The link between two different devices."""
        keys = (source, target), (source, "*"), ("*", target), ("*", "*")
        its = (self._by_ends[key] for key in keys if key in self._by_ends)
        return next(its, None) or _USUAL_LINK


def _expanded(text: str, taken: Collection[str]) -> list[str]:
    """Expand "4*gpu" to gpu:0..3, the first free numbers; "gpu" to the first free."""
    if not (match := _MANY.fullmatch(text) if isinstance(text, str) else None):
        return [device_name(text)]
    host = device_name(f"{match[2]}/cpu:0").removesuffix("cpu:0") if match[2] else ""
    prefix, count = f"{host}{match[3].lower()}", int((match[1] or "1")[:9])
    if not 1 <= count <= _MOST_DEVICES:
        raise DeviceError(f"{text!r}: the count must be between 1 and {_MOST_DEVICES}.")
    free = (f"{prefix}:{i}" for i in range(count + len(taken)))
    return [one for one in free if one not in taken][:count]
