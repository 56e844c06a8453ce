"""Accesses, patterns, strides, footprints; loops; operation counts."""

from __future__ import annotations

import re

import pytest
from analysis.programs import concat, halo, loop, matmul, matmul_relu, named, refused, scope_of

from metasched.analysis.access import (
    accesses,
    exact_accesses,
    injective_block,
    is_constant_tensor,
    read_pattern,
    strides,
    touched_bytes,
    updates_in_place,
)
from metasched.analysis.flops import expr_flops, flops
from metasched.analysis.loops import (
    chain,
    is_chain,
    loops_above,
    perfect_nest,
)
from metasched.ir.describe import show_region
from metasched.ir.func import IRModule
from metasched.ir.stmt import BlockRealize
from metasched.script import tir as T


def test_accesses_of_a_body() -> None:
    block = scope_of(matmul).realizes[0].block
    found = [(a.buffer.name, a.is_write, a.in_init) for a in accesses(block)]
    assert found == [
        ("C", True, True), ("C", False, False), ("A", False, False), ("B", False, False),
        ("C", True, False),
    ]  # fmt: skip
    assert exact_accesses(block) == accesses(block)
    assert updates_in_place(block, block.writes[0].buffer)
    assert exact_accesses(matmul.root) is None


def test_loops_inside_a_block_widen_the_region() -> None:
    @T.prim_func
    def f(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
        for i in T.serial(8):
            with T.block("b"):
                v = T.axis.spatial(8, i)
                for j in T.serial(8):
                    B[v * 8 + j] = A[v * 8 + j]

    block = scope_of(f).realizes[0].block
    shown = [re.sub(r"[()]", "", show_region(a.region)) for a in accesses(block)]
    assert shown == ["A[v * 8:v * 8 + 8]", "B[v * 8:v * 8 + 8]"]


def test_pointers_hide_accesses() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("b"):
                v = T.axis.spatial(8, i)
                T.reads(A[v])
                T.writes(A[v])
                T.evaluate(T.call_extern("int32", "work", A.data, v))

    assert exact_accesses(scope_of(f).realizes[0].block) is None


def test_injective() -> None:
    scope = scope_of(matmul_relu)
    assert injective_block(named(scope, "D").block) is None
    sentence = r"different values of vk may give the same index \[vi, vj\]"
    refused(injective_block(named(scope, "C").block), "not-injective", sentence)


@pytest.mark.parametrize(
    ("read", "injective", "in_order", "shifted"),
    [
        (lambda A, i, j: A[i, j], True, True, False),
        (lambda A, i, j: A[j, i], True, False, False),
        (lambda A, i, j: A[i, 0], True, True, False),
        (lambda A, i, j: A[i, i], False, True, False),
        (lambda A, i, j: A[i + 1, j], True, True, True),
    ],
)
def test_patterns(read: object, injective: bool, in_order: bool, shifted: bool) -> None:
    from metasched.ir.buffer import Buffer, BufferRegion
    from metasched.ir.expr import Var

    i, j = Var("i"), Var("j")
    A, B = Buffer.of("A", (8, 8)), Buffer.of("B", (8, 8))
    where = read(A, i, j).indices  # type: ignore[operator]
    pattern = read_pattern(BufferRegion.point(A, where), BufferRegion.point(B, (i, j)))
    assert pattern is not None
    assert (pattern.injective, pattern.ordered) == (injective, in_order)
    assert pattern.shifted == shifted
    tangled = BufferRegion.point(A, (i + j, j))
    assert read_pattern(tangled, BufferRegion.point(B, (i, j))) is None
    assert read_pattern(BufferRegion.point(A, where), tangled) is None
    groups = BufferRegion.point(A, (i % 4, j // 2))
    assert read_pattern(groups, BufferRegion.point(B, (i, j))) is None
    found = read_pattern(groups, BufferRegion.point(B, (i, j)), grouped=True)
    assert found is not None and found.injective and found.ordered


def test_constant_tensor() -> None:
    @T.prim_func
    def f(B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("b"):
                v = T.axis.spatial(8, i)
                B[v] = T.cast(v, "float32")

    assert is_constant_tensor(scope_of(f).realizes[0].block)
    assert not is_constant_tensor(scope_of(matmul).realizes[0].block)


def test_strides() -> None:
    child = scope_of(matmul).realizes[0]
    found = {n: {a.buffer.name: s for a, s in strides(child, loop(matmul, n))} for n in "ijk"}
    assert found == {
        "i": {"A": 32, "B": 0, "C": 48},
        "j": {"A": 0, "B": 1, "C": 1},
        "k": {"A": 1, "B": 48, "C": 0},
    }


def test_strides_that_are_not_constant() -> None:
    @T.prim_func
    def f(n: T.int32, A: T.Buffer((n, n), "float32"), B: T.Buffer((8, 8), "float32")):
        for i in T.serial(64):
            with T.block("b"):
                v = T.axis.spatial(8, i // 8)
                w = T.axis.spatial(8, i % 8)
                B[v, w] = T.float32(0)
        for j in T.serial(8):
            with T.block("c"):
                v = T.axis.spatial(8, j)
                A[v, 0] = T.float32(0)

    first, second = scope_of(f).realizes
    assert [s for _, s in strides(first, loop(f, "i"))] == [None]
    assert [s for _, s in strides(second, loop(f, "j"))] == [None]


def test_multiples_of_a_loop_that_cancel() -> None:
    @T.prim_func
    def f(A: T.Buffer((8, 8), "float32"), B: T.Buffer((8, 8), "float32")):
        for i in range(8):
            for j in range(i, 8):
                with T.block("B"):
                    vi = T.axis.spatial(8, i)
                    vj = T.axis.spatial(8, j - i)
                    B[vi, vi + vj] = A[vi + vj, 0]

    child = scope_of(f).realizes[0]
    assert {a.buffer.name: s for a, s in strides(child, loop(f, "i"))} == {"A": 0, "B": 8}


def test_touched_bytes() -> None:
    a, b, c = matmul.buffers
    assert [touched_bytes(loop(matmul, "i"), x) for x in (a, b, c)] == [8192, 6144, 12288]
    assert [touched_bytes(loop(matmul, "j"), x) for x in (a, b, c)] == [128, 6144, 192]
    assert [touched_bytes(loop(matmul, "k"), x) for x in (a, b, c)] == [128, 128, 4]
    left = concat.buffers[0]
    assert touched_bytes(loop(concat, "l"), left) == 0
    inner = halo.root.alloc_buffers[0]
    assert touched_bytes(loop(halo, "t"), inner) == 66 * 4
    assert touched_bytes(loop(halo, "v"), inner) == 10 * 4


def test_touched_bytes_without_a_bound() -> None:
    @T.prim_func
    def f(n: T.int32, A: T.Buffer((n,), "float32")):
        for i in T.serial(n):
            with T.block("b"):
                v = T.axis.spatial(n, i)
                A[v] = T.float32(0)

    assert touched_bytes(loop(f, "i"), f.buffers[0]) is None


# ---- loops -----------------------------------------------------------------------------------


def test_loops() -> None:
    i, j, k = (loop(matmul, n) for n in "ijk")
    assert chain(i) == (i, j, k)
    assert chain(k) == (k,)
    assert is_chain([i, j, k])
    assert not is_chain([i, k])
    loops, body = perfect_nest(matmul.root.body)
    assert loops == (i, j, k)
    assert isinstance(body, BlockRealize)
    assert perfect_nest(body) == ((), body)
    assert loops_above([k, j, i, matmul.root, matmul.body]) == (i, j, k)


# ---- flops -----------------------------------------------------------------------------------


def test_flops() -> None:
    assert flops(matmul) == 2 * 64 * 48 * 32
    assert flops(matmul_relu) == 2 * 64 * 48 * 32 + 64 * 48
    assert flops(IRModule.of({"a": matmul, "b": matmul})) == 4 * 64 * 48 * 32


def test_flops_of_conditionals_functions_and_indices() -> None:
    @T.prim_func
    def f(A: T.Buffer((8,), "float32"), B: T.Buffer((8,), "float32")):
        for i in T.serial(8):
            with T.block("b"):
                v = T.axis.spatial(8, i)
                if v < 4:
                    B[v] = T.exp(A[(v * 3 + 1) % 8]) + T.float32(1)
                else:
                    B[v] = A[v]
        for j in T.serial(8):
            with T.block("c"):
                v = T.axis.spatial(8, j)
                B[v] = T.if_then_else(v + 1 < 5, A[v] * T.float32(2), T.float32(0))

    assert flops(f) == 8 * 2 + 8
    load = T.float32(1)
    assert expr_flops(load) == 0


def test_flops_of_an_init_count_once_for_a_reduction() -> None:
    @T.prim_func
    def f(
        A: T.Buffer((8, 4), "float32"), B: T.Buffer((8,), "float32"), C: T.Buffer((8,), "float32")
    ):
        for i, k in T.grid(8, 4):
            with T.block("C"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = B[vi] * T.float32(2)
                C[vi] = C[vi] + A[vi, vk]

    assert flops(f) == 8 * 4 + 8
