"""Checks the contract of blocks: every element a block touches must be in a declared region.

Used under `check_regions`. A fence is the check of one block. An access is checked by the fences of
all blocks between the access and the definition of its buffer. A root block that declares nothing
has no fence. A view made by a match or a declaration counts as a separate buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.describe import show_region
from metasched.ir.expr import Expr, as_int
from metasched.ir.stmt import Block

Env: TypeAlias = list[Any]
Eval: TypeAlias = Callable[[Env], Any]
Guard: TypeAlias = Callable[[Env, Sequence[int]], None]


class ExprCompiler(Protocol):
    """What makes the closures of expressions, and keeps them by expression."""

    memo: dict[Expr, Eval]

    def expr(self, e: Expr) -> Eval:
        """The closure that evaluates `e`."""


class Fences:
    """The fenced blocks around the statement being compiled, and where each buffer was made."""

    def __init__(self, active: bool) -> None:
        self.active = active
        self.blocks: tuple[Block, ...] = ()
        self.depth: dict[Buffer, int] = {}

    def made(self, buffer: Buffer) -> None:
        """Note that `buffer` is defined here, so that outer fences do not check its accesses."""
        self.depth[buffer] = len(self.blocks)

    @contextmanager
    def around(self, compiler: ExprCompiler, block: Block) -> Iterator[None]:
        """A context in which the parts of `block` are compiled with its fence.

        Closures are not shared between code inside and outside of the fence.
        """
        declares = block.iter_vars or block.reads or block.writes or self.blocks
        if not self.active or not declares:
            yield
            return
        saved, memo = self.blocks, compiler.memo
        self.blocks, compiler.memo = (*saved, block), {}
        try:
            yield
        finally:
            self.blocks, compiler.memo = saved, memo

    def guard(
        self, compiler: ExprCompiler, buffer: Buffer, write: bool, indices: Sequence[Expr] = ()
    ) -> Guard | None:
        """The check of one access, None where nothing is fenced or no index can leave its region.

        Args:
            indices: of a single element. An index that is, as an expression, the first one of a
                declared range is in the range, and is not compared each time.
        """
        blocks = self.blocks[self.depth.get(buffer, 0) :]
        if not blocks:
            return None
        saved, memo = self.blocks, compiler.memo
        self.blocks, compiler.memo = (), {}  # loads in declared regions are not checked
        try:
            found = [_guard(compiler, block, buffer, write, indices) for block in blocks]
        finally:
            self.blocks, compiler.memo = saved, memo
        guards = [one for one in found if one is not None]
        if len(guards) < 2:
            return guards[0] if guards else None

        def check(env: Env, where: Sequence[int]) -> None:
            for one in guards:
                one(env, where)

        return check


def _guard(
    compiler: ExprCompiler, block: Block, buffer: Buffer, write: bool, indices: Sequence[Expr]
) -> Guard | None:
    regions = block.writes if write else (*block.reads, *block.writes)
    mine = [r for r in regions if r.buffer is buffer]
    boxes = [_open_sides(compiler, r, indices) for r in mine]
    if not all(boxes):  # a box without open sides holds every access
        return None

    def check(env: Env, where: Sequence[int]) -> None:
        for box in boxes:
            for n, low, extent, size in box:
                if not 0 <= where[n] - low(env) < (extent(env) if size is None else size):
                    break
            else:
                return
        place = ", ".join(map(str, where))
        declared = ", ".join(map(show_region, mine)) or "nothing"
        raise InterpretError(
            f"block {block.name} {'writes' if write else 'reads'} {buffer.name}[{place}] outside "
            f"its declared regions ({declared})"
        )

    return check


def _open_sides(
    compiler: ExprCompiler, region: BufferRegion, indices: Sequence[Expr]
) -> list[tuple[int, Eval, Eval, int | None]]:
    """The dimensions in which an access may leave a region: number, first element, extent, and
    the extent where it is constant."""
    sides = []
    for n, side in enumerate(region.region):
        size = as_int(side.extent)
        if not (indices and indices[n] is side.min and size is not None and size > 0):
            sides.append((n, compiler.expr(side.min), compiler.expr(side.extent), size))
    return sides


def outside(buffer: Buffer, where: Sequence[Any], array: Any) -> InterpretError:
    """The error of an access outside the buffer (or of a buffer without memory)."""
    place = ", ".join(map(str, where))
    if array is None:
        return InterpretError(f"buffer {buffer.name} has no memory here (access [{place}])")
    shape = array.shape[: len(buffer.shape)]
    return InterpretError(f"{buffer.name}[{place}] is outside the buffer of shape {tuple(shape)}")
