"""Matches a block with the description of an intrinsic, and finds the buffer regions it uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from metasched.arith.affine import as_written
from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad, BufferRegion, Range
from metasched.ir.describe import describe, show_expr
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    Add,
    Arithmetic,
    Cast,
    Expr,
    IntImm,
    Let,
    Max,
    Min,
    Mul,
    Var,
    as_int,
    binary,
)
from metasched.ir.stmt import (
    AttrStmt,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    evolve,
)
from metasched.ir.visit import free_vars, substitute, transform, walk
from metasched.schedule.primitives.tensor_mismatch import (
    ITERS,
    ORDER,
    SAME,
    TYPE,
    Mismatch,
    in_order,
    in_scope,
    one_place,
    split_to,
    turned_to,
)

_COMMUTE = (Add, Mul, Min, Max)
Access = BufferLoad | BufferStore
_PLAIN = (SeqStmt, IfThenElse, BufferStore, LetStmt, AttrStmt)


class Match:
    """The match of a block's body with an intrinsic's description.

    Attributes:
        parts: for each buffer of the description, the region of the program that takes its place.
    """

    def __init__(self, block: Block, desc: Block, params: Sequence[Buffer]) -> None:
        """Raises Mismatch."""
        self.block, self.params = block, params
        self.vars: dict[Var, Expr] = {}
        self.parts: dict[Buffer, BufferRegion] = {}
        self.ranges: dict[Var, Range] = {v.var: v.dom for v in block.iter_vars}
        if block.alloc_buffers or desc.alloc_buffers or block.match_buffers or desc.match_buffers:
            raise Mismatch(f"{block.name} allocates or matches buffers of its own")
        self.known = Analyzer(self.ranges)
        self.stmt(block.body, desc.body)
        for param in params:
            if param not in self.parts:
                raise Mismatch(f"the description does not use its parameter {param.name}")

    # -- statements ----------------------------------------------------------------------------

    def stmt(self, mine: Stmt, theirs: Stmt) -> None:
        if type(mine) is not type(theirs):
            what = f"{describe(mine)} stands where {describe(theirs)} is described"
            step = "tensorize at the loop with as many loops inside as the description has"
            raise Mismatch(what, mine, theirs, step)
        if isinstance(mine, For) and isinstance(theirs, For):
            self._loop(mine, theirs)
        elif isinstance(mine, BlockRealize) and isinstance(theirs, BlockRealize):
            self._realize(mine, theirs)
        elif isinstance(mine, _PLAIN):
            self._plain(mine, theirs)
        else:
            raise Mismatch(f"{describe(mine)} cannot be compared", mine, theirs)

    def _plain(self, mine: Stmt, theirs: Stmt) -> None:
        if len(mine.stmts) != len(theirs.stmts):
            what = f"{describe(mine)} has {len(mine.stmts)} parts, not {len(theirs.stmts)}"
            raise Mismatch(what, mine, theirs)
        if isinstance(mine, BufferStore) and isinstance(theirs, BufferStore):
            if mine.predicate is not None or theirs.predicate is not None:
                raise Mismatch(f"{describe(mine)} is masked", mine, theirs)
            self.access(mine, theirs)
            self.expr(mine.value, theirs.value)
            return
        if isinstance(mine, AttrStmt) and isinstance(theirs, AttrStmt) and mine.key != theirs.key:
            raise Mismatch(f"the attribute {mine.key} is not {theirs.key}", mine, theirs)
        for a, b in zip(mine.exprs, theirs.exprs, strict=True):
            self.expr(a, b)
        if isinstance(mine, LetStmt) and isinstance(theirs, LetStmt):
            self.vars[theirs.var] = mine.var
        for s, t in zip(mine.stmts, theirs.stmts, strict=True):
            self.stmt(s, t)

    def _loop(self, mine: For, theirs: For) -> None:
        name = mine.var.name
        if mine.kind is not theirs.kind or mine.thread != theirs.thread:
            what = f"loop {name} is {mine.kind.value}, described {theirs.kind.value}"
            raise Mismatch(what, mine, theirs, f"tensorize before loop {name} changes its kind")
        if dict(mine.annotations) != dict(theirs.annotations):
            what = f"loop {name} has other annotations than described"
            raise Mismatch(what, mine, theirs, f"unannotate loop {name} first")
        pairs = [(mine.min, theirs.min, "begins at"), (mine.extent, theirs.extent, "has extent")]
        for a, b, what in pairs:
            if not self._equal(a, b):
                text = f"loop {name} {what} {show_expr(a)}, described {show_expr(b)}"
                raise Mismatch(text, mine, theirs, split_to(name, mine.extent, theirs.extent))
        self.vars[theirs.var] = mine.var
        self.stmt(mine.body, theirs.body)

    def _realize(self, mine: BlockRealize, theirs: BlockRealize) -> None:
        a, b = mine.block, theirs.block
        if len(a.iter_vars) != len(b.iter_vars):
            raise Mismatch(
                f"block {a.name} has {len(a.iter_vars)} iterators, described {len(b.iter_vars)}",
                mine,
                theirs,
                "transform_block_layout, before loops are split, fuses or adds iterators",
            )
        if dict(a.annotations) != dict(b.annotations):
            what = f"block {a.name} has other annotations than described"
            raise Mismatch(what, mine, theirs, f"unannotate block {a.name} first")
        kinds = [[v.kind for v in block.iter_vars] for block in (a, b)]
        turned = kinds[0] != kinds[1] and Counter(kinds[0]) == Counter(kinds[1])
        for x, y in zip(mine.exprs, theirs.exprs, strict=True):
            if x is not y and not self._equal(x, y):
                raise Mismatch(
                    f"block {a.name} has {show_expr(x)} among its bindings and predicate where "
                    f"{show_expr(y)} is described",
                    mine,
                    theirs,
                    ITERS if turned else ORDER,
                )
        for v, w in zip(a.iter_vars, b.iter_vars, strict=True):
            if v.kind is not w.kind:
                raise Mismatch(
                    f"iterator {v.var.name} of block {a.name} is {v.kind.value}, "
                    f"described {w.kind.value}",
                    mine,
                    theirs,
                    ITERS if turned else SAME,
                )
            if not (self._equal(v.dom.min, w.dom.min) and self._equal(v.dom.extent, w.dom.extent)):
                raise Mismatch(
                    f"iterator {v.var.name} of block {a.name} has extent "
                    f"{show_expr(v.dom.extent)}, described {show_expr(w.dom.extent)}",
                    mine,
                    theirs,
                    split_to(v.var.name, v.dom.extent, w.dom.extent),
                )
            self.vars[w.var] = v.var
            self.ranges[v.var] = v.dom
        if a.alloc_buffers or b.alloc_buffers or a.match_buffers or b.match_buffers:
            raise Mismatch(f"block {a.name} allocates or matches buffers", mine, theirs)
        if (a.init is None) is not (b.init is None):
            has = "has no init" if a.init is None else "has an init"
            what = f"block {a.name} {has}, unlike the description"
            step = f"describe the update alone: blockize keeps the init outside of {a.name}"
            if a.init is not None:
                step = f"decompose_reduction {a.name} at the outermost loop of the description"
            raise Mismatch(what, mine, theirs, step)
        self.known = Analyzer(self.ranges)
        for s, t in zip(a.stmts, b.stmts, strict=True):
            self.stmt(s, t)

    # -- expressions ---------------------------------------------------------------------------

    def _equal(self, mine: Expr, theirs: Expr) -> bool:
        """Whether `mine` equals `theirs`, with the description's variables replaced."""
        if not mine.dtype.is_int:
            same = all(self.vars.get(v, v).dtype is v.dtype for v in free_vars(theirs))
            value = substitute(theirs, self.vars) if same else theirs
        else:
            value = self._index(theirs, mine.dtype)
        return value.dtype is mine.dtype and (value is mine or self.known.equal(mine, value))

    def _index(self, theirs: Expr, dtype: DType) -> Expr:
        """An index of the description over the program's variables.

        The program's loops may count in another type, because indices do not overflow.
        """
        if isinstance(theirs, IntImm):
            return IntImm(dtype, theirs.value)
        if isinstance(theirs, Cast) and theirs.value.dtype.is_int:
            return self._index(theirs.value, dtype)
        if isinstance(theirs, Arithmetic) and theirs.dtype.is_int:
            return binary(type(theirs), self._index(theirs.a, dtype), self._index(theirs.b, dtype))
        if isinstance(theirs, Var):
            return self.vars.get(theirs, theirs).astype(dtype)
        same = all(self.vars.get(v, v).dtype is v.dtype for v in free_vars(theirs))
        return (substitute(theirs, self.vars) if same else theirs).astype(dtype)

    def expr(self, mine: Expr, theirs: Expr) -> None:
        if isinstance(mine, BufferLoad) and isinstance(theirs, BufferLoad):
            self.access(mine, theirs)
            return
        if isinstance(theirs, Var):
            if self.vars.get(theirs) is not mine:
                what = f"{show_expr(mine)} stands where {theirs.name} is described"
                raise Mismatch(what, mine, theirs)
            return
        if type(mine) is not type(theirs) or mine.dtype is not theirs.dtype:
            raise Mismatch(
                f"{show_expr(mine)} ({mine.dtype}) stands where {show_expr(theirs)} "
                f"({theirs.dtype}) is described",
                mine,
                theirs,
                SAME if mine.dtype is theirs.dtype else TYPE,
            )
        if isinstance(mine, Let):
            raise Mismatch(f"{show_expr(mine)} cannot be compared", mine, theirs)
        if isinstance(mine, _COMMUTE):
            self._either_order(mine.children, theirs.children)
            return
        self._fields(mine, theirs)

    def _either_order(self, mine: Sequence[Expr], theirs: Sequence[Expr]) -> None:
        saved = dict(self.parts)
        try:
            for a, b in zip(mine, theirs, strict=True):
                self.expr(a, b)
        except Mismatch as first:
            self.parts = saved
            try:
                for a, b in zip(mine, reversed(theirs), strict=True):
                    self.expr(a, b)
            except Mismatch:
                raise first from None

    def _fields(self, mine: Expr, theirs: Expr) -> None:
        children = set(map(id, (*mine.children, *theirs.children)))
        for name in mine.fields:
            a, b = getattr(mine, name), getattr(theirs, name)
            inner = a if isinstance(a, tuple) else (a,)
            if all(id(x) in children for x in inner) and isinstance(a, (Expr, tuple)):
                continue
            if a != b:
                what = f"{show_expr(mine)} stands where {show_expr(theirs)} is described"
                raise Mismatch(what, mine, theirs)
        if len(mine.children) != len(theirs.children):
            what = f"{show_expr(mine)} has other operands than {show_expr(theirs)}"
            raise Mismatch(what, mine, theirs)
        for x, y in zip(mine.children, theirs.children, strict=True):
            self.expr(x, y)

    # -- buffers -------------------------------------------------------------------------------

    def access(self, mine: Access, theirs: Access) -> None:
        """Match one access: raise unless it is the same element relative to the start of the
        part."""
        buffer, wanted = mine.buffer, theirs.buffer
        part = self.parts.get(wanted)
        if part is None:
            part = self.parts[wanted] = self._part(mine, theirs)
        if part.buffer is not buffer:
            what = f"{part.buffer.name} and {buffer.name} stand for one {wanted.name}"
            raise Mismatch(what, mine, theirs)
        lead = buffer.ndim - wanted.ndim
        for axis, index in enumerate(mine.indices):
            offset = index - part.region[axis].min
            shown = theirs.indices[axis - lead] if axis >= lead else None
            same = (
                as_int(self.known.simplify(offset)) == 0
                if shown is None
                else self.known.equal(offset, self._index(shown, offset.dtype))
            )
            if not same:
                what = "0" if shown is None else show_expr(shown)
                step = f"{ORDER}, or {turned_to(buffer, wanted)}"
                if min(as_written(offset).terms.values(), default=1) < 0:  # it runs backwards
                    step = in_order(self.block, buffer)
                raise Mismatch(
                    f"index {show_expr(index)} of {buffer.name} is not {what} from where its part "
                    "begins",
                    mine,
                    theirs,
                    step,
                )

    def _part(self, mine: Access, theirs: Access) -> BufferRegion:
        """The region of the buffer that the block touches, fit for a buffer of the description."""
        buffer, wanted = mine.buffer, theirs.buffer
        if buffer.dtype is not wanted.dtype or not _holds(buffer.scope, wanted.scope):
            raise Mismatch(
                f"{buffer.name} is {buffer.dtype} in {buffer.scope}, {wanted.name} is described as "
                f"{wanted.dtype} in {wanted.scope}",
                mine,
                theirs,
                TYPE if buffer.dtype is not wanted.dtype else in_scope(buffer, wanted.scope),
            )
        regions = [r for r in (*self.block.writes, *self.block.reads) if r.buffer is buffer]
        if wanted not in self.params or not regions or buffer.ndim < wanted.ndim:
            raise Mismatch(f"{buffer.name} cannot stand for {wanted.name}", mine, theirs)
        lead = buffer.ndim - wanted.ndim
        first = regions[0]
        sizes = [as_int(r.extent) for r in first.region]
        shape = (*[1] * lead, *(as_int(s) for s in wanted.shape))
        if tuple(sizes) != shape:
            what = f"the part {sizes} of {buffer.name} is not {list(shape)} as described"
            turned = sorted(map(str, sizes)) == sorted(map(str, shape))
            step = turned_to(buffer, wanted) if turned else in_order(self.block, buffer)
            several = len(_places(self.block, buffer)) > 1
            raise Mismatch(what, mine, theirs, one_place(buffer) if several else step)
        for other in regions[1:]:
            for a, b in zip(first.region, other.region, strict=True):
                if not (self.known.equal(a.min, b.min) and self.known.equal(a.extent, b.extent)):
                    what = f"{self.block.name} touches two parts of {buffer.name}"
                    raise Mismatch(what, mine, theirs, one_place(buffer))
        return first


