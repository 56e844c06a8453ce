"""reorder above blocks whose iterations overlap: what is computed again may be so in any order,
the loops of one reduction stay together."""

from __future__ import annotations

import pytest
from oracle import check_numbers, check_refused, check_transform

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def blur(x: T.Buffer((18, 6), "int32"), z: T.Buffer((14, 6), "int32")):
    y = T.alloc_buffer((16, 6), "int32")
    for h, w, r in T.grid(16, 6, 3):
        with T.block("y"):
            a, b, c = T.axis.remap("SSR", [h, w, r])
            with T.init():
                y[a, b] = 0
            y[a, b] = y[a, b] + x[a + c, b]
    for h, w, r in T.grid(14, 6, 3):
        with T.block("z"):
            a, b, c = T.axis.remap("SSR", [h, w, r])
            with T.init():
                z[a, b] = 0
            z[a, b] = z[a, b] + y[a + c, b]


def tiled() -> Schedule:
    """Tiles of two rows, each with the rows of y that it reads."""
    sch = Schedule(blur, seed=0)
    outer, _ = sch.split(sch.get_loops("z")[0], [None, 7])
    sch.compute_at("y", outer)
    return sch


def test_loops_that_do_not_overlap_reorder() -> None:
    for order in ([2, 1], [2, 1, 0], [1, 2, 0], [0, 2, 1], [1, 0, 2]):
        sch = tiled()
        loops = sch.get_loops("y")[1:]
        sch.reorder(*(loops[n] for n in order))
        check_transform(blur, sch, compiled=order == [2, 1])


OVERLAP = """
@T.prim_func
def f(A: T.Buffer((14, 4), "int32"), B: T.Buffer((14, 4), "int32")):
    for a, b, c in T.grid(6, 4, 4):
        with T.block("b"):
            i = T.axis.spatial(14, a * 2 + b)
            j = T.axis.spatial(4, c)
            B[i, j] = {value}
"""


@pytest.mark.parametrize("order", ["acb", "bac", "bca", "cab", "cba"])
def test_writes_of_the_same_value_reorder(order: str) -> None:
    func = parse(OVERLAP.format(value="A[i, j] + 1"))
    sch = Schedule(func, seed=0)
    loops = dict(zip("abc", sch.get_loops("b"), strict=True))
    sch.reorder(*(loops[n] for n in order))
    check_transform(func, sch, compiled=False)


def test_updates_in_the_halo_keep_their_order() -> None:
    text = OVERLAP.replace("B[i, j] =", "t = T.axis.spatial(6, a)\n            B[i, j] =")
    func = parse(text.format(value="B[i, j] * 2 + A[t, j]"))
    sch = Schedule(func, seed=0)
    a, b, c = sch.get_loops("b")
    check_refused(sch, lambda: sch.reorder(b, a), "reversed-dependence", "one element of B")
    sch.reorder(c, a, b)
    check_numbers(func, sch.mod)


SUMS = """
@T.prim_func
def f(A: T.Buffer((7, 3), "int32"), B: T.Buffer((7,), "int32")):
    for {loops} in T.grid({sizes}):
        with T.block("b"):
            i = T.axis.spatial(7, o * 2 + h)
            k = T.axis.reduce(3, r)
            {where}
            with T.init():
                B[i] = 0
            B[i] = B[i] + A[i, k]
"""
SIZES = {"o": 3, "h": 3, "r": 3}


def sums(loops: str = "ohr", where: str = "") -> PrimFunc:
    sizes = ", ".join(str(SIZES[n]) for n in loops)
    return parse(SUMS.format(loops=", ".join(loops), sizes=sizes, where=where))


