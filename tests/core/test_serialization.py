"""JSON and TOML files: what is refused and why, and how files are replaced."""

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from math import nan
from pathlib import Path
from typing import Any

import pytest

from splitnet.core.cluster import Cluster, Link
from splitnet.core.costs import (
    CallSeconds,
    Costs,
    UpdateSeconds,
    load_costs,
    save_costs,
)
from splitnet.core.errors import PlanFileError
from splitnet.core.graph import Graph
from splitnet.core.serialization import (
    decode,
    encode,
    load_json,
    read_values,
    write_bytes,
    write_json,
)
from tests.zoo import diamond

BOX = Cluster.of("2*gpu", "cpu")


def written(folder: Path, content: str | bytes) -> Path:
    """A file with that content."""
    path = folder / "file"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("language", "text", "message"),
    [
        ("JSON", "", "it is not JSON"),
        ("JSON", '{"a": 1, "obj', "cut off"),
        ("JSON", '{"a": NaN}', "a: the number is out of range"),
        ("JSON", '{"a": "' + "a" * 20_000 + '"}', "a: a text of 20000 characters"),
        ("JSON", '{"a": 1e999}', "a: the number is out of range"),
        ("JSON", '{"a": [1' + "0" * 400 + "]}", r"a\[0\]: the number is out of range"),
        ("JSON", '{"a": 1' + "0" * 5000 + "}", "integer string conversion"),
        ("JSON", '{"b": {"a": 1, "a": 2}}', "the key 'a' twice"),
        ("JSON", "[" * 100_000, "nested too deeply"),
        ("JSON", "[" * 80 + "]" * 80, "nested too deeply"),
        ("JSON", r'{"a": "\ud800"}', "a: control characters"),
        ("JSON", r'{"\u001b[2J": 1}', "control characters"),
        ("JSON", "\ud800".encode("utf-16", "surrogatepass"), "it is not UTF-8"),
        ("TOML", "a = 1\na = 2", "it is not TOML"),
        ("TOML", "a = nan", "a: the number is out of range"),
        ("TOML", "a = " + "[" * 5000, "nested too deeply|not TOML"),
    ],
)
def test_a_file_with_impossible_contents_is_refused(
    tmp_path: Path, language: str, text: str | bytes, message: str
) -> None:
    """Broken files, repeated keys, numbers and texts that no value has."""
    with pytest.raises(PlanFileError, match=message) as caught:
        read_values(written(tmp_path, text), "plan", language)

    assert "cannot load the plan" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_only_regular_files_of_some_size_are_read_and_replaced(tmp_path: Path) -> None:
    """Folders, pipes, devices and circular links stay what they are."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with (tmp_path / "big").open("wb") as file:
        file.truncate((1 << 30) + 1)
    both = (
        (tmp_path, "it is a folder, not a file"),
        (tmp_path / "pipe", "it is a pipe, not a file"),
        (Path(os.devnull), "it is a device"),
        (tmp_path / "a\0b", "null (byte|character)"),
    )
    for path, message in (
        *both,
        (tmp_path / "link", "No such file"),
        (tmp_path / "nothing", "No such file"),
        (tmp_path / "big", "larger than"),
    ):
        with pytest.raises(PlanFileError, match=message):
            read_values(path, "plan")
    for path, message in (
        *both,
        (tmp_path / "circle", "a link that leads nowhere"),
        (tmp_path / "not" / "there", "No such file or directory"),
    ):
        with pytest.raises(PlanFileError, match=message):
            write_bytes(b"", path, "picture")

    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["big", "circle", "link", "pipe"]


def test_errors_of_the_builder_name_the_file(tmp_path: Path) -> None:
    """What cannot be built is told with the file's name."""
    path = written(tmp_path, "[]")

    with pytest.raises(PlanFileError, match=r"the graph '.*/file': expected `object`"):
        load_json(path, "graph", lambda values: decode(values, Graph))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": "8"}, "graph.batch: expected `int`, got `str`"),
        ({"batch": True}, "graph.batch: expected `int`, got `bool`"),
        ({"batch": -1}, "graph.batch: expected `int` >= 1"),
        ({"calls": {}}, "graph.calls: expected `array`, got `object`"),
        ({"calls": [{}]}, r"graph.calls\[0\]: missing required field `name`"),
        ({"parts": [{"name": "a", "on": [3]}]}, r"parts\[0\].on\[0\]: expected `str`"),
        ({"colour": 1}, "graph: unknown field 'colour'"),
        ({"weights": [{"name": "w", "byte": 1}]}, r"weights\[0\]: unknown field"),
        ({"weights": [{"name": "w", "bytes": 2**59}]}, "more than 2\\*\\*58 bytes"),
    ],
)
def test_decode_names_the_path_of_a_fault(change: dict[str, Any], message: str) -> None:
    """Wrong types, numbers out of range and unknown fields are told with their path."""
    with pytest.raises(PlanFileError, match=message):
        decode(encode(diamond()) | change, Graph, "graph")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("target", "/device:GPU:0; rm -rf /", "there is no device"),
        ("name", "GPU:0", "its name must be 'gpu:0'"),
        ("flops_per_second", 0.0, "flops_per_second: expected `float` >= 1.0"),
    ],
)
def test_a_device_of_a_file_is_checked(field: str, value: Any, message: str) -> None:
    """TensorFlow is never told a text that is not the name of a device."""
    values = encode(BOX)
    values["devices"][0][field] = value

    with pytest.raises(PlanFileError, match=message):
        decode(values, Cluster, "cluster")


