"""Settings: precedence, conversion, and errors that name the place of the bad value."""

from __future__ import annotations

import dataclasses

import pytest

from metasched import config
from metasched.errors import ConfigError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for field in dataclasses.fields(config.Config):
        monkeypatch.delenv(config.PREFIX + field.name.upper(), raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, text):
    (folder / "pyproject.toml").write_text(text)


def test_defaults(folder):
    assert config.load() == config.Config()
    assert config.load().trials == 64


def test_argument_beats_environment_beats_file_beats_default(folder, monkeypatch):
    write(folder, "[tool.metasched]\ntrials = 5\n")
    assert config.load().trials == 5
    monkeypatch.setenv("METASCHED_TRIALS", "7")
    assert config.load().trials == 7
    assert config.load(trials=9).trials == 9
    assert config.load(trials=None).trials == 7


def test_describe_tells_the_place(folder, monkeypatch):
    write(folder, "[tool.metasched]\nseed = 5\n")
    monkeypatch.setenv("METASCHED_TRIALS", "7")
    rows = {row.name: row for row in config.describe(model="random")}
    assert rows["trials"].source == "environment variable METASCHED_TRIALS"
    assert rows["seed"].source.startswith("seed in [tool.metasched] of ")
    assert rows["model"].source == "argument model"
    assert rows["threads"].source == "default"
    assert rows["trials"].variable == "METASCHED_TRIALS"
    assert all(row.help for row in rows.values())


def test_types_from_the_environment(folder, monkeypatch):
    monkeypatch.setenv("METASCHED_PLUGINS", "a.py, b.py,")
    monkeypatch.setenv("METASCHED_BUILD_TIMEOUT", "2")
    assert config.load().plugins == ("a.py", "b.py")
    assert config.load().build_timeout == 2.0


def test_types_from_the_file(folder):
    write(folder, '[tool.metasched]\nplugins = ["a.py"]\nrun_timeout = 3\n')
    assert config.load().plugins == ("a.py",)
    assert config.load().run_timeout == 3.0


def test_work_dir_takes_a_path(folder):
    assert config.load(work_dir=folder).work_dir == str(folder)


def test_a_changed_file_is_read_again(folder):
    import os

    write(folder, "[tool.metasched]\ntrials = 5\n")
    assert config.load().trials == 5
    write(folder, "[tool.metasched]\ntrials = 6\n")
    os.utime(folder / "pyproject.toml", ns=(1, 1))
    assert config.load().trials == 6


def test_another_folder(folder):
    other = folder / "other"
    other.mkdir()
    write(other, "[tool.metasched]\ntrials = 3\n")
    assert config.load().trials == 64
    assert config.load(other).trials == 3


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("TRIALS", "many", "environment variable METASCHED_TRIALS: 'many' is not an integer"),
        ("TRIALS", "0", "METASCHED_TRIALS: '0' is too small, the least is 1"),
        ("RUN_TIMEOUT", "soon", "METASCHED_RUN_TIMEOUT: 'soon' is not a number"),
        ("RUN_TIMEOUT", "nan", "METASCHED_RUN_TIMEOUT: 'nan' is too small"),
    ],
)
def test_bad_environment(folder, monkeypatch, variable, value, message):
    monkeypatch.setenv(config.PREFIX + variable, value)
    with pytest.raises(ConfigError, match=message):
        config.load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.metasched]\ntrial = 1\n", r"no setting is called 'trial'; did you mean trials\?"),
        ("[tool.metasched]\ntrials = 1.5\n", "trials in .*pyproject.toml: 1.5 is not an integer"),
        ("[tool.metasched]\ntrials = true\n", "True is not an integer"),
        ("[tool.metasched]\nplugins = [1]\n", "is not a list of texts"),
        ("[tool]\nmetasched = 1\n", "tool.metasched must be a table"),
        ("[tool.metasched\n", "pyproject.toml cannot be read"),
    ],
)
def test_bad_file(folder, text, message):
    write(folder, text)
    with pytest.raises(ConfigError, match=message):
        config.load()


def test_bad_argument(folder):
    with pytest.raises(ConfigError, match="argument trials: 'x' is not an integer"):
        config.load(trials="x")
    with pytest.raises(ConfigError, match="argument: no setting is called 'tries'"):
        config.load(tries=3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("trials", "x y " * 2500), ("build_timeout", 10**4000), ("debug", ["x" * 10_000] * 50),
     ("observers", 10**4000)],
)  # fmt: skip
def test_long_values_are_clipped(folder, name, value):
    with pytest.raises(ConfigError, match=f"argument {name}: ") as caught:
        config.load(**{name: value})
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["x" * 10_000, "x = " + "1" * 10_000, "[tool.metasched]\n" + "x" * 10_000 + " = 1"]
)
def test_long_lines_are_clipped(folder, text):
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert len(str(caught.value)) < 400 + len(str(folder))


def test_misspelt_variables_are_found(folder, monkeypatch):
    monkeypatch.setenv("METASCHED_TRAILS", "7")
    assert "METASCHED_TRAILS" in config.unknown_variables()
    assert "METASCHED_TRIALS" not in config.unknown_variables()


def test_bool_words():
    assert config._as_text("On", bool) is True
    assert config._as_text("no", bool) is False
    with pytest.raises(ValueError, match="maybe"):
        config._as_text("maybe", bool)
