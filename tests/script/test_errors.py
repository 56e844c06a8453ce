"""Errors in scripts: the place, the reason, and what to write instead."""

from __future__ import annotations

import numpy as np
import pytest

from metasched.errors import ParseError
from metasched.ir.equal import structural_equal
from metasched.runtime.build import build
from metasched.script import ir as I
from metasched.script import parse, script
from metasched.script import tir as T

# Body lines of `f(A: T.Buffer((16, 4), "float32"), i: T.int32, h: T.handle)`, the place of the
# error (line of the body from 1, text that the carets underline) and what it says.
BODIES: list[tuple[str, int, str, str]] = [
    # names and values
    ("A[0, 0] = foo", 1, "foo", "'foo' is not defined"),
    ("A[0, 0] = math.exp(1.0)", 1, "math", "hint: words of T do the same, as T.exp(x)"),
    ("A[0, 0] = captur", 1, "captur", "did you mean captured"),
    ("A[0, 0] = user(1)", 1, "user", "'user' is a function; a script is read, not executed"),
    ("A[0, 0] = bag.computed", 1, "bag.computed", "'computed' is computed: reading it would"),
    ("A[0, 0] = bag.absent", 1, "bag.absent", "has no attribute 'absent'"),
    ("A[0, 0] = (1)(2)", 1, "(1)(2)", "1 cannot be called: a script calls only words of T"),
    ("A[0, 0] = T.exq(1.0)", 1, "T.exq", "T has no word 'exq'; did you mean exp?"),
    ("vi = T.axis.spatia(4, i)", 1, "T.axis.spatia", "did you mean axis.spatial"),
    ("A[0, 0] = A.shap", 1, "A.shap", "a buffer has no attribute 'shap'; did you mean shape"),
    ("A[0, 0] = i.bits", 1, "i.bits", "an expression has no attribute 'bits'"),
    ("A[0, 0] = [x for x in (1, 2)]", 1, "[x for x in (1, 2)]", "ListComp has no meaning"),
    ("A[0, 0] = (lambda: 1)", 1, "lambda: 1", "Lambda has no meaning in a script"),
    ("A[0, 0] = 1 // 0", 1, "1 // 0", "by zero"),
    ("A[0, 0] = 9 ** 9 ** 9", 1, "9 ** 9 ** 9", "the number is too large"),
    ("A[0, 0] = len('a' * 99999)", 1, "'a' * 99999", "the sequence is too long"),
    ("A[0, 0] = -captured_pair", 1, "-captured_pair", "bad operand type for unary -"),
    ("A[0, 0] = A + 1", 1, "A + 1", "operator Add has no meaning on the buffer A and 1"),
    ("A[0, 0] = i + A", 1, "i + A", "an operand is an expression or a number, not the buffer A"),
    ("A[0, 0] = i @ i", 1, "i @ i", "operator MatMult has no meaning on expressions"),
    ("A[0, 0] = i and i", 1, "i and i", "and needs conditions, not int32"),
    ("A[0, 0] = i > 1 or i", 1, "i > 1 or i", "or needs conditions, not int32"),
    ("A[0, 0] = i and 3", 1, "i and 3", "hint: compare with != 0; & and | combine the bits"),
    ("A[0, 0] = i // 0", 1, "i // 0", "integer division or modulo by zero"),
    ("A[0, 0] = 2 + i % (2 - 2) * 3", 1, "i % (2 - 2)", "integer division or modulo by zero"),
    ("A[i // 0, 0] = 1", 1, "i // 0", "hint: leave it out, or choose the divisor: x // T.max"),
    ("A[0, 0] = T.floordiv(i, 0)", 1, "T.floordiv(i, 0)", "integer division or modulo by zero"),
    ("A[0, 0] = T.truncmod(i, 1 - 1)", 1, "T.truncmod(i, 1 - 1)",
     "hint: leave it out, or choose the divisor: x // T.max(d, 1)"),
    ("A[0, 0] = T.floormod(7, 0)", 1, "T.floormod(7, 0)", "by zero"),
    ("x = i\nx //= 0", 2, "x //= 0", "integer division or modulo by zero"),
    ("A[0, 0] = i << 32", 1, "i << 32", "hint: convert to a wider type first, as T.int64(x)"),
    ("A[0, 0] = not i", 1, "not i", "compare with == 0"),
    ("A[0, 0] = round(A[0, 1])", 1, "round(A[0, 1])", "write T.nearbyint(value)"),
    ("A[0, 0] = h + 1", 1, "h + 1", "handle"),
    ("A[0, 0] = captured_pair[i]", 1, "i",
     "a Python sequence is indexed with Python numbers only\n"),
    ("A[0, 0] = captured_pair[i]", 1, "i", "a table is a parameter T.Buffer, or memory of"),
    ("A[0, 0] = captured_pair[7]", 1, "captured_pair[7]", "index out of range"),
    ("A[0, 0] = captured[0]", 1, "captured[0]", "5 cannot be indexed"),
    ("A[0, 0] = len(i)", 1, "len(i)", "len takes Python values only"),
    ("A[0, 0] = float(A)", 1, "float(A)", "float takes Python values only, not the buffer A"),
    ('A[0, 0] = f"{A}"', 1, "A", "a text takes in plain numbers and texts, not the buffer A"),
    ("T.evaluate(*1)", 1, "*1", "* needs a tuple or a list, not 1"),
    ("T.evaluate(**1)", 1, "1", "** needs a dictionary"),
    # expressions
    ("A[0] = 1", 1, "A[0]", "A has 2 dimensions, 1 given"),
    ("A[0.5, 0] = 1", 1, "A[0.5, 0]", "an index is an integer, not float32"),
    ("A[A[0, 0], 0] = 1", 1, "A[A[0, 0], 0]", "hint: write T.int32(x), which cuts the fraction"),
    ("A[0, 0] = A[0, 0:i]", 1, "A[0, 0:i]", "a slice is a vector of 1 to 64 elements of the last"),
    ("T.evaluate(A)", 1, "T.evaluate(A)", "Buffer is not an expression"),
    ("A[:, 0] = A", 1, "A", "hint: give an index for each dimension, or write A[:, :] for all"),
    ("A[0, 0] = 2 * A", 1, "2 * A", "hint: give an index for each dimension, or write A[:, :]"),
    ("A[0, 0] = T.exp(1.0, 2.0)", 1, "T.exp(1.0, 2.0)", "exp takes 1 arguments, not 2"),
    ("A[0, 0] = T.int8(300)", 1, "T.int8(300)", "300 does not fit in int8"),
    ("A[0, 0] = T.float32(1e39)", 1, "T.float32(1e39)",
     '1e+39 does not fit in float32; infinity is T.float32("inf")'),
    ("A[0, 0] = T.int8(1.5)", 1, "T.int8(1.5)", "1.5 is not an integer"),
    ('A[0, 0] = T.int8("x")', 1, 'T.int8("x")', "T.int8 takes a number or an expression"),
    ("A[0, 0] = T.Let(1)", 1, "T.Let(1)", "write T.Let(body, where={name: value})"),
    ("A[0, 0] = T.Let(1, where={1: 2})", 1, "1", "T.Let binds names"),
    ('A[0, 0] = T.cast(i, "float33")', 1, 'T.cast(i, "float33")', "is not a data type"),
    ('A[0, 0] = T.cast(i, "int8xvscalex4")', 1, 'T.cast(i, "int8xvscalex4")',
     "is not a data type: a vector has a fixed number of lanes"),
    ("T.evaluate(T.broadcast(i, T.vscale() * 4))", 1, "T.broadcast(i, T.vscale() * 4)",
     "a vector has a fixed number of lanes, not Mul"),
    ('T.evaluate(T.unprintable("x"))', 1, 'T.unprintable("x")', "cannot be written in a script"),
    # stores and assignments
    ('A[0, 0] = T.cast(i, "float64")', 1, 'T.cast(i, "float64")', "where float32 is kept"),
    ("i[0] = 1", 1, "i[0]", "only buffers are stored to, not a Var"),
    ("t = [0.0] * 4\nt[i] = 1.0", 2, "t[i]",
     "hint: write T.alloc_buffer(shape, dtype)"),
    ("A[0, 0] = T.clip(1.0, 0, 2)", 1, "T.clip",
     "T has no word 'clip': write T.min(T.max(x, low), high)"),
    ("A[0, 0] = T.where(i > 1, 2.0, 3.0)", 1, "T.where(i > 1, 2.0, 3.0)",
     "hint: write T.if_then_else(condition, a, b)"),
    ("A.x = 1", 1, "A.x", "a name is needed here"),
    ("for k in prange(4):\n    A[k, 0] = 1.0", 1, "prange", "write T.parallel(n)"),
    ("x = y = i", 1, "x = y = i", "assign to one target at a time"),
    ("x, y = i", 1, "x, y = i", "2 names need as many values"),
    ("x = T.func_attr({})", 1, "T.func_attr({})", "T.func_attr gives no value to"),
    ("x: T.float32 = i", 1, "i", "the value is int32, the variable float32"),
    ("x: A = i", 1, "A", "a variable has a scalar type, not the buffer A"),
    ("A.vstore([0, 0])", 1, "A.vstore([0, 0])", "write A.vstore([indices], value"),
    # statements
    ("import os", 1, "import os", "Import has no meaning in a script"),
    ("def g(): pass", 1, "def g(): pass", "define functions side by side"),
    ("i + 1", 1, "i + 1", "this expression does nothing"),
    ("T.block('b')", 1, "T.block('b')", "T.block opens a scope"),
    ("T.grid(4)", 1, "T.grid(4)", "write for i in T.grid(...):"),
    ("T.max(1, 2)", 1, "T.max(1, 2)", "2 is no statement"),
    ("A[0, 0] = T.grid(4)", 1, "T.grid(4)", "T.grid is a statement and cannot stand inside"),
    ("for k in T.exp(1.0):\n    pass", 1, "T.exp(1.0)", "a loop runs over range, T.grid"),
    ("for k in A:\n    pass", 1, "A", "write for i in range(n) and A[i]"),
    ("for k in 'ab':\n    pass", 1, "'ab'", "enumerate, zip or reversed of such, not 'ab'"),
    ("for k, x in enumerate(A):\n    pass", 1, "enumerate(A)",
     "enumerate takes Python values only, not the buffer A\n"),
    ("for k, l in range(4), range(3):\n    pass", 1, "k, l", "write T.grid(m, n) for loops inside"),
    ("for k, l in (1, 2):\n    pass", 1, "k, l", "2 names need as many values, not 1"),
    ("for k, l in ((1, 2, 3),):\n    pass", 1, "k, l", "3 values for 2 names"),
    ("for k in (0,) * 20:\n    for l in (0,) * 13:\n        A[k, l] = 1.0", 2, "(0,) * 13",
     "this loop over Python values makes more than 256 copies of its body"),
    ("for k in (1, 2):\n    if i > 0:\n        break\n    A[0, k] = 1.0", 3, "break",
     "this break depends on what is known only when the program runs"),
    ("for k in (1, 2):\n    if k < 2:\n        if i > 0:\n            continue\n    A[0, k] = 1.0",
     4, "continue", "this continue depends on what is known only when the program runs"),
    ("for k, l in T.grid(2, 3):\n    if i < l:\n        break", 3, "break",
     "T.grid is one loop in Python, which break would leave"),
    ("A[0, 0] = 1 if i in (2, 3) else 2", 1, "i in (2, 3)", "compare with each value: x == a or"),
    ("for k, l in range(4):\n    pass", 1, "k, l", "1 loops need as many variables, 2 given"),
    ("for k in range(4):\n    pass\nelse:\n    pass", 4, "pass", "no else; set a flag"),
    ("while i < 3:\n    pass\nelse:\n    pass", 4, "pass", "a loop has no else"),
    ("for k in range():\n    pass", 1, "range()", "range takes one to three numbers"),
    ("for k in range(0, 8, 0):\n    pass", 1, "range(0, 8, 0)", "a step is not 0"),
    ("for k in range(1.5):\n    pass", 1, "range(1.5)", "an index is an integer"),
    ("for k in T.grid():\n    pass", 1, "T.grid()", "T.grid needs an extent for each loop"),
    ("for k in T.serial(T.int64(1), T.int32(8)):\n    pass", 1,
     "T.serial(T.int64(1), T.int32(8))", "the bounds have different types, int64 and int32"),
    ("for k in T.serial(4, tag=1):\n    pass", 1, "T.serial(4, tag=1)", "T.serial: got an unexp"),
    ("for k in T.serial(4, annotations=3):\n    pass", 1, "T.serial(4, annotations=3)",
     "a dictionary with text keys is needed, not 3"),
    ("for k in T.thread_binding(4):\n    pass", 1, "T.thread_binding(4)", "needs thread="),
    ("for A.x in range(4):\n    pass", 1, "A.x", "a name is needed here"),
    ("if i:\n    pass", 1, "i", "a condition is needed, not int32"),
    ("assert i > 0, 5", 1, "assert i > 0, 5", "the message of an assertion is a text, not 5"),
    ("with A:\n    pass", 1, "A", "with takes a word of T that opens a scope"),
    ("with T.reads(A):\n    pass", 1, "T.reads(A)", "this word is allowed only in a block"),
    ("with T.evaluate(1):\n    pass", 1, "T.evaluate(1)", "this word opens no scope"),
    ("with T.If(i > 0):\n    pass", 2, "pass", "T.If holds `with T.Then():`"),
    ("with T.If(i > 0):\n    with T.Else():\n        pass", 1, None, "T.If needs `with T.Then()"),
    ("with T.Then():\n    pass", 1, "T.Then()", "stand inside `with T.If(condition):`"),
    ("T.attr(1, 'k', 1)", 1, "T.attr(1, 'k', 1)", "T.attr: 1 cannot carry an attribute"),
    ("T.attr(A, 1, 1)", 1, "T.attr(A, 1, 1)", "T.attr: the key is a text, not 1"),
    ("T.launch_thread(i, 4)", 1, "T.launch_thread(i, 4)", "needs a tag or T.env_thread(...)"),
    ("T.func_attr({1: 2})", 1, "T.func_attr({1: 2})", "a dictionary with text keys is needed"),
    ("T.func_attr()", 1, "T.func_attr()", "T.func_attr: missing a required argument: 'attrs'"),
    ("A[0, 0] = T.max(A[0, 0])", 1, "T.max(A[0, 0])", "T.max: missing 1 required positional"),
    ("A[0, 0] = T.cast(A[0, 0])", 1, "T.cast(A[0, 0])", "T.cast: missing 1 required positional"),
    ("A[0, 0] = T.cast('int32', A[0, 0])", 1, "T.cast('int32', A[0, 0])",
     "a type such as 'int32' is needed, not a value of float32"),
    # buffers
    ("B = T.match_buffer(i, (4,))", 1, "T.match_buffer(i, (4,))", "i is not a T.handle parameter"),
    ("B = T.match_buffer(h)", 1, "T.match_buffer(h)", "T.match_buffer on a handle needs a shape"),
    ("B = T.match_buffer(h, 4)\nC = T.match_buffer(h, 4)", 2, "T.match_buffer(h, 4)",
     "h is matched already"),
    ("B = T.match_buffer(A[0:4, 0:4])", 1, "T.match_buffer(A[0:4, 0:4])", "only in a block"),
    ("with T.block('b'):\n    B = T.match_buffer(A[0:4, 0:4], (4, 4), 'int32')", 2,
     "T.match_buffer(A[0:4, 0:4], (4, 4), 'int32')", "a matched buffer has the type of its source"),
    ("B = T.alloc_buffer((1 << 62, 2))", 1, "T.alloc_buffer((1 << 62, 2))",
     "buffer has 9223372036854775808 elements, more than 64 bits count"),
    ("B = T.alloc_buffer((-1,))", 1, "T.alloc_buffer((-1,))",
     "the shape of buffer is (-1), extents start at 0"),
    ("B = T.alloc_buffer((4,), 'int33')", 1, "T.alloc_buffer((4,), 'int33')", "not a data type"),
    ("B = T.alloc_buffer(('n',))", 1, "T.alloc_buffer(('n',))", "declare n = T.int32()"),
    ("B = T.decl_buffer((4,), data=3)", 1, "T.decl_buffer((4,), data=3)", "data= is A.data of"),
    # blocks
    ("with T.block(3):\n    pass", 1, "T.block(3)", "a block's name is a text, not 3"),
    ("with T.block('b') as x:\n    pass", 1, "T.block('b')", "iterators are named in its body"),
    ("with T.block('b'), T.block('c'):\n    pass", 1, "T.block('c')", "needs a separate `with`"),
    ("T.where(i > 0)", 1, "T.where(i > 0)", "this word is allowed only in a block"),
    ("with T.init():\n    pass", 1, "T.init()", "this word is allowed only in a block"),
    ("with T.block('b'):\n    T.where(i)", 2, "T.where(i)", "T.where needs a condition"),
    ("with T.block('b'):\n    T.reads(3)", 2, "T.reads(3)", "a region such as A[0:4, i] is needed"),
    ("with T.block('b'):\n    T.reads(A[0:4:2, 0])", 2, "A[0:4:2, 0]", "a region has no step"),
    ("with T.block('b'):\n    vi = T.axis.remap('S', [i])", 2, "[i]", "0 is no loop variable"),
    ("with T.block('b'):\n    vi = T.axis.remap('SS', [i])", 2, "T.axis.remap('SS', [i])",
     "1 loops need as many letters, not 'SS'"),
    ("for k in range(4):\n    with T.block('b'):\n        vi = T.axis.remap('Q', [k])", 3,
     "T.axis.remap('Q', [k])", "knows S and R, not 'Q'"),
    ("with T.block('b'):\n    vi = T.axis.spatial((1, 2, 3), i)", 2,
     "T.axis.spatial((1, 2, 3), i)", "a domain is an extent or a pair"),
    ("with T.block('b'):\n    vi, vj = T.axis.spatial(4, i)", 2, "vi, vj", "1 values for 2 names"),
    ("with T.block('b'):\n    with T.init():\n        pass\n    with T.init():\n        pass", 4,
     "T.init()", "block 'b' has an init already"),
    ("with T.block('b'):\n    T.evaluate(T.call_extern('int32', 'f', A.data))", 1, "T.block('b')",
     "passes a pointer on, so what it touches cannot be inferred"),
]  # fmt: skip


