"""Programs that schedules are tried on: several stages, padding, fan-out, odd sizes, symbols."""

from __future__ import annotations

from metasched.ir.func import PrimFunc
from metasched.script import tir as T


@T.prim_func
def matmul(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), C: T.Buffer((8, 6), "float32")
):
    for i, j, k in T.grid(8, 6, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


@T.prim_func
def matmul_relu(
    A: T.Buffer((8, 12), "float32"), B: T.Buffer((12, 6), "float32"), D: T.Buffer((8, 6), "float32")
):
    C = T.alloc_buffer((8, 6), "float32")
    for i, j, k in T.grid(8, 6, 12):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]
    for i, j in T.grid(8, 6):
        with T.block("D"):
            vi, vj = T.axis.remap("SS", [i, j])
            D[vi, vj] = T.max(C[vi, vj], T.float32(0))


@T.prim_func
def elementwise(A: T.Buffer((8, 12), "float32"), C: T.Buffer((8, 12), "float32")):
    B = T.alloc_buffer((8, 12), "float32")
    for i, j in T.grid(8, 12):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2)
    for i, j in T.grid(8, 12):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] + T.float32(1)


@T.prim_func
def box(A: T.Buffer((8, 9), "float32"), B: T.Buffer((4, 7), "float32")):
    for y, x, i, j in T.grid(4, 7, 3, 3):
        with T.block("B"):
            vy, vx, vi, vj = T.axis.remap("SSRR", [y, x, i, j])
            with T.init():
                B[vy, vx] = T.float32(0)
            B[vy, vx] = B[vy, vx] + A[vy + vi, vx + vj]


@T.prim_func
def convolution(
    X: T.Buffer((2, 7, 3), "float32"),
    W: T.Buffer((3, 3, 4), "float32"),
    Y: T.Buffer((2, 7, 4), "float32"),
):
    P = T.alloc_buffer((2, 9, 3), "float32")
    Z = T.alloc_buffer((2, 7, 4), "float32")
    for n, i, c in T.grid(2, 9, 3):
        with T.block("P"):
            vn, vi, vc = T.axis.remap("SSS", [n, i, c])
            P[vn, vi, vc] = T.if_then_else(vi >= 1 and vi < 8, X[vn, vi - 1, vc], T.float32(0))
    for n, i, o, r, c in T.grid(2, 7, 4, 3, 3):
        with T.block("Z"):
            vn, vi, vo, vr, vc = T.axis.remap("SSSRR", [n, i, o, r, c])
            with T.init():
                Z[vn, vi, vo] = T.float32(0)
            Z[vn, vi, vo] = Z[vn, vi, vo] + P[vn, vi + vr, vc] * W[vr, vc, vo]
    for n, i, o in T.grid(2, 7, 4):
        with T.block("Y"):
            vn, vi, vo = T.axis.remap("SSS", [n, i, o])
            Y[vn, vi, vo] = T.max(Z[vn, vi, vo], T.float32(0))


@T.prim_func
def strided(X: T.Buffer((13,), "int32"), Y: T.Buffer((6,), "int32")):
    P = T.alloc_buffer((13,), "int32")
    for i in range(13):
        with T.block("P"):
            vi = T.axis.spatial(13, i)
            P[vi] = X[vi] + 1
    for i, r in T.grid(6, 3):
        with T.block("Y"):
            vi, vr = T.axis.remap("SR", [i, r])
            with T.init():
                Y[vi] = 0
            Y[vi] = Y[vi] + P[vi * 2 + vr]


