"""By how much an index changes when a loop runs: a step and a width for each loop.

`step` is the change of the index from one iteration to the next. `width` is the distance between
the smallest and the largest value over the loop, while the other loops stand still. Linear indices
are exact. Quotients and remainders, which come from fused loops, are exact if one loop moves them,
else an estimate. The result feeds a cost model, never a proof.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import gcd

from metasched.arith.affine import as_written
from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Cast, Expr, FloorDiv, FloorMod, IntImm, Max, Min, Var
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.op import Broadcast, Call, Ramp
from metasched.ir.visit import free_vars, walk_exprs

# Loop position -> (step, width); loops that do not move the index are absent.
IndexStride = dict[int, tuple[int, int]]

# The key of the lanes of a vector index.
LANES = -1

STILL: IndexStride = {}
NOWHERE: Mapping[Var, frozenset[int]] = {}


def index_stride(expr: Expr, env: dict[Var, IndexStride]) -> IndexStride:
    """How each loop moves an integer expression, given how the loops move the variables in it.

    An expression that cannot be analysed (a load, a call, a selection) moves with every loop of its
    operands, by the widths of the operands; a large expression with every loop of its variables.
    """
    kind = type(expr)
    if kind is Var:
        return env.get(expr, STILL)  # type: ignore[call-overload, no-any-return]
    if kind is IntImm:
        return STILL
    if tree_size(expr) > LARGE:
        return _any_of([part for part in walk_exprs(expr) if isinstance(part, Var)], env)
    out = STILL
    for atom, coef in as_written(expr).terms.items():
        moved = _atom(atom, env)
        if moved:
            out = _plus(out, _times(moved, abs(coef)), 1 if coef > 0 else -1)
    return out


def clamped(expr: Expr, env: dict[Var, IndexStride]) -> frozenset[int]:
    """The loops that move the parts of a minimum, a maximum or a shifted remainder in an index.
    Along these loops the values of the index are not evenly spaced: overcompute reads the last
    element again and again, and neighbours on a ring start again from the first."""
    return frozenset(loop for limit in _limits(expr) for loop in _anything(limit, env))


def value_stride(expr: Expr, env: dict[Var, IndexStride]) -> IndexStride:
    """How each loop moves a value that is bound to a variable; a float moves with every loop of its
    operands."""
    return _anything(expr, env) if expr.dtype.is_float else index_stride(expr, env)


def broken(
    expr: Expr, env: dict[Var, IndexStride], anywhere: Mapping[Var, frozenset[int]] = NOWHERE
) -> frozenset[int]:
    """The loops whose iterations, taken as lanes, lie anywhere in memory.

    They do where an index reads memory or rounds a float, and where lanes reach over the end of a
    remainder at places that other loops decide: of 14 x 14 fused elements, 16 lanes lie in two rows
    or three.

    Args:
        anywhere: the loops along which a bound variable names places anywhere.
    """
    found = set[int]()
    for variable in free_vars(expr) if anywhere else ():
        found |= anywhere.get(variable, frozenset())
    for part in _remainders(expr):
        moved, by = index_stride(part.a, env), part.b.value  # type: ignore[attr-defined]
        if sum(width for _, width in moved.values()) < by:
            continue
        for loop, (step, width) in moved.items():
            lanes = width + abs(step)
            others = [other for at, (other, _) in moved.items() if at != loop]
            whole = by % lanes == 0 and all(other % lanes == 0 for other in others)
            if not whole and any(other % by for other in others):
                found.add(loop)
    return frozenset(found).union(*(_anything(part, env) for part in scattering(expr)))


@lru_cache(maxsize=1 << 15)
def loads_in(expr: Expr) -> tuple[BufferLoad, ...]:
    """The loads in an index: the places of its lanes are apart, as those of a table's entries."""
    return tuple(part for part in walk_exprs(expr) if isinstance(part, BufferLoad))


@lru_cache(maxsize=1 << 15)
def scattering(expr: Expr) -> tuple[Expr, ...]:
    """The loads and the rounded floats in an index, which name places anywhere."""
    rounded = [x for x in walk_exprs(expr) if type(x) is Cast and x.value.dtype.is_float]
    return (*loads_in(expr), *rounded)


