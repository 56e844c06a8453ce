"""Inferred block regions: loops relaxed, inner blocks by contract, reductions, pointers refused."""

from __future__ import annotations

import pytest

from metasched.arith.regions import block_access_regions, matched_region
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import show_expr
from metasched.ir.expr import TRUE, Expr, Var, as_expr
from metasched.ir.op import Ramp, call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    IfThenElse,
    IterVar,
    MatchBufferRegion,
    Stmt,
    evolve,
    seq,
)

R = Range.of
A, B, C = (Buffer.of(n, (64, 64)) for n in "ABC")
VI, VJ, K = Var("vi"), Var("vj"), Var("k")
ZERO = as_expr(0.0, "float32")


def block(body: Stmt, **fields: object) -> Block:
    iters = (IterVar(VI, R(0, 64)), IterVar(VJ, R(0, 64)))
    return evolve(Block("b", iters, (), (), body), **fields)


def shown(regions: tuple[BufferRegion, ...]) -> list[str]:
    def one(x: Range) -> str:
        return f"{show_expr(x.min)}:+{show_expr(x.extent)}"

    return [f"{r.buffer.name}[{', '.join(map(one, r.region))}]" for r in regions]


def found(b: Block) -> tuple[list[str], list[str]]:
    reads, writes = block_access_regions(b)
    return shown(reads), shown(writes)


def test_points() -> None:
    b = block(BufferStore(C, A[VI, VJ] + B[VJ, VI + 1], (VI, VJ)))
    assert found(b) == (["A[vi:+1, vj:+1]", "B[vj:+1, vi + 1:+1]"], ["C[vi:+1, vj:+1]"])


def test_loops_inside_are_relaxed() -> None:
    body = For.serial(K, 4, BufferStore(C, A[VI, VJ * 4 + K], (VI, K)))
    assert found(block(body)) == (["A[vi:+1, vj * 4:+4]"], ["C[vi:+1, 0:+4]"])


def test_statements_that_never_run_add_empty_regions() -> None:
    store = BufferStore(C, A[VI, K], (VI, K))
    never = For.serial(K, 8, IfThenElse(K >= 9, IfThenElse(K < 5, store)))
    assert found(block(never)) == (["A[vi:+1, 9:+0]"], ["C[vi:+1, 9:+0]"])
    runs = For.serial(K, 2, store)
    both = (["A[vi:+1, 0:+2]"], ["C[vi:+1, 0:+2]"])
    assert found(block(seq([never, runs]))) == found(block(seq([runs, never]))) == both


def test_a_loop_whose_end_is_another_loop() -> None:
    outer, inner = Var("i"), Var("j")
    nest = For.serial(outer, 4, For.serial(inner, outer + 1, BufferStore(C, ZERO, (outer, inner))))
    assert found(block(nest)) == ([], ["C[0:+4, 0:+4]"])


def test_strided_loops() -> None:
    loop = evolve(For.serial(K, 4, BufferStore(C, ZERO, (VI, K))), step=as_expr(3))
    assert found(block(loop))[1] == ["C[vi:+1, 0:+10]"]


def test_several_accesses_are_united() -> None:
    b = block(BufferStore(C, A[VI, VJ] + A[VI, VJ + 2], (VI, VJ)))
    assert found(b)[0] == ["A[vi:+1, vj:+3]"]


def test_many_formulas_of_one_index_are_the_whole_dimension() -> None:
    """Each of 300 formulas was compared with all others: a minute."""
    value = sum((A[VI, (VJ + n) % 64] for n in range(1, 300)), A[VI, VJ])
    assert found(block(BufferStore(C, value, (VI, VJ))))[0] == ["A[vi:+1, 0:+64]"]
    value = A[VI, VJ] + A[VI, (VJ + 1) % 64]
    (few,) = found(block(BufferStore(C, value, (VI, VJ))))[0]
    assert few.startswith("A[vi:+1, min(vj, (vj + 1) % 64):+")


def test_a_reduction_with_init_does_not_read_its_result() -> None:
    update = BufferStore(C, C[VI, VJ] + A[VI, VJ], (VI, VJ))
    assert found(block(update))[0] == ["C[vi:+1, vj:+1]", "A[vi:+1, vj:+1]"]
    both = block(update, init=BufferStore(C, ZERO, (VI, VJ)))
    assert found(both) == (["A[vi:+1, vj:+1]"], ["C[vi:+1, vj:+1]"])


