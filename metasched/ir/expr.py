"""Expressions: interned, immutable trees whose equality is identity.

Grammar (every node has a `dtype`):

    e ::= Var(name)                         a variable, compared by identity, never by name
        | IntImm(value) | FloatImm(value) | StringImm(value)
        | Add|Sub|Mul|Div|Mod|FloorDiv|FloorMod|Min|Max (a, b)      a, b of one dtype
        | EQ|NE|LT|LE|GT|GE (a, b)          -> bool
        | And|Or (a, b) | Not(a)            bool
        | Cast(value)                       value converted to dtype
        | Select(condition, a, b)           both sides may be evaluated
        | Let(var, value, body)
        | Ramp(base, stride, lanes) | Broadcast(value, lanes) | Shuffle(vectors, indices)
        | Call(op, args) | BufferLoad(buffer, indices)      in `ir.op`, as vectors; in `ir.buffer`

Div and Mod truncate on integers as in C; FloorDiv and FloorMod are Python's // and %. Nodes are
interned over weak references: a node built twice is one object. `==` compares identities, but for
the user's code (`ir.operators`). Constants equal their numbers. Operators fold, classes do not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

from metasched.errors import TypeMismatchError, brief
from metasched.ir.dtype import BOOL, DType, promote
from metasched.ir.dtype import wrap as wrap
from metasched.ir.intern import LARGE, known, make, tree_size
from metasched.ir.operators import Numeric, Operators

ExprLike: TypeAlias = "Expr | int | float | bool"


class Expr(Operators):
    """Base of all expressions. `children` are the sub-expressions, `rebuild` replaces them."""

    __slots__ = ("_code", "_free", "_size", "dtype")
    _free: frozenset[Var] | None
    _typed: ClassVar[bool] = False  # whether the constructor takes the dtype first
    dtype: DType

    def __bool__(self) -> bool:
        raise TypeError(
            f"a {type(self).__name__} has no truth value while the program is being built; "
            "use T.And, T.Or, T.Not or T.if_then_else, or compare with `is`"
        )

    @property
    def children(self) -> tuple[Expr, ...]:
        return ()

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        """The same kind of node over other children of the same types."""
        return type(self)(*children) if children else self

    def __reduce__(self) -> tuple[Any, ...]:
        parts = tuple(getattr(self, name) for name in self.fields)
        return type(self), (self.dtype, *parts) if self._typed else parts

    def __repr__(self) -> str:
        names = self.fields if tree_size(self) <= LARGE else ()
        return f"{type(self).__name__}({', '.join(repr(getattr(self, n)) for n in names)})"

    def astype(self, dtype: DType | str) -> Expr:
        """This value converted to `dtype`; the value itself if it already has this type."""
        return cast(dtype, self)

    # fmt: off
    def __add__(self, other: ExprLike) -> Expr: return add(self, other)  # noqa: E704
    def __radd__(self, other: ExprLike) -> Expr: return add(other, self)  # noqa: E704
    def __sub__(self, other: ExprLike) -> Expr: return sub(self, other)  # noqa: E704
    def __rsub__(self, other: ExprLike) -> Expr: return sub(other, self)  # noqa: E704
    def __mul__(self, other: ExprLike) -> Expr: return mul(self, other)  # noqa: E704
    def __rmul__(self, other: ExprLike) -> Expr: return mul(other, self)  # noqa: E704
    def __floordiv__(self, other: ExprLike) -> Expr: return floordiv(self, other)  # noqa: E704
    def __rfloordiv__(self, other: ExprLike) -> Expr: return floordiv(other, self)  # noqa: E704
    def __mod__(self, other: ExprLike) -> Expr: return floormod(self, other)  # noqa: E704
    def __rmod__(self, other: ExprLike) -> Expr: return floormod(other, self)  # noqa: E704
    def __neg__(self) -> Expr: return mul(self, -1.0) if self.dtype.is_float else sub(0, self)  # noqa: E704
    def __lt__(self, other: ExprLike) -> Expr: return compare(LT, self, other)  # noqa: E704
    def __le__(self, other: ExprLike) -> Expr: return compare(LE, self, other)  # noqa: E704
    def __gt__(self, other: ExprLike) -> Expr: return compare(GT, self, other)  # noqa: E704
    def __ge__(self, other: ExprLike) -> Expr: return compare(GE, self, other)  # noqa: E704
    # fmt: on


class Var(Expr):
    """A variable. Two variables are the same only when they are one object; `name` is a hint.

    `serial` numbers the variables a schedule draws from its pool. `_role`: see `is_symbol`.
    """

    __slots__ = ("_role", "name", "serial")
    name: str
    serial: int

    def __new__(cls, name: str, dtype: DType | str = "int32", serial: int = 0) -> Var:
        self = object.__new__(cls)
        values = ("_free", None), ("dtype", DType(dtype)), ("name", name), ("serial", serial)
        for field, value in (*values, ("_role", "")):
            object.__setattr__(self, field, value)
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Var, (self.name, str(self.dtype), self.serial)

    def __repr__(self) -> str:
        return self.name


class IntImm(Numeric, Expr):
    """An integer or bool constant; `int(node)` gives its value."""

    __slots__ = ("value",)
    _typed = True
    value: int

    def __new__(cls, dtype: DType | str, value: int) -> IntImm:
        if type(value) is int and (found := known((cls, dtype, value))) is not None:
            return found  # type: ignore[no-any-return]
        dtype, value = DType(dtype), int(value)
        low, high = dtype.range
        if not low <= value <= high:
            raise TypeMismatchError(f"{brief(value)} does not fit in {dtype}")
        return make(cls, (cls, dtype, value), dtype, (value,))  # type: ignore[no-any-return]

    def __int__(self) -> int:
        return self.value

    __index__ = __int__


class FloatImm(Numeric, Expr):
    """A floating-point constant, told apart by its bits: 0.0 and -0.0 differ, NaN equals itself."""

    __slots__ = ("value",)
    _typed = True
    value: float

    def __new__(cls, dtype: DType | str, value: float) -> FloatImm:
        dtype = DType(dtype)
        if not dtype.is_float:
            raise TypeMismatchError(f"FloatImm needs a floating-point type, not {dtype}")
        if abs(value) > dtype.largest and not dtype.rounds_to_finite(value):
            words = f'infinity is T.{dtype.scalar}("inf")'
            raise TypeMismatchError(f"{value:g} does not fit in {dtype}; {words}")
        return make(cls, (cls, dtype, struct.pack("<d", value)), dtype, (float(value),))  # type: ignore[no-any-return]


class StringImm(Expr):
    """A text constant, as an argument of a Call."""

    __slots__ = ("value",)
    value: str

    def __new__(cls, value: str) -> StringImm:
        return make(cls, (cls, value), DType("handle"), (value,))  # type: ignore[no-any-return]


class BinaryOp(Expr):
    """Two operands of one type."""

    __slots__ = ("a", "b")
    a: Expr
    b: Expr

    def __new__(cls, a: Expr, b: Expr) -> Any:
        key = (cls, a, b)
        if (found := known(key)) is not None:
            return found
        if a.dtype is not b.dtype:
            raise TypeMismatchError(f"{cls.__name__}: operands are {a.dtype} and {b.dtype}")
        if a.dtype.is_bool and issubclass(cls, Arithmetic) and cls not in (Min, Max):
            what = f"{cls.__name__} of two bools; write T.int32(a) for a number, or &, | and ^"
            raise TypeMismatchError(f"{what} between conditions")
        dtype = BOOL.with_lanes(a.dtype.lanes) if issubclass(cls, Compare) else a.dtype
        return make(cls, key, dtype, (a, b))

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a, self.b)


class Arithmetic(BinaryOp):
    """Operators whose result has the operands' type: a number, for Min and Max a bool, too."""

    __slots__ = ()


