"""Strides that are known at run time only: tuned and autoscheduled without naming a size."""

from __future__ import annotations

import numpy as np
import pytest

import metasched as ms
from metasched.analysis.sizes import run_time_strides, with_sizes, with_strides
from metasched.errors import MetaschedError
from metasched.measure.other_sizes import other_sizes
from metasched.script import parse


def scaled(shape: str = "(n, m)", strides: str = "(s, 1)") -> ms.PrimFunc:
    """A program whose two parameters have rows apart by `s` and `t`."""
    func = f"""
@T.prim_func
def scaled(a: T.handle, b: T.handle):
    n, m, s, t = T.int64(), T.int64(), T.int64(), T.int64()
    A = T.match_buffer(a, {shape}, strides={strides})
    B = T.match_buffer(b, {shape}, strides={strides.replace("s", "t")})
    for i, j in T.grid{shape}:
        B[i, j] = A[i, j] * 2.0
"""
    return parse(func)


@pytest.mark.parametrize(
    ("shape", "strides", "gap", "expected"),
    [
        ("(n, m)", "(s, 1)", 0, {"n": 5, "m": 7, "s": 7, "t": 7}),
        ("(n, m)", "(s, 1)", 3, {"n": 5, "m": 7, "s": 10, "t": 10}),
        ("(n, m)", "(1, s)", 0, {"n": 5, "m": 7, "s": 5, "t": 5}),
        ("(n, m)", "(s, 2)", 0, {"n": 5, "m": 7, "s": 14, "t": 14}),
        ("(4, 6)", "(s, 1)", 1, {"s": 7, "t": 7}),
    ],
)
def test_a_stride_without_a_number_keeps_elements_apart(shape, strides, gap, expected):
    func = scaled(shape, strides)
    sizes = {"n": 5, "m": 7} if "n" in shape else {}
    assert run_time_strides(func) == {"s", "t"}
    assert with_strides(func, sizes, gap) == expected


def test_a_stride_shared_by_buffers_fits_the_longest_row():
    func = parse("""
@T.prim_func
def f(a: T.handle, b: T.handle):
    s = T.int64()
    A = T.match_buffer(a, (3, 4), strides=(s, 1))
    B = T.match_buffer(b, (3, 9), strides=(s, 1))
    for i in range(3):
        B[i, 8] = A[i, 3]
""")
    assert with_strides(func, {}) == {"s": 9}


def test_a_named_stride_keeps_its_number():
    func = with_sizes(scaled(), {"n": 5, "m": 7, "s": 100})
    assert dict(func.attrs["metasched.sizes"]) == {"n": 5, "m": 7, "s": 100, "t": 7}


def test_other_sizes_have_rows_without_overlap():
    for func, sizes in (scaled(), {"n": 64, "m": 50}), (scaled("(4, 6)"), {}):
        found = other_sizes(func, with_strides(func, sizes))
        gaps = {one["s"] - one.get("m", 6) for one in found}
        assert min(gaps) == 0 and max(gaps) > 0 and len(found) <= 7


@pytest.mark.parametrize("shape", ["(n, m)", "(4, 6)"])
def test_tuned_without_a_stride(shape, tmp_path):
    """Every candidate was wrong: the other sizes had rows that overlapped."""
    func, sizes = scaled(shape), {"n": 9, "m": 20} if "n" in shape else None
    result = ms.tune(func, sizes=sizes, trials=2, work_dir=tmp_path)
    assert result.best is not None and not result.failed, result.failures
    for kernel in ms.build(result.best), ms.build(ms.autoschedule(func, sizes=sizes)):
        a, b = np.arange(40, dtype="float32").reshape(4, 10)[:, :6], np.zeros((4, 8), "float32")
        kernel(a, b[:, :6])
        np.testing.assert_array_equal(b[:, :6], a * 2)
        assert not b[:, 6:].any()


def test_only_extents_are_asked_for():
    for sizes, extents in ({}, "extents n, m are"), ({"n": 4, "s": 9}, "extent m is"):
        with pytest.raises(MetaschedError, match=rf"^the {extents} known at run time only"):
            with_sizes(scaled(), sizes)
    with pytest.warns(UserWarning, match=r"name each by sizes={'n': 1024, 'm': 1024},"):
        ms.autoschedule(scaled())


def test_rows_that_overlap_are_refused():
    """Every candidate was wrong: an element of the output is another element of it."""
    message = "elements of A may share an address: a stride is 2, and at least 8 keeps them apart"
    with pytest.raises(MetaschedError, match=message):
        with_sizes(scaled(), {"n": 4, "m": 8, "s": 2})
    columns = scaled(strides="(s, n)")  # a column is contiguous
    assert with_sizes(columns, {"n": 4, "m": 8, "s": 1}).attrs["metasched.sizes"]["s"] == 1
