"""The canonical text of a program: programs that are equal up to names have equal texts.

Every definition (parameter, loop variable, iterator, buffer, let) gets a number in order of
occurrence, and the text holds numbers in place of names. For speed, parts that several candidates
of a search share are encoded once. An expression's text numbers its own leaves (`+ %0 %1`) and is
cached on the interned node. A block's text numbers the leaves that the block defines or takes from
outside, and is cached on the block. Where a cached text is used, the numbers of its leaves at this
place are appended: `(+ %0 %1)<7,2>`. Numbers follow the occurrence at every level, so equal
structure gives equal text in every process.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.expr import Cast, Expr, FloatImm, IntImm, Let, StringImm, Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.intern import LARGE, tree_size
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle
from metasched.ir.stmt import (
    Allocate,
    AssertStmt,
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    fact,
)

_SHARED = 16  # nodes; in a large expression, a part of more nodes is written once
Leaf: TypeAlias = "Var | Buffer"
Node: TypeAlias = "Expr | Stmt | Buffer | BufferRegion | Range | PrimFunc | IRModule"


def expr_code(expr: Expr) -> tuple[str, tuple[Leaf, ...]]:
    """The text of an expression over its own leaves, and the leaves in order; cached on the
    node."""
    try:
        return expr._code  # type: ignore[no-any-return, attr-defined]
    except AttributeError:
        pass
    numbers: dict[Leaf, int] = {}
    hidden: set[Leaf] = set()
    words: list[str] = []
    code: tuple[str, tuple[Leaf, ...]]
    places: dict[Expr, int] = {}
    large = tree_size(expr) > LARGE
    stack: list[Any] = [expr]
    while stack:
        node = stack.pop()
        if large and tree_size(node) > _SHARED:
            if node in places:
                words.append(f"Same {places[node]}")
                continue
            places[node] = len(words)
        if isinstance(node, Let):  # number the variable before its uses
            hidden.add(node.var)
            numbers.setdefault(node.var, len(numbers))
            words.append(f"Let {numbers[node.var]} {node.dtype} {node.var.dtype}")
        else:
            words.append(_head(node, numbers))
        stack.extend(reversed(node.children))
    if len(words) == 1 and not numbers:
        code = words[0], ()
    else:
        code = f"({' '.join(words)})", tuple(numbers)
    if hidden:  # leaves bound here are marked, so that the encoder gives them no number
        marks = [f"{i}" for i, leaf in enumerate(numbers) if leaf in hidden]
        code = f"{code[0]}!{','.join(marks)}", tuple(v for v in numbers if v not in hidden)
    object.__setattr__(expr, "_code", code)
    return code


def _head(node: Expr, numbers: dict[Leaf, int]) -> str:
    """The text of a node without its children; it includes the number of children."""
    if isinstance(node, Var):
        return f"%{numbers.setdefault(node, len(numbers))}"
    if isinstance(node, IntImm):
        return f"{node.dtype}:{node.value}"
    if isinstance(node, BufferLoad):
        masked = "" if node.predicate is None else "?"
        return f"Load{masked}{len(node.indices)} %{numbers.setdefault(node.buffer, len(numbers))}"
    if isinstance(node, FloatImm):
        return f"{node.dtype}:{struct.pack('>d', node.value).hex()}"
    if isinstance(node, StringImm):
        return f"Text {node.value!r}"
    if isinstance(node, Cast):
        return f"Cast {node.dtype}"
    if isinstance(node, Call):
        return f"Call {node.op.name} {node.dtype} {len(node.args)}"
    if isinstance(node, (Ramp, Broadcast)):
        return f"{type(node).__name__} {node.lanes}"
    if isinstance(node, Shuffle):
        return f"Shuffle {len(node.vectors)} {node.indices}"
    return type(node).__name__


class Encoder:
    """Collects the words of one scope, numbers its leaves, and lists its free leaves."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.numbers: dict[Leaf, str] = {}
        self.free: list[Leaf] = []

    def use(self, leaf: Leaf) -> str:
        """The number of a variable or buffer; a free leaf gets a number at its first use."""
        found = self.numbers.get(leaf)
        if found is None:
            found = self.numbers[leaf] = str(len(self.numbers))
            self.free.append(leaf)
        return found

    def define(self, leaf: Leaf) -> None:
        self.numbers[leaf] = str(len(self.numbers))

    def code(self, code: tuple[str, Sequence[Leaf]]) -> None:
        """Append a cached text and the numbers that its leaves have here."""
        text, leaves = code
        if leaves:
            numbers = self.numbers
            try:
                ids = [numbers[leaf] for leaf in leaves]
            except KeyError:
                ids = [self.use(leaf) for leaf in leaves]
            text = f"{text}<{','.join(ids)}>"
        self.words.append(text)

    def expr(self, expr: Expr | None) -> None:
        if expr is None:
            self.words.append("-")
        else:
            self.code(expr_code(expr))

    def buffer(self, buffer: Buffer) -> None:
        """Define a buffer, and the unknown variables in its shape."""
        parts = (*buffer.shape, *buffer.strides)
        if buffer.elem_offset is not None:
            parts = (*parts, buffer.elem_offset)
        for part in parts:
            for leaf in expr_code(part)[1]:
                if leaf not in self.numbers:
                    self.define(leaf)
                    self.words.append(f"def {leaf.dtype}")
        self.define(buffer)
        if buffer.data not in self.numbers:
            self.define(buffer.data)
        sizes = f"{len(buffer.shape)},{len(buffer.strides)},{buffer.elem_offset is not None}"
        self.words.append(
            f"Buffer {buffer.dtype} {buffer.scope!r} {buffer.align} {buffer.offset_factor} "
            f"{sizes} @{self.numbers[buffer.data]}"
        )
        for part in parts:
            self.expr(part)

    def region(self, region: BufferRegion) -> None:
        self.words.append(f"R{self.use(region.buffer)},{len(region.region)}")
        for r in region.region:
            self.code(expr_code(r.min))
            self.code(expr_code(r.extent))

    def value(self, value: Any) -> None:
        """Append an annotation: numbers, texts, expressions, nested or not, each with its type."""
        words = self.words
        if isinstance(value, Expr):
            self.expr(value)
        elif isinstance(value, bool) or value is None:
            words.append(str(value))
        elif isinstance(value, int):
            words.append(f"i{value}")
        elif isinstance(value, float):
            words.append(f"f{struct.pack('>d', value).hex()}")
        elif isinstance(value, str):
            words.append(repr(str(value)))
        elif isinstance(value, Mapping):
            words.append(f"M{len(value)}")
            for key in sorted(value):
                words.append(repr(key))
                self.value(value[key])
        elif isinstance(value, (list, tuple)):
            words.append(f"L{len(value)}")
            for item in value:
                self.value(item)
        elif isinstance(value, Buffer):
            words.append(f"B{self.use(value)}")
        elif isinstance(value, (PrimFunc, IRModule, Stmt)):
            words.append(canonical(value)[0])
        else:
            words.append(_opaque(value))

    def annotations(self, notes: Mapping[str, Any]) -> None:
        if notes:
            self.value(notes)

    def stmt(self, stmt: Stmt) -> None:
        rule = _STMT.get(type(stmt))
        if rule is not None:
            rule(self, stmt)
        else:  # a statement that defines nothing and consists of its parts
            self.words.append(f"{type(stmt).__name__} {len(stmt.exprs)}")
            for expr in stmt.exprs:
                self.expr(expr)
            for sub in stmt.stmts:
                self.stmt(sub)

    def close(self) -> tuple[str, list[Leaf], list[Leaf]]:
        """The text, the free variables compared by identity, and all free leaves."""
        settled: list[Leaf] = list(self.free)
        words = self.words
        words.append("free")
        for leaf in settled:
            if isinstance(leaf, Var):
                words.append(str(leaf.dtype))
            else:
                words.append(f"as {self.numbers[leaf]}")
                self.buffer(leaf)
        shaping = {v for b in settled if isinstance(b, Buffer) for v in shape_leaves(b)}
        strict = [v for v in settled if isinstance(v, Var) and v not in shaping]
        return " ".join(words), list(strict), settled


