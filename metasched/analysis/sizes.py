"""Representative sizes: a number for each extent that is known at run time only.

The attribute `SIZES` of a function maps the names of its run-time extents to the numbers at which
the program is tuned. A number changes nothing that the program computes. It decides which tiles are
drawn, at which size candidates are timed, and what the cost model sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from metasched.arith.analyzer import Analyzer
from metasched.errors import MetaschedError
from metasched.ir.buffer import Buffer
from metasched.ir.expr import Expr, Var, as_expr, as_int
from metasched.ir.func import SIZES, IRModule, PrimFunc
from metasched.ir.stmt import Block, FrozenMap, Stmt
from metasched.ir.visit import free_vars, stmt_vars, substitute, substitute_buffers, walk_stmts

Values = Mapping[Var, Expr]


def run_time_extents(func: PrimFunc) -> tuple[Var, ...]:
    """The variables in the shapes and strides of a function's parameters, in order."""
    return _bound_by(func.params)


def with_sizes(func: PrimFunc, sizes: Mapping[str, int]) -> PrimFunc:
    """The function with representative sizes, by the names of its run-time extents.

    Sizes that the function has already stay where `sizes` does not name them.

    Raises MetaschedError for a name that is no run-time extent, a number below 1, or an extent
    without a number.
    """
    names = [v.name for v in run_time_extents(func)]
    known = ", ".join(names) or "none"
    if not isinstance(sizes, Mapping):
        raise MetaschedError(f"sizes are numbers by the names of extents ({known}), not {sizes!r}")
    for name, value in sizes.items():
        if name not in names:
            raise MetaschedError(f"sizes name {name!r}; the run-time extents are: {known}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise MetaschedError(
                f"the size of {name!r} is {value!r}; it must be an integer above 0"
            )
    whole = {**func.attrs.get(SIZES, {}), **sizes}
    lacking = [name for name in names if name not in whole]
    if lacking:
        raise MetaschedError(
            f"the size of {', '.join(lacking)} is missing: sizes={{{lacking[0]!r}: 1024, ...}} "
            "names a number for each extent that is known at run time only"
        )
    return func.with_attr(SIZES, {name: whole[name] for name in names}) if names else func


def sizes_of(source: PrimFunc | IRModule) -> Values:
    """The representative sizes of a program, by variables; empty without the attribute."""
    funcs = source.functions.values() if isinstance(source, IRModule) else [source]
    found: dict[Var, Expr] = {}
    for func in funcs:
        if SIZES in func.attrs:
            given = func.attrs[SIZES]
            extents = _bound_by(func.params)
            found.update({v: as_expr(given[v.name], v.dtype) for v in extents if v.name in given})
    return found


def _bound_by(params: Sequence[Buffer | Var]) -> tuple[Var, ...]:
    extents = (e for p in params if isinstance(p, Buffer) for e in (*p.shape, *p.strides))
    found = (v for e in extents for v in sorted(free_vars(e), key=lambda v: v.name))
    return tuple(dict.fromkeys(found))


def size_of(extent: Expr, sizes: Values) -> int | None:
    """An extent as a number, with representative sizes; None if it depends on other variables."""
    number = as_int(extent)
    if number is not None or not sizes:
        return number
    return as_int(_at(extent, sizes))


def at_sizes(func: PrimFunc, sizes: Values | None = None) -> PrimFunc:
    """The function for one size of each run-time extent: its representative sizes, or `sizes`."""
    values = sizes_of(func) if sizes is None else sizes
    if not values:
        return func
    blocks = (s for s in walk_stmts(func.body) if isinstance(s, Block))
    inner = [b for s in blocks for b in (*s.alloc_buffers, *(m.buffer for m in s.match_buffers))]
    buffers = {b: _buffer_at(b, values) for b in (*func.buffers, *inner)}
    changed = {old: new for old, new in buffers.items() if old is not new}
    body = substitute_buffers(_statement_at(func.body, values), changed)
    params = tuple(changed.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    attrs = FrozenMap({key: value for key, value in func.attrs.items() if key != SIZES})
    return PrimFunc(params, body, attrs, func.ret_type)


def module_at_sizes(mod: IRModule) -> IRModule:
    """The module with each function at its representative sizes."""
    if not any(SIZES in func.attrs for func in mod.functions.values()):
        return mod
    functions = {name: at_sizes(func) for name, func in mod.functions.items()}
    return IRModule(FrozenMap(functions), mod.attrs)


def _at(expr: Expr, values: Values) -> Expr:
    if free_vars(expr).isdisjoint(values):
        return expr
    return Analyzer().simplify(substitute(expr, values))


def _statement_at(stmt: Stmt, values: Values) -> Stmt:
    if stmt_vars(stmt).isdisjoint(values):
        return stmt
    stmts = [_statement_at(s, values) for s in stmt.stmts]
    return stmt.rebuild(stmts, [_at(e, values) for e in stmt.exprs])


def _buffer_at(buffer: Buffer, values: Values) -> Buffer:
    extents = (*buffer.shape, *buffer.strides)
    if buffer.elem_offset is not None:
        extents = (*extents, buffer.elem_offset)
    if all(free_vars(e).isdisjoint(values) for e in extents):
        return buffer
    offset = None if buffer.elem_offset is None else _at(buffer.elem_offset, values)
    shape, strides = (
        tuple(_at(e, values) for e in part) for part in (buffer.shape, buffer.strides)
    )
    return replace(buffer, shape=shape, strides=strides, elem_offset=offset)