class Compare(BinaryOp):
    """Comparisons; the result is bool with the operands' lanes."""

    __slots__ = ()


class Logical(BinaryOp):
    """And, Or: both operands bool."""

    __slots__ = ()

    def __new__(cls, a: Expr, b: Expr) -> Any:
        if not (a.dtype.is_bool and b.dtype.is_bool):
            raise TypeMismatchError(f"{cls.__name__} needs bool, not {a.dtype} and {b.dtype}")
        return BinaryOp.__new__(cls, a, b)


# fmt: off
class Add(Arithmetic): __slots__ = ()  # noqa: E701
class Sub(Arithmetic): __slots__ = ()  # noqa: E701
class Mul(Arithmetic): __slots__ = ()  # noqa: E701
class Div(Arithmetic): __slots__ = ()  # noqa: E701  truncates on integers
class Mod(Arithmetic): __slots__ = ()  # noqa: E701  remainder of Div: sign of the dividend
class FloorDiv(Arithmetic): __slots__ = ()  # noqa: E701
class FloorMod(Arithmetic): __slots__ = ()  # noqa: E701
class Min(Arithmetic): __slots__ = ()  # noqa: E701
class Max(Arithmetic): __slots__ = ()  # noqa: E701
class EQ(Compare): __slots__ = ()  # noqa: E701
class NE(Compare): __slots__ = ()  # noqa: E701
class LT(Compare): __slots__ = ()  # noqa: E701
class LE(Compare): __slots__ = ()  # noqa: E701
class GT(Compare): __slots__ = ()  # noqa: E701
class GE(Compare): __slots__ = ()  # noqa: E701
class And(Logical): __slots__ = ()  # noqa: E701
class Or(Logical): __slots__ = ()  # noqa: E701
# fmt: on


