"""Sums of floats in plain loops get register tiles at every size, in the order that is written."""

from __future__ import annotations

import numpy as np
import pytest
from space.candidates import TARGET, draw

import metasched as ms
from metasched.analysis.sizes import with_sizes
from metasched.ir.buffer import Buffer
from metasched.ir.func import PrimFunc
from metasched.ir.visit import blocks_of
from metasched.kinds import default_modules
from metasched.script import parse
from metasched.space.generate import SpaceGenerator

PLAIN = """
@T.prim_func
def f(A: T.Buffer((23, 9)), B: T.Buffer((9, 37)), C: T.Buffer((23, 37))):
    for i, j in T.grid(23, 37):
        C[i, j] = 0.0
        for k in range(9):
            C[i, j] += A[i, k] * B[k, j]
"""
SCALAR = """
@T.prim_func
def f(A: T.Buffer((23, 9)), B: T.Buffer((9, 37)), C: T.Buffer((23, 37))):
    for i, j in T.grid(23, 37):
        s = T.float32(0)
        for k in range(9):
            s += A[i, k] * B[k, j]
        C[i, j] = T.max(s, 0.0)
"""
HEAD = """
@T.prim_func
def f(A: T.Buffer((23, 9)), B: T.Buffer({shape}), C: T.Buffer((23, 37))):
"""
NEST = "    for i, j in T.grid(23, 37):\n        C[i, j] = {value}\n"
SUM = "    for {order} in T.grid({extents}):\n        C[i, j] += A[i, k] * B[{at}]\n"


def own_nests(*before: str, after: tuple[str, ...] = (), order: str = "i, j, k", at: str = "k, j"):
    """A sum in a nest of its own, with elementwise nests before and after."""
    size = {"i": 23, "j": 37, "k": 9}
    extents = ", ".join(str(size[x]) for x in order.split(", "))
    text = HEAD.format(shape="(37, 9)" if at == "j, k" else "(9, 37)")
    text += "".join(NEST.format(value=v) for v in before)
    text += SUM.format(order=order, extents=extents, at=at)
    return text + "".join(NEST.format(value=v) for v in after)


OWN_NESTS = {
    "accumulated": own_nests(),
    "other order": own_nests(order="i, k, j"),
    "zero before": own_nests("0.0"),
    "scaled before": own_nests("C[i, j] * 0.5", "C[i, j] + A[i, 0]"),
    "relu after": own_nests("A[i, 1]", after=("C[i, j] * 0.5", "T.max(C[i, j], 0.0)")),
    "transposed": own_nests("0.0", at="j, k"),
}
AT_RUN_TIME = """
@T.prim_func
def f(a: T.handle, b: T.handle, c: T.handle):
    n, m, p, s = T.int64(), T.int64(), T.int64(), T.int64()
    A = T.match_buffer(a, (n, p), strides=(s, 1))
    B = T.match_buffer(b, (p, m))
    C = T.match_buffer(c, (n, m))
    for i, j in T.grid(n, m):
        C[i, j] = 0.0
        for k in range(p):
            C[i, j] += A[i, k] * B[k, j]
"""


def tiles(func: PrimFunc) -> list[ms.Schedule]:
    """A candidate of each design space that pads an ordered sum and keeps its tile on the stack."""
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    padded = [s for s in spaces if "overcompute" in str(s) and "opaque" not in str(s)]
    drawn = (draw(func, space, seed) for space in padded for seed in range(2))
    return [sch for sch in drawn if sch is not None and 'scope="local"' in sch.script()]


@pytest.mark.parametrize("text", OWN_NESTS.values(), ids=OWN_NESTS)
def test_sums_in_nests_of_their_own_are_tiled_too(text):
    """Elementwise nests leave no pass over memory of their own."""
    func = parse(text)
    found = tiles(func)
    assert found
    random, written = np.random.default_rng(0), ms.build(func)
    shapes = (p.constant_shape() for p in func.params if isinstance(p, Buffer))
    arrays = [random.standard_normal(shape).astype("float32") for shape in shapes]
    want = [a.copy() for a in arrays]
    written(*want)
    for sch in found:
        got = [a.copy() for a in arrays]
        ms.build(sch)(*got)
        np.testing.assert_array_equal(got[-1], want[-1])
        body = sch.mod["main"].body
        assert sum(r.block.name.startswith("C") for r in blocks_of(body)) == 3


@pytest.mark.parametrize("text", [PLAIN, SCALAR, AT_RUN_TIME], ids=["plain", "scalar", "run time"])
def test_padded_tiles_keep_every_bit(text):
    func = parse(text)
    sizes = [(23, 9, 37)]
    if text is AT_RUN_TIME:
        func = with_sizes(func, {"n": 23, "m": 37, "p": 9})
        sizes += [(1, 1, 1), (8, 0, 48), (49, 3, 95)]
    found = tiles(func)
    assert found
    random, written = np.random.default_rng(0), ms.build(func)
    for sch in found:
        assert "T.axis.opaque" in sch.script()  # the order stays
        kernel = ms.build(sch)
        for n, p, m in sizes:
            a = random.standard_normal((n, p)).astype("float32")
            b = random.standard_normal((p, m)).astype("float32")
            one, two = (np.full((n, m), np.nan, "float32") for _ in range(2))
            kernel(a, b, one)
            written(a, b, two)
            np.testing.assert_array_equal(one, two)


