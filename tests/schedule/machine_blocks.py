"""More operations for the random machine: block structure, merging, partitioning."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from schedule.machine import Player


def blockize(p: Player) -> None:
    if p.number(4) == 0:
        realize = p.pick(p.realizes())
        siblings = p.sch.state.scope(realize).realizes
        first = p.number(len(siblings))
        chosen = siblings[first : first + 1 + p.number(2)]
        p.sch.blockize([p.handle(c.realize) for c in chosen])
    else:
        p.sch.blockize(p.loop(), bool(1 - p.number(4) // 3))


def unblockize(p: Player) -> None:
    """Take a block away; mostly enclose its statements again."""
    realize = p.pick(p.realizes())
    around = p.sch.state.scope_block(realize)
    p.sch.unblockize(p.handle(realize))
    if around is not None and p.number(4):
        p.sch.enclose(p.sch.get_block(around.name))


def merge(p: Player) -> None:
    p.sch.merge(p.loop(), p.loop())


def loop_partition(p: Player) -> None:
    factors = [[None, 1 + p.number(3)], [1 + p.number(3), None], [2, None, 1]]
    p.sch.loop_partition(p.loop(), p.pick(factors))


def skew(p: Player) -> None:
    """Skew a loop by a loop around it; sometimes reorder both, or make the inner loop parallel."""
    loops = p.loops(p.block())
    if len(loops) < 2:
        p.nothing()
    at = p.number(len(loops) - 1)
    inner = at + 1 + p.number(len(loops) - at - 1)
    delayed = p.sch.skew(loops[at], loops[inner], p.pick([1, 2, -1, 3, -2]))
    if p.number(2):
        p.sch.reorder(delayed, loops[at])
        if p.number(2):
            p.sch.parallel(loops[at])


def copy_at(p: Player) -> None:
    """read_at or write_at at a loop above the block."""
    realize = p.pick(p.realizes())
    side = p.pick(["read", "write"])
    block = p.handle(realize)
    loop = p.pick(p.loops(block))
    regions = realize.block.reads if side == "read" else realize.block.writes
    step = p.sch.read_at if side == "read" else p.sch.write_at
    step(loop, block, p.number(max(1, len(regions))), p.pick(["global", "local"]))


def of_updates(name: str) -> Callable[[Player], None]:
    """A step on a random leaf block."""

    def play(p: Player) -> None:
        getattr(p.sch, name)(p.handle(p.pick(p.realizes())))

    return play


def of_loops(name: str) -> Callable[[Player], None]:
    """A step on a random loop."""

    def play(p: Player) -> None:
        getattr(p.sch, name)(p.loop())

    return play


def overcompute_box(p: Player) -> None:
    """overcompute_box on a block, half of the time after privatize_reduction."""
    block = p.handle(p.pick(p.realizes()))
    if p.number(2):
        p.sch.privatize_reduction(block)
    p.sch.overcompute_box(block)


def skip_unused(p: Player) -> None:
    """skip_unused on a loop, half of the time after overcompute_box on a block."""
    if p.number(2):
        p.sch.overcompute_box(p.handle(p.pick(p.realizes())))
    p.sch.skip_unused(p.loop())


def ragged_tile(p: Player) -> None:
    """Rows of a product in tiles, of which the common steps update a copy."""
    block = p.handle(p.pick(p.realizes()))
    loops = p.sch.get_loops(block)
    if len(loops) < 3:
        p.nothing()
    rows, columns, steps = loops[-3:]
    p.sch.reorder(columns, rows)
    _, row = p.sch.split(rows, [None, 2 + p.number(3)])
    first, second = p.sch.cut_loop(steps, row)
    p.sch.fission(row)
    for part in (first, second):
        loops = p.sch.get_loops(p.sch.get_child_blocks(part)[0])
        if p.number(4):
            p.sch.reorder(loops[-1], loops[-2])
            p.sch.cache_update(loops[-1], "local", beyond=not p.number(2))


def cut_and_join(p: Player) -> None:
    """Cut a loop after or before a number of iterations; sometimes join the parts again."""
    first, second = p.sch.cut_loop(p.loop(), p.pick([1, 2, -1, -2]))
    if p.number(2):
        p.sch.join_loops(first, second)


BLOCK_OPS = {
    "fission": (4, of_loops("fission")),
    "decompose_scan": (4, of_loops("decompose_scan")),
    "privatize_update": (4, of_loops("privatize_update")),
    "decompose_outputs": (12, of_updates("decompose_outputs")),
    "privatize_reduction": (4, of_updates("privatize_reduction")),
    "overcompute_box": (8, overcompute_box),
    "skip_unused": (8, skip_unused),
    "ragged_tile": (8, ragged_tile),
    "cut_and_join": (4, cut_and_join),
    "blockize": (8, blockize),
    "unblockize": (8, unblockize),
    "merge": (5, merge),
    "skew": (5, skew),
    "loop_partition": (5, loop_partition),
    "read_at write_at": (6, copy_at),
}
