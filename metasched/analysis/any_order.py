"""Do updates of one element give the same result in every order?

`c + x + y` is `c + y + x`, so sums may change their order; updates `c * 2 + x` may not. An update
is one operation on the element: a sum, product, minimum, maximum, `and`, `or` or `xor`. It may also
choose between such an update and the old content. What cannot be looked into (machine
instructions, foreign code, a value kept in other memory of the block) is taken at its word: the
block calls its iterators reductions.
"""

from __future__ import annotations

from collections.abc import Mapping

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import (
    EQ,
    GE,
    GT,
    LE,
    LT,
    NE,
    Add,
    And,
    BinaryOp,
    Cast,
    Div,
    Expr,
    IntImm,
    Max,
    Min,
    Mul,
    Or,
    Select,
    Sub,
    Var,
)
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    IfThenElse,
    LetStmt,
    SeqStmt,
    Stmt,
    fact,
)
from metasched.ir.visit import free_vars, loads_of, substitute, walk_stmts

_KEPT, _SET, _WORD, _ORDERED = "kept", "set", "taken at its word", "ordered"
"""An element that is kept; one that is set to a value; what cannot be looked into; what certainly
depends on the order. Other kinds of updates are named by their operation."""

_SAME: dict[type[BinaryOp], str] = {
    Add: "sum", Sub: "sum", Mul: "product", Div: "product", Min: "minimum", Max: "maximum",
    And: "and", Or: "or", EQ: "equal", NE: "different",
}  # fmt: skip
_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor")


def has_order(block: Block, buffer: Buffer) -> bool:
    """Whether a block with reduce iterators updates elements of `buffer` so that order matters."""
    return any(v.is_reduce for v in block.iter_vars) and depends_on_order(block, buffer)


@fact
def depends_on_order(block: Block, buffer: Buffer) -> bool:
    """Whether updates of one element of `buffer`, by iterations of the reduce iterators, may give
    another result in another order."""
    reduced = frozenset(v.var for v in block.iter_vars if v.is_reduce)
    stored = {s.buffer.data for s in walk_stmts(block.body) if isinstance(s, BufferStore)}
    inside = stored - {buffer.data}
    return _Updates(buffer, reduced, inside).of(block.body, {}, ()) in (_SET, _ORDERED)


