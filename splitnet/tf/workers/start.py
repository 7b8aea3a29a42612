"""Worker processes: start them on this machine, in private, serve as one, end them.

TensorFlow's server, and its client once it has joined a cluster, listen on every
interface whatever address they are given, and run what anybody asks of them. So workers
of this machine live in a Linux network namespace of their own, which has a loopback
device and no route to anywhere else. Neither root nor a tool is needed.
"""

import atexit
import ctypes
import fcntl
import os
import random
import resource
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import psutil
from msgspec import Meta

from splitnet.core.cluster import CLIENT, Cluster, Device, Host, Link
from splitnet.core.errors import ConfigError, format_bytes, parse_quantity
from splitnet.core.serialization import write_cluster
from splitnet.tf.runtime.devices import host_memory_bytes
from splitnet.tf.runtime.logging import hide_remarks, log_filter

VERSION_MARK = "splitnet "  # then TensorFlow's version; a process name has 15 letters
_READY = b"ready"  # then, if memory is limited, the bytes that are left of it
_START_SECONDS = 90.0
_STOP_SECONDS = 2.0
_HEAP = {"MALLOC_TRIM_THRESHOLD_": f"{2**40}", "MALLOC_MMAP_THRESHOLD_": f"{2**25}"}
"""A step frees its activations, and the next one needs them again: they stay mapped."""
_LINK = Link("*", "*", 1.2e9, 4e-4)  # between processes of one machine, over loopback
_NO_PROXY = "no_grpc_proxy"  # gRPC reads it in small letters
_DIE_WITH_PARENT = 1
_NEW_NET, _NEW_USER = 0x40000000, 0x10000000
_SET_FLAGS, _UP = 0x8914, 0x1
_ADVICE = (
    "Run the program under `splitnet cluster up --workers N -- python program.py`, "
    "which makes the private network first; or, where other hosts may reach this one "
    "and a firewall or a VPN stands in front, allow it (--allow-remote, "
    "allow_remote=True, in a job SPLITNET_ALLOW_REMOTE=1); see docs/machines.md."
)


