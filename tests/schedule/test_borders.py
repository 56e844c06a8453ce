"""compute_at and reverse_compute_at for guarded, reversed and strided reads, and layouts."""

from __future__ import annotations

import pytest
from oracle import check_refused, check_transform
from schedule.stages import two_stages

from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T

flipped = two_stages(
    "flipped", (10, 10), (10, 10), (10, 10),
    ((10, 10), "B[9 - v0, 9 - v1] = A[v0, v1] + T.float32(1)"),
    ((10, 10), "C[v0, v1] = B[v1, v0] + T.float32(2)"),
)  # fmt: skip


@T.prim_func
def pooled(X: T.Buffer((16, 16), "float32"), Y: T.Buffer((16, 16), "float32")):
    c = T.alloc_buffer((16, 16), "float32")
    for i, j in T.grid(16, 16):
        with T.block("P"):
            h, w = T.axis.remap("SS", [i, j])
            c[h, w] = X[h, w]
    for a, b, d, e, p, q in T.grid(4, 4, 4, 4, 3, 3):
        with T.block("C"):
            h = T.axis.spatial(16, a * 4 + d)
            w = T.axis.spatial(16, b * 4 + e)
            kh, kw = T.axis.remap("RR", [p, q])
            with T.init():
                Y[h, w] = T.float32(0)
            Y[h, w] = T.max(
                Y[h, w],
                T.if_then_else(
                    1 <= h + kh and h + kh < 17 and 1 <= w + kw and w + kw < 17,
                    c[h + kh - 1, w + kw - 1],
                    T.float32(0),
                ),
            )


@T.prim_func
def pooled_likely(X: T.Buffer((15,), "float32"), Y: T.Buffer((8,), "float32")):
    c = T.alloc_buffer((15,), "float32")
    for i in range(15):
        with T.block("P"):
            h = T.axis.spatial(15, i)
            c[h] = X[h]
    for a, p in T.grid(8, 3):
        with T.block("C"):
            h, kh = T.axis.remap("SR", [a, p])
            with T.init():
                Y[h] = T.float32(-8)
            if T.likely(1 <= h * 2 + kh):  # noqa: SIM102
                if not (h * 2 + kh >= 16 or kh < 0):
                    Y[h] = T.max(Y[h], c[h * 2 + kh - 1])


half = two_stages(
    "half", (8, 8), (8, 8), (8, 8),
    ((4, 8), "B[v0, v1] = A[v0, v1] + T.float32(1)"),
    ((8, 8), "C[v0, v1] = T.if_then_else(v0 < 2 or v0 == 3, B[v0, v1], A[v0, v1])"),
)  # fmt: skip

half_selected = two_stages(
    "half_selected", (8,), (8,), (8,),
    ((4,), "B[v0] = A[v0] + T.float32(1)"),
    ((8,), "C[v0] = T.Select(v0 < 4, B[v0], A[v0])"),
)  # fmt: skip

every_second = two_stages(
    "every_second", (5,), (10,), (5,),
    ((5,), "B[v0 * 2 + 1] = A[v0] + T.float32(1)"),
    ((5,), "C[v0] = B[9 - v0 * 2] * T.float32(2)"),
)  # fmt: skip


