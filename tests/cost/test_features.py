"""Features: the numbers of a tiled matmul by hand, and what must not change them."""

from __future__ import annotations

import numpy as np
import pytest
from cost.tiled import Matmul, block, nest, sample

from metasched.cost.features import FEATURE_NAMES, STORE_FEATURES, features, store_features
from metasched.cost.machine import MACHINE_FEATURES
from metasched.cost.summary import summarize
from metasched.frontend import te
from metasched.frontend.einsum import einsum
from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.expr import LT, TRUE, Select, Var, as_expr, compare, logical_and, maximum
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import Call, call, op_named
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IterKind,
    MatchBufferRegion,
)
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.target import Target

TARGET = Target.of("llvm -mcpu=haswell -num-cores=2")
S, R = IterKind.SPATIAL, IterKind.REDUCE


def rows_of(body, *params, alloc=()):
    root = Block("root", (), (), (), body, alloc_buffers=alloc)
    mod = IRModule.of(PrimFunc(params, BlockRealize.plain(root)))
    return [dict(zip(STORE_FEATURES, row, strict=True)) for row in store_features(mod, TARGET)]


def tiled(unroll=0):
    mod = Matmul(64).program((4, 1, 4, 4), (2, 1, 2, 16), (4, 16), unroll)
    rows = store_features(mod, TARGET)
    return [dict(zip(STORE_FEATURES, row, strict=True)) for row in rows]


def test_names():
    assert len(STORE_FEATURES) == len(set(STORE_FEATURES)) == 28
    assert len(FEATURE_NAMES) == len(set(FEATURE_NAMES)) == 3 * 28 + len(MACHINE_FEATURES)


def test_one_row_a_store_also_of_constants_and_of_the_same_buffer():
    init, update, write = tiled()
    assert (init["iterations"], update["iterations"], write["iterations"]) == (4096, 64**3, 4096)


def test_a_sum_with_a_product_is_a_multiply_add():
    update = tiled()[1]
    assert update["float_mad"] == 64**3
    assert update["float_mul"] == update["float_add_sub"] == 0


def test_an_operation_whose_result_is_used_twice_counts_once():
    """Seven steps x = x * x + x have 2,187 paths to the load."""
    a = te.placeholder((8,), "float32", "A")

    def seventh(i):
        x = a[i]
        for _ in range(7):
            x = x * x + x
        return x

    mod = IRModule.of(te.create_prim_func([a, te.compute((8,), seventh)]))
    (row,) = (dict(zip(STORE_FEATURES, r, strict=True)) for r in store_features(mod, TARGET))
    assert (row["float_mad"], row["float_add_sub"], row["float_mul"]) == (8 * 7, 0, 0)


def test_annotated_loops():
    init, update, write = tiled()
    assert update["vectorized.inner"] == 16
    assert update["unroll.product"] == 4
    assert update["parallel.product"] == init["parallel.product"] == 8
    assert write["unroll.number"] == 0


def test_a_local_buffer_has_its_compacted_size():
    """The tile of 16 x 32 of the product, not all of its 64 x 64."""
    (at,) = (n for n, name in enumerate(FEATURE_NAMES) if name == "machine.temporaries")
    found = features(Matmul(64).program((4, 1, 4, 4), (2, 1, 2, 16), (4, 16)), TARGET)[at]
    assert (2**found - 1e-3) * TARGET.l2_bytes == pytest.approx(4 * 16 * 32, rel=0.01)


def test_unroll_step_from_the_annotation():
    assert tiled()[1]["unroll_step"] == 0
    assert tiled(unroll=64)[1]["unroll_step"] == 64


