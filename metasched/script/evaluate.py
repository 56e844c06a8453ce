"""Evaluates Python expressions in a script: computes numbers and builds IR.

Names come from the scopes of the script, and from the captured closure, locals and globals. The
policy `outside` decides what may be done with a captured value. A text may only read stored data
(`plain.Stored`); a decorated function may also run the user's code (`captured.UserCode`). Other
allowed calls are words of the T namespace, functions of Python that `words.PYTHON_WORDS` names, and
methods of buffers.
"""

from __future__ import annotations

import ast
import functools
import re
import types
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn

import numpy as np

from metasched.errors import MetaschedError, ParseError
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion
from metasched.ir.expr import (
    And,
    Expr,
    FloatImm,
    IntImm,
    Let,
    Mul,
    Not,
    Sub,
    Var,
    as_expr,
)
from metasched.ir.op import OPS
from metasched.script import builder
from metasched.script.buffers import BUFFER_DATA, BUFFER_METHODS, BufferWord
from metasched.script.builder import WORDS, MetaVar, Namespace, StatementWord, Weak, infix, typed
from metasched.script.diagnostics import RefusedOperand, Source
from metasched.script.hints import EXPRESSIONS, index_hint, name_hint
from metasched.script.indexing import Indexing, Slice
from metasched.script.literals import as_arguments, combined, is_weak, is_word, literals, signed
from metasched.script.macro import Macro, expanding
from metasched.script.operators import arithmetic, inverted, operation
from metasched.script.plain import PYTHON, Raised, Stored, describe
from metasched.script.sections import Section
from metasched.script.words import OPERATOR_CALLS, OPERATORS, apply_op

_NUMERIC = ("math", "numpy", "cmath")  # modules whose functions take numbers
_ARGUMENTS = re.compile(r"[\w.<>]+\(\) (?=missing |got |takes )")
"""What Python says of wrong arguments, up to the function's name, which users do not know."""
_REFUSALS = (
    MetaschedError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError,
)  # fmt: skip


