"""Which values keep indices and loop bounds inside, for the test data of integers that are one.

An index that is a sum of loads, loop variables and constants gives exact limits: each of two loads
that are added gets half of the room. A loop that memory bounds stands for its first and its last
value. A float that is multiplied and cut to an integer counts as often as its factor says. Where an
index is no such sum, small values are taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import TypeAlias

from metasched.arith.affine import form_interval, interval, linear
from metasched.arith.bounds import Interval
from metasched.arith.linear import Linear
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import Add, Cast, Div, Expr, FloatImm, Mul, Sub, Var, as_expr, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.op import Call
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IfThenElse, LetStmt, While
from metasched.ir.visit import (
    free_vars,
    loads_of,
    reads_memory,
    substitute,
    transform,
    walk_stmts,
    walk_value,
)
from metasched.measure.tested import tested_values

_CUT = 1 - 2**-10
"""How far a float may exceed the largest index that it is cut to."""
_Times: TypeAlias = "dict[Buffer, float]"
"""How often loads of a buffer count in a sum."""


@dataclass
class IndexData:
    """What the values of a buffer address.

    Attributes:
        low, high: the smallest and the largest value that stay inside.
        whole: values up to `high` are safe; otherwise something is added to a value, or it is a
            number of the computation too, and small values are safer.
        ascending: neighbours bound a loop, as the row offsets of a sparse matrix.
    """

    high: float = inf
    whole: bool = True
    ascending: bool = False
    low: int = 0

    def limit(self, high: int, whole: bool, low: int = 0) -> None:
        """Values above `high` and below `low` lie outside in one more place."""
        self.high, self.whole = min(self.high, high), self.whole and whole
        self.low = max(self.low, low)

    def largest(self, dtype: DType, small: int) -> int:
        """The largest value of the test data; `small` where values up to `high` are not safe."""
        high = self.high if self.whole else min(small, self.high)
        ends = [high] if dtype.is_float else [high, dtype.range[1]]
        return int(max(self.low, min(ends)))


def index_data(
    func: PrimFunc, scalars: Mapping[str, float] | None = None
) -> dict[Buffer, IndexData]:
    """The buffers whose values are indices or bounds of loops, with these values of scalars."""
    given = {p: (scalars or {}).get(p.name) for p in func.params if isinstance(p, Var)}
    numbers: dict[Expr, Expr] = {
        param: as_expr(value if param.dtype.is_float else int(value), param.dtype)
        for param, value in given.items()
        if value is not None
    }
    scan = _Scan(frozenset(func.buffers))
    for node in walk_stmts(transform(func.body, on_expr=numbers.get)):
        scan.visit(node)
    scan.flow()
    for buffer in scan.plain:
        if buffer in scan.found:
            scan.found[buffer].whole = False
    return {b: data for b, data in scan.found.items() if data.high < inf}


def scalar_limits(func: PrimFunc) -> dict[str, int]:
    """The largest value that stays inside, of each integer parameter that bounds loops or is an
    index, by name; of others that conditions compare, see `tested_values`. Shapes must be numbers.

    A scalar is judged as the only element of an array.
    """
    buffers = {
        param: Buffer.of(param.name, (1,), str(param.dtype))
        for param in func.params
        if isinstance(param, Var) and param.dtype.is_int
    }
    elements: dict[Expr, Expr] = {
        param: BufferLoad(buffer, (as_expr(0),)) for param, buffer in buffers.items()
    }
    scan = _Scan(frozenset(func.buffers) | frozenset(buffers.values()))
    for node in walk_stmts(transform(func.body, on_expr=elements.get)):
        scan.visit(node)
    scan.flow()
    found = [(param, scan.found[b]) for param, b in buffers.items() if b in scan.found]
    inside = {p.name: data.largest(p.dtype, 2) for p, data in found if data.high < inf}
    return tested_values(func, [*buffers], scan.ranges) | inside


@dataclass
class _Scan:
    """Attributes:
    given: the parameters of the function.
    found: the result so far.
    lets: variables that stand for numbers read from memory.
    first, last: the smallest and the largest value of a loop variable that memory bounds.
    ranges: the values of all other variables, where they are known.
    stored: what the program stores in buffers of its own, such as variables of a script.
    plain: buffers whose values are numbers of the computation.
    """

    given: frozenset[Buffer]
    found: dict[Buffer, IndexData] = field(default_factory=dict)
    lets: dict[Var, Expr] = field(default_factory=dict)
    first: dict[Var, Expr] = field(default_factory=dict)
    last: dict[Var, Expr] = field(default_factory=dict)
    ranges: dict[Var, Interval] = field(default_factory=dict)
    stored: list[tuple[Buffer, Expr]] = field(default_factory=list)
    plain: set[Buffer] = field(default_factory=set)

    def visit(self, node: object) -> None:
        if isinstance(node, For):
            self._loop(node)
        elif isinstance(node, BlockRealize):
            for iterator, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                last = as_int(iterator.dom.extent)
                self._index(value, 1 if last is None else last)
                if last is not None and (low := as_int(iterator.dom.min)) is not None:
                    self.ranges[iterator.var] = low, low + last - 1
            self._value(node.predicate)
        elif isinstance(node, Block):  # views hide what their regions address
            for region in (*node.reads, *node.writes):
                for extent, part in zip(region.buffer.shape, region.region, strict=True):
                    size = (as_int(extent) or 1) - (as_int(part.extent) or 1) + 1
                    self._index(part.min, size, region=True)
        elif isinstance(node, BufferStore):
            self._indices(node.buffer, node.indices)
            if node.buffer in self.given:
                self._value(node.value)
            else:
                self._inside(node.value)
                self.stored.append((node.buffer, self._open(node.value)))
        elif isinstance(node, LetStmt):
            self._inside(node.value)
            number = node.value.dtype.is_int or node.value.dtype.is_float
            if number and reads_memory(self._open(node.value)):
                self.lets[node.var] = self._open(node.value)
        elif isinstance(node, IfThenElse):
            self._value(node.condition)
        elif isinstance(node, While):
            self._inside(node.condition)

    def flow(self) -> None:
        """What the program stores in buffers of its own has the limits of those buffers."""
        before = None
        while before != (before := {b: (d.high, d.low) for b, d in self.found.items()}):
            for buffer, value in self.stored:
                data = self.found.get(buffer)
                while isinstance(value, Cast):
                    value = value.value
                for load in _numbers(value):
                    if data is None or data.high == inf:
                        self.plain |= {load.buffer} if buffer in self.plain else set()
                    elif load.buffer is not buffer:
                        own = self.found.setdefault(load.buffer, IndexData())
                        own.limit(int(data.high), data.whole and load is value, data.low)

    def _open(self, expr: Expr) -> Expr:
        return substitute(expr, self.lets)

    def _loop(self, loop: For) -> None:
        low = self._open(loop.min)
        end = low + self._open(loop.extent)
        loads = {*loads_of(low), *loads_of(end)}
        if not loads and self.first.keys().isdisjoint(free_vars(low) | free_vars(end)):
            self.ranges[loop.var] = interval(low, self.ranges)[0], interval(end, self.ranges)[1] - 1
            return
        self.first[loop.var] = substitute(low, self.first)
        self.last[loop.var] = substitute(end - 1, self.last)
        for load in loads:
            data = self.found.setdefault(load.buffer, IndexData())
            data.ascending |= sum(other.buffer is load.buffer for other in loads) > 1
            self._indices(load.buffer, load.indices)

    def _indices(self, buffer: Buffer, indices: Iterable[Expr]) -> None:
        for extent, index in zip(buffer.shape, indices, strict=True):
            size = as_int(extent)
            self._index(index, 1 if size is None else size)

    def _index(self, index: Expr, size: int, *, region: bool = False) -> None:
        """An index into `size` elements, or the start of a region."""
        index = self._open(index)
        self._inside(index)
        top, bottom = substitute(index, self.last), substitute(index, self.first)
        if not reads_memory(top) and not reads_memory(bottom):
            return
        if self._sum(linear(top), linear(bottom), size):
            return
        while isinstance(index, Cast):
            index = index.value
        for load in loads_of(index):
            whole = region or index is load
            self.found.setdefault(load.buffer, IndexData()).limit(size - 1, whole)
        for load in {*loads_of(top), *loads_of(bottom)} - {*loads_of(index)}:
            self.found.setdefault(load.buffer, IndexData()).limit(size, region)

    def _sum(self, top: Linear, bottom: Linear, size: int) -> bool:
        """Limit the loads of an index between two sums; False if a part is no load and has no
        known range."""
        above, below = self._parts(top), self._parts(bottom)
        if above is None or below is None:
            return False
        raised, lowered, most = above[0], above[1], size - 1 - above[2][1]
        adds, takes, least = below[0], below[1], below[2][0]
        often = max(sum(raised.values()), 1 if not raised else 0.0)
        cap = int((most + _CUT * (often % 1 > 0)) / often)
        need = ceil(-least / max(sum(adds.values()), 1 if not adds else 0.0))
        if cap < 0 or (need > 0 and not adds) or need > cap:
            return False
        for buffer in {*raised, *lowered, *adds, *takes}:
            data = self.found.setdefault(buffer, IndexData())
            data.limit(
                cap if buffer in raised else size, True, max(need, 0) if buffer in adds else 0
            )
        for buffer in takes:  # never more than what it is taken from
            data = self.found[buffer]
            if takes[buffer] == adds.get(buffer):
                data.ascending = True
            else:
                data.limit(0, True)
        return True

    def _parts(self, form: Linear) -> tuple[_Times, _Times, Interval] | None:
        """How often buffers are added and taken away in a sum, and the interval of the rest."""
        added: _Times = {}
        taken: _Times = {}
        rest, below, above = Linear({}, form.const), 0, 0
        for atom, times in form.terms.items():
            while isinstance(atom, Cast) and atom.value.dtype.is_int:
                atom = atom.value
            if isinstance(atom, BufferLoad):
                side = added if times > 0 else taken
                side[atom.buffer] = side.get(atom.buffer, 0) + abs(times)
            elif (cut := _scaled(atom)) is not None and times > 0:
                load, factor, offset = cut
                added[load.buffer] = added.get(load.buffer, 0) + factor * times
                below, above = below + floor(offset) * times, above + ceil(offset) * times
            elif reads_memory(atom):
                return None
            else:
                rest = rest.plus(Linear({atom: times}, 0))
        low, high = form_interval(rest, self.ranges)
        return None if low == -inf or high == inf else (added, taken, (low + below, high + above))

    def _value(self, value: Expr) -> None:
        """A number that is computed."""
        value = self._open(value)
        for load in _numbers(value):
            self.plain.add(load.buffer)
        self._inside(value)

    def _inside(self, value: Expr) -> None:
        """The indices of loads in an expression."""
        for load in loads_of(value):
            self._indices(load.buffer, load.indices)


def _scaled(atom: Expr) -> tuple[BufferLoad, float, float] | None:
    """The load, a positive factor and an offset of a float that is cut to a whole number; None for
    other expressions."""
    if not isinstance(atom, Cast) or not atom.value.dtype.is_float:
        return None
    factor, offset, value = 1.0, 0.0, atom.value
    while not isinstance(value, BufferLoad):
        parts = [x for x in value.children if not isinstance(x, FloatImm)]
        numbers = [x.value for x in value.children if isinstance(x, FloatImm)]
        if len(parts) != 1 or (isinstance(value, (Sub, Div)) and parts[0] is not value.children[0]):
            return None
        (a,), number = parts, numbers[0] if numbers else None
        cut = isinstance(value, Call) and value.op.name in ("floor", "trunc")
        if cut or (isinstance(value, Cast) and a.dtype.is_int):
            value = a
        elif isinstance(value, (Add, Sub)) and number is not None:
            offset += factor * (number if isinstance(value, Add) else -number)
            value = a
        elif isinstance(value, (Mul, Div)) and number:
            factor *= number if isinstance(value, Mul) else 1 / number
            value = a
        else:
            return None
    return (value, factor, offset) if factor > 0 else None


def _numbers(value: Expr) -> Iterator[BufferLoad]:
    """The loads outside of indices."""
    return (part for part in walk_value(value) if isinstance(part, BufferLoad))
