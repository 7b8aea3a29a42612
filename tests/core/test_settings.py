"""Runtime settings as plain values: parsing, precedence, contradictions."""

import pytest

from splitnet.core.errors import ConfigError
from splitnet.core.settings import OPTIONS, config_file, resolve


@pytest.fixture
def settled(tmp_path):
    """The settings of a program in a folder with a settings file, if it has text."""

    def settle(code=None, environ=None, file=""):
        if file:
            (tmp_path / "splitnet.toml").write_text(file)
        return resolve(code or {}, environ or {}, tmp_path)

    return settle


def test_settings_code_beats_environment_beats_file(settled):
    """Variables of splitnet that are no settings, such as a cluster's, are no fault."""
    usual = settled(environ={"SPLITNET_CLUSTER": "cluster.toml"})
    assert [setting.name for setting in usual] == list(OPTIONS)
    assert {(setting.origin, setting.value) for setting in usual} == {("default", None)}
    file = "cpu_threads = 1\ninter_op_threads = 1\ncpu_devices = 1\n"
    environ = {"SPLITNET_CPU_THREADS": "2", "SPLITNET_INTER_OP_THREADS": "2"}
    settings = settled({"cpu_threads": 3}, environ, file)
    names = "cpu_threads", "inter_op_threads", "cpu_devices"
    found = [(settings[name], settings.all[name].origin) for name in names]
    assert found == [(3, "code"), (2, "environment"), (1, "file")]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("visible", "0,1", (0, 1)),
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
def test_options_take_the_usual_spellings(settled, name, given, value):
    assert settled({name: given})[name] == value
    if isinstance(given, str):
        assert settled(environ={f"SPLITNET_{name.upper()}": given})[name] == value


@pytest.mark.parametrize(
    ("message", "name", "values"),
    [
        ("visible must be GPU indi", "visible", ("a", "0,0", -1, [0, "x"], True, None)),
        ("must be float >= 0.001 and <= 1", "memory_fraction", (0, 1.5, "half", True)),
        ("memory_limit must be 1 MiB or more", "memory_limit", ["12 B"]),
        ("memory_limit .* must be zero or more", "memory_limit", ["4 parsecs"]),
        ("cpu_threads must be int >= 1", "cpu_threads", (0, "two", 1.5, True)),
        ("memory_growth must be true or false", "memory_growth", ["maybe"]),
        ("Did you mean 'memory_growth'", "memory_grwoth", [True]),
        ("logical_gpus=2 .* needs the memory of each", "logical_gpus", [2]),
    ],
)
def test_impossible_settings_are_refused(settled, message, name, values):
    for value in values:
        with pytest.raises(ConfigError, match=message):
            settled({name: value})


def test_what_tensorflow_cannot_do_both_is_named_before_it_is_asked(settled):
    limit, fraction = {"memory_limit": "4 GiB"}, {"memory_fraction": 0.5}
    growth = {"memory_growth": True}
    pairs = growth | limit, growth | fraction, limit | fraction
    for code in (*pairs, growth | {"logical_gpus": 2}):
        with pytest.raises(ConfigError, match="cannot both be set"):
            settled(code)
    settings = settled(limit, file="memory_growth = true\n")
    off = settled(limit | {"memory_growth": False})
    assert settings["memory_growth"] is None
    assert settings["memory_limit"] == off["memory_limit"] == 4 * 2**30
    assert "memory_limit of the code" in settings.all["memory_growth"].source
    assert off["memory_growth"] is False


def test_all_faults_come_at_once(settled):
    environ = {"SPLITNET_CPU_THREADS": "0", "SPLITNET_VISBLE": "0"}
    with pytest.raises(ConfigError) as caught:
        settled({"visible": "x"}, environ, 'determinism = "maybe"')
    for said in ("sn.configure", "SPLITNET_CPU_THREADS", "splitnet.toml", "'visible'?"):
        assert said in str(caught.value)


def test_settings_file_is_found_upwards_or_named_or_the_projects(tmp_path):
    (tmp_path / "splitnet.toml").write_text("cpu_threads = 1\n")
    (tmp_path / "named.toml").write_text("cpu_threads = 7\n")
    (tmp_path / "broken.toml").write_text("cpu_threads = = 1")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)

    def named(name):
        return resolve({}, {"SPLITNET_CONFIG": str(tmp_path / name)}, inner)

    assert config_file({}, inner) == tmp_path / "splitnet.toml"
    assert named("named.toml")["cpu_threads"] == 7
    for name, said in (("none.toml", "No such file"), ("broken.toml", "it is not TO")):
        with pytest.raises(ConfigError, match=f"settings file '.*{name}': {said}"):
            named(name)
    # Or in a table of pyproject.toml, however spelled; not in a nearer one without it.
    (tmp_path / "splitnet.toml").unlink()
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    for text in ("[tool.splitnet]\ncpu_threads = 5", "tool.splitnet.cpu_threads = 5"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert resolve({}, {}, inner)["cpu_threads"] == 5
    (tmp_path / "pyproject.toml").write_text("[tool]\nsplitnet = 3")
    with pytest.raises(ConfigError, match=r"tool\.splitnet .* must be a table"):
        resolve({}, {}, tmp_path)