def _opaque(value: Any) -> str:
    text = repr(value)
    if " at 0x" in text:
        raise TypeError(f"an annotation of type {type(value).__name__} has no canonical text")
    return f"{type(value).__name__} {text!r}"


def shape_leaves(buffer: Buffer) -> Iterable[Leaf]:
    """The variables that a definition of `buffer` may define too: its data and shape variables."""
    yield buffer.data
    for part in (*buffer.shape, *buffer.strides):
        yield from expr_code(part)[1]
    if buffer.elem_offset is not None:
        yield from expr_code(buffer.elem_offset)[1]


def _for(enc: Encoder, s: For) -> None:
    enc.words.append(f"For {s.kind.value} {s.var.dtype} {s.thread} {len(s.annotations)}")
    enc.code(expr_code(s.min))
    enc.code(expr_code(s.extent))
    enc.expr(s.step)
    enc.annotations(s.annotations)
    enc.define(s.var)
    enc.stmt(s.body)


def _realize(enc: Encoder, s: BlockRealize) -> None:
    enc.words.append(f"Realize {len(s.iter_values)}")
    for value in s.iter_values:
        enc.code(expr_code(value))
    enc.code(expr_code(s.predicate))
    enc.code(block_code(s.block))


@fact
def block_code(block: Block) -> tuple[str, tuple[Leaf, ...]]:
    """The text of a block, and the leaves it takes from outside; cached in `block.facts`."""
    enc = Encoder()
    _block(enc, block)
    return f"[{' '.join(enc.words)}]", tuple(enc.free)


