"""Properties of blocks: each condition with a case where it holds and a case where it fails."""

from __future__ import annotations

import pytest
from analysis.programs import (
    concat,
    halo,
    loop,
    matmul,
    matmul_relu,
    named,
    refused,
    scope_of,
    stencil_in_place,
)

from metasched.analysis.block import (
    affine_binding,
    complete,
    complete_or_reduction,
    dominant,
    is_leaf,
    is_output,
    is_spatial_only,
    loop_iter_kind,
    needs_multi_level_tiling,
    needs_rfactor,
    reduction,
    region_cover,
    stage_pipeline,
    trivial_binding,
)
from metasched.analysis.failure import Failure
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, IterKind, evolve, frozen
from metasched.ir.visit import transform
from metasched.script import parse
from metasched.script import tir as T


def annotated(func: PrimFunc, block: str, key: str) -> PrimFunc:
    def mark(stmt):
        if isinstance(stmt, Block) and stmt.name == block:
            return evolve(stmt, annotations=frozen({key: "x"}))
        return None

    return func.with_body(transform(func.body, mark))


# ---- complete, reduction, dominance ----------------------------------------------------------


def test_complete() -> None:
    scope = scope_of(matmul_relu)
    assert complete(scope, named(scope, "D").token) is None
    refused(
        complete(scope, named(scope, "C").token), "not-spatial", "iterator vk of block C is reduce"
    )


def test_a_block_that_reads_what_it_writes_is_not_complete() -> None:
    scope = scope_of(stencil_in_place)
    sentence = "block S both reads and writes X"
    refused(complete(scope, scope.realizes[0].token), "reads-own-output", sentence)


def test_dominant_with_and_without_disjoint_regions() -> None:
    scope = scope_of(concat)
    left = named(scope, "left").token
    sentence = "block left is not the only writer of C: right writes it too"
    refused(dominant(scope, left), "not-dominant", sentence)
    refused(complete(scope, left), "not-dominant", sentence)
    assert dominant(scope, left, sole=False) is None
    assert complete(scope, left, sole=False) is None
    assert complete(scope, left, among=[named(scope, "left")]) is None


def test_overlapping_writers_do_not_dominate() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("a"):
                v = T.axis.spatial(8, i)
                A[v] = T.float32(0)
        for j in T.serial(8):
            with T.block("b"):
                v = T.axis.spatial(8, j)
                A[v] = T.float32(1)

    scope = scope_of(f)
    shared = "block b is not the only writer of its elements of A: a may write them too"
    refused(dominant(scope, named(scope, "b").token, sole=False), "not-dominant", shared)


def test_reduction() -> None:
    scope = scope_of(matmul_relu)
    assert reduction(scope, named(scope, "C").token) is None
    refused(reduction(scope, named(scope, "D").token), "no-init", "block D has no init")


def test_reduction_iterator_in_the_output() -> None:
    @T.prim_func
    def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8, 8), "float32")):
        for i, k in T.grid(8, 8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi, vk] = T.float32(0)
                C[vi, vk] = C[vi, vk] + A[vi, vk]

    scope = scope_of(f)
    sentence = r"reduction iterator vk indexes the output C\[vi, vk\]"
    refused(reduction(scope, scope.realizes[0].token), "reduction-indexes-output", sentence)


def test_a_block_that_reads_a_neighbouring_result_is_no_reduction() -> None:
    @T.prim_func
    def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((9,), "float32")):
        for i, k in T.grid(8, 8):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi + 1] = T.float32(0)
                C[vi + 1] = C[vi + 1] + A[vi, vk] * C[vi]

    scope = scope_of(f)
    sentence = "block C reads elements of C other than the one it updates"
    refused(reduction(scope, scope.realizes[0].token), "reads-other-results", sentence)


def test_other_iterator_kinds_are_no_reduction() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), C: T.Buffer((1,), "float32")):
        for k in T.serial(8):
            with T.block("C"):
                vk = T.axis.scan(8, k)
                with T.init():
                    C[0] = T.float32(0)
                C[0] = C[0] + A[vk]

    scope = scope_of(f)
    refused(reduction(scope, scope.realizes[0].token), "iterator-kind", "vk of block C is scan")


def test_complete_or_reduction_gives_both_reasons() -> None:
    scope = scope_of(matmul_relu)
    for child in scope.realizes:
        assert complete_or_reduction(scope, child.token) is None
    scope = scope_of(stencil_in_place)
    failure = complete_or_reduction(scope, scope.realizes[0].token)
    refused(failure, "not-complete-or-reduction", "both reads and writes X.*has no init")


# ---- kinds and shape of blocks ---------------------------------------------------------------


