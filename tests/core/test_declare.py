"""Nets and machines that are declared; what cannot be is refused in words."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest

import splitnet as sn
from splitnet.core.cluster import Cluster, Device, Host, Link, device_name
from splitnet.core.costs import load_costs
from splitnet.core.errors import DeviceError, PlanFileError, parse_quantity
from splitnet.core.graph import Part, Tensor
from splitnet.core.serialization import load_file, write_cluster
from tests.zoo import wide

GRAPH = wide(2)
CALL, LAST = GRAPH.calls[0], GRAPH.calls[-1]
SHAPELESS = replace(CALL, output_shapes=((1,),), output_dtypes=())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"batch": 0}, "batch= must be int >= 1"),
        ({"calls": [*GRAPH.calls]}, "calls= must be tuple"),
        ({"calls": (*GRAPH.calls, CALL)}, "call 'x' is repeated"),
        ({"parts": ()}, "names the part 'x', which does not exist"),
        ({"parts": (*GRAPH.parts, Part("p", near=("q",)))}, "the part 'q', which"),
        ({"calls": (replace(CALL, weights=("w",)),)}, "'w', which does not exist"),
        ({"calls": (replace(CALL, lookups=("l",)),)}, "'l', which does not exist"),
        ({"calls": (SHAPELESS,)}, "0 dtypes"),
        ({"tensors": (Tensor("no", LAST.name),)}, "names the call 'no', which"),
        ({"tensors": (Tensor(CALL.name, LAST.name, 99),)}, "there is no output 99"),
        ({"outputs": ("no",)}, "output names the call 'no', which"),
        ({"calls": GRAPH.calls[::-1]}, "its calls are not in topological order"),
    ],
)
def test_a_broken_graph_is_refused(change, said):
    with pytest.raises(sn.DeclarationError, match=re.escape(said)):
        replace(GRAPH, **change)


as_box, as_plan = Cluster.load, partial(load_file, what="plan", build=dict)


def costs(**values):
    return json.dumps({"splitnet_costs": 2, "costs": {}} | values)


GPU = '[[device]]\nname = "gpu:0"\n'
TO_ALL = '[[links]]\nbetween = ["*", "gpu:0"]\n'
NEGATIVE = {"call": "a", "device": "gpu", "forward": -1.0}
LIKE = NEGATIVE | {"forward": 1.0}
FIXED = LIKE | {"forward_fixed": 2.0}
SAME = '[[device]]\nname = "gpu:1"\ntarget = "/device:GPU:0"'
LINK = {"source": "*", "target": "gpu:1", "bytes_per_second": 1e9}


@pytest.mark.parametrize(
    ("load", "text", "message"),
    [
        (as_plan, "", "cannot load the plan .* it is not JSON"),
        (as_plan, '{"a": NaN}', "a: the number is out of range"),
        (as_plan, '{"a": "' + "a" * 20_000 + '"}', "a: a text of 20000 characters"),
        (as_plan, '{"a": [1' + "0" * 400 + "]}", r"a\[0\]: the number is out of range"),
        (as_plan, '{"a": 1' + "0" * 5000 + "}", "integer string conversion"),
        (as_plan, '{"b": {"a": 1, "a": 2}}', "the key 'a' twice"),
        (as_plan, "[" * 100_000, "nested too deeply"),
        (as_plan, "[" * 80 + "]" * 80, "nested too deeply"),
        (as_plan, r'{"a": "\ud800"}', "a: control characters"),
        (as_plan, r'{"\u001b[2J": 1}', "control characters"),
        (as_plan, "\ud800".encode("utf-16", "surrogatepass"), "it is not UTF-8"),
        (as_box, "[[device]\n", "cannot load the cluster file .* is not TOML"),
        (as_box, GPU[1:].replace("]]", "]"), r"device: write \[\[device\]\], for eac"),
        (as_box, f"{GPU}hosts = 3", r"device\[0\]: there is no hosts= \(known: name"),
        (as_box, "hosts = 3", r"hosts: write \[hosts\], once. Received: 3"),
        (as_box, f"speed = 1\n{GPU}", r"': there is no speed= \(known: device"),
        (as_box, f"{GPU}preset = 1\nstand_in = 1", r"\n  - device\[0\]: stand_in="),
        (as_box, f'{GPU}memory = "-1 GiB"', "memory of gpu:0"),
        (as_box, f"{GPU}speed = 0", "more than zero"),
        (as_box, f'{GPU}preset = "A1"', "no preset 'A1'"),
        (as_box, f"{GPU}[[links]]\nbetween = 3", r"links\[0\]: between= must"),
        (as_box, f'{GPU}[[links]]\nbetween = ["gpu:0", "gpu:0"]', "two devices"),
        (as_box, f"{TO_ALL}{TO_ALL}{GPU}", r"link '\* -> gpu:0' is repeated"),
        (as_box, f'{GPU}target = "gpu"', "TensorFlow has no device 'gpu'"),
        (as_box, '[hosts]\nclient = "a:1"\n"client:0" = "b:1"', "client and client:0"),
        (load_costs, costs(splitnet_costs=1), "version 2, .*: must be 2. Received: 1"),
        (load_costs, costs(costs=None), "costs: expected `object`"),
        (load_costs, costs(costs={"calls": [NEGATIVE]}), r"\[0\].forward: .*>= 0.0"),
        (load_costs, costs(costs={"calls": [FIXED]}), "must be at most those of"),
        (load_costs, costs(costs={"links": [LINK]}), r"there is no device '\*'"),
        (load_costs, costs(costs={"calls": [LIKE, LIKE]}), "'gpu', 0.0, 0.0.* twice"),
        (as_box, f"{GPU}{SAME}", "target= '/device:GPU:0' is repeated"),
    ],
)
def test_a_file_with_impossible_contents_is_refused(tmp_path, load, text, message):
    path = tmp_path / "file"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    kind = DeviceError if load == as_box else PlanFileError
    with pytest.raises(kind, match=message) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_of_refuses_a_machine_that_cannot_be():
    """Twice the same, and impossible counts; with a wrong link as well."""
    for names, words in (
        (("gpu:0", "gpu:0"), "'gpu:0' is repeated"),
        (("0*gpu",), "between 1 and 4096"),
        (("99999999*gpu",), "between 1 and 4096"),
        (("2*gpu:0",), r"there is no device '2\*gpu:0'"),
        ((None, "cpu"), "there is no device None"),
    ):
        with pytest.raises(DeviceError, match=words):
            Cluster.of(*names)
        with pytest.raises(DeviceError, match="link must be more than zero: .*'25 GB/"):
            Cluster.of(*names, link="fast")


def test_names_and_quantities_are_checked():
    for name in ("a/b", "", " ", "a\n", 7):
        assert "a net needs a name of printable" in sn.Net(name).faults()[0]
    for name in ("", "gpu:-1", "tpu:0", "gpu:1.5", "../gpu:0", "gpu:０x", None, "a:"):
        with pytest.raises(DeviceError, match=r"there is no device .*gpu:0"):
            device_name(name)
    for value in ("", "x", "-1", "1e40", "1..2", "3 Gb/s", float("nan"), -1, True):
        for unit in ("B", "B/s", "FLOP/s", "s"):
            with pytest.raises(DeviceError, match="it must be .*zero"):
                parse_quantity(value, "it", unit)
    assert parse_quantity("1 EiB", "it", "B") == 2**60
    with pytest.raises(DeviceError, match="gap_seconds= must be at most latency"):
        Link("*", "*", 1e9, 1e-5, gap_seconds=1e-4)


BODY = object()


def faults(declare):
    """What is said of a net that `declare` builds, which may return its outputs."""
    net = sn.Net("broken")
    for ref in declare(net) or ():
        net.output(ref)
    with pytest.raises(sn.DeclarationError) as caught:
        net.check()
    return str(caught.value)


def x(net, name="x"):
    return net.input(name, (4,))


def branch(net, read, **more):
    return net.branch("a", read, BODY, **more)


OTHER = "uses 'x' of another net, 'other'"
UNUSED = "leads to no output; use it or remove it"
TAKEN, NAME = "the name 'y' is taken by the output at", "needs a name of printable"


@pytest.mark.parametrize(
    ("declare", "words"),
    [
        (lambda n: (), "net 'broken' is empty"),
        (lambda n: branch(n, x(n)) and (), "no output; say net.output(ref) for each"),
        (lambda n: [branch(n, [])], "'a' takes what a branch returned. Received: []"),
        (lambda n: [x(n), x(n)], "the name 'x' is taken by the input at"),
        (lambda n: [x(n, "y"), x(n)][1:], f"input 'y' {UNUSED}"),
        (lambda n: branch(n, x(n, "y")) and [x(n)], f"branch 'a' {UNUSED}"),
        (lambda n: [x(sn.Net("other"))], f"the output {OTHER}"),
        (lambda n: [branch(n, x(sn.Net("other")))], f"branch 'a' {OTHER}"),
        (lambda n: [n.input("x", 4)], "the shape must be a tuple such"),
        (lambda n: [n.input("x", b"ab")], "the shape must be a tuple such"),
        *((lambda n, s=s: [x(n, s)], NAME) for s in ("", 3, ["x"], "a/b", "a\x1b[2J")),
        (lambda n: n.output(x(n), "größe"), "an output needs a name of ASCII"),
        (lambda n: [n.output(x(n, name), "y") for name in "ab"] and (), TAKEN),
        (lambda n: [n.output(r) for r in [x(n)] * 2] and (), "'x' is taken by the out"),
        (lambda n: [branch(n, x(n), near="x")], "near= takes what a branch returned."),
        *(
            (lambda n, on=on: [branch(n, x(n), on=on)], f"branch 'a': on={on!r}: ")
            for on in ([], None, 3, "", "gpu:-1", "gpu:x", ["gpu:0", 4])
        ),
    ],
)
def test_fault_of_a_declaration_is_told(declare, words):
    assert words in faults(declare)


def test_branches_that_lead_nowhere_are_told_by_their_last():
    def declare(net):
        net.branch("b", net.branch("a", start := x(net), BODY), BODY)
        return [start]

    assert re.findall("branch '(.)'", faults(declare)) == ["b"]


def test_all_faults_come_at_once_with_their_lines():
    def declare(net):
        net.branch("a", x(net), BODY, on="gpx:1")
        a = net.branch("a", x(net, "y"), BODY)
        net.merge("alone", [a], BODY)
        net.output("a")

    text = faults(declare)
    assert text.startswith("net 'broken' has ")
    for words in ("on='gpx:1'", "the name 'a' is taken", "merge 'alone' joins 1 input"):
        assert words in text
    assert len(set(re.findall(r"test_declare\.py:(\d+): ", text))) >= 4


A, NEAR = {"on": "gpu:0"}, {"near": "a"}
BESIDE = {"near": "c", "apart": "b"}
BOUND = r"\.py:\d+: 'c' must be apart from 'a', but near= binds them to one device"
SHARE = r"\.py:\d+: near= binds .* share a device: 'a' on gpu:0; 'c' on gpu:1"


@pytest.mark.parametrize(
    ("constraints", "said"),
    [
        (({}, NEAR, {"near": "b", "apart": "a"}), BOUND),
        ((A, NEAR, {"on": "gpu:1", "near": "b"}), SHARE),
        ((A, A | {"apart": "a"}), "'b' must be apart from 'a', but both are on gpu:0"),
        ((A, NEAR, A, BESIDE), "'d' must be apart from 'b', but both are on gpu:0"),
        ((A, A | NEAR, {"apart": "a", "on": "gpu:1"}, {"near": "c"}), "^$"),
    ],
)
def test_conflicting_constraints_are_told(constraints, said):
    """Near binds to one device, however long the chain; a neighbour's pin counts."""
    net = sn.Net("constrained")
    refs, feed = {}, x(net)
    for letter, given in zip("abcd", constraints):
        named = {word: refs.get(value, value) for word, value in given.items()}
        refs[letter] = net.branch(letter, feed, BODY, **named)
        net.output(refs[letter])
    assert re.search(said, "\n".join(net.faults()))


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


