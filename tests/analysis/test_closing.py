"""Closing: blocks and domains that mention loops around them, and undeclared regions."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers, check_refused, check_transform

from metasched.analysis.closing import close_blocks
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.stmt import Block, IterKind
from metasched.ir.verify import verify
from metasched.ir.visit import blocks_of
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.parser import parse
from metasched.script.printer import script


def block_of(func: PrimFunc, name: str) -> Block:
    return next(r.block for r in blocks_of(func.body) if r.block.name == name)


def domains(block: Block) -> list[tuple[str, int, int, IterKind]]:
    return [
        (v.var.name, int(v.dom.min), int(v.dom.extent), v.kind)  # type: ignore[call-overload]
        for v in block.iter_vars
    ]


@T.prim_func
def scan(A: T.Buffer((16,), "float32")):
    for i in range(15):
        with T.block("scan"):
            A[i + 1] = A[i + 1] + A[i]


@T.prim_func
def triangle(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
    for i in range(8):
        for j in range(i):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0


@T.prim_func
def upper_sums(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        for k in range(i, 8):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = 0.0
                B[vi] = B[vi] + A[vi, vk]


@T.prim_func
def plain(A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 4), "float32")):
    for i, j in T.grid(8, 4):
        with T.block("B"):
            B[i, j] = A[i, j] * 2.0


@T.prim_func
def tiles(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(4):
        with T.block("tile"):
            T.reads(A[i * 4 : i * 4 + 4])
            T.writes(B[i * 4 : i * 4 + 4])
            for j in range(4):
                with T.block("B"):
                    v = T.axis.spatial(16, i * 4 + j)
                    B[v] = A[v] + 1.0


@T.prim_func
def stepped(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(1, 16, 3):
        with T.block("B"):
            B[i] = A[i] + 1.0


@T.prim_func
def rows_of_pairs(A: T.Buffer((5, 4), "int32"), B: T.Buffer((5, 4), "int32")):
    for i in range(0, 10, 2):
        for j in range(4):
            with T.block("B"):
                vi = T.axis.spatial(5, i // 2)
                vj = T.axis.spatial(4, j)
                B[vi, vj] = A[vi, vj] * 2


@T.prim_func
def undeclared(A: T.Buffer((16,), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(16):
        with T.block("outer"):
            T.reads()
            T.writes()
            for j in range(i):
                with T.block("inner"):
                    T.reads()
                    T.writes()
                    B[i] = B[i] + A[j]


@T.prim_func
def view(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32")):
    for i, j in T.grid(4, 4):
        with T.block("B"):
            S = T.match_buffer(A[i, j], ())
            R = T.match_buffer(B[i, 0:4], (4,))
            R[j] = S[()] + 1.0


@T.prim_func
def rows(P: T.Buffer((9,), "int32"), X: T.Buffer((64,), "float32"), B: T.Buffer((8,), "float32")):
    for i in range(8):
        for k in range(P[i + 1] - P[i]):
            with T.block("B"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    B[vi] = 0.0
                B[vi] = B[vi] + X[P[vi] + vk]


OPEN = [scan, triangle, upper_sums, plain, tiles, stepped, undeclared, view]


@pytest.mark.parametrize("func", OPEN, ids=lambda f: f.attrs["global_symbol"])
def test_open_programs_verify_read_back_and_keep_their_meaning(func):
    verify(func)
    assert script(parse(script(func))) == script(func)
    sch = Schedule(func, check=True)
    verify(sch.mod, closed=True)
    check_transform(func, sch)
    check_numbers(func, parse(script(sch.mod)))


def test_closed_functions_are_left_alone():
    closed = close_blocks(triangle)
    assert closed is not triangle
    assert close_blocks(closed) is closed
    assert close_blocks(triangle).body is closed.body


def test_the_iterator_of_a_scan_becomes_opaque():
    block = block_of(close_blocks(scan), "scan")
    assert domains(block) == [("v_i", 0, 15, IterKind.OPAQUE)]
    sch = Schedule(scan)
    (loop,) = sch.get_loops("scan")
    check_refused(sch, lambda: sch.parallel(loop), "carried-dependence", "different iterations")


def test_independent_instances_are_spatial_and_scheduled_as_others():
    block = block_of(close_blocks(plain), "B")
    assert domains(block) == [("v_i", 0, 8, IterKind.SPATIAL), ("v_j", 0, 4, IterKind.SPATIAL)]
    sch = Schedule(plain, check=True)
    i, j = sch.get_loops("B")
    outer, inner = sch.split(i, [None, 3])
    sch.reorder(j, outer, inner)
    sch.parallel(j)
    sch.vectorize(sch.fuse(outer, inner))
    check_transform(plain, sch)


def test_the_domain_of_a_dependent_loop_is_the_box_around_it():
    assert domains(block_of(close_blocks(triangle), "B")) == [
        ("vi", 0, 8, IterKind.SPATIAL),
        ("vj", 0, 7, IterKind.SPATIAL),
    ]


def test_a_loop_that_only_a_domain_mentions_needs_no_iterator():
    @T.prim_func
    def f(B: T.Buffer((8,), "int32")):
        for i in range(8):
            for j in range(i):
                with T.block("B"):
                    vj = T.axis.remap("S", [j])
                    B[vj] = 1

    assert domains(block_of(close_blocks(f), "B")) == [("vj", 0, 7, IterKind.SPATIAL)]
    check_transform(f, Schedule(f, check=True))


def test_a_reduction_from_a_dependent_minimum_counts_from_zero():
    block = block_of(close_blocks(upper_sums), "B")
    assert domains(block)[1] == ("vk", 0, 8, IterKind.REDUCE)
    a, b = np.arange(64, dtype="float32").reshape(8, 8), np.zeros(8, "float32")
    build(upper_sums)(a, b)
    assert np.array_equal(b, np.triu(a).sum(1))


def test_a_triangle_is_scheduled_where_that_is_safe():
    sch = Schedule(triangle, check=True)
    i, j = sch.get_loops("B")
    check_refused(sch, lambda: sch.reorder(j, i), "dependent-bound", "bound of j")
    check_refused(sch, lambda: sch.fuse(i, j), "dependent-extent", "extent")
    sch.split(j, [None, 4])
    sch.parallel(i)
    check_transform(triangle, sch)


def test_tiles_of_declared_regions_are_independent():
    sch = Schedule(tiles, check=True)
    assert domains(sch.get(sch.get_block("tile"))) == [("v_i", 0, 4, IterKind.SPATIAL)]
    (i,) = sch.get_loops("tile")
    sch.parallel(sch.split(i, [None, 2])[0])
    check_transform(tiles, sch)


def test_a_loop_with_a_step_counts_by_one():
    closed = close_blocks(stepped)
    assert domains(block_of(closed, "B")) == [("v_i", 0, 5, IterKind.SPATIAL)]
    assert "for i in range(5):" in script(closed) and "A[v_i * 3 + 1]" in script(closed)
    sch = Schedule(stepped, check=True)
    (loop,) = sch.get_loops("B")
    sch.parallel(sch.split(loop, [None, 2])[0])
    check_transform(stepped, sch)


def test_a_step_of_one_is_none():
    source = "@T.prim_func\ndef f(A: T.Buffer((8,))):\n    for i in T.serial(2, 8, step=1):\n"
    closed = close_blocks(parse(source + "        A[i] = 0.0\n"))
    assert "for i in range(2, 8):" in script(closed) and "A[i] = " in script(closed)


@pytest.mark.parametrize(
    ("name", "args"), [("blockize", ()), ("read_at", ("B", 0, "global")), ("split", ([None, 2],))]
)
def test_steps_of_a_loop_with_a_step(name, args):
    sch = Schedule(rows_of_pairs, check=True)
    getattr(sch, name)(sch.get_loops("B")[0], *args)
    check_transform(rows_of_pairs, sch)


def test_left_out_regions_are_added():
    inner = block_of(close_blocks(undeclared), "inner")
    assert {r.buffer.name for r in inner.reads} == {"A", "B"}
    assert {r.buffer.name for r in inner.writes} == {"B"}
    assert all(not v.is_spatial for v in inner.iter_vars)


def test_extents_that_data_give():
    pointers = np.array([0, 3, 3, 10, 11, 20, 40, 63, 64], "int32")
    x, want = np.arange(64, dtype="float32"), np.zeros(8, "float32")
    want[:] = np.add.reduceat(x, pointers[:-1])
    want[1] = 7.0  # no element: not even the init runs
    sch = Schedule(rows, check=True)
    sch.parallel(sch.get_loops("B")[0])
    for run_it in (build(rows), build(sch.mod), lambda *a: run(sch.mod, *a)):
        got = np.full(8, 7.0, "float32")
        run_it(pointers, x, got)
        assert np.array_equal(got, want)


def test_an_intrinsic_may_be_written_with_loop_variables():
    from metasched.schedule.intrinsics import TensorIntrin

    @T.prim_func
    def desc(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        with T.block("root"):
            T.reads(A[0:4])
            T.writes(B[0:4])
            for i in range(4):
                with T.block("b"):
                    v = T.axis.spatial(4, i)
                    B[v] = A[v] * 2.0

    @T.prim_func
    def impl(A: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
        with T.block("root"):
            T.reads(A[0:4])
            T.writes(B[0:4])
            for i in range(4):
                with T.block("twice"):
                    B[i] = A[i] + A[i]

    @T.prim_func
    def whole(X: T.Buffer((16,), "float32"), Y: T.Buffer((16,), "float32")):
        for i in range(16):
            with T.block("y"):
                v = T.axis.spatial(16, i)
                Y[v] = X[v] * 2.0

    TensorIntrin.register("test.closing", desc, impl, override=True)
    sch = Schedule(whole, check=True)
    _, inner = sch.split(sch.get_loops("y")[0], [None, 4])
    sch.tensorize(inner, "test.closing")
    check_transform(whole, sch)
