"""A private network for workers, and what listens where others could connect.

TensorFlow's server, and its client once it has joined a cluster, listen on every
interface whatever address they are given, and run what anybody asks of them. So workers
of this machine live in a Linux network namespace of their own, which has a loopback
device and no route to anywhere else. Neither root nor a tool is needed.
"""

import ctypes
import fcntl
import os
import signal
import socket
import struct
from pathlib import Path

import psutil

from splitnet.core.cluster import CLIENT, Cluster, Host
from splitnet.core.errors import ConfigError

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
