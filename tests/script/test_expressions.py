"""The node that each expression of the dialect builds."""

from __future__ import annotations

import numpy as np

from metasched.ir.buffer import BufferLoad
from metasched.ir.expr import (
    EQ,
    TRUE,
    Add,
    And,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Let,
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Select,
    StringImm,
    Sub,
    as_int,
)
from metasched.ir.func import PrimFunc
from metasched.ir.op import Broadcast, Call, Ramp, Shuffle
from metasched.ir.stmt import (
    BufferStore,
    Evaluate,
)
from metasched.script import parse


def flat(body: str, params: str = 'A: T.Buffer((16,), "float32"), i: T.int32', **env) -> PrimFunc:
    """A lowered function with these lines as body."""
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    func = parse(f"@T.prim_func(s_tir=False)\ndef f({params}):\n{lines}\n", env)
    assert isinstance(func, PrimFunc)
    return func


def value_of(expression: str, params: str = "i: T.int32, j: T.int32, x: T.float32, c: T.bool",
             **env):  # fmt: skip
    """The node that an expression over i, j, x and c builds, and the variables."""
    func = flat(f"T.evaluate({expression})", params, **env)
    assert isinstance(func.body, Evaluate)
    return func.body.value, *func.params


# ---- expressions


def test_operators_build_nodes_as_written():
    cases = {
        "i + j": Add, "i - j": Sub, "i * j": Mul, "T.Div(i, j)": Div, "i // j": FloorDiv,
        "i % j": FloorMod, "T.truncdiv(i, j)": Div, "T.truncmod(i, j)": Mod,
        "T.floordiv(i, j)": FloorDiv, "T.floormod(i, j)": FloorMod, "T.min(i, j)": Min,
        "T.max(i, j)": Max, "min(i, j)": Min, "max(i, j)": Max, "i == j": EQ,
    }  # fmt: skip
    for text, kind in cases.items():
        node, i, j, *_ = value_of(text)
        assert node is kind(i, j), text


def test_nothing_is_folded():
    node, i, *_ = value_of("i * 1 + 0")
    assert node is Add(Mul(i, IntImm("int32", 1)), IntImm("int32", 0))
    node, i, *_ = value_of("T.int32(1) + 2")
    assert node is Add(IntImm("int32", 1), IntImm("int32", 2))


def test_python_numbers_are_computed():
    for text, number in {"1 + 2 * 3": 7, "7 // 2": 3, "-5 % 3": 1, "2 ** 10": 1024, "1 << 4": 16,
                         "max(2, 3)": 3, "len((1, 2))": 2, "int(3.5)": 3, "T.ceildiv(7, 2)": 4,
                         "T.max(1, 5)": 5, "(4 if 1 < 2 else 5)": 4, "abs(-3)": 3,
                         "3 and 5": 5, "0 or 6": 6, "~0": -1,
                         "[1, 2, 3][1]": 2}.items():  # fmt: skip
        assert value_of(text)[0] is IntImm("int32", number), text
    assert value_of("7 / 2")[0] is FloatImm("float32", 3.5)
    assert value_of("1 < 2 < 3")[0] is TRUE
    assert value_of("1 in (1, 2)")[0] is TRUE
    assert value_of("not False")[0] is TRUE


def test_numbers_take_the_other_operands_type():
    node, _, _, x, _ = value_of("x + 1")
    assert node is Add(x, FloatImm("float32", 1.0))
    node, i, *_ = value_of("i * 0.5")
    assert node is Mul(Cast("float32", i), FloatImm("float32", 0.5))
    node, i, *_ = value_of("2.0 * i")
    assert node is Mul(FloatImm("float32", 2.0), Cast("float32", i))
    node, k = value_of("1 + k", "k: T.int64")
    assert node is Add(IntImm("int64", 1), k)
    assert value_of("1 << 40")[0] is IntImm("int64", 1 << 40)
    node, i, j = value_of("i + j", "i: T.int32, j: T.int64")
    assert node is Add(Cast("int64", i), j)


def test_conditions():
    node, i, j, _, c = value_of("i < j and c or not c")
    assert node is Or(And(i < j, c), Not(c))
    node, i, j, *_ = value_of("0 <= i < j")
    assert node is And(IntImm("int32", 0) <= i, i < j)
    node, i, j, _, c = value_of("i if c else j")
    assert node.op.name == "if_then_else" and node.args == (c, i, j)
    node, *_, c = value_of("c & (c | ~c)")
    assert node is And(c, Or(c, Not(c)))
    node, i, j, _, c = value_of("T.And(c, i < j, c)")
    assert node is And(And(c, i < j), c)
    assert value_of("T.all(True)")[0] is TRUE


def test_bit_operators_are_operations():
    for text, name in {"i & j": "bitwise_and", "i | j": "bitwise_or", "i ^ j": "bitwise_xor",
                       "i << j": "shift_left", "i >> j": "shift_right", "T.pow(i, j)": "pow",
                       "T.power(i, j)": "pow"}.items():  # fmt: skip
        node, i, j, *_ = value_of(text)
        assert isinstance(node, Call) and node.op.name == name and node.args == (i, j)
    node, *_, x, _ = value_of("x ** x")
    assert isinstance(node, Call) and node.op.name == "pow" and node.args == (x, x)
    node, i, *_ = value_of("i ** 3")
    assert node is Mul(Mul(i, i), i)
    node, *_, x, _ = value_of("x / 2")
    assert node is Div(x, FloatImm("float32", 2.0))
    node, i, *_ = value_of("~i")
    assert node.op.name == "bitwise_not"
    node, i, *_ = value_of("-i")
    assert node is Sub(IntImm("int32", 0), i)