def test_counts_of_other_operations():
    A, B = Buffer.of("A", (8,)), Buffer.of("B", (8,))
    N, M = Buffer.of("N", (8,), "int32"), Buffer.of("M", (8,), "int32")
    i, vi = Var("i"), Var("vi")

    def counts(buffer, value):
        body = block("b", ((vi, 8, S),), BufferStore(buffer, value, (vi,)), (), (buffer,))
        row = rows_of(nest([(i, 8, "")], BlockRealize((i,), TRUE, body)), A, B, N, M)[0]
        names = STORE_FEATURES[:16]
        return {n: row[n] / 8 for n in names if row[n]}

    assert counts(B, call("exp", A[vi]) - A[vi]) == {"float_add_sub": 1, "float_math": 1}
    assert counts(B, maximum(A[vi], 0.0) * 2.0) == {"float_cmp": 1, "float_mul": 1}
    assert counts(B, call("fma", A[vi], A[vi], B[vi])) == {"float_mad": 1}
    assert counts(B, Select(A[vi] < 0.0, A[vi], A[vi] / 3.0)) == {
        "select": 1, "float_cmp": 1, "float_div_mod": 1,
    }  # fmt: skip
    assert counts(M, N[vi] * 3 + 1) == {"int_mad": 1}
    assert counts(M, N[vi] // 3) == {"int_div_mod": 1}
    guard = logical_and(compare(LT, vi, 3), compare(LT, 1, vi))
    assert counts(B, call("if_then_else", guard, A[vi], 0.0)) == {
        "select": 1, "logic": 1, "int_cmp": 2,
    }  # fmt: skip
    extern = Call("float32", op_named("call_extern"), (A[vi],))
    assert counts(B, extern) == {"float_call": 1}
    assert counts(B, A[vi + 1]) == {"int_add_sub": 1}


def test_views_and_vector_stores_count_for_the_memory_they_name():
    A, view = Buffer.of("A", (64, 64)), Buffer.of("view", (16,))
    i, j, vi, vj = (Var(x) for x in "i j vi vj".split())
    lane = Var("lane")
    store = For(
        lane, as_expr(0), as_expr(16), ForKind.VECTORIZED,
        BufferStore(view, as_expr(1.0), (lane,)),
    )  # fmt: skip
    source = BufferRegion(A, (Range.of(vi, 1), Range.of(vj * 16, 16)))
    body = block("b", ((vi, 64, S), (vj, 4, S)), store, (), (A,))
    body = Block(
        body.name, body.iter_vars, (), (source,), store,
        match_buffers=(MatchBufferRegion(view, source),),
    )  # fmt: skip
    realize = BlockRealize((i, j), TRUE, body)
    (row,) = rows_of(nest([(i, 64, ""), (j, 4, "")], realize), A)
    assert row["iterations"] == 64 * 64
    root = Block("root", (), (), (), nest([(i, 64, ""), (j, 4, "")], realize))
    (named,) = summarize(IRModule.of(PrimFunc((A,), BlockRealize.plain(root)))).stores[0].accesses
    assert named.buffer is A
    assert [sum(width for _, width in stride.values()) for stride in named.dims] == [63, 63]
    assert row["vectorized.inner"] == 16


def test_an_instruction_without_stores_is_one_call_on_its_regions():
    A, C = Buffer.of("A", (64,)), Buffer.of("C", (64,))
    i, vi = Var("i"), Var("vi")

    def tile(buffer):
        return BufferRegion(buffer, (Range.of(vi * 16, 16),))

    effect = Evaluate(Call("void", op_named("call_extern"), (as_expr("dot"),)))
    body = block("b", ((vi, 4, S),), effect)
    body = Block("b", body.iter_vars, (tile(A),), (tile(C),), effect)
    (row,) = rows_of(nest([(i, 4, "")], BlockRealize((i,), TRUE, body)), A, C)
    assert row["float_call"] == 4


def test_symbolic_extents_and_empty_programs():
    n = Var("n")
    A = Buffer.of("A", (n,))
    i, vi = Var("i"), Var("vi")
    body = block("b", ((vi, 8, S),), BufferStore(A, as_expr(1.0), (vi,)), (), (A,))
    loop = For(i, as_expr(0), n, ForKind.SERIAL, BlockRealize((i,), TRUE, body))
    (row,) = rows_of(loop, A)
    assert row["iterations"] == 64
    empty = PrimFunc((A,), BlockRealize.plain(Block("root", (), (), (), Evaluate(as_expr(0)))))
    assert not features(empty, TARGET).any()
    assert features(empty, TARGET).shape == (len(FEATURE_NAMES),)


def test_unit_loops_change_nothing():
    A = Buffer.of("A", (64,))
    i, u, vi = Var("i"), Var("u"), Var("vi")
    body = block("b", ((vi, 64, S),), BufferStore(A, as_expr(1.0), (vi,)), (), (A,))
    plain = rows_of(nest([(i, 64, "")], BlockRealize((i,), TRUE, body)), A)
    unit = rows_of(nest([(u, 1, "v"), (i, 64, "")], BlockRealize((i + u,), TRUE, body)), A)
    assert plain == unit


def test_vector_is_sum_maximum_and_total():
    mod = Matmul(64).program((4, 1, 4, 4), (2, 1, 2, 16), (4, 16))
    raw, vector = store_features(mod, TARGET), features(mod, TARGET)
    assert vector.dtype == np.float32
    named = dict(zip(FEATURE_NAMES, vector, strict=True))
    at = STORE_FEATURES.index("iterations")
    assert named["sum.iterations"] == pytest.approx(np.log2(raw[:, at] + 1).sum())
    assert named["max.iterations"] == pytest.approx(np.log2(raw[:, at].max() + 1))
    assert named["total.iterations"] == pytest.approx(np.log2(raw[:, at].sum() + 1))


def test_copies_with_other_variables_have_the_same_vector():
    tiles = ((4, 1, 4, 4), (2, 1, 2, 16), (4, 16))
    np.testing.assert_array_equal(
        features(Matmul(64).program(*tiles), TARGET), features(Matmul(64).program(*tiles), TARGET)
    )


def test_different_tiles_have_different_vectors():
    programs, _ = sample(40, seed=3, n=64)
    rows = {features(p, TARGET).tobytes() for p in programs}
    assert len(rows) >= 38


def test_every_row_is_finite_and_not_negative():
    for program in sample(20, seed=5)[0]:
        rows = store_features(program, TARGET)
        assert np.isfinite(rows).all()
        assert (rows >= 0).all()


def test_loops_without_iterations_have_features():
    func = einsum("ik,kj->ij", (4, 0), (0, 4))
    for kind in ("serial", "unroll"):
        sch = Schedule(func)
        if kind == "unroll":
            sch.unroll(sch.get_loops(sch.get_child_blocks("root")[0])[2])
        assert np.isfinite(features(sch.mod, TARGET)).all()


def test_facts_of_a_store_are_found_once(monkeypatch):
    matmul = Matmul(64)
    tiles = ((4, 1, 4, 4), (2, 1, 2, 16), (4, 16))
    features(matmul.program(*tiles), TARGET)
    monkeypatch.setattr("metasched.cost.summary.count", None)
    features(matmul.program(*tiles), TARGET)


TRIANGLE = """
@T.prim_func
def f(A: T.Buffer((128, 128))):
    for k in range(128):
        for i in range({extent}):
            with T.block("A"):
                A[k, i] = T.float32(0)
"""


@pytest.mark.parametrize(
    ("extent", "mean"), [("128 - k", 65), ("(128 - k + 63) // 64", 2), ("T.min(k, 8)", 8)]
)
def test_an_extent_that_depends_on_a_loop_counts_its_mean(extent: str, mean: int) -> None:
    (store,) = summarize(Schedule(parse(TRIANGLE.format(extent=extent))).mod).stores
    assert [loop.extent for loop in store.loops] == [128, mean]
