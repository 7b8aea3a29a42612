"""Jobs of many hosts: where the cluster comes from, the files that start one."""

import json
import os
import signal
import sys

import kubernetes_validate
import pytest
import yaml

from splitnet.core.errors import ConfigError
from splitnet.tf.workers.connect import job_of
from tests.child import run

TF_CONFIG = {
    "cluster": {"chief": ["a:2222"], "worker": ["b:2222", "c:2222"]},
    "task": {"type": "worker", "index": 1},
}
BATCH = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}
BATCH |= {"SLURM_TASKS_PER_NODE": "1(x2)", "SLURMD_NODENAME": "n1"}
SLURM = BATCH | {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n10"}
SLURM |= {"SLURM_STEP_NODELIST": "n[2,3,10]", "SLURM_STEP_NUM_TASKS": "3"}
SLURM |= {"SLURM_STEP_TASKS_PER_NODE": "1(x3)", "SLURM_GPUS_PER_NODE": "a100:2"}
SLURM |= {"SPLITNET_CLIENT": "n2:2222"}
PODS = {"SPLITNET_STATEFUL_SET": "train-worker", "HOSTNAME": "train-worker-1"}
PODS |= {"SPLITNET_SERVICE": "train", "SPLITNET_WORKERS": "2"}
PODS |= {"SPLITNET_CLIENT": "train-client.train:2222"}
CONFIG = {"TF_CONFIG": json.dumps(TF_CONFIG), "SPLITNET_GPUS_PER_HOST": "2"}


@pytest.mark.parametrize(
    ("environ", "origin", "mine", "hosts"),
    [
        (CONFIG | SLURM | PODS, "TF_CONFIG", "c:2222", "a:2222 b:2222 c:2222"),
        # A worker is found by its own name: Slurm counts hosts by number.
        (PODS | SLURM, "Slurm's", "n10:2223", "n2:2222 n2:2223 n3:2223 n10:2223"),
        (
            PODS | {"SPLITNET_CLUSTER": "not read"},
            "StatefulSet",
            "train-worker-1.train:2223",
            "train-client.train:2222 train-worker-0.train:2223 "
            "train-worker-1.train:2223",
        ),
    ],
)
def test_job_of_finds_hosts_and_which_of_them_this_is(environ, origin, mine, hosts):
    """By TF_CONFIG, Slurm, or Kubernetes' stable names, in this order."""
    job = job_of(environ)
    address = {host.name: host.address for host in job.cluster.hosts}
    assert origin in job.origin
    assert address.get(f"worker:{job.index}") == mine
    assert set(address.values()) == set(hosts.split())
    assert address["client:0"] == hosts.split()[0]
    assert "SLURM_STEP_NODELIST" not in os.environ


def test_job_of_describes_gpus_and_links():
    """Their number and model are the job's; links within a host are the faster."""
    for job, size in ((SLURM, 80e9), (SLURM | {"SPLITNET_GPU_PRESET": "h200"}, 141e9)):
        assert job_of(job).cluster["worker:0/gpu:1"].memory_bytes == size
    link = job_of(CONFIG).cluster.link
    inside, between = (link("worker:0/gpu:0", f"worker:{k}/gpu:1") for k in (0, 1))
    assert inside.bytes_per_second > between.bytes_per_second


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "which cluster"),
        ({"TF_CONFIG": "{"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": "[]"}, "TF_CONFIG cannot be read"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["b:1"]}}'}, "a chief.*found: .*worker"),
        ({"TF_CONFIG": '{"cluster": {"chief": ["a"], "worker": "b"}}'}, "each a list"),
        (SLURM | {"SLURM_STEP_NUM_TASKS": "9"}, "Slurm's variables cannot be read"),
        (SLURM | {"SLURM_GPUS_PER_NODE": "many"}, "_PER_NODE must be a number"),
        (PODS | {"SPLITNET_WORKERS": "two"}, "variables of a StatefulSet"),
    ],
)
def test_job_of_refuses(environ, words):
    with pytest.raises(ConfigError, match=words):
        job_of(environ)


KUBERNETES = "launch --engine kubernetes --image me/train:1 --name train"


def test_manifest_is_valid_and_admits_its_pods_only(cli):
    """Against Kubernetes' published schemas; every pod gets the job's variables."""
    words = f"{KUBERNETES} --gpus-per-node 4 --preset A100 -- python $(A)$$é😀.py"
    documents = list(yaml.safe_load_all(cli(words).out))
    for document in documents:
        kubernetes_validate.validate(document, "1.30", strict=True)
    kinds = {document["kind"]: document["spec"] for document in documents}
    policy = kinds["NetworkPolicy"]
    assert policy["ingress"] == [{"from": [{"podSelector": policy["podSelector"]}]}]
    pods = [kinds[kind]["template"]["spec"] for kind in ("StatefulSet", "Job")]
    assert pods[1]["containers"][0]["command"] == ["python", "$$(A)$$$$é😀.py"]
    for pod, name in zip(pods, ("train-worker-1", "train-client")):
        variables = {v["name"]: v["value"] for v in pod["containers"][0]["env"]}
        job = job_of(variables | {"HOSTNAME": name})
        assert job.index == {"train-worker-1": 1}.get(name)
        assert len(job.cluster.of_kind("gpu")) == 8
        assert variables["SPLITNET_ALLOW_REMOTE"] == "1"


