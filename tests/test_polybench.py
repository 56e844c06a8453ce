"""The thirty kernels of PolyBench against their NumPy references, at small shapes."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import workloads
from metasched.ir.interp import run
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.space.default_schedule import vectors_and_threads
from metasched.target import Target

SMALL = {
    "poly.gemm": (4, 5, 6),
    "poly.gemver": (7,),
    "poly.gesummv": (6,),
    "poly.symm": (5, 6),
    "poly.syr2k": (4, 6),
    "poly.syrk": (4, 6),
    "poly.trmm": (5, 4),
    "poly.2mm": (3, 4, 5, 6),
    "poly.3mm": (3, 4, 5, 6, 7),
    "poly.atax": (5, 6),
    "poly.bicg": (5, 6),
    "poly.doitgen": (3, 4, 5),
    "poly.mvt": (6,),
    "poly.cholesky": (6,),
    "poly.durbin": (6,),
    "poly.gramschmidt": (7, 5),
    "poly.lu": (6,),
    "poly.ludcmp": (6,),
    "poly.trisolv": (6,),
    "poly.correlation": (5, 6),
    "poly.covariance": (5, 6),
    "poly.adi": (2, 6),
    "poly.fdtd-2d": (2, 5, 6),
    "poly.heat-3d": (2, 5),
    "poly.jacobi-1d": (3, 8),
    "poly.jacobi-2d": (2, 6),
    "poly.seidel-2d": (2, 6),
    "poly.deriche": (6, 7),
    "poly.floyd-warshall": (6,),
    "poly.nussinov": (9,),
}


def check(name, arrays, expected):
    eps = 2.0**-23 if workloads.get(name).dtype == "float32" else 2.0**-52
    for array, wanted in zip(arrays, expected, strict=True):
        limit = 64 * eps * max(1.0, np.abs(wanted).max())
        assert np.abs(array.astype("float64") - wanted).max() <= limit


@pytest.mark.parametrize("name", SMALL)
def test_program_and_default_schedule_agree_with_the_reference(name):
    workload, shape = workloads.get(name), SMALL[name]
    func = workload.func(shape)
    inputs = workload.inputs(shape, seed=1, integers=False)
    expected = workload.expected(inputs, shape)
    arrays = workload.arguments(inputs, shape)
    run(func, *arrays)
    check(name, arrays, expected)
    target = Target.of("native")
    sch = Schedule(func)
    vectors_and_threads(func, target).apply(sch)
    arrays = workload.arguments(inputs, shape)
    build(sch.mod, target)(*arrays)
    check(name, arrays, expected)


def test_all_thirty_are_there():
    assert set(SMALL) == set(workloads.POLYBENCH)
    assert len(SMALL) == 30


@pytest.mark.parametrize("name", ["poly.gemm", "poly.cholesky", "poly.adi"])
def test_a_kernel_is_built_for_other_types(name):
    func = workloads.get(name).build(SMALL[name], "float32")
    assert {b.dtype for b in func.buffers} == {"float32"}


def test_arguments_are_copies():
    workload = workloads.get("poly.trmm")
    inputs = workload.inputs((5, 4))
    before = [a.copy() for a in inputs]
    workload.expected(inputs, (5, 4))
    for array, argument, old in zip(inputs, workload.arguments(inputs), before, strict=True):
        assert argument is not array
        np.testing.assert_array_equal(array, old)


def test_arguments_of_a_program_with_one_output():
    workload = workloads.get("gmm")
    shape = (1, 2, 3, 4)
    inputs = workload.inputs(shape)
    *copies, output = workload.arguments(inputs, shape)
    assert len(copies) == 2 and output.shape == (1, 2, 3) and not output.any()
    np.testing.assert_array_equal(workload.expected(inputs, shape)[2], inputs[0] @ inputs[1])
