"""Python code that a decorated function may use: functions, macros, lambdas. Texts run none."""

from __future__ import annotations

import functools
import math
from types import SimpleNamespace

import numpy as np
import pytest

import metasched as ms
from metasched.errors import ParseError, TraceError
from metasched.ir.equal import assert_structural_equal
from metasched.ir.expr import Add, Cast, FloatImm, IntImm, Mul, as_int
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.op import Shuffle
from metasched.ir.stmt import BufferStore, Evaluate, For, IfThenElse, LetStmt
from metasched.ir.visit import blocks_of, walk
from metasched.script import parse, script
from metasched.script import tir as T

WIDTH = 128


def twice(x):
    return x * 2


def fails(x):
    raise ZeroDivisionError(f"no value for {x!r}")


def stores(func: PrimFunc) -> list[BufferStore]:
    return [s for s in walk(func.body) if isinstance(s, BufferStore)]


def results(func: PrimFunc, *args: np.ndarray) -> tuple[np.ndarray, ...]:
    """The arguments after the function; the printed function is the same program."""
    assert_structural_equal(parse(script(func)), func)
    copies = tuple(a.copy() for a in args)
    run(func, *copies)
    return copies


# ---- functions of Python's


def test_a_function_that_returns_an_expression():
    @T.prim_func
    def func(A: T.Buffer((8,), "float32")):
        for i in range(8):
            with T.block("A"):
                vi = T.axis.remap("S", [i])
                A[vi] = twice(A[vi]) + twice(3)

    assert isinstance(stores(func)[0].value, Add) and isinstance(stores(func)[0].value.a, Mul)
    (after,) = results(func, np.arange(8, dtype="float32"))
    np.testing.assert_array_equal(after, np.arange(8) * 2 + 6)


