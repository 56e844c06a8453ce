"""Refusals of rare programs: for each refusal the smallest program that reaches it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from oracle import check_refused

from metasched.ir.expr import Var
from metasched.ir.op import call
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.script import parse

Step = tuple[Any, ...]
"""The name of a primitive and its arguments."""

HEAD = """
@T.prim_func
def f(A: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    B = T.alloc_buffer((8,), "int32")
"""


def stage(name: str, value: str, extent: int = 8, domain: int = 8, where: str = "") -> str:
    """A loop with a block `name` that writes name[v] = value, v bound to the loop."""
    lines = [
        f"for i in range({extent}):",
        f'    with T.block("{name}"):',
        f"        v = T.axis.spatial({domain}, i)",
        f"        T.where({where})" if where else "",
        f"        {name}[v] = {value}",
    ]
    return "".join(f"    {line}\n" for line in lines if line)


def lines(*texts: str) -> str:
    return "".join(f"    {text}\n" for text in texts)


B = stage("B", "A[v] + 1")
C = stage("C", "B[v] * 2")
OTHER = Var("other")


def loops(sch: Schedule, name: str) -> Any:
    return sch.get_loops(sch.get_block(name))


SCALAR = lines(
    "for u in range(1):",
    '    with T.block("B"):',
    "        v = T.axis.spatial(1, u)",
    "        B[v] = A[v]",
    "for i in range(8):",
    '    with T.block("C"):',
    "        v = T.axis.spatial(8, i)",
    "        C[v] = B[0] + v",
)
REPEATED = lines(
    "for u, k in T.grid(3, 8):",
    '    with T.block("B"):',
    "        v = T.axis.spatial(8, k)",
    "        B[v] = A[v]",
    "for k in range(8):",
    '    with T.block("C"):',
    "        v = T.axis.reduce(8, k)",
    "        with T.init():",
    "            C[0] = 0",
    "        C[0] = C[0] + B[v]",
)
PAD = lines(
    "for i in range(8):",
    '    with T.block("C"):',
    "        v = T.axis.spatial(8, i)",
    '        X = T.alloc_buffer((1,), "int32")',
    "        C[v] = T.if_then_else(v < 7, A[v], 0)",
)
SQUARE = lines(
    "for i in range(2):",
    "    for j in range(i * i + 1):",
    "        for k in range(4):",
    '            with T.block("C"):',
    "                v = T.axis.opaque(8, j % 2 * 4 + k)",
    "                C[v] = A[v]",
)
EPILOGUE = """
@T.prim_func
def f(A: T.Buffer((8, 8), "int32"), D: T.Buffer((8, 8), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i, k in T.grid(8, 8):
        with T.block("B"):
            v, vk = T.axis.remap("SR", [i, k])
            with T.init():
                B[v] = 0
            B[v] = B[v] + A[v, vk]
    for i, j in T.grid(8, 8):
        with T.block("D"):
            v, w = T.axis.remap("SS", [i, j])
            D[v, w] = B[v] + 1
"""
TWO_STORES = lines(
    "for i in range(8):",
    '    with T.block("B"):',
    "        v = T.axis.spatial(8, i)",
    "        B[v] = A[v]",
    "        B[v] = A[v] + 1",
)
LOOSE = lines(
    "for i in range(8):",
    "    B[i] = 0",
    '    with T.block("B"):',
    "        v = T.axis.spatial(8, i)",
    "        B[v] = A[v]",
)
HORNER = lines(
    "for i, k in T.grid(1, 8):",
    '    with T.block("C"):',
    '        v, vk = T.axis.remap("SR", [i, k])',
    "        with T.init():",
    "            C[v] = 0",
    "        C[v] = C[v] * 2 + A[vk]",
)


def unbounded(i: Any) -> Any:
    return call("popcount", i)


def aligned() -> str:
    """An intrinsic for block C whose operand begins at a multiple of 256 bytes."""
    text = """
@T.prim_func
def f(B: T.Buffer((8,), "int32", align=64), C: T.Buffer((8,), "int32")):
    with T.block("root"):
        T.reads(B[0:8])
        T.writes(C[0:8])
""" + C.replace("    ", "        ", 1).replace("\n    ", "\n        ")
    TensorIntrin.register("test.far", parse(text), parse(text.replace("64", "256")), override=True)
    return "test.far"


CASES: dict[str, tuple[str, Callable[[Schedule], Step], str, str]] = {
    "merge, loose": (
        HEAD + LOOSE + C,
        lambda sch: ("merge", *loops(sch, "B"), *loops(sch, "C")),
        "not-structured",
        "statements outside of blocks stand beside block B",
    ),
    "merge, between": (
        HEAD + B + lines("C[0] = 1") + C,
        lambda sch: ("merge", *loops(sch, "B"), *loops(sch, "C")),
        "in-between",
        "a statement that is not a block is between the nests",
    ),
    "reindex_cache_read, unbounded": (
        HEAD + B + C,
        lambda sch: ("reindex_cache_read", "C", 0, "local", unbounded),
        "bad-index-map",
        "has an output without bounds",
    ),
    "transform_layout, unbounded": (
        HEAD + B + C,
        lambda sch: ("transform_layout", "C", "B", unbounded),
        "bad-index-map",
        "has an output without bounds",
    ),
    "tensorize, alignment": (
        HEAD + B + C,
        lambda sch: ("tensorize", loops(sch, "C")[0], aligned()),
        "misaligned",
        "B is aligned to 64 bytes, not 256",
    ),
    "compute_at, partial": (
        HEAD + stage("B", "A[v] + 1", 7) + stage("C", "B[v]", 7, 7),
        lambda sch: ("compute_at", sch.get_block("B"), *loops(sch, "C")),
        "partial-domain",
        "block B is not proved to run on its whole domain",
    ),
    "annotate_buffer_access, foreign": (
        HEAD + B + C,
        lambda sch: ("annotate_buffer_access", "C", 0, "read", lambda v: [(OTHER, v + 1)]),
        "bad-ranges",
        "the ranges mention other",
    ),
    "annotate_buffer_access, two iterators": (
        HEAD + B + C,
        lambda sch: ("annotate_buffer_access", "C", 0, "read", lambda v, w: [v]),
        "bad-ranges",
        "the index map takes 2 indices, 1 are needed",
    ),
    "transform_layout, nested": (
        HEAD + B + C,
        lambda sch: ("transform_layout", "C", "B", lambda v: [(v, v)]),
        "bad-index-map",
        r"\(v, v\) is no expression and no number",
    ),
    "annotate_buffer_access, too many": (
        HEAD + B + C,
        lambda sch: ("annotate_buffer_access", "C", 0, "read", lambda v: [v, v, v]),
        "bad-ranges",
        "B has 1 dimensions: give an integer index or a pair",
    ),
    "reverse_compute_at, scalar": (
        HEAD + SCALAR,
        lambda sch: ("reverse_compute_at", "C", *loops(sch, "B")),
        "not-ready",
        "the elements that u computes determine no iterator of C",
    ),
    "reverse_compute_at, repeated": (
        HEAD + REPEATED,
        lambda sch: ("reverse_compute_at", "C", loops(sch, "B")[1]),
        "repeated-reduction",
        "C would add the same elements again in each iteration of u",
    ),
    "decompose_padding, more": (
        HEAD + PAD,
        lambda sch: ("decompose_padding", "C", *loops(sch, "C")),
        "no-padding",
        "C does more than pad",
    ),
    "loop_partition, square": (
        HEAD + SQUARE.replace("i * i", "T.popcount(i)"),
        lambda sch: ("loop_partition", loops(sch, "C")[2], [None, 1]),
        "dependent-bound",
        "depends on loops around it",
    ),
    "fuse_reduction_epilogue, wider": (
        EPILOGUE,
        lambda sch: ("fuse_reduction_epilogue", "B", "D"),
        "other-iterators",
        "w does not occur in B",
    ),
    "reverse_compute_inline, part": (
        HEAD + B + stage("C", "B[v]", 8, 7, "i < 6"),
        lambda sch: ("reverse_compute_inline", "C"),
        "partial-domain",
        "C is not proved to run on its whole domain",
    ),
    "reverse_compute_inline, halves": (
        HEAD + B + stage("C", "B[v // 2]"),
        lambda sch: ("reverse_compute_inline", "C"),
        "not-invertible",
        "cannot be solved for the iterators of C",
    ),
    "compute_inline, two stores": (
        HEAD + TWO_STORES + C,
        lambda sch: ("compute_inline", "B"),
        "not-one-store",
        "the body of B is not a single store",
    ),
    "rfactor, horner": (
        HEAD + HORNER,
        lambda sch: ("rfactor", loops(sch, "C")[1], 0),
        "no-reducer",
        "C is no commutative reduction",
    ),
    "overcompute, partial": (
        HEAD + stage("B", "A[v] + 1", 7) + stage("C", "B[v]", 7, 7),
        lambda sch: ("overcompute", "B", [8]),
        "other-domain",
        "the loop i does not run over the domain of v",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rare_illegal_steps_are_refused(name: str) -> None:
    text, step, reason, message = CASES[name]
    sch = Schedule(parse(text), seed=0)
    primitive, *arguments = step(sch)
    check_refused(sch, lambda: getattr(sch, primitive)(*arguments), reason, message)