def _block(enc: Encoder, block: Block) -> None:
    words = enc.words
    sizes = (block.iter_vars, block.alloc_buffers, block.match_buffers, block.reads, block.writes)
    words.append(f"Block {','.join([str(len(x)) for x in sizes])} {block.init is not None}")
    for v in block.iter_vars:
        words.append(f"{v.kind.value} {v.var.dtype}")
        enc.code(expr_code(v.dom.min))
        enc.code(expr_code(v.dom.extent))
        enc.define(v.var)
    for buffer in block.alloc_buffers:
        enc.buffer(buffer)
    for match in block.match_buffers:
        enc.region(match.source)
        enc.buffer(match.buffer)
    enc.value(block.annotations)
    for region in block.reads:
        enc.region(region)
    for region in block.writes:
        enc.region(region)
    if block.init is not None:
        enc.stmt(block.init)
    enc.stmt(block.body)


def _store(enc: Encoder, s: BufferStore) -> None:
    enc.words.append(f"Store {enc.use(s.buffer)} {len(s.indices)} {s.predicate is not None}")
    for expr in s.exprs:
        enc.code(expr_code(expr))


def _seq(enc: Encoder, s: SeqStmt) -> None:
    enc.words.append(f"Seq {len(s.items)}")
    for item in s.items:
        enc.stmt(item)


def _if(enc: Encoder, s: IfThenElse) -> None:
    enc.words.append(f"If {s.orelse is not None}")
    enc.expr(s.condition)
    for sub in s.stmts:
        enc.stmt(sub)


def _let(enc: Encoder, s: LetStmt) -> None:
    enc.words.append(f"LetStmt {s.var.dtype}")
    enc.expr(s.value)
    enc.define(s.var)
    enc.stmt(s.body)


def _attr(enc: Encoder, s: AttrStmt) -> None:
    node = enc.use(s.node) if isinstance(s.node, (Buffer, Var)) else repr(s.node)
    enc.words.append(f"Attr {node} {s.key!r}")
    enc.expr(s.value)
    enc.stmt(s.body)


def _assert(enc: Encoder, s: AssertStmt) -> None:
    enc.words.append(f"Assert {s.message!r}")
    for expr in s.exprs:
        enc.expr(expr)


def _allocate(enc: Encoder, s: Allocate) -> None:
    enc.words.append("Allocate")
    enc.buffer(s.buffer)
    enc.value(s.annotations)
    enc.stmt(s.body)


def _decl(enc: Encoder, s: DeclBuffer) -> None:
    enc.words.append(f"Decl {enc.use(s.source)}")
    enc.buffer(s.buffer)
    enc.stmt(s.body)


_STMT: dict[type[Any], Callable[[Encoder, Any], None]] = {
    For: _for, BlockRealize: _realize, BufferStore: _store, SeqStmt: _seq, IfThenElse: _if,
    LetStmt: _let, AttrStmt: _attr, AssertStmt: _assert, Allocate: _allocate, DeclBuffer: _decl,
    Block: lambda enc, s: enc.code(block_code(s)),
}  # fmt: skip


def _func(enc: Encoder, func: PrimFunc) -> None:
    enc.words.append(f"Func {len(func.params)} {func.ret_type}")
    for param in func.params:
        if isinstance(param, Buffer):
            enc.buffer(param)
        else:
            enc.define(param)
            enc.words.append(f"Scalar {param.dtype}")
    enc.value(func.attrs)
    enc.stmt(func.body)


def canonical(node: Node) -> tuple[str, list[Leaf], list[Leaf]]:
    """(text, free variables to compare by identity, all free leaves) of any piece of IR."""
    enc = Encoder()
    if isinstance(node, IRModule):
        enc.words.append(f"Module {len(node)}")
        enc.value(node.attrs)
        for name in sorted(node):
            text, strict, _ = canonical(node[name])
            enc.words.append(f"{name!r} {text}")
            enc.free.extend(strict)
        return " ".join(enc.words), enc.free, enc.free
    if isinstance(node, PrimFunc):
        _func(enc, node)
    elif isinstance(node, Expr):
        enc.expr(node)
    elif isinstance(node, Stmt):
        enc.stmt(node)
    elif isinstance(node, Buffer):
        enc.buffer(node)
    elif isinstance(node, BufferRegion):
        enc.region(node)
    elif isinstance(node, Range):
        enc.expr(node.min)
        enc.expr(node.extent)
    else:
        raise TypeError(f"{type(node).__name__} is not a piece of IR")
    return enc.close()
