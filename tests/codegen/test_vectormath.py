"""Mathematical functions: error bounds in units in the last place, edges, scalar equals vector."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
from codegen.kernels import agree, build, call

from metasched.ir.dtype import DType
from metasched.target import Target

N = 4096 * 4 + 3
AVX512 = Target.of({"kind": "cpu", "mcpu": "skylake-avx512"})
UNARY = """
@T.prim_func
def main(A: T.Buffer(({n},), "{dtype}"), B: T.Buffer(({n},), "{dtype}")):
    for i in T.{kind}({n}):
        with T.block("B"):
            vi = T.axis.spatial({n}, i)
            B[vi] = T.{name}(A[vi])
"""


def _erf(x: np.ndarray) -> np.ndarray:
    """2 * x / sqrt(pi) * exp(-x * x) * sum over n of (2 * x * x)**n / (1 * 3 * ... * (2 * n + 1)):
    all terms have one sign."""
    z = np.minimum(np.abs(x), 7)
    term = total = np.ones_like(z)
    for n in range(1, 170):
        term = term * (2 * z * z) / (2 * n + 1)
        total = total + term
    root = np.sqrt(np.longdouble("3.14159265358979323846264338327950288"))
    return np.copysign(2 * z / root * np.exp(-z * z) * total, x)


# name: (reference, range of float32 and largest error in ulp, the same for float64). The references
# compute in 80 bits or more.
BOUNDS = {
    "exp": (np.exp, (-87, 88), 1.1, (-708, 709), 1.0),
    "exp2": (np.exp2, (-125, 127), 1.2, (-1021, 1023), 1.1),
    "exp10": (lambda x: np.power(10.0, x), (-37, 38), 2.0, (-307, 308), 1.5),
    "log": (np.log, (1e-30, 1e30), 1.1, (1e-300, 1e300), 1.0),
    "log2": (np.log2, (1e-30, 1e30), 2.0, (1e-300, 1e300), 1.5),
    "log10": (np.log10, (1e-30, 1e30), 2.0, (1e-300, 1e300), 2.0),
    "expm1": (np.expm1, (-30, 88), 2.0, (-60, 709), 2.0),
    "log1p": (np.log1p, (-0.999, 1e6), 2.0, (-0.999, 1e6), 2.0),
    "tanh": (np.tanh, (-10, 10), 2.0, (-20, 20), 2.5),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 3.0, (-700, 700), 2.5),
    "erf": (_erf, (-4, 4), 2.0, (-6, 6), 2.0),
    "sin": (np.sin, (-(2.0**28), 2.0**28), 2.0, (-(2.0**30), 2.0**30), 1.5),
    "cos": (np.cos, (-(2.0**28), 2.0**28), 2.0, (-(2.0**30), 2.0**30), 1.5),
    "tan": (np.tan, (-(2.0**28), 2.0**28), 4.0, (-(2.0**30), 2.0**30), 3.0),
    "atan": (np.arctan, (-50, 50), 2.0, (-50, 50), 1.5),
    "asin": (np.arcsin, (-1, 1), 2.0, (-1, 1), 2.0),
    "acos": (np.arccos, (-1, 1), 1.5, (-1, 1), 1.5),
    "sinh": (np.sinh, (-89, 89), 2.0, (-710, 710), 2.5),
    "cosh": (np.cosh, (-89, 89), 2.0, (-710, 710), 2.0),
    "asinh": (np.arcsinh, (-1e6, 1e6), 3.0, (-1e9, 1e9), 3.0),
    "acosh": (np.arccosh, (1, 1e6), 3.0, (1, 1e9), 3.0),
    "atanh": (np.arctanh, (-1, 1), 3.0, (-1, 1), 3.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (1e-30, 1e30), 1.5, (1e-300, 1e300), 1.5),
    "sqrt": (np.sqrt, (1e-30, 1e30), 0.5, (1e-300, 1e300), 0.5),
}


def reference(name: str, x: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.asarray(BOUNDS[name][0](x.astype(np.longdouble)))


def _run(name: str, x: np.ndarray, kind: str, **options: Any) -> np.ndarray:
    out = np.zeros_like(x)
    text = UNARY.format(n=len(x), dtype=str(x.dtype), kind=kind, name=name)
    assert call(build(text, **options), x, out) == 0
    return out


def samples(low: float, high: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    half = N // 2
    spread = rng.uniform(low, high, half)
    if low > 0:
        spread = np.exp(rng.uniform(np.log(low), np.log(high), half))
    near = rng.uniform(max(low, -2), min(high, 2), N - half)
    near[::4] = np.exp(rng.uniform(-30, 0, len(near[::4])))
    return np.concatenate([spread, np.maximum(near, low)])


def ulps(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The errors of y in units in the last place of its type."""
    least = np.finfo(y.dtype).smallest_normal
    ulp = np.spacing(np.maximum(np.abs(exact.astype(y.dtype)), least))
    return (np.abs(y.astype(np.longdouble) - exact) / ulp).astype(np.float64)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_error_bound(name: str, dtype: str) -> None:
    (low, high), bound = BOUNDS[name][1:3] if dtype == "float32" else BOUNDS[name][3:5]
    x = samples(low, high).astype(dtype)
    y = _run(name, x, "vectorized")
    exact = reference(name, x)
    error = ulps(y, exact)
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (x[worst], y[worst], exact[worst], error[worst])
    np.testing.assert_array_equal(_run(name, x[:99], "serial"), y[:99])


EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1.0, 104.0, -104.0, 1.0, 90.0, -88.5, 129.0,
         -150.5, 40.0, -46.0, 0.5, -0.5, -89.3, 1e30, -1e30]  # fmt: skip
WIDE_EDGES = [1e-310, -1e-310, 709.5, 711.0, -744.0, -747.0, 1023.5, 1024.0, -1070.0, -1080.0,
              308.5, -320.0, -325.0, 1e22, 1e300, -1e300, 710.3, -710.4]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", BOUNDS)
def test_edges(name: str, dtype: str) -> None:
    x = np.array(EDGES if dtype == "float32" else EDGES + WIDE_EDGES, dtype)
    with np.errstate(all="ignore"):
        exact = reference(name, x).astype(dtype)
    y = _run(name, x, "vectorized")
    close = {"float32": (1e-6, 3e-45, 1e-37), "float64": (1e-15, 5e-324, 3e-308)}[dtype]
    np.testing.assert_allclose(y, exact, rtol=close[0], atol=close[1 + (name == "sigmoid")])
    zeros = [n for n in (3, 4) if not np.isnan(exact[n])]
    np.testing.assert_array_equal(np.signbit(y[zeros]), np.signbit(exact[zeros]))
    np.testing.assert_array_equal(_run(name, x, "serial"), y)


