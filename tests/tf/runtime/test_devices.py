"""The machine and its settings, before and after TensorFlow starts in a process."""

import re

import pytest

from tests.tf.story import story

LARGE = """
import keras
from keras import layers
def build():
    x = y = keras.Input((64, 8192))
    for _ in range(5):
        y = y + layers.Dense(8192)(layers.Dense(163840, activation="gelu")(y))
    return keras.Model(x, layers.Dense(32000)(y))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What can be asked and set before TensorFlow starts, and then after."""
    folder = tmp_path_factory.mktemp("told")
    (folder / "large.py").write_text(LARGE)
    return story(
        """
        here = sn.local_cluster()
        import tensorflow as tf
        answer["plain"] = [(d.name, d.stand_in) for d in here]
        answer["started by looking"] = started()
        answer["memory"] = here.home.memory_bytes
        import psutil
        answer["memory of the host"] = psutil.virtual_memory().total
        import resource
        from keras import layers
        net = sn.Net("quiet")
        norm = [layers.Dense(4), layers.LayerNormalization()]
        net.output(net.branch("a", net.input("x", (6,)), norm))
        sn.read(net)
        from large import build
        box = sn.Cluster.of("4*gpu", "cpu", memory="80 GiB")
        plan = sn.plan(build, box, batch=2, training=False, time_limit=0.1)
        answer["large"] = sum(one.bytes for one in plan.graph.weights) / 2**30 > 50
        from splitnet.cli import main
        words = "--gpus 4 --preset H100 --batch 2 --optimizer sgd --time-limit 0.1"
        answer["command"] = main(["plan", "large.py:build", *words.split()])
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        answer["resident"] = used < 2 * 2**20
        answer["started by planning"] = started()
        from pathlib import Path
        from splitnet.core.settings import resolve
        from splitnet.tf.runtime.configure import idle_settings
        file = Path("splitnet.toml")
        file.write_text('visible = "0"\\nmemory_growth = true\\ncpu_threads = 1')
        answer["real"] = said(lambda: sn.local_cluster())
        here = resolve({}, os.environ, Path.cwd())
        answer["notes"] = idle_settings(here, ["memory_growth"])
        two = sn.local_cluster(stand_in_gpus=2)
        answer["stand-ins"] = [(d.name, d.target, d.stand_in) for d in two]
        answer["shares"] = [d.memory_bytes for d in two]
        answer["started by standing in"] = started()
        answer["twice"] = sn.local_cluster(stand_in_gpus=2) == two
        answer["file's"] = tf.config.threading.get_intra_op_parallelism_threads()
        answer["later"] = said(lambda: sn.configure(log_placement=False))
        environment = {"CPU_THREADS": "3", "CPU_DEVICES": "4", "INTER_OP_THREADS": "1"}
        os.environ.update({f"SPLITNET_{k}": v for k, v in environment.items()})
        answer["names"] = [d.name for d in sn.local_cluster()]
        answer["within"] = tf.config.threading.get_intra_op_parallelism_threads()
        answer["across"] = tf.config.threading.get_inter_op_parallelism_threads()
        for name in environment:
            del os.environ[f"SPLITNET_{name}"]
        file.unlink()
        settings = sn.configure(cpu_threads=2, soft_placement=False)
        answer["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
        answer["soft"] = tf.config.get_soft_device_placement()
        answer["omp"] = os.environ["OMP_NUM_THREADS"]
        answer["origin"] = settings.all["cpu_threads"].origin
        answer["started by configuring"] = started()
        answer["no such gpu"] = said(lambda: sn.configure(visible="7"))
        answer["forgotten"] = sn.configure()["visible"]
        sn.configure(visible="none")
        answer["forced"] = [d.name for d in tf.config.get_visible_devices("GPU")]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            sn.configure(memory_limit="2 GiB", memory_growth=False)
        answer["warned"] = [str(w.message) for w in warned]
        tf.constant(1.0)
        answer["started"] = started()
        answer["devices"] = len(tf.config.list_logical_devices("CPU"))
        answer["fewer"] = [d.name for d in sn.local_cluster(stand_in_gpus=1)]
        answer["same"] = said(lambda: sn.configure(cpu_threads=2))
        answer["more"] = said(lambda: sn.local_cluster(stand_in_gpus=5))
        answer["late"] = said(lambda: sn.configure(cpu_threads=3, cpu_devices=9))
        answer["any time"] = said(lambda: sn.configure(soft_placement=True))
        answer["soft now"] = tf.config.get_soft_device_placement()
        """,
        folder,
    )


FACTS = {
    # C6: 53 GiB of weights that a function makes are planned in less than 2 GiB, by the
    # command as well.
    "large": True,
    "command": 0,
    "resident": True,
    # None of these leaves a device of TensorFlow claimed.
    "started by planning": False,
    "started by looking": False,
    "started by standing in": False,
    "started by configuring": False,
    # Stand-ins are CPU devices after the first; as many as exist can be had any time.
    "stand-ins": [
        ["gpu:0", "/device:CPU:1", True],
        ["gpu:1", "/device:CPU:2", True],
        ["cpu:0", "/device:CPU:0", False],
    ],
    "twice": True,
    # Settings of a file that also serves a machine with GPUs do not stop stand-ins;
    # those of the environment beat them.
    "file's": 1,
    "later": "nothing",
    # What holds already or may change at any time is accepted.
    "same": "nothing",
    "any time": "nothing",
    "names": ["cpu:0", "cpu:1", "cpu:2", "cpu:3"],
    "within": 3,
    "across": 1,
    "devices": 4,
    "started": True,
    "fewer": ["gpu:0", "cpu:0"],
    # Settings reach TensorFlow; what was refused does not come back.
    "threads": 2,
    "omp": "2",
    "soft": False,
    "soft now": True,
    "origin": "code",
    "forgotten": [],
    "forced": [],
    "warned": [
        "memory_limit=2147483648 (sn.configure) has no effect: TensorFlow finds no GPU "
        "here"
    ],
    "stderr": "",  # no start-up lines, whatever the log level
}
REFUSALS = (
    ("real", r"visible=\(0,\) \(splitnet.toml\): there is no GPU 0"),
    ("more", r"ConfigError: too late for 5 .*started with 4.*before the"),
    ("late", r"too late: .*\s+cpu_threads=3 \(sn.configure\)"),
    ("late", r"^(?!.*threads.*threads).*cpu_devices=9 \(sn.configure\)"),
)


def test_devices_are_found_and_settings_applied_before_the_start(told):
    """Devices share the host's memory; `FACTS` has the rest, `REFUSALS` what is not."""
    assert {name: told[name] for name in FACTS} == FACTS
    assert ["cpu:0", False] in told["plain"]
    assert "memory_growth=True (splitnet.toml) has no effect" in told["notes"][0]
    assert 0 < told["memory"] <= told["memory of the host"]
    assert len(set(told["shares"])) == 1
    assert sum(told["shares"]) <= told["memory of the host"]
    for question, words in REFUSALS:
        assert re.search(words, told[question], re.DOTALL), question
