"""Machines without libgomp: kernels on a copy that a package brought, else serial, and a search
that needs no LightGBM.

The library is hidden as an image without it hides it, from the loader of the process and of its
children: a file of its name that is no library stands before the system's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from metasched import cost
from metasched.codegen import openmp
from metasched.cost import COST_MODELS, boosting, lightgbm_lack
from metasched.cost.lightgbm import LightGBMModel, Regression
from metasched.cost.line import LineModel, LineRegression
from metasched.errors import MetaschedError
from metasched.runtime.parallel import library_file

NAMES = ("libgomp.so.1", "libiomp5.so", "libomp.so.5", "libomp.so")


@pytest.fixture
def hidden(tmp_path):
    """The environment of a process whose loader finds no OpenMP runtime."""
    folder = tmp_path / "hidden"
    folder.mkdir()
    for name in NAMES:
        (folder / name).write_text("no library\n")
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def finished(arguments, environment, folder):
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True
    )


COPIES = list(openmp._installed())  # of a package in this environment: PyTorch brings one


def test_the_first_command_does_its_job_without_libgomp(hidden, tmp_path):
    words = "tune gmm --shape 1,32,32,32 --trials 4 --work-dir work --no-peer --json"
    done = finished(["-m", "metasched", *words.split()], hidden, tmp_path)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["trials"] == 4 and told["failed"] == 0
    warned = [line for line in done.stderr.splitlines() if "warning" in line]
    if COPIES:
        assert not warned or "run serially" not in done.stderr
        return
    (line,) = warned
    assert "learns by a line" in line and "parallel loops run serially" in line
    assert "needs more trials" in line and "apt-get install libgomp1" in line
    assert told["threads"] == 1  # what was measured is the rate of one core
    doctor = finished(["-m", "metasched", "doctor", "--json"], hidden, tmp_path)
    found = {f["name"]: f for f in json.loads(doctor.stdout)}
    assert not found["OpenMP runtime"]["ok"] and "libgomp1" in found["OpenMP runtime"]["cost"]
    assert found["lightgbm"]["found"] == "cannot be loaded"
    assert "libgomp1" in found["lightgbm"]["cost"]
    assert doctor.returncode == 0 and not doctor.stderr


USE = """
import numpy as np
import metasched as ms
from metasched import workloads
from metasched.cost import lightgbm_lack
from metasched.runtime.exported import load_exported
from metasched.runtime.parallel import library_file, max_threads

sch = ms.Schedule(workloads.get("gmm").func((1, 32, 32, 32)))
sch.parallel(sch.get_loops(sch.get_block("Z"))[1])
kernel = ms.build(sch, name="product")
kernel.export("exported")
a, b = np.random.default_rng(0).random((2, 1, 32, 32), np.float32)
for run in (kernel, load_exported("exported")):
    c = np.zeros_like(a)
    run(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-5)
assert kernel.compiled.parallel
print(max_threads(), library_file())
print(lightgbm_lack())
"""


@pytest.mark.parametrize("name", [b"libgomp.so.1", b"libg0mp.so.1"])
def test_a_copy_that_a_package_brought_runs_kernels(hidden, tmp_path, name):
    """PyTorch's copy calls itself as the system's does, scikit-learn's has a name of its own."""
    place = tmp_path / "packages" / "some_package.libs"
    place.mkdir(parents=True)
    copy = place / "libgomp-0123abcd.so.1.0.0"
    copy.write_bytes(Path(library_file()).read_bytes().replace(b"libgomp.so.1\0", name + b"\0"))
    environment = {**hidden, "PYTHONPATH": str(place.parent), "OMP_NUM_THREADS": "3"}
    done = finished(["-c", USE], environment, tmp_path)
    assert done.returncode == 0, done.stderr
    threads, lack = done.stdout.splitlines()
    assert threads == f"3 {copy}" and not done.stderr
    if name == b"libgomp.so.1":
        assert lack == ""  # LightGBM takes a copy of this name
    else:
        assert "LightGBM cannot be loaded" in lack and "apt-get install libgomp1" in lack


def test_a_library_that_lacks_a_function_is_no_runtime(tmp_path, monkeypatch):
    place = tmp_path / "package.libs"
    place.mkdir()
    (place / "libgomp-1.so").write_text("no library\n")
    monkeypatch.setattr(openmp, "_SYSTEM", "libm.so.6")  # a library without those functions
    monkeypatch.setattr(openmp, "_NAMES", ())
    monkeypatch.setattr(openmp, "_loaded", lambda: iter(()))
    monkeypatch.setattr(openmp.sys, "path", [str(tmp_path)])
    monkeypatch.setattr(openmp.sys, "prefix", str(tmp_path))
    assert list(openmp._installed()) == [str(place / "libgomp-1.so")]
    assert openmp.openmp_runtime.__wrapped__() is None


def test_the_runtime_is_found_without_a_search(monkeypatch):
    """Folders are looked through only where the loader finds nothing."""
    looked = []
    monkeypatch.setattr(openmp, "_installed", lambda: looked.append("installed") or iter(()))
    assert (openmp.openmp_runtime.__wrapped__() is None) == bool(looked)


@pytest.fixture
def no_lightgbm(monkeypatch):
    """LightGBM is not installed."""
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    monkeypatch.delitem(sys.modules, "metasched.cost.lightgbm")
    monkeypatch.setattr(cost, "lightgbm_lack", lightgbm_lack.__wrapped__)


def test_without_lightgbm_the_line_learns(no_lightgbm):
    with pytest.warns(UserWarning, match=r"learns by a line .*: .*`pip install lightgbm`") as told:
        model = COST_MODELS.get("lightgbm")(0)
    assert type(model) is LineModel and "serially" not in str(told[0].message)
    points = np.arange(8.0)
    line = cost.regression(points[:, None], points)
    assert type(line) is LineRegression and (np.diff(line.predict(points[:, None])) > 0).all()
    with pytest.raises(MetaschedError, match="a prior is trained with LightGBM: LightGBM cannot"):
        boosting()


def test_with_lightgbm_trees_learn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(COST_MODELS.get("lightgbm")(0)) is LightGBMModel
    assert boosting().Regression is Regression


BOUND = """
import os, numpy, metasched
from metasched.hardware import usable_cpus
from metasched.measure.process import Worker
mask, source = os.sched_getaffinity(0), '''
@T.prim_func
def main(A: T.Buffer((64,), "int32")):
    for i in T.parallel(64):
        A[i] = A[i] + 1
'''
metasched.build(metasched.parse(source))(numpy.zeros(64, "int32"))
worker = Worker("w")
given = worker.run("os:sched_getaffinity", 0, limit=5).value
print(len(os.sched_getaffinity(0)), usable_cpus() == mask == given)
worker.close()
"""


@pytest.mark.skipif(not openmp.openmp_runtime(), reason="needs an OpenMP runtime")
def test_a_bound_main_thread_hides_no_processors(tmp_path):
    done = finished(["-c", BOUND], {**os.environ, "OMP_PROC_BIND": "true"}, tmp_path)
    assert done.stdout.split() == ["1", "True"], done.stderr
