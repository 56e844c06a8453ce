"""row_elimination: which factorizations get blocks of rows, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import workloads
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.space.modules.row_elimination import RowElimination


def offered(op: str, n: int = 120, cores: int = 2) -> list[Schedule]:
    sch = Schedule(workloads.get(op).func((n,)), seed=2)
    return RowElimination(cores)(sch, sch.get_block("root"))


@pytest.mark.parametrize("op", ["poly.lu", "poly.cholesky", "poly.ludcmp"])
def test_a_factorization_in_blocks_of_rows(op):
    blocked, along, written = offered(op)
    assert "T.parallel" in blocked.script() and "T.parallel" not in along.script()
    assert len(written.trace) == 1  # get_block
    work = workloads.get(op)
    inputs = work.inputs((120,))
    expected = work.expected(inputs, (120,))
    for sch in (blocked, along):
        arrays = work.arguments(inputs, (120,))
        build(sch.mod)(*arrays)
        for array, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12)


def test_rows_run_along_memory():
    along = offered("poly.lu")[1]
    assert along.script().index('"divide"') < along.script().index('"lower"')
    assert [along.get(loop).var.name for loop in along.get_loops("upper")][-1] == "j"


def test_one_core_gets_rows_along_memory_alone():
    along, written = offered("poly.lu", cores=1)
    assert along.mod is not written.mod and "T.parallel" not in along.script()


@pytest.mark.parametrize(("op", "n"), [("poly.mvt", 60), ("poly.lu", 3)])
def test_independent_and_small_programs_are_left_alone(op, n):
    (only,) = offered(op, n)
    assert len(only.trace) == 1  # get_block
