"""Sums leave out what padding makes zero, where and only where that cannot be seen."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import NATIVE, build, call, integers
from hypothesis import given, settings
from hypothesis import strategies as st

import metasched as ms
from metasched.ir.func import FINITE
from metasched.ir.stmt import For, ForKind, IfThenElse
from metasched.ir.visit import walk_stmts
from metasched.lower.pipeline import lower
from metasched.script import parse
from metasched.space.loop_kinds import decompose_init
from metasched.target import Target

PROMISE = f'T.func_attr({{"{FINITE}": True}})'
SUMS = """
@T.prim_func
def main(
    X: T.Buffer(({n}, {c}), "{dtype}"), W: T.Buffer(({k}, {c}, 16), "{dtype}"),
    Y: T.Buffer(({out}, 16), "{dtype}"),
):
    {promise}
    P = T.alloc_buffer(({n} + 2 * {pad}, {c}), "{dtype}")
    for i, c in T.grid({n} + 2 * {pad}, {c}):
        with T.block("pad"):
            vi, vc = T.axis.remap("SS", [i, c])
            P[vi, vc] = T.if_then_else(
                {pad} <= vi and vi < {n} + {pad}, X[vi - {pad}, vc], T.cast({beyond}, "{dtype}")
            )
    for h, o, k, c in T.grid({out}, 16, {k}, {c}):
        with T.block("sum"):
            vh, vo, vk, vc = T.axis.remap("SSRR", [h, o, k, c])
            with T.init():
                Y[vh, vo] = T.cast(0, "{dtype}")
            Y[vh, vo] = Y[vh, vo] + {factor} * W[vk, vc, vo]
"""
LOAD = "P[vh * {stride} + vk * {dilation}, vc]"


def _program(
    n=9, c=128, k=3, pad=1, stride=1, dilation=1, dtype="float32", promise=PROMISE, factor=LOAD,
    beyond=0,
):  # fmt: skip
    out = (n + 2 * pad - dilation * (k - 1) - 1) // stride + 1
    factor = factor.format(stride=stride, dilation=dilation)
    return parse(SUMS.format(**locals()))


def _arrays(func, dtype="float32"):
    return [
        integers([int(n.value) for n in p.shape], dtype, seed=s) for s, p in enumerate(func.params)
    ]


def _scheduled(func, rows: int, slide: bool):
    """Blocks of rows in the innermost loops; the loop over the kernel outside of them."""
    sch = ms.Schedule(func)
    block = sch.get_block("sum")
    h, o, k, c = sch.get_loops(block)
    outer, inner = sch.split(h, [None, rows])
    lanes = sch.split(o, [None, 16])
    sch.reorder(outer, k, *((c, inner) if slide else (inner, c)), *lanes)
    if slide:
        sch.unroll(inner)
    sch.vectorize(lanes[1])
    decompose_init(sch, sch.state.block(block), None)
    return sch.mod["main"]


def _tests(func):
    return [s for s in walk_stmts(lower(func, NATIVE).body) if isinstance(s, IfThenElse)]


def _rows(func):
    """The extents of the unrolled loops over rows."""
    loops = [s for s in walk_stmts(lower(func, NATIVE).body) if isinstance(s, For)]
    rows = [s for s in loops if s.kind is ForKind.UNROLLED and s.var.name == "h_1"]
    return [int(s.extent.value) for s in rows]


def _check(func, n, k, pad, stride, dilation, dtype="float32"):
    """Whether the compiled function gives the sums over a padded array."""
    x, w, y = _arrays(func, dtype)
    padded = np.pad(x, [(pad, pad), (0, 0)])
    at = np.arange(len(y))[:, None] * stride + np.arange(k) * dilation
    assert call(build(func), x, w, y) == 0
    np.testing.assert_array_equal(y, np.einsum("hkc,kco->ho", padded[at], w))


@settings(max_examples=12, deadline=None)
@given(
    n=st.integers(3, 11), k=st.integers(1, 5), pad=st.integers(0, 3), stride=st.integers(1, 2),
    dilation=st.integers(1, 2), slide=st.booleans(), tiles=st.integers(1, 6),
    dtype=st.sampled_from(["float32", "int32"]),
)  # fmt: skip
def test_all_sums_stay(n, k, pad, stride, dilation, slide, tiles, dtype):
    if n + 2 * pad < dilation * (k - 1) + 1:
        return
    func = _program(n, 128, k, pad, stride, dilation, dtype)
    out = int(func.params[2].shape[0].value)
    scheduled = _scheduled(func, out // tiles if out % tiles == 0 else 1, slide)
    _check(scheduled, n, k, pad, stride, dilation, dtype)


def test_loops_that_add_nothing_are_skipped():
    func = _scheduled(_program(), 1, slide=False)
    assert len(_tests(func)) == 1
    _check(func, 9, 3, 1, 1, 1)


def test_rows_that_add_nothing_are_left_out_of_a_short_loop():
    """Which is written out, so that nothing is tested when it runs."""
    func = _scheduled(_program(), 9, slide=True)
    assert not _tests(func)
    assert _rows(func) == [8, 9, 8]
    _check(func, 9, 3, 1, 1, 1)


def test_rows_of_the_tiles_at_the_border_are_cut_by_tests():
    """The tiles between need all of theirs."""
    func = _scheduled(_program(), 3, slide=True)
    assert _rows(func) == [2, 2, 3] and len(_tests(func)) == 2
    _check(func, 9, 3, 1, 1, 1)


@pytest.mark.parametrize("planes", [1, 2])
def test_a_constant_index_writes_all_of_a_single_plane_only(planes):
    """As layout transformations leave it; what nothing wrote in a second plane is not zero."""
    text = SUMS.replace("P[", "P[0, ").replace("alloc_buffer((", f"alloc_buffer(({planes}, ")
    values = {"n": 9, "c": 128, "k": 3, "pad": 1, "dtype": "float32", "promise": PROMISE}
    load = LOAD.format(stride=1, dilation=1).replace("P[", "P[0, ")
    func = _scheduled(parse(text.format(**values, out=9, factor=load, beyond=0)), 9, slide=True)
    assert _rows(func) == ([8, 9, 8] if planes == 1 else [9])
    _check(func, 9, 3, 1, 1, 1)


def test_without_the_promise_infinite_weights_reach_the_border():
    func = _scheduled(_program(promise="pass"), 9, slide=True)
    assert _rows(func) == [9] and not _tests(_scheduled(_program(promise="pass"), 1, slide=False))
    x, w, y = _arrays(func)
    w[0] = np.inf
    assert call(build(func), x, w, y) == 0
    assert np.isnan(y[0]).all()


def test_integers_need_no_promise():
    func = _scheduled(_program(dtype="int32", promise="pass"), 9, slide=True)
    assert _rows(func) == [8, 9, 8]


@pytest.mark.parametrize(
    "change",
    [{"beyond": 1}, {"factor": LOAD + " + X[0, 0]"}, {"factor": "T.exp(" + LOAD + ")"}],
    ids=["other padding", "a sum", "not a product of elements"],
)
def test_loops_without_products_with_zero_stay_whole(change):
    func = _scheduled(_program(**change), 9, slide=True)
    assert _rows(func) == [9]


WRITERS = {
    "a view": """
        Q = T.decl_buffer((10,), "int32", data=P.data)
        Q[0] = 7""",
    "its address": """
        T.evaluate(T.call_extern("int32", "memset", T.address_of(P[0]), 7, 1))""",
}


@pytest.mark.parametrize("by", WRITERS)
def test_elements_with_a_second_writer_are_not_assumed_zero(by):
    func = parse(
        f"""