class Bag:
    @property
    def computed(self):
        raise AssertionError("executed")


ENV = {"captured": 5, "captured_pair": (1, 2), "user": lambda x: x, "bag": Bag()}
HEAD = '@T.prim_func\ndef f(A: T.Buffer((16, 4), "float32"), i: T.int32, h: T.handle):\n'


@pytest.mark.parametrize("body, line, under, message", BODIES, ids=[b[0] for b in BODIES])
def test_bodies(body, line, under, message):
    text = HEAD + "\n".join("    " + part for part in body.splitlines())
    with pytest.raises(ParseError) as caught:
        parse(text, ENV, name="mine.py")
    report = str(caught.value)
    assert message in report
    shown, carets = report.splitlines()[1:3]
    assert caught.value.line == line + 2
    assert report.startswith(f"mine.py:{line + 2}:{caught.value.column}: ")
    assert shown.endswith(text.splitlines()[line + 1])
    marked = shown[carets.index("^") : len(carets)]
    assert under is None or marked == under
    assert shown.index("|") == carets.index("|")


def test_a_pointer_passed_on_asks_for_what_it_touches():
    with pytest.raises(ParseError) as caught:
        parse(
            HEAD
            + "    with T.block('b'):\n        T.evaluate(T.call_extern('f', A.data, dtype=''))"
        )
    hint = "hint: declare what is read and written through it: T.reads(...) and T.writes(...)"
    assert hint in str(caught.value)


