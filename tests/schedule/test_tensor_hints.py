"""The hints of a tensor mismatch, each taken: afterwards the block is tensorized."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracle import check_refused, check_transform

from metasched import TensorIntrin
from metasched.schedule.handles import LoopRV
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.script import tir as T


@T.prim_func
def rows_desc(
    A: T.Buffer((4,), "int32", offset_factor=1),
    B: T.Buffer((2, 4), "int32", offset_factor=1),
    C: T.Buffer((2,), "int32", offset_factor=1),
):
    with T.block("root"):
        T.reads(C[0:2], A[0:4], B[0:2, 0:4])
        T.writes(C[0:2])
        for i, k in T.grid(2, 4):
            with T.block("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + A[vk] * B[vi, vk]


@T.prim_func
def started_desc(
    A: T.Buffer((4,), "int32", offset_factor=1), C: T.Buffer((2,), "int32", offset_factor=1)
):
    with T.block("root"):
        T.reads(A[0:4])
        T.writes(C[0:2])
        for i, k in T.grid(2, 4):
            with T.block("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + A[vk]


@T.prim_func
def sums_desc(
    A: T.Buffer((4,), "int32", offset_factor=1), C: T.Buffer((2,), "int32", offset_factor=1)
):
    with T.block("root"):
        T.reads(C[0:2], A[0:4])
        T.writes(C[0:2])
        for i, k in T.grid(2, 4):
            with T.block("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                C[vi] = C[vi] + A[vk]


@pytest.fixture(autouse=True)
def intrinsics(registries: None) -> None:
    """Register the descriptions for one test: the default space offers every known intrinsic."""
    for name, desc in (("sums", sums_desc), ("rows", rows_desc), ("started", started_desc)):
        TensorIntrin.register(f"hints.{name}", desc, desc)


PROGRAM = """
@T.prim_func
def f(A: T.Buffer((16,), "int32"), B: T.Buffer({shape}, "int32"), C: T.Buffer((8,), "int32")):
    for i, k in T.grid(8, {steps}):
        with T.block("C"):
            {iters}
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + {value}
"""
SPATIAL_FIRST = 'vi, vk = T.axis.remap("SR", [i, k])'


def program(
    value: str = "A[vk] * B[vi, vk]", steps: int = 8, iters: str = SPATIAL_FIRST,
    shape: tuple[int, ...] = (8, 8),
) -> Schedule:  # fmt: skip
    text = PROGRAM.format(value=value, steps=steps, iters=iters, shape=shape)
    return Schedule(parse(text), check=True)


def tile(sch: Schedule) -> LoopRV:
    """The outer loop of a tile of 2 results and 4 steps."""
    i, k = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, 2])
    k0, k1 = sch.split(k, [None, 4])
    sch.reorder(i0, k0, i1, k1)
    return i1


def rows_alone(sch: Schedule) -> LoopRV:
    """A tile of 2 results and the whole reduction."""
    return sch.split(sch.get_loops("C")[0], [None, 2])[1]


def long_tile(sch: Schedule) -> LoopRV:
    """A tile with twice the described steps."""
    i, k = sch.get_loops("C")
    i1 = sch.split(i, [None, 2])[1]
    sch.split(k, [None, 8])
    k0, k1 = sch.get_loops("C")[2:]
    sch.reorder(k0, i1, k1)
    return i1


def split_inner(sch: Schedule) -> LoopRV:
    i1, k1 = sch.get_loops("C")[2:]
    outer, inner = sch.split(k1, [None, 4])
    sch.reorder(outer, i1, inner)
    return i1


def before_the_split(step: Callable[[Schedule], object]) -> Callable[[Schedule], LoopRV]:
    """Take the tile back, take a step, and tile again."""

    def taken(sch: Schedule) -> LoopRV:
        for _ in range(3):
            sch.undo()
        step(sch)
        return tile(sch)

    return taken


def turn(sch: Schedule) -> LoopRV:
    sch.transform_layout(sch.cache_read("C", 1, "global"), "B_global", lambda k, i: (i, k))
    return sch.get_loops("C")[2]


def in_shared(sch: Schedule) -> LoopRV:
    """A tile of a block that reads a copy of B in shared memory."""
    sch.cache_read("C", 1, "shared")
    return tile(sch)


CASES: dict[str, tuple[Schedule, Callable[[Schedule], LoopRV], str, Callable[[Schedule], LoopRV]]]
CASES = {
    "a loop of two tiles": (
        program(), long_tile, "split the loop of k_1 by 4 and tensorize the inner part", split_inner
    ),
    "a strided operand": (
        program("A[vk * 2] * B[vi, vk]"), tile, 'reindex(block, ("read", 0)), before loops are',
        before_the_split(lambda sch: sch.reindex("C", ("read", 0))),
    ),
    "an operand read backwards": (
        program("A[7 - vk] * B[vi, vk]"), tile, 'reindex(block, ("read", 0)), before loops are',
        before_the_split(lambda sch: sch.reindex("C", ("read", 0))),
    ),
    "an operand in other memory": (
        program(), in_shared, "set_scope B_shared to global, or work on a copy there (cache_read",
        lambda sch: [sch.cache_read("C", 1, "global"), sch.get_loops("C")[2]][1],
    ),
    "two parts of a buffer": (
        program("B[0, vk] * B[vi, vk]"), tile, 'reindex(block, ("read", i, n)), before loops are',
        before_the_split(lambda sch: sch.reindex("C", ("read", 0, 0))),
    ),
    "a part with its dimensions turned": (
        program("A[vk] * B[vk, vi]"), tile, "transform_layout B to the order of dimensions of B",
        turn,
    ),
    "iterators in another order": (
        program(iters='vk, vi = T.axis.remap("RS", [k, i])'), tile,
        "reorder_block_iter_var gives the iterators the order of the description",
        before_the_split(lambda sch: sch.reorder_block_iter_var("C", [1, 0])),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_step_that_a_hint_names_aligns_both_sides(case):
    made, arrange, hint, taken = CASES[case]
    sch, before = made.copy(), made.mod["main"]
    loop = arrange(sch)
    error = check_refused(
        sch, lambda: sch.tensorize(loop, "hints.rows"), "mismatch", "does not match hints.rows"
    )
    assert error.hint.startswith(hint)
    sch.tensorize(taken(sch), "hints.rows")
    check_transform(before, sch, compiled=case != "an operand in other memory")


def test_iterators_of_one_description_are_fused_first():
    @T.prim_func
    def halves(
        A: T.Buffer((8,), "int32"), B: T.Buffer((8, 8), "int32"), C: T.Buffer((8,), "int32")
    ):
        for i, k, h in T.grid(8, 4, 2):
            with T.block("C"):
                vi, vk, vh = T.axis.remap("SRR", [i, k, h])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + A[vk * 2 + vh] * B[vi, vk * 2 + vh]

    sch = Schedule(halves, check=True)
    i, k, h = sch.get_loops("C")
    i0, i1 = sch.split(i, [None, 2])
    k0, k1 = sch.split(k, [None, 2])
    sch.reorder(i0, k0, i1, k1, h)
    sch.fuse(k1, h)
    step = lambda: sch.tensorize(i1, "hints.rows")  # noqa: E731
    error = check_refused(sch, step, "mismatch", "does not match hints.rows")
    assert error.hint == "transform_block_layout, before loops are split, fuses or adds iterators"
    sch = Schedule(halves, check=True)
    sch.transform_block_layout("C", lambda i, k, h: (i, k * 2 + h))
    sch.tensorize(tile(sch), "hints.rows")
    check_transform(halves, sch)


def test_a_description_with_an_init_is_one_of_the_update_alone():
    sch = program("A[vk]", steps=4)
    before = sch.mod["main"]
    loop = rows_alone(sch)
    step = lambda: sch.tensorize(loop, "hints.started")  # noqa: E731
    error = check_refused(sch, step, "mismatch", "C has no init, unlike the description")
    assert error.hint == "describe the update alone: blockize keeps the init outside of C"
    sch.tensorize(loop, "hints.sums")
    check_transform(before, sch)


def test_the_init_inside_a_block_is_moved_out_of_its_tile():
    @T.prim_func
    def nested(A: T.Buffer((4,), "int32"), C: T.Buffer((8,), "int32")):
        for i_0 in range(4):
            with T.block("tile"):
                vo = T.axis.spatial(4, i_0)
                T.reads(A[0:4])
                T.writes(C[vo * 2 : vo * 2 + 2])
                for i, k in T.grid(2, 4):
                    with T.block("C"):
                        vi, vk = T.axis.remap("SR", [i, k])
                        with T.init():
                            C[vo * 2 + vi] = 0
                        C[vo * 2 + vi] = C[vo * 2 + vi] + A[vk]

    sch = Schedule(nested, check=True)
    step = lambda: sch.tensorize("tile", "hints.sums")  # noqa: E731
    error = check_refused(sch, step, "mismatch", "block C has an init, unlike the description")
    assert error.hint == "decompose_reduction C at the outermost loop of the description"
    sch.decompose_reduction("C", sch.get_loops("C")[0])
    sch.tensorize(sch.get_loops("C_update")[0], "hints.sums")
    check_transform(nested, sch)
