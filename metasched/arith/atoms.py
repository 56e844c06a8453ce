"""Linear form, bounds and congruence of each kind of integer expression that is no sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from metasched.arith import modular, rules
from metasched.arith.affine import atom_interval
from metasched.arith.bounds import Interval, is_index, of_type
from metasched.arith.linear import Linear, factors
from metasched.arith.modular import ANY, Modular
from metasched.ir.dtype import wrap
from metasched.ir.expr import (
    FALSE,
    TRUE,
    Arithmetic,
    Cast,
    Div,
    Expr,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Var,
    logical_not,
)
from metasched.ir.intern import tree_size
from metasched.ir.op import Call, Effect
from metasched.ir.visit import reads_memory, walk_exprs

if TYPE_CHECKING:
    from metasched.arith.analyzer import Analyzer

_DECIDED = 250
"""The most nodes, as a tree, of a choice whose sides are simplified under its condition: choices in
each other may share parts in a number of ways that is exponential in their depth."""


def linear_of(an: Analyzer, expr: Expr) -> Linear:
    """The linear form of an integer scalar that is neither constant, variable nor sum."""
    rule = _LINEAR.get(type(expr))
    return rule(an, expr) if rule is not None else Linear({rebuild(an, expr): 1}, 0)


def rebuild(an: Analyzer, expr: Expr) -> Expr:
    """The same node over simplified children; deep floating-point trees are walked by a stack."""
    memo: dict[Expr, Expr] = {}
    stack = [expr]
    while stack:
        node = stack[-1]
        missing = []
        for child in node.children:
            if child not in memo:
                if child.dtype.lanes == 1 and (child.dtype.is_int or child.dtype.is_bool):
                    memo[child] = an.rewrite(child)
                else:
                    missing.append(child)
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        if node not in memo:
            memo[node] = _rebuilt(an, node, memo)
    return memo[expr]


def _rebuilt(an: Analyzer, node: Expr, memo: dict[Expr, Expr]) -> Expr:
    old = node.children
    new = tuple([memo[c] for c in old])
    if new and (type(node) is Select or _is_choice(node)) and new[0].dtype.is_bool:
        if new[0] is TRUE:
            return new[1]
        if new[0] is FALSE:
            return new[2]
        if tree_size(node) > _DECIDED:
            return node if new == old else node.rebuild(new)
        then = an.assume(new[0]).rewrite(old[1])
        orelse = an.assume(logical_not(new[0])).rewrite(old[2])
        new = (new[0], then, orelse)
        if then is orelse:
            return then
    return node if new == old else node.rebuild(new)


def _is_choice(node: Expr) -> bool:
    return type(node) is Call and node.op.name == "if_then_else"


# ---- linear forms ------------------------------------------------------------------------


def _floordiv(an: Analyzer, e: FloorDiv) -> Linear:
    return _divide(an, e, 0)


def _floormod(an: Analyzer, e: FloorMod) -> Linear:
    return _divide(an, e, 1)


def _divide(an: Analyzer, e: FloorDiv | FloorMod, want: int) -> Linear:
    x, d = an.exact(e.a), an.exact(e.b)
    if may_wrap(an, e.a):
        return Linear({e: 1}, 0)
    if x is None or d is None:
        return Linear({type(e)(an.rewrite(e.a), an.rewrite(e.b)): 1}, 0)
    if not is_index(e.dtype):
        return _divide_narrow(an, e, x, d, want)
    if not d.terms:
        c = d.const
        if c == 0:
            return Linear({type(e)(an.rewrite(e.a), an.rewrite(e.b)): 1}, 0)
        if c < 0:  # x // -d -> (-x) // d;  x % -d -> -((-x) % d)
            x = x.scaled(-1)
        if want == 0:
            return rules.floordiv(an, x, abs(c), e.dtype)
        result = rules.floormod(an, x, abs(c), e.dtype)
        return result if c > 0 else result.scaled(-1)
    q, r, done = rules.symbolic_divmod(an, x, d, e.dtype)
    if done:
        return (q, r)[want]
    divisor = rules.write(d, e.dtype)
    atom = Linear({type(e)(rules.write(r, e.dtype), divisor): 1}, 0)
    return atom.plus(q) if want == 0 else atom


def may_wrap(an: Analyzer, index: Expr) -> bool:
    """Whether a sum or product of elements of memory in an index may leave its type, as the
    dividend of a hash may: x[i] * 31 % 97."""

    def leaves(part: Expr) -> bool:
        low, high = an.linear_bounds(an.linear(part))
        return low < part.dtype.range[0] or part.dtype.range[1] < high

    return reads_memory(index) and any(
        isinstance(part, Arithmetic)
        and is_index(part.dtype)
        and reads_memory(part)
        and leaves(part)
        for part in walk_exprs(index)
    )


def _divide_narrow(an: Analyzer, e: FloorDiv | FloorMod, x: Linear, d: Linear, want: int) -> Linear:
    """Divide in a type that wraps; only rules that need no new intermediate value apply."""
    if not d.terms and d.const > 0:
        lo, hi = an.linear_bounds(x)
        if lo // d.const == hi // d.const:
            k = int(lo // d.const)
            return Linear({}, k) if want == 0 else x.shifted(-k * d.const)
        if all(c % d.const == 0 for c in (*x.terms.values(), x.const)):
            if want:
                return Linear({}, 0)
            terms = {a: c // d.const for a, c in x.terms.items()}
            return Linear(terms, x.const // d.const)
    return Linear({type(e)(an.rewrite(e.a), an.rewrite(e.b)): 1}, 0)


def _truncated(an: Analyzer, e: Div | Mod) -> Linear:
    # truncating division equals floor division if x >= 0 and d > 0
    if an.interval(e.a)[0] >= 0 and an.interval(e.b)[0] > 0:
        return an.linear((FloorDiv if type(e) is Div else FloorMod)(e.a, e.b))
    a, b = an.rewrite(e.a), an.rewrite(e.b)
    if type(b) is IntImm and b.value == 1:
        return an.linear(a) if type(e) is Div else Linear({}, 0)
    if type(a) is IntImm and type(b) is IntImm and b.value != 0:
        quotient = abs(a.value) // abs(b.value) * (1 if (a.value < 0) == (b.value < 0) else -1)
        if quotient <= e.dtype.range[1]:  # the smallest number has no opposite
            return Linear({}, quotient if type(e) is Div else a.value - quotient * b.value)
    return Linear({type(e)(a, b): 1}, 0)


def _extremum(an: Analyzer, e: Min | Max) -> Linear:
    a, b = an.exact(e.a), an.exact(e.b)
    if a is None or b is None:
        left, right = an.rewrite(e.a), an.rewrite(e.b)
        return an.linear(left) if left is right else Linear({type(e)(left, right): 1}, 0)
    return rules.extremum(an, type(e), a, b, e.dtype)


def _cast(an: Analyzer, e: Cast) -> Linear:
    source, to = e.value.dtype, e.dtype
    if not source.is_int:
        return Linear({Cast(to, an.rewrite(e.value)): 1}, 0)
    # narrowing is a ring homomorphism; widening is a homomorphism if the value did not wrap
    if to.bits <= source.bits:
        value: Linear | None = an.linear(e.value)
    else:
        value = an.exact(e.value)
        if value is not None and to.kind == "uint" and an.linear_bounds(value)[0] < 0:
            value = None
    if value is not None and not value.terms:
        return Linear({}, wrap(to, value.const))
    if value is not None and is_index(to) and not is_index(source):
        lo, hi = an.linear_bounds(value)
        if not (to.range[0] <= lo and hi <= to.range[1]):  # the cast wraps, and an index does not
            value = None
    if value is None:
        return Linear({Cast(to, an.rewrite(e.value)): 1}, 0)
    result = Linear({}, value.const)
    for atom, c in value.terms.items():
        result = result.plus(_cast_atom(an, atom, e), c)
    return result


def _cast_atom(an: Analyzer, atom: Expr, e: Cast) -> Linear:
    """One atom converted. A cast back from a cast that kept the value gives the original value."""
    if type(atom) is Cast and atom.value.dtype is e.dtype:
        inner = an.exact(atom.value)
        if inner is not None:
            lo, hi = an.linear_bounds(inner)
            low, high = atom.dtype.range
            if low <= lo and hi <= high:
                return inner
    if type(atom) is Mul and (is_index(atom.dtype) or e.dtype.bits <= atom.dtype.bits):
        parts = [Cast(e.dtype, f) for f in factors(atom)]
        whole: Expr = parts[0]
        for part in parts[1:]:
            whole = Mul(whole, part)
        return Linear({whole: 1}, 0)
    return Linear({Cast(e.dtype, atom): 1}, 0)


def _choice(an: Analyzer, e: Expr) -> Linear:
    chosen = rebuild(an, e)
    if type(chosen) is type(e):
        return Linear({chosen: 1}, 0)
    return an.linear(chosen)


def _call(an: Analyzer, e: Call) -> Linear:
    if e.op.effect > Effect.READ:
        raise rules.Unchanged  # the call has effects: two equal calls must not become one
    if e.op.name == "likely":
        return an.linear(e.args[0])
    if e.op.name in ("shift_left", "shift_right") and is_index(e.dtype):
        by = an.interval(e.args[1])
        if by[0] == by[1] and 0 <= by[0] < e.dtype.bits:
            value = an.linear(e.args[0])
            if e.op.name == "shift_left":
                return value.scaled(1 << int(by[0]))
            return rules.floordiv(an, value, 1 << int(by[0]), e.dtype)
    return _choice(an, e)


def _let(an: Analyzer, e: Let) -> Linear:
    if not e.value.dtype.is_int or not is_index(e.value.dtype):
        return Linear({rebuild(an, e): 1}, 0)
    inner = an.copy()
    inner.bind(e.var, e.value)
    return inner.linear(e.body)


_LINEAR: dict[type[Expr], Callable[..., Linear]] = {
    FloorDiv: _floordiv,
    FloorMod: _floormod,
    Div: _truncated,
    Mod: _truncated,
    Min: _extremum,
    Max: _extremum,
    Cast: _cast,
    Select: _choice,
    Call: _call,
    Let: _let,
}


# ---- bounds ------------------------------------------------------------------------------


def bounds_of(an: Analyzer, atom: Expr) -> Interval:
    """The interval of an atom (or of any integer scalar)."""
    pair = _plain_bounds(an, atom)
    known = an.ranges.get(atom)
    if known is not None:
        pair = max(pair[0], known[0]), min(pair[1], known[1])
        if pair[0] > pair[1]:
            return known
    return pair


def _plain_bounds(an: Analyzer, atom: Expr) -> Interval:
    found = None if type(atom) is Var else atom_interval(atom, an.interval)
    if found is None and isinstance(atom, Cast):
        source = atom.value.dtype
        found = an.interval(atom.value) if source.is_int or source.is_bool else None
        low, high = atom.dtype.range
        if found and not is_index(source) and not (low <= found[0] and found[1] <= high):
            found = None
    return of_type(atom.dtype) if found is None else _within(atom, found)


def _within(atom: Expr, pair: Interval) -> Interval:
    """The interval of a value that would wrap outside its type's range."""
    if is_index(atom.dtype):
        return pair
    low, high = of_type(atom.dtype)
    return pair if low <= pair[0] and pair[1] <= high else (low, high)


# ---- congruences -------------------------------------------------------------------------


def modular_of(an: Analyzer, atom: Expr) -> Modular:
    """The congruence of an atom."""
    known = an.moduli.get(atom)
    if known is not None:
        return known
    kind = type(atom)
    if kind is Var or not is_index(atom.dtype):
        return ANY
    if kind is Mul:
        fact = Modular(0, 1)
        for factor in factors(atom):
            fact = modular.times(fact, modular_of(an, factor))
        return fact
    if isinstance(atom, (FloorDiv, FloorMod)) and type(atom.b) is IntImm and atom.b.value > 0:
        rule = modular.floordiv if kind is FloorDiv else modular.floormod
        return rule(an.modular(atom.a), atom.b.value)
    if isinstance(atom, (Min, Max, Select)):
        return modular.either(an.modular(atom.a), an.modular(atom.b))
    if isinstance(atom, Call) and atom.op.name == "if_then_else":
        return modular.either(an.modular(atom.args[1]), an.modular(atom.args[2]))
    return ANY