def test_spatial_only() -> None:
    scope = scope_of(matmul_relu)
    assert is_spatial_only(named(scope, "D").block) is None
    refused(is_spatial_only(named(scope, "C").block), "not-spatial", "vk of block C is reduce")


def test_leaf() -> None:
    assert is_leaf(scope_of(matmul).realizes[0].block) is None
    refused(is_leaf(matmul.root), "not-leaf", "block root is no leaf: block C stands inside it")


def test_output() -> None:
    scope = scope_of(matmul_relu)
    assert not is_output(scope.block, named(scope, "C").block)
    assert is_output(scope.block, named(scope, "D").block)


# ---- bindings --------------------------------------------------------------------------------


def binding(text_values: object, extents: tuple[int, ...], where: object = None) -> Failure | None:
    """The affine test of a block whose iterators are bound to `text_values` of the loops."""
    from metasched.ir.buffer import Range
    from metasched.ir.expr import TRUE, Var, as_expr
    from metasched.ir.stmt import Evaluate, For, IterVar

    loops = [Var(f"i{n}") for n in range(len(extents))]
    values = tuple(as_expr(v) for v in text_values(*loops))  # type: ignore[operator]
    iters = tuple(IterVar(Var(f"v{n}"), Range.of(0, 1 << 20)) for n in range(len(values)))
    block = Block("b", iters, (), (), Evaluate(as_expr(0)))
    predicate = TRUE if where is None else where(*loops)  # type: ignore[operator]
    realize = BlockRealize(values, predicate, block)
    nest = [For.serial(v, e, realize) for v, e in zip(loops, extents, strict=True)]
    first = affine_binding(realize, nest)
    assert affine_binding(realize, nest) is first  # cached
    return first