TEXTS = [
    ("x = 1", 1, "only imports and one definition stand in a text"),
    ("", None, "no function and no class in the text"),
    ("def f():\n    pass", 1, "f has no @T.prim_func"),
    ("class M:\n    pass", 1, "M has no @I.ir_module"),
    ("@T.prim_func\ndef f():\n    pass\n@T.prim_func\ndef g():\n    pass", 5, "one function or"),
    ("@T.prim_func(fast=True)\ndef f():\n    pass", 1, "T.prim_func has no option 'fast'"),
    ("@T.prim_func\ndef f(:\n    pass", 2, "not Python"),
    ("   @T.prim_func\n   def f(:\n      pass", 2, "not Python"),
    ("@T.prim_func\ndef f(a):\n    pass", 2, "parameter 'a' needs a type"),
    ("@T.prim_func\ndef f(a: T.int32 = 3):\n    pass", 2, "parameters are plain: no defaults"),
    ("@T.prim_func\ndef f(*a: T.int32):\n    pass", 2, "parameters are plain"),
    ("@T.prim_func\ndef f(a: T.exp):\n    pass", 2, "a parameter is a buffer or a scalar"),
    ("@T.prim_func\ndef f(a: T.Buffer):\n    pass", 2, 'write a: T.Buffer((n, m), "float32")'),
    ("@T.prim_func\ndef f(a: T.Buffer):\n    pass", 2, "a parameter is a buffer or a scalar"),
    ("@T.prim_func\ndef f() -> 3:\n    pass", 2, "a function returns a scalar type, not 3"),
    ("@I.ir_module\nclass M:\n    x = 1", 3, "a module holds functions and I.module_attrs"),
    ("@I.ir_module\nclass M:\n    len(1)", 3, "a module holds functions and I.module_attrs"),
    ("@I.ir_module\nclass M:\n    def f():\n        pass", 3, "f has no @T.prim_func"),
    ("@I.other\nclass M:\n    pass", 1, "I has no word 'other'"),
]


