"""storage_align: pads the rows of a buffer in memory."""

from __future__ import annotations

from collections.abc import Sequence

from metasched.ir.buffer import Buffer, BufferRegion
from metasched.ir.stmt import Block, FrozenMap, Stmt, evolve
from metasched.schedule import edit, ways
from metasched.schedule.handles import BlockLike, BlockRV
from metasched.schedule.instruction import primitive
from metasched.schedule.primitives.layout_arguments import plain_int
from metasched.schedule.primitives.storage import allocating_block, pick_buffer
from metasched.schedule.state import State

KEY = "buffer_dim_align"


@primitive(of_block=ways.with_buffers("write", -1, 32, 8))
def storage_align(
    state: State,
    block: BlockLike,
    buffer_index: int | str | Buffer,
    axis: int,
    factor: int,
    offset: int,
) -> None:
    """Let the stride of `axis` of a buffer that `block` writes be `offset` modulo `factor`.

    The block gets the annotation `buffer_dim_align`, one `[buffer, axis, factor, offset]` for each
    buffer and axis; lowering reads it.

    requires  the buffer is allocated by a block; a valid axis of the buffer (negative axes count
              from the end); a positive factor
    rewrite   T.block_attr({"buffer_dim_align": [[0, 0, 32, 8]]})
    """
    assert isinstance(block, BlockRV)
    realize = state.block(block)
    buffer = pick_buffer(state, realize, "write", buffer_index)
    index = [r.buffer for r in realize.block.writes].index(buffer)
    axis, factor, offset = (
        plain_int(state, value, name)
        for value, name in ((axis, "axis"), (factor, "factor"), (offset, "offset"))
    )
    state.canonical = {"buffer_index": index}
    if factor < 1:
        raise state.error("bad-factor", f"the factor {factor} is not positive", realize)
    if not -buffer.ndim <= axis < buffer.ndim:
        raise state.error(
            "no-such-axis",
            f"{buffer.name} has {buffer.ndim} axes, there is no axis {axis}",
            realize,
        )
    axis %= buffer.ndim
    allocating_block(state, realize, buffer)
    entries = [list(e) for e in realize.block.annotations.get(KEY, [])]
    wanted = [index, axis, factor, offset]
    places = [n for n, e in enumerate(entries) if e[:2] == wanted[:2]]
    if places:
        entries[places[0]] = wanted
    else:
        entries.append(wanted)

    def change(node: Stmt) -> Stmt:
        assert isinstance(node, Block)
        return evolve(node, annotations=FrozenMap({**node.annotations, KEY: entries}))

    state.commit(edit.wrap(realize.block, change))


def realigned(block: Block, writes: Sequence[BufferRegion]) -> Block:
    """A block whose alignments name positions of `writes`, with positions of its own regions.

    The alignments of buffers that the block does not write are left out.
    """
    given = block.annotations.get(KEY)
    if given is None:
        return block
    own = [r.buffer for r in block.writes]
    entries = [
        [own.index(writes[at].buffer), *rest]
        for at, *rest in given
        if at < len(writes) and writes[at].buffer in own
    ]
    others = {key: value for key, value in block.annotations.items() if key != KEY}
    return evolve(block, annotations=FrozenMap({**others, KEY: entries} if entries else others))
