"""Ways to call a kernel: tensors by DLPack, names, outputs that are left out, bound arguments."""

from __future__ import annotations

import ctypes
import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from measure.programs import failing, matmul, scale

from metasched.errors import KernelError
from metasched.ir.dtype import DType
from metasched.runtime import quick
from metasched.runtime.build import build
from metasched.runtime.dlpack import _Tensor, _Versioned
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse

CODES = {"i": 0, "u": 1, "f": 2, "b": 6,
         "bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}  # fmt: skip


class _Older(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Tensor:
    """A tensor of a library that metasched does not know: its memory is had by DLPack alone.

    `changes` are fields of the description that differ from the array's.
    """

    def __init__(self, array, versioned=False, flags=0, major=1, strides=True, **changes):
        self.array, self.versioned = array, versioned
        kind = array.dtype.kind
        code = CODES.get(array.dtype.name, CODES.get(kind, 99))
        self.shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        steps = [s // array.itemsize for s in array.strides]
        self.strides = (ctypes.c_int64 * array.ndim)(*steps)
        given = {
            "data": array.__array_interface__["data"][0], "device": 1, "ndim": array.ndim,
            "code": code, "bits": 8 * array.itemsize, "lanes": 1, "shape": self.shape,
            "strides": self.strides if strides else None,
        }  # fmt: skip
        tensor = _Tensor(**{**given, **changes})
        self.managed = (
            _Versioned(major=major, flags=flags, tensor=tensor) if versioned else _Older(tensor)
        )

    def __dlpack__(self, **options):
        if not self.versioned and options:
            raise TypeError("this library is older than max_version")
        name = b"dltensor_versioned" if self.versioned else b"dltensor"
        return new_capsule(ctypes.addressof(self.managed), name, None)


@pytest.fixture(scope="module")
def kernel():
    return build(matmul(16))


def args(n=16, dtype="float32"):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (n, n)).astype(dtype) for _ in range(2))
    return a, b, np.full((n, n), 77, dtype)


@pytest.mark.parametrize("versioned", [False, True])
def test_tensors_are_used_where_they_lie(kernel, versioned):
    a, b, c = args()
    kernel(*(Tensor(x, versioned) for x in (a, b, c)))
    assert np.array_equal(c, a @ b)
    c[...] = 0
    kernel(a, Tensor(b, versioned, strides=False), c)
    assert np.array_equal(c, a @ b)


VIEW = """
@T.prim_func
def twice(a: T.handle, b: T.handle):
    s0, s1 = T.int64(), T.int64()
    n, m = T.int64(), T.int64()
    A = T.match_buffer(a, (n, m), "{0}", strides=[s0, s1])
    B = T.match_buffer(b, (n, m), "{0}")
    for i, j in T.grid(n, m):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[vi, vj] + A[vi, vj]
"""


def same(a, b):
    return a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int32", "int64",
              "float8_e4m3fn", "float8_e5m2"],
)  # fmt: skip
def test_views_of_every_type(dtype):
    run = build(parse(VIEW.format(dtype)))
    numpy_type = DType(dtype).numpy
    x = np.arange(24).reshape(4, 6).astype(numpy_type)
    for view in (x, x.T, x[:, ::2], x[::2, 1:], x[:, ::-1], x[:0]):
        out = np.zeros(view.shape, numpy_type)
        run(Tensor(view), Tensor(out, versioned=True))
        assert same(out, view + view)
        made = run(Tensor(view))
        assert made.dtype == x.dtype and same(made, out)


def test_bool_tensors(kernel):
    x = np.arange(256) % 3 == 0
    text = VIEW.format("bool").replace("A[vi, vj] + A[vi, vj]", "T.Not(A[vi, vj])")
    assert np.array_equal(build(parse(text))(Tensor(x.reshape(16, 16))), ~x.reshape(16, 16))