class Not(Expr):
    __slots__ = ("a",)
    a: Expr

    def __new__(cls, a: Expr) -> Not:
        if not a.dtype.is_bool:
            raise TypeMismatchError(f"Not needs bool, not {a.dtype}")
        return make(cls, (cls, a), a.dtype, (a,))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.a,)


class Cast(Expr):
    """`value` converted to `dtype`: float to integer saturates, integer to integer wraps."""

    __slots__ = ("value",)
    _typed = True
    value: Expr

    def __new__(cls, dtype: DType | str, value: Expr) -> Cast:
        dtype = DType(dtype)
        if dtype.lanes != value.dtype.lanes:
            raise TypeMismatchError(f"Cast from {value.dtype} to {dtype}: the lanes differ")
        return make(cls, (cls, dtype, value), dtype, (value,))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Cast(self.dtype, children[0])


class Select(Expr):
    """`a` where `condition` holds, else `b`; both are evaluated (`if_then_else` evaluates one)."""

    __slots__ = ("condition", "a", "b")
    condition: Expr
    a: Expr
    b: Expr

    def __new__(cls, condition: Expr, a: Expr, b: Expr) -> Select:
        if not condition.dtype.is_bool or a.dtype is not b.dtype:
            types = f"{condition.dtype}, {a.dtype}, {b.dtype}"
            raise TypeMismatchError(f"Select needs bool and two values of one type, not {types}")
        return make(cls, (cls, condition, a, b), a.dtype, (condition, a, b))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.condition, self.a, self.b)


class Let(Expr):
    """`body` with `var` standing for `value`."""

    __slots__ = ("var", "value", "body")
    var: Var
    value: Expr
    body: Expr

    def __new__(cls, var: Var, value: Expr, body: Expr) -> Let:
        if var.dtype is not value.dtype:
            raise TypeMismatchError(f"Let: {var.name} is {var.dtype}, its value {value.dtype}")
        return make(cls, (cls, var, value, body), body.dtype, (var, value, body))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value, self.body)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Let(self.var, children[0], children[1])


class Broadcast(Expr):
    """A scalar repeated over `lanes`."""

    __slots__ = ("value", "lanes")
    value: Expr
    lanes: int

    def __new__(cls, value: Expr, lanes: int) -> Broadcast:
        dtype = value.dtype.with_lanes(value.dtype.lanes * lanes)
        return make(cls, (cls, value, lanes), dtype, (value, lanes))  # type: ignore[no-any-return]

    @property
    def children(self) -> tuple[Expr, ...]:
        return (self.value,)

    def rebuild(self, children: Sequence[Expr]) -> Expr:
        return Broadcast(children[0], self.lanes)


