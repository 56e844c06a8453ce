"""Random programs: `random_func(rng)` for plain loops, `funcs()` for hypothesis.

Programs are small (at most 8 iterations an axis), schedulable, deterministic in `rng`, and free of
out-of-bounds accesses and reads of unwritten memory, so the interpreter runs each in milliseconds.
Values are small integers in every type: sums and products are exact in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    TRUE,
    Expr,
    Select,
    Var,
    as_expr,
    as_int,
    cast,
    logical_and,
    maximum,
    minimum,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IterKind,
    IterVar,
    Stmt,
    frozen,
    seq,
)
from metasched.ir.visit import free_vars, substitute, walk_exprs
from metasched.measure.indices import index_data

DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "int8", "uint8")
Value = Callable[..., Expr]
SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0)


def stage(
    name: str,
    axes: Sequence[tuple[str, Any, str]],
    out: Buffer,
    where: Callable[..., Sequence[Expr]],
    value: Value,
    init: Any = None,
    extents: Callable[[list[Var]], list[Expr]] | None = None,
) -> Stmt:
    """Loops around one block with trivial bindings.

    Args:
        axes: (name, domain extent, "S" or "R") for each iterator, outermost first.
        where, value: index tuple and stored value as functions of the iterators.
        init: the reduction's starting value, None for no init.
        extents: the loops' extents from the loop variables, where they are not the domains.
    """
    loops = [Var(n) for n, _, _ in axes]
    kinds = {"S": IterKind.SPATIAL, "R": IterKind.REDUCE}
    iters = [IterVar(Var(f"v{n}"), Range.of(0, e), kinds[k]) for n, e, k in axes]
    own = [v.var for v in iters]
    indices = tuple(where(*own))
    body = BufferStore(out, value(*own), indices)
    start = None if init is None else BufferStore(out, as_expr(init, out.dtype), indices)
    reads = _reads(body, own, out if init is not None else None)
    writes = (_region(out, indices, own),)
    block = Block(name, tuple(iters), reads, writes, body, start)
    result: Stmt = BlockRealize(tuple(loops), TRUE, block)
    sizes = [as_expr(e) for _, e, _ in axes] if extents is None else extents(loops)
    for var, size in reversed(list(zip(loops, sizes, strict=True))):
        result = For.serial(var, size, result)
    return result


def _reads(body: BufferStore, own: Sequence[Var], result: Buffer | None) -> tuple[Any, ...]:
    found: dict[Expr, BufferRegion] = {}
    for node in walk_exprs(body.value):
        if isinstance(node, BufferLoad) and node.buffer is not result:
            found.setdefault(node, _region(node.buffer, node.indices, own))
    ordered: dict[Buffer, BufferRegion] = {}
    for region in found.values():  # one region for each buffer: a box that holds all accesses
        known = ordered.get(region.buffer)
        same = known is None or [r.min for r in known.region] == [r.min for r in region.region]
        ordered[region.buffer] = region if same else region.buffer.whole()
    return tuple(ordered.values())


def _region(buffer: Buffer, indices: Sequence[Expr], own: Sequence[Var]) -> BufferRegion:
    loads = any(isinstance(n, BufferLoad) for i in indices for n in walk_exprs(i))
    inside = all(free_vars(i) <= set(own) for i in indices)
    return BufferRegion.point(buffer, indices) if inside and not loads else buffer.whole()


def function(params: Sequence[Any], stages: Sequence[Stmt], allocs: Sequence[Buffer]) -> PrimFunc:
    """A schedulable function: the stages in order under a root block."""
    root = Block("root", (), (), (), seq(stages), None, tuple(allocs))
    return PrimFunc(tuple(params), BlockRealize.plain(root), frozen({"global_symbol": "main"}))


class _Maker:
    """Draws stages one after the other, each over buffers that exist already."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.dtype = DType(rng.choice(DTYPES))
        self.inputs: list[Buffer] = []
        self.made: list[Buffer] = []
        self.outputs: list[Buffer] = []
        self.stages: list[Stmt] = []
        self.size: dict[Buffer, tuple[int, ...]] = {}

    def fresh(self, shape: Sequence[Any]) -> Buffer:
        return Buffer.of(f"T{len(self.made)}", shape, self.dtype)

    def source(self, ndim: int) -> Buffer:
        """An existing buffer of this rank, or a new input."""
        known = [b for b in [*self.made, *self.inputs] if b.ndim == ndim]
        if known and self.rng.random() < 0.75:
            return self.rng.choice(known[-3:])
        shape = [self.rng.randint(1, 8 if ndim < 3 else 5) for _ in range(ndim)]
        new = Buffer.of(f"I{len(self.inputs)}", shape, self.dtype)
        self.inputs.append(new)
        return new

    def add(self, out: Buffer, result: Stmt) -> None:
        self.made.append(out)
        self.stages.append(result)

    def name(self) -> str:
        return f"stage{len(self.stages)}"

    # The families of stages.

    def elementwise(self) -> None:
        rng, ndim = self.rng, self.rng.randint(1, 3)
        a = self.source(ndim)
        twins = [b for b in [*self.made, *self.inputs] if b.shape == a.shape]
        b = rng.choice(twins)
        out = self.fresh(a.shape)
        form = rng.randrange(4)

        def value(*v: Var) -> Expr:
            x, y = a[tuple(v)], b[tuple(v)]
            if form == 0:
                return x + y
            if form == 1:
                return maximum(x, y) - as_expr(1, self.dtype)
            if form == 2:
                return Select(v[0] < as_expr(3), x, y)
            return minimum(x * as_expr(2, self.dtype), y)

        axes = [(n, e, "S") for n, e in zip("ijk", a.shape, strict=False)]
        self.add(out, stage(self.name(), axes, out, lambda *v: v, value))

    def broadcast(self) -> None:
        a, b = self.source(1), self.source(1)
        out = self.fresh((a.shape[0], b.shape[0]))
        axes = [("i", a.shape[0], "S"), ("j", b.shape[0], "S")]
        self.add(out, stage(self.name(), axes, out, lambda i, j: (i, j), lambda i, j: a[i] + b[j]))

    def transpose(self) -> None:
        a = self.source(2)
        out = self.fresh((a.shape[1], a.shape[0]))
        axes = [("i", a.shape[1], "S"), ("j", a.shape[0], "S")]
        self.add(out, stage(self.name(), axes, out, lambda i, j: (i, j), lambda i, j: a[j, i]))

    def reshape(self) -> None:
        a = self.source(2)
        out = self.fresh((a.shape[0] * a.shape[1],))
        n = a.shape[1]
        axes = [("i", out.shape[0], "S")]
        value = lambda i: a[i // n, i % n]  # noqa: E731
        self.add(out, stage(self.name(), axes, out, lambda i: (i,), value))

    def reduction(self) -> None:
        a, largest = self.source(2), self.rng.random() < 0.4
        out = self.fresh((a.shape[0],))
        start = -4 if largest and self.dtype.kind != "uint" else 0
        both = maximum if largest else (lambda x, y: x + y)
        axes = [("i", a.shape[0], "S"), ("k", a.shape[1], "R")]
        if self.rng.random() < 0.3:
            axes.reverse()
            args = lambda k, i: (i, k)  # noqa: E731
        else:
            args = lambda i, k: (i, k)  # noqa: E731
        value = lambda *v: both(out[args(*v)[0]], a[args(*v)])  # noqa: E731
        self.add(out, stage(self.name(), axes, out, lambda *v: args(*v)[:1], value, start))

    def matmul(self) -> None:
        a = self.source(2)
        n = self.rng.randint(1, 6)
        b = Buffer.of(f"I{len(self.inputs)}", (a.shape[1], n), self.dtype)
        self.inputs.append(b)
        out = self.fresh((a.shape[0], n))
        axes = [("i", a.shape[0], "S"), ("j", n, "S"), ("k", a.shape[1], "R")]
        value = lambda i, j, k: out[i, j] + a[i, k] * b[k, j]  # noqa: E731
        self.add(out, stage(self.name(), axes, out, lambda i, j, k: (i, j), value, 0))

    def convolution(self) -> None:
        """Padding by if_then_else, then a window sum: two stages."""
        a, r = self.source(1), self.rng.randint(1, 3)
        n = as_int(a.shape[0])
        assert n is not None
        padded = self.fresh((n + 2 * r,))
        zero = as_expr(0, self.dtype)

        def pad(i: Var) -> Expr:
            inside = logical_and(i >= as_expr(r), i < as_expr(r + n))
            return call("if_then_else", inside, a[i - r], zero)

        self.add(padded, stage(self.name(), [("i", n + 2 * r, "S")], padded, lambda i: (i,), pad))
        out = self.fresh((n,))
        axes = [("i", n, "S"), ("r", 2 * r + 1, "R")]
        value = lambda i, k: out[i] + padded[i + k]  # noqa: E731
        self.add(out, stage(self.name(), axes, out, lambda i, k: (i,), value, 0))

    def stencil(self) -> None:
        a = self.source(1)
        n = as_int(a.shape[0])
        if n is None or n < 3:
            return self.broadcast()
        out = self.fresh((n - 2,))
        value = lambda i: a[i] + a[i + 1] + a[i + 2]  # noqa: E731
        self.add(out, stage(self.name(), [("i", n - 2, "S")], out, lambda i: (i,), value))

    def in_place(self) -> None:
        if not self.made:
            return self.elementwise()
        a = self.rng.choice(self.made)
        axes = [(n, e, "S") for n, e in zip("ijk", a.shape, strict=False)]
        value = lambda *v: a[v] + as_expr(1, self.dtype)  # noqa: E731
        self.stages.append(stage(self.name(), axes, a, lambda *v: v, value))

    def triangle(self) -> None:
        """A triangular domain over a result that starts as zero everywhere."""
        a = self.source(1)
        n = a.shape[0]
        out = self.fresh((n, n))
        axes = [("i", n, "S"), ("j", n, "S")]
        zero = as_expr(0, self.dtype)
        clear = stage(self.name(), axes, out, lambda i, j: (i, j), lambda i, j: zero)
        self.stages.append(clear)
        lower = lambda v: [as_expr(n), v[0] + 1]  # noqa: E731
        value = lambda i, j: a[i] + a[j]  # noqa: E731
        where = lambda i, j: (i, j)  # noqa: E731
        self.add(out, stage(self.name(), axes, out, where, value, extents=lower))

    def func(self) -> PrimFunc:
        """The program: buffers nobody reads, and the last one, are results."""
        read = {r.buffer for s in self.stages for r in _all_reads(s)}
        last = self.made[-1]
        self.outputs = [b for b in self.made if b is last or b not in read]
        inner = [b for b in self.made if b not in self.outputs]
        return function([*self.inputs, *self.outputs], self.stages, inner)


def _all_reads(s: Stmt) -> list[BufferRegion]:
    while isinstance(s, For):
        s = s.body
    assert isinstance(s, BlockRealize)
    return list(s.block.reads)


def _symbolic(rng: random.Random) -> PrimFunc:
    """Row sums and a scaling over extents known only when the program runs."""
    dtype = DType(rng.choice(DTYPES))
    n, m = Var("n"), Var("m")
    a, s, out = (Buffer.of(x, d, dtype) for x, d in (("A", (n, m)), ("S", (n,)), ("O", (n, m))))
    total = stage(
        "sum", [("i", n, "S"), ("k", m, "R")], s,
        lambda i, k: (i,), lambda i, k: s[i] + a[i, k], 0,
    )  # fmt: skip
    shift = stage(
        "shift", [("i", n, "S"), ("j", m, "S")], out,
        lambda i, j: (i, j), lambda i, j: a[i, j] - s[i] + cast(dtype, j),
    )  # fmt: skip
    return function([a, out], [total, shift], [s])


def is_narrow(dtype: DType) -> bool:
    """Floats of 16 bits: exact up to 256 only, so their programs are short and values in ±1."""
    return dtype.is_float and dtype.bits == 16


def random_func(rng: random.Random) -> PrimFunc:
    """A random schedulable function; the same generator state gives the same program."""
    if rng.random() < 0.12:
        return _symbolic(rng)
    maker = _Maker(rng)
    families = [
        maker.elementwise, maker.broadcast, maker.transpose, maker.reshape, maker.reduction,
        maker.matmul, maker.convolution, maker.stencil, maker.in_place, maker.triangle,
    ]  # fmt: skip
    for _ in range(rng.randint(1, 2 if is_narrow(maker.dtype) else 4)):
        rng.choice(families)()
    return maker.func()


def random_args(func: PrimFunc, rng: random.Random, *, hard: bool = False) -> list[Any]:
    """Arguments for a function: small integers in each buffer's type, symbolic extents drawn,
    scalars from 1 to 4.

    If `hard`, integers that are no indices take all values of their type, and every eighth float is
    an infinity, NaN or a zero of either sign.
    """
    indices = index_data(func)
    sizes: dict[Var, Expr] = {}
    out = []
    for param in func.params:
        if isinstance(param, Var):
            out.append(param.dtype.numpy.type(rng.randint(1, 4)))
            continue
        for var in sorted({v for s in param.shape for v in free_vars(s)}, key=lambda v: v.name):
            sizes.setdefault(var, as_expr(rng.randint(1, 6), var.dtype))
        shape = [int(as_int(Analyzer().simplify(substitute(s, sizes))) or 0) for s in param.shape]
        high = 1 if is_narrow(param.dtype) else 4
        low = 0 if param.dtype.kind in ("uint", "bool") else -high
        draw = np.random.default_rng(rng.getrandbits(32))
        drawn = draw.integers(low, high, shape, endpoint=True).astype(param.dtype.numpy)
        if hard and param.dtype.is_float:
            special = draw.choice(np.array(SPECIAL), shape).astype(param.dtype.numpy)
            drawn = np.where(draw.random(shape) < 1 / 8, special, drawn)
        elif hard and param.dtype.is_int and param not in indices:
            drawn = draw.integers(*param.dtype.range, shape, param.dtype.numpy, endpoint=True)
        out.append(drawn)
    return out


def funcs() -> st.SearchStrategy[PrimFunc]:
    """Hypothesis strategy over `random_func` (shrinks towards small seeds)."""
    return st.integers(0, 10_000).map(lambda seed: random_func(random.Random(seed)))
