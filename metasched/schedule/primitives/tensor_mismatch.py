"""Why a block is not what an intrinsic describes: both side by side, and what aligns them."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable
from itertools import zip_longest

from metasched.ir.buffer import Buffer
from metasched.ir.describe import show_expr
from metasched.ir.expr import Expr, as_int
from metasched.ir.stmt import Block, Stmt
from metasched.schedule.intrinsics import TensorIntrin
from metasched.script.printer import script_with_marks

Node = Stmt | Expr

SAME = "tensorize takes a block that computes what is described, statement for statement"
ORDER = "reorder the loops as the description has them"
ITERS = "reorder_block_iter_var gives the iterators the order of the description"
TYPE = "type"  # the step is another intrinsic, which is looked for when all buffers are known


class Mismatch(Exception):
    """The first difference between a block and a description, in words.

    Attributes:
        mine, theirs: the node of the block that differs and that of the description.
        step: what would align them.
    """

    def __init__(
        self, text: str, mine: Node | None = None, theirs: Node | None = None, step: str = SAME
    ) -> None:
        super().__init__(text)
        self.mine, self.theirs, self.step = mine, theirs, step


def split_to(name: str, extent: Expr, described: Expr) -> str:
    """The step for a loop or an iterator of another extent: a split where it has whole tiles."""
    have, want, shown = as_int(extent), as_int(described), show_expr(described)
    if have is None or want is None or have % want == 0:
        return (
            f"split the loop of {name} by {shown} and tensorize the inner part; where {shown} does "
            "not divide it, pad_einsum first"
        )
    return (
        f"split the whole loop, of which {name} is a part, by {shown}: fuse the parts first; where "
        f"{shown} does not divide the whole loop, pad_einsum the block first"
    )


def turned_to(buffer: Buffer, wanted: Buffer) -> str:
    """The step for a buffer with its dimensions in another order."""
    return (
        f"transform_layout {buffer.name} to the order of dimensions of {wanted.name}, or, if "
        f"{buffer.name} is an argument, a copy of it (cache_read)"
    )


def one_place(buffer: Buffer) -> str:
    """The step for a buffer that a block reads at several places."""
    return (
        f'reindex(block, ("read", i, n)), before loops are split, copies what is read of '
        f"{buffer.name}, read i, at place n"
    )


def in_order(block: Block, buffer: Buffer) -> str:
    """The step for a buffer whose indices are no plain iterators: strided or reversed."""
    written = [r.buffer for r in block.writes].count(buffer) > 0
    regions = [r.buffer for r in (block.writes if written else block.reads)]
    place = f'("{"write" if written else "read"}", {regions.index(buffer)})'
    return (
        f"reindex(block, {place}), before loops are split, copies {buffer.name} to the order of "
        "the iterators"
    )


def in_scope(buffer: Buffer, scope: str) -> str:
    """The step for a buffer in another scope."""
    name = buffer.name
    return f"set_scope {name} to {scope}, or work on a copy there (cache_read, cache_write)"


def nearest(block: Block, asked: TensorIntrin) -> str:
    """The hint for operands of other types: name an intrinsic that takes the block's types.

    Intrinsics of the block's shapes come first, then intrinsics with a name like `asked.name`.
    """
    regions = {r.buffer: r for r in (*block.writes, *block.reads)}
    mine = [(b.dtype, _sizes(r.extent for r in region.region)) for b, region in regions.items()]
    fitting: dict[str, bool] = {}
    for name in TensorIntrin.names():
        theirs = [(b.dtype, _sizes(b.shape)) for b in TensorIntrin.get(name).desc.buffers]
        if Counter(kind for kind, _ in theirs) == Counter(kind for kind, _ in mine):
            fitting[name] = Counter(theirs) == Counter(mine)
    same = [name for name in fitting if fitting[name]] or list(fitting)
    found = difflib.get_close_matches(asked.name, same, n=1, cutoff=0.0)
    if found:
        return f"the nearest intrinsic for these types is {found[0]}"
    given = ", ".join(str(kind) for kind, _ in mine)
    return f"no intrinsic is registered for the types {given}; cast the operands in a block before"


def _sizes(extents: Iterable[Expr]) -> tuple[int | None, ...]:
    """The extents other than one; None for an extent that is not constant."""
    return tuple(n for n in map(as_int, extents) if n != 1)


def side_by_side(block: Block, desc: Block, found: Mismatch) -> str:
    """The description and the block, line beside line, the nodes that differ underlined."""
    columns = [
        ["described:", *_lines(desc, found.theirs)],
        [f"block {block.name}:", *_lines(block, found.mine)],
    ]
    width = max(map(len, columns[0]))
    rows = zip_longest(*columns, fillvalue="")
    return "\n".join(f"{left:{width}} | {right}".rstrip() for left, right in rows)


def _lines(block: Block, mark: Node | None) -> list[str]:
    return script_with_marks(block.body, [] if mark is None else [mark]).rstrip().splitlines()
