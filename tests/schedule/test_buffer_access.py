"""annotate_buffer_access, unsafe_hide_buffer_access, and steps that change the type of a buffer."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.golden_programs import becomes
from schedule.programs import elementwise, matmul_relu, quantized

from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def annotated(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi - 1 : vi - 1 + 3, vj])
            T.writes(B[vi, vj])
            T.block_attr({"explicit_read_region": [0], "explicit_write_region": [0]})
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


@T.prim_func
def halved(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float16")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.Cast("float16", A[vi, vj] * T.float32(2))
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.Cast("float32", B[vi, vj]) + T.float32(1)


@T.prim_func
def foreign(
    A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")
):
    for i in range(8):
        with T.block("call"):
            vi = T.axis.spatial(8, i)
            T.reads(A[vi], B[vi])
            T.writes(C[vi])
            T.evaluate(T.call_extern("f", A.data, B.data, C.data, dtype="int32"))


@T.prim_func
def foreign_hidden(
    A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")
):
    for i in range(8):
        with T.block("call"):
            vi = T.axis.spatial(8, i)
            T.reads(B[vi])
            T.writes(C[vi])
            T.evaluate(T.call_extern("f", A.data, B.data, C.data, dtype="int32"))


def test_regions_are_replaced_and_marked():
    sch = Schedule(elementwise)
    sch.annotate_buffer_access("B", 0, "read", lambda i, j: ((i - 1, i + 2), j))
    sch.annotate_buffer_access("B", "B", "write", lambda *i: [i[0], (i[1], i[1] + 1)])
    becomes(elementwise, sch, annotated)


@T.prim_func
def pairs(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    for i, j in T.grid(6, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi], A[vj])
            T.writes(C[vi, vj])
            C[vi, vj] = A[vi] + A[vj]


def test_several_regions_of_a_buffer():
    sch = Schedule(pairs)
    step = lambda: sch.annotate_buffer_access("C", 0, "read", lambda i, j: j)  # noqa: E731
    check_refused(sch, step, "touches-more", r"A\[vi\] is not proved to lie in one")
    step = lambda: sch.unsafe_hide_buffer_access("C", "read", [0])  # noqa: E731
    check_refused(sch, step, "touches-more", r"A\[vi\] is not proved to lie in one")
    sch.annotate_buffer_access("C", 0, "read", lambda i, j: ((T.min(i, j), T.max(i, j) + 1),))
    assert "tir as T" in sch.trace.as_python()
    check_transform(pairs, sch)
    sch.unsafe_hide_buffer_access("C", "read", [1])
    check_transform(pairs, sch)


def test_a_region_that_leaves_out_what_some_iterations_touch_is_refused():
    sch = Schedule(elementwise)
    step = lambda: sch.annotate_buffer_access("B", 0, "read", lambda i, j: ((0, 5), j))  # noqa: E731
    check_refused(sch, step, "touches-more", r"reads A\[vi, vj\], which is not proved to lie in")
    sch.annotate_buffer_access("B", 0, "read", lambda i, j: ((T.max(i - 1, 0), T.min(i + 2, 8)), j))
    sch.annotate_buffer_access("B", 0, "read", lambda i, j: ((0, 8), j))
    check_transform(elementwise, sch)


def test_a_block_inside_reads_all_regions_of_a_buffer():
    sch = Schedule(pairs)
    sch.enclose("C")
    step = lambda: sch.annotate_buffer_access("C", 0, "read", lambda i, j: j)  # noqa: E731
    check_refused(sch, step, "touches-more", "is not proved to lie in A.vj. or A.vj.")


def test_the_conditions_around_a_load_count():
    @T.prim_func
    def halves(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
        for i in range(8):
            with T.block("B"):
                vi = T.axis.spatial(8, i)
                B[vi] = T.if_then_else(vi < 4, A[vi], T.if_then_else(vi < 6, A[vi - 4], 7))

    sch = Schedule(halves)
    sch.annotate_buffer_access("B", 0, "read", lambda i: ((0, 4),))
    check_transform(halves, sch)
    step = lambda: sch.annotate_buffer_access("B", 0, "read", lambda i: ((0, 3),))  # noqa: E731
    check_refused(sch, step, "touches-more", r"reads A\[vi\], which is not proved to lie in A\[0:3")


VIEWED = """
@T.prim_func
def viewed(X: T.Buffer((7,), "float32"), Y: T.Buffer((7,), "float32")):
    B = T.alloc_buffer((7,), "float32")
    for i in range(7):
        with T.block("b"):
            vi = T.axis.spatial(7, i)
            B[vi] = X[vi]
    for i in range(7):
        with T.block("o"):
            vi = T.axis.spatial(7, i)
            T.reads(B[vi])
            T.writes(Y[vi])
            V = T.match_buffer(B[vi], (1,), "float32", offset_factor=1)
            BODY
