"""Clusters from files: TOML that a person wrote, JSON that a stranger may have."""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields

from splitnet.core.cluster import Cluster, Device, Link, default_link, positive_speed
from splitnet.core.devices import device_name, tensorflow_name
from splitnet.core.errors import DeviceError, SplitnetError, listed
from splitnet.core.hosts import Host, hosts_from, hosts_to
from splitnet.core.units import parse_bandwidth, parse_seconds

__all__ = [
    "cluster_from_dict",
    "cluster_from_toml",
    "cluster_to_dict",
    "link_to_dict",
]

_DEVICE_KEYS = {"name", "memory", "speed", "bandwidth", "overhead", "preset"}
_LINK_KEYS = {"between", "bandwidth", "latency"}


def cluster_from_toml(values: Mapping[str, object]) -> Cluster:
    """Read `[[device]]` and `[[link]]` tables and the plain keys `link`, `latency`."""
    faults = [
        f"unknown key {key!r}; known: device, link, links, latency, hosts"
        for key in values
        if key not in {"device", "link", "links", "latency", "hosts"}
    ]
    devices: list[Device] = []
    links: list[Link] = []
    for entry in _tables(values.get("device"), "device", _DEVICE_KEYS, faults):
        try:
            name = entry.pop("name", None)
            devices.append(Device.of(name, **entry))  # type: ignore[arg-type]  # checked inside
        except SplitnetError as error:
            faults.append(str(error))
    for entry in _tables(values.get("links", []), "links", _LINK_KEYS, faults):
        try:
            links += _toml_link(entry)
        except SplitnetError as error:
            faults.append(str(error))
    try:
        links.append(default_link(values.get("link"), values.get("latency")))
    except SplitnetError as error:
        faults.append(str(error))
    hosts: tuple[Host, ...] = ()
    try:
        hosts = hosts_from(values.get("hosts", {}))
    except SplitnetError as error:
        faults.append(str(error))
    if faults:
        raise DeviceError(listed("this cluster cannot be.", faults))
    return Cluster(tuple(devices), tuple(links), hosts)


def _tables(
    entries: object, key: str, allowed: set[str], faults: list[str]
) -> Iterator[dict[str, object]]:
    if not isinstance(entries, list) or not all(isinstance(e, dict) for e in entries):
        faults.append(f"{key!r} must be a list of tables: write [[{key}]]")
        return
    for entry in entries:
        unknown = [name for name in entry if name not in allowed]
        faults += [f"[[{key}]] has an unknown key {name!r}" for name in unknown]
        if not unknown:
            yield dict(entry)


def _toml_link(entry: Mapping[str, object]) -> list[Link]:
    """A road that is named once holds in both directions."""
    between = entry.get("between")
    if not (isinstance(between, list) and len(between) == 2):
        raise DeviceError("[[links]] needs between = ['gpu:0', 'gpu:1'].")
    one, other = (end if end == "*" else device_name(end) for end in between)
    road = default_link(entry.get("bandwidth"), entry.get("latency"))
    ends = dict.fromkeys([(one, other), (other, one)])
    return [Link(a, b, road.bytes_per_second, road.latency_seconds) for a, b in ends]


def _checked_device(entry: object) -> Device:
    values = _fields_of(entry, Device)
    made = Device.of(
        str(values["name"]),
        memory=values["memory_bytes"],
        speed=values["flops_per_second"],
        bandwidth=values["bytes_per_second"],
        overhead=values.get("call_seconds"),
        target=_checked_target(values["target"]),
        stand_in=values.get("stand_in", False) is True,
    )
    if made.kind != values["kind"]:
        raise DeviceError(f"device {made.name!r} cannot be of kind {values['kind']!r}.")
    return made


def _checked_target(text: object) -> str:
    """Check that a target read from a file names a device and nothing else."""
    return tensorflow_name(device_name(text))


def _checked_link(entry: object) -> Link:
    values = _fields_of(entry, Link)
    source, target = values["source"], values["target"]
    if not (isinstance(source, str) and isinstance(target, str)):
        raise DeviceError("a link goes from a device to a device.")
    gap = values.get("gap_seconds")
    return Link(
        source,
        target,
        positive_speed(parse_bandwidth(values["bytes_per_second"], "link")),
        parse_seconds(values.get("latency_seconds", 0.0), "latency"),
        _checked_share("busy_share", values.get("busy_share", 0.0)),
        _checked_share("crowding", values.get("crowding", 0.0)),
        None if gap is None else parse_seconds(gap, "gap"),
    )


def _checked_share(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DeviceError(f"{name} is a number from 0 to 1. Received: {value!r}.")
    return float(value)


def _fields_of(entry: object, kind: type) -> dict[str, object]:
    """The entry as a table with the fields of a value class: no more, none missing."""
    if not isinstance(entry, Mapping):
        raise DeviceError(f"a {kind.__name__.lower()} is a table. Received: {entry!r}.")
    known = {f.name: f for f in fields(kind)}

    missing = [n for n, f in known.items() if f.default is MISSING and n not in entry]
    unknown = [str(n) for n in entry if n not in known]
    if missing or unknown:
        raise DeviceError(
            listed(
                f"a {kind.__name__.lower()} of the cluster cannot be read.",
                [f"{n!r} is missing" for n in missing]
                + [f"{n!r} is unknown" for n in unknown],
            )
        )
    return dict(entry)


def cluster_from_dict(values: object) -> Cluster:
    """Build a cluster from the plain values of `Cluster.to_dict`, whoever wrote them.

    Raises:
        DeviceError: they do not describe a cluster.
    """
    if not isinstance(values, Mapping):
        raise DeviceError(f"a cluster is a table. Received: {type(values).__name__}.")
    devices, links = values.get("devices"), values.get("links", [])
    if not isinstance(devices, list) or not isinstance(links, list):
        raise DeviceError("a cluster has a list 'devices' and a list 'links'.")
    return Cluster(
        tuple(_checked_device(entry) for entry in devices),
        tuple(_checked_link(entry) for entry in links),
        hosts_from(values.get("hosts", {})),
    )


def cluster_to_dict(cluster: Cluster) -> dict[str, object]:
    """The cluster as plain values, for a JSON file."""
    return {
        "devices": [asdict(device) for device in cluster.devices],
        "links": [link_to_dict(link) for link in cluster.links],
        **({"hosts": hosts_to(cluster.hosts)} if cluster.hosts else {}),
    }


def link_to_dict(link: Link) -> dict[str, object]:
    """A link as plain values, without what only measurements tell where they do not.

    >>> sorted(link_to_dict(Link("*", "*", 1e9)))
    ['bytes_per_second', 'latency_seconds', 'source', 'target']
    """
    untold = {"busy_share": 0.0, "crowding": 0.0, "gap_seconds": None}
    return {k: v for k, v in asdict(link).items() if v != untold.get(k, ...)}
