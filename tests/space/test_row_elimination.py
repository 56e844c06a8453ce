"""row_elimination: which factorizations get blocks of rows, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest

from metasched import workloads
from metasched.ir.expr import as_int
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.space.modules.row_elimination import RowElimination, runs_along


def offered(op: str, n: int = 120, cores: int = 2) -> list[Schedule]:
    sch = Schedule(workloads.get(op).func((n,)), seed=2)
    return RowElimination(cores)(sch, sch.get_block("root"))


def test_a_piece_of_nussinov_gives_its_value_along_the_row():
    along, written = offered("poly.nussinov")
    assert "right_looking" in str(along.trace) and len(written.trace) == 1
    assert runs_along(along.state.scope(along.func.root.body).realizes[-1])


@pytest.mark.parametrize("op", ["poly.lu", "poly.cholesky", "poly.ludcmp"])
def test_a_factorization_in_blocks_of_rows(op):
    blocked, *others, written = offered(op)
    assert "T.parallel" in blocked.script()
    assert not any("T.parallel" in one.script() for one in others)
    assert len(written.trace) == 1  # get_block
    work = workloads.get(op)
    inputs = work.inputs((120,))
    expected = work.expected(inputs, (120,))
    for sch in (blocked, *others):
        arrays = work.arguments(inputs, (120,))
        build(sch.mod)(*arrays)
        for array, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12)


def test_dot_products_of_several_rows_run_side_by_side():
    blocked = offered("poly.cholesky")[0]
    loops = [blocked.get(loop) for loop in blocked.get_loops("update")]
    assert [loop.kind.value for loop in loops] == [
        "serial", "parallel", "serial", "serial", "unroll",
    ]  # fmt: skip
    assert as_int(loops[-1].extent) == 4
    assert "T.unroll" not in offered("poly.cholesky", 53 * 7)[0].script()
    assert "T.unroll" not in offered("poly.lu")[0].script()  # the rows are in vectors


@pytest.mark.parametrize("cores", [1, 2])
def test_short_blocks_of_rows_run_on_one_core(cores):
    *threads, alone, written = offered("poly.trisolv", cores=cores)
    assert ["T.parallel" in one.script() for one in threads] == [True] * (cores - 1)
    assert "T.parallel" not in alone.script() and "T.unroll" in alone.script()
    work = workloads.get("poly.trisolv")
    inputs = work.inputs((120,))
    arrays = work.arguments(inputs, (120,))
    build(alone.mod)(*arrays)
    for array, wanted in zip(arrays, work.expected(inputs, (120,)), strict=True):
        np.testing.assert_allclose(array, wanted, rtol=1e-12)
    assert len(written.trace) == 1  # get_block


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
