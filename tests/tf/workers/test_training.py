"""Training over workers that are killed and stopped."""

import signal
from itertools import permutations

import pytest

from tests.tf.story import story

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """One training over two workers: a kill, a return, a hang and the end."""
    return story(
        """
        import itertools, threading
        ending = threading.Event()
        (thread := threading.Thread(target=ending.wait)).start()
        answer["threads"] = said(lambda: sn.local_workers(1))
        ending.set()
        while os.listdir("/proc/self/task")[1:]:  # join() returns a little early
            time.sleep(0.01)
        workers = sn.local_workers(2, memory_limit="1.2 GB")
        cluster = workers.cluster
        answer["room"] = cluster["worker:0/cpu:0"].memory_bytes
        pids = [workers.processes[0].pid, workers.processes[1].pid]
        from splitnet.cli import main
        from splitnet.tf.profiling import measure
        measure._LINK_RUNS, measure._LARGE = 3, 2**20
        seconds = itertools.cycle(n / 1000 for n in range(11))  # of the steps in turn
        measure.timeit.timeit = lambda run, number: (run(), next(seconds))[1]
        answer["measured"] = main(["measure", "--links", str(workers.file)])
        links = sn.Cluster.load(workers.file).links
        answer["links"] = sorted([link.source, link.target] for link in links)
        answer["speeds"] = [(l.bytes_per_second, l.overhead_per_byte) for l in links]
        joined = sn.connect(cluster, watch_seconds=0.5)
        answer["health"] = [*(x.state for x in joined.health()), repr(joined)[:20]]
        import keras
        import numpy as np
        from keras import layers

        def seen(value=None):
            if value is not None:
                model.set_weights([np.full((2000, 2000), value, "float32")])
            return float(model.predict(one, verbose=0)[0, 0]) / 2000
        i, one = keras.Input((2000,)), np.ones((1, 2000), "float32")
        small = keras.Model(i, layers.Dense(2000, use_bias=False)(i))
        pins = {"*": "worker:0/cpu:0"}
        model = sn.place(small, cluster, pins=pins, batch=1, training=False)
        seen()
        answer["seen"] = [seen(value) for value in range(6)]
        import tensorflow as tf
        with tf.device("/job:worker/replica:0/task:0/device:CPU:0"):
            try:
                tf.fill([400_000_000], 1.0).numpy()
            except tf.errors.ResourceExhaustedError as error:
                answer["refused"] = "OOM" in str(error)
        answer["after"] = seen()
        del model
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
            model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
            return model, plan
        def fit(model, epochs, *callbacks):
            return model.fit(
                x, y, batch_size=64, epochs=epochs, shuffle=False, verbose=0,
                callbacks=list(callbacks),
            ).history["loss"]
        def failed(model, number, pid, *callbacks):
            def signalled(epoch, logs):
                if epoch == 3:
                    when.append(time.monotonic())
                    os.kill(pid, number)
            def act():
                with joined:
                    sends = keras.callbacks.LambdaCallback(on_epoch_begin=signalled)
                    fit(model, 5, *callbacks, sends)
            when = []
            return said(act), time.monotonic() - when[0]
        model, plan = made()
        answer["losses"] = fit(model, 5)
        audit = sn.audit(model, plan, (x[:64], y[:64]))
        answer["audit"] = [finding.text for finding in audit.findings]
        answer["local"] = fit(made(("cpu:0", "cpu:0"))[0], 5)
        words = keras.Input((3,), dtype="string")
        codes = layers.Embedding(3, 4)(layers.StringLookup(vocabulary=["a"])(words))
        on = {"*": "worker:1/cpu:0"}
        looks_up = sn.place(keras.Model(words, codes), cluster, pins=on)
        audit = sn.audit(looks_up, None, tf.constant([["a", "b", "c"]]))
        answer["words"] = [finding.text for finding in audit.findings]
        folder = tempfile.mkdtemp()
        model, _ = made()
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["killed"] = failed(model, signal.SIGKILL, pids[1], backup)
        answer["audited"] = said(lambda: sn.audit(model, None, (x[:64], y[:64])))
        answer["timed"] = said(lambda: sn.measure(small, cluster))
        answer["unplaced"] = said(lambda: sn.unplace(model))
        answer["while it is gone"] = said(lambda: sn.connect(cluster, wait_seconds=0.5))
        workers.restart(1)
        pids.append(workers.processes[1].pid)
        answer["restarted"] = said(lambda: fit(model, 1))
        joined = sn.connect(cluster, watch_seconds=0.5)
        model, _ = made()
        answer["resumed"] = fit(model, 5, keras.callbacks.BackupAndRestore(folder))
        folder = tempfile.mkdtemp()
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["stopped"] = failed(made()[0], signal.SIGSTOP, pids[0], backup)
        answer["while it hangs"] = said(made)
        rest = cluster.without("worker:0")
        joined = sn.connect(rest, watch_seconds=0.5)
        backup = keras.callbacks.BackupAndRestore(folder)
        answer["without it"] = fit(made(cluster=rest)[0], 5, backup)
        os.kill(pids[0], signal.SIGCONT)
        joined = sn.connect(cluster, watch_seconds=0.5)
        answer["after the stop"] = fit(made()[0], 5)
        elsewhere = sn.Cluster(cluster.devices[:2], (), cluster.hosts[:2])
        os.environ["SPLITNET_CLUSTER"] = str(workers.file)
        second = [sys.executable, "-c", "import splitnet; splitnet.connect()"]
        answer["second"] = subprocess.run(second, capture_output=True, text=True).stderr
        answer["another"] = said(lambda: sn.connect(elsewhere))
        tf.__version__ = "9.9.9"
        answer["version"] = said(lambda: sn.connect(cluster))
        os.kill(pids[2], signal.SIGINT)
        answer["interrupted"] = workers.processes[1].wait()
        os.kill(pids[0], signal.SIGSTOP)
        workers.stop()
        answer["left"] = [p for p in pids if os.path.exists(f"/proc/{p}/exe")]
        answer["files"] = workers.file.exists()
        """,
        tmp_path_factory.mktemp("trained"),
    )


