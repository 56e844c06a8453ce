"""The interpreter's memory: fresh allocations, views of regions, views of raw memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr, show_region
from metasched.ir.expr import Add, Expr, Mul, Sub, Var
from metasched.ir.interp_expr import ExprCompiler
from metasched.ir.interp_fence import Env
from metasched.ir.interp_ops import storage, undefined
from metasched.ir.stmt import MatchBufferRegion
from metasched.ir.visit import free_vars

Step = Callable[[Env], None]


def full_shape(buffer: Buffer, sizes: Sequence[int]) -> tuple[int, ...]:
    """The array's shape: one more axis for a buffer of vectors."""
    return (*sizes, buffer.dtype.lanes) if buffer.dtype.lanes > 1 else tuple(sizes)


def allocate(compiler: ExprCompiler, buffer: Buffer) -> Step:
    """Allocate fresh memory, filled with NaN, or with a sentinel for integers.

    An extent below zero has no elements.
    """
    shape = [compiler.expr(s) for s in buffer.shape]
    slot, watch = compiler.slot(buffer), compiler.check_undefined
    compiler.fences.made(buffer)
    fill, kind = undefined(buffer.dtype), storage(buffer.dtype)

    def run(env: Env) -> None:
        sizes = [max(s(env), 0) for s in shape]
        env[slot] = np.full(full_shape(buffer, sizes), fill, kind)
        env[slot + 1] = np.zeros(sizes, bool) if watch else None

    return run


def bind_or_check(compiler: ExprCompiler, expr: Expr, what: str) -> Callable[[Env, int], None]:
    """The function that gives a new variable a value, or checks that a known expression equals
    it. A sum, difference or product with one new variable is solved for the variable."""
    if isinstance(expr, Var) and expr not in compiler.slots:
        slot = compiler.slot(expr)

        def bind(env: Env, value: int) -> None:
            env[slot] = value

        return bind
    if isinstance(expr, (Add, Sub, Mul)):
        for unknown, other in ((expr.a, expr.b), (expr.b, expr.a)):
            if _new(compiler, unknown) and not _new(compiler, other):
                return _solved(compiler, expr, unknown, other, what)
    known = compiler.expr(expr)

    def check(env: Env, value: int) -> None:
        wanted = known(env)
        if wanted != value:
            raise InterpretError(f"{what} is {value}, declared as {show_expr(expr)} = {wanted}")

    return check


def _new(compiler: ExprCompiler, expr: Expr) -> bool:
    return any(v not in compiler.slots for v in free_vars(expr))


