"""Vectors of floats to integers: at the limits of each type as the interpreter says, in vectors."""

from __future__ import annotations

import numpy as np
import pytest
from codegen.kernels import agree, program

from metasched.codegen.compile import compile_func
from metasched.ir.dtype import DType
from metasched.lower.pipeline import lower
from metasched.script import tir as T
from metasched.target import Target

INTS = [f"{u}int{bits}" for bits in (8, 16, 32, 64) for u in ("", "u")]
CAST = """
@T.prim_func
def main(A: T.Buffer(({count},), "{source}"), B: T.Buffer(({count},), "{kind}")):
    for i in T.serial({count} // 16):
        for j in T.vectorized(16):
            with T.block("B"):
                vi = T.axis.spatial({count}, i * 16 + j)
                B[vi] = T.Cast("{kind}", A[vi])
"""


def around_the_limits(source: str) -> np.ndarray:
    """The limits of all integer types, their neighbours, fractions beside them, and no numbers."""
    kind = DType(source).numpy
    limits = [float(limit) for name in INTS for limit in DType(name).range]
    near = [limit + step for limit in limits for step in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    with np.errstate(over="ignore"):
        values = np.array([*near, np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40], kind)
        steps = [np.nextafter(values, kind.type(end)) for end in (-np.inf, np.inf)]
    found = np.concatenate([values, *steps])
    return np.resize(found, -(-len(found) // 16) * 16)


@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("kind", INTS)
def test_vectors_saturate_at_the_limits(source, kind):
    values = around_the_limits(source)
    text = CAST.format(source=source, kind=kind, count=len(values))
    agree(text, values, np.zeros(len(values), kind))


@pytest.mark.parametrize("cpu", ["znver4", "haswell", "x86-64-v2"])
@pytest.mark.parametrize("source", ["float16", "bfloat16", "float32", "float64"])
def test_vectors_are_not_converted_lane_by_lane(cpu, source):
    target = Target.of(f"llvm -mcpu={cpu} -num-cores=2")
    if source == "float16" and cpu == "x86-64-v2":
        pytest.skip("without F16C float16 is widened by a library")
    for kind in INTS[:5]:
        func = program(CAST.format(source=source, kind=kind, count=16))
        asm = compile_func(lower(func, target), target).asm()
        assert "cvttps2dq" in asm or "cvttpd2dq" in asm
        assert "cvttss2si" not in asm and "cvttsd2si" not in asm, kind


def test_requantization_is_a_chain_of_vectors():
    """int32 sums to bytes: scaled, rounded to even, moved and saturated."""

    @T.prim_func
    def requantize(
        C: T.Buffer((64,), "int32"), S: T.Buffer((64,), "float32"), Y: T.Buffer((64,), "uint8")
    ):
        for i in range(4):
            for j in T.vectorized(16):
                with T.block("Y"):
                    vi = T.axis.spatial(64, i * 16 + j)
                    Y[vi] = T.cast(
                        T.min(
                            T.max(
                                T.nearbyint(T.cast(C[vi], "float32") * S[vi]) + T.float32(3),
                                T.float32(0),
                            ),
                            T.float32(255),
                        ),
                        "uint8",
                    )

    sums = np.arange(-32, 32, dtype="int32") * 9 + 1
    compiled = agree(requantize, sums, np.full(64, 0.5, "float32"), np.zeros(64, "uint8"))
    assert compiled is not None
    target = Target.of("llvm -mcpu=znver4 -num-cores=2")
    asm = compile_func(lower(requantize, target), target).asm()
    assert "vpmovdb" in asm and "cvttss2si" not in asm
    assert "cvtps2dq" in asm and "vrndscaleps" not in asm and "cvttps2dq" not in asm
    assert asm.count("vmaxps") == asm.count("vminps") == asm.count("cvtps2dq")


CLAMPED = """
@T.prim_func
def main(A: T.Buffer(({count},), "float32"), B: T.Buffer(({count},), "{kind}")):
    for i in T.serial({count} // 16):
        for j in T.vectorized(16):
            with T.block("B"):
                vi = T.axis.spatial({count}, i * 16 + j)
                B[vi] = T.Cast("{kind}", {value})
"""


@pytest.mark.parametrize("kind", INTS[:3])
@pytest.mark.parametrize(
    "value",
    [
        "T.min(T.max(T.nearbyint(A[vi]) + T.float32(113), T.float32(0)), T.float32(127))",
        "T.max(T.float32(3), T.min(T.nearbyint(A[vi]) - T.float32(5), T.float32(100)))",
        "T.min(T.max(T.nearbyint(A[vi]), T.float32(-100)), T.float32(90))",
        "T.min(T.max(A[vi] * T.float32(3), T.float32(-0.5)), T.float32(99.5))",
        "T.min(T.max(A[vi], T.float32(1)), T.float32(2))",
        "T.min(T.max(T.nearbyint(A[vi]) + T.float32(0.5), T.float32(2)), T.float32(9))",
        "T.max(T.min(T.max(A[vi], T.float32(1)), T.float32(90)), T.float32(120))",
        "T.min(T.nearbyint(A[vi]) + T.float32(7), T.float32(50))",
    ],
)
def test_clamped_vectors_become_integers(kind, value):
    near = np.arange(-260, 260, dtype="float32") / 2
    values = np.concatenate(
        [near, np.nextafter(near, np.float32(1e9)), around_the_limits("float32")]
    )
    values = np.resize(values, -(-len(values) // 16) * 16)
    text = CLAMPED.format(kind=kind, value=value, count=len(values))
    agree(text, values, np.zeros(len(values), kind))


def test_a_second_limit_of_a_clamped_vector_costs_nothing():
    value = "T.min(T.max(A[vi], T.float32(-7)), T.float32(9))"
    target = Target.of("llvm -mcpu=znver4 -num-cores=2")
    func = program(CLAMPED.format(kind="int8", value=value, count=16))
    asm = compile_func(lower(func, target), target).asm()
    assert asm.count("vmaxps") == asm.count("vminps") == 1
