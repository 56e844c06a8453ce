"""The words of the dialect, in tables that printer, builder and parser share."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Mapping, Sequence

from metasched.errors import TypeMismatchError
from metasched.ir.describe import INFIX
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    BinaryOp,
    Div,
    Expr,
    ExprLike,
    FloorDiv,
    FloorMod,
    Max,
    Min,
    Mod,
    as_expr,
    as_int,
)
from metasched.ir.op import FLOATING, OPS, Call, Effect, call
from metasched.ir.stmt import IterKind
from metasched.script.diagnostics import RefusedOperand

NOT_LEVEL = 3
COMPARE_LEVEL = 4
UNARY_LEVEL = 11
ATOM_LEVEL = 20

# Two-operand nodes written as functions; the first name is printed.
FUNCTIONS: dict[type[BinaryOp], tuple[str, ...]] = {
    Min: ("min",), Max: ("max",), Mod: ("truncmod",), Div: ("truncdiv", "div"),
    FloorDiv: ("floordiv",), FloorMod: ("floormod",),
}  # fmt: skip


def by_zero(expr: Expr) -> bool:
    """Whether an integer is divided by the number 0, or a remainder is that of such a division."""
    if not isinstance(expr, (Div, Mod, FloorDiv, FloorMod)) or not expr.dtype.is_int:
        return False
    return as_int(expr.b) == 0


def refuse_zero(made: Expr) -> Expr:
    """`made`; RefusedOperand for a division of integers by the number 0."""
    if by_zero(made):
        raise RefusedOperand("integer division or modulo by zero", "leave it out, or choose the "
                              "divisor: x // T.max(d, 1)")  # fmt: skip
    return made


def _operator(symbol: str) -> type[ast.AST]:
    node = ast.parse(f"a {symbol} b", mode="eval").body
    if isinstance(node, ast.Compare):
        return type(node.ops[0])
    assert isinstance(node, (ast.BinOp, ast.BoolOp))
    return type(node.op)


# The same table by Python's operator nodes, and the operations that Python writes as operators.
OPERATORS: dict[type[ast.AST], type[BinaryOp]] = {_operator(s): k for k, (s, _) in INFIX.items()}
OPERATOR_CALLS: dict[type[ast.AST], str] = {
    _operator(symbol): name
    for symbol, name in {
        "&": "bitwise_and", "|": "bitwise_or", "^": "bitwise_xor",
        "<<": "shift_left", ">>": "shift_right", "**": "pow",
    }.items()
}  # fmt: skip

# Other spellings of words that users may write.
ALIASES = {
    "sblock": "block",
    "sblock_alloc_buffer": "alloc_buffer",
    "sblock_attr": "block_attr",
    "ramp": "Ramp",
    "broadcast": "Broadcast",
    "power": "pow",
    "let": "LetStmt",
    "bind": "LetStmt",
    "boolean": "bool",
    "buffer_decl": "Buffer",
    "axis.S": "axis.spatial",
    "axis.R": "axis.reduce",
    "vectorize": "vectorized",
    "unrolled": "unroll",
    "tvm_call_packed": "call_packed",
    "ptx.ldmatrix_legacy": "ptx_ldmatrix",
    "ptx.mma.legacy": "ptx_mma",
    "cuda.mma_fill_legacy": "mma_fill",
    "cuda.mma_store_legacy": "mma_store",
    "metal.make_filled_simdgroup_matrix": "make_filled_simdgroup_matrix",
    "metal.simdgroup_load": "simdgroup_load",
    "metal.simdgroup_store": "simdgroup_store",
    "metal.simdgroup_multiply_accumulate": "simdgroup_multiply_accumulate",
}

# Letters of T.axis.remap.
REMAP = {"S": IterKind.SPATIAL, "R": IterKind.REDUCE}
REMAP_LETTER = {kind: letter for letter, kind in REMAP.items()}

# Operations written with the type of their result as the first argument.
TYPE_FIRST = frozenset({
    "reinterpret", "call_extern", "call_pure_extern", "call_llvm_intrin", "call_llvm_pure_intrin",
    "tvm_call_intrin",
})  # fmt: skip

# Operations whose arguments may be named, and the defaults of these arguments.
_MATRIX: dict[str, ExprLike | None] = {
    "d": None, "index": None, "ptr": None, "stride": None, "col": 8, "row": 8,
    "transpose_matrix": False,
}  # fmt: skip
ARGUMENTS: dict[str, dict[str, ExprLike | None]] = {
    "make_filled_simdgroup_matrix": {"d": None, "index": None, "value": None, "col": 8, "row": 8},
    "simdgroup_load": _MATRIX,
    "simdgroup_store": _MATRIX,
}

_FLOATING = frozenset(FLOATING.split())

# Python's own functions that scripts may use.
PYTHON_WORDS = ("range", "len", "min", "max", "abs", "int", "float", "bool", "round", "str",
                "tuple", "list", "sum", "enumerate", "zip", "reversed")  # fmt: skip
# Names that no variable gets when printed: the words that printed functions hold.
RESERVED = frozenset({*keyword.kwlist, "range", "float", "T"})


def apply_op(name: str, args: Sequence[ExprLike], dtype: DType | str | None = None) -> Call:
    """The operation called `name` on `args`.

    With `dtype`, the node is built as given. Without it, the operands are converted to their common
    type, which is also the result's type. An operation of any arity, or with the effect OPAQUE,
    gives int32, or a pointer for the effect READ.
    """
    op = OPS.get(name)
    if dtype is not None:
        return Call(dtype, op, [as_expr(a) for a in args])
    if not op.arity or op.effect is Effect.OPAQUE:
        dtype = "handle" if op.effect is Effect.READ else "int32"
        return Call(dtype, op, [as_expr(a) for a in args])
    found = call(name, *args)
    if name in _FLOATING and not found.dtype.is_float:
        raise TypeMismatchError(f"{name} takes floating-point numbers, not {found.dtype}; write "
                                f"T.{name}(T.float32(x))")  # fmt: skip
    if name == "abs" and found.dtype.is_bool:
        raise TypeMismatchError("abs takes numbers, not bool; write T.int32(x)")
    return found


def named_arguments(
    name: str, args: Sequence[ExprLike], named: Mapping[str, ExprLike]
) -> list[ExprLike]:
    """The arguments after `args` in a call of the operation `name`; some are given by name."""
    rest = dict(list(ARGUMENTS.get(name, {}).items())[len(args) :])
    for key in named:
        if key not in rest:
            raise TypeMismatchError(f"{name} has no argument {key!r} here")
    filled = {**rest, **named}
    values = [value for value in filled.values() if value is not None]
    if len(values) < len(filled):
        missing = next(key for key, value in filled.items() if value is None)
        raise TypeMismatchError(f"{name} needs the argument {missing!r}")
    return values


def infers(node: Call) -> bool:
    """Whether the parser builds an equal node from the call's text without a type."""
    op = node.op
    if op.arity is not None and len(node.args) != op.arity:
        return False
    try:
        return apply_op(op.name, node.args) is node
    except TypeError:
        return False


def is_literal(expr: Expr) -> bool:
    """Whether `expr` is printed as a bare Python number, whose type follows from its context."""
    return type(expr).__name__ == "IntImm" and expr.dtype in ("int32", "bool")
