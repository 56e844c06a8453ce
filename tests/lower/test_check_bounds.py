"""Builds that check every access at run time: what is wrong is named, what is right stays right."""

from __future__ import annotations

import random
import re
import threading

import numpy as np
import pytest
from strategies import random_args

import metasched as ms
from metasched.errors import KernelError
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.kinds import default_trace
from metasched.runtime.exported import load_exported
from metasched.script import parse
from metasched.target import Target
from metasched.workloads import get

GATHER = """
@T.prim_func
def f(A: T.Buffer((8, 6), "float32"), P: T.Buffer((8,), "int32"), B: T.Buffer((8, 6), "float32")):
    C = T.alloc_buffer((8, 6))
    for i in T.parallel(8):
        for j in T.vectorized(6):
            with T.block("C"):
                vi, vj = T.axis.remap("SS", [i, j])
                C[vi, vj] = T.if_then_else(P[vi] >= 0, A[P[vi], vj], T.float32(0))
    for i, j in T.grid(8, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            {store} = C[vi, vj] + T.float32(1)
"""


def kernel(store: str = "B[vi, vj]") -> ms.Kernel:
    found = ms.build(parse(GATHER.format(store=store)), check_bounds=True)
    assert isinstance(found, ms.Kernel)
    return found


def test_only_executed_loads_outside_a_buffer_are_reported():
    a = np.arange(48, dtype="float32").reshape(8, 6)
    p, b = np.arange(8, dtype="int32"), np.zeros((8, 6), "float32")
    p[3] = -5
    made = kernel()
    made(a, p, b)
    want = a + 1
    want[3] = 1
    np.testing.assert_array_equal(b, want)
    p[4] = 8
    said = r"block C loads A\[P\[vi\], vj\], which is outside A of shape \(8, 6\): "
    with pytest.raises(KernelError, match=said + r"the indices are \[8, 0\]$"):
        made(a, p, b)
    p[4] = -9
    made(a, p, b)
    p[5] = 1 << 30
    with pytest.raises(KernelError, match=said + r"the indices are \[1073741824, 0\]$"):
        made(a, p, b)


@pytest.mark.parametrize(
    ("store", "said"),
    [
        (
            "B[vi, P[vj]]",
            r"block B stores B\[vi, P\[vj\]\], which is outside B of shape \(8, 6\): "
            r"the indices are \[0, 6\]$",
        ),
        (
            "B[vi, P[vj + P[7] + 2]]",
            r"block B loads P\[vj \+ P\[7\] \+ 2\], which is outside P of shape \(8\): "
            r"the indices are \[8\]$",
        ),
    ],
)
def test_stores_and_loads_in_indices_are_named(store: str, said: str):
    a, p = np.zeros((8, 6), "float32"), np.full(8, 6, "int32")
    with pytest.raises(KernelError, match=said):
        kernel(store)(a, p, np.zeros((8, 6), "float32"))


@pytest.mark.parametrize(
    "condition", ["P[i] >= 0 and V[P[i]] > 5", "not (P[i] < 0 or V[P[i]] <= 5)"]
)
def test_the_right_side_of_a_condition_is_checked_where_it_is_evaluated(condition: str):
    text = f"""
@T.prim_func
def f(P: T.Buffer((4,), "int32"), V: T.Buffer((4,), "int32"), K: T.Buffer((4,), "bool")):
    for i in range(4):
        K[i] = {condition}
"""
    made = ms.build(parse(text), check_bounds=True)
    p, v, k = np.array([3, -1, 0, 2], "int32"), np.array([4, 5, 6, 7], "int32"), np.zeros(4, bool)
    made(p, v, k)
    assert k.tolist() == [True, False, False, True]
    p[1] = 4
    with pytest.raises(KernelError, match=r"loads V\[P\[i\]\], .*: the indices are \[4\]"):
        made(p, v, k)


LOOPS = """
@T.prim_func
def f(P: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
    while P[P[0]] > 0:
        P[0] = P[0] + 1
    T.evaluate(B[0])
"""


def test_the_condition_of_a_while_is_checked_each_time():
    p = np.array([1, 1, 1, 1, 1, 1, 1, 1], "int32")
    with pytest.raises(KernelError, match=r"block root loads P\[P\[0\]\]"):
        ms.build(parse(LOOPS), check_bounds=True)(p, np.zeros(8, "int32"))
    assert p[0] == 8


VECTORS = """
@T.prim_func
def f(A: T.Buffer((4, 8), "float32"), P: T.Buffer((1,), "int32"), B: T.Buffer((16,), "float32")):
    B[0:16] = A[P[0], T.ramp(0, 1, 16)]
"""


