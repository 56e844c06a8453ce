"""Motion: how an index moves when a loop runs, as (step, width) for each loop.

`step` is by how much the index changes from one iteration to the next, `width` the distance
between the smallest and the largest value over the loop with the others at rest. Linear indices
are exact; quotients and remainders, which fused loops bring, are right when one loop reaches them
and a good guess otherwise: this feeds a cost model, never a proof.
"""

from __future__ import annotations

from math import gcd

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import Add, Cast, Expr, FloorDiv, FloorMod, IntImm, Mul, Sub, Var
from metasched.ir.op import Broadcast, Call, Ramp

# Loop position -> (step, width); loops that do not move the index are absent.
Motion = dict[int, tuple[int, int]]

# The position that stands for the lanes of a vector index.
LANES = -1

STILL: Motion = {}


def motion_of(expr: Expr, env: dict[Var, Motion]) -> Motion:
    """The motion of an integer expression, given that of the variables in it.

    Expressions that cannot be followed (loads, calls, selections) move with everything they
    mention, by the width of what they mention.
    """
    kind = type(expr)
    if kind is Var:
        return env.get(expr, STILL)  # type: ignore[call-overload, no-any-return]
    if kind is IntImm:
        return STILL
    if kind is Add or kind is Sub:
        a, b = motion_of(expr.a, env), motion_of(expr.b, env)  # type: ignore[attr-defined]
        return _plus(a, b, 1 if kind is Add else -1)
    if kind is Mul:
        a, b = expr.a, expr.b  # type: ignore[attr-defined]
        if type(b) is IntImm:
            return _times(motion_of(a, env), b.value)
        if type(a) is IntImm:
            return _times(motion_of(b, env), a.value)
    elif kind is FloorDiv or kind is FloorMod:
        a, b = expr.a, expr.b  # type: ignore[attr-defined]
        if type(b) is IntImm and b.value > 0:
            moved = motion_of(a, env)
            return _quotient(moved, b.value) if kind is FloorDiv else _remainder(moved, b.value)
    elif kind is Cast:
        return motion_of(expr.value, env)  # type: ignore[attr-defined]
    elif kind is Ramp:
        return _ramp(expr, env)  # type: ignore[arg-type]
    elif kind is Broadcast:
        return motion_of(expr.value, env)  # type: ignore[attr-defined]
    return _anything(expr, env)


def _plus(a: Motion, b: Motion, sign: int) -> Motion:
    if not b:
        return a
    out = dict(a)
    for loop, (step, width) in b.items():
        old = out.get(loop)
        if old is None:
            out[loop] = (sign * step, width)
        else:
            signed = (old[1] if old[0] >= 0 else -old[1]) + sign * (width if step >= 0 else -width)
            out[loop] = (old[0] + sign * step, abs(signed))
    return out


def _times(a: Motion, factor: int) -> Motion:
    if factor == 1 or not a:
        return a
    size = abs(factor)
    return {loop: (step * factor, width * size) for loop, (step, width) in a.items()}


def _quotient(a: Motion, divisor: int) -> Motion:
    out = {}
    for loop, (step, width) in a.items():
        moved = step // divisor if step % divisor == 0 else 0
        if width >= divisor or moved:
            out[loop] = (moved, width // divisor)
    return out


def _remainder(a: Motion, divisor: int) -> Motion:
    out = {}
    for loop, (step, width) in a.items():
        if width < divisor:
            out[loop] = (step, width)
        elif not step:  # a quotient: it steps by one now and then
            out[loop] = (0, divisor - 1)
        elif step % divisor:
            out[loop] = (step % divisor, divisor - gcd(step, divisor))
    return out


def _ramp(expr: Ramp, env: dict[Var, Motion]) -> Motion:
    base = motion_of(expr.base, env)
    stride = expr.stride.value if isinstance(expr.stride, IntImm) else 1
    return _plus(base, {LANES: (stride, abs(stride) * (expr.lanes - 1))}, 1)


def _anything(expr: Expr, env: dict[Var, Motion]) -> Motion:
    out: Motion = {}
    parts = expr.indices if isinstance(expr, BufferLoad) else expr.children
    if isinstance(expr, Call) and expr.op.name == "if_then_else":
        parts = parts[1:]
    for part in parts:
        for loop, (step, width) in motion_of(part, env).items():
            old = out.get(loop, (0, 0))
            out[loop] = (step or old[0], max(width, old[1]))
    return out
