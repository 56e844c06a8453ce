"""A loop runs in parallel if a condition in it reads what the same iteration computed."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_refused

import metasched as ms
from metasched.ir.interp import run
from metasched.schedule.schedule import Schedule
from metasched.script import parse

ROWS = """
@T.prim_func
def main(X: T.Buffer((40, 8), "int32"), Y: T.Buffer((40, 8), "int32")):
    n = T.alloc_buffer(({size},), "int32", scope="local")
    {ahead}
    for i in range(40):
        {first}
        for k in range(8):
            with T.block("count"):
                if X[i, k] > 0:
                    n[0] = n[0] + 1
        {between}
        if n[0] > {least}:
            for k in range(8):
                with T.block("many"):
                    Y[i, k] = X[i, k] * n[0]
        else:
            for k in range(8):
                with T.block("few"):
                    Y[i, k] = 0 - n[0]
"""
RESET = 'if X[i, 0] > 2:\n            with T.block("reset"):\n                n[0] = 7'
SET = 'with T.block("set"):\n            n[0] = 0'


def rows(**parts: str) -> Schedule:
    given = {"size": "1", "first": SET, "between": "", "least": "3", "ahead": ""} | parts
    return Schedule(parse(ROWS.format(**given)))


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"least": "X[i, 0]"},
        {"between": 'with T.block("more"):\n            n[0] = n[0] + X[i, 1]'},
        {"between": RESET},
    ],
)
def test_rows_with_a_condition_of_their_own_run_in_parallel(parts):
    sch = rows(**parts)
    x = np.random.default_rng(0).integers(-9, 9, (40, 8)).astype(np.int32)
    want, got = np.zeros_like(x), np.zeros_like(x)
    run(sch.func, x, want)
    sch.parallel(sch.get_loops("count")[0])
    for _ in range(20):
        got[:] = 0
        ms.build(sch.mod)(x, got)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "parts",
    [
        {"first": "", "ahead": 'with T.block("set"):\n        n[0] = 0'},
        {"first": 'if X[i, 0] > 0:\n            with T.block("set"):\n                n[0] = 0'},
        {"first": 'with T.block("set"):\n            T.where(i > 2)\n            n[0] = 0'},
        {"first": "", "between": SET},
        {"first": "for z in range(X[i, 0] % 2):\n            " + SET.replace("\n", "\n    ")},
        {"size": "2", "first": SET.replace("n[0]", "n[1]")},
    ],
)
def test_a_value_of_an_earlier_row_keeps_the_order(parts):
    sch = rows(**parts)
    loop = sch.get_loops("count")[0]
    check_refused(sch, lambda: sch.parallel(loop), "carried-dependence", "the same element of n")