WINDOW = """
@T.prim_func
def f(A: T.Buffer((23, 53)), C: T.Buffer((23, 37))):
    for i, j in T.grid(23, 37):
        s = T.float32(0)
        for k in range({taps}):
            s += A[i, j + k]
        C[i, j] = s * 0.25
"""


@pytest.mark.parametrize("taps", [2, 9, 16])
def test_windows_of_a_sum_that_overlap_are_tiled(taps):
    func = parse(WINDOW.format(taps=taps))
    found = tiles(func)
    assert found
    a = np.random.default_rng(0).standard_normal((23, 53)).astype("float32")
    want = np.zeros((23, 37), "float32")
    ms.build(func)(a, want)
    for sch in found:
        got = np.zeros_like(want)
        ms.build(sch)(a, got)
        np.testing.assert_array_equal(got, want)


TRIANGLE = """
@T.prim_func
def f(A: T.Buffer(({n}, 9), "{dtype}"), C: T.Buffer(({n}, {n}), "{dtype}")):
    for i in range({n}):
        for j in {span}:
            s = T.{dtype}(0)
            for k in range(9):
                s += A[i, k] * A[j, k]
            C[i, j] = s
"""


@pytest.mark.parametrize("span", ["range(i + 1)", "range(i)", "range(i, 48)", "range(i + 3, 48)"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_triangle_of_sums_is_tiled_over_its_square(span, dtype):
    """Each element is summed in order; outside of the triangle nothing is stored."""
    n = 49 if span == "range(i)" else 48  # whole vectors of columns
    func = parse(TRIANGLE.format(n=n, span=span, dtype=dtype))
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    boxes = [s for s in spaces if "overcompute_box" in str(s) and "opaque" not in str(s)]
    tiled = [s for s in boxes if "SSRRS" in str(s)]
    assert tiled
    a = np.random.default_rng(0).standard_normal((n, 9)).astype(dtype)
    a[5, 2], a[40, 0] = np.nan, np.inf
    want = np.full((n, n), 7, dtype)
    ms.build(func)(a, want)
    for space in boxes:
        for seed in range(3):
            sch = draw(func, space, seed)
            if sch is not None:
                got = np.full((n, n), 7, dtype)
                ms.build(sch)(a, got)
                np.testing.assert_array_equal(got, want)


GROUPS = """
@T.prim_func
def f(X: T.Buffer((12, 9, 18)), W: T.Buffer((8, 6, 2, 3)), O: T.Buffer((8, 8, 16))):
    for o, h, w in T.grid(8, 8, 16):
        O[o, h, w] = T.float32(0)
        for c, y, x in T.grid(6, 2, 3):
            O[o, h, w] += X[o // 4 * 6 + c, h + y, w + x] * W[o, c, y, x]
"""
TRANSPOSED = """
@T.prim_func
def f(X: T.Buffer((6, 4, 9)), W: T.Buffer((6, 5, 4, 4)), O: T.Buffer((5, 8, 18))):
    for o, h, w in T.grid(5, 8, 18):
        O[o, h, w] = T.float32(0)
        for c, y, x in T.grid(6, 4, 4):
            if (h + 1 - y) % 2 == 0 and (w + 1 - x) % 2 == 0:
                if (h + 1 - y) // 2 >= 0 and (h + 1 - y) // 2 < 4:
                    if (w + 1 - x) // 2 >= 0 and (w + 1 - x) // 2 < 9:
                        O[o, h, w] += X[c, (h + 1 - y) // 2, (w + 1 - x) // 2] * W[c, o, y, x]
"""


@pytest.mark.parametrize("text", [GROUPS, TRANSPOSED], ids=["groups", "transposed"])
def test_groups_and_phases_of_a_sum_in_order_are_tiled(text):
    func = parse(text)
    spaces = SpaceGenerator(default_modules(TARGET)).generate(func, TARGET)
    texts = [str(s.as_python()) for s in spaces]
    tiled = [
        space
        for space, steps in zip(spaces, texts, strict=True)
        if steps.count("transform_block_layout") == 3 and ".compute_at(" in steps
    ]
    assert tiled
    rng = np.random.default_rng(0)
    shapes = [buffer.constant_shape() for buffer in func.buffers[:2]]
    # products of float16 are exact, so that a fused product rounds as any other
    data = [rng.standard_normal(s).astype("float16").astype("float32") for s in shapes]
    wanted = ms.build(func)(*data)
    for seed, space in enumerate(tiled * 3):
        made = draw(func, space, seed)
        if made is not None:
            assert np.array_equal(ms.build(made.mod)(*data), wanted)
