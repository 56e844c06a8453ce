"""Plain Python values in scripts: which captured values are allowed, and arithmetic on them.

`Stored` is the policy for texts, traces and databases: only stored data is read. It runs no
property, calls no function, and uses no operator of a subclass of a number. So reading a text
executes no code of the user. `captured.UserCode` is the policy for decorated functions.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.dtype import DType
from metasched.ir.expr import Expr, IntImm
from metasched.ir.func import IRModule, PrimFunc
from metasched.script.buffers import BufferWord
from metasched.script.builder import (
    WORDS,
    MetaVar,
    Namespace,
    StatementWord,
    TypeWord,
    of_elements,
)
from metasched.script.diagnostics import RefusedOperand
from metasched.script.sections import Section
from metasched.script.words import PYTHON_WORDS

PYTHON: dict[str, Any] = {name: getattr(builtins, name) for name in PYTHON_WORDS}
ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b, ast.BitAnd: lambda a, b: a & b, ast.BitOr: lambda a, b: a | b,
    ast.BitXor: lambda a, b: a ^ b, ast.LShift: lambda a, b: a << b,
    ast.RShift: lambda a, b: a >> b,
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b, ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b, ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b,
    ast.Is: lambda a, b: a is b, ast.IsNot: lambda a, b: a is not b,
    ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b,
}  # fmt: skip
_OURS = (Expr, Buffer, BufferRegion, PrimFunc, IRModule, Namespace, StatementWord, MetaVar,
         TypeWord, BufferWord, DType, types.ModuleType, type, np.dtype)  # fmt: skip
_EXACT = (bool, int, float, str, tuple, list, dict, range, type(None))
_LIMIT = 1 << 12  # bits of a computed integer, length of a repeated text


UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.USub: lambda v: -v, ast.UAdd: lambda v: +v, ast.Not: lambda v: not v,
    ast.Invert: lambda v: ~v,
}  # fmt: skip


class Raised(Exception):
    """The user's code failed; `__cause__` is the exception that it raised."""


class Stored:
    """The policy for texts: they may read stored data from outside and compute on it.

    Each method raises ValueError if it would have to run code of the user.
    """

    functions: Mapping[str, Any] = PYTHON
    rules: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {}
    runs = False  # whether the user's code may run

    def value(self, value: Any, name: str) -> Any:
        """Check a value from outside, and convert it to plain data."""
        if type(value) in _EXACT or isinstance(value, _OURS):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, int):
            return int.__int__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, (tuple, list)):
            return value
        if any(value is known for known in (*WORDS.values(), *PYTHON.values())):
            return value
        if isinstance(value, CODE):
            raise ValueError(
                f"{name!r} is a {type(value).__name__}; a script is read, not executed, and calls "
                "only words of T"
            )
        return value

    def attribute(self, base: Any, name: str) -> Any:
        """base.name, which must be stored data."""
        found = inspect.getattr_static(base, name, _MISSING)
        if found is _MISSING:
            raise ValueError(f"{describe(base)} has no attribute {name!r}")
        slot = isinstance(found, types.MemberDescriptorType)
        if slot or (type(found).__name__ == "_tuplegetter" and isinstance(base, tuple)):
            return found.__get__(base)
        if hasattr(type(found), "__get__") and not isinstance(found, (*CODE, type)):
            raise ValueError(f"{name!r} is computed: reading it would execute code")
        return found

    def element(self, base: Any, items: Any) -> Any:
        """base[items]."""
        if type(base) not in (tuple, list, str, dict, range) and not isinstance(base, tuple):
            raise ValueError(f"{describe(base)} cannot be indexed")
        return base.__getitem__(items)

    def compute(self, op: ast.AST, a: Any, b: Any) -> Any:
        """An operator of Python on two plain values."""
        rule = ARITHMETIC.get(type(op))
        if rule is None or type(a) not in _EXACT or type(b) not in _EXACT:
            if isinstance(a, str) and isinstance(b, str) and isinstance(op, (ast.Eq, ast.NotEq)):
                return str.__eq__(a, b) is isinstance(op, ast.Eq)
            what = f"{describe(a)} and {describe(b)}"
            text = f"operator {type(op).__name__} has no meaning on {what}"
            buffer = next((x for x in (a, b) if isinstance(x, Buffer)), None)
            raise ValueError(text) if buffer is None else RefusedOperand(text, of_elements(buffer))
        if isinstance(op, (ast.Pow, ast.LShift)) and isinstance(a, int) and isinstance(b, int):
            bits = a.bit_length() * b if isinstance(op, ast.Pow) else a.bit_length() + b
            if bits > _LIMIT:
                raise ValueError("the number is too large")
        repeated = isinstance(a, (str, tuple, list)) or isinstance(b, (str, tuple, list))
        times = max(x for x in (a, b, 0) if isinstance(x, int))
        if isinstance(op, ast.Mult) and repeated and times > _LIMIT:
            raise ValueError("the sequence is too long")
        return rule(a, b)

    def compute_unary(self, op: ast.AST, value: Any) -> Any:
        """An operator of Python on one plain value."""
        if type(value) not in _EXACT:
            raise ValueError(f"{describe(value)} has no operator {type(op).__name__}")
        return UNARY[type(op)](value)

    def truth(self, value: Any) -> bool:
        """bool(value)."""
        if type(value) not in _EXACT:
            raise ValueError(f"{describe(value)} is no condition")
        return bool(value)

    def keyed(self, kind: Callable[..., Any], items: Sequence[Any]) -> Any:
        """A dict or set of these items."""
        return kind(items)

    def unpacked(self, value: Any) -> Sequence[Any]:
        """The elements of `*value`."""
        if not isinstance(value, (tuple, list, range)):
            raise ValueError(f"* needs a tuple or a list, not {describe(value)}")
        return value

    def items(self, value: Any, most: int) -> Sequence[Any]:
        """The elements that a loop runs over, at most so many."""
        if type(value) not in (tuple, list, range, dict):
            raise ValueError(f"{describe(value)} has no elements")
        return [*itertools.islice(value, most)]

    def formatted(self, value: Any, conversion: int, spec: str) -> str:
        """The text of one value in an f-string."""
        if type(value) not in (str, int, float, bool) or spec or conversion != -1:
            raise ValueError(f"a text takes in plain numbers and texts, not {describe(value)}")
        return str(value)

    def own(self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        """One of Python's own functions on plain values."""
        for arg in args:
            if not isinstance(arg, (*_EXACT, IntImm)):
                raise ValueError(f"{fn.__name__} takes Python values only, not {describe(arg)}")
        found = fn(*args, **kwargs)
        return [*found] if isinstance(found, Iterator) else found

    def call(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call a function that is no word of T."""
        raise ValueError(f"{describe(fn)} cannot be called: a script calls only words of T")


CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MISSING = object()


def describe(value: Any) -> str:
    """A short description of a value, for messages."""
    if isinstance(value, (BufferRegion, Section)):
        return f"a region of {value.buffer.name}"
    if isinstance(value, Buffer):
        return f"the buffer {value.name}"
    if isinstance(value, StatementWord):
        return f"T.{value.name}"
    if isinstance(value, (bool, int, float, str)) or value is None:
        return repr(value)
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
