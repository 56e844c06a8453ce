"""The tables are complete, foreign code is checked, and what has no code says so."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from codegen.kernels import NATIVE, agree, build, call, integers

from metasched.codegen.compile import compile_func
from metasched.codegen.expressions import EXPRESSION_RULES
from metasched.codegen.load import load
from metasched.codegen.ops import OP_RULES
from metasched.codegen.signature import BufferArg, ScalarArg, extent_value
from metasched.codegen.statements import STATEMENT_RULES
from metasched.errors import BuildError, LowerError
from metasched.ir import expr, op, stmt
from metasched.ir.buffer import Buffer, BufferLoad
from metasched.ir.expr import Expr, IntImm, StringImm, Var
from metasched.ir.func import PrimFunc
from metasched.ir.op import OPS, Call, Shuffle
from metasched.ir.stmt import BufferStore, Evaluate, Stmt
from metasched.target import Target


def test_every_operation_and_node_has_a_rule() -> None:
    assert set(OP_RULES) == set(OPS.names())
    abstract = {Expr, expr.BinaryOp, expr.Arithmetic, expr.Compare, expr.Logical}
    kinds = [k for m in (expr, op) for k in vars(m).values() if isinstance(k, type)]
    nodes = {k for k in kinds if issubclass(k, Expr)} - abstract | {BufferLoad}
    assert nodes == set(EXPRESSION_RULES)
    statements = {k for k in vars(stmt).values() if isinstance(k, type) and issubclass(k, Stmt)}
    assert statements - {Stmt, stmt._Around} <= set(STATEMENT_RULES)


def _store(value: Expr, dtype: str = "float32") -> PrimFunc:
    out = Buffer.of("out", (4,), dtype)
    return PrimFunc((out,), BufferStore(out, value, (IntImm("int32", 0),)))


@pytest.mark.parametrize("name", ["ptx_mma", "tvm_storage_sync", "vscale", "call_packed"])
def test_operations_without_code_are_named(name: str) -> None:
    operation = OPS.get(name)
    call_node = Call("float32", operation, ())
    with pytest.raises(BuildError, match=f"{name} has no code on cpu targets"):
        build(_store(call_node))


@pytest.mark.parametrize(("kind", "packed"), [("int4", "2 in each element of int8"),
                                              ("uint1", "8 in each element of uint8")])  # fmt: skip
def test_integers_below_a_byte_are_refused_with_a_way(kind: str, packed: str) -> None:
    with pytest.raises(BuildError, match=f"has no {kind} values on this target; pack {packed}"):
        build(_store(IntImm(kind, 0), kind))


def test_foreign_functions() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((5,), "float64"), B: T.Buffer((5,), "float64")):
    for i in T.serial(5):
        B[i] = T.call_pure_extern("float64", "cbrt", A[i]) + T.call_extern("float64", "sqrt", A[i])
"""
    a, b = np.array([1.0, 8, 27, 64, 125]), np.zeros(5)
    compiled = build(text)
    assert compiled.externs == ("cbrt", "sqrt")
    assert call(compiled, a, b) == 0
    np.testing.assert_allclose(b, np.cbrt(a) + np.sqrt(a))
    missing = build(text.replace("cbrt", "no_such_function"))
    with pytest.raises(BuildError, match="calls no_such_function, which no loaded library defines"):
        load(missing)
    with pytest.raises(BuildError, match="'not a name' is not a C function name"):
        build(text.replace("cbrt", "not a name"))


def test_intrinsics_are_checked_before_llvm_sees_them() -> None:
    def intrinsic(name: str, *args: Expr, dtype: str = "float32") -> PrimFunc:
        operation = OPS.get("call_llvm_pure_intrin")
        return _store(Call(dtype, operation, (StringImm(name), *args)), dtype)

    one = expr.as_expr(2.25, "float32")
    compiled = build(intrinsic("llvm.sqrt.f32", one))
    out = np.zeros(4, "float32")
    assert call(compiled, out) == 0 and out[0] == 1.5
    for name, args, message in [
        ("llvm.sqqrt.f32", (one,), "not a known LLVM intrinsic"),
        ("llvm.sqrt.f64", (one,), "does not take or give float32x1"),
        ("llvm.sqrt.i32", (one,), "has no form for this type"),
        ("llvm.fma.f32", (one,), "takes 3 operands, not 1"),
        ("llvm.x86.avx512.vpdpbusd.512", (one,), "takes .*int32x16.*not .float32x1"),
    ]:
        with pytest.raises(BuildError, match=message):
            build(intrinsic(name, *args))


