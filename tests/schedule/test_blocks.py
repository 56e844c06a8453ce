"""compute_at, inlining, caches, decompose_reduction, rfactor, set_scope: results and refusals."""

# ruff: noqa: E501  (tables read better with one case a line)
from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import check_refused, check_transform
from schedule.programs import (
    argmax,
    convolution,
    elementwise,
    fan_out,
    matmul,
    matmul_relu,
    padded,
    softmax,
    strided,
    symbolic,
    unit,
)

from metasched.ir.func import PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def accumulate(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            T.reads(C[vi], A[vi])
            T.writes(C[vi])
            C[vi] = C[vi] + A[vi]


@T.prim_func
def two_writers(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in range(8):
        with T.block("B2"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi] + 1
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


@T.prim_func
def overwritten(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in range(8):
        with T.block("A"):
            vi = T.axis.spatial(8, i)
            A[vi] = 0
    for i in range(8):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = B[vi]


@T.prim_func
def reshaped(A: T.Buffer((4, 6), "int32"), C: T.Buffer((24,), "int32")):
    B = T.alloc_buffer((24,), "int32")
    for i, j in T.grid(4, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi * 6 + vj] = A[vi, vj] + vj
    for i in range(24):
        with T.block("C"):
            vi = T.axis.spatial(24, i)
            C[vi] = B[23 - vi] * 2


@T.prim_func
def partial(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(8, i)
            C[vi] = A[vi]


@T.prim_func
def gathered(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi] = A[vi]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi] + B[vi + 4]


@T.prim_func
def halves(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi + 4] = A[vi] * 3
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[7 - vi]


@T.prim_func
def not_injective(A: T.Buffer((8,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi // 2] = A[vi]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi]


@T.prim_func
def of_pairs(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(8):
        with T.block("B"):
            vi = T.axis.spatial(8, i)
            B[vi // 2] = A[vi // 2]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi]


def start(func: PrimFunc, *names: str) -> tuple[Schedule, list, list]:
    """A schedule, the named blocks and the loops of each."""
    sch = Schedule(func, seed=0)
    blocks = [sch.get_block(n) for n in names]
    return sch, blocks, [sch.get_loops(b) for b in blocks]


# -- results ---------------------------------------------------------------------------------------


def compute_at_tiled(sch: Schedule) -> None:
    b, c = sch.get_block("B"), sch.get_block("C")
    i, j = sch.get_loops(c)
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [None, 3])
    sch.reorder(i0, j0, i1, j1)
    sch.compute_at(b, j0)


def compute_at_halo(sch: Schedule) -> None:
    n, i, o, r, c = sch.get_loops(sch.get_block("Z"))
    outer, inner = sch.split(i, [None, 3])
    sch.compute_at(sch.get_block("P"), outer)


def compute_at_earliest(sch: Schedule) -> None:
    loop = sch.get_loops(sch.get_block("O"))[0]
    sch.compute_at(sch.get_block("S"), loop)
    sch.compute_at(sch.get_block("E"), loop, index=-2)


def reverse_tiled(sch: Schedule) -> None:
    i, j, k = sch.get_loops(sch.get_block("C"))
    i0, i1 = sch.split(i, [None, 4])
    j0, j1 = sch.split(j, [2, None])
    sch.reorder(i0, j0, k, i1, j1)
    sch.reverse_compute_at(sch.get_block("D"), j0)


def cache_write_tiled(sch: Schedule) -> None:
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    i0, i1 = sch.split(i, [None, 4])
    sch.reorder(i0, j, k, i1)
    copy = sch.cache_write(block, 0, "local")
    sch.reverse_compute_at(copy, j)


def cache_read_tiled(sch: Schedule) -> None:
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(k0, i, j, k1)
    sch.compute_at(sch.cache_read(block, 0, "local"), k0)
    sch.cache_read(block, "B", "global", ["C"])


def decomposed(sch: Schedule) -> None:
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    j0, j1 = sch.split(j, [2, 3])
    sch.reorder(i, j0, k, j1)
    init = sch.decompose_reduction(block, k)
    assert sch.get(block).name == "C_update" and sch.get(init).name == "C_init"


def decomposed_kinds(sch: Schedule) -> None:
    """Kinds are kept for vectorized and unrolled loops, not for threads and unit loops."""
    i, j, k = sch.get_loops("C")
    i0, i1, i2 = sch.split(i, [None, 4, 1])
    sch.reorder(k, i0, i1, i2, j)
    sch.parallel(i0)
    sch.unroll(i1)
    sch.unroll(i2)
    sch.vectorize(j)
    sch.decompose_reduction("C", k, keep_kinds=True)


def factored(sch: Schedule) -> None:
    block = sch.get_block("C")
    i, j, k = sch.get_loops(block)
    k0, k1 = sch.split(k, [3, 4])
    part = sch.rfactor(k1, 1)
    assert sch.get(part).name == "C_rf" and sch.get(block).name == "C"


def factored_tuple(sch: Schedule) -> None:
    k = sch.get_loops(sch.get_block("M"))[1]
    sch.rfactor(sch.split(k, [3, 3])[0], -1)


RESULTS: dict[str, tuple[PrimFunc, Callable[[Schedule], object]]] = {
    "compute_at_tiled": (elementwise, compute_at_tiled),
    "compute_at_halo": (convolution, compute_at_halo),
    "compute_at_earliest": (softmax, compute_at_earliest),
    "compute_at_symbolic": (
        symbolic, lambda s: s.compute_at("B", s.get_loops(s.get_block("C"))[0])),
    "compute_at_unit": (
        unit, lambda s: s.compute_at("B", s.get_loops(s.get_block("C"))[1], True)),
    "compute_at_strided": (
        strided, lambda s: s.compute_at("P", s.get_loops(s.get_block("Y"))[0])),
    "reverse_compute_at_tiled": (matmul_relu, reverse_tiled),
    "reverse_compute_at_fan_out": (
        fan_out, lambda s: s.reverse_compute_at("X", s.get_loops(s.get_block("B"))[0])),
    "compute_inline": (elementwise, lambda s: s.compute_inline("B")),
    "compute_inline_padding": (convolution, lambda s: s.compute_inline("P")),
    "compute_inline_fan_out": (fan_out, lambda s: s.compute_inline("B")),
    "compute_inline_inverse": (reshaped, lambda s: s.compute_inline("B")),
    "reverse_compute_inline": (elementwise, lambda s: s.reverse_compute_inline("C")),
    "reverse_compute_inline_inverse": (reshaped, lambda s: s.reverse_compute_inline("C")),
    "reverse_compute_inline_unit": (unit, lambda s: s.reverse_compute_inline("C")),
    "cache_read": (matmul, lambda s: s.cache_read("C", 0, "shared.dyn")),
    "cache_read_between": (fan_out, lambda s: s.cache_read("X", 0, "global", ["X", "Z"])),
    "cache_read_tiled": (matmul, cache_read_tiled),
    "cache_write": (matmul, lambda s: s.cache_write("C", 0, "global")),
    "cache_write_consumer": (fan_out, lambda s: s.cache_write("B", "B", "global", ["Y"])),
    "cache_write_tiled": (matmul, cache_write_tiled),
    "cache_write_compact": (partial, lambda s: s.cache_write("C", 0, "global")),
    "cache_read_compact": (halves, lambda s: s.cache_read("C", "B", "local")),
    "cache_symbolic": (symbolic, lambda s: s.cache_read("C", 0, "global")),
    "decompose_reduction": (matmul, decomposed),
    "decompose_reduction_kinds": (matmul, decomposed_kinds),
    "decompose_reduction_symbolic": (
        symbolic, lambda s: s.decompose_reduction("C", s.get_loops(s.get_block("C"))[0])),
    "rfactor": (matmul, factored),
    "rfactor_tuple": (argmax, factored_tuple),
    "rfactor_symbolic": (symbolic, lambda s: s.rfactor(s.get_loops(s.get_block("C"))[1], 0)),
    "set_scope": (elementwise, lambda s: s.set_scope("B", 0, "local")),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_result(name: str) -> None:
    func, steps = RESULTS[name]
    sch = Schedule(func, seed=0)
    steps(sch)
    check_transform(func, sch, name, compiled="shared" not in sch.script())


def test_inline_mark_and_root_mark() -> None:
    """compute_at to a sampled location: inline, at root, or at a loop."""
    for decision, gone in ((-2, True), (-1, False), (0, False)):
        sch = Schedule(elementwise, seed=0)
        b = sch.get_block("B")
        sch.compute_at(b, sch.sample_compute_location(b, decision=decision))
        assert ('"B"' not in sch.script()) == gone
        check_transform(elementwise, sch, compiled=False)


# -- refusals --------------------------------------------------------------------------------------

Step = Callable[[Schedule, list, list], object]
REFUSED: list[tuple[PrimFunc, str, Step, str, str]] = [
    (matmul_relu, "C D", lambda s, b, x: s.compute_at(b[0], x[0][0]), "loop-above", "above C already"),
    (matmul_relu, "C D", lambda s, b, x: s.compute_at(b[1], x[0][0]), "output-block", "D writes an output"),
    (fan_out, "B X", lambda s, b, x: s.compute_at(b[0], x[1][0]), "consumer-outside", "but Y is not"),
    (fan_out, "B X Y", lambda s, b, x: s.compute_at("X", x[2][0]), "output-block", "output"),
    (softmax, "M E O", lambda s, b, x: s.compute_at(b[0], x[2][0]), "consumer-outside", "E is not"),
    (elementwise, "B C", lambda s, b, x: s.compute_at(b[0], x[1][0], index=3), "bad-index", "0 to 0, not 3"),
    (overwritten, "B C", lambda s, b, x: s.compute_at(b[0], x[1][0]), "write-after-read", "A overwrites A"),
    (two_writers, "B C", lambda s, b, x: s.compute_at(b[0], x[1][0]), "not-complete-or-reduction", "only writer"),
    (accumulate, "C", lambda s, b, x: s.reverse_compute_at("root", x[0][0]), "is-root", "root block"),
    (matmul_relu, "C D", lambda s, b, x: s.reverse_compute_at(b[1], x[0][2]), "unfinished-reduction", "continues its reduction after an iteration of k"),
    (padded, "B C", lambda s, b, x: s.reverse_compute_at(b[1], x[0][0]), "reads-beyond", "instances outside of B"),
    (elementwise, "B C", lambda s, b, x: s.reverse_compute_at(b[0], x[1][0]), "producer-outside", "there is no producer"),
    (softmax, "S O E", lambda s, b, x: s.reverse_compute_at("O", x[2][0]), "producer-outside", "S is not"),
    (gathered, "B C", lambda s, b, x: s.reverse_compute_at(b[1], x[0][0]), "not-ready", "other iterations of i"),
    (matmul_relu, "C D", lambda s, b, x: s.compute_inline(b[1]), "output-block", "D writes an output"),
    (matmul_relu, "C D", lambda s, b, x: s.compute_inline(b[0]), "not-spatial", "vk of block C is reduce"),
    (not_injective, "B", lambda s, b, x: s.compute_inline(b[0]), "sets-again", "again for another value of vi: the order"),
    (of_pairs, "B", lambda s, b, x: s.compute_inline(b[0]), "not-invertible", "cannot be solved"),
    (two_writers, "B2", lambda s, b, x: s.compute_inline(b[0]), "not-dominant", "not the only writer"),
    (overwritten, "B", lambda s, b, x: s.compute_inline(b[0]), "write-after-read", "overwrites A"),
    (matmul, "C", lambda s, b, x: s.compute_inline("root"), "is-root", "root block"),
    (matmul_relu, "D", lambda s, b, x: s.reverse_compute_inline(b[0]), "not-spatial", "of block C is reduce"),
    (padded, "C", lambda s, b, x: s.reverse_compute_inline(b[0]), "reads-beyond", "outside of B"),
    (gathered, "C", lambda s, b, x: s.reverse_compute_inline(b[0]), "different-loads", "at 2 different places"),
    (fan_out, "X", lambda s, b, x: s.reverse_compute_inline(b[0]), "other-consumers", "read by other blocks"),
    (elementwise, "B", lambda s, b, x: s.reverse_compute_inline(b[0]), "not-one-producer", "has 0 producers"),
    (matmul, "C", lambda s, b, x: s.cache_read(b[0], 0, "nowhere"), "unknown-scope", "'nowhere' is no storage"),
    (matmul, "C", lambda s, b, x: s.cache_read(b[0], 5, "local"), "no-such-buffer", "no read buffer 5; it reads A, B"),
    (matmul, "C", lambda s, b, x: s.cache_read(b[0], "Q", "local"), "no-such-buffer", "no read buffer 'Q'"),
    (matmul, "C", lambda s, b, x: s.cache_read("root", 0, "local"), "is-root", "root block"),
    (two_writers, "C", lambda s, b, x: s.cache_read(b[0], 0, "local"), "written-in-scope", "written by B, B2"),
    (accumulate, "C", lambda s, b, x: s.cache_read(b[0], 0, "local"), "written-in-scope", "written by C"),
    (fan_out, "X", lambda s, b, x: s.cache_read(b[0], 0, "local", ["B"]), "not-a-consumer", "does not read B"),
    (two_writers, "B", lambda s, b, x: s.cache_write(b[0], 0, "local"), "other-writer", "written by B, B2"),
    (accumulate, "C", lambda s, b, x: s.cache_write(b[0], 0, "local"), "reads-own-output", "reads C, which it writes"),
    (matmul, "C", lambda s, b, x: s.cache_write(b[0], 1, "local"), "no-such-buffer", "no write buffer 1; it writes C"),
    (partial, "C", lambda s, b, x: s.cache_write(b[0], 0, "moon"), "unknown-scope", "'moon'"),
    (elementwise, "B", lambda s, b, x: s.decompose_reduction(b[0], x[0][0]), "no-init", "no init"),
    (matmul_relu, "C D", lambda s, b, x: s.decompose_reduction(b[0], x[1][0]), "not-above", "not above C"),
    (elementwise, "B", lambda s, b, x: s.rfactor(x[0][0], 0), "no-init", "no init"),
    (matmul, "C", lambda s, b, x: s.rfactor(x[0][0], 0), "not-a-reduction-loop", "i drives no reduce"),
    (matmul, "C", lambda s, b, x: s.rfactor(x[0][2], 3), "bad-axis", r"3 is outside \[-3, 2\]"),
    (elementwise, "B", lambda s, b, x: s.set_scope(b[0], 0, "nowhere"), "unknown-scope", "nowhere"),
    (matmul, "C", lambda s, b, x: s.set_scope(b[0], 0, "local"), "not-allocated", "C is a parameter"),
    (elementwise, "B", lambda s, b, x: s.set_scope(b[0], 2, "local"), "no-such-buffer", "no write buffer 2"),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[0].attrs['global_symbol']}-{c[3]}")
def test_refused(case: tuple[PrimFunc, str, Step, str, str]) -> None:
    func, names, step, reason, message = case
    sch, blocks, loops = start(func, *names.split())
    check_refused(sch, lambda: step(sch, blocks, loops), reason, message)


def test_decompose_refuses_reduction_above_and_repetition() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.reorder(k, i)
    check_refused(sch, lambda: sch.decompose_reduction(c, i), "reduction-above", "outside i")
    sch, (m, e), (_, (i, j)) = start(softmax, "M", "E")
    sch.compute_at(m, j)
    check_refused(
        sch,
        lambda: sch.decompose_reduction(m, j),
        "repeated-reduction",
        "each iteration of j computes M anew",
    )


MIXED = """
@T.prim_func
def mixed(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4,), "int32")):
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            T.where(i * 6 + k < {})
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
"""


def test_decompose_with_a_predicate_that_mixes() -> None:
    """A condition may end a reduction early, but not before its first step."""
    func = parse(MIXED.format(21))
    sch, (c,), ((i, _),) = start(func, "C")
    sch.decompose_reduction(c, i)
    check_transform(func, sch)
    sch, (c,), ((i, _),) = start(parse(MIXED.format(18)), "C")
    check_refused(sch, lambda: sch.decompose_reduction(c, i), "empty-reduction", "without an")


def test_rfactor_refusals_of_shape() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    sch.unroll(k)
    check_refused(sch, lambda: sch.rfactor(k, 0), "loop-has-kind", "unroll already")
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    f = sch.fuse(j, k)
    check_refused(sch, lambda: sch.rfactor(f, 0), "mixed-loop", "spatial and reduce")
    sch, (m, e), (_, (i, j)) = start(softmax, "M", "E")
    sch.compute_at(m, i)
    check_refused(sch, lambda: sch.rfactor(i, 0), "not-one-block", "2 blocks are below i")
    sch.rfactor(sch.get_loops(m)[-1], 0)  # beside E
    check_transform(softmax, sch)


@T.prim_func
def sums_of_sums(A: T.Buffer((9, 5), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((9,), "int32")
    for i, k in T.grid(9, 5):
        with T.block("B"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[vi] = 0
            B[vi] = B[vi] + A[vi, vk]
    for i, r in T.grid(8, 2):
        with T.block("C"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + B[vi + vr]


def test_compute_at_keeps_the_kinds_of_loops() -> None:
    """Overlapping sums: each thread can have a private copy, a vector lane cannot."""
    sch, (b, c), (_, (i, r)) = start(sums_of_sums, "B", "C")
    sch.vectorize(i)
    error = check_refused(sch, lambda: sch.compute_at(b, i), "carried-dependence", "of loop i")
    assert error.hint == "choose loop kinds last"
    sch, (b, c), (_, (i, r)) = start(sums_of_sums, "B", "C")
    sch.parallel(i)
    sch.compute_at(b, i)
    check_transform(sums_of_sums, sch, "compute_at_parallel")
