"""Programs that several tests of the analyses use, and functions to find their blocks and loops."""

from __future__ import annotations

import re

import places

from metasched.analysis.failure import Failure
from metasched.analysis.scope import Child, Scope
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import For
from metasched.ir.visit import walk_stmts
from metasched.script import tir as T


def refused(failure: Failure | None, slug: str, sentence: str) -> None:
    """Check that a condition fails with this slug and a matching message (without parentheses)."""
    assert failure is not None
    assert failure.slug == slug
    assert re.search(sentence, re.sub(r"[()]", "", failure.message)), failure.message
    assert str(failure) == f"{failure.message} [{slug}]"
    places.note(failure)


def scope_of(func: PrimFunc) -> Scope:
    return Scope.of(func.root)


def named(scope: Scope, name: str) -> Child:
    (child,) = [c for c in scope.realizes if c.block.name == name]
    return child


def loop(func: PrimFunc, name: str) -> For:
    (found,) = [s for s in walk_stmts(func.body) if isinstance(s, For) and s.var.name == name]
    return found


@T.prim_func
def matmul(
    A: T.Buffer((64, 32), "float32"),
    B: T.Buffer((32, 48), "float32"),
    C: T.Buffer((64, 48), "float32"),
):
    for i, j, k in T.grid(64, 48, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def matmul_relu(
    A: T.Buffer((64, 32), "float32"),
    B: T.Buffer((32, 48), "float32"),
    D: T.Buffer((64, 48), "float32"),
):
    C = T.alloc_buffer((64, 48), "float32")
    for i, j, k in T.grid(64, 48, 32):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for x, y in T.grid(64, 48):
        with T.block("D"):
            vx, vy = T.axis.remap("SS", [x, y])
            D[vx, vy] = T.max(C[vx, vy], T.float32(0))


@T.prim_func
def stencil_in_place(X: T.Buffer((64,), "float32")):
    for i in T.serial(62):
        with T.block("S"):
            vi = T.axis.spatial(62, i)
            X[vi + 1] = X[vi] + X[vi + 2]


@T.prim_func
def concat(
    A: T.Buffer((8, 4), "float32"), B: T.Buffer((8, 4), "float32"), C: T.Buffer((8, 8), "float32")
):
    for i in T.serial(8):
        for j in T.serial(4):
            with T.block("left"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = A[vi, vj]
        for l in T.serial(4):
            with T.block("right"):
                vi, vj = T.axis.remap("SS", [i, l])
                C[vi, vj + 4] = B[vi, vj]


@T.prim_func
def halo(A: T.Buffer((66,), "float32"), B: T.Buffer((64,), "float32")):
    """The producer is recomputed for each tile of the consumer; tiles overlap by two."""
    P = T.alloc_buffer((66,), "float32")
    for t in T.serial(8):
        for u in T.serial(10):
            with T.block("P"):
                vp = T.axis.spatial(66, t * 8 + u)
                P[vp] = A[vp] * T.float32(2)
        for v in T.serial(8):
            with T.block("B"):
                vb = T.axis.spatial(64, t * 8 + v)
                B[vb] = P[vb] + P[vb + 1] + P[vb + 2]
