"""Whether a worker answers: asked over a connection of our own, with a time limit.

TensorFlow itself waits for a worker that hangs without any limit, and so does its own
way to ask. The same question put to the same server by plain gRPC has a deadline.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from splitnet.core.hosts import Host

__all__ = ["Health", "probe", "without_proxy"]

_NO_PROXY = "no_grpc_proxy"  # gRPC reads it in small letters
_STATUS = "/tensorflow.WorkerService/GetStatus"


@dataclass(frozen=True, slots=True)
class Health:
    """How a worker was found: "well", "silent" (hangs, or no road) or "gone"."""

    host: Host
    state: str
    seconds: float

    @property
    def words(self) -> str:
        """What was found, as the end of a sentence."""
        where = f"{self.host.name} ({self.host.address})"
        if self.state == "well":
            return f"{where} answers"
        if self.state == "silent":
            return (
                f"{where} took the call and gave no answer for {self.seconds:.1f} s: "
                "the process hangs or is stopped, or the network does"
            )
        return (
            f"{where} cannot be called: no worker listens there; it died, was not "
            "started, or the address is wrong"
        )


def probe(hosts: Iterable[Host], *, timeout_seconds: float = 2.0) -> tuple[Health, ...]:
    """Ask all these workers at once whether they are well; takes the limit at most."""
    import time

    import grpc

    began = time.monotonic()
    asked: list[tuple[Host, Any, Any]] = []
    for host in hosts:
        channel = grpc.insecure_channel(
            host.address, options=[("grpc.enable_http_proxy", 0)]
        )
        ask = channel.unary_unary(_STATUS)
        asked.append((host, channel, ask.future(b"", timeout=timeout_seconds)))
    found = []
    for host, channel, answer in asked:
        code = answer.code()  # waits for it
        state = {"OK": "well", "DEADLINE_EXCEEDED": "silent"}.get(code.name, "gone")
        found.append(Health(host, state, time.monotonic() - began))
        channel.close()
    return tuple(found)


def without_proxy(hosts: Iterable[Host]) -> None:
    """Let TensorFlow call these hosts directly, past a web proxy set for all."""
    names = [host.address.rpartition(":")[0].strip("[]") for host in hosts]
    before = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    known = [name for name in before.split(",") if name]
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys([*known, *names]))
