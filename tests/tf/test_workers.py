"""Workers, each story in a Python of its own: real processes, killed and stopped."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from splitnet.core.cluster import Cluster
from splitnet.core.errors import ConfigError, DeviceError
from splitnet.core.hosts import Host, hosts_from
from splitnet.tf.health import probe
from splitnet.tf.serve import check_network, worker_of
from splitnet.tf.workers import write_cluster

HEAD = """
import json, os, signal, socket, sys, tempfile, time
import splitnet as sn
answer = {}

def said(act):
    try:
        act()
    except sn.SplitnetError as error:
        return type(error).__name__ + ": " + str(error)
    return "nothing"

def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False

"""


def story(code: str, folder: Path) -> dict[str, Any]:
    """Run a program in a fresh Python; its `answer` comes back."""
    program = HEAD + textwrap.dedent(code) + "\nprint(json.dumps(answer))\n"
    script = folder / "story.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One training over two workers: a kill, a return, a hang and the end."""
    return story(
        """
        workers = sn.local_workers(2)
        cluster = workers.cluster
        pids = [workers.pid(0), workers.pid(1)]
        answer["interfaces"] = [name for _, name in socket.if_nameindex()]
        joined = sn.connect(cluster, watch_seconds=0.5)
        answer["health"] = [found.state for found in joined.health()]
        import keras
        import numpy as np
        from keras import layers

        rng = np.random.default_rng(0)
        x = rng.normal(size=(256, 16)).astype("float32")
        y = rng.normal(size=(256, 1)).astype("float32")

        def made(homes=("worker:0/cpu:0", "worker:1/cpu:0"), cluster=cluster):
            keras.utils.set_random_seed(1)
            net = sn.Net("two")
            i = net.input("x", (16,))
            sides = [
                net.branch(n, i, layers.Dense(8, "relu", name=n), on=home)
                for n, home in zip("lr", homes)
            ]
            joined = net.merge("join", sides, layers.Concatenate(), on="cpu:0")
            net.output(net.branch("h", joined, layers.Dense(1, name="h"), on="cpu:0"))
            plan = sn.plan(net, cluster, batch=64)
            model = sn.emit(net, plan)
            model.compile("adam", "mse")
            return model, plan

        def fit(model, epochs, *callbacks):
            return model.fit(
                x, y, batch_size=64, epochs=epochs, shuffle=False, verbose=0,
                callbacks=list(callbacks),
            ).history["loss"]

        class At(keras.callbacks.Callback):
            def __init__(self, epoch, act):
                super().__init__()
                self.epoch, self.act, self.when = epoch, act, 0.0

            def on_epoch_begin(self, epoch, logs=None):
                if epoch == self.epoch:
                    self.when = time.monotonic()
                    self.act()

        def failed(model, epochs, at, *callbacks):
            def act():
                with joined:
                    fit(model, epochs, *callbacks, at)
            words = said(act)
            return words, time.monotonic() - at.when

        model, plan = made()
        answer["losses"] = fit(model, 5)
        answer["homes"] = {v.path: v.value.device for v in model.variables}
        audit = sn.audit(model, plan, (x[:64], y[:64]))
        answer["audit"] = [finding.text for finding in audit.findings]
        answer["local"] = fit(made(("cpu:0", "cpu:0"))[0], 5)

        folder = tempfile.mkdtemp()
        model, _ = made()
        kill = At(3, lambda: os.kill(pids[1], signal.SIGKILL))
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["killed"] = failed(model, 5, kill, backup)
        answer["while it is gone"] = said(lambda: sn.connect(cluster, wait_seconds=0.5))

        workers.restart(1)
        pids.append(workers.pid(1))
        joined = sn.connect(cluster, watch_seconds=0.5)
        model, _ = made()
        answer["resumed"] = fit(model, 5, keras.callbacks.BackupAndRestore(folder))

        folder = tempfile.mkdtemp()
        model, _ = made()
        stop = At(3, lambda: os.kill(pids[0], signal.SIGSTOP))
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["stopped"] = failed(model, 5, stop, backup)
        answer["while it hangs"] = said(made)
        rest = cluster.without("worker:0")
        joined = sn.connect(rest, watch_seconds=0.5)
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["without it"] = fit(made(cluster=rest)[0], 5, backup)
        os.kill(pids[0], signal.SIGCONT)
        joined = sn.connect(cluster, watch_seconds=0.5)
        answer["after the stop"] = fit(made()[0], 5)

        from splitnet.core.cluster import Cluster
        from splitnet.core.hosts import Host
        elsewhere = Cluster(cluster.devices, (), tuple(
            Host(h.name, h.address.replace("127.0.0.1", "127.0.0.2"))
            for h in cluster.hosts
        ))
        answer["another"] = said(lambda: sn.connect(elsewhere))
        import tensorflow as tf
        tf.__version__ = "9.9.9"
        answer["version"] = said(lambda: sn.connect(cluster))

        os.kill(pids[2], signal.SIGINT)
        answer["interrupted"] = workers.processes[1].wait(10)

        os.kill(pids[0], signal.SIGSTOP)
        began = time.monotonic()
        workers.stop()
        answer["ended in"] = time.monotonic() - began
        answer["left"] = [pid for pid in pids if alive(pid)]
        answer["files"] = workers.file.exists()
        """,
        tmp_path_factory.mktemp("trained"),
    )