def test_casts_and_constants():
    node, i, *_ = value_of("T.float32(i)")
    assert node is Cast("float32", i)
    node, i, *_ = value_of('T.cast(i, "int8")')
    assert node is Cast("int8", i)
    node, i, *_ = value_of('i.astype("int64")')
    assert node is Cast("int64", i)
    node, i, *_ = value_of("T.int32(i)")
    assert node is i
    assert value_of('T.Cast("int32", T.int32(1))')[0] is Cast("int32", IntImm("int32", 1))
    assert value_of('T.max_value("int8")')[0] is IntImm("int8", 127)
    assert value_of('T.min_value("float16")')[0] is FloatImm("float16", -65504.0)
    largest = float(np.finfo(np.float32).max)
    assert value_of('T.max_value("float32")')[0] is FloatImm("float32", largest)
    assert value_of('T.infinity("float32")')[0] is FloatImm("float32", float("inf"))
    assert value_of('T.float32("nan")')[0].value != value_of('T.float32("nan")')[0].value


def test_selection_let_and_vectors():
    node, i, j, _, c = value_of("T.Select(c, i, 0)")
    assert node is Select(c, i, IntImm("int32", 0))
    node, i, *_ = value_of("T.Let(y + 1, where={y: i})")
    assert isinstance(node, Let) and node.value is i and node.body is Add(node.var, as_one())
    node, i, *_ = value_of("T.ramp(i, 1, 4) + 2")
    assert node is Add(Ramp(i, as_one(), 4), Broadcast(IntImm("int32", 2), 4))
    node, _, _, x, _ = value_of("T.Broadcast(x, 4)")
    assert node is Broadcast(x, 4)
    node, i, j, *_ = value_of("T.Shuffle([i, j], [1])")
    assert node is Shuffle((i, j), (1,))


def as_one():
    return IntImm("int32", 1)


def test_calls():
    node, _, _, x, _ = value_of("T.exp(x)")
    assert node.dtype == "float32" and node.args == (x,)
    node, *_ = value_of('T.call_extern("int32", "f", x, 1)')
    assert node.dtype == "int32" and len(node.args) == 3
    node, *_ = value_of('T.reinterpret("int32", x)')
    assert node.dtype == "int32"
    node, *_ = value_of('T.undef(dtype="float32")')
    assert node.dtype == "float32"
    node, *_ = value_of("T.if_then_else(c, x, 0)")
    assert node.args[2] is FloatImm("float32", 0.0)


def test_pointers():
    func = flat('T.evaluate(A.access_ptr("rw", offset=4))\nT.evaluate(T.address_of(A[0]))')
    first, second = (s.value for s in func.body.items)
    buffer = func.params[0]
    assert first.args[0] is buffer.data and [as_int(a) for a in first.args[1:]] == [4, 16, 3]
    assert first.dtype == second.dtype == "handle"
    tvm = flat('T.evaluate(T.tvm_access_ptr(T.type_annotation("float32"), A.data, 4, 16, 3))')
    assert [as_int(a) for a in tvm.body.value.args[1:]] == [4, 16, 3]


def test_buffer_accesses():
    func = flat("A[i] = A[i + 1]\nA[0:4] = A[4:8] * 2.0\nA[i] += 1")
    one, vector, add = func.body.items
    a, i = func.params
    assert one.value is a[i + 1]
    assert vector.indices == (Ramp(IntImm("int32", 0), as_one(), 4),)
    assert vector.value.b is Broadcast(FloatImm("float32", 2.0), 4)
    assert add.value is Add(a[i], FloatImm("float32", 1.0))


def test_masked_accesses():
    func = flat("A.vstore([i], A.vload([i], predicate=i < 3), predicate=i < 2)")
    store = func.body
    a, i = func.params
    assert isinstance(store, BufferStore) and store.predicate is (i < 2)
    assert store.value is BufferLoad(a, [i], i < 3)


def test_vector_loads_of_scalars_in_a_row():
    func = flat('A.vstore([T.ramp(i, 1, 4)], A.vload([i], "float32x4"))')
    assert func.body.value.indices == (Ramp(func.params[1], as_one(), 4),)
    text = 'T.evaluate(T.call_llvm_pure_intrin("int32", T.llvm_lookup_intrinsic_id("llvm.x"), i))'
    assert flat(text).body.value.args[0] is StringImm("llvm.x")


def test_stored_values_take_the_buffers_type():
    func = flat("A[0] = 1\nA[1] = i\nA[0:4] = 0")
    values = [s.value for s in func.body.items]
    assert values[0] is FloatImm("float32", 1.0)
    assert values[1] is Cast("float32", func.params[1])
    assert values[2] is Broadcast(FloatImm("float32", 0.0), 4)
