"""Flat memory and 64-bit indices: A[i, j] becomes A[i * stride + j], loop variables int64.

Index arithmetic is assumed not to overflow, as everywhere in metasched. Arithmetic on values keeps
its type: a loop variable that is used as a value is cast back to its own type. Elements of memory
are values, in an index too: in A[x[i] * 31 % 97] the product wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import INT64
from metasched.ir.expr import (
    Add,
    Arithmetic,
    Cast,
    Expr,
    IntImm,
    Mul,
    Select,
    Var,
    as_expr,
    cast,
    maximum,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Broadcast, Call, Ramp
from metasched.ir.stmt import (
    Allocate,
    AttrStmt,
    BufferStore,
    DeclBuffer,
    For,
    LetStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import transform_expr, walk_exprs, walk_stmts
from metasched.lower.passes.data import data_vars, is_data, wraps

_BUILD: dict[type[Arithmetic], Callable[[Expr, Expr], Expr]] = {
    Add: ir.add, ir.Sub: ir.sub, Mul: ir.mul, ir.FloorDiv: ir.floordiv, ir.FloorMod: ir.floormod,
    ir.Min: ir.minimum, ir.Max: ir.maximum,
}  # fmt: skip
_REMAINDERS = (ir.FloorMod, ir.Mod)
CUTS = (*_REMAINDERS, ir.FloorDiv, ir.Div, ir.Min, ir.Max)
"""Operations that are computed in their own type where an element of memory is added or multiplied
in an operand. A sum or product that wraps differs in 64 bits by a multiple of 2**32, and no such
index lies inside a buffer. Of the number of iterations only remainders are: splits write the other
operations."""


def flatten(func: PrimFunc, symbols: Mapping[Var, Var]) -> PrimFunc:
    """Give every access one 64-bit index; `symbols` maps shape variables to 64-bit variables."""
    return func.with_body(_Flatten(func, symbols).statement(func.body))


class _Flatten:
    """Keeps the wide variable of each loop, the flat buffer of each buffer and memos."""

    def __init__(self, func: PrimFunc, symbols: Mapping[Var, Var]) -> None:
        self.wide: dict[Var, Var] = dict(symbols)
        sizes = [e for buffer in func.buffers for e in (*buffer.shape, *buffer.strides)]
        for stmt in walk_stmts(func.body):
            if isinstance(stmt, For):
                sizes.append(stmt.extent)
                if stmt.var.dtype is not INT64:
                    self.wide[stmt.var] = Var(stmt.var.name, INT64, stmt.var.serial)
        self.index_vars = {v for size in sizes for v in walk_exprs(size) if isinstance(v, Var)}
        self.index_vars.update(self.wide.values())
        self.named = data_vars(func)
        self.values: dict[Expr, Expr] = {}
        self.indices: dict[Expr, Expr] = {}
        self.extents: dict[Expr, Expr] = {}
        self.flat: dict[Buffer, Buffer] = {}
        self.data: dict[Var, Var] = {}

    # -- statements

    def statement(self, stmt: Stmt) -> Stmt:
        """The statement over flat buffers."""
        if isinstance(stmt, DeclBuffer):
            self.data[stmt.buffer.data] = self.data.get(stmt.source.data, stmt.source.data)
            return self.statement(stmt.body)
        if isinstance(stmt, For):
            extent = self.extent(self.value(stmt.extent))  # an extent may load from a buffer
            var = self.wide.get(stmt.var, stmt.var)
            zero = IntImm(INT64, 0)
            body = self.statement(stmt.body)
            return For(var, zero, extent, stmt.kind, body, stmt.thread, stmt.annotations)
        if isinstance(stmt, BufferStore):
            value = self.value(stmt.value)
            mask = None if stmt.predicate is None else self.value(stmt.predicate)
            where = self.flat_index(stmt.buffer, [self.value(i) for i in stmt.indices])
            return BufferStore(self.buffer(stmt.buffer), value, (where,), mask)
        if isinstance(stmt, Allocate):
            return Allocate(self.buffer(stmt.buffer), self.statement(stmt.body), stmt.annotations)
        if isinstance(stmt, AttrStmt):
            value = self.value(stmt.value)
            return AttrStmt(stmt.node, stmt.key, value, self.statement(stmt.body))
        if isinstance(stmt, LetStmt):
            value = self.value(stmt.value)
            return evolve(stmt, value=value, body=self.statement(stmt.body))
        exprs = [self.value(e) for e in stmt.exprs]
        return stmt.rebuild([self.statement(s) for s in stmt.stmts], exprs)

    # -- buffers

    def buffer(self, buffer: Buffer) -> Buffer:
        """The one-dimensional buffer of the same data."""
        found = self.flat.get(buffer)
        if found is None:
            size = self.size(buffer)
            data = self.data.get(buffer.data, buffer.data)
            found = Buffer(buffer.name, (size,), buffer.dtype, buffer.scope, align=buffer.align,
                           data=data)  # fmt: skip
            self.flat[buffer] = found
        return found

    def size(self, buffer: Buffer) -> Expr:
        """How many elements a buffer's memory has, from its first to its last element. Rows are
        counted whole if the first dimension has the largest stride."""
        size: Expr = as_expr(1, INT64)
        for extent in buffer.shape:
            size = size * self.index(self.value(extent))
        if buffer.strides and buffer.shape:
            size = self.index(self.value(buffer.shape[0] * buffer.strides[0]))
            reach: Expr = as_expr(1, INT64)
            for extent, stride in zip(buffer.shape, buffer.strides, strict=True):
                reach = reach + (self.index(self.value(extent)) - 1) * self.index(
                    self.value(stride)
                )
            size = maximum(size, reach)
        if buffer.elem_offset is not None:
            size = size + self._offset(buffer)
        return size

    def flat_index(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        """The position of an access in elements, as a 64-bit expression."""
        total: Expr = as_expr(0, INT64)
        if buffer.elem_offset is not None:
            total = self._offset(buffer)
        vectors: list[Expr] = []
        for index, stride in zip(indices, buffer.row_major_strides(), strict=True):
            step = self.index(self.value(stride))
            if index.dtype.lanes > 1:
                vectors.append(_scaled(self.index(index), step))
            else:
                total = total + self.index(index) * step
        for vector in vectors:
            if isinstance(vector, Ramp) and total.dtype.lanes == 1:
                total = Ramp(vector.base + total, vector.stride, vector.lanes)
            elif total.dtype.lanes == 1:
                total = Add(vector, Broadcast(total, vector.dtype.lanes))
            else:
                total = Add(vector, total)
        return total

    def _offset(self, buffer: Buffer) -> Expr:
        """The offset of the first element; zero if it is symbolic: then the buffer is a parameter,
        whose pointer points at the first element."""
        offset = buffer.elem_offset
        if isinstance(offset, Var) and offset not in self.wide:
            return as_expr(0, INT64)
        assert offset is not None
        return self.index(self.value(offset))

    # -- expressions

    def value(self, expr: Expr) -> Expr:
        """The expression over flat buffers, of the same type."""
        if expr.dtype is INT64 and isinstance(expr, IntImm):
            return expr
        return transform_expr(expr, self._rewrite, self.values)

    def _rewrite(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Var):
            wide = self.wide.get(expr)
            if wide is not None:
                return wide if wide.dtype is expr.dtype else Cast(expr.dtype, wide)
            return self.data.get(expr)
        if isinstance(expr, BufferLoad):
            where = self.flat_index(expr.buffer, expr.indices)
            return BufferLoad(self.buffer(expr.buffer), (where,), expr.predicate)
        if isinstance(expr, ir.Compare) and expr.a.dtype == "int32":
            return self._compare(type(expr), expr.a, expr.b)
        return None

    def _compare(self, kind: type[ir.Compare], a: Expr, b: Expr) -> Expr | None:
        """A comparison of 64-bit numbers, if index arithmetic is compared; a guard that a split
        writes, `i_0 * 100 + i_1 < n`, may reach beyond the type of n."""
        indices = [self._is_index(side) for side in (a, b)]
        if not all(indices) and not any(
            isinstance(side, Arithmetic) and index
            for side, index in zip((a, b), indices, strict=True)
        ):
            return None
        wide = (
            self.index(side) if index else cast(INT64, side)
            for side, index in zip((a, b), indices, strict=True)
        )
        return ir.compare(kind, *wide)

    def _is_index(self, expr: Expr) -> bool:
        """Whether an expression consists of loop variables, sizes and constants only. A size is a
        variable of an extent or a stride."""
        return all(
            isinstance(n, (IntImm, Arithmetic))
            or (isinstance(n, Cast) and n.value in self.index_vars)
            or n in self.index_vars
            for n in walk_exprs(expr)
        )

    def index(self, expr: Expr) -> Expr:
        """The 64-bit form of an integer expression, which `value` has rewritten."""
        return self._wide_form(expr, self.indices, CUTS, self.index)

    def extent(self, expr: Expr) -> Expr:
        """`index` of the number of iterations of a loop."""
        return self._wide_form(expr, self.extents, _REMAINDERS, self.extent)

    def _wide_form(
        self,
        expr: Expr,
        memo: dict[Expr, Expr],
        cuts: tuple[type[Arithmetic], ...],
        inner: Callable[[Expr], Expr],
    ) -> Expr:
        found = memo.get(expr)
        if found is None:
            own = wraps(expr, self.named, cuts)
            found = (
                cast(INT64.with_lanes(expr.dtype.lanes), expr) if own else self._widen(expr, inner)
            )
            memo[expr] = found
        return found

    def _widen(self, expr: Expr, inner: Callable[[Expr], Expr]) -> Expr:
        """The 64-bit form, with that of operands by `inner`."""
        lanes = expr.dtype.lanes
        if lanes == 1 and isinstance(expr, Var) and expr in self.wide:
            return self.wide[expr]
        if isinstance(expr, IntImm):
            return IntImm(INT64, expr.value)
        if isinstance(expr, Cast) and expr.value in self.index_vars:
            return expr.value
        if isinstance(expr, Cast) and expr.dtype.scalar is INT64 and expr.value.dtype == "int32":
            return inner(expr.value)
        if isinstance(expr, Ramp):
            return Ramp(inner(expr.base), inner(expr.stride), expr.lanes)
        if isinstance(expr, Broadcast):
            return Broadcast(inner(expr.value), expr.lanes)
        if expr.dtype.scalar not in ("int32", "int64"):
            return cast(INT64.with_lanes(lanes), expr)
        if isinstance(expr, ir.Div | ir.Mod):
            return ir.binary(type(expr), inner(expr.a), inner(expr.b))
        if isinstance(expr, Arithmetic):
            return _BUILD[type(expr)](inner(expr.a), inner(expr.b))
        if isinstance(expr, Select):
            return Select(expr.condition, inner(expr.a), inner(expr.b))
        if isinstance(expr, Call) and expr.op.name == "if_then_else" and lanes == 1:
            condition, a, b = expr.args
            return Call(INT64, expr.op, (condition, inner(a), inner(b)))
        if isinstance(expr, Call) and expr.op.name == "abs" and lanes == 1:
            (of,) = expr.args
            if not is_data(of, self.named):
                return ir.maximum(inner(of), 0 - inner(of))
        return cast(INT64.with_lanes(lanes), expr)


def _scaled(vector: Expr, step: Expr) -> Expr:
    if isinstance(vector, Ramp):
        return Ramp(vector.base * step, vector.stride * step, vector.lanes)
    if isinstance(step, IntImm) and step.value == 1:
        return vector
    return ir.binary(Mul, vector, Broadcast(step, vector.dtype.lanes))