def test_a_reduction_with_init_reads_other_elements_of_its_buffer() -> None:
    zero, one = as_expr(0), as_expr(1)
    update = BufferStore(C, C[one, VJ] + C[zero, VJ] * A[VI, VJ], (one, VJ))
    both = block(update, init=BufferStore(C, ZERO, (one, VJ)))
    assert found(both) == (["C[0:+1, vj:+1]", "A[vi:+1, vj:+1]"], ["C[1:+1, vj:+1]"])
    own = For.serial(K, 4, BufferStore(C, C[VI, K] + ZERO, (VI, K)))
    start = For.serial(K, 8, BufferStore(C, ZERO, (VI, K)))
    assert found(block(own, init=start))[0] == []


def test_inner_blocks_count_by_their_declared_regions() -> None:
    v = Var("v")
    inner = Block(
        "inner",
        (IterVar(v, R(0, 16)),),
        (BufferRegion(A, (Range.of(v * 4, 4), Range.of(0, 1))),),
        (BufferRegion.point(C, [v, v]),),
        Evaluate(as_expr(0)),
    )
    realize = BlockRealize((VI * 4 + K,), TRUE, inner)
    assert found(block(For.serial(K, 4, realize))) == (
        ["A[vi * 16:+16, 0:+1]"],
        ["C[vi * 4:+4, vi * 4:+4]"],
    )


def test_buffers_allocated_inside_are_left_out() -> None:
    body = seq([BufferStore(B, A[VI, VJ], (VI, VJ)), BufferStore(C, B[VI, VJ], (VI, VJ))])
    b = block(body, alloc_buffers=(B,))
    assert found(b) == (["A[vi:+1, vj:+1]"], ["C[vi:+1, vj:+1]"])


def test_matched_buffers_count_as_their_source() -> None:
    view = Buffer.of("view", (4,))
    source = BufferRegion(A, (Range.of(VI, 1), Range.of(VJ * 4, 4)))
    match = MatchBufferRegion(view, source)
    b = block(BufferStore(C, view[as_expr(2)], (VI, VJ)), match_buffers=(match,))
    assert found(b)[0] == ["A[vi:+1, vj * 4 + 2:+1]"]
    whole = matched_region(match, BufferRegion(view, (R(0, 4),)))
    assert shown((whole,)) == ["A[vi:+1, vj * 4:+4]"]


def test_conditions_narrow_the_loops() -> None:
    store = BufferStore(C, A[VI, K], (VI, K))
    loop = For.serial(K, 16, IfThenElse(K < 5, store))
    assert found(block(loop)) == (["A[vi:+1, 0:+5]"], ["C[vi:+1, 0:+5]"])
    padded = call("if_then_else", K >= 2, A[VI, K - 2], ZERO)
    assert found(block(For.serial(K, 16, BufferStore(C, padded, (VI, K)))))[0] == [
        "A[vi:+1, 0:+14]"
    ]


def test_index_loads_are_read_and_make_the_rest_whole() -> None:
    table = Buffer.of("T", (64,), "int32")
    b = block(For.serial(K, 4, BufferStore(C, A[table[K], VJ], (VI, VJ))))
    assert found(b)[0] == ["A[0:+64, vj:+1]", "T[0:+4]"]


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_indices_of_several_types_are_joined(dtype: str) -> None:
    table = Buffer.of("T", (64,), dtype)
    value = A[table[VI], VJ] + A[3, VJ] + A[table[VJ], VJ]
    (region, _), _ = block_access_regions(block(BufferStore(C, value, (VI, VJ))))
    wide = "int32" if dtype == "uint8" else dtype
    assert str(region.region[0].min.dtype) == str(region.region[0].extent.dtype) == wide


def test_vector_indices() -> None:
    lanes = Ramp(VJ * 4, as_expr(1), 4)
    b = block(BufferStore(C, BufferLoad(A, (VI, lanes)), (VI, lanes)))
    assert found(b)[0] == ["A[vi:+1, vj * 4:+4]"]
    odd = call("shift_left", Ramp(VJ, as_expr(1), 4), Ramp(VJ, as_expr(1), 4))
    with pytest.raises(MetaschedError, match="region of the vector index"):
        found(block(BufferStore(C, BufferLoad(A, (VI, odd)), (VI, odd))))


@pytest.mark.parametrize(
    "value",
    [
        call("call_extern", "f", A.data, dtype="float32"),
        call("address_of", A[VI, VJ], dtype="handle"),
    ],
)
def test_pointers_are_refused(value: Expr) -> None:
    with pytest.raises(MetaschedError, match=r"'b' uses the address of 'A'.*T\.reads"):
        found(block(Evaluate(value)))


def test_an_address_of_nothing_is_refused() -> None:
    with pytest.raises(MetaschedError, match="'b' uses the address of 'a buffer'"):
        found(block(Evaluate(call("address_of", dtype="handle"))))
