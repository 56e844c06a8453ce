# ruff: noqa: E501
"""Variables that are assigned again behave as in Python; names assigned once are lets."""

from __future__ import annotations

import numpy as np
import pytest
from as_python import agree, program

from metasched.errors import ParseError
from metasched.ir.expr import as_int
from metasched.ir.stmt import Allocate, BufferStore, LetStmt
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 6), "float32"), B: T.Buffer((8,), "float32"), N: T.Buffer((8,), "int32"), p: T.int32):
"""

BODIES = [
    # sums in a variable
    "for i in range(8):\n    s = T.float32(0)\n    for j in range(6):\n        s = s + A[i, j]\n"
    "    B[i] = s",
    "s = 0.0\nfor i, j in T.grid(8, 6):\n    s += A[i, j]\nB[0] = s",
    "for i in T.parallel(8):\n    s = T.float32(0)\n    for j in range(6):\n        s += A[i, j]\n"
    "    B[i] = s",
    "for i in T.vectorized(8):\n    s = A[i, 0]\n    for j in range(1, 6):\n"
    "        s = s * 2.0 + A[i, j]\n    B[i] = s",
    # while
    "i = 0\nwhile i < 8:\n    B[i] = A[i, 0]\n    i = i + 1",
    "i = 0\nwhile i < 8:\n    i += 1\n    if i == 3:\n        continue\n    if i > 6:\n"
    "        break\n    N[i] = i",
    "for k in range(8):\n    n = N[k]\n    c = 0\n    while n > 1 and c < 20:\n        if n % 2 == 0:\n"
    "            n = n // 2\n        else:\n            n = 3 * n + 1\n        c += 1\n    N[k] = c",
    # branches
    "for i in range(8):\n    if A[i, 0] > 0.0:\n        x = A[i, 0]\n    else:\n        x = A[i, 1] * 2.0\n"
    "    B[i] = x",
    "for i in range(8):\n    x = A[i, 0]\n    if x < 0.0:\n        x = -x\n    elif x > 2.0:\n"
    "        x = T.float32(2)\n    B[i] = x",
    "for i in range(8):\n    if N[i] > 3:\n        m: T.int32 = 1\n    else:\n        m = 2\n    N[i] = m",
    "best = A[0, 0]\nwhere = 0\nfor i in range(8):\n    if A[i, 0] > best:\n        best = A[i, 0]\n"
    "        where = i\nB[0] = best\nN[0] = where",
    # values are read when they are named
    "x = N[0]\ny = x\nfor i in range(3):\n    x = x + 1\nN[1] = x\nN[2] = y",
    "a = 0\nb = 1\nfor i in range(8):\n    N[i] = a\n    a, b = b, a + b",
    "x = 1\nfor i in range(4):\n    y = x\n    x = x * 3\n    N[i] = y\nN[4] = x",
    "N[0], N[1] = N[1], N[0]",
    "N[0], N[1], N[2] = N[2], N[0], N[1] + N[0]",
    "n = 2\nfor i in range(n):\n    n = n + 2\n    N[i] = n\nN[7] = n",
    "n = 4\nfor i in range(0, n, 2):\n    n = 1\n    N[i] = 5",
    "n = 2\nfor i in range(n):\n    for j in range(n):\n        n = n + 1\nN[0] = n",
    # the last value of a loop that runs
    "for i in range(8):\n    x = A[i, 0]\nB[0] = x",
    "for i in range(8):\n    x = A[i, 0]\n    x = x + 1.0\n    B[i] = x",
    # a parameter
    "while p > 2:\n    p = p - 2\nN[0] = p",
    "for i in range(3):\n    p += i\nN[0] = p",
    # booleans and other types
    "found = False\nfor i in range(8):\n    if N[i] == 3:\n        found = True\nif found:\n    N[0] = 99",
    "c = T.int64(0)\nfor i in range(8):\n    c = c + T.int64(N[i])\nN[0] = T.cast(c, 'int32')",
    # blocks
    "for i in range(8):\n    with T.block('b'):\n        vi = T.axis.spatial(8, i)\n"
    "        s = T.float32(0)\n        for j in range(6):\n            s += A[vi, j]\n        B[vi] = s",
    "t = 0.0\nfor i in range(8):\n    with T.block('b'):\n        vi = T.axis.spatial(8, i)\n"
    "        t = t + A[vi, 0]\n        B[vi] = t",
    "for i in range(8):\n    with T.block('b'):\n        vi = T.axis.spatial(8, i)\n"
    "        if A[vi, 0] > 0.0:\n            y = T.float32(1)\n        else:\n"
    "            y = T.float32(2)\n        B[vi] = y",
    "for i in range(8):\n    x = A[i, 0]\n    for j in range(6):\n        with T.block('b'):\n"
    "            vi, vj = T.axis.remap('SS', [i, j])\n            x = T.max(x, A[vi, vj])\n    B[i] = x",
]


def arrays():
    rng = np.random.default_rng(3)
    a = rng.integers(-4, 5, (8, 6)).astype("float32")
    return [a, np.zeros(8, "float32"), np.arange(1, 9, dtype="int32"), 7]


def indented(body: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body.splitlines())


@pytest.mark.parametrize("body", BODIES)
def test_variables_mean_what_they_mean_in_python(body):
    agree(indented(body), *arrays())


def test_names_assigned_once_are_lets():
    func = program(indented(
        "for i in range(8):\n    x = A[i, 0]\n    y = x * 2.0\n    y = y + 1.0\n    B[i] = y\n"
        "for i in range(8):\n    x = A[i, 1]\n    B[i] = x"
    ))  # fmt: skip
    kinds = [type(s) for s in walk_stmts(func.body)]
    assert kinds.count(LetStmt) == 4 and Allocate not in kinds and not func.root.alloc_buffers


def test_memory_lies_in_the_scope_that_carries_the_name():
    inside = program(indented(BODIES[-4]))
    block = list(blocks_of(inside.body))[1].block
    assert [b.name for b in block.alloc_buffers] == ["s"] and block.alloc_buffers[
        0
    ].scope == "local"
    assert {r.buffer.name for r in (*block.reads, *block.writes)} == {"A", "B"}
    loop = program(indented(BODIES[0]))
    assert [s.buffer.name for s in walk_stmts(loop.body) if isinstance(s, Allocate)] == ["s"]
    root = program(indented(BODIES[1]))
    assert [b.name for b in root.root.alloc_buffers] == ["s"]
    crossing = list(blocks_of(program(indented(BODIES[-3])).body))[1].block
    assert {r.buffer.name for r in crossing.writes} == {"t", "B"}


def test_declared_regions_name_variables_from_outside():
    body = (
        "t = 0.0\nfor i in range(8):\n    with T.block('b'):\n        vi = T.axis.spatial(8, i)\n"
        "        T.reads(A[vi, 0])\n        T.writes(B[vi])\n        t = t + A[vi, 0]\n"
        "        B[vi] = t"
    )
    block = list(blocks_of(agree(indented(body), *arrays()).body))[1].block
    assert [r.buffer.name for r in block.reads] == ["A", "t"]
    assert [r.buffer.name for r in block.writes] == ["B", "t"]


def test_a_block_with_a_variable_is_scheduled():
    @T.prim_func
    def rows(A: T.Buffer((16, 32), "float32"), B: T.Buffer((16,), "float32")):
        for i in range(16):
            with T.block("rows"):
                vi = T.axis.spatial(16, i)
                s = T.float32(0)
                for j in range(32):
                    s = s + A[vi, j]
                B[vi] = s

    from oracle import check_transform

    sch = Schedule(rows)
    (i,) = sch.get_loops("rows")
    outer, inner = sch.split(i, [None, 4])
    sch.parallel(outer)
    sch.unroll(inner)
    check_transform(rows, sch)


@pytest.mark.parametrize("body, message", [
    ("s = 0\nfor i in range(8):\n    s = s + A[i, 0]", "s holds int32, the value assigned here is "
     "float32"),
    ("s = 0\nfor i in range(8):\n    N[i] = s\n    s = 0.5", "s holds int32, the value assigned here is float32"),
    ("if p > 0:\n    x = 1.0\nB[0] = x", "'x' may be read before it is assigned"),
    ("for i in range(p):\n    x = A[i, 0]\nB[0] = x", "'x' may be read before it is assigned"),
    ("while p > 0:\n    p = p - 1\n    x = 1.0\nB[0] = x", "'x' may be read before it is assigned"),
    ("for i in range(8):\n    if i == 4:\n        break\n    x = A[i, 0]\nB[0] = x",
     "'x' may be read before it is assigned"),
    ("B[0] = x\nx = 1.0", "'x' has no value here"),
    ("B[0] = captured\ncaptured = 1.0", "'captured' has no value here"),
    ("captured += 1.0\nB[0] = captured", "'captured' has no value here"),
    ("for i in range(p):\n    B[i] = 0.0\nB[0] = T.float32(i)", "'i' has no value here: its loop or `with` has ended"),
    ("for i in T.parallel(8):\n    B[i] = 0.0\nN[0] = i", "its loop or `with` has ended"),
    ("for i in range(8):\n    if N[i] > 2:\n        break\nN[0] = i", "its loop or `with` has ended"),
    ("for i in range(8):\n    B[i] = 0.0\nif p > 2:\n    for i in range(3):\n        N[i] = 1\nN[0] = i",
     "its loop or `with` has ended"),
    ("for i in range(8):\n    B[i] = 0.0\nfor k in range(3):\n    N[k] = i\n    for i in range(k):\n        N[i] = 1",
     "its loop or `with` has ended"),
    ("for i in range(8):\n    if i > 2:\n        i = i + 1\n    N[i % 8] = 1",
     "'i' is a variable bound once"),
    ("for i in range(8):\n    for i in range(p):\n        N[i] = 1\n    N[i] = 2",
     "in Python 'i' is one variable of the function"),
    ("i = 1\nfor k in range(8):\n    N[i] = 3\n    for i in range(2):\n        N[k] = 1",
     "in Python 'i' is one variable of the function"),
    ("i = 5\nfor i in range(p):\n    N[i] = 1\nN[i] = 2", "in Python 'i' is one variable"),
    ("s = 0.0\nfor i in T.parallel(8):\n    s += A[i, 0]\nB[0] = s",
     "whose iterations run side by side"),
    ("s = 0.0\nfor i in T.vectorized(8):\n    for j in range(6):\n        s += A[i, j]\nB[0] = s",
     "whose iterations run side by side"),
    ("n = 4\nfor i in range(2):\n    n = n - 1\n    C = T.alloc_buffer((n,))",
     "n is assigned again; T.alloc_buffer would read the new value"),
    ("n = 4\nfor i in range(2):\n    n = n - 1\n    with T.block('b'):\n"
     "        vi = T.axis.spatial(8, n)\n        N[vi] = 1", "T.axis.spatial would read the new value"),
    ("v = A[0, 0:4] + 1.0\nfor i in range(2):\n    v = v + 1.0\nB[0:4] = v",
     "v is float32x4 and is assigned again"),
    ("for i in range(2):\n    if i > 0:\n        A = B\n    B[i] = A[i]", "'A' has a value in an outer scope"),
    ("x = T.let(A[0, 0])\nfor i in range(2):\n    x = x + 1.0", "'x' is a variable bound once"),
])  # fmt: skip
def test_assignments_that_define_no_variable_are_refused(body, message):
    with pytest.raises(ParseError) as caught:
        parse(indented(body), {"captured": 2.0})
    assert message in str(caught.value), caught.value


def test_macros_have_variables_of_their_own():
    @T.macro
    def total(row, out, size):
        s = T.float32(0)
        for j in range(size):
            s = s + row[j]
        out[0] = s

    @T.prim_func
    def f(A: T.Buffer((4,), "float32"), B: T.Buffer((1,), "float32"), C: T.Buffer((1,), "float32")):
        s = T.float32(5)
        total(A, B, 4)
        total(A, C, 2)
        for i in range(2):
            s = s + C[0]
        B[0] = B[0] + s

    from metasched.ir.interp import run

    a, b, c = np.arange(4, dtype="float32"), np.zeros(1, "float32"), np.zeros(1, "float32")
    run(f, a, b, c)
    assert b[0] == 6 + 5 + 2 and c[0] == 1
    stores = [s for s in walk_stmts(f.body) if isinstance(s, BufferStore) and s.buffer.name == "s"]
    assert len({s.buffer for s in stores}) == 3


@pytest.mark.parametrize("loop", ["range(1)", "range(2, 3)", "range(0)", "range(3)"])
@pytest.mark.parametrize("word", ["break", "continue"])
def test_break_and_continue_belong_to_the_innermost_loop(loop, word):
    agree(indented(
        f"for i in range(8):\n    for j in {loop}:\n        if N[i] % 2 == 0:\n            {word}\n"
        "        N[i] = 100 + j\n    B[i] = 1.0"
    ), *arrays())  # fmt: skip


def test_a_variable_of_both_branches_is_assigned_again_below():
    agree(indented(
        "if p > 2:\n    y = 1\nelse:\n    y = 2\nif p > 3:\n    y = 5\nelse:\n    if p > 1:\n"
        "        if N[0] > 4:\n            y = 7\n        N[1] = y\nN[2] = y"
    ), *arrays())  # fmt: skip


def test_regions_of_a_block_leave_out_what_the_block_changes():
    body = (
        "k = 0\nfor i in range(4):\n    with T.block('b'):\n        vi = T.axis.spatial(4, i)\n"
        "        c = 1\n        while c < 3:\n            B[k + c] = A[vi, c]\n            c += 1\n"
        "        n = vi + 1\n        for j in range(c):\n            N[n + j] = 1\n        k = k + 1"
    )
    func = agree(indented(body), *arrays())
    block = list(blocks_of(func.body))[1].block
    whole = {r.buffer.name: r.region[-1].extent for r in (*block.reads, *block.writes)}
    assert as_int(whole["B"]) == 8 and as_int(whole["A"]) == 6 and as_int(whole["N"]) == 8


@pytest.mark.parametrize("body", [
    "t = (N[0], 1)\nN[0] = 5\nN[1] = t[0] + t[1]",
    "t = [N[0], (N[1], 2)]\nN[0] = 5\nN[1] = 6\nN[2] = t[0] + t[1][0]",
    "s = 1\nfor i in range(3):\n    t = (s, s + 1)\n    s = 9\n    N[i] = t[0] * t[1]",
    "N[0], x = N[1], N[0]\nN[1] = x",
])  # fmt: skip
def test_values_in_tuples_are_read_when_they_are_named(body):
    agree(indented(body), *arrays())


@pytest.mark.parametrize("body, message", [
    ("v = A[0, 0:4]\nB[0:4] = v", "a slice is a view in NumPy, which later stores change"),
    ("s = 1\nfor i in range(3):\n    s = s + 1\n    m = T.meta_var(s * 2)\n    N[i] = m",
     "s is assigned again; T.meta_var would read the new value"),
])  # fmt: skip
def test_expressions_that_would_read_a_reassigned_variable_are_refused(body, message):
    with pytest.raises(ParseError, match=message):
        parse(indented(body))


def test_an_annotated_slice_is_a_copy():
    func = program(indented("v: T.float32x4 = A[0, 0:4]\nA[0, 1] = 9.0\nB[0:4] = v"))
    assert any(
        isinstance(s, LetStmt) and s.value.dtype == "float32x4" for s in walk_stmts(func.body)
    )


def test_a_macro_does_not_assign_the_variables_of_its_caller():
    @T.macro(hygienic=False)
    def bump(out):
        count = count + 1
        out[0] = count

    def read():
        @T.prim_func
        def f(A: T.Buffer((4,), "int32")):
            count = 1
            bump(A)
            A[1] = count

    with pytest.raises(ParseError, match="a variable around the macro"):
        read()