@pytest.mark.parametrize(
    ("values", "extents"),
    [
        (lambda i, j: (i, j), (4, 8)),
        (lambda i, j: (j, i), (4, 8)),
        (lambda i, j: (i * 8 + j,), (4, 8)),
        (lambda f: (f // 8, f % 8), (32,)),
        (lambda i, j: (i * 8 + j // 2, j % 2), (4, 16)),
        (lambda i: (i, 0), (4,)),
        (lambda i: (i + 3,), (4,)),
        (lambda i, u: (i + u,), (4, 1)),
    ],
)
def test_affine(values: object, extents: tuple[int, ...]) -> None:
    assert binding(values, extents) is None


@pytest.mark.parametrize(
    ("values", "extents"),
    [
        (lambda i, j: (i + j,), (4, 8)),
        (lambda i: (i, i), (4,)),
        (lambda i: (i * 2,), (4,)),
        (lambda i, j: (i * j,), (4, 8)),
        (lambda i: (i // 2, i % 3), (12,)),
    ],
)
def test_not_affine(values: object, extents: tuple[int, ...]) -> None:
    refused(
        binding(values, extents), "not-affine", r"the bindings of block b are not affine .*v0 = "
    )


def test_affine_below_a_predicate() -> None:
    values, extents = (lambda i, j: (i * 8 + j,)), (4, 8)
    assert binding(values, extents, lambda i, j: i * 8 + j < 30) is None


def test_symbolic_loops_are_affine() -> None:
    @T.prim_func
    def f(n: T.int32, A: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            with T.block("b"):
                v = T.axis.spatial(n, i)
                A[v] = T.float32(0)

    assert affine_binding(scope_of(f).realizes[0]) is None


def test_trivial_binding() -> None:
    assert trivial_binding(scope_of(matmul).realizes[0]) is None
    child = named(scope_of(halo), "P")
    sentence = r"the iterators of block P are bound to .*, not t, u"
    refused(trivial_binding(child), "not-trivial-binding", sentence)
    refused(trivial_binding(child.realize), "not-trivial-binding", "bound to")


# ---- region cover and stage pipeline ---------------------------------------------------------


def test_region_cover() -> None:
    for func in (matmul_relu, halo):
        scope = scope_of(func)
        for child in scope.realizes:
            assert region_cover(scope, child.token) is None, func
        assert stage_pipeline(scope) is None


def shifted(extent: int) -> PrimFunc:
    """The consumer reads one element beyond what the producer has written before it."""

    @T.prim_func
    def f(A: T.Buffer((9,), "float32"), B: T.Buffer((8,), "float32")):
        P = T.alloc_buffer((9,), "float32")
        for i in T.serial(extent):
            with T.block("P"):
                v = T.axis.spatial(9, i)
                P[v] = A[v]
        for j in T.serial(8):
            with T.block("B"):
                v = T.axis.spatial(8, j)
                B[v] = P[v] + P[v + 1]

    return f


def test_region_cover_fails_where_an_element_is_missing() -> None:
    assert stage_pipeline(scope_of(shifted(9))) is None
    scope = scope_of(shifted(8))
    sentence = r"block B reads P\[v:v \+ 2\], which is not proved to be written before: P\[v\] by P"
    refused(region_cover(scope, named(scope, "B").token), "region-cover", sentence)
    refused(stage_pipeline(scope), "region-cover", sentence)


def tails(made: int, read: int) -> PrimFunc:
    """Tiles of `made` columns, read in vectors of 4 lanes of which the first `read` columns run."""

    @T.prim_func
    def f(A: T.Buffer((42,), "float32"), B: T.Buffer((42,), "float32")):
        P = T.alloc_buffer((42,), "float32")
        for i in range(2):
            for j in range(made):
                with T.block("P"):
                    v = T.axis.spatial(42, i * 21 + j)
                    P[v] = A[v]
            for j, k in T.grid(6, 4):
                with T.block("B"):
                    T.where(j * 4 + k < read)
                    v = T.axis.spatial(42, i * 21 + j * 4 + k)
                    B[v] = P[v]

    return f


def test_region_cover_where_a_condition_limits_what_is_read() -> None:
    assert stage_pipeline(scope_of(tails(21, 21))) is None
    assert stage_pipeline(scope_of(tails(21, 20))) is None
    refused(stage_pipeline(scope_of(tails(20, 21))), "region-cover", "block B reads P")


def packed(made: int) -> PrimFunc:
    """A tile of four elements in rows of eight; `made` of them are written before it is read."""

    @T.prim_func
    def f(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
        P = T.alloc_buffer((2, 8), "float32")
        for i in T.serial(4):
            for j in T.serial(made):
                with T.block("P"):
                    v = T.axis.spatial(16, i * 4 + j)
                    P[v // 8, v % 8] = A[v]
            for j in T.serial(4):
                with T.block("B"):
                    v = T.axis.spatial(16, i * 4 + j)
                    B[v] = P[v // 8, v % 8]

    return f


def test_region_cover_of_a_packed_buffer(monkeypatch) -> None:
    refused(stage_pipeline(scope_of(packed(3))), "region-cover", "block B reads P")
    monkeypatch.setattr("metasched.analysis.cover._covers_symbolically", None)  # not asked
    assert stage_pipeline(scope_of(packed(4))) is None


def test_region_cover_within_a_shared_loop() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        P = T.alloc_buffer((8,), "float32")
        for i in T.serial(8):
            with T.block("P"):
                v = T.axis.spatial(8, i)
                P[v] = A[v]
            with T.block("B"):
                v = T.axis.spatial(8, i)
                B[v] = P[7 - v]

    scope = scope_of(f)
    refused(region_cover(scope, named(scope, "B").token), "region-cover", "block B reads P")


def test_two_producers_cover_together() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((16,), "float32")):
        P = T.alloc_buffer((16,), "float32")
        for i in T.serial(8):
            with T.block("low"):
                v = T.axis.spatial(8, i)
                P[v] = A[v]
        for i in T.serial(8):
            with T.block("high"):
                v = T.axis.spatial(8, i)
                P[v + 8] = A[v]
        for j in T.serial(16):
            with T.block("B"):
                v = T.axis.spatial(16, j)
                B[v] = P[v]

    assert stage_pipeline(scope_of(f)) is None


def test_gaps_do_not_cover() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((16,), "float32")):
        P = T.alloc_buffer((16,), "float32")
        for i in T.serial(8):
            with T.block("P"):
                v = T.axis.spatial(8, i)
                P[v * 2] = A[v]
        for j in T.serial(16):
            with T.block("B"):
                v = T.axis.spatial(16, j)
                B[v] = P[v]

    scope = scope_of(f)
    refused(stage_pipeline(scope), "region-cover", "block B reads P")


def test_a_predicate_limits_what_is_written() -> None:
    def program(limit: int) -> PrimFunc:
        @T.prim_func
        def f(A: T.Buffer((16,), "float32"), B: T.Buffer((10,), "float32")):
            P = T.alloc_buffer((16,), "float32")
            for i, j in T.grid(4, 4):
                with T.block("P"):
                    v = T.axis.spatial(16, i * 4 + j)
                    T.where(i * 4 + j < limit)
                    P[v] = A[v]
            for j in T.serial(10):
                with T.block("B"):
                    v = T.axis.spatial(10, j)
                    B[v] = P[v]

        return f

    assert stage_pipeline(scope_of(program(10))) is None
    refused(stage_pipeline(scope_of(program(9))), "region-cover", "block B reads P")


def test_symbolic_stages() -> None:
    @T.prim_func
    def f(n: T.int32, A: T.Buffer((n, n), "float32"), B: T.Buffer((n, n), "float32")):
        P = T.alloc_buffer((n, n), "float32")
        for i, j in T.grid(n, n):
            with T.block("P"):
                vi, vj = T.axis.remap("SS", [i, j])
                P[vi, vj] = A[vi, vj]
        for i, j in T.grid(n, n):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = P[vj, vi]

    assert stage_pipeline(scope_of(f)) is None


def test_shared_memory_is_covered_by_all_threads() -> None:
    def program(storage: str) -> PrimFunc:
        @T.prim_func
        def f(A: T.Buffer((32,), "float32"), B: T.Buffer((32,), "float32")):
            P = T.alloc_buffer((32,), "float32", scope=storage)
            for t in T.thread_binding(32, thread="threadIdx.x"):
                with T.block("P"):
                    v = T.axis.spatial(32, t)
                    P[v] = A[v]
                with T.block("B"):
                    v = T.axis.spatial(32, t)
                    B[v] = P[31 - v]

        return f

    assert stage_pipeline(scope_of(program("shared"))) is None
    refused(stage_pipeline(scope_of(program("local"))), "region-cover", "block B reads P")


def test_stage_pipeline_refuses_write_after_read() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("read"):
                v = T.axis.spatial(8, i)
                B[v] = A[v]
        for j in T.serial(8):
            with T.block("write"):
                v = T.axis.spatial(8, j)
                A[v] = T.float32(0)

    sentence = "block write overwrites A, which read reads"
    scope = scope_of(f)
    refused(stage_pipeline(scope), "write-after-read", sentence)
    read = scope.realizes[0].block
    refused(stage_pipeline(scope, read), "write-after-read", sentence)
    assert stage_pipeline(scope, read, in_place=True) is None


def test_stage_pipeline_asks_for_the_buffers_of_the_block_that_a_step_changes() -> None:
    """The block `even` fills half of what `both` reads; the block `other` reads neither."""

    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
        for i in range(4):
            with T.block("even"):
                v = T.axis.spatial(4, i)
                A[v * 2] = T.float32(0)
        for i in range(8):
            with T.block("both"):
                v = T.axis.spatial(8, i)
                B[v] = A[v]
        for i in range(8):
            with T.block("other"):
                v = T.axis.spatial(8, i)
                C[v] = C[v] + T.float32(1)

    scope = scope_of(f)
    for child in scope.realizes:
        found = stage_pipeline(scope, child.block)
        if child.block.name == "other":
            assert found is None
        else:
            refused(found, "region-cover", "block both reads A")


def test_stage_pipeline_refuses_other_statements() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            if i < 4:
                with T.block("b"):
                    v = T.axis.spatial(8, i)
                    A[v] = T.float32(0)

    sentence = "scope root holds more than loops and blocks: if "
    refused(stage_pipeline(scope_of(f)), "not-structured", sentence)


# ---- loops and rules -------------------------------------------------------------------------


def test_loop_iter_kind() -> None:
    @T.prim_func
    def f(A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32")):
        for u in T.serial(2):
            for i, k in T.grid(8, 8):
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        C[vi] = T.float32(0)
                    C[vi] = C[vi] + A[vi, vk]
        for m in T.serial(64):
            with T.block("D"):
                vi = T.axis.spatial(8, m // 8)
                vk = T.axis.reduce(8, m % 8)
                C[vi] = C[vi] + A[vi, vk]

    children = scope_of(f).realizes
    found = {n: loop_iter_kind(loop(f, n), children) for n in "uikm"}
    spatial = IterKind.SPATIAL
    assert found == {"u": spatial, "i": spatial, "k": IterKind.REDUCE, "m": IterKind.OPAQUE}


def test_needs_multi_level_tiling() -> None:
    scope = scope_of(matmul_relu)
    assert needs_multi_level_tiling(scope, named(scope, "C").token) is None
    failure = needs_multi_level_tiling(scope, named(scope, "D").token)
    refused(failure, "no-reduction", "block D has only spatial iterators")
    marked = scope_of(annotated(matmul, "C", "meta_schedule.tiling_structure"))
    failure = needs_multi_level_tiling(marked, marked.realizes[0].token)
    refused(failure, "already-tiled", "block C has been tiled already")


def row_sum(n: int, m: int) -> PrimFunc:
    @T.prim_func
    def f(A: T.Buffer((n, m), "float32"), C: T.Buffer((n,), "float32")):
        for i, k in T.grid(n, m):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = C[vi] + A[vi, vk]

    return f


def test_blocks_without_reuse_need_no_tiling() -> None:
    scope = scope_of(row_sum(8, 8))
    failure = needs_multi_level_tiling(scope, scope.realizes[0].token)
    refused(failure, "no-reuse", "block C uses every element of its inputs once")


@pytest.mark.parametrize(
    ("stride", "window", "reused"), [(1, 2, True), (2, 3, True), (2, 2, False)]
)
def test_windows_that_overlap_are_reused(stride: int, window: int, reused: bool) -> None:
    @T.prim_func
    def f(A: T.Buffer((32,), "float32"), C: T.Buffer((8,), "float32")):
        for i, k in T.grid(8, window):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = T.float32(0)
                C[vi] = T.max(C[vi], A[vi * stride + vk])

    scope = scope_of(f)
    failure = needs_multi_level_tiling(scope, scope.realizes[0].token)
    assert failure is None if reused else failure is not None and failure.slug == "no-reuse"


def test_reads_that_cannot_be_tiled() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8, 8), "float32")):
        for i, j, k in T.grid(8, 8, 8):
            with T.block("B"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                T.reads(A[vi], A[vk])
                T.writes(B[vi, vj])
                with T.init():
                    B[vi, vj] = T.float32(0)
                B[vi, vj] = B[vi, vj] + A[vi] * A[vk]

    scope = scope_of(f)
    failure = needs_multi_level_tiling(scope, scope.realizes[0].token)
    refused(failure, "repeated-read", "block B reads one buffer in two ways")


@pytest.mark.parametrize(("kept", "slug"), [("vk", "scattered"), ("vi", None)])
def test_results_that_memory_names_at_each_step_are_not_tiled(kept: str, slug: str | None) -> None:
    """No register holds S[K[k], j] from one k to the next; one holds S[K[i], j] for all k."""
    func = parse(f"""
@T.prim_func
def f(K: T.Buffer((8,), "int32"), V: T.Buffer((8, 8)), S: T.Buffer((8, 8))):
    for i, j, k in T.grid(8, 8, 8):
        with T.block("S"):
            vi = T.axis.spatial(8, i)
            vj = T.axis.spatial(8, j)
            vk = T.axis.opaque(8, k)
            S[K[{kept}], vj] = S[K[{kept}], vj] + V[vk, vj]
""")
    assert isinstance(func, PrimFunc)
    scope = scope_of(func)
    failure = needs_multi_level_tiling(scope, scope.realizes[0].token)
    assert (None if failure is None else failure.slug) == slug
    if failure is not None:
        refused(failure, "scattered", "block S updates results that memory names anew at each step")


def test_a_buffer_read_at_two_places_is_reused() -> None:
    @T.prim_func
    def gram(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 8), "float32")):
        for i, j, k in T.grid(8, 8, 4):
            with T.block("B"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    B[vi, vj] = T.float32(0)
                B[vi, vj] = B[vi, vj] + A[vi, vk] * A[vj, vk]

    scope = scope_of(gram)
    assert needs_multi_level_tiling(scope, scope.realizes[0].token) is None


def test_needs_rfactor() -> None:
    scope = scope_of(row_sum(8, 1024))
    token = scope.realizes[0].token
    assert needs_rfactor(scope, token, 100) is None
    scope = scope_of(row_sum(8, 1))
    failure = needs_rfactor(scope, scope.realizes[0].token, 100)
    refused(failure, "no-reduction", "no reduction longer than one")
    scope = scope_of(matmul)
    failure = needs_rfactor(scope, scope.realizes[0].token, 100)
    refused(failure, "enough-parallelism", "has 3072 spatial iterations, reduction 32")
    scope = scope_of(matmul_relu)
    refused(needs_rfactor(scope, named(scope, "D").token, 100), "no-init", "block D has no init")


def test_needs_rfactor_wants_a_perfect_nest() -> None:
    @T.prim_func
    def f(
        A: T.Buffer((8, 8), "float32"), C: T.Buffer((8,), "float32"), D: T.Buffer((8,), "float32")
    ):
        for i in T.serial(8):
            for k in T.serial(8):
                with T.block("C"):
                    vi, vk = T.axis.remap("SR", [i, k])
                    with T.init():
                        C[vi] = T.float32(0)
                    C[vi] = C[vi] + A[vi, vk]
            with T.block("D"):
                vi = T.axis.spatial(8, i)
                D[vi] = A[vi, 0]

    scope = scope_of(f)
    failure = needs_rfactor(scope, named(scope, "C").token, 100)
    refused(failure, "not-perfect", "block C is not alone below loop i")
