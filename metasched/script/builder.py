"""The expression words of the T namespace: functions that build IR, callable from any Python.

Operands are expressions or Python numbers. A number takes the type of the other operand. Python
computes operations on two numbers. If an operand is an expression, the node is built as written,
without folding. The parser handles statement words (`T.grid`, `T.block`, ...).
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

import numpy as np

from metasched.errors import ParseError, TypeMismatchError
from metasched.ir.buffer import Buffer
from metasched.ir.describe import INFIX
from metasched.ir.dtype import DType, promote
from metasched.ir.expr import (
    FALSE,
    TRUE,
    And,
    BinaryOp,
    Cast,
    Expr,
    ExprLike,
    FloatImm,
    IntImm,
    Let,
    Logical,
    Not,
    Or,
    Select,
    StringImm,
    Var,
    as_expr,
    cast,
)
from metasched.ir.op import OPS, Broadcast, Call, Ramp, Shuffle
from metasched.script.diagnostics import RefusedOperand
from metasched.script.words import (
    ALIASES,
    FUNCTIONS,
    TYPE_FIRST,
    apply_op,
    named_arguments,
    refuse_zero,
)

F = TypeVar("F", bound=Callable[..., Any])
WORDS: dict[str, Any] = {}


def word(*names: str) -> Callable[[F], F]:
    """Register a function in the T namespace under its own name or the given names."""

    def enter(fn: F) -> F:
        for name in names or (fn.__name__,):
            WORDS[name] = fn
        return fn

    return enter


class TypeWord:
    """`T.float32`: a type as annotation; `T.float32()` a variable; `T.float32(x)` a constant or
    cast."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype

    def __call__(self, value: Any = None, *_: Any, **__: Any) -> Any:
        if value is None or self.dtype.is_handle:
            return Var("v", self.dtype)
        if isinstance(value, Expr):
            return cast(self.dtype, value) if value.dtype is self.dtype else Cast(self.dtype, value)
        if isinstance(value, str) and self.dtype.is_float:
            return FloatImm(self.dtype, float(value))
        if not isinstance(value, (bool, int, float)):
            raise TypeMismatchError(f"T.{self.dtype} takes a number or an expression")
        if self.dtype.is_float:
            return FloatImm(self.dtype, value)
        if isinstance(value, float) and not value.is_integer():
            raise TypeMismatchError(f"{value} is not an integer")
        return IntImm(self.dtype, int(value))

    def __repr__(self) -> str:
        return f"T.{self.dtype}"


class Weak(NamedTuple):
    """A value of Python numbers alone that is known only when the program runs, as `0.1 if c else
    0.2` or `T.sqrt(2.0)`; like a number it takes the type of the other operand."""

    build: Callable[..., Expr]
    numbers: tuple[Any, ...]
    floating: bool = False  # no integer type is taken
    chosen: bool = False  # the value is one of the numbers


def of_elements(buffer: Buffer) -> str:
    """The hint for a buffer in the place of a number."""
    slices = ", ".join(":" for _ in buffer.shape)
    return f"give an index for each dimension, or write {buffer.name}[{slices}] for all elements"


def typed(value: ExprLike | Weak, dtype: DType | None = None) -> Expr:
    """`value` as an expression; a Python number gets the type `dtype` if the type can hold it.

    Without `dtype` integers are int32 (int64 when they need it) and floats float32.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, Weak):
        numbers = list(value.numbers)
        if dtype is not None and (dtype.is_float or not value.floating):
            with suppress(TypeMismatchError):  # a number does not fit
                numbers = [typed(number, dtype) for number in value.numbers]
        if value.chosen and any(isinstance(number, Weak) for number in numbers):
            numbers = [*pair(*numbers)]  # choices of choices
        return value.build(*numbers)
    if isinstance(value, str):
        return StringImm(value)
    if not isinstance(value, (bool, int, float)):
        text = f"{type(value).__name__} is not an expression"
        if isinstance(value, Buffer):
            raise RefusedOperand(text, of_elements(value))
        raise TypeMismatchError(text)
    if dtype is None or dtype.is_handle:
        wide = isinstance(value, int) and not -(1 << 31) <= value < 1 << 31
        return as_expr(value, "int64" if wide else None)
    if dtype.lanes > 1:
        return Broadcast(typed(value, dtype.scalar), dtype.lanes)
    if isinstance(value, float) and not dtype.is_float:
        return FloatImm("float32", value)
    if dtype.is_bool and not isinstance(value, bool):
        return as_expr(value)
    return as_expr(value, dtype)


def pair(a: ExprLike | Weak, b: ExprLike | Weak) -> tuple[Expr, Expr]:
    """Both operands in their common type; scalars are repeated over the other's lanes."""
    if isinstance(a, Expr):
        x, y = a, typed(b, a.dtype)
    else:
        y = typed(b)
        x = typed(a, y.dtype)
    if x.dtype is y.dtype:
        return x, y
    common = promote(x.dtype, y.dtype)
    return fit(x, common), fit(y, common)


