"""Which loops of a block an intrinsic's loops are, and tiling by them (recorded step by step)."""

from __future__ import annotations

from dataclasses import dataclass

from metasched.ir.expr import Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BlockRealize, For, IterKind
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TensorizeInfo:
    """How an intrinsic lies in a block.

    Attributes:
        loop_map: for each loop of the description, outermost first: (which of the block's loops,
            counted from the outermost, the described extent).
        block_iter_paddings: what to pad each iterator of the block to a multiple of, None when
            nothing needs padding.
    """

    loop_map: tuple[tuple[int, int], ...]
    block_iter_paddings: tuple[int, ...] | None


def get_tensorize_loop_mapping(
    sch: Schedule, block: BlockRV, desc_func: PrimFunc, allow_padding: bool = False
) -> TensorizeInfo | None:
    """Find for each loop of a description, from the innermost, a loop of the block.

    A loop fits when it is bound alone to an iterator of the same kind and its extent is a multiple
    of the described one (or may be padded to one). None when some loop finds no partner. The idea
    is TVM's GetTensorizeLoopMapping; `tensorize` decides whether the result computes the same.
    """
    theirs, inner = _nest(desc_func)
    if inner is None:
        return None
    wanted = _kinds(inner)
    realize = sch.state.block(block)
    mine = _kinds(realize)
    loops = list(sch.state.loops_above(realize))
    found: list[tuple[int, int]] = []
    paddings = [1] * len(realize.iter_values)
    for loop in reversed(theirs):
        extent = as_int(loop.extent)
        while loops:
            node = loops.pop()
            size = as_int(node.extent)
            at, kind = mine.get(node.var, (-1, None))
            if kind is None or kind is not wanted.get(loop.var, (0, None))[1] or extent is None:
                continue
            if size is None or (size % extent and not allow_padding):
                continue
            if size % extent:
                paddings[at] = extent
            found.append((len(loops), extent))
            break
        else:
            return None
    needed = tuple(paddings) if any(p != 1 for p in paddings) else None
    return TensorizeInfo(tuple(reversed(found)), needed)


def tile_with_tensor_intrin(
    sch: Schedule, block: BlockRV | str, intrin_name: str, allow_padding: bool = False
) -> LoopRV | None:
    """Tile a block by an intrinsic's shape; returns the tile's outermost loop, for `tensorize`.

    None, with the program as it was, when the intrinsic does not lie in the block.
    """
    target = sch.get_block(block) if isinstance(block, str) else block
    intrin = TensorIntrin.get(intrin_name)
    info = get_tensorize_loop_mapping(sch, target, intrin.desc, allow_padding)
    if info is None:
        return None
    if info.block_iter_paddings is not None:
        sch.pad_einsum(target, list(info.block_iter_paddings))
    info = get_tensorize_loop_mapping(sch, target, intrin.desc)
    if info is None:
        return None
    order, inner = sch.get_loops(target), []
    for position, extent in info.loop_map:
        order[position], tile = sch.split(order[position], [None, extent])
        inner.append(tile)
    sch.reorder(*order, *inner)
    return inner[0]


def _nest(desc: PrimFunc) -> tuple[list[For], BlockRealize | None]:
    """The loops of a description and the block inside, None if it is no chain."""
    loops: list[For] = []
    node = desc.root.body
    while isinstance(node, For):
        loops.append(node)
        node = node.body
    return loops, node if isinstance(node, BlockRealize) else None


def _kinds(realize: BlockRealize) -> dict[Var, tuple[int, IterKind]]:
    """For each loop bound alone to an iterator: which one, and its kind."""
    pairs = enumerate(zip(realize.iter_values, realize.block.iter_vars, strict=True))
    return {v: (n, it.kind) for n, (v, it) in pairs if isinstance(v, Var)}