"""
INSIDE = """for j in range(1):
                with T.block("in"):
                    vj = T.axis.spatial(1, j)
                    T.reads(V[vj])
                    T.writes(Y[vi])
                    Y[vi] = V[vj] * T.float32(2)"""


@pytest.mark.parametrize(("body", "words"), [
    ("Y[vi] = V[0] * T.float32(2)", "o itself touches V too"), (INSIDE, "in within o declares V"),
])  # fmt: skip
def test_hiding_an_access_that_a_view_reads_is_refused(body, words):
    """Without the refusal, a copy of B is written back after the block that reads B through V."""
    sch = Schedule(parse(VIEWED.replace("BODY", body)))
    step = lambda: sch.unsafe_hide_buffer_access("o", "read", [0])  # noqa: E731
    check_refused(sch, step, "declared-inside", words)


def test_an_explicit_region_annotation_may_name_a_removed_region():
    sch = Schedule(matmul_relu)
    sch.annotate_buffer_access("C", 0, "read", lambda i, j, k: (i, k))
    sch.decompose_reduction("C", sch.get_loops("C")[0])
    check_transform(matmul_relu, sch)


def test_declared_regions_enlarge_the_allocation():
    sch = Schedule(elementwise)
    sch.compute_at("B", sch.get_loops("C")[0])
    sch.annotate_buffer_access("C", 0, "read", lambda i, j: ((i, i + 2), j))
    check_transform(elementwise, sch)


def test_the_blocks_around_read_the_larger_region_too():
    @T.prim_func
    def head(X: T.Buffer((12,), "float32"), V: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("V"):
                vi = T.axis.remap("S", [i])
                V[vi] = X[vi] + T.float32(1)

    sch = Schedule(head)
    sch.loop_partition(sch.get_loops("V")[0], [5, None])
    sch.annotate_buffer_access("V_i1", 0, "read", lambda i: ((5, 10),))
    sch.cache_read("V_i1", 0, "global")
    check_transform(head, sch)
    for name, last in {"V_i_common": 10, "V_i0_partition": 5, "V_i1_partition": 10}.items():
        (read,) = sch.get(sch.get_block(name)).reads
        (part,) = read.region
        assert int(part.min + part.extent) == last


def test_annotate_refusals():
    sch = Schedule(elementwise)

    def try_(reason, message, fn, side="read", index=0, block="B"):
        step = lambda: sch.annotate_buffer_access(block, index, side, fn)  # noqa: E731
        check_refused(sch, step, reason, message)

    same = lambda i, j: (i, j)  # noqa: E731
    try_("bad-side", 'not "read" or "write"', same, side="both")
    try_("no-such-buffer", "has no read buffer 4", same, index=4)
    try_("bad-ranges", "has 2 dimensions", lambda i, j: i)
    try_("bad-ranges", "has 2 dimensions", lambda i, j: (i, j, j))
    try_("more-than-written", "not proved to write all", lambda i, j: (i, (0, 12)), side="write")
    wider = lambda i, j: ((i, i + 2), j)  # noqa: E731
    only = r"not proved to write all of B\[vi:vi \+ 2, vj\], only B\[vi, vj\]"
    try_("more-than-written", only, wider, side="write")
    try_("more-than-written", "widen the read regions of its readers", wider, side="write")
    outer = T.int32()
    try_("bad-ranges", "the ranges mention", lambda i, j: (outer, j))
    try_("bad-ranges", "is no function", 3)
    source = sch.get(sch.get_block("B")).reads[0].buffer
    loaded = lambda i, j: (T.cast(source[i, j], "int32"), j)  # noqa: E731
    try_("bad-ranges", "the ranges of A read memory", loaded)
    try_("empty-range", "is empty: its end", lambda i, j: ((i, i), j))
    try_("touches-more", "outside the declared region", lambda i, j: (i + 1, j))


def test_hiding_what_foreign_code_touches():
    sch = Schedule(foreign)
    sch.unsafe_hide_buffer_access("call", "read", [0])
    becomes(foreign, sch, foreign_hidden, numbers=False)


def test_hide_refusals():
    sch = Schedule(foreign)

    def try_(reason, message, side, positions, sch=sch, block="call"):
        step = lambda: sch.unsafe_hide_buffer_access(block, side, positions)  # noqa: E731
        check_refused(sch, step, reason, message)

    try_("bad-side", "buf_type is 'both'", "both", [0])
    try_("nothing-to-hide", "no position", "read", [])
    try_("no-such-buffer", "not distinct positions among the 2 read", "read", [2])
    try_("no-such-buffer", "not distinct positions", "read", [1, 1])
    try_("not-an-integer", "not an integer", "read", ["A"])
    sch = Schedule(elementwise)
    try_("touches-more", "loads A without declaring it", "read", [0], sch, "B")
    try_("touches-more", "stores B without declaring it", "write", [0], sch, "B")
    sch.blockize(sch.get_loops("B")[1])
    try_("declared-inside", "B within B_o declares A too", "read", [0], sch, "B_o")


def test_a_read_beyond_the_written_region_cannot_be_hidden():
    @T.prim_func
    def sums(A: T.Buffer((5,), "int32"), B: T.Buffer((5,), "int32")):
        for i in range(5):
            with T.block("B"):
                vi = T.axis.opaque(5, i)
                T.reads(B[vi - 1], A[vi])
                T.writes(B[vi])
                if vi >= 1:
                    B[vi] = B[vi - 1] + A[vi]

    sch = Schedule(sums)
    step = lambda: sch.unsafe_hide_buffer_access("B", "read", [0])  # noqa: E731
    check_refused(sch, step, "touches-more", "- 1. is not proved to lie in one of them")


def test_another_type():
    for given in (0, "B"):
        sch = Schedule(elementwise)
        sch.unsafe_set_dtype("B", given, "float16")
        becomes(elementwise, sch, halved)
    sch = Schedule(matmul_relu)
    sch.unsafe_set_dtype("C", 0, "float64")
    check_transform(matmul_relu, sch)


def test_dtype_refusals():
    sch = Schedule(elementwise)

    def try_(reason, message, dtype, block="B", index=0):
        check_refused(sch, lambda: sch.unsafe_set_dtype(block, index, dtype), reason, message)

    try_("unknown-dtype", "float17", "float17")
    try_("unknown-dtype", "no type of buffer elements", "float32x4")
    try_("unknown-dtype", "no type of buffer elements", "handle")
    try_("same-dtype", "B is float32 already", "float32")
    try_("not-allocated", "is a parameter", "float16", "C")
    try_("no-such-buffer", "has no write buffer 3", "float16", index=3)


@pytest.mark.parametrize("wide", ["float32", "float64"])
def test_a_wider_type_keeps_every_value(wide):
    """Loads that were cast to float32 are cast directly from the wide type, not from float16."""
    sch = Schedule(halved)
    sch.widen_dtype("B", 0, wide)
    assert f'B = T.alloc_buffer((8, 12), "{wide}")' in sch.script()
    assert "float16" not in sch.script().partition('T.block("C")')[2]
    check_transform(halved, sch)


def test_a_type_that_is_not_wider_is_refused():
    for dtype in ("bfloat16", "int64", "float8_e5m2"):
        sch = Schedule(halved)
        step = lambda: sch.widen_dtype("B", 0, dtype)  # noqa: B023, E731
        check_refused(sch, step, "narrower", f"{dtype} does not hold all values of float16")


def test_integers_less_an_offset_are_stored_in_bytes():
    """Both branches of the padding take the offset."""
    sch = Schedule(quantized)
    sch.narrow_dtype("B", 0, "uint8", -121)
    assert 'B = T.alloc_buffer((8, 5), "uint8")' in sch.script()
    assert "1 <= vi and vi < 7, A[vi - 1, vj], T.uint8(121))" in sch.script()
    check_transform(quantized, sch)


def test_a_type_that_does_not_hold_the_stored_values_is_refused():
    sch = Schedule(quantized)

    def try_(reason, message, *given):
        check_refused(sch, lambda: sch.narrow_dtype("B", 0, *given), reason, message)

    try_("wide-values", "may be -121 to 134 by its types, and uint8 holds 0 to 255", "uint8")
    try_("wide-values", "int8 holds -149 to 106 at offset -21", "int8", -21)
    try_("not-narrower", "int64 is no integer of at most as many bits", "int64")
    try_("not-narrower", "float16 is no integer of at most as many bits", "float16")
    try_("not-an-integer", "offset is 1.5, not an integer", "uint8", 1.5)