def test_a_byte_offset_counts(kernel):
    a, b, c = args()
    whole = np.concatenate([a, a * 2])
    kernel(Tensor(whole, shape=(ctypes.c_int64 * 2)(16, 16), byte_offset=16 * 16 * 4), b, c)
    assert np.array_equal(c, 2 * a @ b)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": 2}, "lies in the memory of device 2; move it to the CPU"),
        ({"code": 5}, r"has elements of type32 \(code 5\) in 1 lanes"),
        ({"bits": 4}, "has elements of float4 in 1 lanes"),
        ({"lanes": 4}, "has elements of float32 in 4 lanes, which no program has"),
        ({"code": 0}, r"argument 1 \(A\): has dtype int32, expected a NumPy array of float32"),
        ({"versioned": True, "major": 2}, "has version 2 of DLPack; only version 1 can be read"),
        ({"data": 4}, ""),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(kernel, changes, message):
    a, b, c = args()
    before = c.copy()
    if "data" in changes:  # an address that is not aligned to the item size
        raw = np.zeros(16 * 16 * 4 + 1, np.uint8)
        changes, message = {"data": raw.ctypes.data + 1}, "is not aligned to its item size"
    with pytest.raises(KernelError, match=rf"main: argument 1 \(A\): .*{message}|{message}"):
        kernel(Tensor(a, **changes), b, c)
    assert np.array_equal(c, before)


def test_a_tensor_that_is_read_only_is_not_written(kernel):
    a, b, c = args()
    kernel(Tensor(a, versioned=True, flags=1), b, c)
    with pytest.raises(KernelError, match=r"argument 3 \(C\): is written .*read-only"):
        kernel(a, b, Tensor(c, versioned=True, flags=1))


def test_a_library_that_gives_no_memory_says_why(kernel):
    class Stubborn:
        def __dlpack__(self, **options):
            raise BufferError("it requires a gradient")

    class Strange:
        def __dlpack__(self, **options):
            return 3

    a, b, c = args()
    with pytest.raises(KernelError, match=r"\(B\): cannot be read by DLPack: it requires a grad"):
        kernel(a, Stubborn(), c)
    with pytest.raises(KernelError, match=r"\(B\): gives no DLPack capsule but int"):
        kernel(a, Strange(), c)


def test_a_tensor_of_the_other_sign_is_refused(kernel):
    """PyTorch's `_neg_view` and the imaginary part of `conj()` give the memory of the opposite."""

    class Negated(Tensor):
        def is_neg(self):
            return True

    a, b, c = args()
    with pytest.raises(KernelError, match=r"\(A\): has the values .*; pass its resolve_neg\(\)"):
        kernel(Negated(a), b, c)


def test_tensors_that_overlap_are_refused(kernel):
    a, b, _ = args()
    with pytest.raises(KernelError, match=r"\(C\): is written by the kernel and overlaps"):
        kernel(Tensor(a), Tensor(b), Tensor(a))


def test_arguments_by_name(kernel):
    a, b, c = args()
    kernel(C=c, A=a, B=Tensor(b))
    assert np.array_equal(c, a @ b)
    c[...] = 0
    kernel(a, C=c, B=b)
    assert np.array_equal(c, a @ b)
    for call, message in (
        (lambda: kernel(a, b, c, D=a), "no parameter is called 'D'; there are A, B, C"),
        (lambda: kernel(a, b, A=a), r"argument 1 \(A\): is given twice"),
        (lambda: kernel(B=b, C=c), "takes 3 arguments .*, 2 given; A must be given"),
        (lambda: kernel(), "0 given; A, B must be given, outputs alone may be left out"),
    ):
        with pytest.raises(KernelError, match=message):
            call()


def test_outputs_that_are_left_out_are_returned(kernel):
    a, b, _ = args()
    made = kernel(a, b)
    assert type(made) is np.ndarray and np.array_equal(made, a @ b)
    assert made.__array_interface__["data"][0] % 64 == 0
    assert np.array_equal(kernel(B=b, A=Tensor(a)), a @ b)


TWO = """
@T.prim_func
def two(a: T.handle, k: T.int32, b: T.handle, c: T.handle):
    n = T.int32()
    A = T.match_buffer(a, (n, 4), "float32")
    B = T.match_buffer(b, (n * 2,), "float32")
    C = T.match_buffer(c, (n + k,), "int32")
    for i in range(n):
        with T.block("B"):
            vi = T.axis.spatial(n, i)
            B[vi * 2] = B[vi * 2] + A[vi, 1]
    for i in range(n + k):
        with T.block("C"):
            vi = T.axis.spatial(n + k, i)
            C[vi] = vi
"""


