"""Ctrl-C in the middle of `metasched tune`: a clean end with the best so far, then a resumption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from metasched.search.run import uninterrupted

SHAPE = "1,16,16,16"


def started(folder, trials: int) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "metasched", "tune", "gmm", "--shape", SHAPE, "--trials",
        str(trials), "--work-dir", str(folder), "--no-peer", "--strategy", "random", "--json",
    ]  # fmt: skip
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def trials_logged(folder) -> int:
    log = folder / "events.jsonl"
    return log.read_text().count('"TrialDone"') if log.exists() else 0


def test_ctrl_c_ends_cleanly_and_a_second_run_goes_on(tmp_path, cli, made_up):
    run = started(tmp_path / "w", 10_000)
    end = time.monotonic() + 60
    while trials_logged(tmp_path / "w") < 3 and run.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGINT)  # what a terminal does: the whole group is told
    out, err = run.communicate(timeout=30)
    assert run.returncode == 130, err
    assert "Traceback" not in err and "ended after" in err and ": interrupted\n" in err
    data = json.loads(out)
    assert data["ended"] == "interrupted" and data["trials"] >= 3
    assert data["best"]["seconds"] > 0 and os.path.exists(data["best"]["trace"])
    records = cli("db", tmp_path / "w", "--limit", 10_000, "--json").json()
    assert len([r for r in records if r["samples"]]) == data["trials"] - data["failed"]

    known = data["trials"]
    ran = cli(
        "tune", "gmm", "--shape", SHAPE, "--trials", known + 2, "--work-dir", tmp_path / "w",
        "--no-peer", "--strategy", "random", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert f"{known} known already" in ran.err and ran.json()["trials"] == known + 2
    keys = [
        r["candidate_key"] for r in cli("db", tmp_path / "w", "--limit", 10_000, "--json").json()
    ]
    assert len(keys) == len(set(keys))


def test_ctrl_c_before_the_first_trial(tmp_path):
    run = started(tmp_path / "w", 100)
    time.sleep(0.8)
    run.send_signal(signal.SIGINT)
    try:
        _, err = run.communicate(timeout=5)
    except subprocess.TimeoutExpired:  # Python ignores what a weakref's callback raises: again
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=30)
    assert run.returncode in (130, -signal.SIGINT), err  # -2: the interpreter itself was starting
    if run.returncode == 130:
        assert "Exception ignored" in err or "Traceback" not in err


LOADING = """
import importlib, sys
import metasched.__main__ as command
load = importlib.import_module
def told(*module, **package):
    print("loading", flush=True)
    return load(*module, **package)
importlib.import_module = told
sys.exit(command.main())
"""


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 0.2, 0.4])
def test_ctrl_c_while_modules_load(tmp_path, delay):
    command = [sys.executable, "-c", LOADING, "tune", "gmm", "--shape", SHAPE, "--no-peer"]
    run = subprocess.Popen(
        [*command, "--trials", "1000", "--work-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert run.stdout.readline() == "loading\n"
    time.sleep(delay)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130 and "Traceback" not in err and "ignored" not in err


COMMAND = """
import atexit, ctypes, gc, os, signal, sys, threading, time, weakref
import metasched.__main__ as command
import metasched.cli as cli
from metasched.errors import MetaschedError

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

def wait():
    for _ in range(100):
        time.sleep(0.1)

class Thing:
    pass

def run(arguments):
{body}
    return 0

cli.run = run
sys.argv = ["metasched", "targets"]
sys.exit(command.main())
"""
TURNED = """
    try:
        interrupt()
        wait()
    except BaseException as error:
        raise {kind}("multiarray failed to import") from error
"""
POINTS = {
    "into an ImportError": TURNED.format(kind="ImportError"),
    "into an error of ours": TURNED.format(kind="MetaschedError"),
    "inside an import": """
    sys.path.insert(0, {folder!r})
    import turning
    print("imported", flush=True)
    wait()""",
    "in an import that never ends": """
    sys.path.insert(0, {folder!r})
    import endless""",
    "in __del__": """
    Thing.__del__ = lambda self: (interrupt(), time.sleep(0.1))
    Thing()
    wait()""",
    "in the callback of a weak reference": """
    thing = Thing()
    held = weakref.ref(thing, lambda ref: (interrupt(), time.sleep(0.1)))
    del thing
    wait()""",
    "in a constructor, before what the destructor reads": """
    class Half:
        def __init__(self):
            interrupt()
            wait()
            self.closed = False

        def __del__(self):
            return self.closed

    Half()""",
    "in a callback of C": """
    ctypes.CFUNCTYPE(None)(lambda: (interrupt(), time.sleep(0.1)) and None)()
    wait()""",
    "by another thread": """
    threading.Thread(target=interrupt).start()
    wait()""",
    "at the end of the interpreter": """
    atexit.register(lambda: (interrupt(), time.sleep(1)))""",
    "with an error code": """
    try:
        interrupt()
        wait()
    except BaseException:
        return 1""",
}


@pytest.mark.parametrize("point", POINTS)
def test_ctrl_c_at_any_point_ends_with_130_and_no_traceback(tmp_path, point):
    (tmp_path / "endless.py").write_text(
        "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\n"
        "while True:\n    time.sleep(0.1)\n"
    )
    (tmp_path / "turning.py").write_text(
        "import os, signal, time\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "    time.sleep(0.2)\nexcept BaseException as error:\n"
        "    raise ImportError('multiarray failed to import') from error\n"
    )
    text = COMMAND.format(body=POINTS[point].replace("{folder!r}", repr(str(tmp_path))))
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert run.returncode == 130, run.stderr
    assert "Traceback" not in run.stderr and "ignored" not in run.stderr
    assert ("imported" in run.stdout) == (point == "inside an import")


def test_an_error_without_an_interrupt_keeps_its_traceback_and_code():
    failing = COMMAND.format(body="    raise ImportError('no such thing')")
    run = subprocess.run([sys.executable, "-c", failing], capture_output=True, text=True)
    assert run.returncode == 1 and "ImportError: no such thing" in run.stderr
    coded = COMMAND.format(body="    return 3")
    assert subprocess.run([sys.executable, "-c", coded]).returncode == 3


HOOKED = """
import os, signal, sys
class Told:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {name!r} and not Told.done:
            Told.done = True
            os.kill(os.getpid(), signal.SIGINT)
    done = False
sys.meta_path.insert(0, Told())
import metasched.__main__ as command
sys.exit(command.main())
"""


@pytest.mark.parametrize("name", ["lightgbm", "llvmlite", "scipy"])
def test_ctrl_c_in_the_import_of_a_library(tmp_path, name):
    command = [sys.executable, "-c", HOOKED.format(name=name), "tune", "gmm", "--shape", SHAPE]
    command += ["--trials", "200000", "--work-dir", str(tmp_path), "--no-peer"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 130, run.stderr
    assert "Traceback" not in run.stderr and "ignored" not in run.stderr


def test_an_interrupt_waits_until_an_outcome_is_stored():
    """Another thread may get the signal; Python calls the handler in the main thread."""
    stop, done = threading.Event(), []
    idle = threading.Thread(target=stop.wait)
    idle.start()
    try:
        with pytest.raises(KeyboardInterrupt), uninterrupted():
            signal.pthread_kill(idle.ident or 0, signal.SIGINT)
            time.sleep(0.05)  # the signal arrives
            done.append("stored")
    finally:
        stop.set()
        idle.join()
    assert done and signal.getsignal(signal.SIGINT) is signal.default_int_handler
