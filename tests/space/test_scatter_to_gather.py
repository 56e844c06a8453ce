"""scatter_to_gather: windows that overlap, summed place by place in the order of the program."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers, check_transform

import metasched as ms
from metasched.ir.func import IRModule, PrimFunc
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.modules.enclose_statements import EncloseStatements
from metasched.space.modules.scatter_to_gather import ScatterToGather

POLYNOMIAL = """
@T.prim_func
def f(A: T.Buffer((9,), "float32"), B: T.Buffer((5,), "float32"), C: T.Buffer((13,), "float32")):
    for i, j in T.grid(9, 5):
        C[i + j] += A[i] * B[j]
"""
KERNEL_OUTSIDE = """
@T.prim_func
def f(A: T.Buffer((9,), "float32"), B: T.Buffer((4,), "float32"), C: T.Buffer((20,), "float32")):
    for k, i in T.grid(4, 9):
        C[2 * i + k] += A[i] * B[k]
"""
DILATED = """
@T.prim_func
def f(A: T.Buffer((9,), "float32"), B: T.Buffer((4,), "float32"), C: T.Buffer((18,), "float32")):
    for i, k in T.grid(9, 4):
        C[i + 3 * k] += A[i] * B[k]
"""
CORRELATED = """
@T.prim_func
def f(A: T.Buffer((9,), "float32"), B: T.Buffer((4,), "float32"), C: T.Buffer((12,), "float32")):
    for i, k in T.grid(9, 4):
        C[i - k + 3] += A[i] * B[k]
"""
INSIDE = """
@T.prim_func
def f(A: T.Buffer((8,), "float32"), B: T.Buffer((3,), "float32"), C: T.Buffer((16,), "float32")):
    for i, k in T.grid((1, 8), 3):
        if 2 * i + k >= 3 and 2 * i + k - 1 < 16:
            C[2 * i + k - 1] += A[i] * B[k]
"""
PADDED = """
@T.prim_func
def f(X: T.Buffer((2, 3, 5, 6), "float32"), W: T.Buffer((3, 4, 3, 3), "float32"),
      Y: T.Buffer((2, 4, 5, 6), "float32")):
    for n, d, c, i, j, p, q in T.grid(2, 3, 4, 5, 6, 3, 3):
        if 1 <= i + p and i + p < 6 and 1 <= j + q and j + q < 7:
            Y[n, c, i + p - 1, j + q - 1] += X[n, d, i, j] * W[d, c, p, q]
"""
HALVED = """
@T.prim_func
def f(X: T.Buffer((3, 5, 6), "float32"), W: T.Buffer((3, 4, 3, 3), "float32"),
      Y: T.Buffer((4, 10, 12), "float32")):
    for c, i, j in T.grid(4, 10, 12):
        Y[c, i, j] = 0.0
    for d, c, i, j, p, q in T.grid(3, 4, 5, 6, 3, 3):
        if 2 * i + p >= 1 and 2 * j + q >= 1:
            Y[c, 2 * i + p - 1, 2 * j + q - 1] += X[d, i, j] * W[d, c, p, q]
"""
IMAGES = """
@T.prim_func
def f(X: T.Buffer((2, 3, 5, 6), "float32"), W: T.Buffer((3, 4, 3, 3), "float32"),
      Y: T.Buffer((2, 4, 7, 8), "float32")):
    for n, c, i, j in T.grid(2, 4, 7, 8):
        Y[n, c, i, j] = 0.0
    for n, d, c, i, j, p, q in T.grid(2, 3, 4, 5, 6, 3, 3):
        Y[n, c, i + p, j + q] += X[n, d, i, j] * W[d, c, p, q]