@pytest.mark.parametrize("text, line, message", TEXTS)
def test_texts(text, line, message):
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert caught.value.line == line


def test_the_whole_report():
    with pytest.raises(ParseError) as caught:
        parse(HEAD + "    ä = 'é'; x: T.int8 = i", name="kernel.py")
    assert str(caught.value) == (
        "kernel.py:3:26: the value is int32, the variable int8\n"
        "    3 |     ä = 'é'; x: T.int8 = i\n"
        "      |                          ^\n"
        'hint: write T.cast(value, "int8")'
    )


def test_decorated_functions_point_into_their_file():
    with pytest.raises(ParseError, match=r"test_errors\.py:\d+:24: 'missing' is not defined"):

        @T.prim_func
        def func(A: T.Buffer((4,), "int32")):
            A[0] = 1 + missing


def test_functions_without_source_say_so():
    names: dict[str, object] = {"T": T}
    with pytest.raises(ParseError, match=r"the source of f cannot be read; .*script\.parse"):
        exec("@T.prim_func\ndef f():\n    pass", names)


def test_module_members_must_be_programs():
    with pytest.raises(ParseError, match=r"Module\.f has no @T\.prim_func"):

        @I.ir_module
        class Module:
            def f(self):
                pass


def test_statement_words_outside_of_scripts():
    for use in (lambda: T.grid(4), lambda: T.block("b"), lambda: T.axis.spatial(4, 0)):
        with pytest.raises(ParseError, match="describes a statement: it has a meaning only inside"):
            use()
    with pytest.raises(AttributeError, match="T has no word 'gird'; did you mean grid"):
        T.gird(4)


