"""cache_index: index arithmetic computed ahead into buffers."""

from __future__ import annotations

from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import matmul

from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def resize(A: T.Buffer((3, 10, 10), "float32"), B: T.Buffer((3, 20, 20), "float32")):
    for c, i, j in T.grid(3, 20, 20):
        with T.block("A"):
            vc, vi, vj = T.axis.remap("SSS", [c, i, j])
            B[vc, vi, vj] = A[vc, vi // 4 + vj // 4, vj // 2]


@T.prim_func
def resize_cached(A: T.Buffer((3, 10, 10), "float32"), B: T.Buffer((3, 20, 20), "float32")):
    index_var_0 = T.alloc_buffer((20, 20), "int32")
    index_var_1 = T.alloc_buffer((20,), "int32")
    for ax0, ax1 in T.grid(20, 20):
        with T.block("index_0"):
            v0, v1 = T.axis.remap("SS", [ax0, ax1])
            index_var_0[v0, v1] = v0 // 4 + v1 // 4
    for ax0 in range(20):
        with T.block("index_1"):
            v0 = T.axis.spatial(20, ax0)
            index_var_1[v0] = v0 // 2
    for c, i, j in T.grid(3, 20, 20):
        with T.block("A"):
            vc, vi, vj = T.axis.remap("SSS", [c, i, j])
            T.reads(A[vc, vi // 4 + vj // 4, vj // 2], index_var_0[vi, vj], index_var_1[vj])
            T.writes(B[vc, vi, vj])
            B[vc, vi, vj] = A[vc, index_var_0[vi, vj], index_var_1[vj]]


@T.prim_func
def repeated(A: T.Buffer((10,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.block("B"):
            vi = T.axis.spatial(16, i)
            B[vi] = A[vi // 2 + 1] + A[vi // 2] + A[vi * 3 % 10]


@T.prim_func
def gather(
    A: T.Buffer((8,), "float32"),
    I: T.Buffer((4,), "int32"),
    B: T.Buffer((4,), "float32"),
):
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[I[vi] % 8]


def test_every_computed_index_is_cached():
    for threshold in (0, 1):
        sch = Schedule(resize)
        made = sch.cache_index("A", "global", threshold)
        becomes(resize, sch, resize_cached)
        assert [sch.get(b).name for b in made] == ["index_0", "index_1"]


def test_only_what_repeats_is_cached_with_a_threshold():
    sch = Schedule(repeated)
    (made,) = sch.cache_index("B", "local", cse_thresh=2)
    assert sch.get(made).name == "index_0"
    assert "A[index_var_0[vi] + 1] + A[index_var_0[vi]] + A[vi * 3 % 10]" in sch.script()
    check_transform(repeated, sch)


def test_refusals():
    sch = Schedule(matmul)
    check_refused(
        sch, lambda: sch.cache_index("C", "global"), "no-index-computation", "repeat no arithmetic"
    )
    check_refused(sch, lambda: sch.cache_index("C", "here"), "unknown-scope", "no storage scope")
    check_refused(
        sch,
        lambda: sch.cache_index("C", "global", "many"),
        "not-an-integer",
        "cse_thresh is 'many'",
    )
    sch = Schedule(gather)
    check_refused(
        sch, lambda: sch.cache_index("B", "global"), "no-index-computation", "repeat no arithmetic"
    )
    sch = Schedule(matmul)
    sch.blockize(sch.get_loops("C")[1])
    check_refused(sch, lambda: sch.cache_index("C_o", "global"), "not-leaf", "stands inside it")