@pytest.mark.parametrize(
    ("order", "legal"),
    [("hor", True), ("rho", False), ("roh", False), ("orh", True), ("hro", False)],
)
def test_the_loops_of_a_repeated_reduction_stay_together(order: str, legal: bool) -> None:
    """A loop over overlapping rows inside the reduction would run the init of a row again between
    its updates; the rows of one tile (orh) are distinct."""
    func = sums()
    sch = Schedule(func, seed=0)
    loops = dict(zip("ohr", sch.get_loops("b"), strict=True))
    step = lambda: sch.reorder(*(loops[n] for n in order))  # noqa: E731
    if legal:
        step()
        check_transform(func, sch)
    else:
        check_refused(sch, step, "reversed-dependence", "one element of B")


def test_repetitions_with_different_predicates_keep_their_order() -> None:
    for where, legal in (("T.where(h + r < 4)", False), ("T.where(r < 2)", True),
                         ("T.where(o * 2 + h < 5)", True)):  # fmt: skip
        func = sums(where=where)
        sch = Schedule(func, seed=0)
        o, h, _ = sch.get_loops("b")
        if legal:
            sch.reorder(h, o)
            check_numbers(func, sch.mod)
        else:
            check_refused(sch, lambda: sch.reorder(h, o), "reversed-dependence", "element of B")  # noqa: B023


def test_a_loop_used_by_its_quotient_repeats_the_reduction() -> None:
    """i // 2 is a surjective map: every element is computed twice."""

    @T.prim_func
    def f(A: T.Buffer((4, 3), "int32"), B: T.Buffer((4,), "int32")):
        for i, k in T.grid(8, 3):
            with T.block("B"):
                vi = T.axis.spatial(4, i // 2)
                vk = T.axis.reduce(3, k)
                with T.init():
                    B[vi] = 0
                B[vi] = B[vi] + A[vi, vk]

    sch = Schedule(f, seed=0)
    i, k = sch.get_loops("B")
    check_refused(sch, lambda: sch.reorder(k, i), "reversed-dependence", "one element of B")


@T.prim_func
def sums_so_far(A: T.Buffer((4, 2, 3), "int32"), D: T.Buffer((4, 2, 3), "int32")):
    C = T.alloc_buffer((4,), "int32")
    for i, k, l in T.grid(4, 2, 3):
        with T.block("C"):
            vi, vk, vl = T.axis.remap("SRR", [i, k, l])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk, vl]
        with T.block("D"):
            vi, vk, vl = T.axis.remap("SSS", [i, k, l])
            D[vi, vk, vl] = C[vi]


def test_a_partial_result_that_is_read_keeps_the_loop_serial() -> None:
    """With parallel steps each iteration would have a separate sum."""
    sch = Schedule(sums_so_far, seed=0)
    i, k, l = sch.get_loops("C")
    for step in (lambda: sch.parallel(k), lambda: sch.parallel(l)):
        check_refused(sch, step, "carried-reduction", "same element of C")
    check_refused(sch, lambda: sch.reorder(l, k), "reversed-dependence", "one element of C")
    sch.reorder(k, i)
    check_numbers(sums_so_far, sch.mod)


@T.prim_func
def chain(x: T.Buffer((12, 12), "int32"), z: T.Buffer((8, 8), "int32")):
    y = T.alloc_buffer((10, 10), "int32")
    for h, w in T.grid(10, 10):
        with T.block("y"):
            a, b = T.axis.remap("SS", [h, w])
            y[a, b] = x[a, b] + x[a + 1, b + 1] + x[a + 2, b + 2]
    for h, w in T.grid(8, 8):
        with T.block("z"):
            a, b = T.axis.remap("SS", [h, w])
            z[a, b] = y[a, b] + y[a + 1, b + 1] + y[a + 2, b + 2]


def test_tiles_of_a_stencil_chain_change_places() -> None:
    sch = Schedule(chain, seed=0)
    h, w = sch.get_loops("z")
    (ho, hi), (wo, wi) = sch.split(h, [None, 4]), sch.split(w, [None, 4])
    sch.reorder(ho, wo, hi, wi)
    sch.compute_at("y", wo)
    sch.reorder(wo, ho)
    inner = sch.get_loops("y")[2:]
    sch.reorder(*reversed(inner))
    sch.parallel(wo)
    check_transform(chain, sch)
