"""Index maps over shape variables, by name, and of 64-bit indices."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_trace, check_transform

from metasched.arith.indexmap import IndexMap
from metasched.errors import MetaschedError
from metasched.ir.expr import Var
from metasched.schedule.schedule import Schedule
from metasched.schedule.trace import Trace
from metasched.script import tir as T


@T.prim_func
def rows(a: T.handle, b: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (4, n), "float32")
    V = T.match_buffer(b, (n,), "float32")
    C = T.match_buffer(c, (n * 4,), "float32")
    B = T.alloc_buffer((4, n), "float32")
    for i, j in T.grid(4, n):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + V[vj]
    for i, j in T.grid(4, n):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi * n + vj] = B[vi, vj]


@T.prim_func
def wide(A: T.Buffer((T.int64(58), T.int64(6)), "float32"),
         C: T.Buffer((T.int64(58), T.int64(6)), "float32")):  # fmt: skip
    B = T.alloc_buffer((T.int64(58), T.int64(6)), "float32")
    for i, j in T.grid(T.int64(58), T.int64(6)):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for i, j in T.grid(T.int64(58), T.int64(6)):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * T.float32(2)


N = rows.params[1].shape[0]


def test_a_block_over_a_shape_variable_is_flattened() -> None:
    sch = Schedule(rows, check=True)
    sch.transform_block_layout("C", lambda i, j: (i * N + j,))
    (loop,) = sch.get_loops("C")
    assert sch.get(loop).extent is not None
    check_transform(rows, sch)


def test_a_layout_over_a_shape_variable_goes_there_and_back() -> None:
    sch = Schedule(rows, check=True)
    sch.transform_layout("B", ("write", 0), lambda i, j: i * N + j)
    assert 'B = T.alloc_buffer((n * 4,), "float32")' in sch.script()
    sch.transform_layout("B", ("write", 0), lambda x: (x // N, x % N))
    assert 'B = T.alloc_buffer((4, n), "float32")' in sch.script()
    check_transform(rows, sch)


def test_a_variable_is_found_by_its_name() -> None:
    sch = Schedule(rows)
    sch.transform_block_layout("C", lambda n, j: (n * T.Var("n", "int32") + j,))
    text = sch.trace.as_python()
    assert '    n = T.Var("n", "int32")' in text
    assert "lambda n_, j: (n_ * n + j,)" in text
    check_trace(rows, sch)


def test_a_factor_over_a_shape_variable_is_stored() -> None:
    sch = Schedule(rows)
    sch.split(sch.get_loops("C")[1], [N, None])
    again = Schedule(rows)
    Trace.from_json(sch.trace.to_json()).apply(again)
    assert again.script() == sch.script()


def test_other_variables_are_refused() -> None:
    sch = Schedule(rows)
    message = "the index map mentions m, which is no variable of the function"
    check_refused(
        sch,
        lambda: sch.transform_block_layout("C", lambda i, j: (i * Var("m") + j,)),
        "bad-index-map",
        message,
    )
    message = "no iterator has the stride n"
    check_refused(
        sch,
        lambda: sch.transform_block_layout("C", lambda i, j: (i * N * 2 + j,)),
        "not-bijective",
        message,
    )


def test_indices_by_name_are_the_last() -> None:
    assert IndexMap.of(lambda *i, k: [k, *i], 3) == IndexMap.of(lambda i, j, k: (k, i, j))
    assert IndexMap.of(lambda i, scale=4: (i // scale, i % scale), 1) == IndexMap.of(
        lambda i: (i // 4, i % 4)
    )
    assert IndexMap.of(lambda *i, by=2: (i[0] // by, i[0] % by), 1) == IndexMap.of(
        lambda i: (i // 2, i % 2)
    )
    with pytest.raises(MetaschedError, match=r"\*\*names stands for no indices"):
        IndexMap.of(lambda **names: names, 2)
    sch = Schedule(wide)
    sch.transform_layout("B", ("write", 0), lambda *i, k: [*i, k // 3, k % 3])
    check_transform(wide, sch)


def test_padding_of_a_wide_buffer() -> None:
    sch = Schedule(wide, check=True)
    sch.transform_layout(
        "B", ("write", 0), lambda i, j: (j // 4, i // 8, i % 8, j % 4), pad_value=0.0
    )
    check_transform(wide, sch)
    sch = Schedule(wide, check=True)
    outer, _ = sch.split(sch.get_loops("C")[0], [None, 8])
    sch.compute_at("B", outer)
    sch.transform_layout("B", ("write", 0), lambda i, j: (i // 8, j, i % 8), pad_value=2)
    check_transform(wide, sch)