NAMES = ("cpu:0", "worker:0/cpu:0", "worker:1/cpu:0")
FACTS = {
    # TensorFlow alone would run a step on the weights from before: what it is told
    # outside of a function reaches a worker by another way.
    "seen": [0, 1, 2, 3, 4, 5],
    "after": 5,
    # A limit is held by the kernel.
    "refused": True,
    "health": ["healthy", "healthy", "<Connection to <Clus"],
    "measured": 0,
    "links": [["*", "*"], *sorted(map(list, permutations(NAMES, 2)))],
    "audit": [],
    "words": [],  # tables of vocabularies are on workers too
    # They end by Ctrl-C, and by `stop()` also where one hangs; nothing is left.
    "interrupted": -signal.SIGINT,
    "left": [],
    "files": False,
}
LOST = "restarted", "audited", "timed", "unplaced", "killed", "stopped", "while"


def test_workers_train_as_one_device_does(trained):
    """From the backup too, after a worker was killed, or without one that hangs."""
    begins = {"local": 0, "after the stop": 0, "resumed": 3, "without it": 3}
    for name, epoch in begins.items():
        assert trained[name] == pytest.approx(trained["losses"][epoch:], rel=1e-6), name


def test_workers_hold_weights_keep_to_limits_and_end(trained):
    """Plans know what a limit leaves; the audit finds weights in their workers."""
    assert {name: trained[name] for name in FACTS} == FACTS
    assert 3e8 < trained["room"] < 1.2e9
    assert trained["speeds"][:6] == [pytest.approx([2**22 / 125e-6, 1e-3 / 2**23])] * 6


@pytest.mark.parametrize(
    ("when", "words"),
    [
        # Threads that run already would keep the open network.
        ("threads", ("2 threads run already", "splitnet cluster up")),
        ("while it is gone", ("WorkerError: 1 of 2 workers", "splitnet worker")),
        ("audited", ("WorkerError: a worker is lost", "without('worker:1')")),
        ("timed", ("WorkerError: a worker is lost", "without('worker:1')")),
        ("unplaced", ("WorkerError: a worker is lost", "without('worker:1')")),
        ("while it hangs", ("WorkerError: a worker is lost", "without('worker:0')")),
        ("second", ("3 hosts: file", "client:0 cannot listen", "joined this cluster")),
        ("another", ("joined another cluster", "Start the program")),
        ("version", ("this program has TensorFlow 9.9.9",)),
        # A lost worker is named in seconds, with device and parts.
        ("killed", ("WorkerError", "worker:1 (", "worker:1/cpu:0 ran r")),
        ("stopped", ("WorkerError", "worker:0 (", "unresponsive")),
        ("restarted", ("WorkerError", "worker:1 (", ") is restarted, and empty")),
    ],
)
def test_what_cannot_be_joined_or_used_is_said(when, words, trained):
    """A lost worker, a second client, another cluster, another TensorFlow."""
    timed = when in ("killed", "stopped")
    said, seconds = trained[when] if timed else (trained[when], 0)
    assert all(part in said for part in words)
    assert "Graph execution" not in said
    assert seconds < {"killed": 10, "stopped": 20}.get(when, 1)
    # Not the one beside it; of another TensorFlow, both.
    assert (said.count(" (127.0.0.1:") == 1) == when.startswith(LOST)
    assert said.count("has TensorFlow 2.") == 2 * (when == "version")
