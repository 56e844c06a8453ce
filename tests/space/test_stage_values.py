"""stage_values: sums whose slow values many results share get a stage for them."""

from __future__ import annotations

import numpy as np
from space.candidates import TARGET, draw

from metasched.ir.func import IRModule, PrimFunc
from metasched.kinds import default_modules
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.stage_values import StageValues


@T.prim_func
def attention(S: T.Buffer((4, 40)), M: T.Buffer((4,)), V: T.Buffer((40, 32)), O: T.Buffer((4, 32))):
    for h, d, l in T.grid(4, 32, 40):
        with T.block("O"):
            vh, vd, vl = T.axis.remap("SSR", [h, d, l])
            with T.init():
                O[vh, vd] = T.float32(0)
            O[vh, vd] += T.exp(S[vh, vl] - M[vh]) * V[vl, vd]


@T.prim_func
def plain_loops(
    S: T.Buffer((4, 40)), M: T.Buffer((4,)), V: T.Buffer((40, 32)), O: T.Buffer((4, 32))
):
    for h in range(4):
        for d in range(32):
            O[h, d] = 0
            for l in range(40):
                O[h, d] += T.exp(S[h, l] - M[h]) * V[l, d]


@T.prim_func
def few(S: T.Buffer((4, 40)), V: T.Buffer((40, 4)), O: T.Buffer((4, 4))):
    for h, d, l in T.grid(4, 4, 40):
        with T.block("O"):
            vh, vd, vl = T.axis.remap("SSR", [h, d, l])
            with T.init():
                O[vh, vd] = T.float32(0)
            O[vh, vd] += T.exp(S[vh, vl]) * V[vl, vd]


@T.prim_func
def padded_loops(X: T.Buffer((3, 10, 12)), W: T.Buffer((32, 3, 3, 3)), Y: T.Buffer((32, 10, 12))):
    for o, i, j in T.grid(32, 10, 12):
        Y[o, i, j] = 0
        for c, p, q in T.grid(3, 3, 3):
            Y[o, i, j] += (
                T.if_then_else(
                    i + p >= 1 and i + p < 11 and j + q >= 1 and j + q < 13,
                    X[c, i + p - 1, j + q - 1],
                    T.float32(0),
                )
                * W[o, c, p, q]
            )


@T.prim_func
def elementwise(S: T.Buffer((4, 40)), M: T.Buffer((4,)), O: T.Buffer((4, 40))):
    for h, l in T.grid(4, 40):
        with T.block("O"):
            vh, vl = T.axis.remap("SS", [h, l])
            O[vh, vl] = S[vh, vl] * T.exp(M[vh])


def run(program: PrimFunc | IRModule, arrays: list[np.ndarray]) -> list[np.ndarray]:
    arrays = [a.copy() for a in arrays]
    build(program)(*arrays)
    return arrays


def spaces(func: PrimFunc) -> list[str]:
    generator = SpaceGenerator(default_modules(TARGET))
    found = generator.generate(func, TARGET)
    assert not generator.failures
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(p.constant_shape()).astype("float32") for p in func.params]
    *_, wanted = run(func, arrays)
    for seed, space in enumerate(found):
        *_, result = run(draw(func, space, seed).mod, arrays)
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    return [str(space.as_python()) for space in found]


def test_sums_get_a_stage() -> None:
    assert all(".cache_values(" in text for text in spaces(attention))
    assert any(".cache_values(" in text for text in spaces(plain_loops))
    assert any(".cache_values(" in text for text in spaces(padded_loops))


def test_other_blocks_stay() -> None:
    for func in (few, elementwise):
        sch = Schedule(func)
        assert StageValues()(sch, sch.get_block("O")) == [sch]
        assert not sch.refused


@T.prim_func
def chunks(
    C: T.Buffer((3, 16)), X: T.Buffer((3, 16, 32)), S: T.Buffer((32,)), Y: T.Buffer((3, 16, 32))
):
    for c in range(3):
        for i, p in T.grid(16, 32):
            Y[c, i, p] = S[p]
            for j in range(i + 1):
                Y[c, i, p] += T.exp(C[c, i] - C[c, j]) * X[c, j, p]
        for p in range(32):
            S[p] = Y[c, 15, p]


def test_a_chunk_of_a_scan_has_a_stage_inside() -> None:
    """The exponentials of all 32 columns were computed anew: nothing else stood in their loops."""
    sch = Schedule(chunks)
    sch.enclose("root")
    (made,) = StageValues()(sch, sch.get_block("Y_1"))
    first = made.get_loops("Y_1_value")
    assert [made.get(loop).var.name for loop in first[:2]] == ["c", "i"]
