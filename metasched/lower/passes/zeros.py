"""Products with zeros that padding put there are not computed.

A stage that surrounds its source with zeros holds nothing else outside of the indices that its
condition states. A sum of products with its elements needs no term from out there, so the inner
loops are skipped where they would make such terms alone:

    P[v, c] = if_then_else(1 <= v and v < 15, X[v - 1, c], 0)
    for kh: for c: Y[h] = Y[h] + P[h + kh, c] * W[kh, c]
      ->  for kh: if 1 <= h + kh and h + kh < 15: for c: ...

Where rows are unrolled inside a short loop, that loop is written out, each time with the rows that
have something to add:

    for kh in 3: for c: unrolled h in 14: ...
      ->  for c: unrolled h in 1 ... 13: ... ; for c: unrolled h in 0 ... 13: ... ; for c: ...

Libraries clip the kernel of a convolution at the borders of the image in this way. A sum changes
only where the other factor is infinite or not a number, so for floats the function must promise
that there are no such elements, by the attribute `FINITE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metasched.arith.analyzer import Analyzer
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import (
    GE,
    GT,
    LE,
    LT,
    TRUE,
    Add,
    And,
    Cast,
    Compare,
    Expr,
    FloatImm,
    IntImm,
    Mul,
    Select,
    Var,
    as_expr,
    as_int,
    compare,
    logical_and,
)  # fmt: skip
from metasched.ir.func import PrimFunc
from metasched.ir.op import OPS, Call
from metasched.ir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    Stmt,
    evolve,
    seq,
)
from metasched.ir.visit import (
    blocks_of,
    free_vars,
    fresh_copy,
    map_body,
    substitute,
    transform,
    walk,
)
from metasched.lower.affine import affine

FINITE = "tir.finite"
"""Attribute of a function: no element of its buffers is ever infinite or not a number."""
_WORTH = 1024
"""Fewer products than this are not worth a test."""
_TAPS = 4
"""Copies of a loop's body at most."""
_GAIN = 0.02
"""The share of products that copies must save."""
Sum: TypeAlias = tuple[Mapping[Expr, int], int]
"""Integer terms, each with its factor, and a constant."""


@dataclass(frozen=True, slots=True)
class Zeros:
    """A buffer is zero where any of `inside` does not hold for its indices `at`."""

    at: tuple[Var, ...]
    inside: tuple[Compare, ...]


def skip_zeros(func: PrimFunc) -> PrimFunc:
    """See the file's docstring."""
    padded = _padded(func)
    if not padded:
        return func
    finite = bool(func.attrs.get(FINITE, False))
    return map_body(func, lambda body: _Skipper(padded, finite).visit(body))


# -- where the zeros are


def _padded(func: PrimFunc) -> dict[Buffer, Zeros]:
    """The temporary buffers that are zero outside of a range."""
    stores: Counter[Buffer] = Counter()
    loose: set[Expr] = set()
    for node in walk(func.body):
        if isinstance(node, BufferStore):
            stores[node.buffer] += 1
        elif isinstance(node, Call):
            loose.update(v for a in node.args for v in free_vars(a) if v.dtype.is_handle)
    found = {}
    for realize in blocks_of(func.body):
        store = realize.block.body
        if not isinstance(store, BufferStore) or stores[store.buffer] != 1:
            continue
        if store.buffer in func.params or store.buffer.data in loose:
            continue
        zeros = _zeros(realize.block, store)
        if zeros is not None:
            found[store.buffer] = zeros
    return found


def _zeros(block: Block, store: BufferStore) -> Zeros | None:
    """What `store` says of its buffer: B[v0, v1] = if_then_else(inside, ..., 0)."""
    value, own = store.value, {v.var for v in block.iter_vars}
    if isinstance(value, Select):
        condition, other = value.condition, value.b
    elif isinstance(value, Call) and value.op.name == "if_then_else":
        condition, _, other = value.args
    else:
        return None
    at = [i for i in store.indices if isinstance(i, Var) and i in own]
    zero = isinstance(other, (IntImm, FloatImm)) and other.value == 0
    if not zero or len(set(at)) != store.buffer.ndim or store.predicate is not None:
        return None
    known = {*at}
    parts = [p for p in _parts(condition) if isinstance(p, (LT, LE, GT, GE))]
    inside = tuple(p for p in parts if p.a.dtype.is_int and free_vars(p) <= known)
    return Zeros(tuple(at), inside) if inside else None


