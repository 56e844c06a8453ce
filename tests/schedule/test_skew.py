"""skew: refusals, wavefronts and time tiles, and random stencils in place."""

from __future__ import annotations

import itertools
import random

import pytest
from oracle import check_numbers, check_refused, check_transform

import metasched as ms
from metasched.errors import ScheduleError
from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T
from metasched.script.printer import script


@T.prim_func
def seidel(A: T.Buffer((8, 8), "int32")):
    for t in range(5):
        for i, j in T.grid((1, 7), (1, 7)):
            with T.block("A"):
                A[i, j] = (
                    A[i - 1, j - 1] + A[i - 1, j + 1] + A[i, j - 1] * 3
                    + A[i, j] + A[i, j + 1] + A[i + 1, j - 1] + A[i + 1, j + 1]
                )  # fmt: skip


@T.prim_func
def plain(A: T.Buffer((4, 8), "int32"), B: T.Buffer((4, 8), "int32")):
    for i in range(4):
        for j in range(8):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]


@T.prim_func
def triangle(A: T.Buffer((4, 4), "int32")):
    for i in range(4):
        for j in range(i):
            with T.block("A"):
                A[i, j] = i + j


def test_skewing_rows_alone_does_not_allow_reorder() -> None:
    sch = Schedule(seidel)
    t, i, j = sch.get_loops("A")
    check_refused(sch, lambda: sch.reorder(i, t), "reversed-dependence", "reordering loops t, i")
    once = sch.skew(t, i, 1)
    check_refused(sch, lambda: sch.parallel(j), "carried-dependence", "iterations of loop j")
    check_refused(sch, lambda: sch.vectorize(once), "carried-dependence", "loop i_skewed")
    check_transform(seidel, sch)


def test_time_steps_innermost() -> None:
    """Skewed by two, the time steps of one row and column are independent."""
    sch = Schedule(seidel)
    t, i, j = sch.get_loops("A")
    rows = sch.skew(t, i, 2)
    sch.reorder(rows, j, t)
    sch.parallel(t)
    check_transform(seidel, sch)


def test_wavefront_of_time_tiles() -> None:
    sch = Schedule(seidel)
    t, i, j = sch.get_loops("A")
    rows = sch.skew(t, i, 2)
    outer, steps = sch.split(t, [None, 2])
    tiles, rows = sch.split(rows, [None, 4])
    sch.reorder(outer, tiles, rows, j, steps)
    waves = sch.skew(outer, tiles, 1)
    sch.reorder(waves, outer)
    sch.parallel(outer)
    sch.unroll(steps)
    check_transform(seidel, sch, "skew_time_tiles")


def test_threads_share_the_tiles_of_a_wave_only() -> None:
    """The predicate of the tiles becomes the range of the parallel loop."""
    sch = Schedule(seidel)
    t, i, _ = sch.get_loops("A")
    rows = sch.skew(t, i, 2)
    sch.reorder(rows, t)
    sch.parallel(t)
    text = script(ms.lower(sch))
    line = next(x for x in text.splitlines() if "T.parallel" in x)
    assert "T.min(" in line and "T.max(" in line
    assert " if " not in text


