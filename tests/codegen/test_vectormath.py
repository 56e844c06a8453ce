"""Mathematical functions: error bounds in units in the last place, edges, scalar equals vector."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from codegen.kernels import agree, build, call

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
_erf = np.vectorize(math.erf)
# name: (float64 reference, range, largest error in ulp)
BOUNDS = {
    "exp": (np.exp, (-87, 88), 1.1),
    "exp2": (np.exp2, (-125, 127), 1.2),
    "exp10": (lambda x: np.power(10.0, x), (-37, 38), 2.0),
    "log": (np.log, (1e-30, 1e30), 1.1),
    "log2": (np.log2, (1e-30, 1e30), 2.0),
    "log10": (np.log10, (1e-30, 1e30), 2.0),
    "tanh": (np.tanh, (-10, 10), 2.0),
    "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), (-80, 80), 3.0),
    "erf": (_erf, (-4, 4), 2.0),
    "sin": (np.sin, (-(2.0**28), 2.0**28), 2.0),
    "cos": (np.cos, (-(2.0**28), 2.0**28), 2.0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), (1e-30, 1e30), 1.5),
    "sqrt": (np.sqrt, (1e-30, 1e30), 0.5),
}


def _run(name: str, x: np.ndarray, kind: str) -> np.ndarray:
    out = np.zeros_like(x)
    text = UNARY.format(n=len(x), dtype=str(x.dtype), kind=kind, name=name)
    assert call(build(text), x, out) == 0
    return out


def _samples(low: float, high: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    half = N // 2
    spread = rng.uniform(low, high, half)
    if low > 0:
        spread = np.exp(rng.uniform(np.log(low), np.log(high), half))
    near = rng.uniform(max(low, -2), min(high, 2), N - half)
    return np.concatenate([spread, near]).astype("float32")


@pytest.mark.parametrize("name", BOUNDS)
def test_error_bound(name: str) -> None:
    reference, (low, high), bound = BOUNDS[name]
    x = _samples(low, high)
    y = _run(name, x, "vectorized")
    exact = reference(x.astype("float64"))
    with np.errstate(invalid="ignore"):
        ulp = np.spacing(np.maximum(np.abs(exact), 2.0**-126).astype("float32")).astype("float64")
    error = np.abs(y.astype("float64") - exact) / ulp
    worst = int(np.argmax(error))
    assert error[worst] <= bound, (x[worst], y[worst], exact[worst], error[worst])
    np.testing.assert_array_equal(_run(name, x[:99], "serial"), y[:99])


@pytest.mark.parametrize("name", BOUNDS)
def test_edges(name: str) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-42, -1.0, 104.0, -104.0, 1.0, 90.0, -88.5,
                  129.0, -150.5, 40.0, -46.0], "float32")  # fmt: skip
    with np.errstate(all="ignore"):
        exact = BOUNDS[name][0](x.astype("float64")).astype("float32")
    y = _run(name, x, "vectorized")
    np.testing.assert_allclose(y, exact, rtol=1e-6, atol=1e-37 if name == "sigmoid" else 3e-45)
    np.testing.assert_array_equal(_run(name, x, "serial"), y)


@pytest.mark.parametrize(
    "name",
    (
        "log1p tan sinh cosh asin acos atan asinh acosh atanh floor ceil round nearbyint trunc abs"
    ).split(),
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
    from metasched.ir.dtype import DType
    from metasched.ir.interp_ops import OP_RULES

    np.testing.assert_allclose(out, OP_RULES[name](DType(dtype), x), rtol=tolerance)


@pytest.mark.parametrize("name", ["exp", "tanh", "sigmoid", "erf", "log", "sqrt", "exp10", "rsqrt"])
@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_other_types(name: str, dtype: str) -> None:
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    x = np.linspace(0.1, 5.0, 37).astype(kind)
    text = UNARY.format(n=37, dtype=dtype, kind="vectorized", name=name)
    out = np.zeros_like(x)
    assert call(build(text), x, out) == 0
    exact = BOUNDS[name][0](x.astype("float64"))
    tolerance = 1e-2 if dtype == "bfloat16" else 1e-12
    np.testing.assert_allclose(out.astype("float64"), exact, rtol=tolerance)


@pytest.mark.parametrize("name", ["pow", "atan2", "hypot", "fmod", "copysign"])
def test_functions_of_two_arguments(name: str) -> None:
    text = f"""
@T.prim_func
def main(A: T.Buffer((40,), "float32"), B: T.Buffer((40,), "float32"),
         C: T.Buffer((40,), "float32")):
    for i in T.vectorized(40):
        with T.block("C"):
            vi = T.axis.spatial(40, i)
            C[vi] = T.{name}(A[vi], B[vi])
"""
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0.1, 5, 40).astype("float32"), rng.uniform(-3, 3, 40).astype("float32")
    agree(text, a, b, np.zeros(40, "float32"), exact=False)


def test_powers_of_two_are_one_instruction_with_avx512() -> None:
    text = UNARY.format(n=64, dtype="float32", kind="vectorized", name="exp")
    wide = build(text, target=AVX512)
    narrow = build(text, target=Target.of({"kind": "cpu", "mcpu": "haswell"}))
    assert "vscalefps" in wide.asm() and "vscalefps" not in narrow.asm()


def test_a_running_maximum_waits_for_one_maximum_and_one_blend() -> None:
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
    loop = asm[asm.index("vmaxps") :]
    assert "vcmpunordps" in loop and "vcmpltps" not in asm and "kor" not in asm


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
    found = _run(name, -x if name == "sigmoid" else x, "vectorized")
    with np.errstate(over="ignore"):
        wanted = BOUNDS[name][0]((-x if name == "sigmoid" else x).astype("float64"))
        wanted = wanted.astype("float32")
    small = np.finfo("float32").smallest_subnormal
    np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=float(small))
