"""Where a cluster's programs are, and who can reach them.

A job's cluster is that of TF_CONFIG, Slurm, Kubernetes or a file: the program that
trains and its workers read the same variables, so that each knows every address.

TensorFlow's server, and its client once it has joined a cluster, listen on every
interface whatever address they are given, and run what anybody asks of them. So workers
of this machine live in a Linux network namespace of their own, which has a loopback
device and no route to anywhere else. Neither root nor a tool is needed.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import psutil

from splitnet.core.cluster import CLIENT, PRESETS, Cluster, Host, Link
from splitnet.core.errors import ConfigError

CLUSTER_VARIABLE = "SPLITNET_CLUSTER"  # the file of the cluster that `up` started
_PORT = "2222"  # the client's; workers listen at the next ones
_BETWEEN_HOSTS = Link("*", "*", 1.2e9, 2e-4)
_Found = tuple[str, Sequence[str], int | None]
"""Address of the client, those of the workers, and which of them this process is."""
_NO_PROXY = "no_grpc_proxy"  # gRPC reads it in small letters
_DIE_WITH_PARENT = 1
_NEW_NET, _NEW_USER = 0x40000000, 0x10000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_ADVICE = (
    "Run the program under `splitnet cluster up --workers N -- python program.py`, "
    "which makes the private network first; or, where other hosts may reach this one "
    "and a firewall or a VPN stands in front, allow it (--allow-remote, "
    "allow_remote=True, in a job SPLITNET_ALLOW_REMOTE=1); see docs/machines.md."
)


def open_interfaces() -> list[str]:
    """Network interfaces, other than loopback, over which others could connect."""
    states = psutil.net_if_stats().items()
    return [name for name, state in states if name != "lo" and state.isup]


def isolate() -> None:
    """Move this program into a private network namespace, if it is not in one.

    What it starts afterwards is there as well. There is no way back: the program can
    no longer reach other hosts, nor they it. Other threads would keep the old network.
    """
    if not open_interfaces():
        return
    threads = psutil.Process().num_threads()
    try:
        if threads > 1:
            raise OSError(
                0,
                f"{threads} threads run already; do it before numpy, Keras "
                "or TensorFlow is imported",
            )
        user, group = os.getuid(), os.getgid()
        if _call("unshare", _NEW_NET):
            if error := _call("unshare", _NEW_NET | _NEW_USER):
                raise OSError(error, os.strerror(error))
            # The same user inside, so that files keep their owners.
            for file, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                Path("/proc/self", file).write_text(text, encoding="ascii")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
            request = struct.pack("16sh14x", b"lo", 0)
            flags = struct.unpack("16sh14x", fcntl.ioctl(plug, _GET_FLAGS, request))[1]
            fcntl.ioctl(plug, _SET_FLAGS, struct.pack("16sh14x", b"lo", flags | _UP))
    except OSError as error:
        raise ConfigError(
            "cannot make a private network for workers, for which Linux must allow "
            f"user namespaces: {error.strerror}. {_ADVICE}"
        ) from None


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    _call("prctl", _DIE_WITH_PARENT, signal.SIGKILL)


def _call(name: str, *arguments: int) -> int:
    """Call the C library; the error number, 0 for none."""
    libc = ctypes.CDLL(None, use_errno=True)
    return ctypes.get_errno() if getattr(libc, name)(*arguments) else 0


def listen(cluster: Cluster, host: Host | None, *, allow_remote: bool) -> None:
    """Refuse to listen where other hosts could connect, or at a host's port in use.

    Lets TensorFlow call the cluster's hosts past a web proxy that is set for all.
    """
    allowed = allow_remote or os.environ.get("SPLITNET_ALLOW_REMOTE") == "1"
    if not allowed and (interfaces := open_interfaces()):
        raise ConfigError(
            "TensorFlow listens on every interface, without a password, and whoever "
            "reaches it can run what they like here. This machine can be reached over "
            f"{', '.join(interfaces)}. {_ADVICE}"
        )
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    names = [one.address.rpartition(":")[0].strip("[]") for one in cluster.hosts]
    names = [*filter(None, before.split(",")), *names]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys(names))
    if host is None:
        return
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:  # as TensorFlow does: on every interface
            plug.bind(("", int(host.address.rpartition(":")[2])))
        except OSError as error:
            joined = host.name == CLIENT
            whose = "program, which has joined this cluster," if joined else "process"
            raise ConfigError(
                f"{host.name} cannot listen at {host.address} ({error.strerror}): "
                f"another {whose} uses the port. End it, or give {host.name} another "
                "address in [hosts]."
            ) from None


# The cluster of a job -------------------------------------------------------------


class Job(NamedTuple):
    """A job's cluster, where it was found, and which worker this process is, if any."""

    cluster: Cluster
    origin: str
    index: int | None = None


def job_of(environ: Mapping[str, str]) -> Job:
    """The cluster that the environment describes; the first of those in the table.

    Else that of the file `SPLITNET_CLUSTER`. `SPLITNET_GPUS_PER_HOST` and
    `SPLITNET_GPU_PRESET` describe the GPUs of each host, where Slurm does not.
    """
    for variable, (read, origin, remedy) in JOB_VARIABLES.items():
        if environ.get(variable):
            try:
                client, workers, index = read(environ)
                return Job(_cluster(client, workers, environ), origin, index)
            except Exception as error:  # of variables, JSON or TensorFlow's resolver
                fault = f"{type(error).__name__}: {error}"
                raise ConfigError(
                    f"{origin} cannot be read ({fault}). {remedy}"
                ) from None
    if path := environ.get(CLUSTER_VARIABLE):
        return Job(Cluster.load(path), f"file {path}")
    raise ConfigError(
        "which cluster? Give one, such as Cluster.load('cluster.toml'), or start the "
        "program with `splitnet cluster up --workers N -- python program.py`, with "
        "`splitnet launch`, or under Slurm. Looked for: "
        f"{', '.join([*JOB_VARIABLES, CLUSTER_VARIABLE])}."
    )


