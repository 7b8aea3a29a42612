"""Where the programs of a cluster listen: a name and an address each."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from splitnet.core.errors import DeviceError, listed

__all__ = ["CLIENT", "Host", "hosts_from", "hosts_to"]

CLIENT = "client:0"
_NAME = re.compile(r"([a-z]\w*)(?::(\d{1,4}))?")
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*)):(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Host:
    """A program that takes part: "worker:1", or "client:0" for the one that trains.

    `address` is "host:port", as the others reach it.
    """

    name: str
    address: str

    @property
    def task(self) -> int:
        """Its number among those of its job."""
        return int(self.name.rpartition(":")[2])

    @property
    def job(self) -> str:
        """What it does, in TensorFlow's word: "worker" or "client"."""
        return self.name.partition(":")[0]


def hosts_from(values: object) -> tuple[Host, ...]:
    """Read a table of names and addresses, such as `"worker:0" = "10.0.0.2:2222"`.

    Raises:
        DeviceError: with every entry that is not a host.

    >>> hosts_from({"client": "10.0.0.1:2222"})
    (Host(name='client:0', address='10.0.0.1:2222'),)
    """
    if not isinstance(values, Mapping):
        raise DeviceError(
            "hosts is a table of names and addresses. "
            f"Received: {type(values).__name__}."
        )
    hosts, faults = [], []
    for name, address in values.items():
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            faults.append(f"host {name!r} is not named like 'worker:0' or 'client'")
        port = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if port is None or not 0 < int(port[2]) < 65536:
            faults.append(
                f"the address of {name!r} must be 'host:port' with a port from 1 to "
                f"65535. Received: {address!r}"
            )
        if match and port:
            hosts.append(Host(f"{match[1]}:{int(match[2] or 0)}", address))
    names = [host.name for host in hosts]
    addresses = [host.address for host in hosts]
    for what, found in (("host", names), ("address", addresses)):
        twice = dict.fromkeys(x for x in found if found.count(x) > 1)
        faults += [f"{what} {x!r} is there twice" for x in twice]
    tasks = sorted(host.task for host in hosts if host.job == "worker")
    if tasks != list(range(len(tasks))):
        faults.append(
            f"workers are numbered 0, 1, 2 and so on without a gap. Found: {tasks}"
        )
    if faults:
        raise DeviceError(listed("these hosts cannot be.", faults))
    return tuple(hosts)


def hosts_to(hosts: tuple[Host, ...]) -> dict[str, str]:
    """The inverse of `hosts_from`."""
    return {host.name: host.address for host in hosts}
