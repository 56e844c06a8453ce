"""The policy for names around a decorated function: its script may run the user's code.

A function under `@T.prim_func` is the user's own code, imported by the user. So its script may call
captured functions, read computed attributes, and use Python's comprehensions and lambdas. Texts,
traces and databases may be untrusted: they are read under `plain.Stored`, which runs no code.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import itertools
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from metasched.errors import ParseError
from metasched.ir.buffer import BufferRegion
from metasched.ir.expr import Expr
from metasched.ir.operators import users_code
from metasched.script.plain import ARITHMETIC, CODE, UNARY, Raised, Stored, describe
from metasched.script.sections import Section

if TYPE_CHECKING:
    from metasched.script.evaluate import Evaluator


_CACHED = type(functools.cache(repr))
_REGIONS = (BufferRegion, Section)
_CONVERSIONS: dict[int, Callable[[Any], Any]] = {ord("r"): repr, ord("s"): str, ord("a"): ascii}


def called(fn: Any) -> str:
    """The name of a function, for messages."""
    return getattr(fn, "__name__", None) or type(fn).__name__


def _run(what: str, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run the user's code; an exception becomes `Raised`, with the exception as its cause."""
    try:
        with users_code():
            return fn(*args, **kwargs)
    except Exception as error:
        text = str(error)
        if isinstance(error, ParseError):  # the error already shows its line
            first, *rest = text.splitlines()
            hints = [line.removeprefix("hint: ") for line in rest if line.startswith("hint: ")]
            text = "; ".join([first, *hints])
        raise Raised(f"{what} raised {type(error).__name__}: {text}") from error


def _comprehension(e: Evaluator, generators: Sequence[ast.comprehension]) -> Iterator[None]:
    """Iterate over a comprehension; the targets are bound at each step."""
    if not generators:
        yield
        return
    first, rest = generators[0], generators[1:]
    if first.is_async:
        e.fail(first.target, "async has no meaning in a script")
    for item in _items(e, first.iter):
        with e.scope():
            _bind(e, first.target, item)
            if all(_holds(e, test) for test in first.ifs):
                yield from _comprehension(e, rest)


def _items(e: Evaluator, node: ast.expr) -> Iterable[Any]:
    found = e.value(node)
    if isinstance(found, Expr) or any(isinstance(v, Expr) for v in _bounds(found)):
        e.fail(node, "a comprehension runs over Python values, at decoration",
               "write a loop of the program as `for i in T.serial(n):`")  # fmt: skip
    values: Iterable[Any] = e.guard(node, e.outside.unpacked, found)
    return values


def _bounds(value: Any) -> tuple[Any, ...]:
    return (value.start, value.stop) if isinstance(value, range) else ()


def _holds(e: Evaluator, test: ast.expr) -> bool:
    found = e.operand(test)
    if isinstance(found, Expr):
        e.fail(test, "the condition of a comprehension is a Python value, not an expression",
               "choose between values with T.if_then_else or T.Select")  # fmt: skip
    return bool(e.guard(test, e.outside.truth, found))


def _bind(e: Evaluator, target: ast.expr, value: Any) -> None:
    if isinstance(target, ast.Name):
        e.scopes[target.id] = value
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = e.guard(target, e.outside.unpacked, value)
        if len(parts) != len(target.elts):
            e.fail(target, f"{len(parts)} values for {len(target.elts)} names")
        for part, item in zip(target.elts, parts, strict=True):
            _bind(e, part, item)
    else:
        e.fail(target, "a name is needed here")


def _list(e: Evaluator, node: ast.ListComp | ast.GeneratorExp | ast.SetComp) -> list[Any]:
    return [e.value(node.elt) for _ in _comprehension(e, node.generators)]


def _dict(e: Evaluator, node: ast.DictComp) -> dict[Any, Any]:
    steps = _comprehension(e, node.generators)
    pairs = [(e.value(node.key), e.value(node.value)) for _ in steps]
    return e.guard(node, e.outside.keyed, dict, pairs)  # type: ignore[no-any-return]


def _set(e: Evaluator, node: ast.AST, items: list[Any]) -> set[Any]:
    return e.guard(node, e.outside.keyed, set, items)  # type: ignore[no-any-return]


