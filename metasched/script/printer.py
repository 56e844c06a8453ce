"""Prints programs in one canonical form that the parser reads back to an equal program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import metasched.arith.specialize  # noqa: F401  enters PrimFunc.specialize
from metasched.ir.buffer import Buffer, BufferLoad, Range
from metasched.ir.expr import TRUE, Expr, IntImm, Var
from metasched.ir.func import IRModule, PrimFunc, Printed
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    Break,
    BufferStore,
    Continue,
    DeclBuffer,
    Evaluate,
    For,
    ForKind,
    IfThenElse,
    IterVar,
    LetStmt,
    Return,
    SeqStmt,
    Stmt,
    While,
)
from metasched.ir.visit import breaks, free_vars, shared_parts
from metasched.script.doc import CLOSE, OPEN, Doc, Names
from metasched.script.print_expr import ExprPrinter, quote
from metasched.script.undefined import symbols, undefined
from metasched.script.words import REMAP_LETTER

Node = PrimFunc | IRModule | Stmt | Expr | Buffer
WIDTH = 100


def script(node: Node, name: str | None = None) -> str:
    """The text of a program or of a part of a program.

    Args:
        node: the program or part.
        name: the printed name of a function.

    `parse` reads the text of a function or module back to a structurally equal program. Names are
    made unique; constants keep their types.
    """
    printer = Printer()
    if isinstance(node, Buffer):
        return printer.expr.names.get(node)
    if isinstance(node, Expr):
        return printer.expr.text(node)
    printer.top(node, name)
    return printer.doc.render()


Printed.script = script  # type: ignore[method-assign, assignment]


def script_with_marks(node: Node, marks: Iterable[Stmt | Expr], context: int | None = None) -> str:
    """The text with a line `# ^^^^` below each of the statements and expressions in `marks`.

    With `context` only that many lines around each mark are kept.
    """
    printer = Printer(frozenset(marks))
    if isinstance(node, (Expr, Buffer)):
        printer.doc.line(printer.expr.text(node) if isinstance(node, Expr) else node.name)
    else:
        printer.top(node, None)
    return printer.doc.render(context)


class Printer:
    """Prints statements and functions into a Doc."""

    def __init__(self, marked: frozenset[Any] = frozenset()) -> None:
        self.doc = Doc()
        self.names = Names()
        self.marked = marked
        self.expr = ExprPrinter(self.names, marked)
        self.loops: dict[Expr, Range] = {}  # domains of the plain loops around, for remap

    # ---- functions -------------------------------------------------------------------------

    def top(self, node: PrimFunc | IRModule | Stmt, name: str | None) -> None:
        if isinstance(node, PrimFunc):
            self.function(node, name or str(node.attrs.get("global_symbol", "main")))
        elif isinstance(node, IRModule):
            self.module(node, name or "Module")
        else:
            self.stmt(node, last=True)

    def module(self, module: IRModule, name: str) -> None:
        self.doc.line("@I.ir_module")
        self.doc.line(f"class {name}:")
        with self.doc.indented():
            if module.attrs:
                self.doc.line(f"I.module_attrs({self.expr.value(module.attrs)})")
                self.doc.line("")
            if not module:
                self.doc.line("pass")
            for i, (key, func) in enumerate(module.items()):
                if i:
                    self.doc.line("")
                with self.names.scope():
                    self.function(func, key)

    def function(self, func: PrimFunc, name: str) -> None:
        """Print a function: decorator, signature, declarations, body."""
        symbol = func.attrs.get("global_symbol")
        options = [] if _rooted(func) else ["s_tir=False"]
        options += [] if symbol is not None else ["private=True"]
        self.doc.line(f"@T.prim_func({', '.join(options)})" if options else "@T.prim_func")
        attrs = {k: v for k, v in func.attrs.items() if k != "global_symbol" or v != name}
        handles = self._signature(func, name)
        with self.doc.indented():
            if attrs:
                self.doc.line(f"T.func_attr({self.expr.value(attrs)})")
            for handle, buffer in handles:
                self._declare_symbols(buffer)
                self._buffer_line(buffer, f"T.match_buffer({handle}, ", explicit_offset=True)
            self._declare_free(func)
            root = _implicit_root(func) if func.body not in self.marked else None
            if root is None or root in self.marked:
                self._body(func.body)
            else:
                for buffer in root.alloc_buffers:
                    self._declare_symbols(buffer)
                    self._buffer_line(buffer, "T.alloc_buffer(")
                self._body(root.body)

    def _signature(self, func: PrimFunc, name: str) -> list[tuple[str, Buffer]]:
        """Print the def line(s); returns the buffers with symbolic shapes, printed as handles."""
        handles: list[tuple[str, Buffer]] = []
        params: list[str] = []
        for param in func.params:
            if isinstance(param, Var):
                params.append(f"{self.names.define(param)}: T.{param.dtype}")
            elif symbols(param):
                handle = self.names.fresh(f"var_{self.names.define(param)}")
                handles.append((handle, param))
                params.append(f"{handle}: T.handle")
            else:
                args = self.expr.buffer_args(param, explicit_offset=True)
                params.append(f"{self.names.define(param)}: T.Buffer({args})")
        result = "" if func.ret_type.kind == "void" else f" -> T.{func.ret_type}"
        whole = f"def {name}({', '.join(params)}){result}:"
        if len(whole) <= WIDTH:
            self.doc.line(whole)
            return handles
        self.doc.line(f"def {name}(")
        with self.doc.indented():
            for text in params:
                self.doc.line(f"{text},")
        self.doc.line(f"){result}:")
        return handles

    def _declare_free(self, func: PrimFunc) -> None:
        """Declare variables and buffers of the body that the function does not define."""
        variables, buffers = undefined(func)
        for var in variables:
            if var not in self.names:
                self.doc.line(f"{self.names.define(var)} = T.{var.dtype}()")
        for buffer in buffers:
            if buffer not in self.names:
                self._declare_symbols(buffer)
                self._buffer_line(buffer, "T.Buffer(", explicit_offset=True)

    def _declare_symbols(self, buffer: Buffer) -> None:
        for var in symbols(buffer):
            if var not in self.names:
                self.doc.line(f"{self.names.define(var)} = T.{var.dtype}()")

    def _buffer_line(self, buffer: Buffer, word: str, *, explicit_offset: bool = False) -> None:
        args = self.expr.buffer_args(buffer, explicit_offset)
        name = self.names.get(buffer) if buffer in self.names else self.names.define(buffer)
        self.doc.line(f"{name} = {word}{args})")

    # ---- statements ------------------------------------------------------------------------

    def stmt(self, node: Stmt, last: bool) -> None:
        """Print one statement; if it is the `last` one, a scope needs no `with`."""
        with self._shared(() if isinstance(node, Block) else node.exprs):
            _STMTS[type(node)](self, node, last)

    @contextmanager
    def _shared(self, exprs: Sequence[Expr]) -> Iterator[None]:
        """Inside the `with` body, shared parts of large expressions have names, printed here."""
        before = self.expr.named
        self.expr.named = dict(before)
        for part in shared_parts(exprs):
            if part not in before:
                text, name = self.expr.typed(part), self.names.fresh("x")
                self.doc.line(f"{name} = T.meta_var({text})")
                self.expr.named[part] = name
        yield
        self.expr.named = before

    def _line(self, node: object, text: str) -> None:
        self.doc.line(f"{OPEN}{text}{CLOSE}" if node in self.marked else text)

    def _body(self, body: Stmt) -> None:
        with self.names.scope():
            self.stmt(body, True)

    def _under(self, node: object, header: str, body: Stmt) -> None:
        self._line(node, header)
        with self.doc.indented():
            self._body(body)

    def _seq(self, node: SeqStmt, last: bool) -> None:
        for item in node.items[:-1]:
            self.stmt(item, False)
        self.stmt(node.items[-1], last)

    def _scoped(self, node: Stmt, last: bool, word: str, item: Buffer | Var, body: Stmt) -> None:
        """Print a definition: an assignment when it is the last statement, else a `with`."""
        if last:
            self._line(node, f"{self.names.define(item)} = {word}")
            self.stmt(body, True)
            return
        with self.names.scope():
            self._under(node, f"with {word} as {self.names.define(item)}:", body)

    def _for(self, node: For, last: bool) -> None:
        nest = self._nest(node)
        inner = nest[-1]
        texts = [self._extents(f) for f in nest] if len(nest) == 1 else [
            self.expr.text(f.extent) for f in nest
        ]  # fmt: skip
        word = texts[0] if len(nest) == 1 else f"T.grid({', '.join(texts)})"
        with self.names.scope():
            names = ", ".join(self.names.define(f.var) for f in nest)
            for f in nest:
                if f.step is None:
                    self.loops[f.var] = Range(f.min, f.extent)
            self._under(node, f"for {names} in {word}:", inner.body)

    def _nest(self, node: For) -> list[For]:
        """The loops from `node` inwards that can be printed as one T.grid; in Python, a break
        would leave all of them."""
        nest = [node]
        seen = {node.var}
        while _is_grid(nest[-1]) and nest[-1] not in self.marked:
            body = nest[-1].body
            if not isinstance(body, For) or body in self.marked or not _is_grid(body):
                break
            if not seen.isdisjoint(free_vars(body.extent)):
                break
            nest.append(body)
            seen.add(body.var)
        return nest[:-1] if len(nest) > 1 and breaks(nest[-1].body) else nest

    def _extents(self, node: For) -> str:
        """The text after `in`: the loop's kind, bounds and annotations."""
        start, stop = self.expr.span(node.min, node.extent, node.step)
        plain = node.kind is ForKind.SERIAL and not node.annotations
        args = [stop] if start is None else [start, stop]
        if plain and node.step is not None:
            args = [start or "0", stop, self.expr.text(node.step)]
        elif node.step is not None:
            args.append(f"step={self.expr.text(node.step)}")
        if node.thread is not None:
            args.append(f"thread={quote(node.thread)}")
        if node.annotations:
            args.append(f"annotations={self.expr.value(node.annotations)}")
        return f"{'range' if plain else 'T.' + node.kind.value}({', '.join(args)})"

    def _while(self, node: While, last: bool) -> None:
        self._under(node, f"while {self.expr.text(node.condition)}:", node.body)

    def _if(self, node: IfThenElse, last: bool, word: str = "if") -> None:
        self._under(node, f"{word} {self.expr.text(node.condition)}:", node.then)
        if isinstance(node.orelse, IfThenElse) and not shared_parts(node.orelse.exprs):
            self._if(node.orelse, last, "elif")
        elif node.orelse is not None:
            self.doc.line("else:")
            with self.doc.indented():
                self._body(node.orelse)

    def _return(self, node: Return, last: bool) -> None:
        value = "" if node.value is None else f" {self.expr.typed(node.value)}"
        self._line(node, f"return{value}")

    def _store(self, node: BufferStore, last: bool) -> None:
        lanes = BufferLoad(node.buffer, node.indices).dtype
        value = self.expr.of_type(node.value, lanes)
        if node.predicate is None:
            target = self.expr.access(node.buffer, node.indices)
            self._line(node, f"{target} = {value}")
            return
        name, mask = self.names.get(node.buffer), self.expr.text(node.predicate)
        index = self.expr.args(node.indices)
        self._line(node, f"{name}.vstore([{index}], {value}, predicate={mask})")

    def _evaluate(self, node: Evaluate, last: bool) -> None:
        self._line(node, f"T.evaluate({self.expr.text(node.value)})")

    def _let(self, node: LetStmt, last: bool) -> None:
        if last:
            value = self.expr.of_type(node.value, node.var.dtype)
            name = self.names.define(node.var)
            self._line(node, f"{name}: T.{node.var.dtype} = {value}")
            self.stmt(node.body, True)
            return
        self._scoped(node, last, f"T.LetStmt({self.expr.typed(node.value)})", node.var, node.body)

    def _attr(self, node: AttrStmt, last: bool) -> None:
        target = node.node
        text = self.names.get(target) if isinstance(target, (Buffer, Var)) else (
            "None" if target is None else quote(target)
        )  # fmt: skip
        word = f"T.attr({text}, {quote(node.key)}, {self.expr.text(node.value)})"
        if last:
            self._line(node, word)
            self.stmt(node.body, True)
        else:
            self._under(node, f"with {word}:", node.body)

    def _assert(self, node: AssertStmt, last: bool) -> None:
        self._line(node, f"assert {self.expr.text(node.condition)}, {quote(node.message)}")

    def _allocate(self, node: Allocate, last: bool) -> None:
        args = self.expr.buffer_args(node.buffer)
        if node.annotations:
            args += f", annotations={self.expr.value(node.annotations)}"
        self._scoped(node, last, f"T.allocate({args})", node.buffer, node.body)

    def _decl(self, node: DeclBuffer, last: bool) -> None:
        source = self.names.get(node.source)
        pointer = self.names.get(node.source.data)
        shared = node.buffer.data is node.source.data
        link = f"data={pointer}" if shared else f"source={source}"
        if shared and pointer != f"{source}.data":
            link += f", source={source}"
        args = self.expr.buffer_args(node.buffer)
        self._scoped(node, last, f"T.decl_buffer({args}, {link})", node.buffer, node.body)

    # ---- blocks ----------------------------------------------------------------------------

    def _realize(self, node: BlockRealize, last: bool) -> None:
        self._block(node.block, last, node)

    def _block(self, block: Block, last: bool, realize: BlockRealize | None = None) -> None:
        marked = realize if realize in self.marked else block
        self._line(marked, f"with T.block({quote(block.name)}):")
        with self.doc.indented(), self.names.scope():
            self._iterators(block, realize)
            with self._shared(block.exprs):
                self._declarations(block, realize)
            if block.init is not None:
                self._under(None, "with T.init():", block.init)
            self._body(block.body)

    def _declarations(self, block: Block, realize: BlockRealize | None) -> None:
        """Print what stands between the iterators of a block and its body."""
        if realize is not None and realize.predicate is not TRUE:
            self.doc.line(f"T.where({self.expr.text(realize.predicate)})")
        for word, regions in (("reads", block.reads), ("writes", block.writes)):
            inside = ", ".join(self.expr.region(r) for r in regions)
            self.doc.line(f"T.{word}({inside})")
        if block.annotations:
            self.doc.line(f"T.block_attr({self.expr.value(block.annotations)})")
        for buffer in block.alloc_buffers:
            self._declare_symbols(buffer)
            self._buffer_line(buffer, "T.alloc_buffer(")
        for match in block.match_buffers:
            source = self.expr.region(match.source)
            self._declare_symbols(match.buffer)
            word = f"T.match_buffer({source}, "
            self._buffer_line(match.buffer, word, explicit_offset=True)

    def _iterators(self, block: Block, realize: BlockRealize | None) -> None:
        values = realize.iter_values if realize is not None else ()
        bound = [*values, *[None] * (len(block.iter_vars) - len(values))]
        pairs = list(zip(block.iter_vars, bound, strict=True))
        while pairs:
            run = 0
            while run < len(pairs) and self._remaps(*pairs[run]):
                run += 1
            if run >= 2:
                letters = "".join(REMAP_LETTER[v.kind] for v, _ in pairs[:run])
                values_text = self.expr.args([e for _, e in pairs[:run] if e is not None])
                names = ", ".join(self.names.define(v.var) for v, _ in pairs[:run])
                self.doc.line(f'{names} = T.axis.remap("{letters}", [{values_text}])')
                pairs = pairs[run:]
                continue
            self._axis(*pairs.pop(0))

    def _remaps(self, iter_var: IterVar, value: Expr | None) -> bool:
        domain = None if value is None else self.loops.get(value)
        if domain is None or iter_var.kind not in REMAP_LETTER:
            return False
        return domain.min is iter_var.dom.min and domain.extent is iter_var.dom.extent

    def _axis(self, iter_var: IterVar, value: Expr | None) -> None:
        start, stop = self.expr.span(iter_var.dom.min, iter_var.dom.extent)
        domain = stop if start is None else f"({start}, {stop})"
        tail = ""
        if value is not None:
            both = value.dtype is iter_var.var.dtype
            tail = f", {self.expr.text(value) if both else self.expr.typed(value)}"
        word = f"T.axis.{iter_var.kind.value}({domain}{tail})"
        self.doc.line(f"{self.names.define(iter_var.var)} = {word}")


