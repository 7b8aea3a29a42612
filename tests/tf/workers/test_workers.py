"""Worker processes: who reaches them, what they refuse, how they end."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

from splitnet.core.cluster import Cluster, Host
from splitnet.core.errors import ConfigError, DeviceError, WorkerError
from splitnet.tf.internals import tf_api
from splitnet.tf.workers import connect, start
from splitnet.tf.workers.connect import probe
from splitnet.tf.workers.start import limit_memory, listen
from tests.tf.story import story


def test_workers_refuse_calls_from_outside(tmp_path):
    """No address of this machine reaches a worker that answers inside.

    `up` reports a worker that is killed, passes on the signal that ends it, and the
    program's exit code.
    """
    program = (
        "import os, signal, sys, splitnet as sn\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "c = sn.Cluster.load(os.environ['SPLITNET_CLUSTER'])\n"
        "from splitnet.tf.workers.connect import probe\n"
        "print(c.hosts[1].address, probe(c.hosts[1:])[0].state, flush=True)\n"
        "sys.stdin.readline()\n"
        "import psutil\n"
        "for one in psutil.Process().parent().children():\n"
        "    if one.pid != os.getpid(): one.kill()\n"
        "import time; time.sleep(2)  # until the kernel has ended it\n"
        "print('killed', flush=True)\n"
        "signal.pause()\n"
    )
    up = [sys.executable, "-m", "splitnet", "cluster", "up", "--workers", "1", "--"]
    with subprocess.Popen(
        [*up, sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        address, inside = process.stdout.readline().split()
        port = address.rpartition(":")[2]
        own = ["127.0.0.1", "localhost", *_addresses()]
        outside = [f.state for f in probe(Host("w:0", f"{a}:{port}") for a in own)]
        process.stdin.write("go on\n")
        process.stdin.flush()
        assert process.stdout.readline() == "killed\n"
        process.terminate()
        reported = process.stderr.read()
        process.wait(30)

    assert inside == "healthy"
    assert set(outside) == {"unreachable"}
    assert "splitnet: worker 0 ended by signal 9" in reported
    assert process.returncode == 3


RUN = (
    "import os, sys; from splitnet.cli.worker_commands import run_program\n"
    "sys.exit(run_program(sys.argv[1:], os.environ)[0])"
)


def test_a_program_ends_with_what_runs_it_and_says_how():
    """`cluster up` and `run`, killed with no time to clean up, leave no program.

    Of a program that a signal ended they say so as a shell does.
    """
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", RUN, sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
        assert process.stdout.read() == ""  # ends when nobody can write any more

    assert not Path(f"/proc/{pid}/exe").exists()
    done = subprocess.run(
        [sys.executable, "-c", RUN, "sh", "-c", "kill -9 $$"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 128 + signal.SIGKILL


def test_workers_refuse_a_limit_that_leaves_nothing():
    """TensorFlow's server needs memory for itself; the refusal says how much."""
    with pytest.raises(ConfigError, match=r"leaves nothing.*alone holds"):
        limit_memory(2**20)


def _addresses():
    found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    return sorted({entry[4][0] for entry in found})


def test_workers_end_with_their_owner_and_bear_no_threads(tmp_path):
    """A killed owner, who can clean up nothing, leaves no orphan.

    Threads that run already would keep the open network; nor are there 65 workers.
    """
    answer = story(
        """
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.write(writer, str(sn.local_workers(1).pid(0)).encode())
            time.sleep(600)
        worker = int(os.read(reader, 20))
        answer["before"] = alive(worker)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        deadline = time.monotonic() + 10
        while alive(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        answer["after"] = alive(worker)
        import threading
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        answer["said"] = said(lambda: sn.local_workers(1))
        answer["many"] = said(lambda: sn.local_workers(65))
        """,
        tmp_path,
    )

    told, many = answer.pop("said"), answer.pop("many")
    assert answer == {"before": True, "after": False, "stderr": ""}
    assert "2 threads run already" in told
    assert "splitnet cluster up" in told
    assert "int >= 1 and <= 64" in many


HOSTS = {"client:0": "127.0.0.1:20001", "worker:0": "127.0.0.1:20002"}


def box(**hosts):
    devices = Cluster.of("cpu", "worker:0/cpu:0").devices
    told = hosts or HOSTS
    return Cluster(devices, (), tuple(map(Host, told, told.values())))


