"""Machines as values: names, files, quantities, and everything that cannot be."""

import pytest

from splitnet.core.cluster import Cluster, Device, Host, Link, device_name
from splitnet.core.errors import DeviceError, parse_bytes, parse_quantity

BOX = """
link = "25 GB/s"
latency = "5 us"

[[device]]
name = "gpu:0"
preset = "A100"

[[device]]
name = "gpu:1"
memory = "16 GiB"
speed = "19.5 TFLOP/s"

[[device]]
name = "cpu"

[[links]]
between = ["gpu:0", "gpu:1"]
bandwidth = "300 GB/s"
"""


def test_load_reads_devices_and_links(tmp_path):
    """A TOML file gives the devices in its order, with presets filled in.

    A device is found however it is spelled.
    """
    path = tmp_path / "box.toml"
    path.write_text(BOX)
    box = Cluster.load(path)

    assert [device.name for device in box] == ["gpu:0", "gpu:1", "cpu:0"]
    assert box["gpu:0"].memory_bytes == 80 * 10**9
    assert box["gpu:1"].flops_per_second == 19.5e12
    assert box.link("gpu:1", "gpu:0").bytes_per_second == 300e9
    assert box.link("gpu:1", "cpu:0").bytes_per_second == 25e9
    assert box.link("gpu:1", "cpu:0").latency_seconds == pytest.approx(5e-6)
    for spelled in ("/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/GPU:1"):
        assert box[spelled].name == "gpu:1"


@pytest.mark.parametrize(
    "name",
    ["", "gpu:-1", "tpu:0", "gpu:1.5", "../gpu:0", "gpu:０x", None, 3, "gpu:"],
)
def test_device_name_refuses_what_is_none(name):
    """An impossible name is refused with the names that are possible."""
    with pytest.raises(DeviceError, match=r"there is no device .*gpu:0"):
        device_name(name)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "it has 0 devices"),
        (("gpu:0", "gpu:0"), "'gpu:0' is repeated"),
        (("0*gpu",), "between 1 and 4096"),
        (("99999999*gpu",), "between 1 and 4096"),
        (("2*gpu:0",), "there is no device '2*gpu:0'"),
        (("tpu:0", "gpu:x", "cpu"), "'tpu:0'"),
    ],
)
def test_of_refuses_a_machine_that_cannot_be(names, words):
    """Nothing, twice the same, and impossible counts; with a wrong link as well."""
    with pytest.raises(DeviceError, match=words.replace("*", r"\*")):
        Cluster.of(*names)
    with pytest.raises(DeviceError, match="link must be more than zero: .*'25 GB/s'"):
        Cluster.of(*names, link="fast")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[device]\n", "cannot load the cluster file .* is not TOML"),
        ("", "it has 0 devices"),
        ("device = 3", "device= must be Sequence. Received: 3"),
        ('[[device]]\nname = "gpu:0"\nwat = 1', r"device\[0\]: .* 'wat'"),
        (
            'speed = 1\n[[device]]\nname = "gpu:0"',
            "unexpected keyword argument 'speed'",
        ),
        ('[[device]]\nname = "gpu:0"\nmemory = "-1 GiB"', "memory of gpu:0"),
        ('[[device]]\nname = "gpu:0"\nspeed = 0', "more than zero"),
        ('[[device]]\nname = "gpu:0"\npreset = "A1"', "no preset 'A1'"),
        (
            '[[device]]\nname = "cpu"\n[[links]]\nbetween = 3',
            r"links\[0\]: .*between= must be ",
        ),
    ],
)
def test_load_names_what_is_wrong_in_a_file(tmp_path, text, words):
    """A file that is no machine is refused with its name and the field."""
    path = tmp_path / "bad.toml"
    path.write_text(text)

    with pytest.raises(DeviceError, match=words) as caught:
        Cluster.load(path)

    assert "bad.toml" in str(caught.value)


@pytest.mark.parametrize("unit", ["B", "B/s", "FLOP/s", "s"])
def test_quantities_are_finite_and_not_negative(unit):
    """No memory, bandwidth or speed is negative, infinite or not a number."""
    for value in ("", "x", "-1", "1e400", "1..2", "3 parsec", float("nan"), -1, True):
        with pytest.raises(DeviceError, match="it must be .*zero"):
            parse_quantity(value, "it", unit)


def test_quantities_know_their_units():
    """Binary and decimal prefixes, and times."""
    assert parse_bytes("16 GiB") == 16 * 2**30
    assert parse_bytes("1.5 kB") == 1500
    assert parse_quantity("2 TB/s", "it", "B/s") == 2e12
    assert parse_quantity("1 PFLOPS", "it", "FLOP/s") == 1e15
    assert parse_quantity("3 ms", "it", "s") == pytest.approx(0.003)
    with pytest.raises(DeviceError, match="gap_seconds= must be at most latency"):
        Link("*", "*", 1e9, 1e-5, gap_seconds=1e-4)


def test_a_cluster_without_a_device_or_a_host_keeps_the_rest() -> None:
    """Their links go with them; addresses stay, for when the host comes back."""
    hosts = (Host("client:0", "a:1"), Host("worker:0", "b:1"), Host("worker:1", "c:1"))
    names = ("cpu:0", "worker:0/cpu:0", "worker:1/gpu:0", "worker:1/cpu:0")
    links = (Link("cpu:0", "worker:1/cpu:0", 1e9), Link("*", "*", 1e9))
    cluster = Cluster(tuple(map(Device.of, names)), links, hosts)

    left = cluster.without("worker:1")

    assert [device.name for device in left] == ["cpu:0", "worker:0/cpu:0"]
    assert left.links == links[1:]
    assert left.hosts == hosts
    assert len(cluster.without("/job:worker/task:1/device:GPU:0", "cpu:0")) == 2
    with pytest.raises(DeviceError, match="there is no device 'worker:7'"):
        cluster.without("worker:7")