def match(block: Block, desc: Block, params: Sequence[Buffer]) -> Match:
    """The match of a block with a description, where loops of one step need no partner.

    Raises Mismatch, for the block and the description with all their loops.
    """
    try:
        return Match(block, desc, params)
    except Mismatch as error:
        short = evolve(block, body=_long(block.body)), evolve(desc, body=_long(desc.body))
        if short[0].body is block.body and short[1].body is desc.body:
            raise
        try:
            return Match(*short, params)
        except Mismatch:
            raise error from None


def _long(body: Stmt) -> Stmt:
    """A body without serial loops of one step and without iterators of one value."""

    def on_stmt(node: Stmt) -> Stmt | None:
        if isinstance(node, For):
            plain = node.kind is ForKind.SERIAL and not node.annotations
            return substitute(node.body, {node.var: node.min}) if plain and _one(node) else None
        if not isinstance(node, BlockRealize):
            return None
        pairs = list(zip(node.block.iter_vars, node.iter_values, strict=True))
        units: dict[Var, Expr] = {v.var: v.dom.min for v, _ in pairs if _one(v.dom)}
        if not units:
            return None
        kept = [(v, value) for v, value in pairs if v.var not in units]
        block = node.block.rebuild(
            [substitute(s, units) for s in node.block.stmts],
            [substitute(e, units) for e in node.block.exprs],
        )
        block = evolve(block, iter_vars=tuple(v for v, _ in kept))
        return BlockRealize(tuple(value for _, value in kept), node.predicate, block)

    return transform(body, on_stmt)


def _one(steps: For | Range) -> bool:
    return as_int(steps.extent) == 1


def _places(block: Block, buffer: Buffer) -> set[tuple[Expr, ...]]:
    """The indices at which the statements of a block read a buffer."""
    loads = (e for e in walk(block.body) if isinstance(e, BufferLoad))
    return {e.indices for e in loads if e.buffer is buffer}


def no_alias(parts: Mapping[Buffer, BufferRegion], desc: Block) -> None:
    """Raise Mismatch if a written buffer stands for two buffers of the description."""
    written = {r.buffer for r in desc.writes}
    seen: dict[Buffer, Any] = {}
    for wanted, region in parts.items():
        other = seen.setdefault(region.buffer, wanted)
        if other is not wanted and not written.isdisjoint((other, wanted)):
            name = region.buffer.name
            what = f"{name} stands for both {other.name} and {wanted.name}"
            step = f"let the program read a copy of {name}: a step that makes one changes results"
            raise Mismatch(what, step=step)


def _holds(scope: str, described: str) -> bool:
    """Whether memory of a scope serves where a description names another: the memory of one thread
    (`local`) has addresses like the memory of all (`global`)."""
    return scope == described or (scope == "local" and described == "global")