def test_functions_that_return_tuples_and_take_buffers():
    def layout(i, j):
        return i // 4, (i % 4) * 4 + j

    def corner(buffer, i):
        return buffer[i, 0]

    @T.prim_func
    def func(A: T.Buffer((8, 4), "int32"), B: T.Buffer((2, 16), "int32")):
        for i, j in T.grid(8, 4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                x, y = T.meta_var(layout(vi, vj))
                B[x, y] = A[vi, vj] + corner(A, vi)

    a = np.arange(32, dtype="int32").reshape(8, 4)
    _, after = results(func, a, np.zeros((2, 16), "int32"))
    np.testing.assert_array_equal(after, (a + a[:, :1]).reshape(2, 16))


def test_python_values_are_computed_at_decoration():
    shape, table = [2, 3], {"scale": (0.5, 2)}
    box = SimpleNamespace(dtype="float32", shape=shape)
    dtypes = [np.dtype("float32"), "float32", T.float32, np.float32]

    class Config:
        @property
        def extents(self):
            return tuple(n * 2 for n in shape)

    config = Config()

    @T.prim_func
    def func(
        A: T.Buffer([n * 2 for n in shape], dtypes[0]), B: T.Buffer(config.extents, box.dtype)
    ):
        for i, j in T.grid(*[2 * n for n in shape]):
            with T.block(f"b{math.prod(shape)}_{'x'.join(str(n) for n in shape):>4}"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * table["scale"][0] + sum(
                    [A[vi, k] for k in range(6) if k % 2]
                )

    assert list(blocks_of(func.body))[-1].block.name == "b6_ 2x3"
    assert func.buffers[0].dtype is func.buffers[1].dtype
    a = np.arange(24, dtype="float32").reshape(4, 6)
    _, after = results(func, a, np.zeros_like(a))
    np.testing.assert_array_equal(after, a * 0.5 + a[:, 1::2].sum(1, keepdims=True))


def test_lambdas_sets_and_dictionaries():
    @T.prim_func
    def func(A: T.Buffer((4,), "int32"), x: T.int32):
        square = lambda v, by=1: v * v + by  # noqa: E731
        low = {name: k for k, name in enumerate(("a", "b"))}
        A[0] = square(x) + low["b"]
        A[1] = functools.reduce(lambda a, b: a * b, [x, x, 2])
        A[2] = T.Select((lambda v: v == 3)(x), len({1, 2}), 0)
        A[3] = square(by=x, v=2)

    a = np.zeros(4, "int32")
    run(func, a, 3)
    assert a.tolist() == [11, 18, 2, 7]


def test_a_condition_of_python_values_chooses_at_decoration():
    def make(transposed: bool) -> PrimFunc:
        @T.prim_func
        def func(A: T.Buffer((4, 4), "int32")):
            if transposed:
                index = T.meta_var((1, 0))
                A[0, 1] = 7
            else:
                index = T.meta_var((0, 1))
            A[index[0], index[1]] = 5 if transposed else 6

        return func

    assert not any(isinstance(s, IfThenElse) for s in walk(make(True).body))
    assert [as_int(s.value) for s in stores(make(True))] == [7, 5]
    assert [as_int(s.value) for s in stores(make(False))] == [6]
    written = parse("@T.prim_func\ndef f():\n    if True:\n        T.evaluate(1)")
    assert isinstance(written.root.body, IfThenElse)


def test_statements_and_nothing_from_functions():
    seen = []

    def store(buffer, value):
        return BufferStore(buffer, T.cast(value, buffer.dtype), (IntImm("int32", 0),))

    @T.prim_func
    def func(A: T.Buffer((4,), "float32")):
        seen.append("read")
        store(A, 3)

    assert seen == ["read"] and stores(func)[0].value is FloatImm("float32", 3.0)


def test_an_exception_of_a_called_function_is_the_cause():
    with pytest.raises(ParseError, match=r"fails\(...\) raised ZeroDivisionError") as caught:

        @T.prim_func
        def func(A: T.Buffer((4,), "float32")):
            A[0] = 1.0 + fails(A[1])

    report = str(caught.value)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert "A[0] = 1.0 + fails(A[1])" in report and "no value for" in report
    shown, carets = report.splitlines()[1:3]
    assert shown[carets.index("^") : len(carets)] == "fails(A[1])"
    assert caught.value.line == int(shown.split("|")[0])


def test_a_truth_value_of_an_expression_is_the_cause():
    def positive(x):
        return x if x > 0 else -x

    with pytest.raises(ParseError, match="has no truth value") as caught:

        @T.prim_func
        def func(A: T.Buffer((4,), "float32")):
            A[0] = positive(A[1])

    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("value, shown", [(object(), "an object"), (None, "None"), ([1], "a list")])
def test_a_function_result_that_is_no_expression_is_refused(value, shown):
    def give(_):
        return value

    with pytest.raises(ParseError, match=rf"give\(...\) gives {shown}, which is no expression"):

        @T.prim_func
        def func(A: T.Buffer((4,), "float32")):
            A[0] = give(A[1])


def test_statements_of_a_function_precede_its_calling_statement():
    def count(A, by):
        T.buffer_store(A, A[0] + by, [0])
        return A[0] * 10

    def told(A):
        return T.evaluate(A[0])

    @T.prim_func
    def func(A: T.Buffer((8,), "int32")):
        for i in range(count(A, 1) - 15):
            count(A, 2)
            A[i + 1] = count(A, 3)
            told(A)

    def by_hand(a):
        a[0] += 1
        for i in range(a[0] * 10 - 15):
            a[0] += 2
            a[0] += 3
            a[i + 1] = a[0] * 10

    want = np.array([1, 0, 0, 0, 0, 0, 0, 0], "int32")
    (got,) = results(func, want)
    by_hand(want)
    assert got.tolist() == want.tolist() and want[0] == 27
    assert sum(isinstance(s, Evaluate) for s in walk(func.body)) == 2  # count(A, 2), told(A)


def test_functions_allocate_what_they_return():
    class Copy:
        def __init__(self, source):
            self.local = T.alloc_buffer(source.shape, source.dtype)

        @T.macro
        def load(self, source):
            N, M = T.meta_var(source.shape)
            for i, j in T.grid(N, M):
                with T.block("load"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    self.local[vi, vj] = source[vi, vj] + 1

    @T.prim_func
    def func(A: T.Buffer((4, 4), "int32"), B: T.Buffer((4, 4), "int32")):
        first = T.meta_var(Copy(A))
        first.load(A)
        second = T.meta_var(Copy(A))
        second.load(first.local)
        for i, j in T.grid(4, 4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = second.local[vi, vj]

    assert [b.name for b in func.root.alloc_buffers] == ["first", "second"]
    a = np.arange(16, dtype="int32").reshape(4, 4)
    np.testing.assert_array_equal(results(func, a, np.zeros_like(a))[1], a + 2)
    sch = ms.Schedule(func)
    sch.compute_inline("load")
    sch.compute_inline("load_1")


def test_words_that_open_scopes_are_refused_in_python_functions():
    for word, given in ((T.block, ()), (T.grid, (4,)), (T.serial, (4,)), (T.init, ())):

        def open_scope(word=word, given=given):
            word(*given)

        with pytest.raises(ParseError, match="opens a scope, which a Python function") as caught:

            @T.prim_func
            def func():
                with T.block("b"):
                    open_scope()

        assert "put these statements under @T.macro" in str(caught.value)
    with pytest.raises(ParseError, match="it has a meaning only inside a function decorated with"):
        T.evaluate(0)


def test_starred_names_and_lists_of_indices():
    dims = (3, 4)

    @T.macro
    def each(*outer, right, **more):
        *vs, vr = T.axis.remap("SSR", [*outer, right])
        with T.init():
            more["into"][vs] = 0
        more["into"][vs] = more["into"][vs] + more["of"][(*vs, vr)]

    @T.prim_func
    def func(A: T.Buffer((*dims, 5), "int32"), B: T.Buffer(dims, "int32"), C: T.Buffer(dims)):
        for *spatial, reduction in T.grid(*A.shape):
            with T.block("B"):
                each(*spatial, right=reduction, of=A, into=B)
        for point in T.grid(*B.shape):
            with T.block("C"):
                vs = T.axis.remap("SS", point)
                first, *rest = T.meta_var((1.0, B[vs], 2.0))
                C[vs] = T.cast(rest[0], "float32") + first + rest[1]

    a = np.arange(60, dtype="int32").reshape(3, 4, 5)
    _, b, c = results(func, a, np.zeros((3, 4), "int32"), np.zeros((3, 4), "float32"))
    np.testing.assert_array_equal(b, a.sum(2))
    np.testing.assert_array_equal(c, a.sum(2) + 3)
    names = [s.var.name for s in walk(func.body) if isinstance(s, For)]
    assert names == ["spatial_0", "spatial_1", "reduction", "point_0", "point_1"]


# ---- texts


class Marked:
    """An object that records each access to it."""

    def __init__(self):
        self.ran = []

    def __call__(self, *_):
        self.ran.append("called")
        return 1

    def __getitem__(self, item):
        self.ran.append("indexed")
        return 1

    def __iter__(self):
        self.ran.append("unpacked")
        return iter((1,))

    def __add__(self, other):
        self.ran.append("added")
        return 1

    def __neg__(self):
        self.ran.append("negated")
        return 1

    def __bool__(self):
        self.ran.append("asked")
        return True

    def __format__(self, spec):
        self.ran.append("formatted")
        return "x"

    @property
    def computed(self):
        self.ran.append("read")
        return 1

    def method(self):
        self.ran.append("called")
        return 1


@T.macro
def zero(A, i):
    A[i] = 0


TEXTS = [
    "A[0] = mark(1)", "A[0] = mark[0]", "A[0] = T.max(*mark)", "A[0] = mark + 1", "A[0] = -mark",
    "A[0] = mark.computed", "A[0] = mark.method()", "T.block_attr({f'{mark}': 1})",
    "A[0] = twice(A[0])", "A[0] = partial(A[0])", "zero(A, 0)", "A[0] = [mark for k in (1,)][0]",
    "A[0] = (lambda: mark(1))()", "A[0] = sum(mark)", "A[0] = getattr(mark, 'computed')",
    "A[0] = __import__('os').getpid()", "A[0] = ().__class__.__base__", "A[0] = eval('mark(1)')",
    "A[0] = open('x')", "@T.macro\ndef inner(k):\n    A[k] = 1\ninner(0)", "A[0] = 'a'.join(mark)",
    "if mark:\n    A[0] = 1", "A[0] = 1 if mark else 2", "A[0] = mark and 1", "A[0] = not mark",
]  # fmt: skip


@pytest.mark.parametrize("body", TEXTS)
def test_texts_execute_nothing(body):
    mark = Marked()
    env = {"mark": mark, "twice": twice, "zero": zero, "partial": functools.partial(mark, 1)}
    lines = "\n".join("    " + line for line in body.splitlines())
    with pytest.raises(ParseError):
        parse(f'@T.prim_func\ndef f(A: T.Buffer((4,), "float32")):\n{lines}', env)
    assert not mark.ran


def test_traces_execute_nothing():
    @T.prim_func
    def func(A: T.Buffer((4, 4), "float32"), B: T.Buffer((4, 4), "float32")):
        for i, j in T.grid(4, 4):
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj]

    sch = ms.Schedule(func)
    sch.transform_layout("B", "A", lambda i, j: (j, i))
    text = sch.trace.to_json()
    for bad in ('"twice($0)"', '["twice", "$0"]', '["__import__", "os"]', '["Call", "twice", 1]'):
        with pytest.raises(TraceError, match="expression that cannot be read"):
            ms.Trace.from_json(text.replace('["$1", "$0"]', f'["$1", {bad}]'))


# ---- macros


def test_hygienic_macros_use_the_names_at_their_definition():
    x = WIDTH

    @T.macro
    def static(A, B):
        B[()] = A[x]

    @T.macro(hygienic=False)
    def dynamic(A, B):
        B[()] = A[x]

    @T.prim_func(s_tir=False)
    def func(A: T.Buffer((1024,), "int32"), B: T.Buffer((), "int32"), C: T.Buffer((), "int32")):
        for x in T.serial(10):
            static(A, B)
            dynamic(A, C)

    first, second = stores(func)
    assert as_int(first.value.indices[0]) == 128
    assert second.value.indices[0] is func.body.var


def test_blocks_of_macros_get_unused_names():
    @T.macro
    def copy(src, dst, *, shift=0):
        "Blocks, iterators and all."
        for i in T.serial(8):
            with T.block("copy"):
                vi = T.axis.remap("S", [i])
                dst[vi] = src[vi] + shift

    def build() -> PrimFunc:
        @T.prim_func
        def func(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32")):
            C = T.alloc_buffer((8,), "int32")
            copy(A, C)
            copy(C, B, shift=2)

        return func

    for func in (build(), build()):
        assert [r.block.name for r in blocks_of(func.root.body)] == ["copy", "copy_1"]
    a = np.arange(8, dtype="int32")
    np.testing.assert_array_equal(results(func, a, np.zeros_like(a))[1], a + 2)
    sch = ms.Schedule(func)
    sch.compute_inline("copy")
    np.testing.assert_array_equal(results(sch.mod["main"], a, np.zeros_like(a))[1], a + 2)


def test_macros_call_macros_and_end_at_python_conditions():
    @T.macro
    def fill(A, n):
        if n > 0:
            A[n - 1] = n
            fill(A, n - 1)

    @T.prim_func
    def func(A: T.Buffer((4,), "int32")):
        fill(A, 4)

    assert results(func, np.zeros(4, "int32"))[0].tolist() == [1, 2, 3, 4]


def test_macros_for_expressions():
    @T.macro
    def clamp(x, low, high):
        return T.min(T.max(x, low), high)

    @T.prim_func
    def func(A: T.Buffer((4,), "int32")):
        for i in T.serial(4):
            with T.block("A"):
                vi = T.axis.remap("S", [i])
                A[vi] = clamp(A[vi], 0, high=2) + 1

    (after,) = results(func, np.array([-1, 1, 2, 9], "int32"))
    assert after.tolist() == [1, 2, 3, 3]


def test_macros_of_classes_and_macros_inside_functions():
    class Store:
        def __init__(self, value):
            self.value = value

        @T.macro
        def __call__(self, A):
            A[0] = self.value

        @T.macro
        def at(self, A, i):
            A[i] = self.value

    five = Store(5)

    @T.prim_func
    def func(A: T.Buffer((4,), "int32"), x: T.int32):
        @T.inline
        def put(k, by=1):
            A[k] = x * by

        five.at(A, 1)
        put(2)
        put(3, by=2)

    a = np.zeros(4, "int32")
    run(func, a, 7)
    assert a.tolist() == [0, 5, 7, 14]


def test_names_bound_in_a_macro_stay_there():
    with pytest.raises(ParseError, match="'inner' is not defined"):

        @T.macro
        def bind(A):
            inner = A[0]
            A[1] = inner

        @T.prim_func
        def func(A: T.Buffer((4,), "int32")):
            bind(A)
            A[2] = inner


@T.macro
def broken(A):
    A[0] = absent


@T.macro
def endless(A):
    endless(A)


@T.macro
def two(A):
    A[0] = 1
    A[1] = 2


def test_an_error_in_a_macro_shows_the_line_of_the_macro():
    with pytest.raises(ParseError, match="'absent' is not defined") as caught:

        @T.prim_func
        def one(A: T.Buffer((4,), "int32")):
            broken(A)

    assert "A[0] = absent" in str(caught.value)
    assert "in the macro broken, called at" in str(caught.value)
    with pytest.raises(ParseError, match="macros are expanded 40 deep here: endless calls itself"):

        @T.prim_func
        def deep(A: T.Buffer((4,), "int32")):
            endless(A)

    with pytest.raises(ParseError, match="macro two: missing a required argument: 'A'"):

        @T.prim_func
        def less(A: T.Buffer((4,), "int32")):
            two()

    with pytest.raises(ParseError, match="the macro two is statements and cannot stand inside an"):

        @T.prim_func
        def inside(A: T.Buffer((4,), "int32")):
            A[0] = two(A)

    with pytest.raises(ParseError, match="the macro two is expanded by a script"):
        two(None)
    with pytest.raises(ParseError, match="T.macro reads a function, not int"):
        T.macro(3)


# ---- words and types that users of TVM bring


def test_let_annotations_with_a_type():
    dtype = "float64"

    @T.prim_func(s_tir=False)
    def func(A: T.Buffer((4,), "float32")):
        a: T.let = A[0]
        b: T.let[T.float32] = A[1]
        c: T.let[np.float32] = A[2]
        d: dtype = 1.5
        A[3] = a + b + c + T.cast(d, "float32")

    lets = [s for s in walk(func.body) if isinstance(s, LetStmt)]
    assert [(s.var.name, s.var.dtype) for s in lets] == [
        ("a", "float32"), ("b", "float32"), ("c", "float32"), ("d", "float64"),
    ]  # fmt: skip


def test_an_empty_type_is_void():
    @T.prim_func
    def func(A: T.Buffer((8,), "float32")):
        T.evaluate(T.call_extern("f", A.data, dtype=""))

    call = func.root.body.value
    assert call.dtype == "void" and call.op.name == "call_extern"
    assert_structural_equal(parse(script(func)), func)


def test_keywords_of_pointers():
    @T.prim_func(s_tir=False)
    def func(A: T.Buffer((8,), "float32")):
        T.evaluate(T.tvm_access_ptr(T.type_annotation("float32"), A.data, 2, 4, 1))
        T.evaluate(T.tvm_access_ptr(
            ptype="float32", data=A.data, offset=2, extent=4, rw_mask=1, dtype="handle"
        ))  # fmt: skip

    first, second = func.body.items
    assert first.value is second.value and first.value.op.name == "access_ptr"


def test_constants_take_the_type_of_the_buffer_that_holds_them():
    @T.prim_func
    def func(A: T.Buffer((2,), "float16")):
        A[0] = T.float32(0.5)
        A[1] = T.float32(float("inf"))

    assert stores(func)[0].value is FloatImm("float16", 0.5)
    with pytest.raises(ParseError, match="of type float32 is stored where float16 is kept"):

        @T.prim_func
        def inexact(A: T.Buffer((2,), "float16")):
            A[0] = T.float32(0.1)


def test_device_words_build_operations():
    text = """
@T.prim_func(s_tir=False)
def func(A: T.Buffer((64,), "float16"), s: T.int32):
    T.metal.simdgroup_load(A.data, index=s, ptr=A.access_ptr("r"), stride=8)
    T.metal.make_filled_simdgroup_matrix(A.data, 0, value=T.float32(0), col=8, row=8)
    T.evaluate(T.ptx.mma.legacy("m16n8k16", "row", A.data, s, dtype="float16"))
    T.evaluate(T.ptx.ldmatrix_legacy(True, 4, ".b16", A.data, s, dtype="float16"))
    T.evaluate(T.cuda.mma_fill_legacy(8, A.data, s, dtype="float16"))
    T.evaluate(T.tvm_call_packed("f", T.tvm_stack_make_shape(4, dtype="handle"), dtype="int32"))
    T.evaluate(T.call_intrin("int32", "tirx.reinterpret", T.float32(1)))
"""
    func = parse(text)
    names = [s.value.op.name for s in func.body.items]
    assert names == [
        "simdgroup_load", "make_filled_simdgroup_matrix", "ptx_mma", "ptx_ldmatrix", "mma_fill",
        "call_packed", "reinterpret",
    ]  # fmt: skip
    load = func.body.items[0].value
    assert [as_int(a) for a in load.args[3:]] == [8, 8, 8, 0]
    assert_structural_equal(parse(script(func)), func)
    for wrong, message in {
        "T.metal.simdgroup_load(A.data, index=s)": "simdgroup_load needs the argument 'ptr'",
        "T.metal.simdgroup_load(A.data, d=s)": "simdgroup_load has no argument 'd' here",
        "T.exp(s, base=2)": "exp has no argument 'base' here",
        "T.metal.simdgroup(1)": "T has no word 'metal.simdgroup'",
        "T.vectorised": "T has no word 'vectorised'; did you mean vectorized",
    }.items():
        with pytest.raises(ParseError, match=message):
            parse(f"@T.prim_func\ndef f(A: T.Buffer(4), s: T.int32):\n    T.evaluate({wrong})")


def test_halves_of_vectors():
    @T.prim_func(s_tir=False)
    def func(A: T.Buffer((8,), "int8"), B: T.Buffer((8,), "int8")):
        v = A.vload([0], "int8x8")
        B[0:4] = T.vectorhigh(v, dtype="int8x4")
        B[4:8] = T.vectorlow(v, dtype="int8x4")

    assert sum(isinstance(e, Shuffle) for e in walk(func.body)) == 2
    a = np.arange(8, dtype="int8")
    assert results(func, a, np.zeros_like(a))[1].tolist() == [4, 5, 6, 7, 0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_floats_of_eight_bits_are_interpreted_and_built(dtype):
    @T.prim_func
    def func(A: T.Buffer((4,), dtype), B: T.Buffer((4,), "float32")):
        for i in range(4):
            with T.block("B"):
                vi = T.axis.remap("S", [i])
                B[vi] = T.Cast("float32", A[vi] * A[vi])

    a = np.array([0.5, 1, 2, 4], func.buffers[0].dtype.numpy)
    assert results(func, a, np.zeros(4, "float32"))[1].tolist() == [0.25, 1, 4, 16]
    out = np.zeros(4, "float32")
    ms.build(func)(a, out)
    assert out.tolist() == [0.25, 1, 4, 16]


# ---- factories of intrinsics


def dot(lanes: int, in_dtype: str, out_dtype: str, *, mul: bool = True):
    """A description and an implementation, from parameters and helpers, as users of TVM write."""

    def widen(x):
        return Cast(out_dtype, x) if in_dtype != out_dtype else x

    def swap(i, j, flag):
        return (j, i) if flag else (i, j)

    zero = IntImm("int32", 0).astype(out_dtype)
    offset = lambda tx, stride: stride * (tx // 2) + tx % 2  # noqa: E731

    @T.prim_func
    def desc(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, swap(lanes, 1, True), in_dtype, offset_factor=1)
        B = T.match_buffer(b, (1, lanes), in_dtype, offset_factor=1)
        C = T.match_buffer(c, (1,), out_dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0], A[0:1, 0:lanes], B[0:1, 0:lanes])
            T.writes(C[0])
            for k in T.serial(lanes):
                with T.sblock("update"):
                    vk = T.axis.remap("R", [k])
                    x, y = T.meta_var(swap(vk, 0, True))
                    C[0] += widen(A[x, y]) * widen(B[x, y])

    @T.prim_func
    def impl(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, swap(lanes, 1, True), in_dtype, offset_factor=1)
        B = T.match_buffer(b, (1, lanes), in_dtype, offset_factor=1)
        C = T.match_buffer(c, (1,), out_dtype, offset_factor=1)
        with T.sblock("root"):
            T.reads(C[0], A[0:1, 0:lanes], B[0:1, 0:lanes])
            T.writes(C[0])
            C[0] = C[0] + functools.reduce(
                lambda x, y: x + y,
                [widen(A[0, k]) * widen(B[0, offset(k, 2)]) for k in range(lanes)],
                zero,
            )

    return desc, impl


def test_factories_of_intrinsics_tensorize_a_program():
    ms.TensorIntrin.register("test.macros.dot4", *dot(4, "int8", "int32"))

    @T.prim_func
    def func(
        A: T.Buffer((6, 8), "int8"), B: T.Buffer((5, 8), "int8"), C: T.Buffer((6, 5), "int32")
    ):
        for i, j, k in T.grid(6, 5, 8):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = 0
                C[vi, vj] += T.Cast("int32", A[vi, vk]) * T.Cast("int32", B[vj, vk])

    sch = ms.Schedule(func)
    block = sch.get_block("C")
    _, inner = sch.split(sch.get_loops(block)[2], [None, 4])
    sch.decompose_reduction(block, sch.get_loops(block)[2])
    sch.tensorize(inner, "test.macros.dot4")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (n, 8)).astype("int8") for n in (6, 5))
    *_, c = results(sch.mod["main"], a, b, np.zeros((6, 5), "int32"))
    np.testing.assert_array_equal(c, a.astype("int32") @ b.T.astype("int32"))
