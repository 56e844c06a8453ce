"""`T.macro`: statements (or one expression) of a script under a name, expanded at each call.

A macro is hygienic by default: its names are looked up at the definition. With `hygienic=False`
names are looked up at the call. Arguments are substituted without a let. A block whose name is
taken in the function gets another name.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, overload

from metasched.errors import ParseError
from metasched.script.captured import names_around
from metasched.script.diagnostics import Source, source_of

if TYPE_CHECKING:
    from metasched.script.evaluate import Evaluator

_DEEPEST = 40  # the deepest nesting of macro calls


@dataclass(frozen=True, eq=False)
class Macro:
    """A macro, which scripts may call and Python code may not.

    Attributes:
        name: the name of the definition.
        body: the statements.
        signature: the parameters.
        source: the file of the definition.
        captured: the names around the definition.
        hygienic: whether names are looked up at the definition.
        receiver: the object on which a macro of a class is called.
    """

    name: str
    body: list[ast.stmt]
    signature: inspect.Signature
    source: Source
    captured: Mapping[str, Any]
    hygienic: bool = True
    receiver: tuple[Any, ...] = ()

    def __get__(self, owner: Any, kind: type) -> Macro:
        return self if owner is None else replace(self, receiver=(owner,))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise ParseError(
            f"the macro {self.name} is expanded by a script: call it inside a function under "
            "@T.prim_func or another macro, not in Python code"
        )

    def result(self) -> ast.expr:
        """The expression that the macro stands for."""
        *first, last = [s for s in self.body if not _is_text(s)] or [ast.Pass()]
        if first or not isinstance(last, ast.Return) or last.value is None:
            raise ParseError(
                f"the macro {self.name} is statements and cannot stand inside an expression; a "
                "macro for expressions is one `return`"
            )
        return last.value


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@overload
def macro(func: Callable[..., Any], /) -> Macro: ...
@overload
def macro(*, hygienic: bool = True) -> Callable[[Callable[..., Any]], Macro]: ...
def macro(
    func: Callable[..., Any] | None = None, /, *, hygienic: bool = True
) -> Macro | Callable[[Callable[..., Any]], Macro]:
    """Make a macro of a function (decorator): a script's call is replaced by its statements.

    Args:
        hygienic: True to look up names at the definition, False at the call.

    Raises:
        ParseError: for what is no function, or has no source to read.
    """

    def read(fn: Callable[..., Any]) -> Macro:
        if not isinstance(fn, FunctionType):
            raise ParseError(f"T.macro reads a function, not {type(fn).__name__}")
        source, node = source_of(fn)
        names = names_around(fn, frame)
        made = Macro(fn.__name__, node.body, inspect.signature(fn), source, names, hygienic)
        names.maps.insert(-1, {fn.__name__: made})
        return made

    frame = sys._getframe(1)
    return read if func is None else read(func)


def defined(e: Evaluator, node: ast.FunctionDef) -> Macro:
    """A macro whose definition stands inside a script."""
    spec = node.args
    defaults = [inspect.Parameter.empty] * (len(spec.args) - len(spec.defaults))
    values = [*defaults, *(e.value(d) for d in spec.defaults)]
    for odd in (spec.vararg, spec.kwarg, *spec.kwonlyargs, *spec.posonlyargs):
        if odd is not None:
            e.fail(odd, "a macro inside a function takes plain parameters")
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [
        inspect.Parameter(arg.arg, kind, default=value)
        for arg, value in zip(spec.args, values, strict=True)
    ]
    around = ChainMap(*e.scopes.maps, e.captured)  # type: ignore[arg-type]
    options = [d for d in node.decorator_list if isinstance(d, ast.Call)]
    hygienic = all(e.arguments(d)[1].get("hygienic", True) for d in options)
    signature = inspect.Signature(parameters)
    return Macro(node.name, node.body, signature, e.source, around, hygienic)


@contextmanager
def expanding(
    e: Evaluator, node: ast.Call, macro: Macro, args: list[Any], kwargs: dict[str, Any]
) -> Iterator[None]:
    """A context in which the evaluator reads the macro, with the macro's source, parameters and
    names."""
    if not e.outside.runs:
        e.fail(node, f"{macro.name!r} is a macro; a text is read, and expands no captured macro")
    if e.depth == _DEEPEST:
        e.fail(node, f"macros are expanded {_DEEPEST} deep here: {macro.name} calls itself")
    try:
        bound = macro.signature.bind(*macro.receiver, *args, **kwargs)
    except TypeError as error:
        e.fail(node, f"macro {macro.name}: {error}")
    bound.apply_defaults()
    saved = e.source, e.captured, e.scopes
    e.depth += 1
    if macro.hygienic:
        e.captured, e.scopes = macro.captured, ChainMap(dict(bound.arguments))
    else:
        e.captured = ChainMap(e.captured, macro.captured)  # type: ignore[arg-type]
        e.scopes = e.scopes.new_child(dict(bound.arguments))
    e.source = macro.source
    try:
        yield
    except ParseError as error:
        place = f"{saved[0].name}:{node.lineno - saved[0].offset}"
        note = f"{error}\nin the macro {macro.name}, called at {place}"
        raise ParseError(note, line=error.line, column=error.column) from error.__cause__
    finally:
        e.source, e.captured, e.scopes = saved
        e.depth -= 1
