"""Runtime settings as plain values: parsing, precedence, contradictions."""

from pathlib import Path

import pytest

from splitnet.core.errors import ConfigError
from splitnet.core.settings import OPTIONS, config_file, resolve


def settled(
    tmp_path: Path,
    code: dict | None = None,
    environ: dict | None = None,
    file: str = "",
) -> dict[str, object]:
    """The values that count, by option."""
    if file:
        (tmp_path / "splitnet.toml").write_text(file)
    settings = resolve(code or {}, environ or {}, tmp_path)
    return {setting.name: settings[setting.name] for setting in settings}


def test_settings_default_to_tensorflows_own(tmp_path: Path) -> None:
    """Nobody said anything: nothing is set, and the origin says so."""
    settings = resolve({}, {}, tmp_path)

    assert [setting.name for setting in settings] == list(OPTIONS)
    assert {setting.origin for setting in settings} == {"default"}
    assert all(settings[name] is None for name in OPTIONS)


def test_settings_code_beats_environment_beats_file(tmp_path: Path) -> None:
    """Said three times, the code's value counts; said twice, the environment's."""
    file = "cpu_threads = 1\ninter_op_threads = 1\ncpu_devices = 1\n"
    environ = {"SPLITNET_CPU_THREADS": "2", "SPLITNET_INTER_OP_THREADS": "2"}
    (tmp_path / "splitnet.toml").write_text(file)

    settings = resolve({"cpu_threads": 3}, environ, tmp_path)

    assert [
        (settings[n], settings.of(n).origin)
        for n in ("cpu_threads", "inter_op_threads", "cpu_devices")
    ] == [(3, "code"), (2, "environment"), (1, "file")]


def test_settings_name_their_source(tmp_path: Path) -> None:
    """An origin can be found again: the variable or the file by name."""
    (tmp_path / "splitnet.toml").write_text("soft_placement = false\n")

    settings = resolve({}, {"SPLITNET_DETERMINISM": "1"}, tmp_path)

    assert settings.of("soft_placement").source == "splitnet.toml"
    assert settings.of("determinism").source == "SPLITNET_DETERMINISM"


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("0,1", (0, 1)),
        ("1", (1,)),
        (1, (1,)),
        ([2, 0], (2, 0)),
        ("none", ()),
        ("", ()),
        ([], ()),
        ("all", None),
    ],
)
def test_visible_takes_the_usual_spellings(
    tmp_path: Path, given: object, meant: object
) -> None:
    """Indices as a text, a number or a list; all and none as words."""
    assert settled(tmp_path, {"visible": given})["visible"] == meant


@pytest.mark.parametrize("given", ["a", "0,0", -1, [0, "x"], 1.5, True, None])
def test_visible_refuses_what_names_no_gpu(tmp_path: Path, given: object) -> None:
    """The message says what was received and what is allowed."""
    with pytest.raises(ConfigError, match="visible must be GPU indices such as '0,1'"):
        settled(tmp_path, {"visible": given})


@pytest.mark.parametrize("given", [0, -0.5, 1.5, "half", True, float("nan")])
def test_memory_fraction_refuses_what_is_no_share(
    tmp_path: Path, given: object
) -> None:
    """A share is above 0 and up to 1."""
    with pytest.raises(ConfigError, match="memory_fraction must be a share"):
        settled(tmp_path, {"memory_fraction": given})


def test_memory_limit_reads_quantities(tmp_path: Path) -> None:
    """Bytes, or a text with a unit."""
    environ = {"SPLITNET_MEMORY_LIMIT": "4 GiB"}

    assert settled(tmp_path, environ=environ)["memory_limit"] == 4 * 2**30


@pytest.mark.parametrize("given", ["4 parsecs", "12 B", -1])
def test_memory_limit_refuses_what_is_no_amount(tmp_path: Path, given: object) -> None:
    """An unknown unit, next to nothing, less than nothing."""
    with pytest.raises(ConfigError, match="memory_limit must be 1 MiB or more"):
        settled(tmp_path, {"memory_limit": given})


@pytest.mark.parametrize("given", [0, "two", 1.5, True])
def test_counts_are_whole_and_positive(tmp_path: Path, given: object) -> None:
    """Threads and devices come in whole numbers."""
    with pytest.raises(ConfigError, match="cpu_threads must be a whole number"):
        settled(tmp_path, {"cpu_threads": given})


def test_flags_are_words_in_the_environment(tmp_path: Path) -> None:
    """On and off, yes and no, as people write them."""
    environ = {"SPLITNET_MEMORY_GROWTH": "Yes", "SPLITNET_SOFT_PLACEMENT": "off"}

    values = settled(tmp_path, environ=environ)

    assert (values["memory_growth"], values["soft_placement"]) == (True, False)


def test_flags_refuse_other_words(tmp_path: Path) -> None:
    """A word that is neither yes nor no is a fault, not a no."""
    with pytest.raises(ConfigError, match="memory_growth must be true or false"):
        settled(tmp_path, environ={"SPLITNET_MEMORY_GROWTH": "maybe"})


@pytest.mark.parametrize(
    ("given", "meant"), [("ops", "ops"), (True, "branches"), ("0", False)]
)
def test_log_placement_knows_two_grains(
    tmp_path: Path, given: object, meant: object
) -> None:
    """A line per branch unless every operation is asked for."""
    assert settled(tmp_path, {"log_placement": given})["log_placement"] == meant


def test_log_placement_refuses_other_grains(tmp_path: Path) -> None:
    """The message lists the choices."""
    with pytest.raises(ConfigError, match="'branches', 'ops', true or false"):
        settled(tmp_path, {"log_placement": "layers"})