def test_dot_product_instruction_needs_its_feature() -> None:
    name = "llvm.x86.avx512.vpdpbusd.512"
    zero = expr.as_expr(0)

    def vector(dtype: str, lanes: int) -> Expr:
        return op.Broadcast(zero.astype(dtype), lanes)

    operation = OPS.get("call_llvm_pure_intrin")
    operands = (vector("int32", 16), vector("uint8", 64), vector("int8", 64))
    value = Call("int32x16", operation, (StringImm(name), *operands))
    out = Buffer.of("out", (16,), "int32")
    func = PrimFunc((out,), BufferStore(out, value, (op.Ramp(zero, expr.as_expr(1), 16),)))
    poor = type(NATIVE)(mcpu="x86-64-v3", features=("avx2", "fma", "f16c"), vector_bits=256)
    with pytest.raises(BuildError, match="needs the feature avx512vnni"):
        compile_func(func, poor, "f")


def test_vectors_written_in_the_program() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((16,), "float32"), B: T.Buffer((4, 4), "float32")):
    for i in T.serial(4):
        B[i, T.ramp(0, 1, 4)] = A[T.ramp(i * 4, 1, 4)] + T.broadcast(T.float32(1), 4)
    B[2, T.ramp(0, 1, 4)] = A[T.ramp(15, -3, 4)]
"""
    agree(text, integers((16,)), np.zeros((4, 4), "float32"))


def test_shuffle_picks_lanes() -> None:
    a, out = Buffer.of("a", (8,)), Buffer.of("out", (4,))
    zero, one = expr.as_expr(0), expr.as_expr(1)
    vector = BufferLoad(a, (op.Ramp(zero, one, 8),))
    value = Shuffle([vector], [7, 0, 3, 3])
    func = PrimFunc((a, out), BufferStore(out, value, (op.Ramp(zero, one, 4),)))
    data, result = integers((8,)), np.zeros(4, "float32")
    assert call(build(func), data, result) == 0
    assert list(result) == [data[7], data[0], data[3], data[3]]


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 5])
def test_shuffle_interleaves_vectors(parts: int) -> None:
    """Lane by lane; machine code takes a few instructions, not one for each lane."""
    a, out = Buffer.of("a", (parts, 16)), Buffer.of("out", (parts * 16,))
    zero, one = expr.as_expr(0), expr.as_expr(1)
    vectors = [BufferLoad(a, (expr.as_expr(n), op.Ramp(zero, one, 16))) for n in range(parts)]
    order = [n * 16 + lane for lane in range(16) for n in range(parts)]
    value = Shuffle(vectors, order)
    func = PrimFunc((a, out), BufferStore(out, value, (op.Ramp(zero, one, parts * 16),)))
    data, result = integers((parts, 16)), np.zeros(parts * 16, "float32")
    kernel = build(func)
    assert call(kernel, data, result) == 0
    np.testing.assert_array_equal(result, data.T.ravel())


def test_long_sums_do_not_recurse() -> None:
    a = Buffer.of("a", (4,))
    total: Expr = a[0]
    for _ in range(1500):
        total = total + a[1]
    func = PrimFunc((a,), BufferStore(a, total, (IntImm("int32", 2),)))
    data = np.array([1, 2, 0, 0], "float32")
    assert call(build(func), data) == 0
    assert data[2] == 3001


def test_prefetch_is_a_hint() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((32,), "float32")):
    for i in T.serial(32):
        T.evaluate(T.prefetch(T.address_of(A[i]), 0, 3, 1))
        A[i] = A[i] + T.float32(1)
"""
    compiled = build(text)
    data = np.zeros(32, "float32")
    assert call(compiled, data) == 0 and (data == 1).all()
    assert "llvm.prefetch.p0" in compiled.llvm_ir


