"""Worker processes: who reaches them, what they refuse, how they end."""

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import tensorflow as tf

from splitnet.core.cluster import Cluster, Host
from splitnet.core.errors import ConfigError, DeviceError, WorkerError
from splitnet.tf.internals import tf_api
from splitnet.tf.workers import connect, start
from splitnet.tf.workers.connect import probe
from splitnet.tf.workers.start import LocalWorkers, limit_memory
from tests.child import python
from tests.tf.story import story


def test_workers_refuse_calls_from_outside_and_leave_no_orphan(tmp_path):
    """`up`, killed with no time to clean up, leaves neither worker nor program."""
    program = (
        "import json, os, psutil, splitnet as sn, time\n"
        "from splitnet.tf.workers.connect import probe\n"
        "hosts = sn.Cluster.load(os.environ['SPLITNET_CLUSTER']).hosts[1:]\n"
        "pids = [one.pid for one in psutil.Process().parent().children()]\n"
        "told = [hosts[0].address, probe(hosts)[0].state, pids]\n"
        "print(json.dumps(told), flush=True)\n"
        "time.sleep(600)\n"
    )
    up = [sys.executable, "-m", "splitnet", "cluster", "up", "--workers", "1", "--"]
    with subprocess.Popen(
        [*up, sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        address, inside, pids = json.loads(process.stdout.readline())
        port = address.rpartition(":")[2]
        own = ["localhost", *socket.gethostbyname_ex(socket.gethostname())[2]]
        outside = [f.state for f in probe(Host("w:0", f"{a}:{port}") for a in own)]
        before = list(map(_runs, pids))
        process.kill()
    deadline = time.monotonic() + 10
    while any(map(_runs, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert inside == "healthy"
    assert set(outside) == {"unreachable"}
    assert before == [True, True]
    assert not any(map(_runs, pids))


def _runs(pid):
    return Path(f"/proc/{pid}/exe").exists()


FORKS = """
import os, threading
from subprocess import Popen
from splitnet.tf.workers import connect, start
hosts = [connect.Host(f"worker:{n}", f"127.0.0.1:{29000 + n}") for n in range(3)]
ask = lambda: [connect.probe(hosts) for _ in range(10**6)]
threading.Thread(target=ask, daemon=True).start()
begin = lambda: Popen("true", preexec_fn=start.end_with_parent)
os._exit(any([begin().wait() for _ in range(300)]))
"""


def test_programs_start_while_workers_are_asked():
    """What gRPC does at a fork ended the new process before it began, or hung."""
    python("-c", FORKS, seconds=60)


HOSTS = Host("client:0", "127.0.0.1:20001"), Host("worker:0", "127.0.0.1:20002")
BOX = replace(Cluster.of("cpu", "worker:0/cpu:0"), hosts=HOSTS)


def test_a_worker_that_does_not_start_at_once_is_tried_again(tmp_path):
    fails = "mkdir first && exit 3; mkdir second && exit 3; echo ready; sleep 60"
    with LocalWorkers(BOX, tmp_path / "cluster.toml", []) as workers:
        workers.start(0, ["sh", "-c", f"cd {tmp_path}; {fails}"])
        workers.processes[0].wait()
        assert workers.restart(0).endswith("code 3: \nit is started again")


def test_connect_names_what_is_missing(monkeypatch):
    """Addresses, the cluster itself, or an earlier call."""
    monkeypatch.setattr(connect, "started", lambda: False)
    with pytest.raises(ConfigError, match=r"no address for client:0, worker:0\."):
        connect.connect(Cluster.of("worker:0/cpu:0"))
    with pytest.raises(ConfigError, match="SPLITNET_CLUSTER"):
        connect.connect()
    monkeypatch.setattr(connect, "started", lambda: True)
    with pytest.raises(ConfigError, match="TensorFlow has already started"):
        connect.connect(BOX, allow_remote=True)


def test_isolate_says_which_part_the_system_refuses(monkeypatch):
    """Some systems make a user namespace and then refuse to give it any rights."""
    refusing = Mock(side_effect=PermissionError(1, "Operation not permitted"))
    monkeypatch.setattr(start, "open_interfaces", lambda: ["eth0"])
    monkeypatch.setattr(start, "Path", refusing)
    monkeypatch.setattr(start, "_call", lambda name, flags: int(flags == 0x40000000))
    monkeypatch.setattr(start.psutil.Process, "num_threads", lambda _: 1)
    words = "namespaces: Operation not permitted.*cluster up"
    with pytest.raises(ConfigError, match=words):
        start.isolate()


def test_worker_refuses_an_open_network_and_a_limit_that_leaves_nothing(monkeypatch):
    """It says what that exposes, or how much TensorFlow needs, and goes no further."""
    with pytest.raises(ConfigError, match=r"leaves nothing.*alone holds"):
        limit_memory(2**20)
    monkeypatch.setattr(start, "open_interfaces", lambda: ["eth0"])
    with pytest.raises(ConfigError, match=r"(?s)every interface.*eth0.*--allow-remote"):
        start.serve(BOX, 0)
    with pytest.raises(ConfigError, match=r"no worker 3.*worker:0"):
        start.serve(BOX, 3)


def test_hosts_report_every_fault_at_once():
    told = {"Worker": "a:1", "worker:0": "a:99999", "worker:2": "b:1", "x:0": "b:1"}
    with pytest.raises(DeviceError) as caught:
        Cluster(Cluster.of("cpu").devices, (), tuple(map(Host, told, told.values())))
    words = "'Worker' is not named|port from 1 to 65535|'b:1' is repeated|from 0 with"
    assert all(one in str(caught.value) for one in words.split("|"))


def test_a_silent_worker_is_left_where_no_name_server_answers(monkeypatch):
    with socket.create_server(("", 0)) as silent:
        port = silent.getsockname()[1]
        hosts = HOSTS[0], Host("worker:0", f"localhost:{port}")
        connection = connect.Connection(replace(BOX, hosts=hosts), 0.1)
        unknown = Mock(side_effect=socket.gaierror(-2, "Name or service not known"))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as client:
            monkeypatch.setattr(connect.socket, "getaddrinfo", unknown)
            assert client.recv(1) == b""
    connection.close()


def test_connect_refuses_an_address_that_workers_do_not_reach(tmp_path):
    code = """
        from dataclasses import replace
        cluster = sn.local_workers(1).cluster
        client, worker = cluster.hosts
        client = replace(client, address=client.address.replace("127.0.0.1", "nowhere"))
        cluster = replace(cluster, hosts=(client, worker))
        answer["said"] = said(lambda: sn.connect(cluster, wait_seconds=1.0))
        """
    words = "ConfigError: workers cannot reach this program at 'nowhere:"
    assert story(code, tmp_path)["said"].startswith(words)


def test_workers_of_a_program_that_does_not_stop_them_leave_no_files():
    told = python("-c", "import splitnet as sn; print(sn.local_workers(1).file)")
    assert not Path(told.stdout.strip()).exists()


def test_failures_name_lost_workers_or_say_what_else_failed(monkeypatch):
    """An operation may have failed, another system, or all workers may be lost."""
    with pytest.raises(WorkerError, match="(?s)once it is back; plan .*unreachable"):
        connect.Connection(BOX, 0).check(ask=True)
    connection = connect.Connection(Cluster.of("cpu"), 0)
    with pytest.raises(tf.errors.AbortedError, match="of another system"), connection:
        raise tf.errors.AbortedError(None, None, "of another system")
    stopped = tf.errors.CancelledError(None, None, "RecvAsync is cancelled")
    step = connect._make(Mock(run=Mock([], side_effect=stopped)), "run", Mock())
    with pytest.raises(tf.errors.CancelledError) as caught, connection:
        step()
    assert "first warnings on standard error" in caught.value.__notes__[0]
    gone = tf.errors.UnavailableError(None, None, "Socket closed")
    model = Mock(run=Mock([], side_effect=gone))
    monkeypatch.setattr(connect, "_plans", {model: None})
    step = connect._make(model, "run", Mock())
    monkeypatch.setattr(connect, "_joined", [connect.Connection(BOX, 0)])
    with pytest.raises(tf.errors.UnavailableError) as caught:
        step()
    assert caught.value.__notes__ == ["worker:0 (127.0.0.1:20002) is unreachable."]


def test_an_operation_that_failed_before_is_warned_of(monkeypatch):
    """Its error would fail every later step; that a worker is lost is an error."""
    full = tf.errors.ResourceExhaustedError(None, None, "OOM of a tensor")
    wait = Mock(side_effect=[full, tf.errors.UnavailableError(None, None, "gone")])
    monkeypatch.setattr(connect, "started", lambda: True)
    monkeypatch.setattr(tf_api, "wait_for_eager_operations", wait)
    monkeypatch.setattr(tf.experimental, "async_clear_error", clear := Mock())
    with pytest.warns(UserWarning, match="outside of any function failed: OOM of a"):
        connect.wait_for_workers()
    with pytest.raises(tf.errors.UnavailableError):
        connect.wait_for_workers()
    clear.assert_called_once_with()
