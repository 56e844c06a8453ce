"""Analyzer: facts about variables, and what follows from them: simplify, prove, bounds.

Integer arithmetic is done on linear forms (`arith.linear`), never by rewriting trees. Arithmetic
of the index types int32 and int64 is assumed not to overflow. Narrower and unsigned integers count
as unbounded integers only if their bounds prove that nothing wraps. In floating-point expressions
only the integers inside are simplified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from metasched.arith import atoms, conditions, modular, prove, rules
from metasched.arith.affine import terms
from metasched.arith.bounds import EVERYTHING, INF, Bounds, Interval, is_index, of_type
from metasched.arith.linear import Linear, emit, factors, multiply
from metasched.arith.modular import ANY, Modular
from metasched.ir.buffer import Range
from metasched.ir.dtype import INT32, INT64, wrap
from metasched.ir.expr import TRUE, Expr, FloorDiv, FloorMod, IntImm, Max, Min, Mul, Var, as_expr
from metasched.ir.intern import tree_size
from metasched.ir.visit import free_vars

Known: TypeAlias = "Range | tuple[int | None, int | None] | Expr | int"

Memos: TypeAlias = tuple[
    dict[Expr, Linear], dict[Expr, Interval], dict[Expr, Modular], dict[Expr, Expr]
]
_PRODUCT = 64  # the most terms of a product that is written as a sum
_DEGREE = 16  # the most factors of a term of such a product

_SIMPLIFIED: dict[tuple[object, ...], Expr] = {}
_LIMIT = 1 << 17


class Analyzer:
    """Facts about variables, and what follows from them.

    Args:
        ranges: for each variable a Range, or a pair (lowest, highest) of integers or None for
            unbounded, or an expression that the variable equals.
        keep_units: keep variables that have a single value, instead of writing the value.
    """

    __slots__ = (
        "_aside", "_bounds", "_linear", "_modular", "_simple", "facts", "has_facts", "keep_units",
        "moduli", "proving", "ranges", "symbolic", "true", "values",
    )  # fmt: skip

    def __init__(
        self, ranges: Mapping[Var, Known] | None = None, *, keep_units: bool = False
    ) -> None:
        self.ranges: dict[Expr, Interval] = {}
        self.symbolic: dict[Expr, tuple[Linear, Linear]] = {}  # least and greatest value
        self.moduli: dict[Expr, Modular] = {}
        self.values: dict[Expr, Linear] = {}
        self.facts: list[Linear] = []  # each is >= 0
        self.true: dict[Expr, bool] = {}  # conditions known to hold (or not)
        self.has_facts = False
        self.keep_units = keep_units
        self._forget()
        if ranges:
            for var, known in ranges.items():
                self._learn(var, known)

    def _forget(self) -> None:
        self._linear: dict[Expr, Linear] = {}
        self._bounds: dict[Expr, Interval] = {}
        self._modular: dict[Expr, Modular] = {}
        self._simple: dict[Expr, Expr] = {}
        self._aside: Memos = ({}, {}, {}, {})
        self.proving = False

    @contextmanager
    def aside(self) -> Iterator[None]:
        """The context of a proof from facts.

        Such a proof may use fewer facts, so its results are weaker and are cached separately.
        """
        kept = self._linear, self._bounds, self._modular, self._simple
        self._linear, self._bounds, self._modular, self._simple = self._aside
        self.proving = True
        try:
            yield
        finally:
            self._linear, self._bounds, self._modular, self._simple = kept
            self.proving = False

    # ---- what is known -------------------------------------------------------------------

    def bind(self, var: Var, known: Known) -> None:
        """Define `var` by a Range, a pair (lowest, highest), or an expression that `var` equals."""
        self._learn(var, known)
        self._forget()

    def _learn(self, var: Var, known: Known) -> None:
        if isinstance(known, Range):
            low, size = known.min, known.extent
            if type(low) is IntImm and type(size) is IntImm:
                first = low.value
                self.ranges[var] = (first, first + max(size.value, 1) - 1)
            else:
                self._learn_symbolic(var, low, size)
        elif isinstance(known, tuple):
            lo, hi = known
            self.ranges[var] = (-INF if lo is None else lo, INF if hi is None else hi)
        else:
            value = as_expr(known, var.dtype)
            self.values[var] = self.linear(value)
            self.has_facts = True
            self._forget()

    def _learn_symbolic(self, var: Var, low: Expr, size: Expr) -> None:
        first, extent = self.linear(low), self.linear(size)
        last = first.plus(extent).shifted(-1)
        below, above = self.linear_bounds(first), self.linear_bounds(last)
        self.ranges[var] = (below[0], max(above[1], below[0]))
        self.symbolic[var] = (first, last)
        if extent.terms:
            prove.learn(self, extent.shifted(-1))  # the variable exists: its range is not empty
        self._forget()

    def copy(self) -> Analyzer:
        """An independent analyzer with the same knowledge."""
        new = Analyzer(keep_units=self.keep_units)
        new.ranges = dict(self.ranges)
        new.symbolic = dict(self.symbolic)
        new.moduli = dict(self.moduli)
        new.values = dict(self.values)
        new.facts = list(self.facts)
        new.true = dict(self.true)
        new.has_facts = self.has_facts
        return new

    def assume(self, condition: Expr) -> Analyzer:
        """A new analyzer that also knows `condition` to hold; this one is unchanged."""
        new = self.copy()
        if condition is not TRUE:
            conditions.learn(new, condition)
        return new

    # ---- questions -----------------------------------------------------------------------

    def simplify(self, expr: Expr) -> Expr:
        """An expression in canonical form that equals `expr` for all values in the ranges."""
        if type(expr) is IntImm:
            return expr
        found = self._simple.get(expr)
        if found is not None:
            return found
        if self.has_facts or self.symbolic:
            return self.rewrite(expr)
        ranges = self.ranges
        key = (expr, self.keep_units, *[ranges.get(v) for v in free_vars(expr)])
        found = _SIMPLIFIED.get(key)
        if found is None:
            found = self.rewrite(expr)
            if len(_SIMPLIFIED) >= _LIMIT:
                _SIMPLIFIED.clear()
            _SIMPLIFIED[key] = found
        self._simple[expr] = found
        return found

    def prove(self, condition: Expr) -> bool:
        """Whether `condition` is proved to hold; False means only that there is no proof."""
        return self.simplify(condition) is TRUE

    def equal(self, a: Expr, b: Expr) -> bool:
        """Whether two expressions are certainly equal (integers; others by form)."""
        if a is b:
            return True
        if not (a.dtype.is_int and b.dtype.is_int):
            return self.simplify(a) is self.simplify(b)
        x, y = self.exact(a), self.exact(b)
        if x is None or y is None:
            return self.simplify(a) is self.simplify(b)
        return self.is_zero(x.plus(y, -1))

    def is_zero(self, value: Linear) -> bool:
        """Whether a linear form is certainly zero."""
        if not value.terms:
            return value.const == 0
        value = self.normal(value, INT64)
        if not value.terms:
            return value.const == 0
        return self.proves_nonnegative(value) and self.proves_nonnegative(value.scaled(-1))

    def bounds(self, expr: Expr) -> Bounds:
        """The least and greatest integer that `expr` can be, None where unbounded."""
        return Bounds.of(self.interval(expr))

    def modular(self, expr: Expr) -> Modular:
        """(coeff, base) such that `expr` is coeff * k + base for some integer k."""
        value = self.exact(expr)
        return ANY if value is None else self.linear_modular(value)

    # ---- linear forms --------------------------------------------------------------------

    def interval(self, expr: Expr) -> Interval:
        """`bounds` as a pair with infinities."""
        if not expr.dtype.is_int or expr.dtype.lanes != 1:
            return of_type(expr.dtype) if expr.dtype.lanes == 1 else EVERYTHING
        value = self.exact(expr)
        return of_type(expr.dtype) if value is None else self.linear_bounds(value)

    def exact(self, expr: Expr) -> Linear | None:
        """The linear form of an integer whose value cannot have wrapped, else None."""
        dtype = expr.dtype
        if not dtype.is_int or dtype.lanes != 1:
            return None
        value = self.linear(expr)
        if is_index(dtype):
            return value
        lo, hi = self.linear_bounds(value)
        low, high = dtype.range
        return value if low <= lo and hi <= high else None

    def linear(self, expr: Expr) -> Linear:
        """The canonical sum of a scalar integer (modulo 2**bits for types that wrap)."""
        found = self._linear.get(expr)
        if found is None:
            try:
                found = self._sum(expr)
            except rules.Unchanged:
                found = Linear({expr: 1}, 0)
            self._linear[expr] = found
        return found

    def _sum(self, expr: Expr) -> Linear:
        result = terms(expr, atoms=self._known_sum)
        if not result.terms:
            return Linear({}, wrap(expr.dtype, result.const))
        return self.normal(result, expr.dtype) if len(result.terms) > 1 else result

    def _known_sum(self, atom: Expr) -> Linear | None:
        """The sum that an atom equals by the known facts, None for a variable without facts."""
        found = self._linear.get(atom)
        if found is not None:
            return found
        kind = type(atom)
        if kind is Var:
            found = self.values.get(atom)
            if found is None:
                pair = self.ranges.get(atom)
                if pair is None or pair[0] != pair[1] or self.keep_units:
                    return None
                found = Linear({}, int(pair[0]))
            return found
        if kind is Mul:
            found = self._product(atom)  # type: ignore[arg-type]
        else:
            found = atoms.linear_of(self, atom)
        self._linear[atom] = found
        return found

    def _product(self, atom: Mul) -> Linear:
        """The sum that a product equals; a product that would be a long sum is an atom."""
        a, b = self.linear(atom.a), self.linear(atom.b)
        if tree_size(atom) > _DEGREE:
            degree = sum(max([0, *map(len, map(factors, side.terms))]) for side in (a, b))
            if len(a.terms) * len(b.terms) > _PRODUCT or degree > _DEGREE:
                raise rules.Unchanged
        return multiply(a, b)

    def normal(self, value: Linear, dtype: object) -> Linear:
        """A sum in which the quotients, remainders and minima of equal values are joined."""
        value = self.merged(value)
        if len(value.terms) < 2:
            return value
        if dtype is INT32 or dtype is INT64:
            for atom in value.terms:
                if type(atom) is Min or type(atom) is Max:
                    return rules.push_extremum(self, value, atom.dtype)
        return value

    def merged(self, value: Linear) -> Linear:
        """A sum in which the quotients and remainders of equal values are joined."""
        if len(value.terms) > 1:
            for atom in value.terms:
                kind = type(atom)
                if kind is FloorDiv or kind is FloorMod:
                    return rules.merge_parts(self, value)
        return value

    def linear_bounds(self, value: Linear) -> Interval:
        """The interval of a linear form."""
        lo: float = value.const
        hi = lo
        get = self._bounds.get
        for atom, c in value.terms.items():
            pair = get(atom)
            if pair is None:
                pair = atoms.bounds_of(self, atom)
                self._bounds[atom] = pair
            if c > 0:
                lo += c * pair[0]
                hi += c * pair[1]
            else:
                lo += c * pair[1]
                hi += c * pair[0]
        return lo, hi

    def linear_modular(self, value: Linear) -> Modular:
        """The congruence of a linear form."""
        fact = Modular(0, value.const)
        for atom, c in value.terms.items():
            known = self._modular.get(atom)
            if known is None:
                known = self._modular[atom] = atoms.modular_of(self, atom)
            fact = modular.scale_add(fact, known, c)
        return fact

    def proves_nonnegative(self, value: Linear) -> bool:
        """Whether a linear form is certainly >= 0."""
        return prove.nonnegative(self, value)

    def proves_between(self, value: Linear, end: Linear) -> bool:
        """Whether 0 <= value < end certainly holds."""
        if not prove.nonnegative(self, value):
            return False
        return prove.nonnegative(self, end.plus(value, -1).shifted(-1))

    def rewrite(self, expr: Expr) -> Expr:
        """`simplify`, without the cache that analyzers share."""
        found = self._simple.get(expr)
        if found is None:
            dtype = expr.dtype
            if dtype.lanes == 1 and dtype.is_int:
                value = self.linear(expr)
                found = emit(value, dtype)
                if found is None:
                    found = expr
            elif dtype.lanes == 1 and dtype.is_bool:
                found = conditions.simplify(self, expr)
            else:
                found = atoms.rebuild(self, expr)
            self._simple[expr] = found
        return found