@pytest.mark.parametrize("mcpu", ["x86-64", "haswell", "skylake-avx512"])
@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sin"])
def test_every_processor_of_a_kind_has_vectors_in_float64(name: str, mcpu: str) -> None:
    """Without AVX-512, powers of two come from integers; without FMA, products are rounded."""
    x = samples(*BOUNDS[name][3])[: N // 4]
    target = Target.of({"kind": "cpu", "mcpu": mcpu})
    text = UNARY.format(n=64, dtype="float64", kind="vectorized", name=name)
    compiled = build(text, target=target)
    assert not set(compiled.externs) - {"sin"}
    if not set(target.features) - set(Target.native().features):
        y = _run(name, x, "vectorized", target=target)
        assert ulps(y, reference(name, x)).max() <= BOUNDS[name][4] + 1


@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_arguments_are_reduced_exactly(name: str, dtype: str) -> None:
    """Lanes beyond the limit go to the C library, and change nothing in the lanes beside them."""
    x = np.array([0.5, 2.0**28, 1e10, -1e16, 1e22, 3.0, 1e38, -2.0] * 2, dtype)
    y = _run(name, x, "vectorized")
    function = getattr(math, name)
    exact = np.array([function(float(v)) for v in x])
    np.testing.assert_allclose(y, exact, rtol=3e-7 if dtype == "float32" else 1e-15)
    np.testing.assert_array_equal(y[:1], _run(name, x[:1], "vectorized"))


@pytest.mark.parametrize(
    "name",
    ("sinh cosh asin acos atan asinh acosh atanh floor ceil round nearbyint trunc abs").split(),
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_other_functions(name: str, dtype: str) -> None:
    x = np.linspace(1.0, 3.0, 21) if name == "acosh" else np.linspace(-0.95, 0.95, 21)
    if name in ("floor", "ceil", "round", "nearbyint", "trunc"):
        x = np.concatenate([x, [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, np.nextafter(0.5, 0)]])
    x = x.astype(dtype)
    text = UNARY.format(n=len(x), dtype=dtype, kind="vectorized", name=name)
    tolerance = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-12}[dtype]
    out = np.zeros_like(x)
    agree(text, x, out, exact=False)
    assert call(build(text), x, out) == 0
    from metasched.ir.interp_ops import OP_RULES

    np.testing.assert_allclose(out, OP_RULES[name](DType(dtype), x), rtol=tolerance)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "log", "sqrt", "exp10", "rsqrt"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_types_round_once(name: str, dtype: str) -> None:
    kind = DType(dtype).numpy
    x = np.linspace(0.1, 4.5, 37).astype(kind)
    text = UNARY.format(n=37, dtype=dtype, kind="vectorized", name=name)
    out = np.zeros_like(x)
    assert call(build(text), x, out) == 0
    exact = reference(name, x.astype("float32"))
    with np.errstate(invalid="ignore"):  # float8_e4m3fn has NaN for what is too large
        want = exact.astype("float32").astype(kind).astype("float32")
    np.testing.assert_array_equal(out.astype("float32"), want)


BINARY = """
@T.prim_func
def main(A: T.Buffer(({n},), "{dtype}"), B: T.Buffer(({n},), "{dtype}"),
         C: T.Buffer(({n},), "{dtype}")):
    for i in T.vectorized({n}):
        with T.block("C"):
            vi = T.axis.spatial({n}, i)
            C[vi] = T.{name}(A[vi], B[vi])
"""


def _run_two(name: str, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    out = np.zeros_like(x)
    compiled = build(BINARY.format(n=len(x), dtype=str(x.dtype), name=name))
    assert call(compiled, x, y, out) == 0
    return out


# name: (reference, largest error of float32 in ulp, the same for float64).
TWO_BOUNDS = {
    "atan2": (np.arctan2, 2.0, 2.0),
    "hypot": (np.hypot, 0.6, 1.0),
    "fmod": (np.fmod, 0.0, 0.0),
    "copysign": (np.copysign, 0.0, 0.0),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TWO_BOUNDS)
def test_error_of_functions_of_two_arguments(name: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.uniform(-35, 35, (2, N))) * rng.choice([-1.0, 1.0], (2, N))
    sizes[0, ::2] = (sizes[1] * rng.uniform(-40, 40, N))[::2]
    x, y = sizes.astype(dtype)
    function, *bounds = TWO_BOUNDS[name]
    exact = function(x.astype(np.longdouble), y.astype(np.longdouble))
    bound = bounds[dtype == "float64"]
    assert ulps(_run_two(name, x, y), exact).max() <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", TWO_BOUNDS)
def test_edges_of_functions_of_two_arguments(name: str, dtype: str) -> None:
    """All pairs of zeros, subnormal and very large numbers, infinities and NaN."""
    some = [0.0, 1.0, 3.0, 0.5, 1e30, 1e-30, 5e-42, 3e38, np.inf, np.nan]
    some += [1.7e308, 5e-310, 5e-324, 1e-300] if dtype == "float64" else []
    some += [-v for v in some]
    x, y = (v.ravel().astype(dtype) for v in np.meshgrid(some, some))
    with np.errstate(all="ignore"):
        exact = TWO_BOUNDS[name][0](x, y)
        out = _run_two(name, x, y)
        close = (np.abs(out - exact) <= 2 * np.spacing(np.abs(exact))) | (out == exact)
    close &= np.signbit(out) == np.signbit(exact)
    close |= np.isnan(out) & np.isnan(exact)
    assert close.all(), [(x[i], y[i], out[i], exact[i]) for i in np.flatnonzero(~close)[:5]]


@pytest.mark.parametrize("name", ["atan2", "hypot", "fmod"])
def test_functions_of_two_arguments_without_fused_products(name: str) -> None:
    """Scalars and processors without FMA or AVX compute the same functions."""
    rng = np.random.default_rng(1)
    x, y = rng.uniform(-5, 5, (2, 37))
    out, wanted = np.zeros(37), TWO_BOUNDS[name][0](x, y)
    for text, target in ((BINARY, "x86-64"), (BINARY.replace("vectorized", "serial"), "haswell")):
        compiled = build(
            text.format(n=37, dtype="float64", name=name),
            target=Target.of({"kind": "cpu", "mcpu": target}),
        )
        assert call(compiled, x, y, out) == 0
        np.testing.assert_allclose(out, wanted, rtol=1e-15)


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1.0), ("float64", 1.5)])
def test_error_of_pow(dtype: str, bound: float) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.exp(rng.uniform(-20, 20, N // 2)), rng.uniform(0.5, 2, N // 2)])
    limit = 86 if dtype == "float32" else 700
    y = rng.uniform(-limit, limit, len(x)) / np.maximum(np.abs(np.log(x)), 0.01)
    y[::3] = rng.uniform(-3, 3, len(y[::3]))
    x, y, out = x.astype(dtype), y.astype(dtype), np.zeros(len(x), dtype)
    compiled = build(BINARY.format(n=len(x), dtype=dtype, name="pow"))
    assert call(compiled, x, y, out) == 0 and not compiled.externs
    assert ulps(out, np.power(x.astype(np.longdouble), y.astype(np.longdouble))).max() <= bound


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_edges_of_pow(dtype: str) -> None:
    """All pairs of special numbers, as the C library has them."""
    some = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e30, 1e-30, 2.0**53, 2.0**53 - 1, np.inf, np.nan]
    some += [-v for v in some[:-1]]
    x, y = (v.ravel().astype(dtype) for v in np.meshgrid(some, some))
    out = np.zeros_like(x)
    assert call(build(BINARY.format(n=len(x), dtype=dtype, name="pow")), x, y, out) == 0
    with np.errstate(all="ignore"):
        exact = np.power(x, y)
    np.testing.assert_allclose(out, exact, rtol=1e-6 if dtype == "float32" else 1e-15)
    np.testing.assert_array_equal(np.signbit(out)[exact == 0], np.signbit(exact)[exact == 0])


def test_a_square_is_one_product() -> None:
    text = UNARY.format(n=16, dtype="float64", kind="vectorized", name="pow").replace(
        "T.pow(A[vi])", "T.pow(A[vi], T.float64(2))"
    )
    x, out = np.array([0.1, -3.0, np.inf, -0.0] * 4), np.zeros(16)
    assert call(build(text), x, out) == 0
    np.testing.assert_array_equal(out, x * x)


def test_powers_of_two_are_one_instruction_with_avx512() -> None:
    text = UNARY.format(n=64, dtype="float32", kind="vectorized", name="exp")
    wide = build(text, target=AVX512)
    narrow = build(text, target=Target.of({"kind": "cpu", "mcpu": "haswell"}))
    assert "vscalefps" in wide.asm() and "vscalefps" not in narrow.asm()


def test_a_running_maximum_waits_for_one_maximum() -> None:
    text = """
@T.prim_func
def main(A: T.Buffer((64, 16), "float32"), B: T.Buffer((16,), "float32")):
    for i in range(64):
        for j in T.vectorized(16):
            with T.block("B"):
                vi, vj = T.axis.remap("RS", [i, j])
                B[vj] = T.max(B[vj], A[vi, vj])
"""
    asm = build(text, target=AVX512).asm()
    assert "vcmpordps" in asm and "vcmpltps" not in asm and "kor" not in asm
    assert all("{%k" in line for line in asm.splitlines() if "vmaxps" in line)


@pytest.mark.parametrize("name", ["exp", "exp2", "exp10", "sigmoid"])
@pytest.mark.parametrize("target", ["skylake-avx512", "haswell"])
def test_no_lane_computes_what_is_too_small(name: str, target: str) -> None:
    """Powers of what is masked are zeros from the start: computed, they take thirty times as long
    on some processors."""
    text = UNARY.format(n=64, dtype="float32", kind="vectorized", name=name)
    asm = build(text, target=Target.of({"kind": "cpu", "mcpu": target})).asm()
    if target == "haswell":
        assert asm.count("vandps") + asm.count("vandnps") + asm.count("vblendvps") >= 2
    else:
        assert re.search(r"vscalefps.*\{%k\d\} \{z\}", asm)
    x = np.array([-200.0, -1e30, -np.inf, -104.5, np.nan, 0.0, 3.0, 200.0] * 8, "float32")
    x = -x if name == "sigmoid" else x
    found = _run(name, x, "vectorized")
    with np.errstate(over="ignore"):
        wanted = reference(name, x).astype("float32")
    small = np.finfo("float32").smallest_subnormal
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=float(small))


@pytest.mark.parametrize("name", ["exp", "exp2", "exp10", "sigmoid", "log", "log2", "log10"])
def test_calls_on_scalars_do_not_wait_for_each_other(name: str) -> None:
    """A byte of a general register, which set instructions write, keeps what the last call left in
    the other bytes."""
    for dtype in ("float32", "float64"):
        text = UNARY.format(n=64, dtype=dtype, kind="serial", name=name)
        asm = build(text, target=AVX512).asm()
        assert "vfmadd" in asm and not re.search(r"\tset\w+\t", asm)
