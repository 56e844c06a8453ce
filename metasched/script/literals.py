"""Values of Python numbers alone that are known only when the program runs: `0.1 if c else 0.2`,
`-T.sqrt(2.0)`, `(1 if c else 3) * 5`. Like a number, such a value has no type of its own."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from metasched.ir.expr import Add, BinaryOp, Div, Expr, Mul, Sub
from metasched.ir.op import FLOATING
from metasched.script.buffers import BUFFER_METHODS, BufferWord
from metasched.script.builder import WORDS, TypeWord, Weak, cast_word, dtype_of, infix, typed
from metasched.script.operators import arithmetic

CHOICES = ("if_then_else", "Select")
_WORDS = {*CHOICES, *FLOATING.split(), "pow", "atan2", "hypot"}
_NUMBER = (bool, int, float)
_MOST = 16
"""The most numbers of choices that are combined while the script is read."""
_FLOATING: dict[type[ast.AST], type[BinaryOp]] = {
    ast.Add: Add,
    ast.Sub: Sub,
    ast.Mult: Mul,
    ast.Div: Div,
}
_EXACT = (*_FLOATING, ast.FloorDiv, ast.Mod)
Compute = Callable[..., Any]


def literals(node: ast.expr) -> list[ast.expr]:
    """The arguments of a call of T's words with numbers alone, as `T.sqrt(2.0)`, without the
    condition of a choice; [] for anything else."""
    if not isinstance(node, ast.Call) or node.keywords:
        return []
    func = node.func
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
        return []
    numbers = node.args[1:] if func.attr in CHOICES else node.args
    return numbers if func.attr in _WORDS and all(map(_is_number, numbers)) else []


def is_weak(node: ast.expr) -> bool:
    """Whether an expression may be a value of numbers alone."""
    return isinstance(node, (ast.IfExp, ast.BinOp, ast.UnaryOp)) or bool(literals(node))


def _is_number(node: ast.expr) -> bool:
    while isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        node = node.operand
    if isinstance(node, ast.IfExp):
        return _is_number(node.body) and _is_number(node.orelse)
    return isinstance(node, ast.Constant) and isinstance(node.value, (int, float))


def combined(op: ast.AST, a: Any, b: Any, compute: Compute) -> Weak | None:
    """An operator on two values of numbers alone; None where the result has a type of its own.

    On choices it is computed on each number, as Python does. On functions, as `T.sqrt(2.0)`, and on
    many choices it is computed when the program runs, in the type that the value takes.
    """
    if not isinstance(a, Weak) and not isinstance(b, Weak):
        return None
    if type(op) not in _EXACT or not all(isinstance(v, (*_NUMBER, Weak)) for v in (a, b)):
        return None
    if _count(a) * _count(b) <= _MOST and _are_choices(a, b):
        try:
            return _each(a, lambda x: _each(b, lambda y: compute(op, x, y)))  # type: ignore[no-any-return]
        except (ArithmeticError, ValueError):  # of a number that may never be chosen
            return None
    kind = _FLOATING.get(type(op))
    return None if kind is None else Weak(partial(arithmetic, kind), (a, b), True)


def signed(op: ast.unaryop, value: Weak, compute: Compute) -> Weak:
    """A value of numbers alone with a sign."""
    if _are_choices(value):
        return _each(value, lambda x: compute(op, x))  # type: ignore[no-any-return]
    return value if isinstance(op, ast.UAdd) else Weak(partial(infix, Mul), (value, -1.0), True)


def _count(value: Any) -> int:
    return sum(map(_count, value.numbers)) if isinstance(value, Weak) else 1


def _are_choices(*values: Any) -> bool:
    return all(not isinstance(v, Weak) or (v.chosen and _are_choices(*v.numbers)) for v in values)


def _each(value: Any, fn: Callable[[Any], Any]) -> Any:
    """A choice with a function applied to each number."""
    if not isinstance(value, Weak):
        return fn(value)
    return value._replace(numbers=tuple([_each(n, fn) for n in value.numbers]))


def as_arguments(fn: Any, args: Sequence[Any]) -> list[Any]:
    """The arguments of a word of T, where values of numbers alone take the type that the word
    names, or that of the other arguments."""
    if not any(isinstance(a, Weak) for a in args):
        return [*args]
    types = {a.dtype for a in args if isinstance(a, Expr) and not a.dtype.is_bool}
    if isinstance(fn, TypeWord) and fn.dtype.is_float:
        types = {fn.dtype}
    elif fn is WORDS["cast"] and len(args) == 2:
        types = {dtype_of(args[1])}
    dtype = types.pop() if len(types) == 1 else None
    return [typed(a, dtype) if isinstance(a, Weak) else a for a in args]


def is_word(fn: Any) -> bool:
    """Whether `fn` is a word of T or a method of buffers, so not the code of the user."""
    if isinstance(fn, partial):
        return any(fn.func is f for f in (cast_word, *BUFFER_METHODS.values()))
    return isinstance(fn, (TypeWord, BufferWord)) or any(fn is w for w in WORDS.values())
