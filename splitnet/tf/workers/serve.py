"""A worker process: TensorFlow's server, until it is killed."""

import os
import resource
import signal
import socket
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from splitnet.core.cluster import CLIENT, Cluster, Host
from splitnet.core.errors import ConfigError, format_bytes
from splitnet.tf.workers.network_namespace import ADVICE, open_interfaces

_NO_PROXY = "no_grpc_proxy"  # gRPC reads it in small letters
VERSION_MARK = "splitnet "  # then TensorFlow's version; a process name has 15 letters
READY = b"ready"  # then, if memory is limited, the bytes that are left of it


def serve(
    cluster: Cluster,
    index: int,
    *,
    core: int | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
    allow_remote: bool = False,
) -> None:
    """Serve as a cluster's worker of that number; returns never.

    `threads` are those of one operation, and of operations side by side; a worker
    pinned to a `core` has one. `memory_bytes` limit all that this program needs.
    """
    workers = {h.task: h for h in cluster.hosts if h.job == "worker"}
    if index not in workers:
        known = ", ".join(host.name for host in workers.values())
        raise ConfigError(
            f"the cluster has no worker {index}. Workers with an address in [hosts]: "
            f"{known or 'none'}."
        )
    me = workers[index]
    listen(cluster, me, allow_remote=allow_remote)
    if core is not None:
        os.sched_setaffinity(0, {core})
        threads = threads or 1
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    import tensorflow as tf

    server = tf.distribute.Server(
        spec_of(cluster.hosts),
        job_name=me.job,
        task_index=me.task,
        config=tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads or 0,
            inter_op_parallelism_threads=threads or 0,
        ),
    )
    # A client of any version can read this.
    Path("/proc/self/comm").write_text(f"{VERSION_MARK}{tf.__version__}"[:15], "ascii")
    room = b"" if memory_bytes is None else b" %d" % limit_memory(memory_bytes)
    sys.stdout.buffer.write(READY + room + b"\n")
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python handles no signal in a join
    server.join()


def limit_memory(count: int) -> int:
    """Let this program's resident memory not rise above `count` bytes; what is left.

    The kernel limits what a program may have reserved. Programs reserve more than they
    use, so what is reserved already is allowed beyond the limit.
    """
    held = psutil.Process().memory_info()
    left = count - held.rss
    if left <= 0:
        raise ConfigError(
            f"a memory limit of {format_bytes(count)} leaves nothing: TensorFlow's "
            f"server alone holds {format_bytes(held.rss)}. Allow more."
        )
    resource.setrlimit(resource.RLIMIT_DATA, (held.data + left, held.data + left))
    return left


def spec_of(hosts: Iterable[Host]) -> Any:
    """The cluster in TensorFlow's form, the client included.

    A client that is not named gets another port each time it connects, while workers
    keep the old one.
    """
    import tensorflow as tf

    jobs: dict[str, dict[int, str]] = {}
    for host in hosts:
        jobs.setdefault(host.job, {})[host.task] = host.address
    return tf.train.ClusterSpec(jobs)


def listen(cluster: Cluster, host: Host | None, *, allow_remote: bool) -> None:
    """Refuse to listen where other hosts could connect, or at a host's port in use.

    Lets TensorFlow call the cluster's hosts past a web proxy that is set for all.
    """
    allowed = allow_remote or os.environ.get("SPLITNET_ALLOW_REMOTE") == "1"
    if not allowed and (interfaces := open_interfaces()):
        raise ConfigError(
            "TensorFlow listens on every interface, without a password, and whoever "
            "reaches it can run what they like here. This machine can be reached over "
            f"{', '.join(interfaces)}. {ADVICE}"
        )
    names = [one.address.rpartition(":")[0].strip("[]") for one in cluster.hosts]
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    known = [name for name in before.split(",") if name]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*known, *names]))
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