def _solved(
    compiler: ExprCompiler, expr: Add | Sub | Mul, unknown: Expr, other: Expr, what: str
) -> Callable[[Env, int], None]:
    """Give the one new variable of `unknown` the value for which `expr` is the given number."""
    known, rest = compiler.expr(other), bind_or_check(compiler, unknown, what)

    def solve(env: Env, value: int) -> None:
        k = known(env)
        if isinstance(expr, Mul):
            if k == 0 or value % k:
                raise InterpretError(f"{what} is {value}, declared as {show_expr(expr)}")
            rest(env, value // k)
        elif isinstance(expr, Add):
            rest(env, value - k)
        else:
            rest(env, value + k if unknown is expr.a else k - value)

    return solve


def layout_binders(
    compiler: ExprCompiler, buffer: Buffer, *, offset_known: bool
) -> Callable[[Env, Any, int], None]:
    """The function that binds the declared strides and offset of a buffer to an array's, or checks
    that they are equal."""
    strides = [
        bind_or_check(compiler, s, f"stride {i} of {buffer.name}")
        for i, s in enumerate(buffer.strides)
    ]
    offset = None
    new = isinstance(buffer.elem_offset, Var) and buffer.elem_offset not in compiler.slots
    if buffer.elem_offset is not None and (offset_known or new):
        offset = bind_or_check(compiler, buffer.elem_offset, f"elem_offset of {buffer.name}")

    def run(env: Env, array: Any, start: int) -> None:
        for i, rule in enumerate(strides):
            if array.shape[i] > 1 or isinstance(buffer.strides[i], Var):
                rule(env, array.strides[i] // array.dtype.itemsize)
        if offset is not None:
            offset(env, start)

    return run


def match_view(compiler: ExprCompiler, match: MatchBufferRegion) -> Step:
    """Bind a buffer to a region of the source, sharing its memory."""
    source, buffer = match.source.buffer, match.buffer
    region = [(compiler.expr(r.min), compiler.expr(r.extent)) for r in match.source.region]
    lead = len(region) - len(buffer.shape)
    if lead < 0:
        raise InterpretError(f"{buffer.name} has more dimensions than {show_region(match.source)}")
    shape = [
        bind_or_check(compiler, s, f"extent {i} of {buffer.name}")
        for i, s in enumerate(buffer.shape)
    ]
    layout = layout_binders(compiler, buffer, offset_known=False)
    from_slot, slot = compiler.slot(source), compiler.slot(buffer)
    compiler.fences.made(buffer)

    def run(env: Env) -> None:
        array, written = env[from_slot], env[from_slot + 1]
        if array is None:
            raise InterpretError(f"buffer {source.name} has no memory where it is matched")
        box: list[Any] = []
        start = 0
        for i, (low, extent) in enumerate(region):
            first, size = low(env), extent(env)
            if first < 0 or size < 0 or first + size > array.shape[i]:
                raise InterpretError(
                    f"{buffer.name} matches {show_region(match.source)}: [{first}, {first + size})"
                    f" is outside dimension {i} of shape {array.shape}"
                )
            if i < lead and size != 1:
                raise InterpretError(f"{buffer.name} drops a dimension of extent {size}")
            box.append(first if i < lead else slice(first, first + size))
            start += first * (array.strides[i] // array.dtype.itemsize)
        where = (*box, ...)  # with the ellipsis, NumPy gives a view even without dimensions
        view = array[where]
        for i, rule in enumerate(shape):
            rule(env, view.shape[i])
        layout(env, view, start)
        env[slot] = view
        env[slot + 1] = None if written is None else written[where]

    return run


def declare_view(compiler: ExprCompiler, buffer: Buffer, source: Buffer) -> Step:
    """Bind a buffer to all of the source's memory, with its own type, shape and strides."""
    shape = [compiler.expr(s) for s in buffer.shape]
    strides = [compiler.expr(s) for s in buffer.row_major_strides()]
    offset = None if buffer.elem_offset is None else compiler.expr(buffer.elem_offset)
    from_slot, slot = compiler.slot(source), compiler.slot(buffer)
    compiler.fences.made(buffer)
    kind = storage(buffer.dtype)

    def run(env: Env) -> None:
        array = env[from_slot]
        if array is None or not array.flags.c_contiguous:
            raise InterpretError(f"{buffer.name} views {source.name}, which is not contiguous")
        lanes = buffer.dtype.lanes
        sizes = full_shape(buffer, [s(env) for s in shape])
        steps = [s(env) * lanes for s in strides] + ([1] if lanes > 1 else [])
        start = 0 if offset is None else offset(env) * lanes
        flat = array.reshape(-1).view(kind)
        env[slot] = strided(flat, sizes, steps, start, buffer.name)
        written = env[from_slot + 1]
        same = written is not None and flat.size == written.size and lanes == 1
        env[slot + 1] = (
            strided(written.reshape(-1), sizes, steps, start, buffer.name) if same else None
        )

    return run


def strided(flat: Any, sizes: Sequence[int], steps: Sequence[int], start: int, name: str) -> Any:
    """A strided view of a flat array that stays within it."""
    last = start + sum((n - 1) * s for n, s in zip(sizes, steps, strict=True))
    if math.prod(sizes) > 0 and not (start >= 0 and last < flat.size):
        raise InterpretError(f"{name} reaches element {last} of memory that has {flat.size}")
    if math.prod(sizes) == 0:
        return np.empty(tuple(sizes), flat.dtype)
    size = flat.dtype.itemsize
    raw = flat[start:].view(f"V{size}")  # as_strided does not know float8_e5m2 by its description
    found = np.lib.stride_tricks.as_strided(raw, tuple(sizes), [s * size for s in steps])
    return found.view(flat.dtype)
