"""Runtime settings as plain values: parsing, precedence, contradictions."""

from pathlib import Path

import pytest

from splitnet.core.errors import ConfigError
from splitnet.core.settings import OPTIONS, Settings, config_file, resolve


def settled(
    tmp_path: Path,
    code: dict | None = None,
    environ: dict | None = None,
    file: str = "",
) -> Settings:
    """The settings of a program in a folder with a settings file, if it has text."""
    if file:
        (tmp_path / "splitnet.toml").write_text(file)
    return resolve(code or {}, environ or {}, tmp_path)


def test_settings_code_beats_environment_beats_file(tmp_path: Path) -> None:
    """Variables of splitnet that are no settings, such as a cluster's, are no fault."""
    usual = settled(tmp_path, environ={"SPLITNET_CLUSTER": "cluster.toml"})
    assert [setting.name for setting in usual] == list(OPTIONS)
    assert {(setting.origin, setting.value) for setting in usual} == {("default", None)}

    file = "cpu_threads = 1\ninter_op_threads = 1\ncpu_devices = 1\n"
    environ = {"SPLITNET_CPU_THREADS": "2", "SPLITNET_INTER_OP_THREADS": "2"}
    settings = settled(tmp_path, {"cpu_threads": 3}, environ, file)

    assert [
        (settings[n], settings.of(n).origin)
        for n in ("cpu_threads", "inter_op_threads", "cpu_devices")
    ] == [(3, "code"), (2, "environment"), (1, "file")]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("visible", "0,1", (0, 1)),
        ("visible", "1", (1,)),
        ("visible", 1, (1,)),
        ("visible", [2, 0], (2, 0)),
        ("visible", "none", ()),
        ("visible", "", ()),
        ("visible", [], ()),
        ("visible", "all", None),
        ("memory_limit", "4 GiB", 4 * 2**30),
        ("memory_growth", "true", True),
        ("log_placement", "0", False),
    ],
)
def test_options_take_the_usual_spellings(
    tmp_path: Path, name: str, given: object, value: object
) -> None:
    """Indices, quantities and flags as people write them, in code and environment."""
    assert settled(tmp_path, {name: given})[name] == value
    if isinstance(given, str):
        environ = {f"SPLITNET_{name.upper()}": given}
        assert settled(tmp_path, environ=environ)[name] == value


@pytest.mark.parametrize(
    ("message", "code"),
    [
        *(
            ("visible must be GPU indices such as '0,1'", {"visible": one})
            for one in ("a", "0,0", -1, [0, "x"], 1.5, True, None)
        ),
        *(
            ("must be float >= 0.001 and <= 1", {"memory_fraction": one})
            for one in (0, 1.5, "half", True, float("nan"))
        ),
        ("memory_limit must be 1 MiB or more", {"memory_limit": "12 B"}),
        ("memory_limit .* must be zero or more", {"memory_limit": "4 parsecs"}),
        *(
            ("cpu_threads must be int >= 1", {"cpu_threads": one})
            for one in (0, "two", 1.5, True)
        ),
        ("memory_growth must be bool", {"memory_growth": "maybe"}),
        ("Did you mean 'memory_growth'", {"memory_grwoth": True}),
        # What TensorFlow cannot do both is named before TensorFlow is asked.
        ("cannot both be set", {"memory_growth": True, "memory_limit": "4 GiB"}),
        ("cannot both be set", {"memory_growth": True, "memory_fraction": 0.5}),
        ("cannot both be set", {"memory_growth": True, "logical_gpus": 2}),
        ("cannot both be set", {"memory_limit": "4 GiB", "memory_fraction": 0.5}),
        ("logical_gpus=2 .* needs the memory of each", {"logical_gpus": 2}),
    ],
)
def test_impossible_settings_are_refused(
    tmp_path: Path, message: str, code: dict
) -> None:
    """The message says what is allowed."""
    with pytest.raises(ConfigError, match=message):
        settled(tmp_path, code)


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """Faults of the code, the environment and the file stand in one message."""
    environ = {"SPLITNET_CPU_THREADS": "0", "SPLITNET_VISBLE": "0"}
    with pytest.raises(ConfigError) as caught:
        settled(tmp_path, {"visible": "x"}, environ, 'determinism = "maybe"')

    for said in ("sn.configure", "SPLITNET_CPU_THREADS", "splitnet.toml", "'visible'?"):
        assert said in str(caught.value)


def test_contradictions_between_origins_are_won_by_the_stronger(tmp_path: Path) -> None:
    """A limit in the code sets the file's growth aside, and says so."""
    file, limit = "memory_growth = true\n", {"memory_limit": "4 GiB"}

    settings = settled(tmp_path, limit, file=file)
    off = settled(tmp_path, limit | {"memory_growth": False})

    assert settings["memory_growth"] is None
    assert settings["memory_limit"] == off["memory_limit"] == 4 * 2**30
    assert "memory_limit of the code" in settings.of("memory_growth").source
    assert off["memory_growth"] is False


def test_settings_file_is_found_upwards_or_named(tmp_path: Path) -> None:
    """The nearest file counts, up to the root; SPLITNET_CONFIG beats the search."""
    (tmp_path / "splitnet.toml").write_text("cpu_threads = 1\n")
    named = tmp_path / "elsewhere.toml"
    named.write_text("cpu_threads = 7\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)

    assert config_file({}, inner) == tmp_path / "splitnet.toml"
    assert resolve({}, {"SPLITNET_CONFIG": str(named)}, inner)["cpu_threads"] == 7


def test_settings_may_be_in_the_project_file(tmp_path: Path) -> None:
    """A table of pyproject.toml, however spelled; a nearer file without one is not."""
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    for text in (
        "[tool.splitnet]\ncpu_threads = 5\n",
        "[tool]\nsplitnet = {cpu_threads = 5}",
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        assert resolve({}, {}, inner)["cpu_threads"] == 5

    (tmp_path / "pyproject.toml").write_text("[tool]\nsplitnet = 3")
    with pytest.raises(ConfigError, match=r"tool\.splitnet .* must be a table"):
        resolve({}, {}, tmp_path)


def test_settings_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Missing or broken."""
    (tmp_path / "broken.toml").write_text("cpu_threads = = 1")
    for name, message in (("none", "No such file"), ("broken", "it is not TOML")):
        path = tmp_path / f"{name}.toml"
        with pytest.raises(ConfigError, match=f"settings file '{path}': {message}"):
            settled(tmp_path, environ={"SPLITNET_CONFIG": str(path)})
