"""Random well-formed IR of every node kind, meaning nothing: what printer and parser must carry.

`random_syntax(rng)` gives functions (schedulable or lowered) whose variables and buffers are in
scope where they are used and whose types match; nothing else is promised.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st

from metasched.arith.outside import first_outside
from metasched.ir import stmt as s
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    TRUE,
    Add,
    And,
    Arithmetic,
    Cast,
    Compare,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Mul,
    Not,
    Or,
    Select,
    StringImm,
    Sub,
    Var,
    as_int,
)
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.op import OPS, Broadcast, Call, Ramp, Shuffle

INTS = ["int32", "int32", "int32", "int64", "int8", "uint8"]
FLOATS = ["float32", "float16", "bfloat16", "float64"]
SCALARS = [*INTS, *FLOATS, "bool"]
ARITHMETIC = list(Arithmetic.__subclasses__())
COMPARISONS = list(Compare.__subclasses__())
VALUES = [0.0, -0.0, 1.0, -2.5, 0.1, 1e-9, 3e38, float("inf"), float("-inf"), float("nan")]


class Syntax:
    """One random function in the making."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.vars: list[Var] = []
        self.buffers: list[Buffer] = []
        self.loops: dict[Var, Range] = {}

    # ---- expressions

    def dtype(self) -> DType:
        return DType(self.rng.choice(SCALARS))

    def index(self, depth: int = 2) -> Expr:
        return self.expr(DType("int32"), depth)

    def expr(self, dtype: DType, depth: int = 3) -> Expr:
        """An expression of a type."""
        if dtype.lanes > 1:
            return self.vector(dtype, depth)
        if depth == 0 or self.rng.random() < 0.25:
            return self.leaf(dtype)
        if dtype.is_handle:
            return self.call(dtype, depth - 1)
        makers: list[Callable[[DType, int], Expr]] = [
            self.cast, self.select, self.let, self.call, self.binary, self.binary, self.shuffle,
        ]  # fmt: skip
        if dtype.is_bool:
            makers += [self.logical, self.comparison, self.comparison]
        return self.rng.choice(makers)(dtype, depth - 1)

    def leaf(self, dtype: DType) -> Expr:
        loads = [b for b in self.buffers if b.dtype is dtype]
        if loads and self.rng.random() < 0.4:
            buffer = self.rng.choice(loads)
            return BufferLoad(buffer, [self.scalar(DType("int32")) for _ in buffer.shape])
        return self.scalar(dtype)

    def scalar(self, dtype: DType) -> Expr:
        """A variable or a constant."""
        known = [v for v in self.vars if v.dtype is dtype]
        if known and self.rng.random() < 0.5:
            return self.rng.choice(known)
        if dtype.is_float:
            return FloatImm(
                dtype, self.rng.choice([v for v in VALUES if dtype.rounds_to_finite(v)])
            )
        if dtype.is_handle:
            return StringImm(self.rng.choice(["", "x", 'a "b"\n\\', "€\x01"]))
        low, high = dtype.range
        choices = [0, 1, low, high, 2, 3, -1]
        return IntImm(dtype, next(c for c in self.rng.sample(choices, 7) if low <= c <= high))

    def binary(self, dtype: DType, depth: int) -> Expr:
        if dtype.is_bool:
            return self.logical(dtype, depth)
        kind = self.rng.choice(ARITHMETIC)
        return kind(self.expr(dtype, depth), self.expr(dtype, depth))

    def logical(self, dtype: DType, depth: int) -> Expr:
        if self.rng.random() < 0.3:
            return Not(self.expr(dtype, depth))
        return self.rng.choice([And, Or])(self.expr(dtype, depth), self.expr(dtype, depth))

    def comparison(self, dtype: DType, depth: int) -> Expr:
        inner = self.dtype()
        kind = self.rng.choice(COMPARISONS)
        return kind(self.expr(inner, depth), self.expr(inner, depth))

    def cast(self, dtype: DType, depth: int) -> Expr:
        return Cast(dtype, self.expr(self.dtype(), depth))

    def select(self, dtype: DType, depth: int) -> Expr:
        condition = self.expr(DType("bool"), depth)
        return Select(condition, self.expr(dtype, depth), self.expr(dtype, depth))

    def let(self, dtype: DType, depth: int) -> Expr:
        inner = self.dtype()
        var, value = Var(self.name(), inner), self.expr(inner, depth)
        with self.scope():
            self.vars.append(var)
            return Let(var, value, self.expr(dtype, depth))

    def call(self, dtype: DType, depth: int) -> Expr:
        op = OPS.get(self.rng.choice(OPS.names()))
        count = self.rng.randrange(4) if op.arity is None else op.arity
        kinds = [dtype if self.rng.random() < 0.7 else self.any_dtype() for _ in range(count)]
        return Call(dtype, op, [self.expr(k, depth) for k in kinds])

    def any_dtype(self) -> DType:
        return DType(self.rng.choice([*SCALARS, "handle", "int32x4", "float32x2", "boolx4"]))

    def shuffle(self, dtype: DType, depth: int) -> Expr:
        vectors = [self.expr(dtype.with_lanes(2), depth), self.expr(dtype, depth)]
        return Shuffle(vectors, [self.rng.randrange(3)])

    def vector(self, dtype: DType, depth: int) -> Expr:
        one = dtype.scalar
        if depth == 0 or self.rng.random() < 0.3:
            return Broadcast(self.expr(one, 0), dtype.lanes)
        if one.is_int and self.rng.random() < 0.5:
            return Ramp(self.expr(one, depth - 1), self.expr(one, depth - 1), dtype.lanes)
        if self.rng.random() < 0.3:
            parts = [self.expr(one, depth - 1) for _ in range(dtype.lanes)]
            return Shuffle(parts, self.rng.sample(range(dtype.lanes), dtype.lanes))
        if one.is_bool:
            return Broadcast(self.expr(one, depth - 1), dtype.lanes)
        kind = self.rng.choice([Add, Sub, Mul])
        return kind(self.expr(dtype, depth - 1), self.expr(dtype, depth - 1))

    # ---- statements

    @contextmanager
    def scope(self) -> Iterator[None]:
        vars_, buffers = list(self.vars), list(self.buffers)
        yield
        self.vars, self.buffers = vars_, buffers

    def name(self) -> str:
        return self.rng.choice(["i", "j", "x", "A", "T", "range", "for", "a.b", "1", "", "x_1"])

    def buffer(self, symbolic: bool = False, dtype: DType | None = None) -> Buffer:
        rng = self.rng
        sizes: list[Any] = [rng.choice([1, 4, IntImm("int64", 8)]) for _ in range(rng.randrange(4))]
        ints = [v for v in self.vars if v.dtype == "int32"]
        if ints and rng.random() < 0.3:
            sizes.append(rng.choice(ints))
        if symbolic and rng.random() < 0.5:
            sizes.append(Var("n", rng.choice(["int32", "int64"])))
        strides = [Var("s0"), *[1] * (len(sizes) - 1)] if symbolic and sizes else ()
        offset = rng.choice([None, 0, Var("off")]) if symbolic else None
        return Buffer.of(
            rng.choice(["A", "B", "x", "A.rf"]), sizes, dtype or self.dtype(),
            rng.choice(["global", "global", "shared.dyn"]), strides, offset,
            rng.choice([64, 64, 16]), rng.choice([1, 1, 8]),
        )  # fmt: skip

    def notes(self) -> s.FrozenMap:
        rng = self.rng
        if rng.random() < 0.6:
            return s.EMPTY
        values = [1, -1, True, None, 0.5, float("inf"), "t", [1, [2.0]], (1,), (), {"k": (1, "b")},
                  IntImm("int32", 1), TRUE, FloatImm("float32", 1.0), StringImm("s")]  # fmt: skip
        return s.frozen({k: rng.choice(values) for k in rng.sample(["a", "b", 'c"'], 2)})

    def stmt(self, depth: int) -> s.Stmt:
        rng = self.rng
        leaves = [self.store, self.store, self.evaluate, self.odd]
        if depth == 0:
            return rng.choice(leaves)(0)
        deep = [self.loop, self.loop, self.block, self.block, self.branch, self.sequence,
                self.let_stmt, self.attr, self.allocate, self.decl, self.while_loop]  # fmt: skip
        return rng.choice([*deep, rng.choice(leaves)])(depth - 1)

    def body(self, depth: int) -> s.Stmt:
        with self.scope():
            return self.stmt(depth)

    def sequence(self, depth: int) -> s.Stmt:
        return s.seq(self.body(depth) for _ in range(self.rng.randint(2, 3)))

    def store(self, depth: int) -> s.Stmt:
        if not self.buffers:
            return self.evaluate(depth)
        buffer = self.rng.choice(self.buffers)
        indices = [self.index() for _ in buffer.shape]
        if indices and self.rng.random() < 0.3:
            indices[-1] = self.expr(DType("int32x4"), 2)
            mask = self.expr(DType("boolx4"), 2) if self.rng.random() < 0.4 else None
            value = self.expr(buffer.dtype.with_lanes(4), 2)
            return s.BufferStore(buffer, value, tuple(indices), mask)
        return s.BufferStore(buffer, self.expr(buffer.dtype), tuple(indices))

    def evaluate(self, depth: int) -> s.Stmt:
        return s.Evaluate(self.expr(self.any_dtype()))

    def odd(self, depth: int) -> s.Stmt:
        condition = self.expr(DType("bool"))
        returned = s.Return(self.rng.choice([None, self.expr(DType("int64"))]))
        return self.rng.choice([
            s.Break(), s.Continue(), returned, s.AssertStmt(condition, 'not "so"\n'),
        ])  # fmt: skip

    def extent(self, dtype: DType, depth: int) -> Expr:
        """An expression; where it is a constant, one that an extent can be."""
        size = self.expr(dtype, depth)
        return IntImm(dtype, 3) if (as_int(size) or 0) < 0 else size

    def loop(self, depth: int) -> s.Stmt:
        rng, dtype = self.rng, DType(self.rng.choice(["int32", "int32", "int64"]))
        low, size = IntImm(dtype, 0), IntImm(dtype, rng.randint(0, 4))
        if rng.random() < 0.4:
            low, size = self.expr(dtype, 1), self.extent(dtype, 1)
        step = IntImm(dtype, rng.randint(1, 3)) if rng.random() < 0.15 else None
        kind = rng.choice([s.ForKind.SERIAL] * 4 + list(s.ForKind))
        tag = "threadIdx.x" if kind is s.ForKind.THREAD_BINDING else None
        var = Var(self.name(), dtype)
        with self.scope():
            self.vars.append(var)
            if step is None:
                self.loops[var] = Range(low, size)
            return s.For(var, low, size, kind, self.stmt(depth), tag, self.notes(), step)

    def region(self, buffer: Buffer) -> BufferRegion:
        ranges = []
        for _ in buffer.shape:
            kind = DType(self.rng.choice(["int32", "int64"]))
            size = IntImm(kind, 1) if self.rng.random() < 0.3 else self.extent(kind, 2)
            ranges.append(Range(self.expr(kind, 2), size))
        return BufferRegion(buffer, tuple(ranges))

    def block(self, depth: int) -> s.Stmt:
        rng = self.rng
        iters, values = [], []
        for _ in range(rng.randrange(4)):
            bound = [v for v in self.vars if v in self.loops]
            if bound and rng.random() < 0.8:
                value: Expr = rng.choice(bound)
                dom = self.loops[value]  # type: ignore[index]
            else:
                kind = DType(rng.choice(["int32", "int64"]))
                value, dom = self.expr(kind, 2), Range(self.expr(kind, 1), self.extent(kind, 1))
            values.append(value)
            var = Var(self.name(), value.dtype)
            iters.append(s.IterVar(var, dom, rng.choice(list(s.IterKind))))
        predicate = self.expr(DType("bool")) if rng.random() < 0.3 else TRUE
        with self.scope():
            self.vars += [v.var for v in iters]
            known = [b for b in self.buffers if rng.random() < 0.5]
            reads, writes = tuple(map(self.region, known)), tuple(map(self.region, known[:1]))
            matches = [
                s.MatchBufferRegion(self.buffer(True, b.dtype), self.region(b)) for b in known[:1]
            ]
            allocs = [self.buffer() for _ in range(rng.choice([0, 0, 1, 2]))]
            self.buffers += [*allocs, *(m.buffer for m in matches)]
            init = self.body(min(depth, 1)) if rng.random() < 0.3 else None
            block = s.Block(
                rng.choice(["b", "root", "", 'q"']), tuple(iters), reads, writes, self.body(depth),
                init, tuple(allocs), tuple(matches), self.notes(),
            )  # fmt: skip
        return s.BlockRealize(tuple(values), predicate, block)

    def branch(self, depth: int) -> s.Stmt:
        orelse = self.body(depth) if self.rng.random() < 0.5 else None
        return s.IfThenElse(self.expr(DType("bool")), self.body(depth), orelse)

    def while_loop(self, depth: int) -> s.Stmt:
        return s.While(self.expr(DType("bool")), self.body(depth))

    def let_stmt(self, depth: int) -> s.Stmt:
        dtype = self.dtype()
        var, value = Var(self.name(), dtype), self.expr(dtype)
        with self.scope():
            self.vars.append(var)
            return s.LetStmt(var, value, self.stmt(depth))

    def attr(self, depth: int) -> s.Stmt:
        node = self.rng.choice([None, "text", *self.vars, *self.buffers])
        return s.AttrStmt(node, "k", self.expr(self.any_dtype()), self.body(depth))

    def allocate(self, depth: int) -> s.Stmt:
        buffer = self.buffer()
        with self.scope():
            self.buffers.append(buffer)
            return s.Allocate(buffer, self.stmt(depth), self.notes())

    def decl(self, depth: int) -> s.Stmt:
        if not self.buffers:
            return self.allocate(depth)
        source, view = self.rng.choice(self.buffers), self.buffer()
        if self.rng.random() < 0.5:
            view = Buffer(view.name, view.shape, view.dtype, view.scope, data=source.data)
        with self.scope():
            self.buffers.append(view)
            return s.DeclBuffer(view, source, self.stmt(depth))

    def func(self) -> PrimFunc:
        rng = self.rng
        scalars = [Var(self.name(), self.dtype()) for _ in range(rng.randrange(3))]
        self.vars += scalars
        made = [self.buffer(symbolic=rng.random() < 0.3) for _ in range(rng.randint(1, 3))]
        self.buffers += made
        params: list[Any] = [*scalars, *made]
        rng.shuffle(params)
        body = self.body(4)
        if rng.random() < 0.6:
            allocs = tuple(self.buffers[len(made) :])
            body = s.BlockRealize.plain(s.Block("root", (), (), (), body, None, allocs))
        attrs = dict(self.notes())
        if rng.random() < 0.6:
            attrs["global_symbol"] = rng.choice(["main", "other"])
        return PrimFunc(tuple(params), body, s.frozen(attrs), DType(rng.choice(["void", "int64"])))


def random_syntax(rng: random.Random) -> PrimFunc | IRModule:
    """A random function, or now and then a module of two; no access is certainly outside."""
    if rng.random() < 0.1:
        pair = {"f": _inside(rng), "g": _inside(rng)}
        return IRModule(s.FrozenMap(pair), Syntax(rng).notes())
    return _inside(rng)


def _inside(rng: random.Random) -> PrimFunc:
    func = Syntax(rng).func()
    while first_outside(func.body) is not None:
        func = Syntax(rng).func()
    return func


def programs() -> st.SearchStrategy[PrimFunc | IRModule]:
    """Hypothesis strategy over `random_syntax`."""
    return st.integers(0, 1 << 20).map(lambda seed: random_syntax(random.Random(seed)))
