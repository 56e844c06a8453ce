"""Maps an intrinsic's loops to loops of a block, and tiles the block by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metasched.arith.affine import linear
from metasched.ir.expr import Expr, Var, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.stmt import BlockRealize, For, IterKind
from metasched.ir.visit import free_vars
from metasched.schedule.handles import BlockRV, LoopRV
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class TensorizeInfo:
    """The mapping of an intrinsic's loops to a block's loops.

    Attributes:
        loop_map: for each loop of the description, outermost first, a pair: the position of the
            block's loop (0 is the outermost) and the described extent.
        block_iter_paddings: for each iterator of the block, the number to a multiple of which it is
            padded; None if no iterator needs padding.
    """

    loop_map: tuple[tuple[int, int], ...]
    block_iter_paddings: tuple[int, ...] | None


def get_tensorize_loop_mapping(
    sch: Schedule, block: BlockRV, desc_func: PrimFunc, allow_padding: bool = False
) -> TensorizeInfo | None:
    """Find for each loop of a description, from the innermost, a loop of the block.

    A loop fits if it moves an iterator of the same kind in steps of one, and its extent is a
    multiple of the described extent. Iterators are matched in their order, whatever the order of
    the loops. The idea is TVM's GetTensorizeLoopMapping. `tensorize` decides afterwards whether the
    block and the description compute the same values.

    Args:
        sch: the schedule of the block.
        block: the block to be tiled.
        desc_func: the description of the intrinsic.
        allow_padding: whether an extent may be padded to a multiple, if its loop is the whole
            value of an iterator.

    Returns None if a loop of the description fits no loop of the block.
    """
    nest, inner = nest_of(desc_func)
    if inner is None:
        return None
    wanted = _kinds(inner, nest)
    if any(loop.var not in wanted for loop in nest):
        return None
    realize = sch.state.block(block)
    above = sch.state.loops_above(realize)
    mine = _kinds(realize, above)
    loops = sorted((n for n in above if n.var in mine), key=lambda n: mine[n.var][0])
    found: dict[Var, tuple[int, int]] = {}
    paddings = [1] * len(realize.iter_values)
    for loop in sorted(nest, key=lambda n: -wanted[n.var][0]):
        extent = as_int(loop.extent)
        while loops:
            node = loops.pop()
            size = as_int(node.extent)
            at, kind = mine[node.var]
            if kind is not wanted[loop.var][1] or extent is None or size is None:
                continue
            if size % extent and not (allow_padding and realize.iter_values[at] is node.var):
                continue
            if size % extent:
                paddings[at] = extent
            found[loop.var] = above.index(node), extent
            break
        else:
            return None
    needed = tuple(paddings) if any(p != 1 for p in paddings) else None
    return TensorizeInfo(tuple(found[loop.var] for loop in nest), needed)


def tile_with_tensor_intrin(
    sch: Schedule, block: BlockRV | str, intrin_name: str, allow_padding: bool = False
) -> LoopRV | None:
    """Tile a block by an intrinsic's shape; returns the tile's outermost loop, for `tensorize`.

    Args:
        sch: the schedule of the block.
        block: the block, or its name.
        intrin_name: the name of a registered intrinsic.
        allow_padding: whether `pad_einsum` may pad iterators to multiples of the shape.

    Returns None, with the program unchanged, if the intrinsic's loops do not fit the block.
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


def nest_of(desc: PrimFunc) -> tuple[list[For], BlockRealize | None]:
    """The loops of a description and the block inside; None in place of it if they hold more."""
    loops: list[For] = []
    node = desc.root.body
    while isinstance(node, For):
        loops.append(node)
        node = node.body
    return loops, node if isinstance(node, BlockRealize) else None


def _kinds(realize: BlockRealize, loops: Sequence[For]) -> dict[Var, tuple[int, IterKind]]:
    """Map each loop that moves an iterator in steps of one to the iterator's position and kind."""
    found: dict[Var, tuple[int, IterKind]] = {}
    for n, (v, it) in enumerate(zip(realize.iter_values, realize.block.iter_vars, strict=True)):
        terms = linear(v).terms
        steps = [loop.var for loop in loops if _moves(v, loop.var) and terms[loop.var] == 1]
        if steps:
            found[steps[-1]] = (n, it.kind)
    return found


def _moves(value: Expr, var: Var) -> bool:
    """Whether a variable is one term of a sum and occurs nowhere else in it."""
    terms = linear(value).terms
    return var in terms and all(var not in free_vars(t) for t in terms if t is not var)
