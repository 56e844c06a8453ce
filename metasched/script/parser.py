"""Reads scripts as programs: functions and modules, from decorated definitions or from text.

The source is read as Python's syntax tree: `evaluate` computes numbers and builds expressions,
`statements` says what each statement word builds, `body` reads statements in order, and this file
makes functions and modules. A decorated function may call captured functions, which run at
decoration. Reading a text executes nothing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, overload

from metasched.arith.outside import first_outside
from metasched.errors import ParseError, shown_at_caller
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import HANDLE, VOID, DType
from metasched.ir.expr import Var
from metasched.ir.func import LAYOUT_FREE, IRModule, Param, PrimFunc
from metasched.ir.operators import users_code
from metasched.ir.stmt import Block, BlockRealize, FrozenMap, Stmt, frozen
from metasched.script.body import BodyReader
from metasched.script.buffers import renamed
from metasched.script.builder import Namespace, StatementWord
from metasched.script.captured import UserCode, names_around
from metasched.script.diagnostics import Source, parse_text, source_of
from metasched.script.indexing import place_key
from metasched.script.macro import macro
from metasched.script.plain import Stored, describe
from metasched.script.reader import BlockDraft
from metasched.script.statements import lookup


class FunctionReader(BodyReader):
    """Reads a function: parameters, attributes, body."""

    def function(self, node: ast.FunctionDef, *, private: bool, s_tir: bool) -> PrimFunc:
        """A whole function; without `s_tir` no root block is put around the body."""
        try:
            return self._function(node, private=private, s_tir=s_tir)
        except ParseError:
            found = self._with_whole_names(node, private, s_tir) if self.apart else None
            if found is None:
                raise
            return found
        except RecursionError:
            self.fail(node, "the statements nest too deeply: each variable that is set once nests "
                      "what follows", "keep values in a buffer")  # fmt: skip

    def _with_whole_names(
        self, node: ast.FunctionDef, private: bool, s_tir: bool
    ) -> PrimFunc | None:
        """The function where all assignments of a name are one variable, so that the first gives
        the type of all numbers that follow; None where it is refused, too."""
        again = type(self)(self.source, self.captured, self.namespaces, self.outside)
        again.whole = True
        try:
            return again.function(node, private=private, s_tir=s_tir)
        except ParseError:
            return None

    def _function(self, node: ast.FunctionDef, *, private: bool, s_tir: bool) -> PrimFunc:
        if s_tir:
            self.implicit = BlockDraft("root")
            self.drafts.append(self.implicit)
        with self.scope():
            params = [self._param(arg) for arg in self._plain_args(node)]
            self.ret_type = self._result(node.returns)
            scalars = {p.name: p for p in params if isinstance(p, Var) and not p.dtype.is_handle}
            with self.function_of(node.body, scalars):
                body = self.body(node.body, self.implicit)
        if self.implicit is not None:
            body = self._under_root(body, self.implicit)
        attrs = dict(self.attrs)
        if not private and "global_symbol" not in attrs:
            attrs = {"global_symbol": node.name, **attrs}
        matched = [self.handles.get(p) or p if isinstance(p, Var) else p for p in params]
        for buffer in self.layout_free:
            if buffer not in matched:
                self.fail(node, f"{buffer.name} in layout_free_placeholders is no parameter")
            marked = attrs.get(LAYOUT_FREE, [])
            attrs[LAYOUT_FREE] = sorted({*marked, matched.index(buffer)})
        self._require_inside(node, body)
        return PrimFunc(tuple(matched), body, frozen(attrs), self.ret_type)

    def _require_inside(self, node: ast.FunctionDef, body: Stmt) -> None:
        """Refuse an access that is certainly outside its buffer, pointing at its line."""
        found = first_outside(body)
        if found is None:
            return
        keys: list[Any] = [] if found.access is None else [place_key(found.access)]
        keys += reversed(found.stack)
        known = (self.places[key] for key in keys if key in self.places)
        source, place = next(known, (self.source, node))
        raise source.error(place, found.message, found.hint)

    def _plain_args(self, node: ast.FunctionDef) -> list[ast.arg]:
        spec = node.args
        for odd in (spec.vararg, spec.kwarg, *spec.kwonlyargs, *spec.defaults, *spec.posonlyargs):
            if odd is not None:
                self.fail(odd, "parameters are plain: no defaults, *args or keyword-only ones")
        return spec.args

    def _param(self, arg: ast.arg) -> Param:
        if arg.annotation is None:
            name = arg.arg
            hint = f'write {name}: T.Buffer((n, m), "float32") or {name}: T.int32'
            self.fail(arg, f"parameter {name!r} needs a type", hint)
        found = self.annotation(arg.annotation)
        param: Param
        if isinstance(found, Buffer):
            param = renamed(found, arg.arg)
        elif isinstance(found, DType):
            param = Var(arg.arg, found)
            if found is HANDLE:
                self.handles[param] = None
        else:
            what = f"a parameter is a buffer or a scalar, not {describe(found)}"
            self.fail(arg.annotation, what, f'write {arg.arg}: T.Buffer((n, m), "float32")')
        self.scopes[arg.arg] = param
        return param

    def _result(self, node: ast.expr | None) -> DType:
        if node is None or (isinstance(node, ast.Constant) and node.value is None):
            return VOID
        found = self.annotation(node)
        if not isinstance(found, DType):
            self.fail(node, f"a function returns a scalar type, not {describe(found)}")
        return found

    def _under_root(self, body: Stmt, draft: BlockDraft) -> Stmt:
        written = isinstance(body, BlockRealize) and not body.iter_values
        if written and body.block.name == "root" and not draft.allocs:  # type: ignore[attr-defined]
            return body
        root = Block("root", (), (), (), body, None, tuple(draft.allocs))
        return BlockRealize.plain(root)


# ---- decorators and text ---------------------------------------------------------------------


@overload
def prim_func(func: Callable[..., Any], /) -> PrimFunc: ...
@overload
def prim_func(
    *, private: bool = False, s_tir: bool = True, check_well_formed: bool = True
) -> Callable[[Callable[..., Any]], PrimFunc]: ...
def prim_func(
    func: Callable[..., Any] | None = None, /, *, private: bool = False, s_tir: bool = True,
    check_well_formed: bool = True,
) -> PrimFunc | Callable[[Callable[..., Any]], PrimFunc]:  # fmt: skip
    """Read a function as a program (decorator).

    The function itself is never executed; Python functions that its script calls run at decoration.

    Args:
        private: leave out the attribute `global_symbol`, which is the function's name otherwise.
        s_tir: put the body under a root block unless one is written; False for lowered functions.
        check_well_formed: accepted for compatibility with TVM; `ir.verify` is a separate step.

    Raises:
        ParseError: with file, line, column and what to write instead.
    """

    @shown_at_caller
    def read(fn: Callable[..., Any]) -> PrimFunc:
        if not isinstance(fn, FunctionType):
            raise ParseError(f"T.prim_func reads a function, not {type(fn).__name__}")
        source, node = source_of(fn)
        names = names_around(fn, sys._getframe(depth + 1))
        parser = FunctionReader(source, names, NAMESPACES, UserCode())
        with users_code(False):
            return parser.function(node, private=private, s_tir=s_tir)

    depth = 1 if func is None else 2
    return read if func is None else read(func)


def ir_module(cls: type) -> IRModule:
    """Read a class of functions as a module (decorator)."""
    functions = {k: v for k, v in vars(cls).items() if isinstance(v, PrimFunc)}
    for name, member in vars(cls).items():
        if isinstance(member, FunctionType):
            raise ParseError(f"{cls.__name__}.{name} has no @T.prim_func; modules hold functions")
    return IRModule(FrozenMap(functions), frozen(vars(cls).get(_ATTRS)))


_ATTRS = "_module_attrs"


def module_attrs(attrs: Mapping[str, Any]) -> None:
    """Attributes of the module, in the body of its class."""
    sys._getframe(1).f_locals[_ATTRS] = dict(attrs)


def _tir_word(name: str) -> Any:
    return _MARKS.get(name) or lookup(name)


def _ir_word(name: str) -> Any:
    if name not in _MODULE_WORDS:
        raise AttributeError(f"I has no word {name!r}")
    return _MODULE_WORDS[name]


_MARKS: dict[str, Any] = {"prim_func": StatementWord("prim_func"), "macro": macro, "inline": macro}
_MODULE_WORDS = {n: StatementWord(n) for n in ("ir_module", "module_attrs")}
TIR = Namespace("T", _tir_word)
NAMESPACES = {"metasched.script.tir": TIR, "metasched.script.ir": Namespace("I", _ir_word)}


@shown_at_caller
def parse(
    text: str, env: Mapping[str, Any] | None = None, name: str = "<script>"
) -> PrimFunc | IRModule:
    """Read a text as a program: one function under @T.prim_func, or one class of functions.

    Args:
        text: the script; imports of `tir as T` and `ir as I` may stand above it.
        env: further names the script may use, with their values.
        name: the name of the text in error messages.

    Raises:
        ParseError: with line, column and what to write instead.
    """
    source, tree = parse_text(text, name)
    names: dict[str, Any] = {"T": TIR, "I": NAMESPACES["metasched.script.ir"], **(env or {})}
    found: PrimFunc | IRModule | None = None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            _import(names, node)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            if found is not None:
                raise source.error(node, "a text holds one function or one class",
                                   "put several functions into an @I.ir_module class")  # fmt: skip
            found = _definition(source, node, names)
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise source.error(node, "only imports and one definition stand in a text")
    if found is None:
        raise ParseError(f"{name}: no function and no class in the text")
    return found


def _import(names: dict[str, Any], node: ast.ImportFrom) -> None:
    for alias in node.names:
        for module, namespace in NAMESPACES.items():
            if alias.name == module.rsplit(".", 1)[1]:
                names[alias.asname or alias.name] = namespace


def _definition(
    source: Source, node: ast.FunctionDef | ast.ClassDef, names: Mapping[str, Any]
) -> PrimFunc | IRModule:
    if isinstance(node, ast.FunctionDef):
        options = _decorator(source, node, names, "prim_func")
        flags = {"private": False, "s_tir": True, **options}
        flags.pop("check_well_formed", None)
        unknown = sorted(flags.keys() - {"private", "s_tir"})
        if unknown:
            raise source.error(node.decorator_list[0], f"T.prim_func has no option {unknown[0]!r}")
        with users_code(False):
            return FunctionReader(source, names, NAMESPACES, Stored()).function(node, **flags)
    _decorator(source, node, names, "ir_module")
    functions: dict[str, PrimFunc] = {}
    attrs: dict[str, Any] = {}
    for item in node.body:
        if isinstance(item, ast.FunctionDef):
            func = _definition(source, item, names)
            assert isinstance(func, PrimFunc)
            functions[item.name] = func
        elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
            reader = FunctionReader(source, names, NAMESPACES, Stored())
            word = reader.value(item.value.func)
            if word is not _MODULE_WORDS["module_attrs"]:
                raise source.error(item, "a module holds functions and I.module_attrs({...})")
            attrs.update(reader.mapping(item, reader.arguments(item.value)[0][0]))
        elif not isinstance(item, ast.Pass) and not (
            isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)
        ):
            raise source.error(item, "a module holds functions and I.module_attrs({...})")
    return IRModule(FrozenMap(functions), frozen(attrs))


def _decorator(
    source: Source, node: ast.FunctionDef | ast.ClassDef, names: Mapping[str, Any], want: str
) -> dict[str, Any]:
    """The options of the decorator that must stand above a definition."""
    reader = FunctionReader(source, names, NAMESPACES, Stored())
    letter = "T" if want == "prim_func" else "I"
    for item in node.decorator_list:
        target = item.func if isinstance(item, ast.Call) else item
        found = reader.value(target)
        if isinstance(found, StatementWord) and found.name == want:
            return reader.arguments(item)[1] if isinstance(item, ast.Call) else {}
    raise source.error(node, f"{node.name} has no @{letter}.{want}",
                       f"write @{letter}.{want} above it")  # fmt: skip