def as_expr(value: ExprLike, dtype: DType | str | None = None) -> Expr:
    """`value` as an expression; a Python number takes `dtype` (int32, float32, bool if None)."""
    if isinstance(value, (Expr, str)):
        return value if isinstance(value, Expr) else StringImm(value)
    dtype = DType(type(value) if dtype is None else dtype)
    if dtype.lanes > 1:
        return Broadcast(as_expr(value, dtype.scalar), dtype.lanes)
    if isinstance(value, float) and not dtype.is_float and not value.is_integer():
        return FloatImm("float32", value)
    try:
        number = float(value) if dtype.is_float else int(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeMismatchError(f"{brief(value)} is no expression and no number") from None
    return FloatImm(dtype, number) if dtype.is_float else IntImm(dtype, int(number))


def match_types(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """Both operands in their common type. A number takes the other's, if that keeps its kind."""
    if not isinstance(a, Expr) and isinstance(b, Expr):
        return match_types(b, a)[::-1]
    a = a if isinstance(a, Expr) else as_expr(a)
    if not isinstance(b, Expr):
        own = a.dtype.is_bool and not isinstance(b, bool)
        own = own or (isinstance(b, float) and not a.dtype.is_float)
        b = as_expr(b, None if own else a.dtype)
    if a.dtype is b.dtype:
        return a, b
    common = promote(a.dtype, b.dtype)
    return cast(common, a), cast(common, b)


def cast(dtype: DType | str, value: Expr) -> Expr:
    """`value` as `dtype`; folds integer constants and no-ops, repeats a scalar over lanes."""
    dtype = DType(dtype)
    if value.dtype is dtype:
        return value
    if value.dtype.lanes == 1 < dtype.lanes:
        return Broadcast(cast(dtype.scalar, value), dtype.lanes)
    if isinstance(value, IntImm):
        if dtype.is_int:
            return IntImm(dtype, wrap(dtype, value.value))
        if dtype.is_float and abs(value.value) <= 1 << 8:
            return FloatImm(dtype, float(value.value))
    return Cast(dtype, value)


def binary(kind: type[BinaryOp], a: ExprLike, b: ExprLike) -> Expr:
    """kind(a, b) with both operands brought to their common type; nothing is folded."""
    left, right = match_types(a, b)
    return kind(left, right)  # type: ignore[no-any-return]


def add(a: ExprLike, b: ExprLike) -> Expr:
    """a + b; folds integer constants and x + 0."""
    a, b = match_types(a, b)
    if isinstance(b, IntImm):
        if isinstance(a, IntImm):
            return IntImm(a.dtype, wrap(a.dtype, a.value + b.value))
        if b.value == 0:
            return a
    elif isinstance(a, IntImm) and a.value == 0:
        return b
    return Add(a, b)  # type: ignore[no-any-return]


def sub(a: ExprLike, b: ExprLike) -> Expr:
    """a - b; folds integer constants and x - 0."""
    a, b = match_types(a, b)
    if isinstance(b, IntImm):
        if isinstance(a, IntImm):
            return IntImm(a.dtype, wrap(a.dtype, a.value - b.value))
        if b.value == 0:
            return a
    return Sub(a, b)  # type: ignore[no-any-return]


def mul(a: ExprLike, b: ExprLike) -> Expr:
    """a * b; folds integer constants, x * 1 and integer x * 0."""
    a, b = match_types(a, b)
    if isinstance(a, IntImm) and not isinstance(b, IntImm):
        return b if a.value == 1 else a if a.value == 0 else Mul(a, b)
    if isinstance(b, IntImm):
        if isinstance(a, IntImm):
            return IntImm(a.dtype, wrap(a.dtype, a.value * b.value))
        if b.value == 1:
            return a
        if b.value == 0:
            return b
    return Mul(a, b)  # type: ignore[no-any-return]


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    """a // b rounding down; folds integer constants and x // 1."""
    a, b = match_types(a, b)
    if isinstance(b, IntImm) and b.value != 0:
        if isinstance(a, IntImm):
            return IntImm(a.dtype, wrap(a.dtype, a.value // b.value))
        if b.value == 1:
            return a
    return FloorDiv(a, b)  # type: ignore[no-any-return]


def floormod(a: ExprLike, b: ExprLike) -> Expr:
    """a % b with the sign of b; folds integer constants and x % 1."""
    a, b = match_types(a, b)
    if isinstance(b, IntImm) and b.value != 0:
        if isinstance(a, IntImm):
            return IntImm(a.dtype, wrap(a.dtype, a.value % b.value))
        if b.value == 1:
            return IntImm(a.dtype, 0)
    return FloorMod(a, b)  # type: ignore[no-any-return]


_FOLD: dict[type[Compare], Callable[[int, int], bool]] = {
    EQ: int.__eq__, NE: int.__ne__, LT: int.__lt__, LE: int.__le__, GT: int.__gt__, GE: int.__ge__,
}  # fmt: skip


def compare(kind: type[Compare], a: ExprLike, b: ExprLike) -> Expr:
    """A comparison, folded when both sides are integer constants."""
    a, b = match_types(a, b)
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return TRUE if _FOLD[kind](a.value, b.value) else FALSE
    return kind(a, b)  # type: ignore[no-any-return]


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    """min(a, b); folds integer constants and equal operands."""
    return _extreme(Min, a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    """max(a, b); folds integer constants and equal operands."""
    return _extreme(Max, a, b)


def _extreme(kind: type[BinaryOp], a: ExprLike, b: ExprLike) -> Expr:
    a, b = match_types(a, b)
    if a is b:
        return a
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a if (a.value <= b.value) is (kind is Min) else b
    return kind(a, b)  # type: ignore[no-any-return]


TRUE = IntImm("bool", 1)
FALSE = IntImm("bool", 0)


def logical_and(a: Expr, b: Expr) -> Expr:
    """a and b; folds constants."""
    if a is TRUE or b is FALSE:
        return b
    if b is TRUE or a is FALSE:
        return a
    return And(a, b)  # type: ignore[no-any-return]


def logical_or(a: Expr, b: Expr) -> Expr:
    """a or b; folds constants."""
    if a is FALSE or b is TRUE:
        return b
    if b is FALSE or a is TRUE:
        return a
    return Or(a, b)  # type: ignore[no-any-return]


def logical_not(a: Expr) -> Expr:
    """not a; folds constants and double negation."""
    if isinstance(a, IntImm):
        return FALSE if a.value else TRUE
    return a.a if isinstance(a, Not) else Not(a)


def as_int(value: Any) -> int | None:
    """The value of an integer constant (or Python int), None for anything else."""
    return value.value if isinstance(value, IntImm) else value if isinstance(value, int) else None
