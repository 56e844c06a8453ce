"""A kind of machine that one plug-in file brings is tuned for like any other, end to end."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import metasched as ms
from metasched.cli import main
from metasched.errors import TargetError
from metasched.kinds import default_trace
from metasched.registry import load_plugin, taken_back
from metasched.target import Target

PLUGIN = Path(__file__).parent / "accelerator.py"
PROGRAM = """
from metasched.script import tir as T

@T.prim_func
def product(
    A: T.Buffer((32, 32), "float32"),
    B: T.Buffer((32, 32), "float32"),
    C: T.Buffer((32, 32), "float32"),
):
    for i, j, k in T.grid(32, 32, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
"""


@pytest.fixture(autouse=True)
def kinds_of_before():
    """What the plug-in enters is gone after each test."""
    with taken_back(always=True):
        yield


def product():
    return ms.parse(PROGRAM.partition("\n\n")[2])


def tuned(folder, scratch, trials=24):
    return ms.tune(
        product(), target=f"engine -scratch={scratch}", plugins=PLUGIN, trials=trials,
        work_dir=folder, seed=0,
    )  # fmt: skip


def test_the_search_finds_the_instruction_and_fills_the_scratchpad(tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    found = {scratch: tuned(tmp_path / str(scratch), scratch) for scratch in (1024, 4096)}
    for result in found.values():
        assert result.failed == 0 and result.peak_gflops() is None
        assert "engine.cycles" in result.best.mod.script()
        assert result.best.seconds < result.default_seconds / 8
    assert found[4096].best.seconds < found[1024].best.seconds
    assert found[1024].survival.reasons["scratch-too-small"] > 0
    replayed = ms.replay(found[1024].best.path, product(), target="engine -scratch=1024")
    assert ms.structural_equal(replayed.mod, found[1024].best.mod)
    kernel = ms.build(replayed, "engine")
    a, b = np.random.default_rng(0).standard_normal((2, 32, 32)).astype(np.float32)
    c = np.zeros((32, 32), np.float32)
    kernel(a, b, c)
    assert np.allclose(c, a @ b, atol=1e-4)


def test_replaying_processes_load_the_plug_in(tmp_path, monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "2")
    assert tuned(tmp_path / "work", 4096, trials=12).best is not None  # a warning would be an error


MISSING = "if a plug-in file declares it, name the file"
HERE = "--plugin PLUGIN"
LIKE = f"{HERE} --target 'engine -scratch=2048'"
# What each command says of the engine: its words, its exit code, and a text that it prints.
AFTER_TUNING = {
    f"replay TRACE program.py:product {LIKE}": (0, "engine.cycles"),
    f"replay TRACE program.py:product {HERE}": (0, "made for kind 'engine', this target is 'cpu'"),
    f"replay TRACE program.py:product {HERE} --target engine": (0, "scratch 2048 instead of 4096"),
    "replay TRACE program.py:product": (2, f"no target kind is called 'engine'; {MISSING}"),
    f"build TRACE -o out {LIKE}": (2, "no files are made for targets of kind 'engine'"),
    f"show TRACE {HERE}": (0, "instruction engine.product_8x8x8"),
    f"show program.py:product --what asm {LIKE}": (2, "kind 'engine' have no asm text"),
    f"show program.py:product --what passes {LIKE}": (2, "there are no passes for targets of kind"),
    f"show program.py:product {LIKE}": (2, "--target is for --what space, autoscheduled"),
    f"bench gmm {LIKE}": (2, "`metasched tune` needs none"),
    f"targets {HERE}": (0, "Options of engine: -triple= -mcpu= -num-cores= -scratch= -memory="),
    f"db work {HERE}": (0, "#0"),
    f"report work {HERE}": (0, "report.html"),
    "db work": (0, MISSING),
}


def test_the_commands_tune_and_serve_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable, "-m", "metasched", "tune", "program.py:product", "--plugin", str(PLUGIN),
        "--target", "engine -scratch=2048", "--trials", "12", "--work-dir", "work", "--json",
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    data = json.loads(ran.stdout)
    assert data["best"]["peak_fraction"] is None and data["speedup_over_default"] > 8
    monkeypatch.chdir(tmp_path)
    trace = str(tmp_path / data["best"]["trace"])
    for words, (code, text) in AFTER_TUNING.items():
        with taken_back(always=True), warnings.catch_warnings():
            warnings.simplefilter("always")
            given = [{"TRACE": trace, "PLUGIN": str(PLUGIN)}.get(w, w) for w in shlex.split(words)]
            assert main(given) == code, words
            said = capsys.readouterr()
            assert text in said.out + said.err and "damaged" not in said.err, words
    assert "records for targets of kind 'engine' are left out" in said.err


def test_a_kind_that_no_plug_in_brought_is_refused():
    with pytest.raises(TargetError, match="no target is called 'engine'"):
        ms.tune(product(), target="engine", trials=1)


def test_autoschedule_gives_the_default_schedule_where_no_cost_model_ships():
    load_plugin(PLUGIN)
    text = "default schedule: no cost model for targets of kind 'engine' ships with metasched"
    with pytest.warns(UserWarning, match=text):
        sch = ms.autoschedule(product(), "engine -scratch=4096")
    default = ms.Schedule(product())
    default_trace(product(), Target.of("engine -scratch=4096")).apply(default)
    assert ms.structural_equal(sch.mod, default.mod)
