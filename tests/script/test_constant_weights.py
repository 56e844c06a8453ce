"""Constant weights as TVM writes them: by position in an attribute, by buffer on a block."""

from __future__ import annotations

import pytest

from metasched.errors import ParseError
from metasched.ir.equal import structural_equal
from metasched.script.parser import parse
from metasched.script.printer import script

BY_BUFFER = """
@T.prim_func
def f(a: T.handle, W: T.Buffer((4,), "float32"), B: T.Buffer((4,), "float32")):
    A = T.match_buffer(a, (4,), "float32")
    for i in range(4):
        with T.block("B"):
            v = T.axis.spatial(4, i)
            T.block_attr({"layout_free_placeholders": [W, A], "kept": 1})
            B[v] = A[v] * W[v]
"""
BY_POSITION = BY_BUFFER.replace('"layout_free_placeholders": [W, A], ', "").replace(
    "    for i", '    T.func_attr({"layout_free_buffers": [0, 1]})\n    for i', 1
)


def test_both_marks_mean_the_same():
    one, other = parse(BY_BUFFER), parse(BY_POSITION)
    assert structural_equal(one, other)
    assert [b.name for b in one.constants] == ["A", "W"]
    assert structural_equal(parse(script(one)), one)
    assert 'T.func_attr({"layout_free_buffers": [0, 1]})' in script(one)


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ('["W"]', "layout_free_placeholders is a list of buffers"),
        ("W", "layout_free_placeholders is a list of buffers"),
        ("[P]", "P in layout_free_placeholders is no parameter"),
    ],
)
def test_a_mark_that_names_no_parameter(mark, message):
    text = BY_BUFFER.replace("[W, A]", mark)
    text = text.replace("    for i", '    P = T.alloc_buffer((4,), "float32")\n    for i', 1)
    with pytest.raises(ParseError, match=message):
        parse(text)
