"""Machines as values: names, files, quantities, and everything that cannot be."""

import pytest

from splitnet.core.cluster import (
    Cluster,
    Device,
    Host,
    Link,
    device_name,
)
from splitnet.core.errors import (
    DeviceError,
    parse_bytes,
    parse_quantity,
)

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


@pytest.fixture
def box(tmp_path):
    """A machine that a person wrote down."""
    path = tmp_path / "box.toml"
    path.write_text(BOX)
    return Cluster.load(path)


def test_load_reads_devices_and_links(box):
    """A TOML file gives the devices in its order, with presets filled in."""
    assert [device.name for device in box] == ["gpu:0", "gpu:1", "cpu:0"]
    assert box["gpu:0"].memory_bytes == 80 * 10**9
    assert box["gpu:1"].flops_per_second == 19.5e12
    assert box.link("gpu:1", "gpu:0").bytes_per_second == 300e9
    assert box.link("gpu:1", "cpu:0").bytes_per_second == 25e9
    assert box.link("gpu:1", "cpu:0").latency_seconds == pytest.approx(5e-6)


def test_a_gap_is_no_longer_than_its_latency():
    """What keeps the link is part of what a copy takes."""
    with pytest.raises(DeviceError, match="gap_seconds= must be at most latency"):
        Link("*", "*", 1e9, 1e-5, gap_seconds=1e-4)


@pytest.mark.parametrize(
    "spelled", ["gpu:1", "/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/GPU:1"]
)
def test_device_is_found_however_it_is_spelled(box, spelled):
    """All spellings in use mean the same device."""
    assert box[spelled].name == "gpu:1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "gpu:-1",
        "tpu:0",
        "gpu:1.5",
        "../gpu:0",
        "gpu:０x",
        None,
        3,
        "gpu:",
    ],
)
def test_device_name_refuses_what_is_none(name):
    """An impossible name is refused with the names that are possible."""
    with pytest.raises(DeviceError, match=r"gpu:0|is named by a text"):
        device_name(name)


def test_of_tells_all_faults_at_once():
    """Two wrong names and a wrong quantity give one error with three lines."""
    with pytest.raises(DeviceError) as caught:
        Cluster.of("tpu:0", "gpu:x", "cpu", link="fast")

    assert str(caught.value).count("\n  - ") == 3
    assert "'tpu:0'" in str(caught.value)
    assert "link must look like '25 GB/s'" in str(caught.value)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), "it has no device"),
        (("gpu:0", "gpu:0"), "'gpu:0' is repeated"),
        (("0*gpu",), "between 1 and 4096"),
        (("99999999*gpu",), "between 1 and 4096"),
        (("2*gpu:0",), "write a kind after"),
    ],
)
def test_of_refuses_a_machine_that_cannot_be(names, words):
    """Nothing, twice the same, and impossible counts."""
    with pytest.raises(DeviceError, match=words.replace("*", r"\*")):
        Cluster.of(*names)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[device]\n", "cannot load the cluster file .* is not TOML"),
        ("", "it has no device"),
        ("device = 3", "device: expected `array`, got `int`"),
        ('[[device]]\nname = "gpu:0"\nwat = 1', r"device\[0\]: .* 'wat'"),
        ('speed = 1\n[[device]]\nname = "gpu:0"', "unknown field 'speed'"),
        ('[[device]]\nname = "gpu:0"\nmemory = "-1 GiB"', "memory of gpu:0"),
        ('[[device]]\nname = "gpu:0"\nmemory = nan', r"device\[0\].memory: the number"),
        ('[[device]]\nname = "gpu:0"\nspeed = 0', "more than zero"),
        ('[[device]]\nname = "gpu:0"\npreset = "A1"', "no preset 'A1'"),
        ('link = "0 B/s"\n[[device]]\nname = "cpu"', "more than zero"),
        (
            '[[device]]\nname = "cpu"\n[[links]]\nbetween = 3',
            r"links\[0\].between: expected `array`",
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
@pytest.mark.parametrize(
    "value", ["", "x", "-1", "1e400", float("nan"), -1, True, None]
)
def test_quantities_are_finite_and_not_negative(unit, value):
    """No memory, bandwidth or speed is negative, infinite or not a number."""
    with pytest.raises(DeviceError):
        parse_quantity(value, "it", unit)


def test_quantities_know_their_units():
    """Binary and decimal prefixes, and times."""
    assert parse_bytes("16 GiB") == 16 * 2**30
    assert parse_bytes("1.5 kB") == 1500
    assert parse_quantity("2 TB/s", "it", "B/s") == 2e12
    assert parse_quantity("1 PFLOPS", "it", "FLOP/s") == 1e15
    assert parse_quantity("3 ms", "it", "s") == pytest.approx(0.003)
    with pytest.raises(DeviceError, match="unknown unit 'parsec'"):
        parse_quantity("3 parsec", "it", "s")


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