def shifted(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    """The operands of a shift: an unsigned number keeps its type below a signed count."""
    if isinstance(a, Expr) and isinstance(b, Expr):
        x, y = a.dtype, b.dtype
        if x.kind == "uint" and y.kind == "int" and x.bits >= y.bits:
            return pair(a, cast(x.scalar, b))
    return pair(a, b)


def fit(value: Expr, dtype: DType) -> Expr:
    """`value` converted to `dtype`, a scalar repeated over its lanes."""
    if value.dtype.lanes == 1 and dtype.lanes > 1:
        return Broadcast(cast(dtype.scalar, value), dtype.lanes)
    return cast(dtype, value)


def infix(kind: type[BinaryOp], a: ExprLike, b: ExprLike) -> Expr:
    """kind(a, b), not folded, with operands converted to their common type."""
    if issubclass(kind, Logical):
        return kind(typed(a), typed(b))  # type: ignore[no-any-return]
    return kind(*pair(a, b))  # type: ignore[no-any-return]


_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "Min": min, "Max": max, "FloorDiv": lambda a, b: a // b, "FloorMod": lambda a, b: a % b,
    "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Mul": lambda a, b: a * b,
    "EQ": lambda a, b: a == b, "NE": lambda a, b: a != b, "LT": lambda a, b: a < b,
    "LE": lambda a, b: a <= b, "GT": lambda a, b: a > b, "GE": lambda a, b: a >= b,
}  # fmt: skip


def _binary_word(
    kind: type[BinaryOp], check: Callable[[Expr], Expr] = lambda made: made
) -> Callable[[ExprLike, ExprLike], Any]:
    """The word of a node. Words for users are checked: no division by the number 0. `T.FloorDiv`
    and the like are what is printed if a step made such a node where a condition leaves it out."""
    compute = _NUMBERS.get(kind.__name__)

    def build(a: ExprLike, b: ExprLike) -> Any:
        if compute is not None and not isinstance(a, Expr) and not isinstance(b, Expr):
            return compute(a, b)
        return check(infix(kind, a, b))

    build.__name__ = kind.__name__
    build.__doc__ = f"{kind.__name__}(a, b), built as written."
    return build


for _kind in {*INFIX, *FUNCTIONS}:
    if _kind not in (And, Or):
        WORDS[_kind.__name__] = _binary_word(_kind)
        for _name in FUNCTIONS.get(_kind, ()):
            WORDS[_name] = _binary_word(_kind, refuse_zero)


def _joined(kind: type[BinaryOp], values: tuple[ExprLike, ...]) -> Expr:
    if not values:
        return TRUE if kind is And else FALSE
    return functools.reduce(lambda a, b: infix(kind, a, b), values[1:], typed(values[0]))


@word("And", "all")
def logical_and(*values: ExprLike) -> Expr:
    """All of the conditions hold."""
    return _joined(And, values)


@word("Or", "any")
def logical_or(*values: ExprLike) -> Expr:
    """One of the conditions holds."""
    return _joined(Or, values)


@word("Not")
def logical_not(value: ExprLike) -> Expr:
    """The condition does not hold."""
    return Not(typed(value))


