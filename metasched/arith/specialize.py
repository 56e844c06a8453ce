"""specialize: a function with numbers for some of its variables, as `PrimFunc.specialize`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral

from metasched.arith.analyzer import Analyzer
from metasched.errors import MetaschedError, brief
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.func import LAYOUT_FREE, PrimFunc
from metasched.ir.stmt import Allocate, Block, DeclBuffer, Stmt
from metasched.ir.visit import (
    free_vars,
    fresh_copy,
    map_exprs,
    substitute,
    substitute_buffers,
    walk_stmts,
)

Values = Mapping[Var, Expr]


def specialize(func: PrimFunc, values: Mapping[Var | str, int]) -> PrimFunc:
    """`func` with numbers for variables of its shapes, or for its scalar parameters.

    `matmul.specialize({"n": 512, "m": 256})` has constant shapes, so all of the search space
    applies. A scalar parameter with a number is no parameter any more.

    Args:
        values: the number of each variable, by the variable or by its name.

    Raises MetaschedError where `func` has no such variable, or its type does not hold the number.
    """
    numbers = _numbers(func, values)
    if not numbers:
        return func
    made = with_constants(func, numbers)
    kept = [n for n, param in enumerate(func.params) if param not in numbers]
    made = PrimFunc(tuple(made.params[n] for n in kept), made.body, made.attrs, made.ret_type)
    marked = func.attrs.get(LAYOUT_FREE)
    return made if marked is None else made.with_attr(LAYOUT_FREE, list(map(kept.index, marked)))


def with_constants(func: PrimFunc, numbers: Values) -> PrimFunc:
    """A copy of a function with constants for variables; its parameters stay."""
    new = {param: _sized(param, numbers) for param in func.params if isinstance(param, Buffer)}
    body = _body(func.body, numbers, new)
    params = tuple(new[p] if isinstance(p, Buffer) else p for p in func.params)
    return PrimFunc(params, body, func.attrs, func.ret_type)


def _numbers(func: PrimFunc, values: Mapping[Var | str, int]) -> dict[Var, Expr]:
    """The constant of each variable."""
    known = {p for p in func.params if isinstance(p, Var) and not p.dtype.is_handle}
    known.update(v for buffer in func.buffers for e in _exprs(buffer) for v in free_vars(e))
    if not isinstance(values, Mapping):
        raise MetaschedError(
            f'specialize takes numbers by variable or name, {{"n": 512}}, not {brief(values)}'
        )
    numbers: dict[Var, Expr] = {}
    for key, value in values.items():
        found = [v for v in known if v is key or v.name == key]
        if len(found) != 1:
            names = ", ".join(sorted(v.name for v in known)) or "none"
            raise MetaschedError(
                f"{brief(key)} is no variable of the function's shapes and no scalar parameter; "
                f"there are: {names}"
            )
        (var,) = found
        if not isinstance(value, Integral) or not var.dtype.is_int:
            raise MetaschedError(
                f"{var.name} ({var.dtype}) is specialized to {brief(value)}: only integers are"
            )
        low, high = var.dtype.range
        if not low <= value <= high:
            raise MetaschedError(f"{var.name} is {value}, which {var.dtype} does not hold")
        numbers[var] = IntImm(var.dtype, int(value))
    return numbers


def _body(body: Stmt, numbers: Values, new: dict[Buffer, Buffer]) -> Stmt:
    """A copy of the body with constants for variables, and with buffers of constant shapes."""
    analyzer = Analyzer()

    def constant(expr: Expr) -> Expr:
        if free_vars(expr).isdisjoint(numbers):
            return expr
        return analyzer.simplify(substitute(expr, numbers))

    for node in walk_stmts(body):
        if isinstance(node, Block):
            inside = (*node.alloc_buffers, *(m.buffer for m in node.match_buffers))
        elif isinstance(node, (Allocate, DeclBuffer)):
            inside = (node.buffer,)
        else:
            continue
        new.update((buffer, _sized(buffer, numbers)) for buffer in inside)
    return substitute_buffers(fresh_copy(map_exprs(body, constant)), new)


def _sized(buffer: Buffer, numbers: Values) -> Buffer:
    """A new buffer with constants for variables in its shape, strides and offset."""
    simplify = Analyzer().simplify

    def constant(expr: Expr) -> Expr:
        return simplify(substitute(expr, numbers))

    offset, shape = buffer.elem_offset, tuple(map(constant, buffer.shape))
    if any((as_int(extent) or 0) < 0 for extent in shape):
        given = ", ".join(f"{v.name} = {show_expr(e)}" for v, e in numbers.items())
        raise MetaschedError(
            f"with {given} the shape of {buffer.name} is ({', '.join(map(show_expr, shape))}); "
            "extents start at 0"
        )
    return replace(
        buffer,
        shape=shape,
        strides=tuple(map(constant, buffer.strides)),
        elem_offset=None if offset is None else constant(offset),
        data=Var(buffer.data.name, buffer.data.dtype),
    )


def _exprs(buffer: Buffer) -> tuple[Expr, ...]:
    """The expressions of a buffer's shape, strides and offset."""
    offset = () if buffer.elem_offset is None else (buffer.elem_offset,)
    return (*buffer.shape, *buffer.strides, *offset)


PrimFunc.specialize = specialize  # type: ignore[assignment]
