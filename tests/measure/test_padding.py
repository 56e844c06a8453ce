"""Rows padded against set conflicts: declarations change, results and what has a layout do not."""

from __future__ import annotations

import os

import numpy as np

from metasched.ir.expr import as_int
from metasched.ir.func import PrimFunc
from metasched.measure.jobs import build, expect
from metasched.measure.loaded_task import shared_size
from metasched.measure.padding import padded
from metasched.measure.task import make_task
from metasched.script.parser import parse
from metasched.target import Target
from metasched.workloads import get

TWO_STAGES = """
@T.prim_func
def f(A: T.Buffer((2, 3, 256), "float32"), B: T.Buffer((3, 250), "float32")):
    S = T.alloc_buffer((2, 3, 256), "float32")
    for i, j, k in T.grid(2, 3, 256):
        with T.block("S"):
            vi, vj, vk = T.axis.remap("SSS", [i, j, k])
            S[vi, vj, vk] = A[vi, vj, vk] * T.float32(0.1)
    for j, k, i in T.grid(3, 250, 2):
        with T.block("B"):
            vj, vk, vi = T.axis.remap("SSR", [j, k, i])
            with T.init():
                B[vj, vk] = T.float32(0)
            B[vj, vk] = B[vj, vk] + S[vi, vj, vk]
"""


def strides(func: PrimFunc) -> dict[str, list[int | None]]:
    """Declared strides by buffer."""
    buffers = (*func.buffers, *func.root.alloc_buffers)
    return {b.name: [as_int(s) for s in b.strides] for b in buffers}


def test_only_rows_that_conflict_get_room():
    grown = [3 * 272, 272, 1]
    assert strides(padded(parse(TWO_STAGES))) == {"A": grown, "B": [], "S": grown}
    short = parse(TWO_STAGES.replace("256", "64").replace("250", "58"))
    assert strides(padded(short)) == {"A": [], "B": [], "S": []}


def test_results_are_the_same_bits():
    func, target, fds = parse(TWO_STAGES), Target.native(), []
    for program in (func, padded(func)):
        compiled = build(program, target, parallel=False)
        task = make_task(func, compiled.signature, key="k").with_normal_data()
        assert task.arrays[0].strides == (768, 256, 1)  # what candidates get
        fds.append(os.memfd_create("test"))
        os.ftruncate(fds[-1], shared_size(task))
        task, _ = expect(task, fds[-1], compiled)
    plain, other = (np.fromfile(f"/proc/self/fd/{fd}", np.uint8) for fd in fds)
    for fd in fds:
        os.close(fd)
    assert (plain == other).all()


def test_buffers_whose_layout_is_visible_are_not_padded():
    own = 'A: T.Buffer((2, 3, 256), "float32", strides=(2000, 300, 1))'
    text = TWO_STAGES.replace('A: T.Buffer((2, 3, 256), "float32")', own)
    assert strides(padded(parse(text)))["A"] == [2000, 300, 1]
    view = "            W = T.match_buffer(S[0:2, 0:3, 0:256], (2, 3, 256))\n"
    start = "    for j, k, i in"
    for place, use in (
        (start, '    T.evaluate(T.call_extern("free", T.address_of(S[0, 0, 0]), dtype="int32"))\n'),
        (start, '    T.evaluate(T.call_extern("free", S.data, dtype="int32"))\n'),
        ("            with T.init", view),
    ):
        func = parse(TWO_STAGES.replace(place, use + place))
        assert padded(func) is func


def test_constant_weights_are_not_packed():
    func = get("gmm").func((1, 8, 8, 256), constant_weights=True)
    done = padded(func)
    assert not done.constants and func.constants
    assert strides(done)["X"] == [8 * 272, 272, 1]
    wrong = func.with_attr("layout_free_buffers", [7])
    assert padded(wrong) is wrong  # building says what is wrong with it
