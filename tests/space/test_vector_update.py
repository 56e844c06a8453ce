"""Lanes for updates of run-time extent: which blocks are offered them, and what they compute."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import agree, integers

from metasched.analysis.block import FOLD
from metasched.ir.stmt import ForKind
from metasched.postproc.parallel_vectorize_unroll import RewriteParallelVectorizeUnroll
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.loop_kinds import child_of, vectorize_leaf
from metasched.space.modules.interleave import Interleave
from metasched.space.modules.parallel_vectorize_unroll import ParallelVectorizeUnroll
from metasched.space.modules.vector_update import VectorUpdate
from metasched.target import Target

FACTOR = """
@T.prim_func
def main(A: T.Buffer((40, 40), "int32"), B: T.Buffer((40,), "int32")):
    for i in range(40):
        for j in range(i):
            for k in range({end}):
                with T.block("update"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    vk = T.axis.{kind}(40, k)
                    A[vi, vj] -= A[vi, vk] * A[{read}]
            with T.block("divide"):
                A[i, j] = A[i, j] - B[j]
"""


def _offered(end: str = "j", kind: str = "reduce", read: str = "vj, vk") -> list[Schedule]:
    sch = Schedule(parse(FACTOR.format(end=end, kind=kind, read=read)), seed=0)
    return VectorUpdate(128, (2,))(sch, sch.get_block("update"))


def test_a_dot_product_of_run_time_extent_gets_lanes():
    first, second = _offered()
    assert first.get(first.get_block("update")).annotations[FOLD] == 8
    assert FOLD not in second.get(second.get_block("update")).annotations
    data = integers((40, 40), "int32") % 3 - 1
    agree(first.mod["main"].script(), data, integers((40,), "int32", seed=1))


@pytest.mark.parametrize("change", [{"read": "vk, vj"}, {"kind": "opaque"}, {"end": "4"}])
def test_strided_ordered_and_short_updates_are_left_alone(change):
    (only,) = _offered(**change)
    assert FOLD not in only.get(only.get_block("update")).annotations


PRODUCTS = """
@T.prim_func
def main(A: T.Buffer((8, 90), "int32"), B: T.Buffer((8, 90), "int32"), C: T.Buffer((8,), "int32")):
    for i in range(8 // {rows}):
        for k in range(i * 10 + 50):
            for u in T.{kind}({rows}):
                with T.block("update"):
                    vi = T.axis.spatial(8, i * {rows} + u)
                    vk = T.axis.reduce(90, k)
                    C[vi] += A[vi, vk] * B[vi, vk]
"""


@pytest.mark.parametrize(
    ("rows", "kind", "widths"),
    [(2, "unroll", [4, 8, 16]), (4, "unroll", [4, 8]), (4, "serial", None)],
)
def test_results_in_unrolled_loops_share_the_registers(rows, kind, widths):
    sch = Schedule(parse(PRODUCTS.format(rows=rows, kind=kind)), seed=0)
    found, *_ = VectorUpdate(128)(sch, sch.get_block("update"))
    assert (FOLD in str(found.trace)) == bool(widths) and str(widths or "") in str(found.trace)
    agree(found.mod["main"].script(), *(integers((8, 90), "int32", seed=n) % 5 for n in range(2)),
          integers((8,), "int32"))  # fmt: skip


BACKWARDS = """
@T.prim_func
def main(R: T.Buffer((45,), "{kind}"), Y: T.Buffer((45,), "{kind}"), Z: T.Buffer((45,), "{kind}")):
    total = T.alloc_buffer((1,), "{kind}")
    for k in range(1, 45):
        with T.block("start"):
            total[0] = R[k]
        for i in range(k):
            with T.block("total"):
                vk = T.axis.opaque((1, 45), k)
                vi = T.axis.reduce(45, i)
                total[0] += R[vk - vi - 1] * Y[vi]
        for i in range(k):
            with T.block("Z"):
                Z[i] = Y[k - i - 1] + total[0]
"""


@pytest.mark.parametrize("kind", ["int32", "float64"])
def test_loads_run_backwards_in_lanes(kind):
    sch = Schedule(parse(BACKWARDS.format(kind=kind)), seed=0)
    first, *others = VectorUpdate(128, (2,))(sch, sch.get_block("total"))
    assert len(others) == (kind == "int32")  # 44 values are many vectors of 2, and few of 4
    assert vectorize_leaf(first, first.get_block("Z"), child(first, "Z"), 8)
    arrays = [integers((45,), "int32", seed=n).astype(kind) % 5 for n in range(3)]
    agree(first.mod["main"].script(), *arrays)


def test_the_default_space_gives_vectors_to_loads_that_run_backwards():
    sch = Schedule(parse(BACKWARDS.format(kind="int32")), seed=0)
    (found,) = ParallelVectorizeUnroll(vectors=(1,))(sch, sch.get_block("Z"))
    RewriteParallelVectorizeUnroll()(found, Target.native())
    assert child(found, "Z").loops[-1].kind is ForKind.VECTORIZED
    agree(found.mod["main"].script(), *(integers((45,), "int32", seed=n) for n in range(3)))


def child(sch: Schedule, name: str):
    return child_of(sch, sch.get(sch.get_block(name)).token)


LARGEST = """
@T.prim_func
def main(
    A: T.Buffer((300, 300), "{dtype}"), M: T.Buffer((300,), "{dtype}"), N: T.Buffer((300,), "int64")
):
    for i in range(300):
        for k in range(1, 300):
            if A[{read}] {compare} M[i]:
                M[i] = A[{read}]
{index}"""
INDEX = "                N[i] = T.int64(k)\n"


@pytest.mark.parametrize(
    ("dtype", "read", "compare", "index", "lanes"),
    [
        ("float32", "i, k", ">", "", 4),
        ("float64", "i, k", "<=", "", 2),
        ("float32", "i, k", ">", INDEX, 4),
        ("int16", "i, k", "<", INDEX, 8),
        ("float32", "k, i", ">", "", None),
        ("float16", "i, k", ">", "", None),
        ("float32", "i, k", "!=", INDEX, None),
    ],
)
def test_largest_values_of_plain_loops_get_lanes(dtype, read, compare, index, lanes):
    text = LARGEST.format(dtype=dtype, read=read, compare=compare, index=index)
    sch = Schedule(parse(text), seed=0)
    (block,) = sch.enclose("root")
    found, *_ = VectorUpdate(128, (1,))(sch, block)
    assert found.get(block).annotations.get(FOLD) == lanes
    interleaved, *_ = Interleave((4,))(found, block)
    assert (interleaved is found) == (lanes is not None or read == "k, i")
    data = integers((300, 300), "int32") % 100
    arrays = data.astype(dtype), data[:, 0].astype(dtype), np.zeros(300, "int64")
    agree(found.mod["main"].script(), *arrays)