@T.prim_func
def f(X: T.Buffer((8,), "int32"), W: T.Buffer((2048,), "int32"), Y: T.Buffer((10,), "int32")):
    P = T.alloc_buffer((10,), "int32")
    for i in range(10):
        with T.block("pad"):
            v = T.axis.spatial(10, i)
            P[v] = T.if_then_else(1 <= v and v < 9, X[v - 1], 0)
    with T.block("other"):
        T.reads()
        T.writes(P[0:10]){WRITERS[by]}
    for i, k in T.grid(10, 2048):
        with T.block("sum"):
            v, r = T.axis.remap("SR", [i, k])
            T.reads(Y[v], P[v], W[r])
            T.writes(Y[v])
            Y[v] = Y[v] + P[v] * W[r]
"""
    )
    result = np.zeros(10, np.int32)
    ms.build(func)(np.ones(8, np.int32), np.ones(2048, np.int32), result)
    assert list(result) == [7 * 2048, *[2048] * 8, 0]


BYTES = """
@T.prim_func
def main(
    X: T.Buffer((9, 128), "uint8"), W: T.Buffer((3, 32, 16, 4), "int8"),
    Y: T.Buffer((9, 16), "int32"),
):
    P = T.alloc_buffer((11, 128), "uint8")
    for i, c in T.grid(11, 128):
        with T.block("pad"):
            vi, vc = T.axis.remap("SS", [i, c])
            P[vi, vc] = T.if_then_else(1 <= vi and vi < 10, X[vi - 1, vc], T.uint8({beyond}))
    for h, k, c, o, g in T.grid(9, 3, 32, 16, 4):
        with T.block("sum"):
            vh, vk, vc, vo, vg = T.axis.remap("SRRSR", [h, k, c, o, g])
            with T.init():
                Y[vh, vo] = 0
            Y[vh, vo] = Y[vh, vo] + T.cast(P[vh + vk, vc * 4 + vg], "int32") * T.cast(
                W[vk, vc, vo, vg], "int32"
            )
"""


@pytest.mark.parametrize("beyond", [0, 3])
def test_rows_of_tensor_instructions_are_left_out(beyond):
    sch = ms.Schedule(parse(BYTES.format(beyond=beyond)))
    block = sch.get_block("sum")
    h, k, c, o, _ = sch.get_loops(block)
    outer, rows = sch.split(h, [None, 3])
    sch.reorder(outer, k, c, rows, o)
    sch.unroll(rows)
    sch.decompose_reduction(block, k)
    sch.tensorize(o, "x86.vnni.dot_16x4_u8i8i32")
    target = Target.of("llvm -mcpu=znver4 -num-cores=2")
    lowered = lower(sch.mod["main"], target)
    cut = any(isinstance(s, IfThenElse) for s in walk_stmts(lowered.body))
    assert cut == (beyond == 0)
    x, w = integers([9, 128], "uint8", seed=1), integers([3, 32, 16, 4], "int8", seed=2)
    padded = np.pad(x, ((1, 1), (0, 0)), constant_values=beyond).astype(np.int32)
    taps = (padded[t : t + 9] @ w[t].transpose(0, 2, 1).reshape(128, 16) for t in range(3))
    if NATIVE.supports(target) is None:
        found = ms.build(sch.mod, target=target)(x, w)
        np.testing.assert_array_equal(found, sum(taps))