@lru_cache(maxsize=1 << 15)
def _remainders(expr: Expr) -> tuple[FloorMod, ...]:
    """The remainders in an expression that are not shifted."""
    return tuple(
        part
        for part in walk_exprs(expr)
        if type(part) is FloorMod and type(part.b) is IntImm and not _shifted(part)
    )


@lru_cache(maxsize=1 << 15)
def _limits(expr: Expr) -> tuple[Expr, ...]:
    """The minima, maxima and shifted remainders in an expression. A remainder without a shift comes
    from fused loops, whose lanes end where it does."""
    return tuple(
        part
        for part in walk_exprs(expr)
        if type(part) is Min or type(part) is Max or _shifted(part)
    )


def _shifted(part: Expr) -> bool:
    """Whether a part is the remainder of a sum with a constant that is no multiple of the
    divisor."""
    if type(part) is not FloorMod or type(part.b) is not IntImm:
        return False
    return as_written(part.a).const % part.b.value != 0


def _atom(atom: Expr, env: dict[Var, IndexStride]) -> IndexStride:
    kind = type(atom)
    if kind is Var:
        return env.get(atom, STILL)  # type: ignore[call-overload, no-any-return]
    if kind is FloorDiv or kind is FloorMod:
        a, b = atom.a, atom.b  # type: ignore[attr-defined]
        if type(b) is IntImm and b.value > 0:
            moved = index_stride(a, env)
            return _quotient(moved, b.value) if kind is FloorDiv else _remainder(moved, b.value)
    elif kind is Cast or kind is Broadcast:
        return index_stride(atom.value, env)  # type: ignore[attr-defined]
    elif kind is Ramp:
        return _ramp(atom, env)  # type: ignore[arg-type]
    return _anything(atom, env)


def _plus(a: IndexStride, b: IndexStride, sign: int) -> IndexStride:
    if not a and sign > 0:
        return b
    out = dict(a)
    for loop, (step, width) in b.items():
        old = out.get(loop)
        if old is None:
            out[loop] = (sign * step, width)
        else:
            signed = (old[1] if old[0] >= 0 else -old[1]) + sign * (width if step >= 0 else -width)
            out[loop] = (old[0] + sign * step, abs(signed))
    return out


def _times(a: IndexStride, factor: int) -> IndexStride:
    if factor == 1 or not a:
        return a
    size = abs(factor)
    return {loop: (step * factor, width * size) for loop, (step, width) in a.items()}


def _quotient(a: IndexStride, divisor: int) -> IndexStride:
    out = {}
    for loop, (step, width) in a.items():
        moved = step // divisor if step % divisor == 0 else 0
        if width >= divisor or moved:
            out[loop] = (moved, width // divisor)
    return out


def _remainder(a: IndexStride, divisor: int) -> IndexStride:
    out = {}
    for loop, (step, width) in a.items():
        if width < divisor:
            out[loop] = (step, width)
        elif not step:  # a quotient: it steps by one at some iterations
            out[loop] = (0, divisor - 1)
        elif step % divisor:
            out[loop] = (step % divisor, divisor - gcd(step, divisor))
    return out


def _ramp(expr: Ramp, env: dict[Var, IndexStride]) -> IndexStride:
    base = index_stride(expr.base, env)
    stride = expr.stride.value if isinstance(expr.stride, IntImm) else 1
    return _plus(base, {LANES: (stride, abs(stride) * (expr.lanes - 1))}, 1)


def _anything(expr: Expr, env: dict[Var, IndexStride]) -> IndexStride:
    parts = expr.indices if isinstance(expr, BufferLoad) else expr.children
    if isinstance(expr, Call) and expr.op.name == "if_then_else":
        parts = parts[1:]
    return _any_of(parts, env)


def _any_of(parts: Sequence[Expr], env: dict[Var, IndexStride]) -> IndexStride:
    out: IndexStride = {}
    for part in parts:
        for loop, (step, width) in index_stride(part, env).items():
            old = out.get(loop, (0, 0))
            out[loop] = (step or old[0], max(width, old[1]))
    return out