@T.prim_func
def fan_out(
    A: T.Buffer((6, 8), "int32"), X: T.Buffer((6, 8), "int32"), Y: T.Buffer((6,), "int32"),
    Z: T.Buffer((8, 6), "int32"),
):  # fmt: skip
    B = T.alloc_buffer((6, 8), "int32")
    for i, j in T.grid(6, 8):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + vi
    for i, j in T.grid(6, 8):
        with T.block("X"):
            vi, vj = T.axis.remap("SS", [i, j])
            X[vi, vj] = B[vi, vj] * 2
    for i, j in T.grid(6, 8):
        with T.block("Y"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                Y[vi] = 0
            Y[vi] = Y[vi] + B[vi, vj]
    for i, j in T.grid(8, 6):
        with T.block("Z"):
            vi, vj = T.axis.remap("SS", [i, j])
            Z[vi, vj] = B[vj, vi] - A[vj, vi]


@T.prim_func
def softmax(A: T.Buffer((5, 7), "int32"), O: T.Buffer((5, 7), "int32")):
    M = T.alloc_buffer((5,), "int32")
    E = T.alloc_buffer((5, 7), "int32")
    S = T.alloc_buffer((5,), "int32")
    for i, k in T.grid(5, 7):
        with T.block("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                M[vi] = T.min_value("int32")
            M[vi] = T.max(M[vi], A[vi, vk])
    for i, j in T.grid(5, 7):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = A[vi, vj] - M[vi]
    for i, k in T.grid(5, 7):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0
            S[vi] = S[vi] + E[vi, vk]
    for i, j in T.grid(5, 7):
        with T.block("O"):
            vi, vj = T.axis.remap("SS", [i, j])
            O[vi, vj] = E[vi, vj] * 3 - S[vi]


@T.prim_func
def padded(A: T.Buffer((6, 5), "int32"), C: T.Buffer((8, 8), "int32")):
    B = T.alloc_buffer((6, 5), "int32")
    for i, j in T.grid(6, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * 2
    for i, j in T.grid(8, 8):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = T.if_then_else(vi < 6 and vj < 5, B[vi, vj], 7)


@T.prim_func
def quantized(A: T.Buffer((6, 5), "uint8"), C: T.Buffer((8, 5), "int32")):
    """Bytes less their zero point, padded with 0."""
    B = T.alloc_buffer((8, 5), "int32")
    for i, j in T.grid(8, 5):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = T.if_then_else(1 <= vi and vi < 7, T.cast(A[vi - 1, vj], "int32") - 121, 0)
    for i, j in T.grid(8, 5):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * 3


@T.prim_func
def argmax(
    V: T.Buffer((4, 9), "int32"), I: T.Buffer((4, 9), "int32"), M: T.Buffer((4,), "int32"),
    N: T.Buffer((4,), "int32"),
):  # fmt: skip
    for i, k in T.grid(4, 9):
        with T.block("M"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                N[vi] = -1
                M[vi] = T.min_value("int32")
            v_n: T.int32 = T.Select(
                M[vi] > V[vi, vk] or (M[vi] == V[vi, vk] and N[vi] < I[vi, vk]), N[vi], I[vi, vk]
            )
            v_m: T.int32 = T.Select(M[vi] > V[vi, vk], M[vi], V[vi, vk])
            N[vi] = v_n
            M[vi] = v_m


@T.prim_func
def unit(A: T.Buffer((1, 6), "int32"), C: T.Buffer((1, 6), "int32")):
    B = T.alloc_buffer((1, 6), "int32")
    for i, j in T.grid(1, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, j in T.grid(1, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj] * 3


@T.prim_func
def symbolic(a: T.handle, b: T.handle):
    n = T.int32()
    m = T.int32()
    A = T.match_buffer(a, (n, m), "int32")
    C = T.match_buffer(b, (n,), "int32")
    B = T.alloc_buffer((n, m), "int32")
    for i, j in T.grid(n, m):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + 1
    for i, k in T.grid(n, m):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + B[vi, vk]


@T.prim_func
def triangle(A: T.Buffer((6,), "int32"), C: T.Buffer((6, 6), "int32")):
    for i in range(6):
        for j in range(i + 1):
            with T.block("C"):
                vi = T.axis.spatial(6, i)
                vj = T.axis.spatial(6, j)
                T.reads(A[vi], A[vj])
                T.writes(C[vi, vj])
                C[vi, vj] = A[vi] + A[vj]


PROGRAMS: tuple[PrimFunc, ...] = (
    matmul, matmul_relu, elementwise, convolution, strided, fan_out, softmax, padded, argmax, unit,
    symbolic, triangle,
)  # fmt: skip


@T.prim_func
def two_outputs(
    A: T.Buffer((5, 6), "int32"), R: T.Buffer((5,), "int32"), C: T.Buffer((6,), "int32")
):
    for i, j in T.grid(5, 6):
        with T.block("S"):
            vi, vj = T.axis.remap("RR", [i, j])
            R[vi] = R[vi] + A[vi, vj]
            C[vj] = C[vj] + A[vi, vj] * 2


@T.prim_func
def triangle_product(A: T.Buffer((8, 6), "float32"), C: T.Buffer((8, 8), "float32")):
    X = T.alloc_buffer((8, 8), "float32")
    for i in range(8):
        for j, k in T.grid(i + 1, 6):
            with T.block("X"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    X[vi, vj] = T.float32(0)
                X[vi, vj] = X[vi, vj] + A[vi, vk] * A[vj, vk]
    for i in range(8):
        for j in range(i + 1):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = X[vi, vj] * T.float32(2)
