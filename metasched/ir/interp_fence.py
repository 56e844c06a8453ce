"""Checks the contract of blocks: every element a block touches must be in a declared region.

Used under `check_regions`. A fence is the check of one block. An access is checked by the fences of
all blocks between the access and the definition of its buffer. A root block that declares nothing
has no fence. A view made by a match or a declaration counts as a separate buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metasched.errors import InterpretError
from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_region
from metasched.ir.stmt import Block

if TYPE_CHECKING:
    from metasched.ir.interp_expr import Env, ExprCompiler

Guard = Callable[[Any, Sequence[int]], None]


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

    def guard(self, compiler: ExprCompiler, buffer: Buffer, write: bool) -> Guard | None:
        """The check of one access, None where nothing is fenced."""
        blocks = self.blocks[self.depth.get(buffer, 0) :]
        if not blocks:
            return None
        saved, memo = self.blocks, compiler.memo
        self.blocks, compiler.memo = (), {}  # loads in declared regions are not checked
        try:
            guards = [_guard(compiler, block, buffer, write) for block in blocks]
        finally:
            self.blocks, compiler.memo = saved, memo

        def check(env: Env, where: Sequence[int]) -> None:
            for one in guards:
                one(env, where)

        return check


def _guard(compiler: ExprCompiler, block: Block, buffer: Buffer, write: bool) -> Guard:
    regions = block.writes if write else (*block.reads, *block.writes)
    mine = [r for r in regions if r.buffer is buffer]
    boxes = [[(compiler.expr(x.min), compiler.expr(x.extent)) for x in r.region] for r in mine]

    def check(env: Env, where: Sequence[int]) -> None:
        for box in boxes:
            pairs = zip(box, where, strict=True)
            if all(0 <= i - low(env) < extent(env) for (low, extent), i in pairs):
                return
        place = ", ".join(map(str, where))
        declared = ", ".join(map(show_region, mine)) or "nothing"
        raise InterpretError(
            f"block {block.name} {'writes' if write else 'reads'} {buffer.name}[{place}] outside "
            f"its declared regions ({declared})"
        )

    return check
