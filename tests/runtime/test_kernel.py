"""Kernels: right results, and a refusal that names the argument for everything unsafe."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from measure.programs import accumulate, elementwise, failing, matmul, scale, under_root

import metasched.runtime.cpu as cpu_device
from metasched.errors import BuildError, KernelError, TargetError
from metasched.ir.buffer import Buffer
from metasched.ir.dtype import DType
from metasched.ir.expr import Var
from metasched.ir.func import IRModule, PrimFunc
from metasched.ir.stmt import BufferStore, For
from metasched.runtime.build import KernelModule, build
from metasched.target import Target


@pytest.fixture(scope="module")
def kernel():
    return build(matmul(16))


def args(n=16, dtype="float32"):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (n, n)).astype(dtype) for _ in range(2))
    return a, b, np.full((n, n), 77, dtype)


def test_result_is_right(kernel):
    a, b, c = args()
    assert kernel(a, b, c) is None
    assert np.array_equal(c, a @ b)


@pytest.mark.parametrize(
    ("dtype", "numpy_type"),
    [(t, t) for t in ("float64", "int8", "int16", "int32", "int64", "uint8", "float16")]
    + [(t, getattr(ml_dtypes, t)) for t in ("bfloat16", "float8_e4m3fn", "float8_e5m2")],
)
def test_every_type_travels(dtype, numpy_type):
    run = build(elementwise(lambda x: x + x, dtype))
    x = np.arange(256).astype(numpy_type)
    y = np.zeros_like(x)
    run(x, y)
    assert y.dtype == x.dtype and np.array_equal(y, x + x, equal_nan=x.dtype.itemsize == 1)


def test_bool_travels():
    run = build(elementwise(lambda x: x, "bool"))
    x = np.arange(256) % 3 == 0
    y = np.zeros(256, bool)
    run(x, y)
    assert np.array_equal(x, y)


def readonly(x):
    x = x.copy()
    x.flags.writeable = False
    return x


def misaligned(x):
    raw = np.zeros(x.nbytes + 1, np.uint8)
    out = raw[1:].view(x.dtype).reshape(x.shape)
    out[...] = x
    return out


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a, b, c: (a,), "main takes 3 arguments (A, B, C), 1 given; B must be given"),
        (lambda a, b, c: (a, b, c, c), "main takes 3 arguments (A, B, C), 4 given"),
        (lambda a, b, c: (a, b.tolist(), c), "argument 2 (B): expected a NumPy array of float32 "
         '(16, 16), got list; pass numpy.asarray(..., "float32")'),
        (lambda a, b, c: (None, b, c), "argument 1 (A): expected a NumPy array of float32 "
         "(16, 16), got NoneType"),
        (lambda a, b, c: (a.astype("float64"), b, c), "argument 1 (A): has dtype float64, "
         'expected a NumPy array of float32 (16, 16); pass its astype("float32")'),
        (lambda a, b, c: (a, b, c.astype("float64")), "argument 3 (C): has dtype float64, "
         "expected a NumPy array of float32 (16, 16)"),
        (lambda a, b, c: (a, b.astype(">f4"), c), "argument 2 (B): has dtype >f4"),
        (lambda a, b, c: (a[:8], b, c), "argument 1 (A): has shape (8, 16), expected"),
        (lambda a, b, c: (a.reshape(-1), b, c), "argument 1 (A): has 1 dimensions, expected"),
        (lambda a, b, c: (np.ma.masked_equal(a, 1), b, c), "argument 1 (A): is a masked array, and "
         "a kernel knows no masks; pass its filled() or its data"),
        (lambda a, b, c: (a, b, np.ma.array(c)), "argument 3 (C): is a masked array"),
        (lambda a, b, c: (a.T, b, c), "argument 1 (A): has strides (4, 64) bytes, expected a "
         "compact row-major array; pass numpy.ascontiguousarray"),
        (lambda a, b, c: (a, b, c.T), "argument 3 (C): has strides (4, 64) bytes, expected a "
         "compact row-major array; pass a compact array and copy it back, or declare the strides"),
        (lambda a, b, c: (a, b, readonly(c)), "argument 3 (C): is written by the kernel, but the "
         "array is read-only; pass a copy"),
        (lambda a, b, c: (misaligned(a), b, c), "argument 1 (A): is not aligned to its item size "
         "of 4 bytes; pass a copy"),
        (lambda a, b, c: (a, b, a), "argument 3 (C): is written by the kernel and overlaps "
         "argument 1 (A)"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(kernel, spoil, message):
    a, b, c = args()
    before = c.copy()
    with pytest.raises(KernelError) as caught:
        kernel(*spoil(a, b, c))
    assert message in str(caught.value)
    assert np.array_equal(c, before)


def test_overlap_of_parts_of_one_array(kernel):
    big = np.zeros((40, 16), np.float32)
    a = args()[0]
    with pytest.raises(
        KernelError, match=r"\(C\): .* overlaps argument 2 \(B\) in memory; pass a copy"
    ):
        kernel(a, big[:16], big[15:31])
    kernel(a, big[:16], big[16:32])
    kernel(a, a, big[:16])  # inputs may share memory


def test_read_only_inputs_are_fine(kernel):
    a, b, c = args()
    kernel(readonly(a), readonly(b), c)
    assert np.array_equal(c, a @ b)


@pytest.mark.parametrize("offset", [4, 16, 32, 48])
def test_arrays_aligned_to_their_items_only(kernel, offset):
    a, b, c = args()
    raw = np.zeros(c.nbytes + 64 + offset, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    out = raw[start : start + c.nbytes].view(np.float32).reshape(16, 16)
    kernel(a, b, out)
    assert np.array_equal(out, a @ b)


def test_many_threads_may_call_one_kernel(kernel):
    a, b, _ = args()
    wanted, failures = a @ b, []

    def work():
        for _ in range(50):
            c = np.zeros((16, 16), np.float32)
            kernel(a, b, c)
            if not np.array_equal(c, wanted):
                failures.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def symbolic():
    """B[i, j] = A[i, j] + A[i, j] over (n, m * 2), scaled by s."""
    n, m, s = Var("n"), Var("m"), Var("s", "float32")
    a = Buffer.of("A", (n, m * 2))
    b = Buffer.of("B", (n, m * 2))
    i, j = Var("i"), Var("j")
    body = For.serial(j, m * 2, BufferStore(b, a[i, j] * s, (i, j)))
    return PrimFunc((a, b, s), under_root(For.serial(i, n, body)))


def test_symbolic_extents_come_from_the_shapes():
    run = build(symbolic())
    for shape in ((3, 4), (5, 2), (0, 4), (4, 0), (1, 256)):
        x = np.random.default_rng(0).random(shape).astype("float32")
        y = np.zeros_like(x)
        run(x, y, 2.0)
        assert np.array_equal(y, x * 2)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 4), (4, 4)), "argument 2 (B): dimension 0 is 4, expected n = 3, as n is 3 by "
         "dimension 0 of A"),
        (((3, 4), (3, 6)), "argument 2 (B): dimension 1 is 6, expected m * 2 = 4"),
        (((3, 5), (3, 5)), "do not determine m"),
    ],
)  # fmt: skip
def test_inconsistent_extents_are_refused(shapes, message):
    run = build(symbolic())
    x, y = (np.zeros(s, np.float32) for s in shapes)
    with pytest.raises(KernelError) as caught:
        run(x, y, 1.0)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        ("int32", 1.5, "argument 3 (s): expected a number of type int32, got float"),
        ("int8", 128, "argument 3 (s): 128 does not fit in int8"),
        ("uint8", -1, "-1 does not fit in uint8"),
        ("float32", "1", "expected a number of type float32, got str"),
        ("int32", True, "got bool"),
        ("bool", 1, "expected a number of type bool, got int"),
        ("float32", 1e300, "argument 3 (s): 1e+300 does not fit in float32"),
        ("float32", -3.5e38, "-3.5e+38 does not fit in float32"),
        ("float16", 65520.0, "65520.0 does not fit in float16"),
        ("bfloat16", 10**39, "does not fit in bfloat16"),
        ("float8_e4m3fn", 465, "465 does not fit in float8_e4m3fn"),
        ("float64", 10**400, "does not fit in float64"),
        ("float64", np.longdouble("1e400"), "does not fit in float64"),
    ],
)
def test_scalars_are_checked(dtype, value, message):
    run = build(scaled(dtype))
    x = np.zeros(4, dtype)
    with pytest.raises(KernelError) as caught:
        run(x, x.copy(), value)
    assert message in str(caught.value)


def scaled(dtype):
    s = Var("s", dtype)
    a, b = Buffer.of("A", (4,), dtype), Buffer.of("B", (4,), dtype)
    i = Var("i")
    value = s if dtype == "bool" else a[i] + s
    return PrimFunc((a, b, s), under_root(For.serial(i, 4, BufferStore(b, value, (i,)))))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", -3), ("uint16", 40000), ("int64", 1 << 40), ("float64", 0.1), ("float32", 2),
     ("float16", 1.5), ("bfloat16", 2.5), ("int32", np.int64(7)), ("float32", np.float32(0.5)),
     ("float32", 3.4028235e38), ("float32", -np.inf), ("float16", 65519.0), ("float16", np.inf),
     ("float8_e4m3fn", 464), ("float8_e5m2", -0.3)],
)  # fmt: skip
def test_scalars_arrive(dtype, value):
    numpy_type = DType(dtype).numpy
    x, y = np.ones(4, numpy_type), np.zeros(4, numpy_type)
    build(scaled(dtype))(x, y, value)
    assert np.array_equal(y, x + np.asarray(value).astype(numpy_type))


def strided():
    a = Buffer.of("A", (3, 4), strides=(8, 1))
    b = Buffer.of("B", (3, 4))
    i, j = Var("i"), Var("j")
    body = For.serial(j, 4, BufferStore(b, a[i, j] + a[i, j], (i, j)))
    return PrimFunc((a, b), under_root(For.serial(i, 3, body)))


def test_declared_strides_are_held():
    run = build(strided())
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)
    out = np.zeros((3, 4), np.float32)
    run(wide[:, :4], out)
    assert np.array_equal(out, 2 * wide[:, :4])
    with pytest.raises(KernelError, match=r"strides \(16, 4\) bytes, expected \(8, 1\) elements"):
        run(wide[:, :4].copy(), out)


def test_failed_assertion_raises():
    run = build(scale(extra=failing()))
    x = np.zeros(256, np.float32)
    with pytest.raises(KernelError, match="main: assertion failed: never true"):
        run(x, x.copy())
    with pytest.raises(KernelError, match="never true"):
        run.time(x, x.copy())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"repeats": "x"}, "repeats is 'x', not an integer from 1"),
        ({"repeats": 0}, "repeats is 0, not an integer from 1"),
        ({"warmup": 1.5}, "warmup is 1.5, not an integer from 0"),
        ({"min_repeat_ms": None}, "min_repeat_ms is None, not a number from 0"),
    ],
)
def test_time_refuses_invalid_sample_settings(kernel, given, message):
    with pytest.raises(KernelError, match=message):
        kernel.time(*args(), **given)


def test_timing(kernel):
    t = kernel.time(*args(), warmup=1, repeats=np.int64(5), min_repeat_ms=5.0)
    assert len(t.samples) == 5 and 0 < t.min <= t.median and t.mean > 0 and t.iqr >= 0
    assert t.calls > 1 and "ms" in str(t)
    flushed = []
    t = kernel.time(*args(), repeats=3, before=lambda: flushed.append(1))
    assert t.calls == 1 and len(flushed) == 3
    with pytest.raises(KernelError, match="takes 3 arguments"):
        kernel.time()


def test_timing_accumulates_in_the_arrays():
    x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
    build(accumulate()).time(x, y, warmup=2, repeats=3, min_repeat_ms=0)
    assert y[0] == 5


def test_code_can_be_read(kernel):
    assert "define" in kernel.llvm_ir and "main" in kernel.asm
    assert repr(kernel) == f"<Kernel main(A, B, C) for {Target.native().mcpu}>"
    assert len(kernel.workload_hash) == 32


def test_building_modules():
    both = build(IRModule.of({"f": scale(2), "g": scale(3)}))
    assert isinstance(both, KernelModule) and list(both) == ["f", "g"] and len(both) == 2
    x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
    both.g(x, y)
    assert y[0] == 3 and both["f"].name == "f"
    with pytest.raises(KeyError, match="no kernel is called 'h'; there are f, g"):
        both["h"]
    with pytest.raises(AttributeError, match="there are f, g"):
        both.h
    named = build(scale(), name="twice")
    assert named.name == "twice"
    assert build(scale().with_attr("global_symbol", "sym")).name == "sym"


class Scheduled:
    mod = IRModule.of(scale())


def test_building_whatever_has_a_module():
    assert build(Scheduled()).name == "main"


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        (3, {}, "build takes a PrimFunc, an IRModule or a Schedule, not int"),
        (IRModule.of({}), {}, "has no functions"),
        (IRModule.of({"f": scale(), "g": scale()}), {"name": "x"}, "the module has 2"),
        (scale(), {"name": "no name"}, "not a C function name"),
    ],
)
def test_build_refuses_invalid_sources_and_options(source, options, message):
    with pytest.raises(BuildError, match=message):
        build(source, **options)


def test_a_target_that_this_machine_is_not():
    with pytest.raises(TargetError, match="cannot be loaded here"):
        build(scale(), target="nvidia/nvidia-v100")


def test_parallel_kernels_without_openmp_run_serially_and_say_so(monkeypatch):
    monkeypatch.setattr(cpu_device, "has_openmp", lambda: False)
    with pytest.warns(UserWarning, match="main has parallel loops but no OpenMP runtime"):
        run = build(matmul(8, parallel=True))
    assert not run.compiled.parallel
    a, b, c = args(8)
    run(a, b, c)
    assert np.array_equal(c, a @ b)


TEAM = """
import dataclasses
import os
import numpy as np
import metasched as ms
from metasched.script import parse
from metasched.target import Target
kernel = ms.build(parse('''
@T.prim_func
def f(A: T.Buffer((4096,), "float32"), B: T.Buffer((4096,), "float32")):
    for i in T.parallel(4096):
        B[i] = A[i] + T.float32(1)
'''), target=dataclasses.replace(Target.native(), num_cores=1))
before = len(os.listdir("/proc/self/task"))
a, b = np.arange(4096, dtype="float32"), np.zeros(4096, "float32")
kernel(a, b)
assert (b == a + 1).all()
print(len(os.listdir("/proc/self/task")) - before)
"""


def test_a_kernel_uses_no_more_threads_than_its_target_has_cores():
    shell = [sys.executable, "-c", TEAM]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(shell, capture_output=True, text=True, env=env, check=False)
    assert done.stdout.strip() == "0", done.stderr


def test_parallel_kernel():
    a, b, c = args(32)
    build(matmul(32, parallel=True))(a, b, c)
    assert np.array_equal(c, a @ b)


def test_zero_extents_do_nothing():
    x = np.zeros((0, 4), np.float32)
    build(symbolic())(x, x, 1.0)  # overlapping nothing with nothing is no overlap


def test_a_repeat_function_keeps_its_arrays_alive():
    """The values of the call are addresses: arrays that nobody else holds must not go."""
    kernel, arrays = build(scale()), [np.ones(256, np.float32), np.zeros(256, np.float32)]
    alive = [weakref.ref(array) for array in arrays]
    repeat = kernel.repeat(*arrays)
    del arrays
    gc.collect()
    assert repeat(3) > 0 and (alive[1]() == 2).all()
    del repeat
    gc.collect()
    assert alive[0]() is None and alive[1]() is None
    with pytest.raises(KernelError, match="never true"):
        build(scale(extra=failing())).repeat(np.ones(256, np.float32), np.zeros(256, np.float32))(1)
