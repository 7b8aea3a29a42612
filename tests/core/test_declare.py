"""What is declared: nets and machines as values."""

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster, Device, Host, Link
from splitnet.core.errors import DeviceError

BODY = object()


def test_net_holds_what_was_declared():
    net = sn.Net("small")
    x = net.input("x", (4, None), dtype="int32")
    a = net.branch("a", x, BODY, on="/GPU:1")
    b = net.branch("b", x, BODY, on=["/device:GPU:0", "gpu"], apart=a)
    net.output(net.merge("both", [a, b], BODY), "answer")
    net.check()

    assert [(b.name, b.kind, b.on) for b in net.branches] == [
        ("x", "input", ("cpu",)),
        ("a", "branch", ("gpu:1",)),
        ("b", "branch", ("gpu:0", "gpu")),
        ("both", "merge", ("cpu",)),
    ]
    assert (net.branches[0].shape, net.branches[0].dtype) == ((4, None), "int32")
    assert net.branches[2].apart == ("a",)
    assert [output.name for output in net.outputs] == ["answer"]


def test_net_never_touches_a_body():
    """It is looked at when the net is read; nor does a prompt, or `if ref:`, do so."""

    class Hostile:
        def __getattribute__(self, name):
            raise AssertionError(f"declaring looked at {name}")

        def __call__(self, *_):
            raise AssertionError("declaring called the body")

    net = sn.Net("careful")
    net.output(ref := net.branch("a", net.input("x", (4,)), Hostile()))

    assert net.faults() == []
    assert repr(net) == "<Net 'careful': 2 branches, 1 outputs>"
    assert ref


BOX = """
link = "25 GB/s"
latency = "5 us"
device = [
    {name = "gpu:0", preset = "A100"},
    {name = "gpu:1", memory = "16 GiB", speed = "19.5 TFLOPS"},
    {name = "cpu", memory = "1.5 kB"},
]
links = [{between = ["gpu:0", "gpu:1"], bandwidth = "0.3 TB/s"}]
"""


def test_load_reads_devices_and_links(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(BOX)
    box = Cluster.load(path)

    assert [device.name for device in box] == ["gpu:0", "gpu:1", "cpu:0"]
    sizes = [device.memory_bytes for device in box]
    assert sizes == [80 * 10**9, 16 * 2**30, 1500]
    assert box["gpu:1"].flops_per_second == 19.5e12
    assert box.link("gpu:1", "gpu:0").bytes_per_second == 300e9
    assert box.link("gpu:1", "cpu:0").bytes_per_second == 25e9
    assert box.link("gpu:1", "cpu:0").latency_seconds == pytest.approx(5e-6)
    for spelled in ("/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/GPU:1"):
        assert box[spelled].name == "gpu:1"


def test_a_cluster_without_a_device_or_a_host_keeps_the_rest():
    """Their links go with them; addresses stay, for when the host comes back."""
    hosts = (Host("client:0", "a:1"), Host("worker:0", "b:1"), Host("worker:1", "c:1"))
    names = ("cpu:0", "worker:0/cpu:0", "worker:1/gpu:0", "worker:1/cpu:0")
    links = (Link("cpu:0", "worker:1/cpu:0", 1e9), Link("*", "*", 1e9))
    cluster = Cluster(tuple(map(Device.of, names)), links, hosts)

    left = cluster.without("worker:1")

    assert [device.name for device in left] == ["cpu:0", "worker:0/cpu:0"]
    assert (left.links, left.hosts) == (links[1:], hosts)
    assert len(cluster.without("/job:worker/task:1/device:GPU:0", "cpu:0")) == 2
    with pytest.raises(DeviceError, match="there is no device 'worker:7'"):
        cluster.without("worker:7")
