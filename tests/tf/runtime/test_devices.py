"""The machine and its settings, each story in a Python of its own.

TensorFlow starts once per process, and these tests are about what happens before, at
and after that moment.
"""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf

HEAD = """
import json, os, warnings
import splitnet as sn
from splitnet.tf.runtime.configure import started

def said(act):
    try:
        act()
    except sn.SplitnetError as error:
        return type(error).__name__ + ": " + str(error)
    return "nothing"

"""


def story(code: str, folder: Path, **environ: str) -> dict:
    """Run a program in a fresh Python; its `answer` comes back."""
    program = HEAD + textwrap.dedent(code) + "\nprint(json.dumps(answer))\n"
    script = folder / "story.py"
    script.write_text(program)
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environ,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"stderr": done.stderr}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What can be asked and set before TensorFlow starts, and then after."""
    return story(
        """
        answer = {}
        here = sn.local_cluster()
        import tensorflow as tf
        answer["plain"] = [(d.name, d.stand_in) for d in here]
        answer["started by looking"] = started()
        answer["memory"] = here.home.memory_bytes
        with open("/proc/meminfo") as file:
            total = int(file.readline().split()[1]) * 1024
        answer["memory of the host"] = total

        two = sn.local_cluster(stand_in_gpus=2)
        answer["stand-ins"] = [(d.name, d.target, d.stand_in) for d in two]
        answer["shares"] = [d.memory_bytes for d in two]
        answer["started by standing in"] = started()
        answer["twice"] = sn.local_cluster(stand_in_gpus=2) == two

        settings = sn.configure(cpu_threads=2, soft_placement=False)
        answer["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
        answer["soft"] = tf.config.get_soft_device_placement()
        answer["omp"] = os.environ["OMP_NUM_THREADS"]
        answer["origin"] = settings.of("cpu_threads").origin
        answer["started by configuring"] = started()
        answer["no such gpu"] = said(lambda: sn.configure(visible="7"))
        answer["bad number"] = said(lambda: sn.local_cluster(stand_in_gpus=-1))
        answer["bad kind"] = said(lambda: sn.local_cluster(stand_in_gpus="2"))
        answer["forgotten"] = sn.configure().of("visible").origin
        sn.force_cpu()
        answer["forced"] = [d.name for d in tf.config.get_visible_devices("GPU")]
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            sn.configure(memory_limit="2 GiB", memory_growth=False)
        answer["warned"] = [str(w.message) for w in warned]

        tf.constant(1.0)
        answer["started"] = started()
        answer["fewer"] = [d.name for d in sn.local_cluster(stand_in_gpus=1)]
        answer["same"] = said(lambda: sn.configure(cpu_threads=2))
        answer["more"] = said(lambda: sn.local_cluster(stand_in_gpus=4))
        answer["late"] = said(lambda: sn.configure(cpu_threads=3, cpu_devices=9))
        answer["any time"] = said(lambda: sn.configure(soft_placement=True))
        answer["soft now"] = tf.config.get_soft_device_placement()
        """,
        tmp_path_factory.mktemp("told"),
    )


def test_local_cluster_finds_a_cpu(told: dict) -> None:
    """Every machine has one, and it is nobody's stand-in."""
    assert ["cpu:0", False] in told["plain"]


def test_local_cluster_starts_nothing(told: dict) -> None:
    """Looking, standing in and configuring leave TensorFlow's devices unclaimed."""
    assert not told["started by looking"]
    assert not told["started by standing in"]
    assert not told["started by configuring"]


def test_local_cluster_memory_is_the_hosts(told: dict) -> None:
    """The CPU's memory is some, and not more than the host has."""
    assert 0 < told["memory"] <= told["memory of the host"]


def test_stand_ins_are_cpu_devices_after_the_first(told: dict) -> None:
    """gpu:0 is CPU:1, gpu:1 is CPU:2, and the CPU keeps CPU:0."""
    assert told["stand-ins"] == [
        ["gpu:0", "/device:CPU:1", True],
        ["gpu:1", "/device:CPU:2", True],
        ["cpu:0", "/device:CPU:0", False],
    ]


def test_stand_ins_share_the_hosts_memory(told: dict) -> None:
    """Equal shares that do not add up to more than there is."""
    assert len(set(told["shares"])) == 1
    assert sum(told["shares"]) <= told["memory of the host"]


def test_stand_ins_twice_do_no_harm(told: dict) -> None:
    """The same question has the same answer."""
    assert told["twice"]


@pytest.mark.parametrize(
    ("question", "words"),
    [("bad number", "between 0 and 256"), ("bad kind", "a whole number")],
)
def test_stand_ins_refuse_impossible_numbers(
    told: dict, question: str, words: str
) -> None:
    """The message says what is possible and what was received."""
    assert told[question].startswith("DeviceError")
    assert words in told[question]


def test_configure_reaches_tensorflow(told: dict) -> None:
    """Threads, and soft placement, are what was said."""
    assert (told["threads"], told["soft"], told["omp"]) == (2, False, "2")
    assert told["origin"] == "code"


def test_configure_refuses_a_gpu_that_is_not_there(told: dict) -> None:
    """An index past the last GPU is named, with what was found."""
    assert "there is no GPU 7; TensorFlow finds" in told["no such gpu"]


def test_configure_forgets_what_it_refused(told: dict) -> None:
    """A setting that could not be applied does not come back with the next call."""
    assert told["forgotten"] == "default"


def test_force_cpu_hides_every_gpu(told: dict) -> None:
    """None is left."""
    assert told["forced"] == []


def test_stand_ins_are_reused_after_the_start(told: dict) -> None:
    """As many as exist can be had at any time."""
    assert told["started"]
    assert told["fewer"] == ["gpu:0", "cpu:0"]


def test_stand_ins_too_late_are_refused(told: dict) -> None:
    """The message says what there is and what to do."""
    assert told["more"].startswith("ConfigError: too late for 4 stand-in GPUs")
    assert "already started with 3" in told["more"]
    assert "before the first layer" in told["more"]


def test_settings_too_late_are_named_together(told: dict) -> None:
    """Every late setting is listed with its source."""
    assert "too late: TensorFlow has already started" in told["late"]
    assert "cpu_threads=3 (sn.configure)" in told["late"]
    assert "cpu_devices=9 (sn.configure)" in told["late"]


def test_settings_that_hold_already_are_not_late(told: dict) -> None:
    """Applying the same twice is harmless, even after the start."""
    assert told["same"] == "nothing"


def test_settings_that_may_change_any_time_are_not_late(told: dict) -> None:
    """Soft placement can be switched at any time."""
    assert told["any time"] == "nothing"
    assert told["soft now"] is True


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Settings of a file that also serves a machine with GPUs."""
    folder = tmp_path_factory.mktemp("shared")
    (folder / "splitnet.toml").write_text(
        'visible = "0"\nmemory_growth = true\ncpu_threads = 2\n'
    )
    return story(
        """
        import tensorflow as tf
        from splitnet.tf.runtime.configure import check_settings, current
        answer = {"real": said(lambda: sn.local_cluster())}
        answer["notes"] = check_settings(current()).notes
        sn.local_cluster(stand_in_gpus=1)
        answer["threads"] = tf.config.threading.get_intra_op_parallelism_threads()
        answer["later"] = said(lambda: sn.configure(soft_placement=False))

        os.environ["SPLITNET_VISIBLE"] = "none"
        os.environ["SPLITNET_CPU_DEVICES"] = "3"
        os.environ["SPLITNET_INTER_OP_THREADS"] = "1"
        answer["names"] = [d.name for d in sn.local_cluster()]
        answer["devices"] = len(tf.config.list_logical_devices("CPU"))
        answer["across"] = tf.config.threading.get_inter_op_parallelism_threads()
        """,
        folder,
        TF_FORCE_GPU_ALLOW_GROWTH="true",
        OMP_NUM_THREADS="7",
    )


def test_settings_of_gpus_do_not_stop_stand_ins(shared_file: dict) -> None:
    """`visible = "0"` holds on the machine with a GPU; stand-ins need none."""
    assert "visible=(0,) (splitnet.toml): there is no GPU 0" in shared_file["real"]
    assert shared_file["threads"] == 2
    assert shared_file["later"] == "nothing"


def test_configure_warns_of_settings_without_effect(told: dict) -> None:
    """A memory limit of GPUs does nothing where there are none."""
    assert told["warned"] == ["memory_limit: no effect, TensorFlow finds no GPU here."]


def test_check_names_what_has_no_effect_or_is_set_twice(shared_file: dict) -> None:
    """Growth and threads may also be set outside of splitnet."""
    notes = "\n".join(shared_file["notes"])

    assert "memory_growth=True (splitnet.toml) has no effect" in notes
    assert "TF_FORCE_GPU_ALLOW_GROWTH='true' decides memory growth" in notes
    assert "OMP_NUM_THREADS='7' limits threads" in notes


def test_settings_of_the_environment_are_applied(shared_file: dict) -> None:
    """They beat those of the file."""
    assert shared_file["names"] == ["cpu:0", "cpu:1", "cpu:2"]
    assert (shared_file["devices"], shared_file["across"]) == (3, 1)


def test_start_up_lines_are_hidden(told: dict) -> None:
    """From the machine to the first tensor, also where a log level is set."""
    assert told["stderr"] == ""
