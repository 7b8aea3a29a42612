"""Machines as plain values, so that a plan can be made for one that is not here."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from splitnet.core import hooks
from splitnet.core.devices import Device, device_name, is_kind
from splitnet.core.errors import DeviceError, SplitnetError, listed
from splitnet.core.hosts import Host
from splitnet.core.links import Link
from splitnet.core.units import parse_bandwidth, parse_seconds

__all__ = ["Cluster", "Device", "Link"]

_DEFAULT_LINK = ("12 GB/s", "10 us")
_MANY = re.compile(r"\s*(\d+)\s*\*\s*(\S+)\s*")
_MOST_DEVICES = 4096


@dataclass(frozen=True)
class Cluster:
    """The devices of one or several machines, and the links between them.

    `hosts` says where the programs of other machines listen; none for one machine.

    Examples:
        >>> box = Cluster.of("2*gpu", "cpu", memory="16 GiB", link="25 GB/s")
        >>> [device.name for device in box]
        ['gpu:0', 'gpu:1', 'cpu:0']
        >>> box.link("gpu:0", "gpu:1").seconds(25e9)
        1.00001
    """

    devices: tuple[Device, ...]
    links: tuple[Link, ...] = ()
    hosts: tuple[Host, ...] = ()

    def __post_init__(self) -> None:
        """Refuse an invalid cluster, with every fault."""
        faults = []
        names = [device.name for device in self.devices]
        if not names:
            faults.append("it has no device; name at least one, such as 'cpu'")
        if len(names) > _MOST_DEVICES:
            faults.append(f"it has {len(names)} devices; at most {_MOST_DEVICES}")
        faults += [f"device {n!r} is there twice" for n in _repeated(names)]
        known = {*names, "*"}
        for link in self.links:
            faults += [
                f"link {link.source} -> {link.target} names {end!r}, which is not a "
                f"device of it ({', '.join(names[:8])})"
                for end in (link.source, link.target)
                if end not in known
            ]
            faults += link.faults()
        if faults:
            raise DeviceError(listed("invalid cluster.", faults))

    @classmethod
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

        Args:
            *names: the devices; "4*gpu" is four of them.
            memory: of each GPU, such as "16 GiB", or a number of bytes.
            link: bandwidth between every two devices: "25 GB/s", or bytes per second.
            latency: of every link: "10 us", or seconds.
            speed: of each GPU: "40 TFLOP/s", or FLOP per second.
            preset: of each GPU: "A100", "H100" and so on; what is said beats it.
            cpu_memory: of each CPU.

        Raises:
            DeviceError: an impossible name, count or quantity; all of them at once.
        """
        faults: list[str] = []
        devices: list[Device] = []
        taken: set[str] = set()
        for name in names:
            try:
                for one in _expanded(name, taken):
                    taken.add(one)
                    is_gpu = "gpu" in one.rpartition("/")[2]
                    devices.append(
                        Device.of(
                            one,
                            memory=memory if is_gpu else cpu_memory,
                            speed=speed if is_gpu else None,
                            preset=preset if is_gpu else None,
                        )
                    )
            except SplitnetError as error:
                faults.append(str(error))
        try:
            road = default_link(link, latency)
        except SplitnetError as error:
            faults.append(str(error))
        if faults:
            raise DeviceError(listed("invalid cluster.", faults))
        return cls(tuple(devices), (road,))

    @classmethod
    def load(cls, path: str | Path) -> "Cluster":
        """Read a cluster from a TOML file; see `docs/how-to/not-here.md` for its keys.

        Raises:
            DeviceError: the file cannot be read, or describes no cluster.
        """
        found: Cluster = hooks.call("load_cluster", path)
        return found

    @cached_property
    def _by_name(self) -> dict[str, Device]:
        return {device.name: device for device in self.devices}

    @cached_property
    def _by_ends(self) -> dict[tuple[str, str], Link]:
        return {(link.source, link.target): link for link in self.links}

    def __repr__(self) -> str:
        """A line for a prompt."""
        names = [device.name for device in self.devices]
        shown = ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
        return f"<Cluster of {len(names)}: {shown}>"

    def __iter__(self) -> Iterator[Device]:
        """The devices, in order of declaration."""
        return iter(self.devices)

    def __len__(self) -> int:
        """How many devices there are."""
        return len(self.devices)

    def __contains__(self, name: object) -> bool:
        """Whether a device of that canonical name is here."""
        return name in self._by_name

    def __getitem__(self, name: str) -> Device:
        """The device of that name, however it is spelled.

        Raises:
            DeviceError: no such device here.
        """
        found = self._by_name.get(name) or self._by_name.get(device_name(name))
        if found is None:
            raise DeviceError(
                f"there is no device {name!r} here. Here: {', '.join(self._by_name)}."
            )
        return found

    def of_kind(self, kind: str) -> tuple[Device, ...]:
        """The devices of one kind, "gpu" or "cpu"."""
        return tuple(device for device in self.devices if device.kind == kind)

    def without(self, *names: str) -> "Cluster":
        """What is left without some devices, or all of a host such as "worker:1".

        Raises:
            DeviceError: no such device or host here, or nothing is left.
        """
        hosts = {device.host for device in self.devices}
        gone = {name if name in hosts else self[name].name for name in names}
        kept = [d for d in self.devices if not gone & {d.name, d.host}]
        ends = {*(device.name for device in kept), "*"}
        links = tuple(x for x in self.links if ends >= {x.source, x.target})
        return replace(self, devices=tuple(kept), links=links)

    @property
    def home(self) -> Device:
        """Where data comes in and merges live: the first CPU, else the first device."""
        return next(iter(self.of_kind("cpu")), self.devices[0])

    def link(self, source: str, target: str) -> Link:
        """The road between two different devices."""
        ends = self._by_ends
        for key in ((source, target), (source, "*"), ("*", target), ("*", "*")):
            if key in ends:
                return ends[key]
        return default_link(None, None)