REFUSED = {
    "not around": (plain, lambda s, i, j: s.skew(j, i, 1), "not-around", "j does not stand around"),
    "itself": (plain, lambda s, i, j: s.skew(j, j, 1), "not-around", "j does not stand around j"),
    "zero": (plain, lambda s, i, j: s.skew(i, j, 0), "bad-factor", "0 is no integer other than"),
    "no constant": (
        plain, lambda s, i, j: s.skew(i, j, T.Var("n", "int32")), "bad-factor", "is no integer"),
    "range": (triangle, lambda s, i, j: s.skew(i, j, 1), "dependent-extent", "depends on i"),
    "too long": (
        plain, lambda s, i, j: s.skew(i, j, 1 << 62), "too-many-iterations", "more than int64"),
    "kind": (plain, lambda s, i, j: (s.parallel(j), s.skew(i, j, 1)), "loop-has-kind", "parallel"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    func, step, reason, message = REFUSED[name]
    sch = Schedule(func)
    loops = sch.get_loops("A" if func is triangle else "B")
    if name == "kind":
        sch.parallel(loops[1])
        step = lambda s, i, j: s.skew(i, j, 1)  # noqa: E731
    check_refused(sch, lambda: step(sch, *loops), reason, message)


@pytest.mark.parametrize("factor", [1, -1, 3, -2])
def test_every_factor_keeps_the_program(factor: int) -> None:
    sch = Schedule(plain)
    i, j = sch.get_loops("B")
    j = sch.skew(i, j, factor)
    assert sch.get(j).extent == 8 + 3 * abs(factor)
    sch.reorder(j, i)
    sch.parallel(j)
    check_transform(plain, sch)


def stencil(r: random.Random) -> tuple[PrimFunc, list[tuple[int, ...]]]:
    """An update in place below a time loop, and the offsets that it reads."""
    rank = r.randint(1, 2)
    offsets = [tuple(r.randint(-1, 1) for _ in range(rank)) for _ in range(r.randint(1, 3))]
    names = ["i", "j"][:rank]
    sizes = [r.randint(3, 5) for _ in names]
    reads = " + ".join(
        f"A[{', '.join(f'{n} + {o}' for n, o in zip(names, at, strict=True))}] * {k + 2}"
        for k, at in enumerate(offsets)
    )
    ends = ", ".join(f"(1, {n + 1})" for n in sizes)
    shape = ", ".join(str(n + 2) for n in sizes)
    text = (
        f'@T.prim_func\ndef f(A: T.Buffer(({shape},), "int32")):\n'
        f"    for t in range({r.randint(2, 4)}):\n"
        f"        for {', '.join(names)} in T.grid({ends}):\n"
        '            with T.block("A"):\n'
        f"                A[{', '.join(names)}] = {reads}\n"
    )
    return parse(text), offsets


def play(sch: Schedule, r: random.Random) -> int:
    """Random skews, splits, orders and kinds; returns how many orders were accepted."""
    accepted = 0
    for _ in range(r.randint(2, 6)):
        loops = sch.get_loops("A")
        kind = r.choice(["skew", "skew", "split", "reorder", "reorder", "parallel"])
        try:
            if kind == "skew":
                outer, inner = sorted(r.sample(range(len(loops)), 2))
                sch.skew(loops[outer], loops[inner], r.choice([1, 1, 2, -1, 3]))
            elif kind == "split":
                sch.split(r.choice(loops), [None, r.choice([2, 3])])
            elif kind == "reorder":
                sch.reorder(*r.sample(loops, len(loops)))
                accepted += 1
            else:
                sch.parallel(r.choice(loops))
                accepted += 1
        except ScheduleError:
            continue
    return accepted


@pytest.mark.parametrize("part", range(4))
def test_random_stencils_keep_their_numbers(part: int) -> None:
    accepted = 0
    for seed in range(part * 30, part * 30 + 30):
        r = random.Random(seed)
        func, _ = stencil(r)
        sch = Schedule(func)
        accepted += play(sch, r)
        check_numbers(func, sch.mod)
    assert accepted > 10


def legal(offsets: list[tuple[int, ...]], factors: tuple[int, ...]) -> bool:
    """Whether the loops of a stencil, skewed by the time loop, may run in any order.

    Each element depends on the elements it reads, of this step where they come earlier, else of the
    step before; and it overwrites what elements of earlier places read.
    """
    for at in offsets:
        distance = tuple(-o for o in at)
        earlier = distance > (0,) * len(at)
        flow = (0 if earlier else 1, *distance)
        anti = (0, *at) if at > (0,) * len(at) else (1, *at)
        for vector in (flow, anti, (1, *(0 for _ in at))):
            if any(d + f * vector[0] < 0 for d, f in zip(vector[1:], factors, strict=True)):
                return False
    return True


@pytest.mark.parametrize("part", range(3))
def test_skewed_time_loops_reorder_where_all_distances_are_positive(part: int) -> None:
    tried = {True: 0, False: 0}
    for seed in range(part * 12, part * 12 + 12):
        func, offsets = stencil(random.Random(seed))
        for factors in itertools.product((1, 2), repeat=len(offsets[0])):
            sch = Schedule(func)
            t, *loops = sch.get_loops("A")
            loops = [sch.skew(t, loop, f) for loop, f in zip(loops, factors, strict=True)]
            expected = legal(offsets, factors)
            if expected:
                sch.reorder(*loops, t)
            tried[expected] += 1
    assert min(tried.values()) > 2


def test_a_skewed_reduction_keeps_its_order_behind_the_init():
    """Backwards, the last partial sum comes first, and the init would follow it."""

    @T.prim_func
    def rows(A: T.Buffer((3, 6), "int32"), C: T.Buffer((3,), "int32")):
        for i, k0, k1 in T.grid(3, 3, 2):
            with T.block("C"):
                vi = T.axis.spatial(3, i)
                vk = T.axis.reduce(6, k0 * 2 + k1)
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + A[vi, vk]

    sch = Schedule(rows)
    _, k0, k1 = sch.get_loops("C")
    skewed = sch.skew(k0, k1, -1)
    message = "reordering loops"
    check_refused(sch, lambda: sch.reorder(skewed, k0), "reversed-dependence", message)
    apart = Schedule(rows)
    apart.decompose_reduction("C", apart.get_loops("C")[1])
    _, k0, k1 = apart.get_loops("C_update")
    apart.reorder(apart.skew(k0, k1, -1), k0)
    check_transform(rows, apart)


@pytest.mark.parametrize("factor", [-9, -1, 1, 9])
def test_loops_without_an_iteration(factor: int) -> None:
    func = parse("""
@T.prim_func
def none(A: T.Buffer((8, 8), "int32")):
    for i, j in T.grid(0, 5):
        with T.block("A"):
            A[i, j] = 1
    for i, j in T.grid(5, 0):
        with T.block("B"):
            A[i, j] = 2
""")
    sch = Schedule(func)
    for name in ("A", "B"):
        sch.skew(*sch.get_loops(name), factor)
    check_transform(func, sch)


def test_an_outer_loop_that_never_runs_leaves_the_extent() -> None:
    func = parse(
        """
@T.prim_func
def nothing(C: T.Buffer((8, 8), "int32")):
    for i in range(3, 6):
        for j, k in T.grid((1 - i) // 4 + 1, 2):
            with T.block("C"):
                C[i, k] = j
"""
    )
    sch = Schedule(func)
    _, j, k = sch.get_loops("C")
    sch.skew(j, k, 3)
    check_transform(func, sch)