def _lambda(e: Evaluator, node: ast.Lambda) -> Callable[..., Any]:
    """A function whose body is read as a script's expression: `==` builds a comparison."""
    spec = node.args
    for odd in (spec.vararg, spec.kwarg, *spec.kwonlyargs, *spec.posonlyargs):
        if odd is not None:
            e.fail(odd, "a lambda in a script takes plain parameters")
    names = [arg.arg for arg in spec.args]
    values = [e.value(d) for d in spec.defaults]
    defaults = dict(zip(names[len(names) - len(values) :], values, strict=True))
    around = e.scopes

    def function(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(names, args, strict=False))
        bound = {**defaults, **given, **kwargs}
        if len(args) > len(names) or bound.keys() != set(names) or given.keys() & kwargs.keys():
            raise TypeError(f"the lambda takes {', '.join(names) or 'no parameters'}")
        saved, e.scopes = e.scopes, around.new_child(bound)
        try:
            with users_code(False):
                return e.value(node.body)
        finally:
            e.scopes = saved

    function.__name__ = "lambda"
    return function


_RULES: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.ListComp: _list,
    ast.GeneratorExp: _list,
    ast.SetComp: lambda e, n: _set(e, n, _list(e, n)),
    ast.DictComp: _dict,
    ast.Set: lambda e, n: _set(e, n, e.sequence(n.elts)),
    ast.Lambda: _lambda,
}


class UserCode(Stored):
    """The policy for decorated functions: captured code may be run.

    An exception of the user's code becomes `Raised`, which is reported at the script's line.
    """

    functions = vars(builtins)
    rules = _RULES
    runs = True

    def value(self, value: Any, name: str) -> Any:
        return value if isinstance(value, CODE) else super().value(value, name)

    def attribute(self, base: Any, name: str) -> Any:
        return _run(f"{describe(base)}.{name}", getattr, base, name)

    def element(self, base: Any, items: Any) -> Any:
        return _run(f"indexing {describe(base)}", lambda: base[items])

    def compute(self, op: ast.AST, a: Any, b: Any) -> Any:
        rule = ARITHMETIC.get(type(op))
        if rule is None or isinstance(a, _REGIONS) or isinstance(b, _REGIONS):
            return super().compute(op, a, b)
        return _run(f"operator {type(op).__name__}", rule, a, b)

    def compute_unary(self, op: ast.AST, value: Any) -> Any:
        return _run(f"operator {type(op).__name__}", UNARY[type(op)], value)

    def truth(self, value: Any) -> bool:
        return bool(_run("bool(...)", bool, value))

    def keyed(self, kind: Callable[..., Any], items: Sequence[Any]) -> Any:
        return _run(f"a {kind.__name__}", kind, items)

    def unpacked(self, value: Any) -> Sequence[Any]:
        return _run("*", list, value)  # type: ignore[no-any-return]

    def items(self, value: Any, most: int) -> Sequence[Any]:
        if not isinstance(value, Iterable):
            raise ValueError(f"{describe(value)} has no elements")
        return _run("the loop", lambda: [*itertools.islice(value, most)])  # type: ignore[no-any-return]

    def formatted(self, value: Any, conversion: int, spec: str) -> str:
        if isinstance(value, Expr):
            return super().formatted(value, conversion, spec)
        convert: Callable[[Any], Any] = _CONVERSIONS.get(conversion, lambda v: v)
        text: str = _run("an f-string", lambda: format(convert(value), spec))
        return text

    def own(self, fn: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
        return self.call(fn, args, kwargs)

    def call(self, fn: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if not callable(fn):
            return super().call(fn, args, kwargs)
        if isinstance(fn, _CACHED) and any(isinstance(a, Expr) for a in (*args, *kwargs.values())):
            fn = fn.__wrapped__  # an expression is no key of the cache, see `ir.operators`
        found = _run(f"{called(fn)}(...)", fn, *args, **kwargs)
        return self.value(found, called(fn))


def names_around(fn: FunctionType, frame: FrameType | None) -> ChainMap[str, Any]:
    """The names a function sees: its closure, the scopes around its definition, its globals."""
    closure: dict[str, Any] = {}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
        try:
            closure[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    around: list[dict[str, Any]] = []
    while frame is not None and frame.f_globals is fn.__globals__:
        around.append(dict(frame.f_locals))
        if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
            break
        frame = frame.f_back
    return ChainMap(closure, *around, fn.__globals__)
