"""Loops are cut where tests begin and cease to hold, at places that outer loops decide."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, integers

from metasched import Schedule
from metasched.arith.analyzer import Analyzer
from metasched.ir.expr import as_expr, as_int
from metasched.ir.stmt import For, ForKind, IfThenElse, LetStmt
from metasched.ir.visit import free_vars, loads_of, substitute, walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse

ROWS = """
@T.prim_func
def main(A: T.Buffer(({rows}, {columns}), "int32")):
    for i in range({rows} - 1):
        for j in range({columns} - 1):
            A[i + 1, j + 1] = A[i + 1, j + 1] + T.max(A[i, j + 1], A[i + 1, j]) - A[i, j]
"""


def _skewed(rows: int, columns: int, together: int) -> Schedule:
    """Several rows of a table side by side, each one element behind the row before."""
    sch = Schedule(parse(ROWS.format(rows=rows, columns=columns)))
    sch.enclose(sch.get_block("root"))
    row, column = sch.get_loops(sch.get_block("A"))
    column = sch.skew(row, column, 1)
    row, part = sch.split(row, [None, together])
    sch.reorder(row, column, part)
    sch.unroll(part)
    return sch


@pytest.mark.parametrize("rows", [17, 19])  # the last group of rows is whole, and is not
def test_rows_side_by_side_run_without_tests_where_all_rows_have_elements(rows):
    func = lower(_skewed(rows, 101, 4).mod["main"], NATIVE)
    loops = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.kind is ForKind.SERIAL]
    pieces = [s for s in loops if s.var.name.startswith("j")]
    tested = [any(isinstance(s, IfThenElse) for s in walk_stmts(p.body)) for p in pieces]
    assert tested == [True, False, True]


def test_a_group_of_rows_runs_over_the_columns_near_to_it_only():
    """The skewed columns of all 50 groups are 212; four rows of 13 are busy in 16 of them."""
    func = lower(_skewed(200, 14, 4).mod["main"], NATIVE)
    lets = {s.var: s.value for s in walk_stmts(func.body) if isinstance(s, LetStmt)}
    (group,) = [s.var for s in walk_stmts(func.body) if isinstance(s, For) and s.var.name == "i_0"]
    ends = {}
    for at in (0, 7, 49):
        known = {group: as_expr(at, group.dtype)}
        for var, value in lets.items():
            known[var] = Analyzer().simplify(substitute(value, known))
            ends[at, var.name.rsplit("_")[-1]] = as_int(known[var])
    assert [ends[at, "last"] - ends[at, "first"] for at in (0, 7, 49)] == [16, 16, 15]


@pytest.mark.parametrize("together", [2, 4, 7])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(17, 101), (19, 101), (5, 20), (40, 18), (90, 17), (3, 17)],  # the last is tested throughout
)
def test_loops_cut_at_places_of_outer_loops_give_the_same_results(rows, columns, together):
    sch = _skewed(rows, columns, together)
    agree(sch.mod["main"], integers((rows, columns), np.int32))


STEPS = """
@T.prim_func
def main(x: T.Buffer((70,), "float32"), y: T.Buffer((70,), "float32")):
    for p_0 in T.parallel(5):
        s = T.alloc_buffer((16,), "float32", scope="local")
        for p_1 in T.vectorized(16):
            if p_0 * 16 + p_1 < 70:
                s[p_1] = x[p_0 * 16 + p_1]
            for c in range(9):
                if c < 2:
                    if p_0 * 16 + p_1 < 70:
                        s[p_1] = s[p_1] * T.float32(2) + x[p_0 * 16 + p_1]
                else:
                    if p_0 * 16 + p_1 < 70:
                        s[p_1] = s[p_1] - x[p_0 * 16 + p_1]
            if p_0 * 16 + p_1 < 70:
                y[p_0 * 16 + p_1] = s[p_1]
"""


@pytest.mark.parametrize("more", [0, 45])
def test_whole_vectors_run_loops_without_masks(more):
    """A loop in the lanes may be cut, and the lanes may hold more than 48 statements."""
    store = "                    if p_0 * 16 + p_1 < 70:\n"
    repeated = store + "                        s[p_1] = s[p_1] + T.float32(1)\n"
    source = STEPS.replace(
        "                if c < 2:\n" + store,
        "                if c < 2:\n" + repeated * more + store,
    )
    func = lower(parse(source), NATIVE)
    lanes = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.var.name == "p_1"]
    tested = [any(isinstance(s, IfThenElse) for s in walk_stmts(loop.body)) for loop in lanes]
    assert tested == [False, True]
    agree(source, integers((70,)), np.zeros(70, "float32"))


SORTED = """
@T.prim_func
def main(x: T.Buffer((74,), "float32"), y: T.Buffer((70,), "float32")):
    for p_0 in T.parallel(5):
        v = T.alloc_buffer((5, 16), "float32", scope="local")
        for p_1 in T.vectorized(16):
            for k in T.unroll(5):
                if p_0 * 16 + p_1 < 70:
                    v[k, p_1] = x[p_0 * 16 + p_1 + k]
            for i in T.unroll(4):
                for j in T.unroll(i + 1, 5):
                    if {test}:
                        t = v[i, p_1]
                        v[i, p_1] = v[j, p_1]
                        v[j, p_1] = t
            if p_0 * 16 + p_1 < 70:
                y[p_0 * 16 + p_1] = v[2, p_1] - v[1, p_1] * T.float32(2)
"""


@pytest.mark.parametrize(
    "test",
    [
        "p_0 * 16 + p_1 < 70 and v[j, p_1] < v[i, p_1]",
        "v[j, p_1] < v[i, p_1] and p_0 * 16 + p_1 < 70 and v[0, p_1] < T.float32(3)",
    ],
)
def test_tests_beside_tests_of_memory_move(test):
    source = SORTED.format(test=test)
    func = lower(parse(source), NATIVE)
    lanes = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.var.name == "p_1"]
    tests = [
        {s.condition for s in walk_stmts(loop.body) if isinstance(s, IfThenElse)} for loop in lanes
    ]
    own = [{c for c in each if loop.var in free_vars(c) and not loads_of(c)}
           for loop, each in zip(lanes, tests, strict=True)]  # fmt: skip
    assert [len(each) for each in own] == [0, 1]
    agree(source, integers((74,)), np.zeros(70, "float32"))


@pytest.mark.parametrize(
    "order", ["i > k and m[k] > 0", "m[k] > 0 and i > k", "m[k] > 0 and k < 9"]
)
def test_a_loop_is_narrowed_beside_a_test_of_memory(order):
    source = f"""
@T.prim_func
def main(m: T.Buffer((80,), "int32"), y: T.Buffer((5,), "int32")):
    for i in range(5):
        for k in range(80):
            if {order}:
                y[i] = y[i] * 3 + m[k]
                m[k] = m[k] - 1
"""
    agree(source, integers((80,), np.int32), np.zeros(5, "int32"))