def _tf_config(environ: Mapping[str, str]) -> _Found:
    config = json.loads(environ["TF_CONFIG"])
    task = config.get("task", {})
    mine = int(task["index"]) if task.get("type") == "worker" else None
    return config["cluster"]["chief"][0], config["cluster"]["worker"], mine


def _slurm(environ: Mapping[str, str]) -> _Found:
    """A worker for each task of the step, the client on the job's first host."""
    import tensorflow as tf

    port = int(environ.get("SPLITNET_PORT", _PORT))
    step = {  # the batch script has the variables of the job alone
        "SLURM_PROCID": "0",
        "SLURM_STEP_NODELIST": environ.get("SLURM_JOB_NODELIST", ""),
        "SLURM_STEP_NUM_TASKS": environ.get("SLURM_NTASKS", "1"),
        "SLURM_STEP_TASKS_PER_NODE": environ.get("SLURM_TASKS_PER_NODE", "1"),
    }
    before = dict(os.environ)
    os.environ.update(step | {k: v for k, v in environ.items() if k in step})
    try:
        spec = tf.distribute.cluster_resolver.SlurmClusterResolver(
            port_base=port + 1,
            gpus_per_node=1024,
            gpus_per_task=1,
            auto_set_gpu=False,
        ).cluster_spec()
    finally:
        os.environ.clear()
        os.environ.update(before)
    workers = spec.as_dict()["worker"]
    here = environ.get("SLURMD_NODENAME", socket.gethostname())
    mine = None
    if "SLURM_PROCID" in environ:
        # The resolver sorts hosts by name, Slurm numbers tasks by its own list.
        own = f"{here}:{port + 1 + int(environ.get('SLURM_LOCALID', 0))}"
        mine = workers.index(own) if own in workers else int(environ["SLURM_PROCID"])
    return environ.get("SPLITNET_CLIENT", f"{here}:{port}"), workers, mine


def _stateful_set(environ: Mapping[str, str]) -> _Found:
    """Pods of stable names: NAME-0.SERVICE, NAME-1.SERVICE and so on."""
    name, service = environ["SPLITNET_STATEFUL_SET"], environ["SPLITNET_SERVICE"]
    end = f"{service}:{int(environ.get('SPLITNET_PORT', _PORT)) + 1}"
    workers = [f"{name}-{i}.{end}" for i in range(int(environ["SPLITNET_WORKERS"]))]
    pod, _, number = environ.get("HOSTNAME", "").rpartition("-")
    mine = int(number) if pod == name and number.isdigit() else None
    return environ["SPLITNET_CLIENT"], workers, mine


JOB_VARIABLES = {
    "TF_CONFIG": (
        _tf_config,
        "TF_CONFIG",
        "It needs a chief, which is the program that trains, and workers, which serve "
        'their devices: {"cluster": {"chief": ["a:2222"], "worker": ["b:2222"]}, '
        '"task": {"type": "worker", "index": 0}}.',
    ),
    "SLURM_JOB_ID": (
        _slurm,
        "Slurm's variables",
        "Run the workers by `srun` and the program in the same job, as the script of "
        "`splitnet launch` does.",
    ),
    "SPLITNET_STATEFUL_SET": (
        _stateful_set,
        "the variables of a StatefulSet",
        "SPLITNET_STATEFUL_SET, SPLITNET_SERVICE, SPLITNET_WORKERS and SPLITNET_CLIENT "
        "belong together; `splitnet launch --engine kubernetes` writes them.",
    ),
}
"""Each stands for a job of many hosts, in the order in which they are asked."""


def _cluster(
    client: str, workers: Sequence[str], environ: Mapping[str, str]
) -> Cluster:
    """Devices of equal hosts, their addresses, and usual links in and between hosts."""
    told = ("SPLITNET_GPUS_PER_HOST", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE")
    said = next(filter(None, map(environ.get, told)), "0")
    model, _, count = said.rpartition(":")  # Slurm says "4" or "a100:4"
    if not count.isdigit():
        raise ValueError(f"the number of GPUs of a host is {said!r}")
    known = {name.lower(): name for name in PRESETS}
    preset = environ.get("SPLITNET_GPU_PRESET", known.get(model.lower()))
    jobs = [f"worker:{index}" for index in range(len(workers))]
    kinds = ["cpu:0", *(f"gpu:{number}" for number in range(int(count)))]
    names = ("cpu:0", *(f"{job}/{kind}" for job in jobs for kind in kinds))
    made = Cluster.of(*names, preset=preset if int(count) else None)
    links = [
        replace(made.links[0], source=one.name, target=other.name)
        for one, other in permutations(made, 2)
        if one.host == other.host
    ]
    hosts = tuple(map(Host, [CLIENT, *jobs], [client, *workers]))
    return replace(made, links=(*links, _BETWEEN_HOSTS), hosts=hosts)
