"""parse(script(m)) is m, for every node kind and every operation."""

from __future__ import annotations

import numpy as np
import pytest
import strategies
import syntax
from hypothesis import given, settings

from metasched.ir.dtype import DType
from metasched.ir.equal import assert_structural_equal
from metasched.ir.expr import Add, FloatImm, IntImm, StringImm, Var
from metasched.ir.func import PrimFunc
from metasched.ir.op import OPS, Call
from metasched.ir.stmt import Evaluate, LetStmt, seq
from metasched.runtime.build import build
from metasched.script import parse, script
from metasched.script.builder import WORDS, lookup
from metasched.script.statements import STATEMENTS


def same(program):
    text = script(program)
    back = parse(text)
    assert_structural_equal(program, back)
    assert script(back) == text
    return text


@settings(max_examples=150)
@given(syntax.programs())
def test_random_syntax_round_trips(program):
    same(program)


@settings(max_examples=30)
@given(strategies.funcs())
def test_random_programs_round_trip(program):
    same(program)


@pytest.mark.parametrize("name", OPS.names())
def test_every_operation_prints_and_parses(name):
    op = OPS.get(name)
    count = 2 if op.arity is None else op.arity
    x = Var("x", "float32")
    for dtype in ("float32", "int32", "handle"):
        node = Call(dtype, op, [x, FloatImm("float32", 2.0), *[x] * 6][:count])
        text = same(PrimFunc((x,), Evaluate(node)))
        assert f"T.{name}(" in text
    assert callable(lookup(name))


def test_no_word_has_two_meanings():
    assert not set(STATEMENTS) & set(WORDS)
    assert not set(STATEMENTS) & set(OPS.names())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("value", [0.0, -0.0, 1.5, 6e4, None, float("inf"), float("-inf"),
                                   float("nan"), -float("nan")])  # fmt: skip
def test_float_constants_keep_bits_and_type(dtype, value):
    node = FloatImm(dtype, DType(dtype).largest if value is None else value)
    back = parse(script(PrimFunc((), Evaluate(node)))).body
    assert back.value is node


@pytest.mark.parametrize("dtype", ["int1", "int8", "uint8", "int32", "int64", "uint64", "bool"])
def test_integer_constants_keep_type(dtype):
    for value in IntImm(dtype, 0).dtype.range:
        node = IntImm(dtype, value)
        assert parse(script(PrimFunc((), Evaluate(node)))).body.value is node


def test_texts_keep_every_character():
    for text in ("", 'a"b', "a\\n", "\n\t\x01\x02", "€ 😀", "'''"):
        node = StringImm(text)
        assert parse(script(PrimFunc((), Evaluate(node)))).body.value is node


def test_a_sum_of_many_terms():
    x = Var("x")
    total = x
    for _ in range(1500):
        total = Add(total, x)
    same(PrimFunc((x,), Evaluate(total)))


def test_names_of_closed_scopes_are_used_again():
    def let():
        var = Var("x")
        return LetStmt(var, IntImm("int32", 1), Evaluate(var))

    text = same(PrimFunc((), seq([let(), let(), let()])))
    assert text.count("as x:") == 2 and "x_1" not in text


def test_strides_named_by_texts():
    """As in TVM, each text is a new variable."""
    func = parse(
        """
        @T.prim_func
        def f(X: T.Buffer((8, 4), "float32", strides=("s", 1)), B: T.Buffer((4, 8), "float32")):
            for i, j in T.grid(2, 2):
                with T.block("tile"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    a = T.match_buffer(
                        X[vi * 4 : vi * 4 + 4, vj * 2 : vj * 2 + 2], (4, 2), "float32",
                        strides=("s", 1), offset_factor=1,
                    )
                    b = T.match_buffer(
                        B[vj * 2 : vj * 2 + 2, vi * 4 : vi * 4 + 4], (2, 4), "float32",
                        strides=["s", 1], offset_factor=1,
                    )
                    for x, y in T.grid(4, 2):
                        b[y, x] = a[x, y] + T.float32(1)
        """
    )
    same(func)
    wide = np.arange(48, dtype=np.float32).reshape(8, 6)[:, :4]
    assert np.array_equal(build(func)(wide), wide.T + 1)