def test_a_cost_table_is_the_same_when_loaded(tmp_path: Path) -> None:
    """Measured costs are loaded as they were saved."""
    costs = Costs(
        (CallSeconds("Dense (4)", "cpu:0", 0.25, 0.5, 0.1, 0.2, 32, 8.0),),
        (UpdateSeconds("gpu", 1e9, 1e-6),),
        (
            Link("gpu:0", "gpu:1", 1e9, 1e-5),
            Link("gpu:0", "cpu:0", 1e9, 1e-5, gap_seconds=0.0),
        ),
    )
    save_costs(costs, tmp_path / "costs.json")

    assert load_costs(tmp_path / "costs.json") == costs


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"splitnet_costs": 1}, "splitnet_costs: Invalid enum value 1"),
        ({"costs": None}, "costs: expected `object`"),
        (
            {"costs": {"calls": [{"call": "a", "device": "gpu", "forward": -1.0}]}},
            r"costs.calls\[0\].forward: expected `float` >= 0.0",
        ),
    ],
)
def test_a_cost_table_names_the_field_at_fault(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    """A broken cost table, or a file that is none, is refused with its field."""
    table = {"splitnet_costs": 2, "costs": {}} | values
    with pytest.raises(PlanFileError, match=message):
        load_costs(written(tmp_path, json.dumps(table)))


def test_writing_keeps_mode_and_link(tmp_path: Path) -> None:
    """A private file stays private, a link a link; a new file follows the umask."""
    path = tmp_path / "plan.json"
    mask = os.umask(0o022)
    write_json({}, path, "plan")
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.chmod(0o600)
    (tmp_path / "link").symlink_to("plan.json")

    write_json({"a": 1}, tmp_path / "link", "plan")

    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_values(path, "plan") == {"a": 1}


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """No half of the new file is seen, and nothing is left beside it."""
    path = tmp_path / "plan.json"
    write_json({"old": 1}, path, "plan")

    def fails(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises((PlanFileError, KeyboardInterrupt)):
        write_json({"new": 1}, path, "plan")
    for values in ({"a": nan}, {"a": "\ud800"}, {"a": object()}):
        with pytest.raises(PlanFileError, match="cannot write the plan"):
            write_json(values, path, "plan")

    assert read_values(path, "plan") == {"old": 1}
    assert os.listdir(tmp_path) == ["plan.json"]


def test_threads_that_write_one_file_leave_one_of_theirs(tmp_path: Path) -> None:
    """Temporary names do not collide."""
    path = tmp_path / "plan.json"
    contents = [bytes([65 + i]) * 10_000 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_bytes(content, path, "plan"), contents))

    assert path.read_bytes() in contents
    assert os.listdir(tmp_path) == ["plan.json"]