@pytest.mark.tf
def test_workers_train_as_one_device_does(trained: dict[str, Any]) -> None:
    """Losses over two workers equal those of the client alone."""
    assert trained["losses"] == pytest.approx(trained["local"], rel=1e-6)


@pytest.mark.tf
def test_workers_hold_the_weights_of_their_branches(trained: dict[str, Any]) -> None:
    """Each branch's weights live in its worker, and the audit finds nothing astray."""
    assert "/task:0/" in trained["homes"]["l/kernel"]
    assert "/job:worker/replica:0/task:1/" in trained["homes"]["r/kernel"]
    assert trained["audit"] == []


@pytest.mark.tf
def test_workers_live_in_a_private_network(trained: dict[str, Any]) -> None:
    """Workers and client see a loopback device, and answer on it."""
    assert trained["interfaces"] == ["lo"]
    assert trained["health"] == ["well", "well"]


@pytest.mark.tf
def test_workers_that_die_are_named_at_once(trained: dict[str, Any]) -> None:
    """A killed worker ends the step in seconds with its name."""
    words, seconds = trained["killed"]

    assert words.startswith("WorkerError")
    assert "worker:1 (" in words
    assert "worker:0 (" not in words
    assert seconds < 10


@pytest.mark.tf
def test_workers_that_hang_are_named_in_seconds(trained: dict[str, Any]) -> None:
    """A stopped worker, for which TensorFlow would wait for ever, ends the step too."""
    words, seconds = trained["stopped"]

    assert "worker:0 (" in words
    assert "hangs or is stopped" in words
    assert seconds < 20


@pytest.mark.tf
def test_workers_that_are_lost_are_waited_for_by_nobody(
    trained: dict[str, Any],
) -> None:
    """A model is not even begun: TensorFlow would wait for the lost one for ever."""
    assert trained["while it hangs"].startswith("WorkerError: a worker is lost")
    assert "cluster.without('worker:0')" in trained["while it hangs"]


@pytest.mark.tf
def test_workers_that_are_left_go_on_without_the_lost_one(
    trained: dict[str, Any],
) -> None:
    """Planned anew for what is left, while the other still hangs: the same losses."""
    assert trained["without it"] == pytest.approx(trained["losses"][3:], rel=1e-6)


@pytest.mark.tf
def test_workers_that_come_back_let_training_go_on(trained: dict[str, Any]) -> None:
    """After connect and BackupAndRestore the losses are those without the failure."""
    assert trained["resumed"] == pytest.approx(trained["losses"][3:], rel=1e-6)
    assert trained["after the stop"] == pytest.approx(trained["losses"], rel=1e-6)


@pytest.mark.tf
def test_connect_names_workers_that_are_not_there(trained: dict[str, Any]) -> None:
    """A worker that is gone is named, with its address and what to start."""
    assert trained["while it is gone"].startswith("WorkerError: 1 of 2 workers")
    assert "splitnet worker" in trained["while it is gone"]


@pytest.mark.tf
def test_connect_refuses_a_second_cluster(trained: dict[str, Any]) -> None:
    """A program joins one cluster; another one is refused with words."""
    assert "joined another cluster" in trained["another"]


@pytest.mark.tf
def test_connect_refuses_another_tensorflow(trained: dict[str, Any]) -> None:
    """Workers whose version differs are listed."""
    assert "this program has TensorFlow 9.9.9" in trained["version"]
    assert trained["version"].count("has TensorFlow 2.") == 2


@pytest.mark.tf
def test_workers_end_by_ctrl_c(trained: dict[str, Any]) -> None:
    """One that serves in the foreground hears it, though Python hears nothing."""
    assert trained["interrupted"] == -signal.SIGINT


@pytest.mark.tf
def test_workers_leave_nothing_behind(trained: dict[str, Any]) -> None:
    """Stopping ends all of them, also one that hangs, and removes their files."""
    assert trained["left"] == []
    assert trained["files"] is False
    assert trained["ended in"] < 10


