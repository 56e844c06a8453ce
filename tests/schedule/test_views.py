"""Views follow their buffer into another scope or type; zero offsets; views of one element."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused, check_transform

from metasched.errors import LowerError
from metasched.ir.equal import structural_equal
from metasched.ir.interp import run
from metasched.ir.visit import blocks_of
from metasched.runtime.build import build
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def views(A: T.Buffer((4, 8), "float32"), C: T.Buffer((4, 8), "float32")):
    B = T.alloc_buffer((4, 8))
    for i, j in T.grid(4, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            S = T.match_buffer(B[vi, vj], ())
            S[()] = A[vi, vj] * 2.0
    for i in range(4):
        with T.block("C"):
            vi = T.axis.remap("S", [i])
            T.reads(B[vi, 0:8])
            T.writes(C[vi, 0:8])
            R = T.match_buffer(B[vi, 0:8], (8,), offset_factor=1)
            for j in range(2):
                with T.block("part"):
                    vj = T.axis.remap("S", [j])
                    T.reads(R[vj * 4 : vj * 4 + 4])
                    T.writes(C[vi, vj * 4 : vj * 4 + 4])
                    Q = T.match_buffer(R[vj * 4 : vj * 4 + 4], (4,), offset_factor=1)
                    for k in range(4):
                        C[vi, vj * 4 + k] = Q[k] + 1.0


def matched(sch: Schedule) -> list[str]:
    blocks = [r.block for r in blocks_of(sch.mod["main"].body)]
    return [f"{m.buffer.dtype} {m.buffer.scope}" for b in blocks for m in b.match_buffers]


def test_views_go_into_the_scope_of_their_buffer():
    sch = Schedule(views, check=True)
    sch.set_scope("B", 0, "local")
    assert matched(sch) == ["float32 local"] * 3
    check_transform(views, sch)


def test_views_take_the_type_of_their_buffer():
    sch = Schedule(views, check=True)
    sch.unsafe_set_dtype("B", 0, "float64")
    assert matched(sch) == ["float64 global"] * 3
    check_transform(views, sch)


def test_a_pointer_to_a_view_keeps_its_type():
    @T.prim_func
    def f(C: T.Buffer((4,), "float32")):
        B = T.alloc_buffer((4,))
        for i in range(4):
            with T.block("B"):
                vi = T.axis.remap("S", [i])
                B[vi] = 1.0
        with T.block("C"):
            T.reads(B[0:4])
            T.writes(C[0:4])
            S = T.match_buffer(B[0:4], (4,))
            T.evaluate(T.call_extern("int32", "f", S.data, C.data))

    sch = Schedule(f)
    step = lambda: sch.unsafe_set_dtype("B", 0, "float16")  # noqa: E731
    check_refused(sch, step, "opaque-use", "a pointer to S is taken")


@T.prim_func
def row_in_loops(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4,), offset_factor=1)
    B = T.match_buffer(b, (4,), offset_factor=1)
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        for i in range(4):
            with T.block("copy"):
                vi = T.axis.remap("S", [i])
                B[vi] = A[vi]


@T.prim_func
def row_by_memcpy(a: T.handle, b: T.handle):
    A = T.match_buffer(a, (4,), offset_factor=1)
    B = T.match_buffer(b, (4,), offset_factor=1)
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(B[0:4])
        T.evaluate(
            T.call_extern("handle", "memcpy", B.access_ptr("w"), A.access_ptr("r", offset=0), 16)
        )


@T.prim_func
def copied(A: T.Buffer((8, 12), "float32"), B: T.Buffer((8, 12), "float32")):
    for i, j in T.grid(8, 12):
        with T.block("copy"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj]


def test_a_pointer_to_a_view_points_to_its_first_element():
    """As TVM's tutorial on tensorize writes the call of a C function."""
    TensorIntrin.register("test.memcpy", row_in_loops, row_by_memcpy, override=True)
    sch = Schedule(copied)
    _, j = sch.get_loops("copy")
    sch.tensorize(sch.split(j, [None, 4])[1], "test.memcpy")
    a = np.arange(96, dtype="float32").reshape(8, 12)
    assert np.array_equal(build(sch.mod)(a), a)


def test_a_pointer_to_a_view_without_an_offset_counts_from_the_view():
    @T.prim_func
    def nested(A: T.Buffer((4, 8), "float32"), B: T.Buffer((4, 8), "float32")):
        for i in range(4):
            with T.block("row"):
                vi = T.axis.remap("S", [i])
                T.reads(A[vi, 0:8])
                T.writes(B[vi, 0:8])
                R = T.match_buffer(A[vi, 0:8], (8,))
                for j in range(2):
                    with T.block("half"):
                        vj = T.axis.remap("S", [j])
                        T.reads(R[vj * 4 : vj * 4 + 4])
                        T.writes(B[vi, vj * 4 : vj * 4 + 4])
                        P = T.match_buffer(R[vj * 4 : vj * 4 + 4], (4,))
                        Q = T.match_buffer(B[vi, vj * 4 : vj * 4 + 4], (4,))
                        to = Q.access_ptr("w", offset=1)
                        T.evaluate(
                            T.call_extern("handle", "memcpy", to, P.access_ptr("r", offset=1), 12)
                        )

    a = np.arange(32, dtype="float32").reshape(4, 8)
    assert np.array_equal(build(nested)(a), np.where(np.arange(8) % 4 == 0, 0, a))
    plain = parse(nested.script().replace("T.access_ptr(P.data, 1, 4, 1)", "P.data"))
    with pytest.raises(LowerError, match=r"P: `call_extern` takes .* take P.access_ptr\(...\)"):
        build(plain)


def test_a_view_without_dimensions_is_one_element():
    a, c = np.arange(32, dtype="float32").reshape(4, 8), np.zeros((4, 8), "float32")
    run(views, a, c)
    assert np.array_equal(c, a * 2 + 1)


def test_an_offset_of_zero_is_none():
    @T.prim_func
    def f(A: T.Buffer((8,), "float32", elem_offset=0)):
        for i in range(8):
            with T.block("A"):
                vi = T.axis.remap("S", [i])
                A[vi] = 1.0

    @T.prim_func
    def g(A: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("A"):
                vi = T.axis.remap("S", [i])
                A[vi] = 1.0

    assert structural_equal(f.with_attr("global_symbol", "m"), g.with_attr("global_symbol", "m"))
    assert "elem_offset" not in f.script()


def test_a_layout_of_64_bits_is_padded():
    @T.prim_func
    def f(A: T.Buffer((T.int64(58),), "int32")):
        B = T.alloc_buffer((T.int64(58),), "int32")
        for i in T.serial(T.int64(58)):
            with T.block("B"):
                vi = T.axis.remap("S", [i])
                B[vi] = 3
        for i in T.serial(T.int64(58)):
            with T.block("A"):
                vi = T.axis.remap("S", [i])
                A[vi] = B[vi]

    sch = Schedule(f, check=True)
    sch.transform_layout("B", "B", lambda h: [h // 8, h % 8], pad_value=0)
    check_transform(f, sch)