def test_connect_names_what_is_missing(monkeypatch):
    """Workers that do not answer, addresses, the cluster itself, or an early call.

    Joining later would invalidate everything that exists.
    """
    monkeypatch.setattr(connect, "started", lambda: False)
    with pytest.raises(WorkerError, match="1 of 1 workers did not answer"):
        connect.connect(box(), wait_seconds=0.2, allow_remote=True)
    with pytest.raises(ConfigError, match=r"no address for client:0, worker:0\."):
        connect.connect(Cluster.of("worker:0/cpu:0"))
    with pytest.raises(ConfigError, match="SPLITNET_CLUSTER"):
        connect.connect()
    monkeypatch.setattr(connect, "started", lambda: True)
    with pytest.raises(ConfigError, match="TensorFlow has already started"):
        connect.connect(box(), allow_remote=True)


def test_isolate_says_which_part_the_system_refuses(monkeypatch):
    """Some systems make a user namespace and then refuse to give it any rights."""

    class Refusing:
        def __init__(self, *parts):
            raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(start, "open_interfaces", lambda: ["eth0"])
    monkeypatch.setattr(start, "Path", Refusing)
    monkeypatch.setattr(start, "_call", lambda name, flags: int(flags == 0x40000000))
    monkeypatch.setattr(start.psutil.Process, "num_threads", lambda _: 1)

    with pytest.raises(
        ConfigError, match="namespaces: Operation not permitted.*cluster up"
    ):
        start.isolate()


def test_worker_refuses_an_open_network_and_a_port_in_use(monkeypatch):
    """It says what that exposes, and goes no further; so for a number of no worker."""
    monkeypatch.setattr(start, "open_interfaces", lambda: ["eth0"])
    with pytest.raises(ConfigError, match=r"(?s)every interface.*eth0.*--allow-remote"):
        listen(box(), None, allow_remote=False)
    with socket.create_server(("127.0.0.1", 0)) as plug:
        address = f"127.0.0.1:{plug.getsockname()[1]}"
        used = box(**HOSTS | {"worker:0": address})
        with pytest.raises(ConfigError, match=r"worker:0 cannot listen at 127.*in use"):
            listen(used, used.hosts[1], allow_remote=True)
    listen(used, used.hosts[1], allow_remote=True)
    with pytest.raises(ConfigError, match=r"no worker 3.*worker:0"):
        start.serve(box(), 3)


def test_hosts_report_every_fault_at_once():
    told = {"Worker": "a:1", "worker:0": "a:99999", "worker:2": "b:1", "x:0": "b:1"}
    with pytest.raises(DeviceError) as caught:
        Cluster(Cluster.of("cpu").devices, (), tuple(map(Host, told, told.values())))

    for fault in (
        "'Worker' is not named",
        "a port from 1 to 65535",
        "address 'b:1' is repeated",
        "numbered from 0 without a gap",
    ):
        assert fault in str(caught.value)


def test_probe_tells_unreachable_from_unresponsive():
    """Nobody listens, or what listens never answers."""
    with socket.create_server(("127.0.0.1", 0)) as plug:
        host = Host("worker:0", f"127.0.0.1:{plug.getsockname()[1]}")
        [silent] = probe([host], timeout_seconds=0.3)
    [gone] = probe([host], timeout_seconds=2.0)

    assert (silent.state, gone.state) == ("unresponsive", "unreachable")
    assert "is unresponsive" in str(silent)


def test_failures_without_a_lost_worker_say_so():
    """One that came back has lost what it held."""
    connection = connect.Connection(Cluster.of("cpu"), "given", 0)

    words = r"\(gone and more\).*All are healthy now"
    with pytest.raises(WorkerError, match=words), connection:
        raise tf.errors.AbortedError(None, None, "gone\nand more")


def test_workers_that_do_not_start_are_named(tmp_path):
    (tmp_path / "worker-0.log").write_text("out of order\n")
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    workers = start.LocalWorkers(Cluster.of("cpu"), tmp_path / "a.toml", [process])
    with process, pytest.raises(ConfigError, match="worker 0 ended with code 3: out"):
        workers.room([0])


def test_an_operation_that_failed_before_is_warned_of(monkeypatch):
    """Its error would fail every later step; that a worker is lost is an error."""
    failed = [
        tf.errors.ResourceExhaustedError(None, None, "OOM of a tensor"),
        tf.errors.UnavailableError(None, None, "gone"),
    ]

    def wait():
        raise failed.pop(0)

    monkeypatch.setattr(connect, "started", lambda: True)
    monkeypatch.setattr(tf_api, "wait_for_eager_operations", wait)
    cleared = []
    clear = "async_clear_error"
    monkeypatch.setattr(tf.experimental, clear, lambda: cleared.append(True))
    with pytest.warns(UserWarning, match="outside of any function failed: OOM of a"):
        connect.wait_for_workers()
    with pytest.raises(tf.errors.UnavailableError):
        connect.wait_for_workers()
    assert cleared == [True]