@T.prim_func
def fused_symbolic(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (8, n), "float32")
    C = T.match_buffer(c, (8, n), "float32")
    B = T.alloc_buffer((8, n), "float32")
    for f in range(n * 8):
        with T.block("P"):
            vi = T.axis.spatial(8, f // n)
            vj = T.axis.spatial(n, f % n)
            B[vi, vj] = A[vi, vj] + T.float32(1)
    for f in range(n * 8):
        with T.block("C"):
            vi = T.axis.spatial(8, f // n)
            vj = T.axis.spatial(n, f % n)
            C[vi, vj] = B[vi, vj] * T.float32(2)


@T.prim_func
def halo_symbolic(a: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    C = T.match_buffer(c, (n,), "float32")
    B = T.alloc_buffer((n,), "float32")
    for i in range(n):
        with T.block("P"):
            v = T.axis.spatial(n, i)
            B[v] = A[v] + T.float32(1)
    for o, i in T.grid((n + 3) // 4, 4):
        with T.block("C"):
            T.where(o * 4 + i < n)
            v = T.axis.spatial(n, o * 4 + i)
            C[v] = (
                T.if_then_else(v >= 1, B[v - 1], T.float32(0))
                + B[v]
                + T.if_then_else(v + 1 < n, B[v + 1], T.float32(0))
            )


reshaped = two_stages(
    "reshaped", (4, 9), (4, 9), (6, 6),
    ((4, 9), "B[v0, v1] = A[v0, v1] + T.float32(1)"),
    ((6, 6), "C[v0, v1] = B[(v0 * 6 + v1) // 9, (v0 * 6 + v1) % 9]"),
)  # fmt: skip

sliced = two_stages(
    "sliced", (12, 8), (12, 8), (5, 3),
    ((12, 8), "B[v0, v1] = A[v0, v1] + T.float32(1)"),
    ((5, 3), "C[v0, v1] = B[v0 * 2 + 1, v1 + 4] * T.float32(2)"),
)  # fmt: skip

two_layouts = two_stages(
    "two_layouts", (30, 31), (4, 5, 8, 7), (30, 31),
    ((30, 31), "B[v0 // 8, v1 // 7, v0 % 8, v1 % 7] = A[v0, v1] * T.float32(2)"),
    ((30, 31), "C[v0, v1] = B[v0 // 8, v1 // 7, v0 % 8, v1 % 7] + T.float32(1)"),
)  # fmt: skip

PROGRAMS: dict[str, PrimFunc] = {
    f.attrs["global_symbol"]: f
    for f in (
        flipped, pooled, pooled_likely, half, every_second, fused_symbolic, halo_symbolic,
        reshaped, sliced, two_layouts,
    )
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_compute_at_every_loop(name: str) -> None:
    func = PROGRAMS[name]
    for at in range(len(Schedule(func).get_loops("C"))):
        sch = Schedule(func, check=True)
        sch.compute_at("P", sch.get_loops("C")[at])
        check_transform(func, sch)


@pytest.mark.parametrize(
    "name", ["flipped", "every_second", "fused_symbolic", "reshaped", "sliced", "two_layouts"]
)
def test_reverse_compute_at_every_loop(name: str) -> None:
    func = PROGRAMS[name]
    for at in range(len(Schedule(func).get_loops("P"))):
        sch = Schedule(func, check=True)
        sch.reverse_compute_at("C", sch.get_loops("P")[at])
        check_transform(func, sch)


def test_a_padded_border_is_computed_up_to_the_end_of_the_buffer() -> None:
    sch = Schedule(pooled)
    sch.compute_at("P", sch.get_loops("C")[1])
    assert "T.where(1 <= a * 4 + ax0 and a * 4 + ax0 < 17" in sch.script()
    assert "for ax0, ax1 in T.grid(6, 6):" in sch.script()


def test_both_sides_of_a_select_are_read() -> None:
    sch = Schedule(half_selected)
    (loop,) = sch.get_loops("C")
    message = r"C reads B\[v0\], which is not proved to be written before"
    check_refused(sch, lambda: sch.compute_at("P", loop), "region-cover", message)


@pytest.mark.parametrize("step", ["reverse_compute_at", "reverse_compute_inline"])
def test_consumer_instances_of_unwritten_elements_are_refused(step: str) -> None:
    sch = Schedule(half)
    loops = sch.get_loops("P")[:1] if step == "reverse_compute_at" else []
    message = "C has instances that read elements of B that no block writes, under a condition"
    check_refused(sch, lambda: getattr(sch, step)("C", *loops), "reads-unwritten", message)


def test_a_condition_wider_than_the_written_part_does_not_cover() -> None:
    @T.prim_func
    def func(A: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")):
        B = T.alloc_buffer((8,), "float32")
        for i in range(4):
            with T.block("P"):
                vi = T.axis.spatial(4, i)
                B[vi] = A[vi] + T.float32(1)
        for i in range(8):
            with T.block("C"):
                vi = T.axis.spatial(8, i)
                C[vi] = T.if_then_else(vi < 5, B[vi], A[vi])

    with pytest.raises(ScheduleError, match="region cover"):
        Schedule(func).compute_inline("P")


def test_one_buffer_determines_the_instances_of_a_consumer() -> None:
    @T.prim_func
    def outer_sum(X: T.Buffer((8,), "float32"), Z: T.Buffer((8, 8), "float32")):
        B = T.alloc_buffer((8,), "float32")
        D = T.alloc_buffer((8,), "float32")
        for i in range(8):
            with T.block("P"):
                v = T.axis.spatial(8, i)
                B[v] = X[v] + T.float32(1)
            with T.block("Q"):
                v = T.axis.spatial(8, i)
                D[v] = X[v] + T.float32(2)
        for i, j in T.grid(8, 8):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                Z[vi, vj] = B[vi] + D[vj]

    sch = Schedule(outer_sum)
    (loop,) = sch.get_loops("P")
    check_refused(sch, lambda: sch.reverse_compute_at("C", loop), "region-cover", "C reads D")


def test_elements_computed_by_two_iterations_are_not_added_twice() -> None:
    @T.prim_func
    def halves(X: T.Buffer((66,), "float32"), Z: T.Buffer((1,), "float32")):
        B = T.alloc_buffer((66,), "float32")
        for h, a in T.grid(2, 34):
            with T.block("P"):
                v = T.axis.spatial(66, h * 32 + a)
                B[v] = X[v] + T.float32(1)
        for i in range(66):
            with T.block("C"):
                v = T.axis.reduce(66, i)
                with T.init():
                    Z[0] = T.float32(0)
                Z[0] = Z[0] + B[v]

    sch = Schedule(halves)
    loop = sch.get_loops("P")[0]
    message = "iterations of h may each make the same element of B"
    check_refused(sch, lambda: sch.reverse_compute_at("C", loop), "repeated-reduction", message)


def test_the_init_of_a_reduction_comes_before_its_updates() -> None:
    @T.prim_func
    def backwards(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
        B = T.alloc_buffer((8,), "int32")
        for i in range(8):
            with T.block("P"):
                v = T.axis.spatial(8, i)
                B[7 - v] = A[v] * 2
        for i, r in T.grid(4, 2):
            with T.block("C"):
                vi, vr = T.axis.remap("SR", [i, r])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + B[vi * 2 + vr]

    sch = Schedule(backwards)
    (loop,) = sch.get_loops("P")
    message = "iterations of i do not make B in the order in which C reads it"
    check_refused(sch, lambda: sch.reverse_compute_at("C", loop), "init-not-first", message)
    outer, _ = sch.split(loop, [None, 2])
    sch.reverse_compute_at("C", outer)
    check_transform(backwards, sch)