def test_launch_refuses_all_faults_at_once(cli):
    said = cli("launch --engine kubernetes --name A_ --preset X", 2).err
    for fault in ("name a command", "--name is a-z", "no preset 'X'", "needs --image"):
        assert fault in said


def ran(command, folder, *, code=0, **programs):
    """A command's end; it finds splitnet, and first these programs in its folder."""
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return run(*command, code=code, cwd=folder, seconds=240, PATH=path)


SRUN = """#!/bin/sh
# As Slurm's, of the step's second task, which runs on another host than the program.
shift
export SLURMD_NODENAME=n2
SLURM_PROCID=1 SLURM_LOCALID=0 SLURM_STEP_NODELIST=$SLURM_JOB_NODELIST \\
SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=$SLURM_TASKS_PER_NODE exec "$@"
"""
SERVES = """#!/bin/sh
echo "$@" > command
env -0 > written && mv written worker
exec sleep 60
"""
FAILS_ONCE = """#!/bin/sh
until [ -e worker ]; do sleep 0.1; done
env -0 > client
[ -e failed ] || { touch failed; rm worker; exit 3; }
"""


def test_a_job_of_slurm_is_retried_and_all_know_its_cluster(tmp_path, cli, monkeypatch):
    """Worker and program start twice, and are told the same cluster."""
    script = cli("launch --max-restarts 1 -- train").out
    assert "GPUS" not in script  # those that `sbatch --gpus-per-node` grants count
    for name, value in BATCH.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("BASH_ENV", "late")  # to look when the program has ended
    programs = {"job": script, "srun": SRUN, "splitnet": SERVES, "train": FAILS_ONCE}
    programs["late"] = 'kill() { [ "$1" != -0 ] || sleep 0.5; builtin kill "$@"; }'
    done = ran([tmp_path / "job"], tmp_path, **programs)
    assert done.stdout == ""
    assert done.stderr.count("attempt 0 ended with code 3\n") == 1
    assert (tmp_path / "command").read_text() == "worker\n"
    jobs = []
    for name in ("worker", "client"):
        lines = (tmp_path / name).read_text().split("\0")[:-1]
        jobs.append(job_of(dict(line.split("=", 1) for line in lines)))
    assert [job.index for job in jobs] == [1, None]
    assert jobs[0].cluster == jobs[1].cluster
    hosts = [host.address for host in jobs[0].cluster.hosts]
    assert hosts == ["n1:2222", "n1:2223", "n2:2223"]


