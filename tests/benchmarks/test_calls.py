"""What a call of a kernel costs beside its work: `pytest tests/benchmarks/test_calls.py -s`.

The kernel does next to nothing, so that its call is all overhead. Short bursts are repeated and
the fastest counts: whoever else runs on the machine only makes them slower.
"""

from __future__ import annotations

import timeit

import ml_dtypes
import numpy as np

from metasched import workloads
from metasched.runtime.build import build
from metasched.script.parser import parse

BURST, BURSTS = 100, 3000
COPY = """
@T.prim_func
def copy(A: T.Buffer((4,), "bfloat16"), B: T.Buffer((4,), "bfloat16")):
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi]
"""
SCALED = """
@T.prim_func
def scaled(a: T.handle, factor: T.float32, b: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n,), "float32")
    B = T.match_buffer(b, (n,), "float32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi] = A[vi] * factor
"""


def microseconds(call):
    return min(timeit.repeat(call, number=BURST, repeat=BURSTS)) / BURST * 1e6


def test_calls():
    kernel = build(workloads.get("gmm").func((1, 4, 4, 4)))
    a, b, c = np.ones((3, 1, 4, 4), np.float32)
    copy = build(parse(COPY))
    x, y = np.zeros((2, 4), ml_dtypes.bfloat16)
    scaled = build(parse(SCALED))
    p, r = np.ones((2, 4), np.float32)
    rows = [
        ("bound", kernel.bind(a, b, c), 1.0),
        ("checked, three float32 arrays", lambda: kernel(a, b, c), 2.5),
        ("checked, two bfloat16 arrays", lambda: copy(x, y), 2.5),
        ("checked, symbolic extents and a number", lambda: scaled(p, 2.0, r), 2.5),
        ("by name", lambda: kernel(X=a, Y=b, Z=c), None),
        ("output left out", lambda: kernel(a, b), None),
    ]
    print()
    for name, call, budget in rows:
        allowed = "" if budget is None else f" (budget {budget} us)"
        print(f"{name:40} {microseconds(call):6.2f} us{allowed}")
    assert np.array_equal(kernel(a, b), c)