def test_several_outputs_with_shapes_from_the_others():
    run = build(parse(TWO))
    a = np.arange(12, dtype=np.float32).reshape(3, 4)
    b, c = run(a, 2)
    assert np.array_equal(c, np.arange(5)) and c.dtype == np.int32
    assert np.array_equal(b, [1, 0, 5, 0, 9, 0])  # what was left out starts as zeros
    given = np.ones(6, np.float32)
    only = run(a, 2, given)
    assert np.array_equal(only, c) and np.array_equal(given, [2, 1, 6, 1, 10, 1])
    assert np.array_equal(run(a, k=2, C=c), b)
    with pytest.raises(KernelError, match="would have the shape"):
        run(a, -9)
    with pytest.raises(KernelError, match=r"argument 1 \(A\): has dtype float64"):
        run(a.astype("float64"), 2)


def test_an_output_of_unknown_extent_must_be_given():
    text = (
        TWO.replace("(n, 4)", "(8, 4)").replace("range(n)", "range(3)").replace("(n, i)", "(3, i)")
    )
    run = build(parse(text))
    a = np.zeros((8, 4), np.float32)
    with pytest.raises(KernelError, match=r"\(B\): cannot be left out: .* do not determine n"):
        run(a, 1)
    assert run(a, 1, np.zeros(4, np.float32)).shape == (3,)


def test_an_output_with_strides_must_be_given():
    text = (
        VIEW.format("float32")
        .replace("strides=[s0, s1]", "")
        .replace('(n, m), "float32")\n    for', '(n, m), "float32", strides=[s0, s1])\n    for')
    )
    run = build(parse(text))
    x = np.ones((2, 3), np.float32)
    with pytest.raises(KernelError, match="has strides of its own and cannot be left out"):
        run(x)
    out = np.zeros((3, 2), np.float32)
    run(x, Tensor(out.T))
    assert np.array_equal(out, np.full((3, 2), 2))


def test_an_output_whose_elements_share_memory_is_refused():
    """Each order of the stores would leave another result."""
    text = (
        VIEW.format("float32")
        .replace("strides=[s0, s1]", "")
        .replace('(n, m), "float32")\n    for', '(n, m), "float32", strides=[s0, s1])\n    for')
    )
    run = build(parse(text))
    x, view = np.ones((3, 4), np.float32), np.lib.stride_tricks.as_strided
    for steps in ((0, 4), (4, 4), (8, 4), (12, 4), (-8, 4), (4, 8)):
        out = view(np.zeros(64, np.float32)[20:], (3, 4), steps)
        with pytest.raises(KernelError, match=r"\(B\): .* its strides .* give elements the same"):
            run(x, out)
    memory = np.zeros(64, np.float32)
    for steps in ((16, 4), (4, 12), (-16, 4), (80, -20), (12, 16), (8, 12)):
        out = view(memory[20:], (3, 4), steps)
        memory[:] = 0
        run(x, out)
        assert (out == 2).all()
        assert (memory == 2).sum() == 12
    with pytest.raises(KernelError, match=r"strides \(14, 4\) bytes, which are no multiples"):
        run(x, view(memory, (3, 4), (14, 4)))


def test_bound_arguments_run_again_and_again(kernel):
    a, b, c = args()
    bound = kernel.bind(a, Tensor(b), C=c)
    assert bound() is None and np.array_equal(c, a @ b)
    a += 1
    bound()
    assert np.array_equal(c, a @ b)
    assert repr(bound).startswith("<Bound <Kernel main(A, B, C)") and bound.kernel is kernel
    with pytest.raises(KernelError, match="bind takes all arguments, outputs too"):
        kernel.bind(a, b)
    with pytest.raises(KernelError, match=r"argument 2 \(B\): has shape"):
        kernel.bind(a, b[:2], c)