class _Updates:
    """How statements update elements of a buffer.

    Args:
        buffer: the buffer; buffers on the same memory count as other memory of the block.
        reduced: reduce iterators. A value without them is the same in all their iterations.
        inside: memory that the block writes.
    """

    def __init__(self, buffer: Buffer, reduced: frozenset[Var], inside: set[Var]) -> None:
        self.buffer, self.reduced, self.inside = buffer, reduced, inside

    def of(self, stmt: Stmt, lets: Mapping[Var, Expr], tests: tuple[Expr, ...]) -> str:
        """The kind of the updates by a statement, with the variables and the tests around it."""
        if isinstance(stmt, LetStmt):
            return self.of(stmt.body, {**lets, stmt.var: substitute(stmt.value, lets)}, tests)
        if isinstance(stmt, IfThenElse):
            test = substitute(stmt.condition, lets)
            if self.buffer.data not in {load.buffer.data for load in loads_of(test)}:
                return _all([self.of(way, lets, tests) for way in stmt.stmts])
            return self.of(stmt.then, lets, (*tests, test)) if stmt.orelse is None else _ORDERED
        if isinstance(stmt, (SeqStmt, For)):
            return _all([self.of(s, lets, tests) for s in stmt.stmts])
        if isinstance(stmt, BlockRealize):  # its init sets what its own updates start from
            return self.of(stmt.block.body, lets, tests)
        if not isinstance(stmt, BufferStore):
            return _WORD
        if stmt.buffer is not self.buffer:
            return _WORD if stmt.buffer.data is self.buffer.data else _KEPT
        own = BufferLoad(stmt.buffer, stmt.indices)
        value = substitute(stmt.value, lets)
        for test in reversed(tests):
            value = Select(test, value, own)
        return self.kind(value, own)

    def kind(self, value: Expr, own: BufferLoad) -> str:
        """How a value that is stored in the element `own` depends on its content before."""
        if value is own:
            return _KEPT
        memory = {load.buffer.data for load in loads_of(value)}
        if not memory.isdisjoint(self.inside):
            return _WORD
        if own.buffer.data not in memory:
            return _SET if self.reduced & free_vars(value) else _KEPT
        if isinstance(value, Cast):
            return _converted(value, self.kind(value.value, own), own.dtype)
        if isinstance(value, Select):
            return self.choice(value.condition, value.a, value.b, own)
        if isinstance(value, Call):
            return self.call(value, own)
        if isinstance(value, (Broadcast, Ramp, Shuffle, BufferLoad)):
            return _WORD
        if not isinstance(value, BinaryOp):
            return _ORDERED
        return self.operation(_SAME.get(type(value), ""), value.a, value.b, own, type(value))

    def operation(self, name: str, a: Expr, b: Expr, own: BufferLoad, kind: type) -> str:
        """The kind of an update by the operation `name` of two values."""
        mine, other = (a, b) if self._reads(a, own) else (b, a)
        first_only = kind in (Sub, Div) and mine is b
        whole_division = kind is Div and not own.dtype.is_float
        parity = kind not in (EQ, NE) or a.dtype.is_bool
        if not name or first_only or whole_division or not parity or self._reads(other, own):
            return _ORDERED
        return _all([self.kind(mine, own), name])

    def call(self, value: Call, own: BufferLoad) -> str:
        """The kind of an update by a call."""
        name, args = value.op.name, value.args
        if name in _BITS:
            return self.operation(name, args[0], args[1], own, Call)
        if name == "if_then_else":
            return self.choice(args[0], args[1], args[2], own)
        if name == "likely":
            return self.kind(args[0], own)
        if name == "fma" and not any(self._reads(a, own) for a in args[:2]):
            return _all([self.kind(args[2], own), "sum"])
        return _WORD if value.op.arity is None else _ORDERED

    def choice(self, test: Expr, a: Expr, b: Expr, own: BufferLoad) -> str:
        """The kind of an update that a test chooses."""
        if not self._reads(test, own):
            return _all([self.kind(a, own), self.kind(b, own)])
        if isinstance(test, (GT, GE, LT, LE)) and {test.a, test.b} == {a, b} and own in (a, b):
            greater = isinstance(test, (GT, GE)) is (test.a is a)
            return self.kind((Max if greater else Min)(a, b), own)
        return _ORDERED

    def _reads(self, value: Expr, own: BufferLoad) -> bool:
        return any(load.buffer.data is own.buffer.data for load in loads_of(value))


def _all(kinds: list[str]) -> str:
    """The kind of several updates, which must be one operation."""
    found = set(kinds) - {_KEPT}
    if len(found) > 1:
        return _WORD if found <= {_WORD, *_SAME.values(), *_BITS} and _WORD in found else _ORDERED
    return found.pop() if found else _KEPT


def _converted(value: Cast, inner: str, dtype: DType) -> str:
    """The kind of a conversion of a value of the kind `inner`, on the way to an element of `dtype`.

    Integers wrap, which sums, products and bits withstand in any order. A minimum or maximum may
    not wrap. Of floats, the operation is what counts; rounding may differ.
    """
    types = (value.dtype, value.value.dtype, dtype)
    if any(t.is_float != dtype.is_float for t in types):
        return _ORDERED if inner not in (_KEPT, _WORD) or not dtype.is_float else inner
    if inner in ("minimum", "maximum") and not dtype.is_float:
        return inner if _holds(value.dtype, value.value) else _ORDERED
    return inner


def _holds(dtype: DType, value: Expr) -> bool:
    """Whether an integer type certainly holds a value: it is made of such values by minimum,
    maximum and choice."""
    if isinstance(value, IntImm):
        return dtype.range[0] <= value.value <= dtype.range[1]
    if isinstance(value, (Min, Max)):
        return _holds(dtype, value.a) and _holds(dtype, value.b)
    if isinstance(value, Select):
        return _holds(dtype, value.a) and _holds(dtype, value.b)
    if isinstance(value, Cast) and value.dtype.holds(value.value.dtype):
        return dtype.holds(value.value.dtype)
    return dtype.holds(value.dtype)
