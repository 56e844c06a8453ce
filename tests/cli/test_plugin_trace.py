"""A stored trace whose steps a plug-in file brings: every command that reads it takes the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from database.records import record

import metasched as ms
from metasched.database.record import TraceFile
from metasched.registry import load_plugin, taken_back

PLUGIN = Path(__file__).parents[1] / "schedule" / "reverse.py"


@pytest.fixture
def trace(tmp_path):
    """A trace of gmm in which a loop runs backwards."""
    func = ms.workloads.get("gmm").func((1, 4, 4, 4))
    with taken_back(always=True):
        load_plugin(PLUGIN)
        sch = ms.Schedule(func, seed=0)
        sch.reverse(sch.get_loops("Z")[1])
        steps = json.loads(sch.trace.to_json())
        stored = record(
            workload=ms.structural_hash(func), script=func.script(), trace=steps,
            target=ms.Target.native(), check="exact",
        )  # fmt: skip
        return TraceFile.from_record(stored).save(tmp_path / "backwards.json")


@pytest.fixture(autouse=True)
def primitives_of_before():
    with taken_back(always=True):
        yield


GMM = ("gmm", "--shape", "1,4,4,4")


def test_replay_build_and_show_take_the_plug_in_file(cli, trace, tmp_path):
    ran = cli("replay", trace, *GMM, "--plugin", PLUGIN)
    assert ran.code == 0 and "3 - " in ran.out, ran.err
    assert cli("build", trace, "-o", tmp_path / "built", "--plugin", PLUGIN).code == 0
    assert "sch.reverse(" in cli("show", trace, "--plugin", PLUGIN).out


def test_the_setting_names_it_too(cli, trace, monkeypatch):
    monkeypatch.setenv("METASCHED_PLUGINS", str(PLUGIN))
    assert "3 - " in cli("replay", trace, *GMM).out


def test_without_the_file_the_step_is_named(cli, trace):
    ran = cli("replay", trace, *GMM)
    hint = "if a plug-in file declares it, name the file (`plugins=`, --plugin)"
    assert ran.code != 0 and "no primitive is called 'reverse'; " in ran.err and hint in ran.err
