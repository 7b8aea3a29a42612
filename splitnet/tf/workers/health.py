"""Health of workers: asked over a connection of our own, with a time limit.

TensorFlow itself waits without limit for a worker that hangs, and so does its own
health check. The same request to the same server by plain gRPC has a deadline.
"""

import os
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

from splitnet.core.cluster import Cluster, Host

_NO_PROXY = "no_grpc_proxy"  # gRPC reads it in small letters
_STATES = {"OK": "healthy", "DEADLINE_EXCEEDED": "unresponsive"}
_REASONS = {
    "unresponsive": ": no answer for {seconds:.1f} s; the process hangs or is stopped, "
    "or the network does",
    "unreachable": ": no worker listens there; it died, was not started, or the "
    "address is wrong",
}


@dataclass(frozen=True, slots=True)
class Health:
    """State of a worker: "healthy", "unresponsive" (no answer) or "unreachable"."""

    host: Host
    state: str
    seconds: float

    @property
    def words(self) -> str:
        """The state as a clause of a message."""
        reason = _REASONS.get(self.state, "").format(seconds=self.seconds)
        return f"{self.host.name} ({self.host.address}) is {self.state}{reason}"


def workers_of(cluster: Cluster) -> list[Host]:
    """The workers that have a device: `Cluster.without` leaves others out."""
    used = {device.host for device in cluster}
    return [h for h in cluster.hosts if h.job == "worker" and h.name in used]


def probe(hosts: Iterable[Host], *, timeout_seconds: float = 2.0) -> list[Health]:
    """Ask all these workers at once for their state, within the time limit."""
    import grpc

    began, asked = time.monotonic(), []
    for host in hosts:
        no_proxy = [("grpc.enable_http_proxy", 0)]
        channel = grpc.insecure_channel(host.address, options=no_proxy)
        ask = channel.unary_unary("/tensorflow.WorkerService/GetStatus")
        asked.append((host, channel, ask.future(b"", timeout=timeout_seconds)))
    found = []
    for host, channel, answer in asked:
        state = _STATES.get(answer.code().name, "unreachable")  # code() waits
        found.append(Health(host, state, time.monotonic() - began))
        channel.close()
    return found


def bypass_proxy(hosts: Iterable[Host]) -> None:
    """Let TensorFlow call these hosts directly, past a web proxy set for all."""
    names = [host.address.rpartition(":")[0].strip("[]") for host in hosts]
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    known = [name for name in before.split(",") if name]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*known, *names]))


def close_connections(address: str) -> None:
    """Close this program's TCP connections to "host:port".

    TensorFlow has no way to give up on a worker, but a connection that ends makes it
    raise `UnavailableError` at once. Linux only.
    """
    host, _, port = address.rpartition(":")
    theirs = {
        (str(entry[4][0]).removeprefix("::ffff:"), entry[4][1])
        for entry in socket.getaddrinfo(host.strip("[]"), int(port))
    }
    for connection in psutil.Process().net_connections("tcp"):
        peer = connection.raddr
        if not peer or (peer.ip.removeprefix("::ffff:"), peer.port) not in theirs:
            continue
        # It may be closed meanwhile.
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fd)) as plug:
            plug.shutdown(socket.SHUT_RDWR)


def is_about_workers(error: BaseException) -> bool:
    """Whether TensorFlow may raise this because a worker is lost."""
    from tensorflow import errors

    kinds = (errors.UnavailableError, errors.AbortedError, errors.CancelledError)
    if isinstance(error, (*kinds, errors.DeadlineExceededError)):
        return True
    wrong = isinstance(error, errors.InvalidArgumentError)
    return wrong and "remote_handle" in str(error)
