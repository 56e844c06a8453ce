"""Tiled matmul programs built by hand, and a made-up machine that says how fast each is."""

from __future__ import annotations

import numpy as np

from metasched.ir.buffer import Buffer, Range
from metasched.ir.expr import TRUE, Var, as_expr
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    FrozenMap,
    IterKind,
    IterVar,
    Stmt,
    seq,
)

KINDS = {"v": ForKind.VECTORIZED, "u": ForKind.UNROLLED, "p": ForKind.PARALLEL}


def nest(loops, body: Stmt) -> Stmt:
    """Loops given as (variable, extent, kind letter), outer first, around a body."""
    for var, extent, kind in reversed(loops):
        body = For(var, as_expr(0), as_expr(extent), KINDS.get(kind, ForKind.SERIAL), body)
    return body


def block(name, iters, store, reads=(), writes=(), init=None):
    """A block from (variable, extent, kind) and a store."""
    iter_vars = tuple(IterVar(v, Range.of(0, e), k) for v, e, k in iters)
    whole = tuple(b.whole() for b in reads), tuple(b.whole() for b in writes)
    return Block(name, iter_vars, *whole, store, init)


class Matmul:
    """C = A @ B of n*n*n, its blocks shared by all the programs made of it."""

    def __init__(self, n: int = 256) -> None:
        self.n = n
        self.A, self.B, self.C = (Buffer.of(x, (n, n)) for x in "ABC")
        self.L = Buffer.of("C_local", (n, n))
        s, r = IterKind.SPATIAL, IterKind.REDUCE
        i, j, k = (Var(x) for x in ("vi", "vj", "vk"))
        value = self.L[i, j] + self.A[i, k] * self.B[k, j]
        iters = ((i, n, s), (j, n, s), (k, n, r))
        store = BufferStore(self.L, value, (i, j))
        self.update = block("update", iters, store, (self.A, self.B), (self.L,))
        i, j = Var("vi"), Var("vj")
        zero = BufferStore(self.L, as_expr(0.0), (i, j))
        self.init = block("init", ((i, n, s), (j, n, s)), zero, (), (self.L,))
        i, j = Var("vi"), Var("vj")
        back = BufferStore(self.C, self.L[i, j], (i, j))
        self.write = block("write", ((i, n, s), (j, n, s)), back, (self.L,), (self.C,))

    def program(self, ti, tj, tk, unroll=0) -> IRModule:
        """Tiles of four levels in i and j and two in k; outer two fused, parallel, write cache."""
        n, f = self.n, Var("f")
        i1, j1, i2, j2, i3, j3, k0, k1 = (Var(x) for x in "i1 j1 i2 j2 i3 j3 k0 k1".split())

        def row(a, b):
            return (f // tj[0]) * (n // ti[0]) + i1 * (ti[2] * ti[3]) + a * ti[3] + b

        def column(a, b):
            return (f % tj[0]) * (n // tj[0]) + j1 * (tj[2] * tj[3]) + a * tj[3] + b

        a2, b2, a3, b3 = (Var(x) for x in "a2 b2 a3 b3".split())
        init = nest(
            [(a2, ti[2], ""), (b2, tj[2], ""), (a3, ti[3], "u"), (b3, tj[3], "v")],
            BlockRealize((row(a2, a3), column(b2, b3)), TRUE, self.init),
        )
        update = nest(
            [
                (k0, tk[0], ""), (i2, ti[2], ""), (j2, tj[2], ""), (k1, tk[1], ""),
                (i3, ti[3], "u"), (j3, tj[3], "v"),
            ],
            BlockRealize((row(i2, i3), column(j2, j3), k0 * tk[1] + k1), TRUE, self.update),
        )  # fmt: skip
        c0, c1 = Var("c0"), Var("c1")
        at = (row(0, 0) + c0, column(0, 0) + c1)
        write = nest(
            [(c0, ti[2] * ti[3], ""), (c1, tj[2] * tj[3], "v")],
            BlockRealize(at, TRUE, self.write),
        )
        inner = nest([(i1, ti[1], ""), (j1, tj[1], "")], seq([init, update, write]))
        body = nest([(f, ti[0] * tj[0], "p")], inner)
        notes = FrozenMap({"pragma_auto_unroll_max_step": unroll} if unroll else {})
        root = Block("root", (), (), (), body, alloc_buffers=(self.L,), annotations=notes)
        return IRModule.of(PrimFunc((self.A, self.B, self.C), BlockRealize.plain(root)))


def draw(rng: np.random.Generator, n: int, parts: int) -> tuple[int, ...]:
    """Random factors of a power of two."""
    cuts = np.sort(rng.integers(0, n.bit_length(), parts - 1))
    exponents = np.diff([0, *cuts, n.bit_length() - 1])
    return tuple(int(1 << e) for e in exponents)


def seconds(ti, tj, tk, n: int, rng: np.random.Generator) -> float:
    """A made-up machine: vectors of 16, 28 accumulators, two cores, 32 KiB beside each."""
    lanes = min(tj[3], 16)
    registers = ti[3] * max(tj[3] // 16, 1)
    work = n**3 / lanes / min(registers, 8) ** 0.7
    if registers > 28:
        work *= 1 + registers / 14
    inner = 4 * tk[1] * (ti[2] * ti[3] + tj[2] * tj[3])
    if inner > 32 << 10:
        work *= 1.8
    tasks = ti[0] * tj[0]
    work /= min(tasks, 2)
    work += 2e3 * tasks + n**3 / (ti[2] * ti[3]) / 8
    return float(work * 1e-9 * rng.lognormal(0, 0.05))


def sample(count: int, seed: int, n: int = 256):
    """`count` programs with their made-up times."""
    rng = np.random.default_rng(seed)
    matmul = Matmul(n)
    programs, times = [], []
    for _ in range(count):
        ti, tj, tk = draw(rng, n, 4), draw(rng, n, 4), draw(rng, n, 2)
        programs.append(matmul.program(ti, tj, tk))
        times.append(seconds(ti, tj, tk, n, rng))
    return programs, np.array(times)