def _not_negative(part: Expr) -> Sum:
    """A comparison of integers as a sum that is zero or more where it holds."""
    assert isinstance(part, (LT, LE, GT, GE))
    low, high = (part.a, part.b) if isinstance(part, (LT, LE)) else (part.b, part.a)
    terms, constant = affine(high - low)
    return terms, constant - isinstance(part, (LT, GT))


def _parts(condition: Expr) -> list[Expr]:
    if isinstance(condition, And):
        return _parts(condition.a) + _parts(condition.b)
    return [condition]


# -- which loops need not run


class _Skipper:
    """The traversal: loops outside, iterators of the blocks outside as expressions of these."""

    def __init__(self, padded: dict[Buffer, Zeros], finite: bool) -> None:
        self.padded = padded
        self.finite = finite
        self.analyzer = Analyzer()
        self.values: dict[Var, Expr] = {}

    def visit(self, stmt: Stmt) -> Stmt:
        if isinstance(stmt, For):
            self._enter(stmt)
            chain, leaf = _chain(stmt)
            if leaf is not None:
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

    def _nest(self, chain: list[For], leaf: BlockRealize) -> Stmt:
        """Loops around one block, without what they would add in vain."""
        for loop in chain:
            self._enter(loop)
        self._bind(leaf)
        sums = self._inside(leaf.block.body)
        guarded = _guarded(chain)
        tests: dict[int, Expr] = {}
        inner = {loop.var for loop in chain[guarded:]} if guarded is not None else set()
        for total in sums if guarded is not None else ():
            test = self._relaxed(total, inner)
            if test is not None:
                used = free_vars(test)
                place = max((n + 1 for n, loop in enumerate(chain) if loop.var in used), default=0)
                tests[place] = logical_and(tests.get(place, TRUE), test)
        clipped = self._clipped(chain, sums)
        body: Stmt = leaf
        for n in reversed(range(len(chain))):
            if clipped is not None and n == clipped.tap:
                body = clipped.copies(chain, body)
            else:
                body = evolve(chain[n], body=body) if body is not chain[n].body else chain[n]
            if n in tests:
                hint = Call("bool", OPS.get("likely"), (tests[n],))
                body = IfThenElse(hint, body)
        return body

    def _inside(self, store: Stmt) -> list[Sum]:
        """Sums that are not negative wherever a block has something to add to its element."""
        found: list[Sum] = []
        for load in _factors(store, self.finite):
            zeros = self.padded.get(load.buffer)
            if zeros is not None:
                at = [substitute(i, self.values) for i in load.indices]
                values = dict(zip(zeros.at, at, strict=True))
                found += [_not_negative(substitute(part, values)) for part in zeros.inside]
        return found

    def _relaxed(self, total: Sum, inner: set[Var]) -> Expr | None:
        """What follows from a sum for the loops outside of `inner`; None if it always holds."""
        terms, constant = total
        rest = as_expr(constant, next((atom.dtype for atom in terms), "int32"))
        for atom, times in terms.items():
            if inner.isdisjoint(free_vars(atom)):
                rest = atom * times + rest
                continue
            reach = self._most(atom, times)
            if reach is None:
                return None
            rest = rest + reach
        least, _ = self.analyzer.bounds(rest)
        return None if least is not None and least >= 0 else compare(GE, rest, 0)

    def _most(self, atom: Expr, times: int) -> int | None:
        """The greatest value of a term."""
        least, most = self.analyzer.bounds(atom)
        reach = most if times > 0 else least
        return None if reach is None else reach * times

    def _clipped(self, chain: Sequence[For], sums: Sequence[Sum]) -> Clipped | None:
        """The best loops for copies with rows left out, if there are any."""
        found: list[tuple[float, Clipped]] = []
        for tap, outer in enumerate(chain):
            taps = as_int(outer.extent) or 0
            if outer.kind not in (ForKind.SERIAL, ForKind.UNROLLED) or not 1 < taps <= _TAPS:
                continue
            for row in range(tap + 1, len(chain)):
                rows = as_int(chain[row].extent) or 0
                if chain[row].kind is ForKind.UNROLLED and rows > 1:
                    spans = [self._span(sums, chain, tap, row, n) for n in range(taps)]
                    kept = sum(max(0, end - begin) for begin, end in spans)
                    found.append((kept / (rows * taps), Clipped(tap, row, tuple(spans))))
        best = min(found, key=lambda f: f[0], default=None)
        return best[1] if best is not None and best[0] < 1 - _GAIN else None

    def _span(
        self, sums: Sequence[Sum], chain: Sequence[For], tap: int, row: int, n: int
    ) -> tuple[int, int]:
        """The rows that have something to add in iteration `n` of the loop over taps."""
        begin, end = 0, as_int(chain[row].extent) or 0
        for terms, constant in sums:
            step = terms.get(chain[row].var, 0)
            fixed = constant + terms.get(chain[tap].var, 0) * n
            others = [
                self._most(atom, times)
                for atom, times in terms.items()
                if atom is not chain[row].var and atom is not chain[tap].var
            ]
            if step == 0 or None in others:
                continue
            fixed += sum(o for o in others if o is not None)
            if step > 0:  # step * row + fixed >= 0
                begin = max(begin, -(fixed // step))
            else:
                end = min(end, fixed // -step + 1)
        return begin, end


@dataclass(frozen=True, slots=True)
class Clipped:
    """The loop at `tap` of a chain as copies in which the loop at `row` has other ends."""

    tap: int
    row: int
    spans: tuple[tuple[int, int], ...]

    def copies(self, chain: Sequence[For], body: Stmt) -> Stmt:
        """One copy of the loop's body after the other."""
        tap, row = chain[self.tap].var, chain[self.row].var

        def shorter(stmt: Stmt) -> Stmt | None:
            if isinstance(stmt, For) and stmt.var is row:
                inside = substitute(stmt.body, {row: row + begin})
                return evolve(stmt, extent=IntImm(row.dtype, end - begin), body=inside)
            return None

        found = []
        for n, (begin, end) in enumerate(self.spans):
            if begin < end:
                one = transform(substitute(body, {tap: IntImm(tap.dtype, n)}), shorter)
                found.append(fresh_copy(one))
        return seq(found)


def _chain(loop: For) -> tuple[list[For], BlockRealize | None]:
    """Loops that hold nothing but each other, and the block in the last one, if it is one."""
    chain = [loop]
    while isinstance(chain[-1].body, For):
        chain.append(chain[-1].body)
    last = chain[-1].body
    whole = isinstance(last, BlockRealize) and isinstance(last.block.body, BufferStore)
    return chain, last if whole and isinstance(last, BlockRealize) else None


def _guarded(chain: Sequence[For]) -> int | None:
    """The innermost loop that is worth a test in front of it."""
    work = 1
    for n in reversed(range(len(chain))):
        work *= as_int(chain[n].extent) or 1
        plain = all(loop.kind in (ForKind.SERIAL, ForKind.PARALLEL) for loop in chain[:n])
        if plain and work >= _WORTH:
            return n
    return None


def _factors(store: Stmt, finite: bool) -> list[BufferLoad]:
    """The factors of the product that `store` adds to its element, if that is what it does and a
    factor of zero makes it zero."""
    if not isinstance(store, BufferStore) or not isinstance(store.value, Add):
        return []
    for total, term in ((store.value.a, store.value.b), (store.value.b, store.value.a)):
        if total is BufferLoad(store.buffer, store.indices, store.predicate):
            parts = _product(term)
            loads = [p for p in parts if isinstance(p, BufferLoad)]
            exact = all(p.dtype.is_int for p in parts) or (finite and len(loads) == len(parts))
            return loads if exact and len(parts) > 1 else []
    return []


def _product(term: Expr) -> list[Expr]:
    if isinstance(term, Mul):
        return _product(term.a) + _product(term.b)
    return _product(term.value) if isinstance(term, Cast) else [term]
