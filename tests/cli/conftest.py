"""A tuned work folder that all tests of the command line share, and a way to call it."""

from __future__ import annotations

import importlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metasched.cli import main
from metasched.measure.candidate import Outcome, Status
from metasched.measure.replay import ReplayRunner
from metasched.measure.settings import MeasureOptions
from metasched.report import contest

SHAPE = "1,16,16,16"
SHORT = 0.01  # seconds of a contestant's burst


@dataclass
class Ran:
    """What a command returned and printed."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one JSON value on standard output; fails when anything else is there."""
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def cli(capsys, monkeypatch, tmp_path):
    """Runs a command in this process, in an empty current folder.

    Replay workers and long bursts of the peers would take most of its time, and are tested
    elsewhere.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("METASCHED_SEARCH_WORKERS", "1")
    monkeypatch.setattr(contest, "_BURST", SHORT)

    def run(*arguments: object) -> Ran:
        capsys.readouterr()
        try:
            code = main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
        told = capsys.readouterr()
        return Ran(code, told.out, told.err)

    return run


@dataclass
class Tuned:
    """The shared work folder: do not write to it, `copy` it."""

    folder: Path
    data: dict[str, Any]
    err: str

    @property
    def trace(self) -> Path:
        return Path(self.data["best"]["trace"])

    def copy(self, to: Path) -> Path:
        return Path(shutil.copytree(self.folder, to))


@pytest.fixture(scope="session")
def tuned(tmp_path_factory) -> Tuned:
    """`metasched tune gmm` with four trials on this machine, with NumPy beside it."""
    import contextlib
    import io

    folder = tmp_path_factory.mktemp("tuned") / "work"
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patch,
    ):  # fmt: skip
        patch.setattr(contest, "_BURST", SHORT)
        patch.setenv("METASCHED_SEARCH_WORKERS", "1")
        code = main(
            ["tune", "gmm", "--shape", SHAPE, "--trials", "4", "--seed", "3", "--json",
             "--work-dir", str(folder)]
        )  # fmt: skip
    assert code == 0, err.getvalue()
    return Tuned(folder, json.loads(out.getvalue()), err.getvalue())


class MadeUpRunner(ReplayRunner):
    """Stands in for this machine where a test is about something else: no worker, no waiting."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__(cost=lambda c: 1e-6 * (1 + int(c.key[:4], 16) / 65536))
        self.options = MeasureOptions()

    def unscheduled(self) -> Outcome:
        return Outcome(Status.OK, (1e-3,))

    def verify(self, module: Any) -> Outcome:
        return Outcome(Status.OK, (1e-6,))

    def interleave(self, candidates: Any, rounds: int, fresh: bool) -> list[tuple[float]]:
        return [(1e-6 * (1 + n),) for n, _ in enumerate(candidates)]


@pytest.fixture
def made_up(monkeypatch):
    """Measures on a machine that is not there, for the rest of the test."""
    module = importlib.import_module("metasched.kinds.cpu")
    monkeypatch.setattr(module, "LocalRunner", MadeUpRunner)


PROGRAM = """
from metasched.script import tir as T

@T.prim_func
def scale(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] * T.float32(2)

@T.prim_func
def shift(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + T.float32(2)
"""


@pytest.fixture
def program(tmp_path) -> Path:
    """A file of two functions."""
    path = tmp_path / "mine.py"
    path.write_text(PROGRAM)
    return path