@word()
def ceildiv(a: ExprLike, b: ExprLike) -> Any:
    """a / b rounded up: (a + b - 1) // b."""
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        return -(-a // b)
    less = WORDS["Sub"](b, 1)
    return WORDS["FloorDiv"](WORDS["Add"](a, less), b)


@word("Cast")
def exact_cast(dtype: Any, value: ExprLike) -> Expr:
    """A Cast node, even if the value already has the type."""
    return Cast(dtype_of(dtype), typed(value))


@word("cast")
def cast_word(value: ExprLike, dtype: Any) -> Expr:
    """`value` converted to `dtype`."""
    found = TypeWord(dtype_of(dtype))(value)
    assert isinstance(found, Expr)
    return found


@word("Select")
def select(condition: ExprLike, true_value: ExprLike, false_value: ExprLike) -> Expr:
    """`true_value` where `condition` holds, else `false_value`; both may be evaluated."""
    return Select(typed(condition), *pair(true_value, false_value))


@word("Let")
def let(expr: ExprLike, where: dict[Var, ExprLike]) -> Expr:
    """`expr` with each variable of `where` standing for its value."""
    body = typed(expr)
    for var, value in reversed(where.items()):
        body = Let(var, typed(value, var.dtype), body)
    return body


def _count(lanes: int | Expr) -> int:
    if isinstance(lanes, Expr) and not isinstance(lanes, IntImm):
        raise TypeMismatchError(f"a vector has a fixed number of lanes, not {type(lanes).__name__}")
    return int(lanes)


@word("Ramp")
def ramp(base: ExprLike, stride: ExprLike, lanes: int) -> Expr:
    """The vector base, base + stride, ..., `lanes` long."""
    return Ramp(*pair(base, stride), _count(lanes))


@word("Broadcast")
def broadcast(value: ExprLike, lanes: int) -> Expr:
    """`value` repeated over `lanes`."""
    return Broadcast(typed(value), _count(lanes))


@word("Shuffle")
def shuffle(vectors: Sequence[ExprLike], indices: Sequence[int]) -> Expr:
    """The lanes of the concatenated `vectors` at `indices`."""
    return Shuffle([typed(v) for v in vectors], [int(i) for i in indices])


@word("Var", "var", "SizeVar")
def variable(name: Any = "v", dtype: Any = None) -> Var:
    """A variable; `T.var("int32")` names only its type."""
    if dtype is None:
        return Var("v", dtype_of("int32" if name == "v" else name))
    return Var(name, dtype_of(dtype))


@word("IntImm", "FloatImm")
def constant(dtype: Any, value: Any) -> Expr:
    """A constant of a given type."""
    found = TypeWord(dtype_of(dtype))(value)
    assert isinstance(found, Expr)
    return found


@word("StringImm")
def string_constant(value: str) -> Expr:
    """A text constant."""
    return StringImm(value)


@word()
def max_value(dtype: Any) -> Expr:
    """The largest finite value of a type."""
    kind = dtype_of(dtype)
    if kind.is_float:
        return FloatImm(kind, kind.largest)
    return IntImm(kind, kind.range[1])


@word()
def min_value(dtype: Any) -> Expr:
    """The smallest (most negative) finite value of a type."""
    top = max_value(dtype)
    if isinstance(top, FloatImm):
        return FloatImm(top.dtype, -top.value)
    return IntImm(top.dtype, top.dtype.range[0])


@word()
def infinity(dtype: Any) -> Expr:
    """Positive infinity of a floating-point type."""
    return FloatImm(dtype_of(dtype), float("inf"))


@word()
def type_annotation(dtype: Any) -> DType:
    """The type itself, as the first argument of tvm_access_ptr."""
    return dtype_of(dtype)


@word()
def tvm_access_ptr(
    ptype: Any, data: Var, offset: ExprLike, extent: ExprLike, rw_mask: int, dtype: Any = "handle"
) -> Call:
    """access_ptr in TVM's form, with the element type as first argument; the result is a
    pointer."""
    return apply_op("access_ptr", [data, typed(offset), typed(extent), rw_mask])


@word()
def call_intrin(dtype: Any, func_name: str, *args: ExprLike) -> Call:
    """Call an operation by its name, with or without TVM's prefix (`tirx.`, `tir.`)."""
    name = func_name.rpartition(".")[2]
    return apply_op(ALIASES.get(name, name), [typed(a) for a in args], dtype_of(dtype))


@word()
def vectorlow(vec: Expr, dtype: Any = None) -> Expr:
    """The first half of a vector's lanes."""
    return Shuffle([vec], range(vec.dtype.lanes // 2))


@word()
def vectorhigh(vec: Expr, dtype: Any = None) -> Expr:
    """The second half of a vector's lanes."""
    return Shuffle([vec], range(vec.dtype.lanes // 2, vec.dtype.lanes))


@word()
def llvm_lookup_intrinsic_id(name: str) -> str:
    """The name itself, because LLVM intrinsics are identified by name here."""
    return name


@word()
def unprintable(text: str) -> Any:
    """Raise an error: printed text calls this in place of a value that scripts cannot express."""
    raise TypeMismatchError(f"this value cannot be written in a script: {text}")


class MetaVar:
    """A value that an assignment binds to a name without a let."""

    def __init__(self, value: Any) -> None:
        self.value = value


@word()
def meta_var(value: Any) -> MetaVar:
    """`x = T.meta_var(e)`: x stands for the expression itself."""
    return MetaVar(value)


def dtype_of(value: Any) -> DType:
    """Read a type from its text, its T word, a NumPy or Python type; an empty text is void."""
    if isinstance(value, TypeWord):
        return value.dtype
    if isinstance(value, Expr):
        raise TypeMismatchError(f"a type such as 'int32' is needed, not a value of {value.dtype}")
    try:
        return DType("void" if isinstance(value, str) and not value else value)
    except TypeError as error:
        raise TypeMismatchError(str(error)) from None


def is_dtype(value: Any) -> bool:
    """Whether `value` names a type by itself: a text, a NumPy or a Python type."""
    if not isinstance(value, (str, type, np.dtype)):
        return False
    try:
        dtype_of(value)
    except TypeMismatchError:
        return False
    return True


def _op_word(name: str) -> Callable[..., Call]:
    def typed_first(dtype: Any, *args: ExprLike) -> Call:
        return apply_op(name, [typed(a) for a in args], dtype_of(dtype))

    def plain(*args: ExprLike, dtype: Any = None, **named: ExprLike) -> Call:
        exact = None if dtype is None else dtype_of(dtype)
        return apply_op(name, (*args, *named_arguments(name, args, named)), exact)

    def either(*args: Any, dtype: Any = None) -> Call:
        return plain(*args, dtype=dtype) if dtype is not None else typed_first(*args)

    build = either if name in TYPE_FIRST else plain
    build.__name__ = name
    build.__doc__ = f"The operation `{name}`; with `dtype` nothing is converted."
    return build


Say = Callable[["StatementWord", tuple[Any, ...], dict[str, Any]], Any]
# What a statement word does in Python code that is called by the script being read.
SPEAKER: ContextVar[Say | None] = ContextVar("SPEAKER", default=None)


class StatementWord:
    """A word that describes a statement; only the parser can give it a meaning."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        say = SPEAKER.get()
        if say is not None:
            return say(self, args, kwargs)
        raise ParseError(
            f"T.{self.name} describes a statement: it has a meaning only inside a function "
            "decorated with @T.prim_func or @T.macro, which is read and never executed"
        )

    def __repr__(self) -> str:
        return f"T.{self.name}"


class Namespace:
    """Attribute access to a table of words: T, I, T.axis."""

    def __init__(self, name: str, lookup: Callable[[str], Any]) -> None:
        self._name, self._lookup = name, lookup

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._lookup(name)


def lookup(name: str) -> Any:
    """The expression word called `name`, None when there is none."""
    name = ALIASES.get(name, name)
    found = WORDS.get(name)
    if found is None and name in OPS:
        found = WORDS[name] = _op_word(name)
    if found is None:
        try:
            found = WORDS[name] = TypeWord(DType(name))
        except TypeMismatchError:
            return None
    return found


def near(name: str, names: Sequence[str]) -> str:
    """`; did you mean ...?` when a known name is close."""
    close = difflib.get_close_matches(name, list(dict.fromkeys(names)), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""
