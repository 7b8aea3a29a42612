"""The commands about this machine: run, devices looked at again, settings checked."""

from pathlib import Path

import pytest

from splitnet.cli import machine, main

pytestmark = pytest.mark.tf

GIB = 2**30


def test_run_names_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No such script, and flags that exclude each other, are words and exit code 2."""
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit(3)")

    assert main(["run", "none.py"]) == 2
    assert "there is no script 'none.py'" in capsys.readouterr().err
    assert main(["run", "--cpu", "--gpus", "0", str(script)]) == 2
    assert "--cpu and --gpus exclude each other" in capsys.readouterr().err


def test_devices_are_looked_at_again_and_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """--watch shows the table until it is interrupted; memory, users, links in it."""
    row = {
        "name": "gpu:0",
        "kind": "gpu",
        "target": "/device:GPU:0",
        "stand_in": False,
        "free_bytes": 60 * GIB,
        "flops_per_second": 1e12,
        "model": "A100",
        "capability": "8.0",
        "memory_bytes": 80 * GIB,
        "busy": 0.25,
        "watts": 100.0,
        "used_by": [(4711, 20 * GIB)],
        "links": [1],
    }
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(machine, "_device_rows", lambda stand_ins: [row])
    monkeypatch.setattr(machine.time, "sleep", wait)

    assert main(["devices", "--watch", "0.5"]) == 130
    printed = capsys.readouterr().out
    assert waits == [0.5] * 3
    assert printed.count("gpu:0") == 3
    for figure in ("A100 (cc 8.0)", "60.0 GiB", "80.0 GiB", "25%", "4711 (20.0 GiB)"):
        assert printed.count(figure) == 3
    assert printed.count("gpu:1") == 3


def test_config_can_be_held_against_this_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """--check finds what only the machine can tell; without it the table is shown."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLITNET_VISIBLE", "97")

    assert main(["config"]) == 0
    assert main(["config", "--check"]) == 2
    said = capsys.readouterr().err
    assert "visible=(97,) (SPLITNET_VISIBLE): there is no GPU 97" in said
    monkeypatch.setenv("SPLITNET_VISIBLE", "none")
    assert main(["config", "--check"]) == 0
    assert "SPLITNET_VISIBLE" in capsys.readouterr().out
