"""Test data of recurrences: results are finite, and sums in another order stay within tolerance."""

from __future__ import annotations

import os

import numpy as np
import pytest
from measure.programs import elementwise

import metasched as ms
from metasched.ir.op import call
from metasched.measure.data import steady, tolerance
from metasched.measure.jobs import baseline, expect
from metasched.measure.loaded_task import LoadedTask
from metasched.measure.local import LocalRunner
from metasched.measure.settings import MeasureOptions
from metasched.script import parse
from metasched.script import tir as T

N = 96
SETTINGS = {"key": "k", "seed": 0, "extents": {}, "scalars": {}}


@T.prim_func
def unit_lower(L: T.Buffer((N, N), "float64"), x: T.Buffer((N,), "float64")):
    for i in range(N):
        for j in range(i):
            with T.block("update"):
                vi, vj = T.axis.remap("SR", [i, j])
                x[vi] -= L[vi, vj] * x[vj]


def results(func, normal=False, data=None):
    """The task of a program, and the expected results."""
    memory = os.memfd_create("test")
    try:
        found = baseline(func, ms.Target.native(), memory, SETTINGS)
        task = found.task
        if normal:
            task, _ = expect(task.with_normal_data(), memory, found.program)
        loaded = LoadedTask(task, memory, "cpu")
        return task, [e.copy() for e in loaded.expected], [a.copy() for a in loaded.initial]
    finally:
        os.close(memory)


@pytest.mark.parametrize("func", [unit_lower, *(f"poly.{x}" for x in ("cholesky", "lu", "durbin"))])
@pytest.mark.parametrize("normal", [False, True])
def test_recurrences_stay_finite_and_well_conditioned(func, normal):
    func = ms.workloads.get(func).func((N,)) if isinstance(func, str) else func
    task, expected, _ = results(func, normal)
    assert task.tame > 0 and not task.exact
    for array, values in zip(task.arrays, expected, strict=True):
        assert np.isfinite(values).all() and np.abs(values).max() < 4 and array.lost == 0
        assert array.noise <= tolerance(array, float(np.abs(values).max()))
    assert steady(task, expected)


def test_a_fault_in_one_step_of_a_recurrence_is_seen():
    task, (_, right), (lower, x) = results(unit_lower)
    lower[N // 2, 3] = 0.0
    for i in range(N):
        x[i] -= lower[i, :i] @ x[:i]
    assert np.abs(x - right).max() > 1e6 * tolerance(task.arrays[1], np.abs(right).max())


def test_results_that_stay_steady_keep_integers():
    for name, shape in (("poly.trmm", (12, 9)), ("poly.gramschmidt", (12, 9))):
        task, _, initial = results(ms.workloads.get(name).func(shape))
        assert task.tame == 0 and all((a == np.round(a)).all() for a in initial if a.size)


def test_a_run_says_that_results_are_nan():
    func = parse(elementwise(lambda x: call("log", x * -1.0)).script())
    said = pytest.warns(UserWarning, match="256 of 256 elements of B are NaN on the test data")
    with said, LocalRunner(func, options=MeasureOptions()) as made:
        assert made.unscheduled().ok