MACHINE = """
link = "25 GB/s"
latency = "5 us"
device = [
    {name = "gpu:0", preset = "a100"},
    {name = "gpu:1", memory = "16 GiB", speed = "19.5 TFLOPS"},
    {name = "worker:0/CPU", memory = "1.5 kB"},
]
links = [
    {between = ["gpu:0", "gpu:1"], bandwidth = "0.3 TB/s"},
    {between = ["gpu:0", "worker:0/cpu"], latency = "7 \u03bcs"},
]
"""


def test_load_reads_devices_and_links(tmp_path):
    path = tmp_path / "box.toml"
    path.write_text(MACHINE, "utf-8-sig")  # as editors on Windows do
    box = Cluster.load(path)
    assert [device.name for device in box] == ["gpu:0", "gpu:1", "worker:0/cpu:0"]
    assert [device.memory_bytes for device in box] == [80 * 10**9, 16 * 2**30, 1500]
    assert box["gpu:1"].flops_per_second == 19.5e12
    assert box.home.name == "worker:0/cpu:0"  # there is no CPU of this machine
    assert Cluster.of("worker:0/cpu", "cpu").home.name == "cpu:0"
    assert box.link("gpu:1", "gpu:0").bytes_per_second == 300e9
    assert box.link("gpu:1", "worker:0/cpu:0").bytes_per_second == 25e9
    assert box.link("gpu:1", "worker:0/cpu:0").latency_seconds == pytest.approx(5e-6)
    assert box.link("worker:0/cpu:0", "gpu:0").bytes_per_second == 25e9
    for spelled in ("/gpu:1", "GPU:1", "/device:GPU:1", "/job:localhost/GPU:1"):
        assert box[spelled].name == "gpu:1"
    with pytest.raises(ValueError, match="path= must be str or Path"):
        Cluster.load(0)


def test_a_written_cluster_is_the_same_when_read(tmp_path):
    device = Device.of("gpu", preset="V100", target="/device:CPU:1", stand_in=True)
    links = Link("*", "*", 1e9, 4e-4, 5e-5, 7e-10), Link("gpu:0", "cpu:0", 1e9)
    links += Link("cpu:0", "gpu:0", 2e9), Link("*", "gpu:0", 1e9)
    links += (Link("gpu:0", "*", 1e9),)
    box = Cluster((device, Device.of("cpu")), links, (Host("client:0", "my_host_1:1"),))
    write_cluster(box, tmp_path / "box.toml")
    assert Cluster.load(tmp_path / "box.toml") == box


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