def test_long_lines_are_cut_to_the_text_around_the_error():
    text = "@T.prim_func\ndef f(A: T.Buffer((8,), 'float32')):\n"
    text += f"    A[0] = {'A[0] + ' * 1000}nothing + {'A[0] + ' * 1000}A[0]\n"
    with pytest.raises(ParseError) as caught:
        parse(text)
    where, line, carets = str(caught.value).splitlines()[:3]
    assert len(line) < 220 and "nothing" in line and caught.value.column > 7000
    assert line[carets.index("^") : carets.rindex("^") + 1] == "nothing"


def test_a_store_into_an_array_of_numpy_says_what_to_allocate():
    t = np.zeros(4)
    with pytest.raises(ParseError, match=r"only buffers .*\n.*\n.*\nhint: write T.alloc_"):

        @T.prim_func
        def local(A: T.Buffer((4,))):
            for i in range(4):
                t[i] = A[i]


def test_len_of_a_buffer_is_its_first_extent():
    @T.prim_func
    def double(A: T.Buffer((7, 3))):
        for i in range(len(A)):
            A[i, 0] = A[i, 0] * 2.0

    assert "for i in range(7)" in double.script()


def test_statements_that_nest_too_deeply():
    """Each variable nests what follows it: 700 are read and compiled, 4,000 are refused."""

    def text(count: int) -> str:
        lines = [f"    x{n} = x{n - 1} + 1\n" for n in range(1, count)]
        head = "@T.prim_func\ndef f(A: T.Buffer((1,), 'int32')):\n    x0 = A[0]\n"
        return f"{head}{''.join(lines)}    A[0] = x{count - 1}\n"

    out = np.array([5], "int32")
    build(parse(text(700)))(out)
    assert out == [704]
    with pytest.raises(ParseError, match="nest too deeply: each variable that is set once"):
        parse(text(4000))


def test_a_division_by_zero_that_a_step_made_is_printed_by_the_name_of_its_node() -> None:
    """Operators and words for users would not be read again."""
    text = """
@T.prim_func
def f(A: T.Buffer((4,), "int32")):
    for i in range(4):
        A[i] = T.FloorDiv(A[i], 0) + 2 * T.FloorMod(i + 1, 0) - T.Div(A[i], 0) - T.Mod(i, 0)
"""
    func = parse(text)
    divided = "T.FloorDiv(A[i], 0) + 2 * T.FloorMod(i + 1, 0) - T.Div(A[i], 0) - T.Mod(i, 0)"
    assert divided in script(func)
    assert structural_equal(parse(script(func)), func)