def test_bound_arguments_are_kept_alive(kernel):
    a, b, c = args()
    tensor = Tensor(a.copy())
    watch = weakref.ref(tensor.array)
    bound = kernel.bind(tensor.array, b, c)
    del tensor
    gc.collect()
    assert watch() is not None
    bound()
    assert np.array_equal(c, a @ b)
    del bound
    assert watch() is None


def test_a_bound_call_that_fails_says_so():
    bound = build(scale(extra=failing())).bind(*np.zeros((2, 256), np.float32))
    with pytest.raises(KernelError, match="main: assertion failed: never true"):
        bound()


def test_tensors_can_be_timed(kernel):
    a, b, c = args()
    assert kernel.time(Tensor(a), b, c, repeats=2, min_repeat_ms=0).min > 0
    assert np.array_equal(c, a @ b)


def test_the_quick_check_sees_what_the_thorough_one_sees(kernel):
    a, b, c = args()
    check = kernel._check
    assert check.quick((a, b, c)) == check((a, b, c))
    for bad in (
        (a, b), (a, b, a), (a.T, b, c), (a[:8], b, c), (a.astype("f8"), b, c), (None, b, c),
        (a, b, np.broadcast_to(c[:1], (16, 16))), (Tensor(a), b, c),
    ):  # fmt: skip
        assert check.quick(bad) is None
    locked = a.copy()
    locked.flags.writeable = False
    assert check.quick((locked, b, c)) == check((locked, b, c))
    assert check.quick((a, b, locked)) is None


def test_the_quick_check_knows_numbers_and_symbols():
    a = np.ones((3, 4), np.float32)
    b, c = np.ones(6, np.float32), np.ones(5, np.int32)
    plain = TWO.replace("(n * 2,)", "(n,)").replace("vi * 2", "vi").replace("(n + k,)", "(k,)")
    kernel = build(parse(plain.replace("range(n + k)", "range(k)").replace("(n + k, i)", "(k, i)")))
    check, b = kernel._check, b[:3]
    assert check.quick((a, 5, b, c)) == check((a, 5, b, c))
    kernel(a, 5, b, c)
    assert np.array_equal(c, np.arange(5)) and np.array_equal(b, [2, 2, 2])
    for bad in (
        (a, 5, b[:2], c), (a, 4, b, c), (a, 5.0, b, c), (a, True, b, c), (a, 1 << 31, b, c),
        (a[:2], 5, b, c), (a[0], 5, b, c), (a, 5, b, c.astype("f4")), (a, 5, a.reshape(-1)[:3], c),
    ):  # fmt: skip
        assert check.quick(bad) is None
        with pytest.raises(KernelError):
            check(bad)
    assert build(parse(TWO))._check.quick((a, 2, np.ones(6, np.float32), c)) is None  # n * 2


@pytest.mark.parametrize("way", ["read_address", "stated_address"])
def test_both_ways_to_an_address_agree(way):
    x = np.arange(60, dtype=np.float64).reshape(3, 4, 5).astype(ml_dtypes.bfloat16)
    for part in (x, x[1:], x[:, ::-1], x.T, x[0, 0, 1:2]):
        assert getattr(quick, way)(part) == part.__array_interface__["data"][0]


def test_without_cpython_addresses_are_those_that_numpy_states(monkeypatch):
    monkeypatch.setattr(quick.sys.implementation, "name", "other")
    assert quick.way_to_address() is quick.stated_address


SCALED = """
@T.prim_func
def scaled(A: T.Buffer((512,), "float32"), B: T.Buffer((512,), "float32")):
    for i in range(512):
        with T.block("B"):
            vi = T.axis.spatial(512, i)
            B[vi] = A[vi] * T.float32(2)
"""


def test_an_argument_that_is_requested_ahead_is_not_written():
    sch = Schedule(parse(SCALED))
    sch.annotate(sch.get_block("B"), "prefetch_ahead", 64)
    kernel = build(sch.mod)
    assert "prefetch" in kernel.llvm_ir
    a = np.arange(512, dtype=np.float32)
    a.flags.writeable = False
    assert np.array_equal(kernel(a), a * 2)