@pytest.mark.tf
def test_workers_refuse_calls_from_outside(tmp_path: Path) -> None:
    """No address of this machine reaches a worker that answers inside.

    `up` passes on the signal that ends it, and the program's exit code.
    """
    program = (
        "import os, signal, sys, splitnet as sn\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
        "c = sn.Cluster.load(os.environ['SPLITNET_CLUSTER'])\n"
        "from splitnet.tf.health import probe\n"
        "print(c.hosts[1].address, probe(c.hosts[1:])[0].state, flush=True)\n"
        "signal.pause()\n"
    )
    up = [sys.executable, "-m", "splitnet", "cluster", "up", "--workers", "1", "--"]
    with subprocess.Popen(
        [*up, sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        address, inside = process.stdout.readline().split()
        port = address.rpartition(":")[2]
        own = ["127.0.0.1", "localhost", *_addresses()]
        outside = [f.state for f in probe(Host("w:0", f"{a}:{port}") for a in own)]
        process.terminate()
        process.wait(30)

    assert inside == "well"
    assert set(outside) == {"gone"}
    assert process.returncode == 3


def test_a_program_ends_when_what_runs_it_is_killed() -> None:
    """`cluster up` and `join`, killed with no time to clean up, leave no program."""
    program = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    join = [sys.executable, "-m", "splitnet", "cluster", "join", str(os.getpid())]
    with subprocess.Popen(
        [*join, "--", sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        pid = int(process.stdout.readline())
        process.kill()
        assert process.stdout.read() == ""  # ends when nobody can write any more

    assert not Path(f"/proc/{pid}/exe").exists()


def test_a_program_that_a_signal_ended_says_so_as_a_shell_does() -> None:
    """128 and the number of the signal."""
    join = [sys.executable, "-m", "splitnet", "cluster", "join", str(os.getpid())]
    done = subprocess.run(
        [*join, "--", "sh", "-c", "kill -9 $$"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )

    assert done.returncode == 128 + signal.SIGKILL


@pytest.mark.tf
def test_workers_with_a_limit_keep_to_it_and_to_the_order(tmp_path: Path) -> None:
    """Plans know what a limit leaves, the kernel holds it, steps see weights just set.

    TensorFlow alone would run a step on the weights from before: what it is told
    outside of a function reaches a worker by another way.
    """
    answer = story(
        """
        workers = sn.local_workers(1, memory_limit="1.5 GB")
        cluster = workers.cluster
        answer["room"] = cluster["worker:0/cpu:0"].memory_bytes
        answer["file"] = sn.Cluster.load(workers.file) == cluster
        sn.connect(cluster)
        import keras
        import numpy as np
        import tensorflow as tf

        def net(width):
            net = sn.Net("wide")
            x = net.input("x", (width,))
            layer = keras.layers.Dense(width, use_bias=False)
            net.output(net.branch("b", x, layer, on="worker:0/cpu:0"))
            return net

        answer["large"] = said(lambda: sn.plan(net(9000), cluster))
        small = net(2000)
        model = sn.emit(small, sn.plan(small, cluster, batch=1, training=False))
        one = np.ones((1, 2000), "float32")
        model.predict(one, verbose=0)
        answer["seen"] = []
        for value in range(6):
            model.set_weights([np.full((2000, 2000), value, "float32")])
            answer["seen"].append(float(model.predict(one, verbose=0)[0, 0]) / 2000)
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            try:
                tf.fill([400_000_000], 1.0).numpy()
            except tf.errors.ResourceExhaustedError as error:
                answer["refused"] = "OOM" in str(error)
        answer["after"] = float(model.predict(one, verbose=0)[0, 0]) / 2000
        workers.stop()
        """,
        tmp_path,
    )

    assert 3e8 < answer["room"] < 1.2e9
    assert answer["file"]
    assert answer["large"].startswith("InfeasibleError")
    assert answer["seen"] == [0, 1, 2, 3, 4, 5]
    assert answer["refused"]
    assert answer["after"] == 5


@pytest.mark.tf
def test_workers_refuse_a_limit_that_leaves_nothing(tmp_path: Path) -> None:
    """TensorFlow's server needs memory for itself; the refusal says how much."""
    answer = story(
        """
        answer["said"] = said(lambda: sn.local_workers(1, memory_limit="100 MB"))
        """,
        tmp_path,
    )

    assert "leaves nothing" in answer["said"]
    assert "alone holds" in answer["said"]


def _addresses() -> list[str]:
    import socket

    found = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
    return sorted({entry[4][0] for entry in found})


@pytest.mark.tf
def test_workers_end_when_their_owner_is_killed(tmp_path: Path) -> None:
    """A killed owner, who can clean up nothing, leaves no orphan."""
    answer = story(
        """
        child = os.fork()
        if not child:
            workers = sn.local_workers(1)
            with open("pid", "w") as file:
                file.write(str(workers.pid(0)))
            time.sleep(600)
        deadline = time.monotonic() + 120
        while not os.path.exists("pid") and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(0.2)
        worker = int(open("pid").read())
        answer["before"] = alive(worker)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        deadline = time.monotonic() + 10
        while alive(worker) and time.monotonic() < deadline:
            time.sleep(0.05)
        answer["after"] = alive(worker)
        """,
        tmp_path,
    )

    assert answer == {"before": True, "after": False}


@pytest.mark.tf
def test_connect_comes_before_tensorflow_starts(tmp_path: Path) -> None:
    """A late connect would kill what exists; the refusal says what came before it."""
    answer = story(
        """
        from splitnet.tf.seclude import seclude
        seclude()
        cluster = sn.Cluster.from_dict(
            sn.Cluster.of("cpu", "worker:0/cpu:0").to_dict()
            | {"hosts": {"client": "127.0.0.1:20001", "worker:0": "127.0.0.1:20002"}}
        )
        answer["nobody"] = said(lambda: sn.connect(cluster, wait_seconds=0.2))
        answer["no hosts"] = said(lambda: sn.connect(sn.Cluster.of("worker:0/cpu:0")))
        answer["no cluster"] = said(sn.connect)
        import tensorflow as tf
        tensor = tf.zeros(1)
        answer["late"] = said(lambda: sn.connect(cluster))
        """,
        tmp_path,
    )

    assert "1 of 1 workers did not answer" in answer["nobody"]
    assert "'worker:0/cpu:0' is on worker:0, which has no address" in answer["no hosts"]
    assert "the client (this program) has no address" in answer["no hosts"]
    assert "SPLITNET_CLUSTER" in answer["no cluster"]
    assert "TensorFlow has already started" in answer["late"]


def test_seclude_refuses_a_program_with_threads(tmp_path: Path) -> None:
    """Threads that run already would keep the open network."""
    answer = story(
        """
        import threading
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        answer["said"] = said(lambda: sn.local_workers(1))
        """,
        tmp_path,
    )

    assert "2 threads run already" in answer["said"]
    assert "splitnet cluster up" in answer["said"]


def test_worker_refuses_an_open_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where others could call, a worker says what that exposes, and goes no further."""
    from splitnet.tf import serve

    monkeypatch.setattr(serve, "open_interfaces", lambda: ("eth0",))
    monkeypatch.setattr(serve, "is_private", lambda: False)

    with pytest.raises(ConfigError, match=r"(?s)every interface.*eth0.*--allow-remote"):
        check_network(allow_remote=False)
    check_network(allow_remote=True)


def test_worker_of_names_the_workers_there_are() -> None:
    """A number that no worker has is refused with those that are."""
    cluster = Cluster(
        Cluster.of("cpu").devices, (), hosts_from({"worker:0": "10.0.0.2:2222"})
    )

    with pytest.raises(ConfigError, match=r"no worker 3.*worker:0"):
        worker_of(cluster, 3)


def test_hosts_report_every_fault_at_once() -> None:
    """Names, addresses, ports, repeats and gaps are all named."""
    with pytest.raises(DeviceError) as caught:
        hosts_from(
            {"Worker": "a:1", "worker:0": "a:99999", "worker:2": "b:1", "x": "b:1"}
        )

    text = str(caught.value)
    assert "'Worker' is not named" in text
    assert "a port from 1 to 65535" in text
    assert "address 'b:1' is there twice" in text
    assert "without a gap" in text


def test_cluster_files_keep_hosts_and_links(tmp_path: Path) -> None:
    """What is written as TOML is read back equal."""
    cluster = Cluster(
        Cluster.of("cpu", "worker:0/gpu:0").devices,
        Cluster.of("cpu").links,
        hosts_from({"client": "10.0.0.1:2222", "worker:0": "[fd00::2]:2222"}),
    )
    write_cluster(cluster, tmp_path / "cluster.toml")

    assert Cluster.load(tmp_path / "cluster.toml") == cluster
    assert Cluster.from_dict(cluster.to_dict()) == cluster


def test_probe_tells_gone_from_silent() -> None:
    """Nobody listening is "gone"; a listener that never answers is "silent"."""
    import socket

    with socket.socket() as plug:
        plug.bind(("127.0.0.1", 0))
        plug.listen()
        port = plug.getsockname()[1]
        silent = probe([Host("worker:0", f"127.0.0.1:{port}")], timeout_seconds=0.3)
    gone = probe([Host("worker:0", f"127.0.0.1:{port}")], timeout_seconds=2.0)

    assert [found.state for found in (*silent, *gone)] == ["silent", "gone"]
    assert "gave no answer" in silent[0].words
    assert "no worker listens" in gone[0].words
