"""split_packing: what runs ahead of time on constant weights, and what cannot."""

from __future__ import annotations

import numpy as np
import pytest

from metasched.errors import LowerError
from metasched.ir.interp import run
from metasched.ir.verify import verify
from metasched.lower.packing import PREPROC, split_packing
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.parser import parse
from metasched.script.printer import script


@T.prim_func
def product(
    A: T.Buffer((6, 8), "float32"),
    B: T.Buffer((8, 8), "float32"),
    C: T.Buffer((6, 8), "float32"),
):
    T.func_attr({"layout_free_buffers": [1]})
    for i, j, k in T.grid(6, 8, 8):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + A[vi, vk] * B[vk, vj]


def prepacked(index_map, func=product, block="C"):
    sch = Schedule(func, check=True)
    copy = sch.reindex_cache_read(sch.get_block(block), 1, "global", index_map)
    sch.annotate(copy, PREPROC, True)
    return sch


def both(func, given, shape):
    """The result of the kernel on what the pack function makes, and that of the program."""
    parts = split_packing(func)
    verify(parts.main)
    verify(parts.pack)
    a, b = given
    packed = np.full([int(n) for n in parts.pack.params[-1].shape], np.nan, np.float32)
    run(parts.pack, b, packed)
    got, want = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    run(parts.main, a, packed, got, check_regions=True)
    run(func, a, b, want)
    return got, want, packed


@pytest.mark.parametrize(
    ("index_map", "shape"),
    [
        (lambda i, j, k: (j // 4, k, j % 4), (2, 8, 4)),
        (lambda i, j, k: (j // 3, k, j % 3), (3, 8, 3)),  # the last panel has room to spare
        (lambda i, j, k: (j, k), (1, 8, 8)),  # the shape differs, whatever the layout
    ],
)
def test_the_parts_compute_what_the_whole_did(index_map, shape):
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in ((6, 8), (8, 8))]
    got, want, packed = both(prepacked(index_map).func, given, (6, 8))
    assert packed.shape == shape
    assert np.array_equal(got, want)


def test_the_names_and_the_order_of_the_parameters_stay():
    parts = split_packing(prepacked(lambda i, j, k: (j, k)).func)
    assert [p.name for p in parts.main.params] == ["A", "B", "C"]
    assert [p.name for p in parts.pack.params] == ["B", "B_packed"]
    assert parts.pack.attrs["global_symbol"] == "product_pack"
    assert "layout_rewrite" not in script(parts.main) and "layout_free" not in script(parts.main)


def test_a_weight_without_packing_is_copied():
    parts = split_packing(product)
    assert parts.main.params == product.params and parts.main.body is product.body
    b, packed = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((8, 8), np.float32)
    run(parts.pack, b, packed)
    assert np.array_equal(packed, b)
    assert split_packing(parts.main) is None


def test_a_strided_weight_is_packed_densely():
    func = parse(
        """
@T.prim_func
def scale(A: T.Buffer((4,), "float32", strides=(2,)), B: T.Buffer((4,), "float32")):
    T.func_attr({"layout_free_buffers": [0]})
    for i in range(4):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            B[v] = A[v]
"""
    )
    parts = split_packing(func)
    a = np.arange(8, dtype=np.float32)[::2]
    packed, out = np.zeros(4, np.float32), np.zeros(4, np.float32)
    run(parts.pack, a, packed)
    run(parts.main, packed, out)
    assert np.array_equal(out, a)


def test_a_chain_of_stages_runs_ahead():
    func = parse(
        """
@T.prim_func
def chain(A: T.Buffer((4,), "float32"), W: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    T.func_attr({"layout_free_buffers": [1]})
    P = T.alloc_buffer((4,), "float32")
    Q = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("P"):
            v = T.axis.spatial(4, i)
            T.block_attr({"meta_schedule.layout_rewrite_preproc": True})
            P[v] = W[v] * W[v]
    for i in range(4):
        with T.block("Q"):
            v = T.axis.spatial(4, i)
            T.block_attr({"meta_schedule.layout_rewrite_preproc": True})
            Q[v] = P[3 - v] + W[v]
    for i in range(4):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            B[v] = A[v] * Q[v]
"""
    )
    a, w = np.arange(4, dtype=np.float32), np.arange(1, 5, dtype=np.float32)
    got, want, packed = both(func, (a, w), (4,))
    assert np.array_equal(got, want) and np.array_equal(packed[0], (w * w)[::-1] + w)


HEAD = """
@T.prim_func
def f(A: T.Buffer((4,), "float32"), W: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    ATTR
    P = T.alloc_buffer((4,), "float32")
    for i in range(4):
        with T.block("P"):
            v = T.axis.spatial(4, i)
            T.block_attr({"meta_schedule.layout_rewrite_preproc": True})
            STORE
    for i in range(4):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            LAST
"""
MARK = 'T.func_attr({"layout_free_buffers": [1]})'


@pytest.mark.parametrize(
    ("attr", "store", "last", "message"),
    [
        (
            "T.func_attr({})", "P[v] = W[v]", "B[v] = P[v]",
            "block P is annotated meta_schedule.layout_rewrite_preproc and cannot run ahead of "
            "time: no parameter is marked as constant by layout_free_buffers",
        ),
        (MARK, "P[v] = A[v] * W[v]", "B[v] = P[v]", "it reads A, which is not made of a constant"),
        (MARK, "P[v] = T.float32(1)", "B[v] = P[v]", "it does not read exactly one constant"),
        (MARK, "B[v] = W[v]", "B[v] = A[v]", "it writes B, which is no buffer of the root block"),
        (MARK, "P[v] = W[v]", "B[v] = P[v] * W[v]", "needs the constant weight W in two layouts"),
        (MARK, "P[v] = W[v]", "P[v] = A[v]", "P is packed ahead of time and written by the kernel"),
        (MARK, "P[v] = W[v]", "B[v] = A[v]", "W is packed ahead of time and the result is not"),
    ],
)  # fmt: skip
def test_split_packing_refuses_packing_that_cannot_run_ahead(attr, store, last, message):
    func = parse(HEAD.replace("ATTR", attr).replace("STORE", store).replace("LAST", last))
    with pytest.raises(LowerError) as caught:
        split_packing(func)
    assert message in str(caught.value)


def test_a_block_that_shares_its_loops_is_refused():
    sch = prepacked(lambda i, j, k: (j, k))
    copy, block = sch.get_block("B_global"), sch.get_block("C")
    sch.compute_at(copy, sch.get_loops(block)[0])
    with pytest.raises(LowerError, match="it shares its loops with what does not"):
        split_packing(sch.func)
