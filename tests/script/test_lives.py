# ruff: noqa: E501
"""A name that is assigned anew, for another use, is another variable: as in Python, of any type."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
from as_python import agree
from script.rebound_names import Rebound, arguments

from metasched.errors import ParseError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.stmt import Allocate, LetStmt
from metasched.ir.visit import walk_stmts
from metasched.script import parse
from metasched.script import tir as T

HEAD = """
@T.prim_func
def f(A: T.Buffer((8, 6), "float64"), B: T.Buffer((8,), "float64"), N: T.Buffer((8,), "int32"), H: T.Buffer((8,), "int32"), p: T.int32):
"""

BODIES = {
    "a sum of floats, then a count": """
s = T.float64(0)
for i in range(8):
    s += A[i, 0]
B[0] = s
for i in range(8):
    s = 0
    for j in range(6):
        s += N[i]
    H[i] = s
""",
    "a sum in a loop, then a count around a loop": """
for i in range(8):
    s = T.float64(0)
    for j in range(6):
        s += A[i, j]
    B[i] = s
s = 0
for i in range(8):
    s += N[i]
H[0] = s
""",
    "twice in one body": """
for i in range(8):
    s = A[i, 0]
    for j in range(6):
        s += A[i, j]
    B[i] = s
    s = N[i]
    for j in range(6):
        s += j
    H[i] = s
""",
    "the last values of two loops": """
for i in range(8):
    x = A[i, 0]
B[0] = x
for i in range(3, 8):
    x = N[i]
H[0] = x
""",
    "the values of two branches": """
if p > 3:
    x = A[0, 0]
else:
    x = A[1, 0]
B[0] = x
if p > 9:
    x = N[1]
else:
    x = N[2]
H[0] = x
""",
    "another type in one branch only": """
for i in range(8):
    s = A[i, 0]
    if s > 0.0:
        B[i] = s
    else:
        s = 0
        for j in range(3):
            s += j
        H[i] = s
""",
    "two of one branch and of what follows": """
for i in range(8):
    s = A[i, 0]
    if N[i] > 4:
        s = N[i] * 2
    else:
        B[i] = s
        s = 7
    H[i] = s
""",
    "the sum, converted, is summed on": """
s = 0
for i in range(8):
    s += N[i]
s = T.cast(s, "float64")
for i in range(8):
    s += A[i, 0]
B[0] = s
""",
    "a flag, then a count": """
for i in range(8):
    ok = True
    for j in range(6):
        if A[i, j] < 0.0:
            ok = False
    if ok:
        H[i] = 1
ok = 0
for i in range(8):
    if A[i, 0] > 0.0:
        ok += 1
H[0] = ok
""",
    "tuples of other types": """
a, b = 0, 1
for i in range(8):
    a, b = b, a + b
H[0] = a
a, b = A[0, 0], A[1, 0]
for i in range(4):
    a, b = b, a + b
B[0] = a
""",
    "a tuple, then a count": """
q = (3, 4)
H[1] = q[0] * q[1]
q = 0
for i in range(8):
    q += 1
H[0] = q
""",
    "a buffer, a count, a buffer": """
t = T.alloc_buffer((8,), "float64")
for i in range(8):
    t[i] = A[i, 0]
for i in range(8):
    B[i] = t[7 - i]
t = 0
for i in range(8):
    t += 1
H[0] = t
t = T.alloc_buffer((3,), "int32")
for i in range(3):
    t[i] = N[i]
for i in range(3):
    H[i + 1] = t[2 - i]
""",
    "a loop variable, a count, a loop variable": """
for i in range(8):
    B[i] = A[i, 0]
i = 0
while i < 4:
    H[i] = i
    i += 1
for i in range(2):
    B[i] = A[i, 1]
i = T.float64(0)
for k in range(3):
    i += A[k, 0]
B[7] = i
""",
    "a loop that is left": """
s = 0
while True:
    s += N[s]
    if s > 3:
        break
H[0] = s
s = A[0, 0]
for i in range(8):
    if N[i] == 4:
        continue
    if N[i] == 6:
        s = A[1, 1]
        break
    s = A[i, 2]
B[0] = s
s = N[3]
while s > 0:
    s -= 2
H[1] = s
""",
    "loops whose iterations run side by side": """
s = T.float64(0)
for i in range(8):
    s += A[i, 0]
B[0] = s
for i in T.parallel(1, 8):
    s = T.float64(0)
    for j in range(6):
        s += A[i, j]
    B[i] = s
for i in T.vectorized(8):
    s = N[i]
    for j in range(3):
        s = s * 2
    H[i] = s
""",
    "blocks": """
s = T.float64(0)
for i in range(8):
    with T.block("sum"):
        vi = T.axis.spatial(8, i)
        s = s + A[vi, 0]
        B[vi] = s
for i in range(8):
    with T.block("count"):
        vi = T.axis.spatial(8, i)
        s = 0
        for j in range(6):
            if A[vi, j] > 0.0:
                s += 1
        H[vi] = s
""",
    "a parameter": """
while p > 2:
    p = p - 2
H[0] = p
p = A[0, 0]
for i in range(3):
    p += A[i, 1]
B[0] = p
""",
    "numbers of the type that an earlier life declares": """
s = T.float64(0)
x = T.float64(0)
for i in range(8):
    s = 0
    for j in range(6):
        s += A[i, j]
    if s > 1.0:
        x = 1
    else:
        x = 2
    B[i] = s * x
""",
    "a loop that may be left before the first value": """
a = T.float64(3)
for i in range(8):
    if N[i] > 0:
        break
    a = A[i, 0]
