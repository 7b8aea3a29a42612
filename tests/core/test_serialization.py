"""How files are read and replaced; what of them is refused is in `test_declare`."""

import os
import stat
from math import nan
from pathlib import Path
from unittest.mock import Mock

import pytest

from splitnet.core.errors import PlanFileError
from splitnet.core.serialization import load_file, user_cache, write_bytes, write_json


def test_only_regular_files_of_some_size_are_read_and_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with (tmp_path / "big").open("wb") as file:
        file.truncate((1 << 30) + 1)
    odd, none = "not a regular file", "No such file"
    both = {"": odd, "pipe": odd, os.devnull: odd, "a\0b": "null (byte|character)"}
    reads = both | {"link": none, "nothing": none, "big": "larger than"}
    writes = both | {"circle": odd, "not/there": "there is no folder"}
    for name, message in reads.items():
        with pytest.raises(PlanFileError, match=message):
            load_file(tmp_path / name, "plan", dict)
    for name, message in writes.items():
        with pytest.raises(PlanFileError, match=message):
            write_bytes(b"", tmp_path / name, "picture")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["big", "circle", "link", "pipe"]


def test_without_a_home_there_is_no_cache(monkeypatch):
    """As of a container's user who has no entry in the list of users."""
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert user_cache() == []
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache")
    assert user_cache() == [Path("/var/cache/splitnet")]


def test_writing_keeps_mode_and_link(tmp_path):
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
    assert load_file(path, "plan", dict) == {"a": 1}


def test_a_failed_write_leaves_the_old_file_alone(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    write_json({"old": 1}, path, "plan")
    for error in (OSError("disk full"), KeyboardInterrupt()):
        monkeypatch.setattr(os, "fsync", Mock(side_effect=error))
        with pytest.raises((PlanFileError, KeyboardInterrupt)):
            write_json({"new": 1}, path, "plan")
    for values in ({"a": nan}, {"a": "\ud800"}, {"a": object()}):
        with pytest.raises(PlanFileError, match="cannot write the plan"):
            write_json(values, path, "plan")
    assert load_file(path, "plan", dict) == {"old": 1}
    assert os.listdir(tmp_path) == ["plan.json"]