def test_vectors_may_cross_rows_but_not_the_end_of_a_buffer():
    made = ms.build(parse(VECTORS), check_bounds=True)
    a, b = np.arange(32, dtype="float32").reshape(4, 8), np.zeros(16, "float32")
    made(a, np.array([2], "int32"), b)
    np.testing.assert_array_equal(b, np.arange(16, 32, dtype="float32"))
    said = r"outside A of shape \(4, 8\): the indices are \[3, 0\] in the first of 16 lanes$"
    with pytest.raises(KernelError, match=said):
        made(a, np.array([3], "int32"), b)


ROWS = """
@T.prim_func
def f(a: T.handle, p: T.handle, b: T.handle):
    n, m = T.int32(), T.int32()
    A = T.match_buffer(a, (n, m), "float32")
    P = T.match_buffer(p, (n,), "int32")
    B = T.match_buffer(b, (n, m), "float32")
    for i in T.parallel(n):
        for j in range(m):
            B[i, j] = A[i, P[i]]
"""


def rows(*places: int) -> list[np.ndarray]:
    """Arguments of ROWS with rows of five elements."""
    a = np.arange(5 * len(places), dtype="float32").reshape(-1, 5)
    return [a, np.array(places, "int32"), np.zeros_like(a)]


def test_extents_that_a_call_decides_are_shown_too(tmp_path):
    made = ms.build(parse(ROWS), check_bounds=True)
    said = r"A\[i, P\[i\]\], which is outside A of shape \(n, m\): the indices are \[1, 5\], "
    made.export(tmp_path)
    for each in (made, load_exported(tmp_path)):
        with pytest.raises(KernelError, match=said + r"the extents \(3, 5\)$"):
            each(*rows(2, 5, 1))
        args = rows(4, 0)
        each(*args)
        np.testing.assert_array_equal(args[2], [[4] * 5, [5] * 5])
        with pytest.raises(KernelError, match=r"indices are \[0, -1\], the extents \(1, 5\)$"):
            each.bind(*rows(-1))()


def test_the_values_of_one_access_stay_together_in_loops_of_many_threads():
    """Each thread that fails has another index; the first and the second belong together."""
    made = ms.build(parse(ROWS), check_bounds=True)
    for _ in range(20):
        with pytest.raises(KernelError, match="indices") as error:
            made(*rows(*range(100, 164)))
        row, column = re.findall(r"indices are \[(\d+), (\d+)\]", str(error.value))[0]
        assert int(column) == int(row) + 100


def test_callers_in_threads_get_the_values_of_their_own_calls():
    made, seen = ms.build(parse(ROWS), check_bounds=True), list[bool]()

    def work(number: int) -> None:
        for _ in range(50):
            try:
                made(*rows(0, number))
            except KernelError as error:
                seen.append(f"[1, {number}]" in str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(5, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 200


@pytest.mark.parametrize(
    ("name", "shape"),
    [("gmm", (1, 17, 19, 23)), ("c2d", (1, 9, 9, 3, 5, 3, 2, 1)), ("sfm", (5, 37))],
)
def test_scheduled_programs_stay_inside(name: str, shape: tuple[int, ...]):
    func = get(name).func(shape)
    sch = ms.Schedule(func, seed=0)
    default_trace(func, Target.native()).apply(sch)
    args = random_args(func, random.Random(0))
    want = [a.copy() for a in args]
    run(func, *want)
    ms.build(sch, check_bounds=True)(*args)
    assert isinstance(func, PrimFunc)
    for got, expected in zip(args, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4)


@pytest.mark.parametrize("index", ["P[vi] * 65536", "T.if_then_else(vi >= 0, P[vi] * n, 0)"])
def test_an_index_beyond_32_bits_is_outside(index: str):
    """The address is calculated in 64 bits; in 32 bits, 65536 * 65536 is 0 and looks inside."""
    func = parse(
        "@T.prim_func\n"
        "def f(A: T.Buffer((4,), 'int32'), P: T.Buffer((4,), 'int32'), n: T.int32):\n"
        "    for i in range(4):\n"
        "        with T.block('b'):\n"
        "            vi = T.axis.spatial(4, i)\n"
        f"            A[vi] = A[{index}]\n"
    )
    found = ms.build(func, check_bounds=True)
    with pytest.raises(
        KernelError, match=r"outside A of shape \(4\): the indices are \[4294967296"
    ):
        found(np.zeros(4, "int32"), np.full(4, 65536, "int32"), 65536)