class Evaluator(Indexing):
    """Evaluates expressions over scopes of names and a captured environment."""

    def __init__(
        self, source: Source, captured: Mapping[str, Any], namespaces: Mapping[str, Namespace],
        outside: Stored,
    ) -> None:  # fmt: skip
        self.source = source
        self.captured = captured
        self.outside = outside
        self.depth = 0  # macros being expanded
        self.namespaces = namespaces  # keyed by the name of the module that provides the words
        self.scopes: ChainMap[str, Any] = ChainMap()
        self.places: dict[Any, tuple[Source, ast.AST]] = {}

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names bound inside are forgotten at the end."""
        self.scopes = self.scopes.new_child()
        yield
        self.scopes = self.scopes.parents

    def fail(self, node: ast.AST, message: str, hint: str = "") -> NoReturn:
        raise self.source.error(node, message, hint)

    def value(self, node: ast.AST) -> Any:
        """Evaluate `node` to a Python value or IR."""
        rule = _RULES.get(type(node)) or self.outside.rules.get(type(node))
        if rule is None:
            kind = type(node).__name__
            hint = EXPRESSIONS.get(type(node), "")
            self.fail(node, f"{kind} has no meaning in a script", hint)
        return rule(self, node)

    def expr(self, node: ast.AST, dtype: Any = None) -> Expr:
        """Evaluate `node` to an IR expression; a number takes `dtype`."""
        found = self.value(node)
        if isinstance(found, MetaVar):
            found = found.value
        if isinstance(found, Slice) or not isinstance(found, (Expr, bool, int, float, str)):
            self.fail(node, f"an expression is needed here, not {describe(found)}")
        return self.typed(node, found, dtype)

    def typed(self, node: ast.AST, value: Any, dtype: Any = None) -> Expr:
        """`value`, read from `node`, as an expression; a number takes `dtype`."""
        if isinstance(node, ast.Call) and not isinstance(
            value, (Expr, Weak, bool, int, float, str)
        ):
            what = f"{ast.unparse(node.func)}(...) gives {describe(value)}"
            self.fail(node, f"{what}, which is no expression and no number")
        return self.guard(node, typed, value, dtype)  # type: ignore[no-any-return]

    def guard(self, node: ast.AST, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function of metasched and report its error at `node`."""
        try:
            return fn(*args, **kwargs)
        except ParseError as error:
            if error.line is not None:
                raise
            self.fail(node, str(error))
        except RefusedOperand as error:
            self.fail(node, error.message, error.hint)
        except Raised as error:
            raise self.source.error(node, str(error)) from error.__cause__
        except _REFUSALS as error:
            text = str(error)
            if isinstance(node, ast.Call) and (found := _ARGUMENTS.match(text)):
                text = f"{ast.unparse(node.func)}: {text[found.end() :]}"
            self.fail(node, text)

    # ---- names and attributes --------------------------------------------------------------

    def name(self, node: ast.Name) -> Any:
        if node.id in self.scopes:
            return self.scopes[node.id]
        if node.id in self.captured:
            return self.capture(node, self.captured[node.id], node.id)
        if node.id in self.outside.functions:
            return self.outside.functions[node.id]
        known = [name for name in (*self.scopes, *self.captured) if name.isidentifier()]
        hint = name_hint(node.id, WORDS.keys() | set(OPS.names()))
        self.fail(node, f"{node.id!r} is not defined{builder.near(node.id, known)}", hint)

    def capture(self, node: ast.AST, value: Any, name: str) -> Any:
        """A captured value as plain data; the modules of T and I become their words."""
        if isinstance(value, types.ModuleType) and value.__name__ in self.namespaces:
            return self.namespaces[value.__name__]
        try:
            return self.outside.value(value, name)
        except ValueError as error:
            self.fail(node, str(error), "compute the value outside and capture it")

    def attribute(self, node: ast.Attribute) -> Any:
        base = self.value(node.value)
        name = node.attr
        if isinstance(base, Namespace):
            return self.guard(node, getattr, base, name)
        if isinstance(base, Buffer):
            return self._buffer_attribute(node, base)
        if isinstance(base, (BufferRegion, Section)) and name == "buffer":
            return base.buffer
        if isinstance(base, Expr):
            if name in ("dtype", "name"):
                return getattr(base, name)
            if name == "astype":
                return functools.partial(builder.cast_word, base)
            self.fail(node, f"an expression has no attribute {name!r}")
        return self.capture(node, self.guard(node, self.outside.attribute, base, name), name)

    def _buffer_attribute(self, node: ast.Attribute, buffer: Buffer) -> Any:
        name = node.attr
        if name == "elem_offset" and buffer.elem_offset is None:
            return as_expr(0)
        if name in BUFFER_DATA:
            return getattr(buffer, name)
        if name in BUFFER_METHODS:
            return functools.partial(BUFFER_METHODS[name], buffer)
        words = (*BUFFER_DATA, *BUFFER_METHODS, "vstore")
        self.fail(node, f"a buffer has no attribute {name!r}{builder.near(name, words)}")

    # ---- subscripts ------------------------------------------------------------------------

    def subscript(self, node: ast.Subscript) -> Any:
        base = self.value(node.value)
        if isinstance(base, Buffer):
            return self.access(node, base)
        if isinstance(base, BufferLoad):
            self.fail(node, "an element of a buffer cannot be indexed", index_hint(node))
        items = self.value(node.slice)
        if isinstance(base, BufferWord):
            return self.guard(node, base.__getitem__, items)
        if isinstance(items, Slice):
            items = slice(items.start, items.stop, items.step)
        if isinstance(items, Expr):
            what = "a Python sequence is indexed with Python numbers only"
            hint = (
                "a table is a parameter T.Buffer, or memory of T.alloc_buffer; a loop over Python "
            )
            self.fail(node.slice, what, f"{hint}values is `for k, w in enumerate(table)`")
        return self.capture(node, self.guard(node, self.outside.element, base, items), "element")

    # ---- operators -------------------------------------------------------------------------

    def definite(self, node: ast.expr) -> Any:
        """As `weak`, where numbers alone have their own types."""
        found = self.weak(node)
        return self.typed(node, found) if isinstance(found, Weak) else found

    def _binary(self, node: ast.BinOp) -> Any:
        """Left-deep chains are unwound in a loop: sums of a thousand terms are legal."""
        chain: list[ast.BinOp] = []
        left: ast.expr = node
        while isinstance(left, ast.BinOp):
            chain.append(left)
            left = left.left
        result = self.weak(left)
        for part in reversed(chain):
            right = self.weak(part.right)
            found = combined(part.op, result, right, self.outside.compute)
            result = found or self.apply(part, part.op, result, right)
        return result

    def operand(self, node: ast.expr) -> Any:
        found = self.lanes(node, self.value(node))
        return found.value if isinstance(found, MetaVar) else found

    def weak(self, node: ast.expr) -> Any:
        """As `operand`; a value of Python numbers alone, which may take another type, is Weak."""
        if isinstance(node, ast.IfExp):
            return self._choice(node)
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        if isinstance(node, ast.UnaryOp):
            return self._unary(node)
        numbers = literals(node)
        if not numbers or not isinstance(node, ast.Call) or not is_word(self.value(node.func)):
            return self.operand(node)
        first = [self.operand(n) for n in node.args[: len(node.args) - len(numbers)]]
        build = functools.partial(self.guard, node, self.value(node.func), *first)
        return Weak(build, tuple(self.weak(n) for n in numbers), not first, bool(first))

    def apply(self, node: ast.AST, op: ast.AST, a: Any, b: Any) -> Any:
        """Apply an operator: compute two Python values, else build a node."""
        if isinstance(a, Weak):
            a = self.typed(node, a, b.dtype if isinstance(b, Expr) else None)
        if isinstance(b, Weak):
            b = self.typed(node, b, a.dtype if isinstance(a, Expr) else None)
        if not isinstance(a, Expr) and not isinstance(b, Expr):
            for side in (a, b):
                if _unknown(side) and a != b:
                    self.fail(node, "sequences are compared while the script is read, and here "
                              "values are known only when it runs", "compare the elements: "
                              "a[0] == b[0] and a[1] == b[1]")  # fmt: skip
            return self.guard(node, self.outside.compute, op, a, b)
        if isinstance(op, (ast.Is, ast.IsNot)):
            if isinstance(a, Expr) and isinstance(b, Expr):
                self.fail(node, "`is` tells Python objects apart, not values", "write ==")
            return (a is b) is isinstance(op, ast.Is)
        if isinstance(op, (ast.In, ast.NotIn)):
            self.fail(node, "`in` compares while the script is read, and here a value is known "
                      "only when it runs", "compare with each value: x == a or x == b")  # fmt: skip
        for side in (a, b):
            if not isinstance(side, (Expr, bool, int, float)):
                self.fail(node, f"an operand is an expression or a number, not {describe(side)}")
        kind = OPERATORS.get(type(op))
        if kind is not None:
            return self.guard(node, arithmetic, kind, a, b)
        name = OPERATOR_CALLS.get(type(op))
        if name is None:
            self.fail(node, f"operator {type(op).__name__} has no meaning on expressions")
        return self.guard(node, operation, name, a, b)

    def boolean(self, node: ast.BoolOp) -> Any:
        self._one_truth(node, node.values)
        values = [self.operand(v) for v in node.values]
        if not any(isinstance(v, Expr) for v in values):
            truths = [self.guard(node, self.outside.truth, v) for v in values[:-1]]
            decided = [t is isinstance(node.op, ast.Or) for t in truths]
            return next((v for v, d in zip(values, decided, strict=False) if d), values[-1])
        kind = OPERATORS[type(node.op)]
        for value in values:
            if isinstance(value, Expr) and not value.dtype.is_bool:
                self.fail(node, f"{kind.__name__.lower()} needs conditions, not {value.dtype}",
                          "compare with != 0; & and | combine the bits of integers")  # fmt: skip
        result = values[0]
        for value in values[1:]:
            result = self.guard(node, infix, kind, result, value)
        return result

    def _one_truth(self, node: ast.AST, parts: Sequence[ast.expr]) -> None:
        """Refuse slices where Python asks for one truth value, as NumPy does."""
        for part in parts:
            for inner in ast.walk(part):
                if isinstance(inner, ast.Slice):
                    self.fail(node, "Python's `and`, `or`, `not`, `if` and chained comparisons "
                              "take one truth value, not a slice", "write &, | and ~ between "
                              "comparisons in parentheses, T.if_then_else to choose")  # fmt: skip

    def _unary(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            self._one_truth(node, [node.operand])
        value = self.weak(node.operand)
        if isinstance(value, Weak):
            if isinstance(node.op, (ast.USub, ast.UAdd)):
                return signed(node.op, value, self.outside.compute_unary)
            value = self.typed(node, value)
        if not isinstance(value, Expr):
            return self.guard(node, self.outside.compute_unary, node.op, value)
        if isinstance(node.op, ast.Not):
            if not value.dtype.is_bool:
                self.fail(node, f"not needs bool, not {value.dtype}", "compare with == 0")
            return self.guard(node, Not, value)
        if isinstance(node.op, ast.Invert):
            return self.guard(node, inverted, value)
        if not (value.dtype.is_int or value.dtype.is_float):
            self.fail(node, f"{value.dtype} has no sign", "write T.int32(x)")
        if isinstance(node.op, ast.UAdd):
            return value
        if isinstance(value, FloatImm):
            return FloatImm(value.dtype, -value.value)
        if value.dtype.is_float:  # 0 - x loses the sign of zero; -1 * x is exact
            return self.guard(node, infix, Mul, value, -1.0)
        return self.guard(node, infix, Sub, 0, value)

    def comparison(self, node: ast.Compare) -> Any:
        if len(node.ops) > 1:
            self._one_truth(node, [node.left, *node.comparators])
        parts = [self.weak(n) for n in (node.left, *node.comparators)]
        tests = [
            self.apply(node, op, a, b) for op, a, b in zip(node.ops, parts, parts[1:], strict=False)
        ]
        if len(tests) == 1:
            return tests[0]
        if not any(isinstance(t, Expr) for t in tests):
            return all(tests)
        result = tests[0]
        for test in tests[1:]:
            result = self.guard(node, infix, And, result, test)
        return result

    def _choice(self, node: ast.IfExp) -> Any:
        self._one_truth(node, [node.test])
        condition = self.operand(node.test)
        if not isinstance(condition, Expr):
            chosen = self.guard(node.test, self.outside.truth, condition)
            return self.weak(node.body if chosen else node.orelse)
        if not condition.dtype.is_bool:
            self.fail(node.test, f"a condition is needed, not {condition.dtype}",
                      "compare with != 0")  # fmt: skip

        def either(a: Any, b: Any) -> Any:
            sides = self.guard(node, builder.pair, a, b)
            return self.guard(node, apply_op, "if_then_else", (condition, *sides))

        sides = self.weak(node.body), self.weak(node.orelse)
        numbers = all(isinstance(side, (bool, int, float, Weak)) for side in sides)
        return Weak(either, sides, chosen=True) if numbers else either(*sides)

    # ---- displays and calls ----------------------------------------------------------------

    def sequence(self, nodes: Sequence[ast.expr], weakly: bool = False) -> list[Any]:
        out: list[Any] = []
        for node in nodes:
            if isinstance(node, ast.Starred):
                out.extend(self.guard(node, self.outside.unpacked, self.value(node.value)))
            else:
                out.append(self.weak(node) if weakly and is_weak(node) else self.value(node))
        return out

    def dictionary(self, node: ast.Dict) -> dict[Any, Any]:
        out: list[tuple[Any, Any]] = []
        for key, item in zip(node.keys, node.values, strict=True):
            if key is None:
                out.extend(self.guard(item, dict, self.value(item)).items())
            else:
                out.append((self.value(key), self.value(item)))
        return self.guard(node, self.outside.keyed, dict, out)  # type: ignore[no-any-return]

    def formatted(self, node: ast.JoinedStr) -> str:
        out: list[str] = []
        for part in node.values:
            if isinstance(part, ast.Constant):
                out.append(str(part.value))
                continue
            assert isinstance(part, ast.FormattedValue)
            inner = self.value(part.value)
            inner = inner.value if isinstance(inner, IntImm) else inner
            spec = "" if part.format_spec is None else self.value(part.format_spec)
            form = self.outside.formatted
            out.append(self.guard(part.value, form, inner, part.conversion, spec))
        return "".join(out)

    def arguments(self, node: ast.Call, fn: Any = None) -> tuple[list[Any], dict[str, Any]]:
        """The evaluated arguments of a call, of the word `fn` if one is called."""
        kwargs: dict[str, Any] = {}
        args = self.sequence(node.args, weakly=fn is not None)
        args = args if fn is None else as_arguments(fn, args)
        for keyword in node.keywords:
            found = self.value(keyword.value)
            if keyword.arg is not None:
                kwargs[keyword.arg] = found
            elif isinstance(found, dict):
                kwargs.update(found)
            else:
                self.fail(keyword.value, "** needs a dictionary")
        return args, kwargs

    def call(self, node: ast.Call) -> Any:
        fn = self.value(node.func)
        if isinstance(fn, StatementWord):
            what = f"T.{fn.name} is a statement and cannot stand inside an expression"
            self.fail(node, what, name_hint(fn.name, ()))
        if fn is WORDS["Let"]:
            return self.let_expr(node)
        python = any(fn is f for f in PYTHON.values())
        args, kwargs = self.arguments(node, fn if python or is_word(fn) else None)
        if isinstance(fn, Macro):
            with expanding(self, node, fn, args, kwargs):
                return self.value(fn.result())
        if not python and not is_word(fn):
            numeric = isinstance(fn, np.ufunc) or getattr(fn, "__module__", "") in _NUMERIC
            if numeric and any(isinstance(a, (Expr, Section)) for a in args):
                hint = name_hint(fn.__name__, WORDS.keys() | set(OPS.names()))
                self.fail(node, f"{ast.unparse(node.func)} computes with Python's numbers, not "
                          "with expressions", hint)  # fmt: skip
            with self.speaking(node):
                return self.guard(node, self.outside.call, fn, args, kwargs)
        if not any(isinstance(a, ast.Starred) for a in node.args):
            args = [self.lanes(n, a) for n, a in zip(node.args, args, strict=True)]
        if python:
            return self._python_call(node, fn, args, kwargs)
        return self.guard(node, fn, *args, **kwargs)

    def _python_call(self, node: ast.Call, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """Call one of Python's own functions; min, max and abs also take expressions."""
        name = fn.__name__
        odd = next((a for a in args if isinstance(a, (Expr, Buffer, Section))), None)
        if odd is not None and name in ("enumerate", "zip", "reversed"):
            what = f"{name} takes Python values only, not {describe(odd)}"
            self.fail(node, what, name_hint(name, ()))
        if name == "len" and isinstance(odd, Buffer) and odd.shape:
            return odd.shape[0]
        if any(isinstance(a, Expr) for a in args):
            if name in ("min", "max"):
                return self.guard(node, functools.reduce, WORDS[name], args)
            if name == "abs":
                return self.guard(node, apply_op, "abs", args)
            if name == "sum" and not isinstance(args[0], Expr):
                return self.guard(node, self.outside.own, fn, args, kwargs)
            if not all(isinstance(a, IntImm) for a in args) or name != "int":
                cast = "convert an expression with T.cast(value, dtype)"
                hint = "write T.nearbyint(value)" if name == "round" else cast
                self.fail(node, f"{name} takes Python values only", hint)
        return self.guard(node, self.outside.own, fn, args, kwargs)

    def speaking(self, node: ast.Call) -> AbstractContextManager[None]:
        """A context for calls of the user's code, in which statement words have their meaning."""
        return nullcontext()

    def let_expr(self, node: ast.Call) -> Expr:
        """Read T.Let(body, where={x: value}), which binds the names of `where`."""
        where = [k.value for k in node.keywords if k.arg == "where"]
        if len(node.args) != 1 or len(where) != 1 or not isinstance(where[0], ast.Dict):
            self.fail(node, "write T.Let(body, where={name: value})")
        pairs: list[tuple[Var, Expr]] = []
        with self.scope():
            for key, item in zip(where[0].keys, where[0].values, strict=True):
                if not isinstance(key, ast.Name):
                    self.fail(key or node, "T.Let binds names: where={name: value}")
                value = self.expr(item)
                pairs.append((Var(key.id, value.dtype), value))
                self.scopes[key.id] = pairs[-1][0]
            body = self.expr(node.args[0])
        for var, value in reversed(pairs):
            body = Let(var, value, body)
        return body


def _unknown(value: Any) -> bool:
    """Whether a sequence holds a value that is known only when the program runs."""
    if isinstance(value, (tuple, list)):
        return any(map(_unknown, value))
    return isinstance(value, Expr) and not isinstance(value, (IntImm, FloatImm))


_RULES: dict[type[ast.AST], Callable[[Evaluator, Any], Any]] = {
    ast.Constant: lambda e, n: n.value,
    ast.Name: lambda e, n: e.name(n),
    ast.Attribute: Evaluator.attribute,
    ast.Subscript: Evaluator.subscript,
    ast.Slice: Evaluator.slice,
    ast.BinOp: Evaluator.definite,
    ast.BoolOp: Evaluator.boolean,
    ast.UnaryOp: Evaluator.definite,
    ast.Compare: Evaluator.comparison,
    ast.IfExp: Evaluator.definite,
    ast.Call: Evaluator.call,
    ast.Tuple: lambda e, n: tuple(e.sequence(n.elts)),
    ast.List: lambda e, n: e.sequence(n.elts),
    ast.Dict: Evaluator.dictionary,
    ast.JoinedStr: Evaluator.formatted,
}