B[0] = a
a = 1
while a < p:
    a += 2
H[0] = a
""",
    "the variable of a loop behind the loop": """
for i in range(2, 8, 3):
    B[i] = A[i, 0]
H[0] = i
for i, j in T.grid(3, 2):
    B[i] = A[i, j]
H[i] = j
for k in range(8):
    for m in range(3, 0, -1):
        B[k] += A[k, m]
    if k > 2:
        H[k] = m + k
i = 5
for i in range(2):
    N[i] = 1
N[i] = 2
for i in range(8):
    for i in range(2):
        N[i + 4] = 1
    N[i] += 3
""",
    "values of one life from the iteration before": """
s = 1
for i in range(8):
    H[i] = s
    s = A[i, 0]
    for j in range(3):
        s += A[i, j]
    B[i] = s
    s = i * i
""",
}  # fmt: skip


def text(body: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in body.strip().splitlines())


def arrays():
    rng = np.random.default_rng(5)
    a = rng.integers(-4, 5, (8, 6)).astype("float64")
    return [a, np.zeros(8), np.arange(1, 9, dtype="int32"), np.zeros(8, "int32"), 7]


@pytest.mark.parametrize("what", BODIES)
def test_names_mean_what_they_mean_in_python(what):
    agree(text(BODIES[what]), *arrays())


WHILE = [
    "s = 0\nk = 0\nwhile s < 3:\n    k += 1\n    s = k * 2\nH[0] = s",
    "for i in range(8):\n    s = N[i]\n    while s > 2:\n        s = i\n        break\n    H[i] = s",
    "for i in range(8):\n    s = 0\n    k = 0\n    while k < 5:\n        k += 1\n        H[i] = s\n"
    "        s = k\n        if k < N[i]:\n            continue\n        s = 7\n    H[0] = s",
]


@pytest.mark.parametrize("body", WHILE)
def test_a_loop_in_frames_is_the_loop_of_python(body):
    """`with T.While(c):` tests its condition again, and a break in it leaves it."""
    plain = agree(text(body), *arrays())
    frames = re.sub(r"while (.*):", r"with T.While(\1):", text(body))
    assert_structural_equal(parse(frames), plain)


def test_each_life_has_its_own_type_and_place():
    func = parse(text(BODIES["a sum of floats, then a count"]))
    (outer,) = func.root.alloc_buffers
    (inner,) = (s.buffer for s in walk_stmts(func.body) if isinstance(s, Allocate))
    assert (outer.name, outer.dtype, inner.name, inner.dtype) == ("s", "float64", "s", "int32")


def test_a_life_that_is_assigned_once_is_a_let():
    func = parse(text("for i in range(8):\n    s = A[i, 0]\n    B[i] = s\n    s = N[i]\n"
                      "    while s > 4:\n        s = s - 2\n    H[i] = s"))  # fmt: skip
    lets = [s for s in walk_stmts(func.body) if isinstance(s, LetStmt)]
    assert [s.var.dtype for s in lets] == ["float64"]


@pytest.mark.parametrize("body, message", [
    ("s = 0\nfor i in range(8):\n    B[i] = s\n    s = A[i, 0]",
     "s holds int32, the value assigned here is float64"),
    ("s = 0\nfor i in range(p):\n    s = A[i, 0]\nB[0] = s",
     "s holds int32, the value assigned here is float64"),
    ("s = 0\nif p > 2:\n    s = A[0, 0]\nB[0] = s",
     "s holds int32, the value assigned here is float64"),
    ("s = 0\nfor i in range(8):\n    s += A[i, 0]\nB[0] = s", "or begin with s = T.float64"),
    ("for i in range(8):\n    if i > 2:\n        s = 1\n        N[i] = s\n    N[i] = s\n    s = i",
     "'s' may be read before it is assigned"),
    ("if p > 3:\n    for i in range(2):\n        c = 1\n    for c in range(p):\n        N[c] = 1\nN[0] = c",
     "in Python 'c' is one variable of the function, which a loop or a `with` overwrites"),
    ("for i in range(2):\n    c = 1\nfor c in range(p):\n    N[c] = 1\nN[0] = c",
     "in Python 'c' is one variable of the function, which a loop or a `with` overwrites"),
])  # fmt: skip
def test_a_life_of_two_types_is_refused(body, message):
    with pytest.raises(ParseError) as caught:
        parse(text(body))
    assert message in str(caught.value), caught.value


def test_macros_read_the_value_at_the_call():
    """A macro that reads its caller's names, directly or under another name, or a lambda."""

    @T.macro(hygienic=False)
    def put(out, k):
        out[k] = s

    @T.prim_func
    def f(N: T.Buffer((6,), "int32")):
        s = 1
        put(N, 0)
        s = 2
        put(N, 1)
        also = put
        s = 3
        also(N, 2)
        double = lambda x: x * s  # noqa: E731
        s = 4
        N[3] = double(5)

        @T.macro
        def inner(k):
            N[k] = s

        s = 5
        inner(4)

    n = np.zeros(6, "int32")
    from metasched.ir.interp import run

    run(f, n)
    assert n.tolist() == [1, 2, 3, 20, 5, 0]


def test_random_scripts_that_rebind_names():
    """A script is refused, or it means what it means in Python."""
    read = 0
    for seed in range(580_300_000, 580_300_150):
        script = str(Rebound(random.Random(seed)))
        try:
            agree(script, *arguments(seed), compiled=seed % 10 == 0)
        except (ParseError, UnboundLocalError):
            continue
        read += 1
    assert read > 30