def test_refusals_name_what_is_wrong() -> None:
    a = Buffer.of("a", (4,))
    stray = PrimFunc((a,), BufferStore(a, a[Var("i")], (IntImm("int32", 0),)))
    with pytest.raises(BuildError, match="variable i is not defined where it is used"):
        build(stray)
    other = Buffer.of("other", (4,))
    with pytest.raises(BuildError, match="buffer other is used where it is not allocated"):
        build(PrimFunc((a,), BufferStore(a, other[0], (IntImm("int32", 0),))))
    with pytest.raises(BuildError, match="'1st' is not a C function name"):
        compile_func(PrimFunc((a,), Evaluate(IntImm("int32", 0))), NATIVE, "1st")
    gpu = Target.of("cuda -mcpu=sm_90")
    with pytest.raises(BuildError, match="no code generation for cuda targets: build for a CPU"):
        compile_func(PrimFunc((a,), Evaluate(IntImm("int32", 0))), gpu, "f")
    bound = """
@T.prim_func
def main(A: T.Buffer((4,), "float32")):
    for i in T.thread_binding(4, thread="threadIdx.x"):
        A[i] = T.float32(0)
"""
    with pytest.raises((BuildError, LowerError), match=r"threadIdx\.x"):
        build(bound)
    small = Buffer.of("small", (4,), "int4")
    with pytest.raises(BuildError, match="no int4 values"):
        build(PrimFunc((small,), BufferStore(small, small[0], (IntImm("int32", 1),))))


def test_signature_says_what_is_read_and_written() -> None:
    text = """
@T.prim_func
def main(a: T.handle, x: T.float32, B: T.Buffer((4,), "float32")):
    n = T.int32()
    A = T.match_buffer(a, (n, n * 2), "float32", strides=[n * 4, 1])
    for i in T.serial(4):
        B[i] = A[i, 0] * x
"""
    compiled = pickle.loads(pickle.dumps(build(text)))
    a, x, b = compiled.signature.params
    assert isinstance(a, BufferArg) and isinstance(b, BufferArg)
    assert (a.read, a.written, a.compact) == (True, False, False)
    assert (b.read, b.written, b.compact) == (False, True, True)
    assert x == ScalarArg("x", "float32")
    assert [extent_value(e, {"n": 5}) for e in (*a.shape, *a.strides)] == [5, 10, 20, 1]
    assert compiled.signature.symbols == ("n",)
    assert compiled.signature.buffers == (a, b)
    assert "vmulss" in compiled.asm() or "mulss" in compiled.asm()


def test_lanes_read_as_lanes_of_another_width() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((8,), "uint8"), B: T.Buffer((2,), "int32"), C: T.Buffer((8,), "uint8")):
    B[T.ramp(0, 1, 2)] = T.reinterpret(A[T.ramp(0, 1, 8)], dtype="int32x2")
    C[T.ramp(0, 1, 8)] = T.reinterpret(B[T.ramp(0, 1, 2)], dtype="uint8x8")
"""
    a, b, c = np.arange(8, dtype="uint8"), np.zeros(2, "int32"), np.zeros(8, "uint8")
    assert call(build(text), a, b, c) == 0
    assert b.tolist() == a.view("int32").tolist() and c.tolist() == a.tolist()


def test_registers_of_one_llvm_type_keep_the_types_of_their_values() -> None:
    """`a + b` is the same instruction on int8 and uint8; its result is compared and widened in two
    ways."""
    a = np.array([100, -100, 127, -128, 50], "int8")
    agree(
        """
@T.prim_func
def main(A: T.Buffer((5,), "int8"), B: T.Buffer((5,), "int32"), C: T.Buffer((5,), "int32"),
         n: T.int32):
    for i in range(5):
        a = A[i]
        b = T.cast(n, "int8")
        c = T.cast(n, "uint8")
        B[i] = T.cast(a + b, "int32") + T.cast(b > a, "int32")
        C[i] = T.cast(T.cast(a, "uint8") + c, "int32") + T.cast(c > T.cast(a, "uint8"), "int32")
""",
        a, np.zeros(5, "int32"), np.zeros(5, "int32"), 200,
    )  # fmt: skip


def test_products_of_unsigned_elements_may_be_negative() -> None:
    """An index does not overflow; the square of a uint32 does not fit in an int64."""
    a = np.array([(1 << 32) - 1, 1 << 31, 7, 3, 0], "uint32")
    agree(
        """
@T.prim_func
def main(A: T.Buffer((5,), "uint32"), B: T.Buffer((5,), "int64"), C: T.Buffer((5,), "int64")):
    for i in range(5):
        a = T.cast(A[i], "int64")
        B[i] = a * a // T.int64(3) + (a * T.int64(4294967295) + a * T.int64(9)) % T.int64(5)
        C[i] = (a + a) // T.int64(3) * T.int64(i)
""",
        a, np.zeros(5, "int64"), np.zeros(5, "int64"),
    )  # fmt: skip
