"""The commands about this machine: its settings, and devices looked at again."""

from pathlib import Path

import pytest

from splitnet.cli import device_commands, main

GIB = 2**30


def test_run_names_what_cannot_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such script, and impossible values, are words and exit code 2."""
    script = tmp_path / "job.py"
    script.write_text("raise SystemExit(3)")
    monkeypatch.setenv("SPLITNET_MEMORY_FRACTION", "1")  # restored afterwards

    assert main(["run", "none.py"]) == 2
    assert "there is no script 'none.py'" in capsys.readouterr().err
    assert main(["run", "--memory-fraction", "3", str(script)]) == 2
    assert "memory_fraction must be a finite number" in capsys.readouterr().err


def test_devices_show_memory_users_and_links(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row with every figure of a GPU."""
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
    monkeypatch.setattr(device_commands, "_device_rows", lambda stand_ins: [row])

    assert main(["devices"]) == 0
    printed = capsys.readouterr().out
    for figure in ("A100 (cc 8.0)", "60.0 GiB", "80.0 GiB", "25%", "4711 (20.0 GiB)"):
        assert figure in printed
    assert "gpu:1" in printed


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