PROGRAM = """
import json, sys
sys.modules["sklearn"] = None  # Keras imports it for wrappers that nobody uses here
import splitnet as sn
connection = sn.connect()
import numpy as np
from keras import layers

rng = np.random.default_rng(0)
x, y = rng.normal(size=(80, 16)), rng.normal(size=(80, 1))
net = sn.Net("towers")
on = ["worker:0/cpu:0", "worker:1/cpu:0"]
low = net.towers("low", net.input("x", (16,)), [layers.Dense(32, "relu")], on=on)
net.output(net.branch("head", low, layers.Dense(1), on="cpu:0"))
plan = sn.plan(net, connection.cluster, batch=32)
placed = sn.emit(net, plan, microbatches=2)
losses = []
for model in (placed, sn.unplace(placed)):
    model.compile("sgd", "mse")
    done = model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    losses.append(done.history["loss"])
devices = sorted(set(plan.device_of.values()))
json.dump([devices, *losses], open("answer", "w"))
"""
PODS_RUN = """
# As Kubernetes: a process for each pod, with its variables, name and address.
import ctypes, json, os, subprocess, sys
from splitnet.tf.workers.start import isolate
isolate()
libc = ctypes.CDLL(None)
assert libc.unshare(0x20000) == 0  # a mount namespace, private from here on
assert libc.mount(b"none", b"/", None, 0x44000, None) == 0
assert libc.mount(b"hosts", b"/etc/hosts", None, 0x1000, None) == 0
from pyroute2 import IPRoute
ip = IPRoute()
ip.link("add", ifname="bridge", kind="bridge")
bridge = ip.link_lookup(ifname="bridge")[0]
ip.link("set", index=bridge, state="up")
kinds = {one["kind"]: one["spec"] for one in json.load(open("job.json"))}
tasks = {1: {"type": "chief", "index": 0}, 3: {"type": "worker", "index": 1}}
workers = ["train-worker-0.train:2223", "train-worker-1.train:2223"]
config = {"cluster": {"chief": ["train-client.train:2222"], "worker": workers}}
def start(kind, name, number):
    (box,) = kinds[kind]["template"]["spec"]["containers"]
    env = {one["name"]: one["value"] for one in box["env"]} | {"HOSTNAME": name}
    if number != 2:  # all but one worker read the variable of Kubeflow instead
        env |= {"TF_CONFIG": json.dumps(config | {"task": tasks[number]})}
    pipe = subprocess.PIPE
    command = [sys.executable, "pod.py", str(number), *box["command"]]
    pod = subprocess.Popen(command, env=os.environ | env, stdin=pipe, stdout=pipe)
    assert pod.stdout.readline() == b"has a network\\n"
    peer = {"ifname": "eth0", "net_ns_fd": f"/proc/{pod.pid}/ns/net"}
    ip.link("add", ifname=f"veth{number}", kind="veth", peer=peer)
    end = ip.link_lookup(ifname=f"veth{number}")[0]
    ip.link("set", index=end, master=bridge, state="up")
    pod.stdin.close()
    return pod
count = kinds["StatefulSet"]["replicas"]
workers = [start("StatefulSet", f"train-worker-{k}", k + 2) for k in range(count)]
client = start("Job", "train-client", 1)
client.wait()
for worker in workers:
    worker.kill()
sys.exit(client.wait())
"""
POD = """
# A pod: a network of its own with one address, then the container's command.
import ctypes, os, sys
from pyroute2 import IPRoute
assert ctypes.CDLL(None).unshare(0x40000000) == 0
print("has a network", flush=True)
sys.stdin.read()  # until it is connected
with IPRoute() as ip:
    ends = {name: ip.link_lookup(ifname=name)[0] for name in ("lo", "eth0")}
    ip.addr("add", index=ends["eth0"], address=f"10.0.0.{sys.argv[1]}", prefixlen=24)
    for end in ends.values():
        ip.link("set", index=end, state="up")
os.execvp(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.slow
def test_pods_of_the_manifest_train(tmp_path, cli):
    """As one device does, by the pods' names, or by TF_CONFIG, which comes first."""
    words = f"{KUBERNETES} -- {sys.executable} train.py"
    documents = list(yaml.safe_load_all(cli(words).out))
    names = ("train-client", "train-worker-0", "train-worker-1")
    hosts = [f"10.0.0.{k} {name}.train" for k, name in enumerate(names, 1)]
    files = {
        "job.json": json.dumps(documents),
        "hosts": "\n".join(["127.0.0.1 localhost", *hosts]),
        "pod.py": POD,
        "train.py": PROGRAM,
        "splitnet": f'#!/bin/sh\nexec {sys.executable} -m splitnet "$@"\n',
    }
    done = ran([sys.executable, "-c", PODS_RUN], tmp_path, **files)
    devices, losses, plain = json.loads((tmp_path / "answer").read_text())
    assert devices == ["cpu:0", "worker:0/cpu:0", "worker:1/cpu:0"]
    assert losses == pytest.approx(plain, rel=1e-5)
    for origin in ("the variables of a StatefulSet", "TF_CONFIG"):
        assert f"cluster of 3 hosts: {origin}" in done.stderr


ATTEMPTS = """
import contextlib, os, pathlib, signal, socket, subprocess, sys, time
import psutil
from splitnet.core.cluster import Cluster
from splitnet.tf.workers.connect import probe, workers_of

file = os.environ["SPLITNET_CLUSTER"]
hosts = workers_of(Cluster.load(file))
print(*(f"{one.host.name} {one.state}" for one in probe(hosts)), flush=True)
before = pathlib.Path("attempts")
attempt = before.stat().st_size if before.exists() else 0
before.write_text("." * (attempt + 1))
workers = [p for p in psutil.Process().parent().children() if p.pid != os.getpid()]
lost = max(workers, key=lambda worker: worker.cmdline()[-1])
lost.kill()
while lost.status() != psutil.STATUS_ZOMBIE or lost.num_threads() > 1:
    time.sleep(0.01)  # its other threads end after the first
if attempt == 1:
    taken = None
    while taken is None:  # until the kernel has closed it
        with contextlib.suppress(OSError):
            taken = socket.create_server(("", int(hosts[-1].address[10:])))
    taken.set_inheritable(True)
    quiet = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
    subprocess.Popen(["sleep", "60"], pass_fds=[taken.fileno()], **quiet)
if attempt == 2:
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
sys.exit(3)
"""


@pytest.mark.slow
def test_run_starts_lost_workers_and_the_program_again(tmp_path):
    """A taken port is left out; a signal is passed on and nothing is tried again."""
    command = [sys.executable, "-m", "splitnet", "run", "--max-restarts", "3"]
    program = ["--workers", "2", "--", sys.executable, "train.py"]
    files = {"train.py": ATTEMPTS}
    done = ran([*command, *program], tmp_path, code=128 + signal.SIGTERM, **files)
    said = done.stderr
    both, one = "worker:0 healthy worker:1 healthy", "worker:0 healthy"
    assert done.stdout.splitlines() == [both, both, one]
    assert said.count("ended with code 3\n") == 2
    assert said.count("worker 1 ended by signal 9") == 2
    assert said.count("worker 0 ended by signal 9") == 1
    assert said.count("it is started again") == 1
    assert said.count("it does not start again and is left out") == 1
    assert "worker:1 cannot listen at 127.0.0.1:" in said
    assert "restart 2 of 3" in said
    assert "restart 3" not in said
