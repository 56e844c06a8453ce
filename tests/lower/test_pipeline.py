"""The passes of a target kind: their order, what is shown between them, and a kind without any."""

from __future__ import annotations

import pytest
from oracle import check_numbers

import metasched as ms
from metasched.errors import TargetError
from metasched.ir.dtype import INT32, INT64
from metasched.ir.expr import Compare
from metasched.ir.stmt import Allocate
from metasched.ir.visit import walk_exprs, walk_stmts
from metasched.lower.pipeline import apply_passes, lower
from metasched.lower.table import PIPELINES, Pipeline
from metasched.target import Target

CPU = Target.of({"kind": "cpu", "mcpu": "haswell"})
FUNC = ms.workloads.get("nrm").func((1, 8, 8))


def test_the_last_pass_gives_the_lowered_function():
    names, funcs = zip(*apply_passes(FUNC, CPU), strict=True)
    assert names[0] == "close_blocks" and names.index("convert_blocks") < names.index("flatten")
    assert names[-1] == "unroll_short_loops"
    assert ms.structural_equal(funcs[-1], lower(FUNC, CPU))


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint16"])
def test_quotients_of_cast_64_bit_loops(dtype):
    """Only quotients of integers are indices; a float has no integer range."""
    func = ms.parse(f"""
@T.prim_func
def main(B: T.Buffer((300,), "{dtype}"), C: T.Buffer((300,), "{dtype}")):
    for i in T.serial(T.int64(0), T.int64(300)):
        with T.block("b"):
            vi = T.axis.spatial(T.int64(300), i)
            B[vi] = T.floordiv(T.cast(vi, "{dtype}"), T.{dtype}(2))
            C[vi] = T.floormod(T.cast(vi * 3, "{dtype}"), T.{dtype}(7))
""")
    check_numbers(func, ms.Schedule(func).mod, compiled=True)


def test_a_buffer_of_a_block_as_long_as_an_iterator():
    func = ms.parse("""
@T.prim_func
def main(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    for i in range(6):
        with T.block("C"):
            vi = T.axis.spatial(6, i)
            T.reads(A[0 : vi + 1])
            T.writes(C[vi, 0 : vi + 1])
            B = T.alloc_buffer((vi + 1,), "int32")
            for j in range(vi + 1):
                B[j] = A[j] * 2
            for j in range(vi + 1):
                C[vi, j] = B[vi - j]
""")
    check_numbers(func, ms.Schedule(func).mod, compiled=True)


def test_quotients_by_divisors_that_no_index_reaches():
    func = ms.parse("""
@T.prim_func
def main(a: T.uint64, C: T.Buffer((2,), "uint64")):
    C[0] = a // T.uint64(18446744073709551615)
    C[1] = a % T.uint64(9223372036854775808)
""")
    for a in (0, 2**63, 2**64 - 1):
        assert ms.build(func)(a).tolist() == [a // (2**64 - 1), a % 2**63]


def test_a_kind_without_passes_is_refused():
    with pytest.raises(
        TargetError, match="no passes for targets of kind 'cuda'; kinds with passes"
    ):
        lower(FUNC, Target.of({"kind": "cuda", "mcpu": "sm_86"}))


def test_a_kind_has_passes_of_its_own(monkeypatch):
    monkeypatch.setattr(PIPELINES, "_items", dict(PIPELINES._items))

    def mark(func):
        return func.with_attr("marked", 1)

    PIPELINES.register("cuda", lambda target: Pipeline((), ((mark, "the only one"),)))
    func = ms.parse("@T.prim_func(s_tir=False)\ndef f():\n    T.evaluate(0)")
    lowered = lower(func, Target.of({"kind": "cuda", "mcpu": "sm_86"}))
    assert lowered.attrs["marked"] == 1


def test_the_setting_debug_prints_what_passes_changed(monkeypatch, capsys):
    monkeypatch.setenv("METASCHED_DEBUG", "passes")
    lower(FUNC, CPU)
    said = capsys.readouterr()
    assert said.out == "" and "# after convert_blocks\n@T.prim_func" in said.err
    monkeypatch.setenv("METASCHED_DEBUG", "everything")
    with pytest.raises(ms.MetaschedError, match="METASCHED_DEBUG.*'everything' is not one of"):
        lower(FUNC, CPU)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("strides=[1, 6]", 30), ("strides=[7, 1]", 42), ("elem_offset=8", 38),
        ("strides=[1, 6], elem_offset=5", 35),
    ],
)  # fmt: skip
def test_an_allocation_holds_its_last_element(layout, size):
    """Dimensions may lie in any order: the first need not have the largest stride."""
    func = ms.parse(f"""
@T.prim_func
def f(A: T.Buffer((6, 5), "int32"), C: T.Buffer((6, 5), "int32")):
    B = T.alloc_buffer((6, 5), "int32", {layout})
    for i, j in T.grid(6, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, j in T.grid(6, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[5 - vi, vj] * 2
""")
    check_numbers(func, ms.Schedule(func).mod, compiled=True)
    (made,) = [s.buffer for s in walk_stmts(lower(func, CPU).body) if isinstance(s, Allocate)]
    assert made.shape[0] == size


@pytest.mark.parametrize(
    ("header", "extent", "value", "dtype"),
    [
        ("n = T.int32()", "n", "A[v] + 1", INT64),
        ("n = N", "n", "A[v] + 1", INT64),
        ("n = 2147483647", "L[0]", "A[v] + 1", INT64),
        ("n = 8", "n", "T.if_then_else(A[v] * 3 < N + N, 1, 0)", INT32),
    ],
    ids=["shape symbol", "scalar parameter", "extent from memory", "values only"],
)
def test_indices_are_compared_in_64_bits(header, extent, value, dtype):
    """The guard of a split by 100, `i_0 * 100 + i_1 < 2**31 - 1`, would wrap around in 32 bits."""
    func = ms.parse(f"""
@T.prim_func
def f(a: T.handle, b: T.handle, L: T.Buffer((1,), "int32"), N: T.int32):
    {header}
    A = T.match_buffer(a, (n,), "int32")
    B = T.match_buffer(b, (n,), "int32")
    for i in range({extent}):
        with T.block("B"):
            v = T.axis.spatial({extent}, i)
            B[v] = {value}
""")
    sch = ms.Schedule(func)
    if dtype is INT64:
        sch.split(sch.get_loops("B")[0], [None, 100])
    flat = dict(apply_passes(sch.mod["main"], CPU))["flatten"]
    exprs = [e for s in walk_stmts(flat.body) for e in s.exprs]
    compared = [n.a.dtype for e in exprs for n in walk_exprs(e) if isinstance(n, Compare)]
    assert compared == [dtype]
