"""Compiles expressions to closures that evaluate them in an environment of the interpreter.

An environment is a list of slots: one for the value of each variable, two for each buffer. These
two hold the NumPy array and, under `check_undefined`, flags of the written elements.
`ExprCompiler.expr(e)` gives a function of the environment, made once for each distinct expression.
So evaluating costs one call for each node and no dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    Add,
    And,
    BinaryOp,
    Cast,
    Expr,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Mul,
    Not,
    Or,
    Select,
    StringImm,
    Sub,
    Var,
)
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.interp_fence import Env, Eval, Fences, outside
from metasched.ir.interp_operators import digit, int_arithmetic, operator, settled_early
from metasched.ir.interp_ops import (
    IGNORES_ARGUMENTS,
    OP_RULES,
    as_value,
    converter,
    reinterpret,
    storage,
    undefined,
    wrap_array,
)
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle
from metasched.ir.visit import shared_parts

_LONG = 40
_UNKNOWN = object()  # in the slot of a part that is not evaluated yet


class ExprCompiler:
    """Gives slots to variables and buffers and closures to expressions."""

    def __init__(self, check_undefined: bool = False, check_regions: bool = False) -> None:
        self.slots: dict[Var | Buffer, int] = {}
        self.size = 1  # slot 0 is the random generator
        self.check_undefined = check_undefined
        self.fences = Fences(check_regions)
        self.memo: dict[Expr, Eval] = {}
        self.kept: dict[Expr, int] | None = None  # the slots of shared parts of a large expression
        self.symbols: frozenset[Var] = frozenset()  # run-time extents and scalar arguments

    def slot(self, leaf: Var | Buffer) -> int:
        """The place of a variable or buffer in the environment."""
        found = self.slots.get(leaf)
        if found is None:
            found = self.slots[leaf] = self.size
            self.size += 2 if isinstance(leaf, Buffer) else 1
        return found

    def expr(self, e: Expr) -> Eval:
        """The closure that evaluates `e`."""
        found = self.memo.get(e)
        if found is None:
            large = self.kept is None and tree_size(e) > LARGE
            found = self.memo[e] = self._large(e) if large else self._part(e)
        return found

    def _large(self, e: Expr) -> Eval:
        """The closure of a large expression, which evaluates each shared part once."""
        parts = shared_parts([e])
        self.kept = {part: self.size + n for n, part in enumerate(parts)}
        self.size += len(parts)
        slots, memo, self.memo = [*self.kept.values()], self.memo, {}
        whole = self._compile(e)
        self.kept, self.memo = None, memo

        def evaluate(env: Env) -> Any:
            for slot in slots:
                env[slot] = _UNKNOWN
            return whole(env)

        return evaluate

    def _part(self, e: Expr) -> Eval:
        found, slot = self._compile(e), (self.kept or {}).get(e)
        if slot is None:
            return found

        def once(env: Env) -> Any:
            value = env[slot]
            if value is _UNKNOWN:
                value = env[slot] = found(env)
            return value

        return once

    def _compile(self, e: Expr) -> Eval:
        if isinstance(e, (IntImm, FloatImm)):
            value = as_value(e.dtype, e.value)
            return lambda env: value
        if isinstance(e, Var):
            return self._var(e)
        if isinstance(e, BinaryOp):
            return self._binary(e)
        if isinstance(e, BufferLoad):
            return self._load(e)
        for kind, rule in _RULES.items():
            if isinstance(e, kind):
                return rule(self, e)
        raise InterpretError(f"{type(e).__name__} has no rule in the interpreter")

    def _var(self, e: Var) -> Eval:
        if e not in self.slots:
            raise InterpretError(f"variable {e.name} is used where it has no value")
        return itemgetter(self.slots[e])

    # Operators

    def _binary(self, e: BinaryOp) -> Eval:
        spine: list[BinaryOp] = []
        node: Expr = e
        kept = self.kept or ()
        while isinstance(node, BinaryOp) and node not in self.memo:
            if spine and node in kept:
                break
            spine.append(node)
            node = node.a
        if len(spine) > _LONG:  # a deep sum: a loop instead of recursion
            return self._chain(self.expr(node), spine)
        a, b = self.expr(e.a), self.expr(e.b)
        if e.dtype.lanes == 1 and isinstance(e, And):
            return lambda env: a(env) and b(env)
        if e.dtype.lanes == 1 and isinstance(e, Or):
            return lambda env: a(env) or b(env)
        if e.dtype.lanes == 1 and e.a.dtype.is_int:
            if isinstance(e, (Add, Sub, Mul)):
                return int_arithmetic(e, a, b)
            if isinstance(e.b, IntImm) and e.b.value > 0 and isinstance(e, (FloorDiv, FloorMod)):
                return digit(e, a, e.b.value)
        apply = operator(e)
        return lambda env: apply(a(env), b(env))

    def _chain(self, first: Eval, spine: Sequence[BinaryOp]) -> Eval:
        steps = [(operator(node), self.expr(node.b)) for node in reversed(spine)]

        if any(isinstance(node, (And, Or)) and node.dtype.lanes == 1 for node in spine):
            return settled_early(first, spine, steps)

        def run(env: Env) -> Any:
            value = first(env)
            for apply, operand in steps:
                value = apply(value, operand(env))
            return value

        return run

    def _not(self, e: Not) -> Eval:
        a = self.expr(e.a)
        if e.dtype.lanes > 1:
            return lambda env: np.logical_not(a(env))
        return lambda env: not a(env)

    def _cast(self, e: Cast) -> Eval:
        convert, value = converter(e.value.dtype, e.dtype), self.expr(e.value)
        return lambda env: convert(value(env))

    def _select(self, e: Select) -> Eval:
        condition, a, b = self.expr(e.condition), self.expr(e.a), self.expr(e.b)
        if e.condition.dtype.lanes > 1:
            return lambda env: np.where(condition(env), a(env), b(env))

        def select(env: Env) -> Any:
            x, y = a(env), b(env)  # evaluate both sides, as machine code does
            return x if condition(env) else y

        return select

    def _let(self, e: Let) -> Eval:
        slot, value, body = self.slot(e.var), self.expr(e.value), self.expr(e.body)

        def let(env: Env) -> Any:
            env[slot] = value(env)
            return body(env)

        return let

    # Vectors

    def _ramp(self, e: Ramp) -> Eval:
        base, stride, dtype = self.expr(e.base), self.expr(e.stride), e.dtype
        steps = np.arange(e.lanes)
        if e.base.dtype.lanes > 1:
            return lambda env: wrap_array(
                dtype, np.concatenate([base(env) + stride(env) * i for i in steps])
            )
        return lambda env: wrap_array(dtype, base(env) + stride(env) * steps)

    def _broadcast(self, e: Broadcast) -> Eval:
        value, lanes, kind = self.expr(e.value), e.lanes, storage(e.dtype)
        if e.value.dtype.lanes > 1:
            return lambda env: np.tile(value(env), lanes)
        return lambda env: np.full(lanes, value(env), kind)

    def _shuffle(self, e: Shuffle) -> Eval:
        vectors = [self.expr(v) for v in e.vectors]
        picks, scalar = list(e.indices), e.dtype.lanes == 1
        dtype = e.dtype

        def shuffle(env: Env) -> Any:
            lanes = np.concatenate([np.atleast_1d(v(env)) for v in vectors])[picks]
            return as_value(dtype, lanes[0]) if scalar else lanes

        return shuffle

    # Calls

    def _call(self, e: Call) -> Eval:
        name, dtype = e.op.name, e.dtype
        if name == "if_then_else":
            return self._if_then_else(e)
        rule = OP_RULES.get(name)
        if rule is None:
            raise InterpretError(f"{name} has no rule in the interpreter")
        if name in IGNORES_ARGUMENTS:
            return lambda env: 0
        if name == "undef":
            return lambda env: undefined(dtype)
        values = [a for a in e.args if not isinstance(a, StringImm)]
        if dtype.is_handle or any(a.dtype.is_handle for a in values):
            return lambda env: rule(dtype)  # pointers and foreign code: their rules raise
        args = [self.expr(a) for a in e.args]
        if name == "reinterpret":
            source, value = e.args[0].dtype, args[0]
            return lambda env: as_value(dtype, reinterpret(source, dtype, value(env)))
        return lambda env: as_value(dtype, rule(dtype, *[a(env) for a in args]))

    def _if_then_else(self, e: Call) -> Eval:
        condition, a, b = (self.expr(x) for x in e.args)
        if e.args[0].dtype.lanes > 1:
            return lambda env: np.where(condition(env), a(env), b(env))
        return lambda env: a(env) if condition(env) else b(env)

    # Memory

    def _load(self, e: BufferLoad) -> Eval:
        if e.dtype.lanes > 1 or e.predicate is not None:
            return self._vector_load(e)
        slot, is_float, buffer = self.slot(e.buffer), e.dtype.is_float, e.buffer
        if not self.check_undefined:
            return self._scalar_load(e, is_float)
        at = self.place(e.buffer, e.indices)

        def checked(env: Env) -> Any:
            where = at(env)
            written = env[slot + 1]
            if written is not None and not written[where]:
                raise InterpretError(f"{buffer.name}{list(where)} is read but was never written")
            return env[slot][where] if is_float else env[slot].item(*where)

        return checked

    def _scalar_load(self, e: BufferLoad, is_float: bool) -> Eval:
        slot, buffer = self.slot(e.buffer), e.buffer
        if self.fences.guard(self, buffer, False, e.indices) is not None:
            at = self.place(buffer, e.indices)
            return lambda env: env[slot][at(env)] if is_float else env[slot].item(*at(env))
        if len(e.indices) == 1:
            only = self.expr(e.indices[0])

            def load1(env: Env) -> Any:
                i = only(env)
                try:
                    if i >= 0:
                        return env[slot][i] if is_float else env[slot].item(i)
                except (IndexError, TypeError, AttributeError):
                    pass
                raise outside(buffer, (i,), env[slot])

            return load1
        if len(e.indices) == 2:
            first, second = map(self.expr, e.indices)

            def load2(env: Env) -> Any:
                i, j = first(env), second(env)
                try:
                    if i >= 0 and j >= 0:
                        return env[slot][i, j] if is_float else env[slot].item(i, j)
                except (IndexError, TypeError, AttributeError):
                    pass
                raise outside(buffer, (i, j), env[slot])

            return load2
        parts = [self.expr(i) for i in e.indices]

        def load(env: Env) -> Any:
            where = []
            for part in parts:  # a loop is faster than a list comprehension
                where.append(part(env))
            try:
                if min(where, default=0) >= 0:
                    return env[slot][*where] if is_float else env[slot].item(*where)
            except (IndexError, TypeError, AttributeError):
                pass
            raise outside(buffer, where, env[slot])

        return load

    def place(
        self, buffer: Buffer, indices: Sequence[Expr], write: bool = False
    ) -> Callable[[Env], tuple[int, ...]]:
        """The position of one element, checked against the array's shape."""
        slot, guard = self.slot(buffer), self.fences.guard(self, buffer, write, indices)
        parts = [self.expr(i) for i in indices]
        if len(parts) == 2:
            first, second = parts

            def at2(env: Env) -> tuple[int, ...]:
                array, i, j = env[slot], first(env), second(env)
                if array is None or not (0 <= i < array.shape[0] and 0 <= j < array.shape[1]):
                    raise outside(buffer, (i, j), array)
                if guard is not None:
                    guard(env, (i, j))
                return i, j

            return at2

        def at(env: Env) -> tuple[int, ...]:
            array, where = env[slot], []
            if array is None:
                raise outside(buffer, [part(env) for part in parts], array)
            for part, n in zip(parts, array.shape, strict=False):
                i = part(env)
                if not 0 <= i < n:
                    raise outside(buffer, [part(env) for part in parts], array)
                where.append(i)
            if guard is not None:
                guard(env, where)
            return tuple(where)

        return at

    def lanes_of(
        self,
        buffer: Buffer,
        indices: Sequence[Expr],
        predicate: Expr | None,
        lanes: int,
        write: bool = False,
    ) -> Callable[[Env], tuple[Any, Any]]:
        """(positions, mask) of a vector access; lanes that are masked out are not checked."""
        parts = [self.expr(i) for i in indices]
        mask = None if predicate is None else self.expr(predicate)
        slot, guard = self.slot(buffer), self.fences.guard(self, buffer, write)

        def at(env: Env) -> tuple[Any, Any]:
            active = np.ones(lanes, bool) if mask is None else np.broadcast_to(mask(env), lanes)
            where = tuple([np.broadcast_to(p(env), lanes).astype(np.int64)[active] for p in parts])
            array = env[slot]
            if array is None:
                raise outside(buffer, tuple(w.tolist() for w in where), array)
            where = _next_rows(where, array)
            for i, n in zip(where, array.shape, strict=False):
                if i.size and not (i.min() >= 0 and i.max() < n):
                    raise outside(buffer, tuple(w.tolist() for w in where), array)
            if guard is not None:
                for lane in zip(*where, strict=True):
                    guard(env, [int(i) for i in lane])
            return where, active

        return at

    def _vector_load(self, e: BufferLoad) -> Eval:
        lanes = e.dtype.lanes // e.buffer.dtype.lanes
        at = self.lanes_of(e.buffer, e.indices, e.predicate, lanes)
        slot, dtype, buffer = self.slot(e.buffer), e.dtype, e.buffer
        inner = () if buffer.dtype.lanes == 1 else (buffer.dtype.lanes,)
        checking = self.check_undefined

        def load(env: Env) -> Any:
            where, active = at(env)
            if checking:
                written = env[slot + 1]
                if written is not None and not np.all(written[where]):
                    raise InterpretError(f"{buffer.name} is read where it was never written")
            out = np.full((lanes, *inner), undefined(dtype), storage(dtype))
            out[active] = env[slot][where]
            flat = out.reshape(-1)
            return flat if dtype.lanes > 1 else as_value(dtype, flat[0])

        return load


def _next_rows(where: tuple[Any, ...], array: Any) -> tuple[Any, ...]:
    """Continue lanes past the end of a row in the next row, if rows are adjacent in memory."""
    last = array.shape[len(where) - 1] if where else 0
    if len(where) < 2 or not where[-1].size or where[-1].max() < last:
        return where
    n = len(where)
    if array.strides[n - 2] != last * array.strides[n - 1]:
        return where
    row, column = np.divmod(where[-1], last)
    return (*_next_rows((*where[:-2], where[-2] + row), array), column)


def _text(_: ExprCompiler, e: StringImm) -> Eval:
    return lambda env: e.value


_RULES: dict[type[Any], Callable[[ExprCompiler, Any], Eval]] = {
    Not: ExprCompiler._not, Cast: ExprCompiler._cast, Select: ExprCompiler._select,
    Let: ExprCompiler._let, Ramp: ExprCompiler._ramp, Broadcast: ExprCompiler._broadcast,
    Shuffle: ExprCompiler._shuffle, Call: ExprCompiler._call, StringImm: _text,
}  # fmt: skip
