"""T.init runs again for each value of a spatial axis: the parser warns where a sum is lost."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from metasched.ir.interp import run
from metasched.script import parse, script

SUM = """
@T.prim_func
def f(A: T.Buffer((8, 12), "int32"), C: T.Buffer((8,), "int32")):
    for i, k in T.grid(8, 12):
        with T.block("C"):
            vi, vk = T.axis.remap("{kinds}", [i, k])
            {where}
            with T.init():
                C[{place}] = 0
            C[{place}] = C[{place}] + A[vi, vk]
"""


def text(kinds="SS", place="vi", where="T.reads(A[vi, vk])"):
    return SUM.format(kinds=kinds, place=place, where=where)


def test_a_sum_over_a_spatial_axis_warns_and_computes_what_is_written():
    with pytest.warns(UserWarning) as found:
        func = parse(text())
    assert [str(w.message) for w in found] == [
        "line 5: block 'C' runs T.init again for each value of vk, so C keeps the value of the "
        "last iteration only; vk is spatial, and no index of C: declare it with T.axis.reduce, "
        "or leave T.init out"
    ]
    given, out = np.arange(96, dtype="int32").reshape(8, 12), np.zeros(8, "int32")
    run(func, given, out)
    assert out.tolist() == given[:, -1].tolist()


def test_two_axes_are_named_together():
    with pytest.warns(UserWarning, match="of vi and vk, .* vi and vk are .* declare them with"):
        parse(text(place="0"))


@pytest.mark.parametrize(
    "source",
    [
        text(kinds="SR"),
        text(kinds="RR", place="0"),
        text(place="T.min(vi + vk, 7)"),  # each axis moves the place
        text(where="T.where(k == 3)"),  # one iteration alone may run
        text().replace("12", "1"),
        text().replace("T.reads(A[vi, vk])", "T.writes(C[0:8])"),  # a box says nothing of one place
    ],
)
def test_legal_inits_do_not_warn(source):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        func = parse(source)
        parse(script(func))