@dataclass(eq=False)
class LocalWorkers(AbstractContextManager["LocalWorkers"]):
    """Running workers; `cluster` has their devices and addresses, `file` is its TOML.

    A context manager: what it started has ended when its block does.
    """

    cluster: Cluster
    file: Path
    processes: list[subprocess.Popen[bytes]]

    def ended(self, index: int) -> str:
        """How a worker ended and what it wrote last; "" while it runs."""
        if (code := self.processes[index].poll()) is None:
            return ""
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        lines = self._log(index).read_text(errors="replace").strip().splitlines()
        return f"worker {index} ended {how}: " + "\n    ".join(lines[-8:])

    def restart(self, index: int) -> str:
        """Start a worker again, or after a second try leave it out; what was done."""
        ended = self.ended(index) or f"worker {index} does not answer"
        faults = dict[str, None]()
        for _ in range(2):
            _end(self.processes[index : index + 1])
            self.start(index, self.processes[index].args)
            try:
                self.room([index])
                return f"{ended}\nit is started again"
            except ConfigError as error:
                faults[str(error)] = None
        self.cluster = self.cluster.without(f"worker:{index}")
        write_cluster(self.cluster, self.file)
        return f"{ended}\nit does not start again and is left out: {'; '.join(faults)}"

    def start(self, index: int, command: Sequence[str]) -> None:
        """Start the process of a worker, and do not wait until it is ready."""
        root = str(Path(__file__).resolve().parents[3])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
        # One thread computes on a core of its own: no need for more heaps.
        heap = _HEAP | ({"MALLOC_ARENA_MAX": "1"} if "--core" in command else {})
        own = {"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with self._log(index).open("wb") as written:
            how: Any = {"stdout": subprocess.PIPE, "stderr": written}
            how |= {"start_new_session": True}  # Ctrl-C is its owner's to handle
            how |= {"preexec_fn": end_with_parent, "env": heap | os.environ | own}
            self.processes[index : index + 1] = [subprocess.Popen(command, **how)]

    def room(self, indices: Iterable[int]) -> dict[str, int]:
        """Wait until these workers are ready; the bytes that limited ones have."""
        deadline = time.monotonic() + _START_SECONDS
        faults, room = list[str](), dict[str, int]()
        for index in indices:
            process, left = self.processes[index], max(deadline - time.monotonic(), 0.0)
            if not select.select([process.stdout], [], [], left)[0]:
                faults.append(f"worker {index} is not ready in {_START_SECONDS:.0f} s")
            elif (said := process.stdout.readline().split())[:1] == [_READY]:
                room |= {f"worker:{index}": int(size) for size in said[1:]}
            else:
                process.wait()
                faults.append(self.ended(index))
        if faults:
            raise ConfigError("workers do not start.", faults)
        return room

    def stop(self) -> None:
        """End all workers, also those that hang; harmless when done twice."""
        _end(self.processes)
        shutil.rmtree(self.file.parent, ignore_errors=True)

    def __exit__(self, *failure: object) -> None:
        self.stop()

    def _log(self, index: int) -> Path:
        return self.file.parent / f"worker-{index}.log"


def _end(processes: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.stdout.close()
        process.terminate()
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        process.kill()  # does nothing if it has ended
        process.wait()


def local_workers(
    count: Annotated[int, Meta(ge=1, le=64)] = 2,
    *,
    pin: bool = False,
    threads: int | None = None,
    memory_limit: object = None,
    allow_remote: bool = False,
) -> LocalWorkers:
    """Start worker processes on this machine, in a network that only it can reach.

    This program moves into that network as well, for good: do it first, before numpy,
    Keras or TensorFlow is imported. Then `sn.connect(workers.cluster)`.

    Args:
        count: how many workers.
        pin: keep worker k on processor core k (modulo the cores there are), with one
            thread.
        threads: threads of each worker; None leaves them to TensorFlow.
        memory_limit: of each worker, such as "2 GB"; more is refused, not swapped.
            TensorFlow's server takes some 0.4 GB of it; `cluster` has what is left.
        allow_remote: stay in the open network. Whoever reaches this machine can then
            run what they like in the workers.

    Raises:
        ConfigError: the private network cannot be made, or a worker does not start.
        DeviceError: an impossible limit.
    """
    limit = None
    if memory_limit is not None:
        limit = round(parse_quantity(memory_limit, "memory limit", "B"))
    if not allow_remote:
        isolate()
    hide_remarks()
    cores, share = sorted(os.sched_getaffinity(0)), host_memory_bytes() // (count + 1)
    names = [CLIENT, *(f"worker:{index}" for index in range(count))]
    addresses = (f"127.0.0.1:{port}" for port in _free_ports(count + 1))
    how = {"memory": share, "preset": "CPU core" if (pin or len(cores) == 1) else "cpu"}
    cpus = ("cpu:0", *(f"{name}/cpu:0" for name in names[1:]))
    devices = tuple(Device.of(cpu, **how) for cpu in cpus)
    cluster = Cluster(devices, (_LINK,), tuple(map(Host, names, addresses)))
    file = Path(tempfile.mkdtemp(prefix="splitnet-"), "cluster.toml")
    workers = LocalWorkers(cluster, file, [])
    atexit.register(workers.stop)  # for programs that do not
    command = [sys.executable, "-m", "splitnet", "worker", "--cluster", str(file)]
    command += ["--threads", str(threads)] if threads else []
    command += ["--memory", str(limit)] if limit else []
    command += ["--allow-remote"] if allow_remote else []
    try:
        write_cluster(cluster, file)
        for index in range(count):
            core = ["--core", str(cores[index % len(cores)])] if pin else []
            workers.start(index, [*command, "--index", str(index), *core])
        room = workers.room(range(count))
        devices = [replace(d, memory_bytes=room.get(d.host, share)) for d in devices]
        workers.cluster = replace(cluster, devices=tuple(devices))
        write_cluster(workers.cluster, file)
    except BaseException:  # leave no process behind, Ctrl-C included
        workers.stop()
        raise
    return workers


def _free_ports(count: int) -> list[int]:
    """Ports that are free now, and that no outgoing call takes meanwhile."""
    found: list[int] = []
    for port in random.sample(range(20000, 32000), 400):
        with socket.socket() as plug, suppress(OSError):
            plug.bind(("", port))
            found.append(port)
    return found[:count]


def open_interfaces() -> list[str]:
    """Network interfaces, other than loopback, over which others could connect."""
    states = psutil.net_if_stats().items()
    return [name for name, state in states if name != "lo" and state.isup]


def isolate() -> None:
    """Move this program, and what it starts later, into a private network namespace.

    There is no way back. Other threads would keep the old network.
    """
    if not open_interfaces():
        return
    threads = psutil.Process().num_threads()
    try:
        if threads > 1:
            early = "do it before numpy, Keras or TensorFlow is imported"
            raise OSError(0, f"{threads} threads run already; {early}")
        user, group = os.getuid(), os.getgid()
        if _call("unshare", _NEW_NET):
            if error := _call("unshare", _NEW_NET | _NEW_USER):
                raise OSError(error, os.strerror(error))
            # The same user inside, so that files keep their owners.
            ids = {"uid_map": f"{user} {user} 1", "gid_map": f"{group} {group} 1"}
            for file, text in ({"setgroups": "deny"} | ids).items():
                Path("/proc/self", file).write_text(text, encoding="ascii")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
            fcntl.ioctl(plug, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP))
    except OSError as error:
        why = f"for which Linux must allow user namespaces: {error.strerror}"
        fault = "cannot make a private network for workers"
        raise ConfigError(f"{fault}, {why}. {_ADVICE}") from None


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
        why = "on every interface, without a password: whoever reaches it can run what"
        over = f"This machine can be reached over {', '.join(interfaces)}"
        raise ConfigError(f"TensorFlow listens {why} they like here. {over}. {_ADVICE}")
    known = os.environ.get(_NO_PROXY) or os.environ.get("no_proxy", "")
    names = [one.address.rpartition(":")[0].strip("[]") for one in cluster.hosts]
    names = filter(None, [*known.split(","), *names])
    os.environ[_NO_PROXY] = ",".join(dict.fromkeys(names))
    if host is None:
        return
    with socket.socket() as plug:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:  # as TensorFlow does: on every interface
            plug.bind(("", int(host.address.rpartition(":")[2])))
        except OSError as error:
            fault = f"{host.name} cannot listen at {host.address} ({error.strerror})"
            why = "another process uses it, such as one that has joined this cluster"
            how = f"End it, or give {host.name} another address in [hosts]"
            raise ConfigError(f"{fault}: {why}. {how}.") from None


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
        here = ", ".join(host.name for host in workers.values()) or "none"
        raise ConfigError(f"the cluster has no worker {index}. In [hosts]: {here}.")
    listen(cluster, workers[index], allow_remote=allow_remote)
    if core is not None:
        os.sched_setaffinity(0, {core})
        threads = threads or 1
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if threads:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    path = Path(__file__).parents[1] / "internals" / "server.py"
    with log_filter():
        server_class, options, version = runpy.run_path(str(path))["server_api"]()
    kinds = ("intra_op_parallelism_threads", "inter_op_parallelism_threads")
    config = options(**dict.fromkeys(kinds, threads or 0))
    server = server_class(spec_of(cluster.hosts), "worker", index, config=config)
    # A client of any version can read this.
    Path("/proc/self/comm").write_text(f"{VERSION_MARK}{version}"[:15], "ascii")
    room = b"" if memory_bytes is None else b" %d" % limit_memory(memory_bytes)
    sys.stdout.buffer.write(_READY + room + b"\n")
    sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Python handles no signal in a join
    server.join()


def limit_memory(count: int) -> int:
    """Let this program's resident memory not rise above `count` bytes; what is left.

    The kernel limits what is reserved: what is so already is allowed beyond the limit.
    """
    held = psutil.Process().memory_info()
    if (left := count - held.rss) <= 0:
        why = f"TensorFlow's server alone holds {format_bytes(held.rss)}; allow more"
        raise ConfigError(f"a limit of {format_bytes(count)} leaves nothing: {why}.")
    resource.setrlimit(resource.RLIMIT_DATA, (held.data + left, held.data + left))
    return left


def spec_of(hosts: Iterable[Host]) -> dict[str, dict[int, str]]:
    """The cluster in TensorFlow's form; a client outside of it has no fixed port."""
    jobs: dict[str, dict[int, str]] = {}
    for host in hosts:
        jobs.setdefault(host.job, {})[host.task] = host.address
    return jobs