def test_variables_that_are_no_settings_are_left_alone(tmp_path: Path) -> None:
    """The file of settings and the file of a cluster are named by variables too."""
    values = settled(tmp_path, environ={"SPLITNET_CLUSTER": "cluster.toml"})

    assert set(values.values()) == {None}


def test_unknown_variables_are_faults(tmp_path: Path) -> None:
    """A variable with a slip in its name is not passed over."""
    with pytest.raises(ConfigError, match="Did you mean 'visible'"):
        settled(tmp_path, environ={"SPLITNET_VISBLE": "0"})


def test_unknown_settings_suggest_the_near_one(tmp_path: Path) -> None:
    """A slip of the pen is answered with the name that was meant."""
    with pytest.raises(ConfigError, match="Did you mean 'memory_growth'"):
        settled(tmp_path, {"memory_grwoth": True})


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    """Faults of the code, the environment and the file stand in one message."""
    with pytest.raises(ConfigError) as caught:
        settled(
            tmp_path,
            {"visible": "x"},
            {"SPLITNET_CPU_THREADS": "0"},
            'determinism = "maybe"',
        )

    for source in ("sn.configure", "SPLITNET_CPU_THREADS", "splitnet.toml"):
        assert source in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"memory_growth": True}, {"memory_limit": "4 GiB"}),
        ({"memory_growth": True}, {"memory_fraction": 0.5}),
        ({"memory_growth": True}, {"logical_gpus": 2, "memory_limit": "1 GiB"}),
        ({"memory_limit": "4 GiB"}, {"memory_fraction": 0.5}),
    ],
)
def test_contradictions_of_one_origin_are_refused(
    tmp_path: Path, one: dict, other: dict
) -> None:
    """What TensorFlow cannot do both is named before TensorFlow is asked."""
    with pytest.raises(ConfigError, match="cannot both be set"):
        settled(tmp_path, one | other)


def test_growth_that_is_off_contradicts_nothing(tmp_path: Path) -> None:
    """To say no to growth and to set a limit agrees with itself."""
    values = settled(tmp_path, {"memory_growth": False, "memory_limit": "4 GiB"})

    assert values["memory_limit"] == 4 * 2**30


def test_contradictions_between_origins_are_won_by_the_stronger(tmp_path: Path) -> None:
    """A limit in the code sets the file's growth aside, and says so."""
    (tmp_path / "splitnet.toml").write_text("memory_growth = true\n")

    settings = resolve({"memory_limit": "4 GiB"}, {}, tmp_path)

    assert settings["memory_growth"] is None
    assert settings["memory_limit"] == 4 * 2**30
    assert "memory_limit of the code" in settings.of("memory_growth").set_aside


def test_logical_gpus_need_a_size(tmp_path: Path) -> None:
    """TensorFlow cannot cut a GPU without being told how much each part gets."""
    with pytest.raises(ConfigError, match="logical_gpus=2 .* needs the memory of each"):
        settled(tmp_path, {"logical_gpus": 2})


def test_settings_file_is_found_upwards(tmp_path: Path) -> None:
    """The nearest file counts, from the folder of the program to the root."""
    (tmp_path / "splitnet.toml").write_text("cpu_threads = 1\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)

    assert config_file({}, inner) == tmp_path / "splitnet.toml"


def test_settings_file_may_be_the_projects(tmp_path: Path) -> None:
    """A [tool.splitnet] table of pyproject.toml serves; one without it does not."""
    (tmp_path / "pyproject.toml").write_text("[tool.splitnet]\ncpu_threads = 5\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (inner / "pyproject.toml").write_text("[tool.other]\n")

    assert resolve({}, {}, inner)["cpu_threads"] == 5


@pytest.mark.parametrize(
    "text", ["tool.splitnet.cpu_threads = 5", "[tool]\nsplitnet = {cpu_threads = 5}"]
)
def test_settings_of_a_project_may_be_spelled_as_toml_allows(
    tmp_path: Path, text: str
) -> None:
    """Dotted keys and inline tables are the same table; none is passed over."""
    (tmp_path / "pyproject.toml").write_text(text)

    assert resolve({}, {}, tmp_path)["cpu_threads"] == 5


def test_settings_of_a_project_are_a_table(tmp_path: Path) -> None:
    """Anything else is named."""
    (tmp_path / "pyproject.toml").write_text("[tool]\nsplitnet = 3")

    with pytest.raises(ConfigError, match=r"tool\.splitnet .* must be a table"):
        resolve({}, {}, tmp_path)


def test_settings_file_can_be_named(tmp_path: Path) -> None:
    """SPLITNET_CONFIG beats the search."""
    named = tmp_path / "elsewhere.toml"
    named.write_text("cpu_threads = 7\n")
    (tmp_path / "splitnet.toml").write_text("cpu_threads = 1\n")

    settings = resolve({}, {"SPLITNET_CONFIG": str(named)}, tmp_path)

    assert settings["cpu_threads"] == 7


def test_settings_file_that_is_missing_is_a_fault(tmp_path: Path) -> None:
    """A file that was named and is not there is not passed over."""
    with pytest.raises(ConfigError, match="cannot load the settings file"):
        settled(tmp_path, environ={"SPLITNET_CONFIG": str(tmp_path / "none.toml")})


def test_settings_file_that_is_broken_is_a_fault(tmp_path: Path) -> None:
    """The message names the file and what is wrong with it."""
    with pytest.raises(ConfigError, match=r"splitnet\.toml': it is not TOML"):
        settled(tmp_path, file="cpu_threads = = 1")