def _repeated(names: list[str]) -> list[str]:
    return [
        n for i, n in enumerate(names) if n in names[:i] and n not in names[i + 1 :]
    ]


def _expanded(text: object, taken: set[str]) -> list[str]:
    """Expand "4*gpu" to gpu:0..3, the first free numbers; "gpu" to the first free."""
    if not isinstance(text, str):
        return [device_name(text)]
    many = _MANY.fullmatch(text)
    count, name = (int(many[1]), many[2]) if many else (1, text)
    if not 1 <= count <= _MOST_DEVICES:
        raise DeviceError(f"{text!r}: the count must be between 1 and {_MOST_DEVICES}.")
    host, _, last = name.strip().rpartition("/")
    kind = last.lower()
    if not is_kind(kind) and not many:
        return [device_name(name)]
    if not is_kind(kind):
        raise DeviceError(f"{text!r}: write a kind after the *, as in '4*gpu'.")
    prefix = device_name(f"{host}/{kind}:0").rpartition("/")[0] + "/" if host else ""
    free = (f"{prefix}{kind}:{i}" for i in range(_MOST_DEVICES + len(taken)))
    new = [one for one in free if one not in taken]
    return new[:count]


def default_link(bandwidth: object, latency: object) -> Link:
    """The road between every two devices; None takes a usual figure."""
    return Link(
        "*",
        "*",
        positive_speed(
            parse_bandwidth(
                bandwidth if bandwidth is not None else _DEFAULT_LINK[0], "link"
            )
        ),
        parse_seconds(latency if latency is not None else _DEFAULT_LINK[1], "latency"),
    )


def positive_speed(value: float) -> float:
    """A bandwidth in bytes per second that is not zero."""
    if value <= 0:
        raise DeviceError("a link's bandwidth must be more than zero.")
    return value