_STMTS: dict[type[Stmt], Callable[[Printer, Any, bool], None]] = {
    For: Printer._for,
    While: Printer._while,
    Break: lambda p, n, last: p._line(n, "break"),
    Continue: lambda p, n, last: p._line(n, "continue"),
    Return: Printer._return,
    IfThenElse: Printer._if,
    SeqStmt: Printer._seq,
    BufferStore: Printer._store,
    Evaluate: Printer._evaluate,
    LetStmt: Printer._let,
    AttrStmt: Printer._attr,
    AssertStmt: Printer._assert,
    Allocate: Printer._allocate,
    DeclBuffer: Printer._decl,
    BlockRealize: Printer._realize,
    Block: Printer._block,
}


def _is_grid(node: For) -> bool:
    """Whether a loop is serial, starts at zero and has only an extent, as T.grid needs."""
    zero = isinstance(node.min, IntImm) and node.min.value == 0
    same = node.min.dtype is node.extent.dtype
    plain = node.kind is ForKind.SERIAL and node.step is None and not node.annotations
    return zero and same and plain


def _rooted(func: PrimFunc) -> bool:
    body = func.body
    return isinstance(body, BlockRealize) and body.block.name == "root" and not body.iter_values


def _implicit_root(func: PrimFunc) -> Block | None:
    """The root block, if the parser would add an equal one by itself; else None."""
    if not _rooted(func):
        return None
    realize = func.body
    assert isinstance(realize, BlockRealize)
    block = realize.block
    declared = (block.iter_vars, block.reads, block.writes, block.match_buffers, block.annotations)
    if any(declared) or block.init is not None or realize.predicate is not TRUE:
        return None
    inner = block.body
    if isinstance(inner, BlockRealize) and inner.block.name == "root" and not inner.iter_values:
        return None
    return block
