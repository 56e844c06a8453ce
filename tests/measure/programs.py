"""Small workloads and the ways to spoil them."""

from __future__ import annotations

from metasched.ir.buffer import Buffer, BufferRegion, Range
from metasched.ir.equal import structural_hash
from metasched.ir.expr import EQ, FALSE, TRUE, Expr, Var, add, as_expr, mul
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import (
    AssertStmt,
    Block,
    BlockRealize,
    BufferStore,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    Stmt,
    While,
    seq,
)
from metasched.measure.candidate import Candidate

N = 256


def under_root(body: Stmt) -> Stmt:
    """A body as that of a schedulable function."""
    return BlockRealize.plain(Block("root", (), (), (), body))


def scale(
    factor: float = 2, shift: int = 0, extent: int = N, extra: Stmt | None = None, **attrs
) -> PrimFunc:
    """B[i + shift] = A[i] * factor for i < extent, as a plain loop; `extra` runs before."""
    a, b = Buffer.of("A", (N,)), Buffer.of("B", (N,))
    i = Var("i")
    value = mul(a[i], as_expr(float(factor), "float32"))
    body: Stmt = For.serial(i, extent, BufferStore(b, value, (add(i, shift),)))
    func = PrimFunc((a, b), under_root(body if extra is None else seq([extra, body])))
    for key, item in attrs.items():
        func = func.with_attr(key, item)
    return func


def peeking(place: int, *extra: Stmt) -> PrimFunc:
    """`scale`, and a look at an element outside A that changes nothing: it is no such number."""
    a, b = Buffer.of("A", (N,)), Buffer.of("B", (N,))
    spoil = BufferStore(b, as_expr(7.0, "float32"), (as_expr(0),))
    peek = IfThenElse(EQ(a[place], as_expr(12345.0, "float32")), spoil)
    i = Var("i")
    loop = For.serial(i, N, BufferStore(b, mul(a[i], as_expr(2.0, "float32")), (i,)))
    return PrimFunc((a, b), under_root(seq([loop, peek, *extra])))


def elementwise(expression, dtype: str = "float32", shape=(N,)) -> PrimFunc:
    """B[i] = expression(A[i]) as a block."""
    a, b = Buffer.of("A", shape, dtype), Buffer.of("B", shape, dtype)
    loops = [Var(f"i{n}") for n in range(len(shape))]
    iters = [Var(f"v{n}") for n in range(len(shape))]
    block = Block(
        "B",
        tuple(
            IterVar(v, Range.of(0, n), IterKind.SPATIAL)
            for v, n in zip(iters, shape, strict=True)
        ),
        (BufferRegion.point(a, iters),),
        (BufferRegion.point(b, iters),),
        BufferStore(b, expression(a[tuple(iters)]), tuple(iters)),
    )  # fmt: skip
    body: Stmt = BlockRealize(tuple(loops), TRUE, block)
    for var, n in zip(reversed(loops), reversed(shape), strict=True):
        body = For.serial(var, n, body)
    return PrimFunc((a, b), under_root(body))


def matmul(n: int = 16, dtype: str = "float32", parallel: bool = False) -> PrimFunc:
    """C = A @ B with an initialised reduction block."""
    a, b, c = (Buffer.of(name, (n, n), dtype) for name in "ABC")
    i, j, k = (Var(x) for x in "ijk")
    vi, vj, vk = (Var(f"v{x}") for x in "ijk")
    kinds = (IterKind.SPATIAL, IterKind.SPATIAL, IterKind.REDUCE)
    iters = [IterVar(v, Range.of(0, n), x) for v, x in zip((vi, vj, vk), kinds, strict=True)]
    block = Block(
        "C",
        tuple(iters),
        (BufferRegion.point(a, (vi, vk)), BufferRegion.point(b, (vk, vj))),
        (BufferRegion.point(c, (vi, vj)),),
        BufferStore(c, c[vi, vj] + a[vi, vk] * b[vk, vj], (vi, vj)),
        BufferStore(c, as_expr(0, dtype), (vi, vj)),
    )
    body: Stmt = BlockRealize((i, j, k), TRUE, block)
    for var in (k, j):
        body = For.serial(var, n, body)
    kind = ForKind.PARALLEL if parallel else ForKind.SERIAL
    body = For(i, as_expr(0), as_expr(n), kind, body)
    return PrimFunc((a, b, c), under_root(body))


def accumulate(n: int = N) -> PrimFunc:
    """B[i] = B[i] + A[i]: B is read before it is written."""
    a, b = Buffer.of("A", (n,)), Buffer.of("B", (n,))
    i = Var("i")
    return PrimFunc((a, b), under_root(For.serial(i, n, BufferStore(b, b[i] + a[i], (i,)))))


def forever() -> Stmt:
    """A loop that does not end."""
    return While(TRUE, Evaluate(call("call_extern", as_expr("getpid"), dtype="int32")))


def slow(calls: int = 300_000) -> Stmt:
    """System calls of some ten milliseconds."""
    ask = Evaluate(call("call_extern", as_expr("getppid"), dtype="int32"))
    return For.serial(Var("j"), calls, ask)


def crash() -> Stmt:
    """Calls abort()."""
    return Evaluate(call("call_extern", as_expr("abort"), dtype="int32"))


def failing() -> Stmt:
    """An assertion that never holds."""
    return AssertStmt(FALSE, "never true")


def candidate(func: PrimFunc, index: int = 0, key: str = "") -> Candidate:
    """A candidate with its key, or another one."""
    module = IRModule.of(func)
    return Candidate(index, module, key or structural_hash(module))


def add_expr(a: Expr, b: Expr) -> Expr:
    """a + b."""
    return a + b
