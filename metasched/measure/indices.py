"""Which values keep indices and loop bounds inside, for the test data of integers that are one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import inf

from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.dtype import DType
from metasched.ir.expr import Add, Cast, Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import Block, BlockRealize, BufferStore, For, IfThenElse
from metasched.ir.visit import free_vars, loads_of, walk_stmts


@dataclass
class IndexData:
    """What the values of a buffer address.

    Attributes:
        high: the largest value that stays inside.
        whole: values up to `high` are safe; otherwise something is added to a value, or it is a
            number of the computation too, and small values are safer.
        ascending: neighbours bound a loop, as the row offsets of a sparse matrix.
    """

    high: float = inf
    whole: bool = True
    ascending: bool = False

    def limit(self, high: int, whole: bool) -> None:
        """Values above `high` lie outside in one more place."""
        self.high, self.whole = min(self.high, high), self.whole and whole

    def largest(self, dtype: DType, small: int) -> int:
        """The largest value of the test data; `small` where values up to `high` are not safe."""
        high = self.high if self.whole else min(small, self.high)
        ends = [high] if dtype.is_float else [high, dtype.range[1]]
        return int(max(0, min(ends)))


def index_data(func: PrimFunc) -> dict[Buffer, IndexData]:
    """The buffers whose values are indices or bounds of loops."""
    scan = _Scan()
    for node in walk_stmts(func.body):
        scan.visit(node)
    for buffer in scan.plain:
        if buffer in scan.found:
            scan.found[buffer].whole = False
    return {b: data for b, data in scan.found.items() if data.high < inf}


@dataclass
class _Scan:
    """Attributes:
    found: the result so far.
    bounds: the buffers that bound each loop.
    plain: buffers whose values are numbers of the computation.
    """

    found: dict[Buffer, IndexData] = field(default_factory=dict)
    bounds: dict[Var, set[Buffer]] = field(default_factory=dict)
    plain: set[Buffer] = field(default_factory=set)

    def visit(self, node: object) -> None:
        if isinstance(node, For):
            self._loop(node)
        elif isinstance(node, BlockRealize):
            for iterator, value in zip(node.block.iter_vars, node.iter_values, strict=True):
                last = as_int(iterator.dom.extent)
                self._index(value, 1 if last is None else last)
            self._value(node.predicate)
        elif isinstance(node, Block):  # views hide what their regions address
            for region in (*node.reads, *node.writes):
                for extent, part in zip(region.buffer.shape, region.region, strict=True):
                    size = (as_int(extent) or 1) - (as_int(part.extent) or 1) + 1
                    self._index(part.min, size, region=True)
        elif isinstance(node, BufferStore):
            self._indices(node.buffer, node.indices)
            self._value(node.value)
        elif isinstance(node, IfThenElse):
            self._value(node.condition)

    def _loop(self, loop: For) -> None:
        loads = {*loads_of(loop.min), *loads_of(loop.extent)}
        if loads:
            self.bounds[loop.var] = {load.buffer for load in loads}
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
        bounded = {v: self.bounds[v] for v in free_vars(index) if v in self.bounds}
        ends = {buffer for buffers in bounded.values() for buffer in buffers}
        while isinstance(index, Cast):
            index = index.value
        for load in loads_of(index):
            self._indices(load.buffer, load.indices)
            if load.buffer not in ends:
                whole = region or index is load
                self.found.setdefault(load.buffer, IndexData()).limit(size - 1, whole)
        parts = [index.a, index.b] if isinstance(index, Add) else [index]
        alone = all(part in bounded or isinstance(part, BufferLoad) for part in parts)
        for buffer in ends:  # the last value of the loop is smaller than the bound
            self.found.setdefault(buffer, IndexData()).limit(size, region or alone)

    def _value(self, value: Expr) -> None:
        """A number that is computed."""
        for load in _numbers(value):
            self.plain.add(load.buffer)
        for load in loads_of(value):
            self._indices(load.buffer, load.indices)


def _numbers(value: Expr) -> Iterator[BufferLoad]:
    """The loads outside of indices."""
    if isinstance(value, BufferLoad):
        yield value
        return
    for child in value.children:
        yield from _numbers(child)