"""
STRIDED = """
@T.prim_func
def f(X: T.Buffer((2, 3, 5, 6), "float32"), W: T.Buffer((3, 4, 4, 4), "float32"),
      Y: T.Buffer((2, 4, 12, 14), "float32")):
    for n, c, i, j in T.grid(2, 4, 12, 14):
        Y[n, c, i, j] = 0.0
    for n, d, c, i, j, p, q in T.grid(2, 3, 4, 5, 6, 4, 4):
        Y[n, c, 2 * i + p, 2 * j + q] += X[n, d, i, j] * W[d, c, p, q]
"""
FLATTENED = """
@T.prim_func
def f(X: T.Buffer((30,), "float32"), W: T.Buffer((9,), "float32"), Y: T.Buffer((56,), "float32")):
    for i, j, p, q in T.grid(5, 6, 3, 3):
        Y[(i + p) * 8 + j + q] += X[i * 6 + j] * W[p * 3 + q]
"""
OVERLAPPED = """
@T.prim_func
def f(X: T.Buffer((6, 8), "int32"), Y: T.Buffer((23,), "int32")):
    for t, k in T.grid(6, 8):
        Y[t * 3 + k] = T.max(Y[t * 3 + k], X[t, k])
"""


def gathered(text: str) -> tuple[PrimFunc, list[Schedule]]:
    func = parse(text)
    sch = Schedule(func)
    (sch,) = EncloseStatements()(sch, sch.get_block("root"))
    found = ScatterToGather()(sch, sch.get_child_blocks(sch.get_block("root"))[-1])
    assert not sch.refused
    return func, found


@pytest.mark.parametrize(
    ("text", "places", "terms"),
    [
        (POLYNOMIAL, "13", "5"),
        (KERNEL_OUTSIDE, "10, 2", "2"),
        (DILATED, "6, 3", "3"),
        (CORRELATED, "12", "4"),
        (INSIDE, "8, 2", "2"),
        (PADDED, "2, 4, 5, 6", "3, 3, 3"),
        (HALVED, "4, 6, 2, 7, 2", "3, 2, 2"),
        (IMAGES, "2, 4, 7, 8", "3, 3, 3"),
        (STRIDED, "2, 4, 6, 2, 7, 2", "3, 2, 2"),
        (FLATTENED, "7, 8", "3, 3"),
        (OVERLAPPED, "8, 3", "3"),
    ],
)
def test_loops_over_places_and_terms(text: str, places: str, terms: str) -> None:
    func, found = gathered(text)
    block = found[0].get_child_blocks(found[0].get_block("root"))
    (update,) = (b for b in block if any(not v.is_spatial for v in found[0].get(b).iter_vars))
    iters = found[0].get(update).iter_vars
    sizes = [str(v.dom.extent.value) for v in iters if v.is_spatial]
    assert ", ".join(sizes) == places
    assert ", ".join(str(v.dom.extent.value) for v in iters if not v.is_spatial) == terms
    check_transform(func, found[0])
    check_numbers(func, found[0].mod, compiled=True)


def test_terms_keep_their_order() -> None:
    """Bit by bit, the sums are those of the loops as written."""
    func, found = gathered(IMAGES)
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((2, 3, 5, 6), (3, 4, 3, 3)))
    results = []
    for program in (ms.Schedule(func), found[0]):
        y = np.empty((2, 4, 7, 8), "float32")
        ms.build(program)(x, w, y)
        results.append(y)
    assert np.array_equal(*results)


def test_few_places_for_many_inputs_leave_a_choice() -> None:
    """Half of the terms of a product of two polynomials of one length would be left out."""
    _, found = gathered(POLYNOMIAL.replace("5", "9").replace("13", "17"))
    assert len(found) == 2
    assert len(gathered(POLYNOMIAL)[1]) == 1


def test_strided_results_are_summed_side_by_side() -> None:
    _, (sch,) = gathered(STRIDED)
    text = sch.script()
    assert "Y_global = T.alloc_buffer((2, 2, 2, 4, 6, 7)" in text
    assert "Y_global[v0, v1, v2, v3, v4, v5] = T.float32(0)" in text
    assert "Y[v2, v3, v0 + v4 * 2, v1 + v5 * 2] = Y_global[v0, v1, v2, v3, v4, v5]" in text


def test_results_that_the_step_does_not_divide_are_summed_side_by_side() -> None:
    """The places beyond the result are summed, too, without the condition, and not copied back."""
    _, (sch,) = gathered(HALVED)
    text = sch.script()
    assert "Y_global = T.alloc_buffer((2, 2, 4, 6, 7)" in text
    assert "Y_global[v0, v1, v2, v3, v4] = T.float32(0)" in text
    assert "Y[v2, v0 + v3 * 2 - 1, v1 + v4 * 2 - 1] = Y_global[v0, v1, v2, v3, v4]" in text
    assert ">= 1" not in text


@pytest.mark.parametrize(
    "text",
    [
        POLYNOMIAL.replace("C[i + j] +=", "C[T.min(i + j, 3)] +="),  # not linear
        POLYNOMIAL.replace("C[i + j] +=", "C[i * 5 + j - i * 5 + 0 * j] +="),  # one loop alone
        DILATED.replace("C[i + 3 * k]", "C[2 * i + 3 * k]").replace("18", "26"),  # steps 2 and 3
        KERNEL_OUTSIDE.replace("C[2 * i + k] +=", "C[2 * i + k] ="),  # no update
    ],
)
def test_other_blocks_are_left_alone(text: str) -> None:
    func, (sch,) = gathered(text)
    assert len(sch.trace.entries) <= 4


def test_each_function_of_a_module() -> None:
    module = IRModule({name: parse(POLYNOMIAL.replace(" f(", f" {name}(")) for name in "fg"})
    sch = Schedule(module)
    for name, block in (("f", "C"), ("g", "C_1")):
        (sch,) = EncloseStatements()(sch, sch.get_block("root", name))
        (sch,) = ScatterToGather()(sch, sch.get_block(block, name))
        assert "T.grid(13, 5)" in sch.mod[name].script()
        assert not sch.refused


ROWS = """
@T.prim_func
def f(A: T.Buffer((4, 9), "float32"), B: T.Buffer((5,), "float32"),
      C: T.Buffer((4, 13), "float32"), D: T.Buffer((4,), "float32")):
    for r in range(4):
        with T.block("row"):
            vr = T.axis.spatial(4, r)
            D[vr] = 1.0
            {}
            for i, j in T.grid(9, 5):
                with T.block("C"):
                    vi = T.axis.opaque(9, i)
                    vj = T.axis.opaque(5, j)
                    C[vr, vi + vj] = C[vr, vi + vj] + A[vr, vi] * B[vj]
"""


def test_windows_inside_of_a_block() -> None:
    func = parse(ROWS.format(""))
    sch = Schedule(func)
    found = ScatterToGather()(sch, sch.get_block("C"))
    assert len(found) == 1 and "T.grid(13, 5)" in found[0].script()
    check_transform(func, found[0])


def test_other_statements_on_the_result_are_told_apart() -> None:
    sch = Schedule(parse(ROWS.format("C[vr, 0] = C[vr, 0] * 2.0")))
    assert ScatterToGather()(sch, sch.get_block("C")) == [sch]
    (refused,) = sch.refused
    assert refused.reason == "read-outside" and "in row read C, too" in str(refused)


def test_a_transposed_convolution_is_tiled() -> None:
    text = IMAGES.replace("5, 6", "14, 14").replace("7, 8", "16, 16").replace("(2, 4,", "(2, 32,")
    text = text.replace("(3, 4,", "(3, 32,").replace("(2, 3, 4,", "(2, 3, 32,")
    func = parse(text)
    sch = ms.autoschedule(func)
    assert "T.parallel" in sch.script() and "SSRRS" in sch.script()
    check_numbers(func, sch.mod, compiled=True)
