"""A kernel from script to result, for `metasched doctor`."""

from __future__ import annotations

import numpy as np

from metasched.errors import MetaschedError
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse

PROGRAM = """
@T.prim_func
def selftest(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32")):
    for i, j in T.grid(64, 64):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] * T.float32(2) + T.float32(1)
"""


def selftest() -> None:
    """Parse, schedule, compile and run; raises MetaschedError when the result is wrong."""
    sch = Schedule(parse(PROGRAM), seed=0)
    i, j = sch.get_loops("B")
    sch.parallel(i)
    sch.vectorize(sch.split(j, [None, 16])[1])
    a = np.arange(4096, dtype="float32").reshape(64, 64)
    b = np.zeros_like(a)
    build(sch)(a, b)
    if not np.array_equal(b, a * 2 + 1):
        raise MetaschedError("the kernel ran and its result is wrong")
