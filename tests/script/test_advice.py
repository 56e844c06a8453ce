"""Hints that are chosen by the message of an error: each row of the table is seen once."""

from __future__ import annotations

import pytest

from metasched.errors import ParseError
from metasched.script import parse
from metasched.script.hints import ADVICE, advice, has_form

# Body lines of `f(A: T.Buffer((16, 4), "float32"), i: T.int32, h: T.handle)`.
BODIES = [
    "x, y = (1, 2, 3)",
    "for k, l in T.grid(2, 3, 4):\n    A[k, l] = 0.0",
    "with T.evaluate(1):\n    pass",
    "T.max(1, 2)",
    "x = T.func_attr({})",
    "x: A = i",
    "for k in range():\n    pass",
    "A.x = 1",
    "A[0, 0] = i @ i",
    "for k in T.serial(T.int64(1), T.int32(8)):\n    pass",
    "assert i > 0, 5",
    "B = T.match_buffer(i, (4,))",
    "B = T.match_buffer(h, (4,))\nC = T.match_buffer(h, (4,))",
    "T.func_attr({1: 2})",
    "for k in T.grid():\n    pass",
    "with T.block(5):\n    pass",
    "with T.block('b'):\n    with T.init():\n        A[0, 0] = 0.0\n    with T.init():\n"
    "        A[1, 0] = 0.0",
    "for k in range(4):\n    with T.block('b'):\n        vk = T.axis.remap('SS', [k])",
    "for k in range(4):\n    with T.block('b'):\n        vk = T.axis.remap('X', [k])",
    "B = T.match_buffer(h)",
    'A[0, 0] = T.cast(i, "float33")',
    "A[0, 0] = T.int8(300)",
    "T.attr(A, 1, 1)",
    "T.evaluate(**1)",
    "i[0] = 1",
    "for k, l in ((1, 2, 3),):\n    pass",
    "with T.block('b'), T.block('c'):\n    pass",
    "A[0, 0] = i + 'x'",
    "A[0, 0] = i + (1, 2)",
    "A[0, 0] = (1, 2)",
    "A[0, 0] = None + 1",
    "A[0, 0] = i.astype(3)",
    "A[0, 0] = 'x'",
    "A[0, 0] = T.func_attr({})",
    "A[0, 0] = i.sum()",
    "A[0, 0] = A.sum()",
    "A[0, 0] = (1)(2)",
    "A[0, 0] = (5)[0]",
    "with T.block('b'):\n    vi = T.axis.spatial((1, 2, 3), i)\n    A[vi, 0] = 1.0",
    "with T.block('b'):\n    T.reads(1)\n    A[0, 0] = 1.0",
    "B = T.decl_buffer((4,), 'float32', data=5)",
]
TEXTS = [
    "@T.prim_func\ndef f(A: T.Buffer((4,)), *rest):\n    A[0] = 1.0",
    "@T.prim_func\ndef f(A: T.Buffer((4,))) -> A:\n    A[0] = 1.0",
    "@T.prim_func\ndef f(A: T.Buffer((4,))):\n    A[0] = 1.0\n\nx = 3",
    "@I.ir_module\nclass M:\n    x = 3",
    "@T.prim_func(fast=True)\ndef f(A: T.Buffer((4,))):\n    A[0] = 1.0",
]


def error_of(text):
    with pytest.raises(ParseError) as caught:
        parse(text)
    return str(caught.value)


def errors():
    head = '@T.prim_func\ndef f(A: T.Buffer((16, 4), "float32"), i: T.int32, h: T.handle):\n    '
    return [error_of(head + body.replace("\n", "\n    ")) for body in BODIES] + [
        error_of(text) for text in TEXTS
    ]


def test_each_row_is_the_hint_of_an_error():
    found = errors()
    unseen = {
        form: hint
        for form, hint in ADVICE.items()
        if not any(has_form(message_of(t), form) and t.endswith(f"hint: {hint}") for t in found)
    }
    assert not unseen, (unseen, [text for text in found if "hint: " not in text])
    assert all("hint: " in text for text in found)


def message_of(text):
    """The message of an error, without its place and the lines below."""
    return text.split("\n")[0].split(": ", 1)[1]


def test_words_of_a_name_choose_no_hint():
    """A block may be called like a message; the hint is of what is wrong with the block."""
    name = "range takes one to three numbers"
    assert advice(name)
    assert advice(f"block {name!r} has an init already") == advice("block 'b' has an init already")
    for text in (f"{name!r} is wrong", f"the word '{name}'", f'the word "it\'s {name}"'):
        assert advice(text) == ""
    text = f"@T.prim_func\ndef f():\n    with T.block({name!r}):\n        T.reads(x)"
    assert error_of(text).endswith("'x' is not defined\n    4 |         T.reads(x)\n      |"
                                   "                 ^")  # fmt: skip


def test_a_hint_of_the_place_comes_first():
    text = "@T.prim_func\ndef f(A: T.Buffer((4,), 'float32')):\n    A[A[0]] = 1.0"
    assert error_of(text).endswith("hint: write T.int32(x), which cuts the fraction off")
    assert advice("nothing that is known") == ""
