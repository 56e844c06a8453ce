"""Skip products with the zeros of a padding stage.

A padding stage copies its source where a condition on the indices holds, and stores zero elsewhere.
A sum of products gets nothing from the zeros, so inner loops whose terms are all zero are skipped:

    P[v, c] = if_then_else(1 <= v and v < 15, X[v - 1, c], 0)
    for kh: for c: Y[h] = Y[h] + P[h + kh, c] * W[kh, c]
      ->  for kh: if 1 <= h + kh and h + kh < 15: for c: ...

If rows are unrolled inside a short loop, the short loop is written out; each of its iterations
computes only the rows that get something from it:

    for kh in 3: for c: unrolled h in 14: ...
      ->  for c: unrolled h in 1 ... 13: ... ; for c: unrolled h in 0 ... 13: ... ; for c: ...

A tile of rows is at the border only for some iterations of the loops around it. Tests of these
loops choose a copy of the inner loops that leaves out one row, two, ... at either end:

    for ho in 7: for kh in 3: for c: unrolled hi in 2: ...
      ->  ... if ho * 2 + kh < 1: ... hi in 1; else if ...: ... hi in 0; else: ... hi in 0 ... 1

A tensor instruction that adds products (`HardwareOp.adds`) is a term, too.

Libraries clip the kernel of a convolution at the borders of the image in this way. A sum changes
only where the other factor is infinite or not a number. For floats the function must promise by the
attribute `FINITE` that there are no such elements.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from metasched.analysis.loops import perfect_nest
from metasched.arith.affine import linear_address
from metasched.arith.analyzer import Analyzer
from metasched.arith.conditions import conjuncts
from metasched.arith.linear import Linear
from metasched.ir import expr as ir
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, IntImm, Var, as_int
from metasched.ir.func import FINITE, PrimFunc
from metasched.ir.op import OPS, Broadcast, Call, called_instruction
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import free_vars, fresh_copy, map_body, substitute, walk

WORTH = 1024
"""Fewer products than this are not worth a test."""
TAPS = 4
"""A loop of at most this many iterations is written out."""
_ROWS = 2
"""At most this many rows are left out at either end: each number of rows is another copy."""
_GAIN = 0.02
"""The share of products that copies must save."""
Zeros: TypeAlias = tuple[list[Expr], list[Expr]]
"""Indices of a buffer, and comparisons of these indices: where one fails, the element is zero."""
Rows: TypeAlias = tuple[int, int]
"""Some iterations of a loop: the first of them, and one past the last."""
RowCut: TypeAlias = tuple[Var, Rows, Collection[Var]]
"""The loop over rows that is cut, the rows that remain, and loops that need not be unrolled."""


class _Cut(NamedTuple):
    """Tests in front of loop `place` of a nest, tried from the last to the first. The first test
    that holds tells which rows are needed; if none holds, all are. If loop `tap` alone decides, it
    is unrolled."""

    gain: float
    place: int
    row: Var
    ways: list[tuple[Expr, Rows]]
    tap: Var | None


def skip_zeros(func: PrimFunc) -> PrimFunc:
    """Skip the loops that would add only products with padding zeros; the file's docstring has
    examples."""
    padded = _padded(func)
    skipper = _Skipper(padded, bool(func.attrs.get(FINITE, False)))
    return map_body(func, skipper.visit) if padded else func


# -- where the zeros are


def _padded(func: PrimFunc) -> dict[Buffer, Zeros]:
    """Map each temporary buffer that is zero outside of a range to its indices and conditions."""
    stores: Counter[Buffer] = Counter()
    loose: set[Expr] = set()  # memory that something else may write, by another name or an address
    blocks: list[Block] = []
    for node in walk(func.body):
        if isinstance(node, Block):
            blocks.append(node)
        elif isinstance(node, BufferStore):
            stores[node.buffer] += 1
        elif isinstance(node, DeclBuffer):
            loose.add(node.source.data)
        elif isinstance(node, Call):
            loose.update(v for a in node.args for v in free_vars(a) if v.dtype.is_handle)
            loose.update(_addressed(node))
    found = {}
    for block in blocks:
        store = block.body
        if isinstance(store, BufferStore) and stores[store.buffer] == 1:
            own = store.buffer not in func.params and store.buffer.data not in loose
            zeros = _zeros(block, store) if own else None
            if zeros is not None:
                found[store.buffer] = zeros
    return found


def _addressed(expr: Expr) -> list[Var]:
    """The buffers of which an expression takes an address."""
    taken = expr.args if isinstance(expr, Call) and expr.op.name == "address_of" else ()
    return [load.buffer.data for load in taken if isinstance(load, BufferLoad)]


def _zeros(block: Block, store: BufferStore) -> Zeros | None:
    """Match `store` as B[v0, v1] = if_then_else(inside, ..., 0): gives the indices and the
    conditions."""
    value, own = store.value, {v.var for v in block.iter_vars}
    if not isinstance(value, Call) or value.op.name != "if_then_else":
        return None
    at = [i for i in store.indices if isinstance(i, Var) and i in own]
    shape = zip(store.indices, store.buffer.shape, strict=True)
    single = sum(as_int(i) == 0 and as_int(n) == 1 for i, n in shape)
    other = value.args[2]
    zero = isinstance(other, (IntImm, ir.FloatImm)) and other.value == 0
    if not zero or len(set(at)) + single != store.buffer.ndim or store.predicate is not None:
        return None
    parts = [p for p in conjuncts(value.args[0]) if isinstance(p, (ir.LT, ir.LE, ir.GT, ir.GE))]
    inside: list[Expr] = [p for p in parts if p.a.dtype.is_int and free_vars(p) <= set(at)]
    return (list(store.indices), inside) if inside else None


def _not_negative(part: Expr) -> Linear:
    """Rewrite a comparison of integers as a sum that is at least zero where the comparison
    holds."""
    assert isinstance(part, ir.Compare)
    up = isinstance(part, (ir.LT, ir.LE))
    gap = linear_address(part.b - part.a if up else part.a - part.b)
    return gap.shifted(-isinstance(part, (ir.LT, ir.GT)))


# -- which loops need not run


class _Skipper:
    """Traverses a program with the ranges of the loops around, and the blocks' iterators in terms
    of the loops."""

    def __init__(self, padded: dict[Buffer, Zeros], finite: bool) -> None:
        self.padded = padded
        self.finite = finite
        self.analyzer = Analyzer()
        self.values: dict[Var, Expr] = {}

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            self._enter(stmt)
            chain, leaf = perfect_nest(stmt)
            if isinstance(leaf, BlockRealize) and isinstance(leaf.block.body, BufferStore):
                return self._nest(chain, leaf)
        elif isinstance(stmt, BlockRealize):
            self._bind(stmt)
        parts = [self.visit(s) for s in stmt.stmts]
        if all(a is b for a, b in zip(parts, stmt.stmts, strict=True)):
            return stmt
        return stmt.rebuild(parts, stmt.exprs)

    def _enter(self, loop: For) -> None:
        extent = as_int(loop.extent)
        self.analyzer.bind(loop.var, (0, None if extent is None else max(extent - 1, 0)))
        if extent == 1:
            self.values[loop.var] = IntImm(loop.var.dtype, 0)

    def _bind(self, realize: BlockRealize) -> None:
        for item, value in zip(realize.block.iter_vars, realize.iter_values, strict=True):
            self.values[item.var] = substitute(value, self.values)

    def _nest(self, chain: Sequence[For], leaf: BlockRealize) -> Stmt:
        """Build the loops around one block, without the iterations that would add only zeros."""
        for loop in chain:
            self._enter(loop)
        self._bind(leaf)
        sums = self._inside(leaf.block.body)
        tests: dict[int, Expr] = {}
        inner = {loop.var for loop in chain[_guarded(chain, leaf.block.body) :]}
        for rest in (self._relaxed(total, inner) for total in sums if inner):
            if rest is not None:
                used, test = free_vars(rest), ir.compare(ir.GE, rest, 0)
                place = max((n + 1 for n, loop in enumerate(chain) if loop.var in used), default=0)
                tests[place] = ir.logical_and(tests.get(place, ir.TRUE), test)
        pairs = zip(leaf.block.iter_vars, leaf.iter_values, strict=True)
        steps = {v for item, value in pairs if not item.is_spatial for v in free_vars(value)}
        cuts = self._cuts(chain, sums, inner, steps) if sums else []

        def made(n: int, passed: int = 0, only: RowCut | None = None) -> Stmt:
            """Build the nest from its loop `n` on. The first `passed` cuts are done; `only` fixes
            the rows of a cut loop."""
            if only is None and passed < len(cuts) and cuts[passed].place == n:
                cut = cuts[passed]
                body = made(n, passed + 1)
                for test, span in cut.ways:
                    part = made(n, passed, (cut.row, span, steps if cut.tap is None else ()))
                    body = IfThenElse(test, fresh_copy(part), body)
                return body
            if n == len(chain):
                return leaf
            loop = chain[n]
            body = made(n + 1, passed, only)
            if only is None and any(cut.tap is loop.var for cut in cuts):
                taps = (IntImm(loop.var.dtype, k) for k in range(as_int(loop.extent) or 0))
                body = seq([fresh_copy(substitute(body, {loop.var: tap})) for tap in taps])
            else:
                body = _limited(loop, body, only)
            if n in tests:
                body = IfThenElse(Call("bool", OPS.get("likely"), (tests[n],)), body)
            return body

        return made(0)

    def _inside(self, store: Stmt) -> list[Linear]:
        """Sums that are all at least zero wherever a block adds a term that may differ from
        zero."""
        found: list[Linear] = []
        for load in _factors(store, self.finite):
            if load.buffer in self.padded:
                at, inside = self.padded[load.buffer]
                indices = [substitute(i, self.values) for i in load.indices]
                pairs = zip(at, indices, strict=True)
                values = {v: index for v, index in pairs if isinstance(v, Var)}
                tested = set().union(*map(free_vars, inside))
                if all(values[v].dtype.lanes == 1 for v in tested):
                    found += [_not_negative(substitute(part, values)) for part in inside]
        return found

    def _relaxed(self, total: Linear, inner: set[Var]) -> Expr | None:
        """A sum with the terms of the loops in `inner` at their maximum; None if the sum is never
        negative or has no bound."""
        rest = ir.as_expr(total.const, next((atom.dtype for atom in total.terms), "int32"))
        for atom, times in total.terms.items():
            if inner.isdisjoint(free_vars(atom)):
                rest = rest + atom * times
                continue
            reach = self.analyzer.bounds(atom)[times > 0]
            if reach is None:
                return None
            rest = rest + reach * times
        least, _ = self.analyzer.bounds(rest)
        return None if least is not None and least >= 0 else rest

    def _cuts(
        self, chain: Sequence[For], sums: Sequence[Linear], inner: set[Var], steps: set[Var]
    ) -> list[_Cut]:
        """The unrolled loops over rows that are worth cutting, the cut with the outermost tests
        first."""
        written: list[_Cut] = []
        tested: list[_Cut] = []
        taps: set[Var] = set()
        for n, loop in enumerate(chain):
            rows = as_int(loop.extent) or 0
            if loop.kind is ForKind.UNROLLED and rows > 1 and loop.var not in steps:
                below = {inside.var for inside in chain[n:]}
                cut = self._cut(chain, loop, sums, (inner | below) - taps)
                written += [cut] if cut.tap in taps else []
                if inner:  # there is work that is worth a test
                    tested.append(self._cut(chain, loop, sums, inner)._replace(tap=None))
            if loop.kind in (ForKind.SERIAL, ForKind.UNROLLED) and 1 < rows <= TAPS:
                taps.add(loop.var)
        found = sorted(written, key=attrgetter("gain"))[-1:]
        found += [cut for cut in tested if all(cut.row is not other.row for other in found)]
        return sorted((cut for cut in found if cut.gain >= _GAIN), key=attrgetter("place"))

    def _cut(
        self, chain: Sequence[For], loop: For, sums: Sequence[Linear], hidden: set[Var]
    ) -> _Cut:
        """How tests of loops that are not hidden may cut a loop over rows."""
        rows, ways, gain = as_int(loop.extent) or 0, [], 0.0
        used: set[Var] = set()
        for total in sums:
            step = total.terms.get(loop.var, 0)
            others = {a: t for a, t in total.terms.items() if a is not loop.var}
            edge = total.const + min(step, 0) * (rows - 1)  # of the row that fails first
            rest = self._relaxed(Linear(others, edge), hidden) if step else None
            least = None if rest is None else self.analyzer.bounds(rest)[0]
            if rest is None or least is None:
                continue
            most = min(_ROWS, rows - 1, -(least // abs(step)))
            used |= free_vars(rest)
            gain += most / (rows * self._values(rest))
            for n in range(1, most + 1):
                test = ir.compare(ir.LT, rest + (n - 1) * abs(step), 0)
                ways.append((test, (n, rows) if step > 0 else (0, rows - n)))
        place = max((n + 1 for n, outer in enumerate(chain) if outer.var in used), default=0)
        return _Cut(gain, place, loop.var, ways, used.pop() if len(used) == 1 else None)

    def _values(self, rest: Expr) -> int:
        """How many values a sum takes if its terms vary independently."""
        bounds = (self.analyzer.bounds(atom) for atom in linear_address(rest).terms)
        return math.prod(b - a + 1 for a, b in bounds if a is not None and b is not None)


def _limited(loop: For, body: Stmt, only: RowCut | None) -> Stmt:
    """Rebuild a loop around another body; the loop over rows that is cut runs only its chosen
    rows."""
    row, (begin, end), rolled = only or (None, (0, 0), ())
    if loop.var is row:
        body = substitute(body, {loop.var: loop.var + begin}) if begin else body
        return loop.rebuild((body,), (loop.min, IntImm(loop.var.dtype, end - begin)))
    if loop.var in rolled and loop.kind is ForKind.UNROLLED:
        loop = evolve(loop, kind=ForKind.SERIAL)
    return loop if body is loop.body else loop.rebuild((body,), loop.exprs)


def _guarded(chain: Sequence[For], store: Stmt) -> int:
    """The position of the innermost loop around a store with enough work to pay for a test; behind
    the last loop if none has."""
    op = called_instruction(store.value) if isinstance(store, BufferStore) else None
    work = 1 if op is None else op.operands[-1].lanes
    kinds = [loop.kind in (ForKind.SERIAL, ForKind.PARALLEL) for loop in chain]
    for n in reversed(range(len(chain))):
        work *= as_int(chain[n].extent) or 1
        if work >= WORTH and all(kinds[:n]):
            return n
    return len(chain)


def _factors(store: Stmt, finite: bool) -> list[BufferLoad]:
    """The factors of the product, or of the products of an instruction, that `store` adds to its
    element. Empty if `store` adds no product, or a zero factor does not make the product zero."""
    if not isinstance(store, BufferStore):
        return []
    own = BufferLoad(store.buffer, store.indices, store.predicate)
    parts = _added(store.value, own)
    loads = [p for p in parts if isinstance(p, BufferLoad)]
    exact = all(p.dtype.is_int for p in parts) or (finite and len(loads) == len(parts))
    return loads if exact and len(parts) > 1 else []


def _added(value: Expr, own: BufferLoad) -> list[Expr]:
    """The factors that `value` multiplies and adds to `own`; empty for other values."""
    if isinstance(value, ir.Add):
        a, b = value.children
        return _product(b if a is own else a) if own in (a, b) else []
    op = called_instruction(value)
    if op is None or not op.adds or not isinstance(value, Call) or value.args[1] is not own:
        return []
    return [_bits(operand) for operand in value.args[2:]]


def _bits(operand: Expr) -> Expr:
    """An operand of an instruction without the steps that repeat it and rename its bits."""
    while True:
        if isinstance(operand, Broadcast):
            operand = operand.value
        elif isinstance(operand, Call) and operand.op.name == "reinterpret":
            operand = operand.args[0]
        else:
            return operand


def _product(term: Expr) -> list[Expr]:
    if isinstance(term, ir.Mul):
        return _product(term.a) + _product(term.b)
    return _product(term.value) if isinstance(term, ir.Cast) else [term]
