"""Functions of users that never return, exit or crash: named, and what they cost is bounded."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from search.tasks import TARGET, matmul, replay_runner

import metasched as ms
from metasched import watch
from metasched.postproc import run_postprocs
from metasched.registry import taken_back
from metasched.search.evolution import EvolutionarySearch, EvolutionOptions
from metasched.search.strategy import STRATEGIES
from metasched.tune import tune
from metasched.watch import Endless, called

SMALL = EvolutionOptions(drafts=256, replays=24, first=16, generations=2)
STRATEGIES.register("small", lambda task: EvolutionarySearch(task, SMALL), override=True)
PLUGIN = """
import ctypes, os, time
import metasched as ms

def here():
    with open("/proc/self/cmdline") as file:
        return "metasched.measure.worker" in file.read()

@ms.postproc("my.ending")
def ending(sch, target):
    {code}
"""


def tuned(folder: Path, code: str, **options):
    """A run whose plug-in does something; its sentences of warnings."""
    path = folder / "plug.py"
    path.write_text(PLUGIN.format(code=code))
    settings = {"target": TARGET, "trials": 16, "seed": 7, "runner": replay_runner}
    with taken_back(always=True), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        given = {**settings, "strategy": "small", "model": "random", "plugins": path, **options}
        result = tune(matmul(32), work_dir=folder / "work", **given)
    return result, [str(w.message) for w in told]


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "2")


def test_exiting_is_an_error_of_the_function_in_every_process(tmp_path):
    result, told = tuned(tmp_path, "os._exit(3)")
    (said,) = [t for t in told if "my.ending" in t]
    assert said.startswith("postproc my.ending raised SystemExit: os._exit(3); the candidates")
    assert result.trials == 1 and result.best is not None


def test_a_crash_costs_its_candidate_and_a_worker(tmp_path):
    mark = tmp_path / "mark"
    code = f"""if here() and not os.path.exists({str(mark)!r}):
        open({str(mark)!r}, "x").close()
        ctypes.string_at(0)"""
    result, told = tuned(tmp_path, code)
    said = [t for t in told if "my.ending" in t]
    assert said and "postproc my.ending ended a replay process" in said[0]
    assert "SIGSEGV" in said[0] and result.trials == 16
    assert not any("in process" in t for t in told)


def test_a_crash_on_every_candidate_ends_three_processes_and_not_this_one(tmp_path):
    result, told = tuned(tmp_path, "if here(): os.abort()")
    said = [t for t in told if "my.ending" in t]
    assert len(said) == 2 and "SIGABRT" in said[0]
    assert "ended 3 replay processes and is not called any more" in said[1]
    assert result.best is not None and result.ended == "exhausted"


def test_a_plug_in_function_that_does_not_end_is_stopped(monkeypatch):
    monkeypatch.setattr(watch, "NAMED", 0.1)
    monkeypatch.setattr(watch, "STOPPED", 0.3)

    def forever(sch, target):
        while True:
            pass

    func = matmul(8)
    with taken_back(always=True):
        mine = ms.postproc("my.forever")(forever)
        sch = ms.Schedule(func)
        named = pytest.warns(UserWarning, match="postproc my.forever still runs after 0 s; it is ")
        with named, pytest.raises(Endless, match="did not end within 0 s"):
            run_postprocs(sch, TARGET, [mine])
        start = time.monotonic()
        with pytest.raises(Endless, match="is not called any more"):
            run_postprocs(sch, TARGET, [mine])
        assert time.monotonic() - start < 0.2


def test_nothing_is_left_of_a_call_that_ends_as_it_is_stopped(monkeypatch):
    monkeypatch.setattr(watch, "NAMED", 99.0)
    monkeypatch.setattr(watch, "STOPPED", 0.05)
    plain, ends = os._exit, []
    for number in range(8):
        try:
            with called("the call", object(), stop=True):
                end = time.monotonic() + 0.1 + 0.05 * number
                while time.monotonic() < end:
                    pass
            ends.append("ended")
        except Endless:
            ends.append("stopped")
        for _ in range(2000):  # nothing comes late
            pass
    assert "stopped" in ends and os._exit is plain and not watch._RUNNING


def test_a_process_may_exit_in_other_threads_and_in_children():
    done = []
    with called("the call"):
        child = os.fork()
        if child == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with pytest.raises(SystemExit, match=r"os\._exit\(3\)"):
            os._exit(3)
        thread = threading.Thread(target=lambda: done.append(os._exit))
        thread.start()
        thread.join()
    assert done


def test_a_crash_in_this_process_shows_the_lines_of_the_plug_in(tmp_path):
    path = tmp_path / "crash.py"
    path.write_text(
        "import ctypes\nimport metasched as ms\n\n@ms.schedule_module('my.crash')\n"
        "def boom(sch, block):\n    ctypes.string_at(0)\n"
    )
    command = [sys.executable, "-m", "metasched", "tune", "gmm", "--shape", "1,8,8,8", "--trials"]
    command += ["2", "--plugin", str(path), "--work-dir", str(tmp_path), "--no-peer"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode < 0
    assert 'crash.py", line 6 in boom' in ended.stderr
