"""multi_level_tiling_with_intrin: what it offers for outer products, and what that computes."""

from __future__ import annotations

import numpy as np
import pytest
from schedule.intrinsic_families import described, registered

from metasched import Schedule, TensorIntrin, build
from metasched.analysis.block import AUTO_TENSORIZE, TENSOR_CHOICE
from metasched.ir.func import PrimFunc
from metasched.ir.interp import run
from metasched.ir.visit import free_vars
from metasched.kinds import default_modules, default_postprocs
from metasched.postproc import run_postprocs
from metasched.schedule.trace import Trace
from metasched.script import tir as T
from metasched.space.generate import SpaceGenerator
from metasched.space.modules.multi_level_tiling import Reuse
from metasched.space.modules.multi_level_tiling_with_intrin import MultiLevelTilingWithIntrin
from metasched.target import Target
from metasched.workloads import get

HERE = Target.native()
UNIT = "test.outer"
OUTER = described({"i": 4, "j": 4}, "i", "j", "i, j", ("float32",) * 3)
AVX2 = ("avx2",)


@pytest.fixture(autouse=True)
def unit():
    with registered(UNIT, OUTER):
        yield


def spaces(func: PrimFunc, target: Target = HERE) -> tuple[list[Trace], list[str]]:
    """The design spaces with the unit, and what was given up."""
    generator = SpaceGenerator(default_modules(target))
    found = generator.generate(func, target)
    assert not generator.failures
    told = [note.message for note in generator.refusals]
    return [trace for trace in found if UNIT in str(trace)], told


def drawn(func: PrimFunc, trace: Trace, seed: int = 0) -> Schedule:
    sch = Schedule(func, seed=seed)
    trace.apply(sch, decisions="fresh")
    run_postprocs(sch, HERE, default_postprocs(HERE))
    return sch


def numbers(func: PrimFunc) -> list[np.ndarray]:
    """Small whole numbers, whose products add up without rounding."""
    draw = np.random.default_rng(0)
    return [draw.integers(-3, 4, b.constant_shape()).astype(b.dtype.numpy) for b in func.buffers]


def computes_the_same(func: PrimFunc, sch: Schedule) -> None:
    want, interpreted, compiled = numbers(func), numbers(func), numbers(func)
    run(func, *want)
    run(sch.mod, *interpreted)
    build(sch.mod)(*compiled)
    for given in (interpreted, compiled):
        for a, b in zip(given, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("gmm", (1, 7, 9, 3)),
        ("gmm", (2, 4, 8, 2)),
        ("c2d", (1, 3, 4, 2, 4, 3, 1, 1)),
        ("grp", (1, 3, 4, 4, 8, 2, 1, 0, 1, 2)),
        ("t2d", (1, 4, 4, 2, 4, 4, 2, 1)),
        ("tbg", (1, 4, 2, 2)),
    ],
)
def test_candidates_compute_the_same(name, shape):
    func = get(name).func(shape)
    found, _ = spaces(func)
    assert found
    for trace in (found[0], found[-1]):
        computes_the_same(func, drawn(func, trace))


def test_all_samples_survive():
    """Of sizes that divide, and of odd ones."""
    for shape in ((1, 256, 256, 32), (1, 251, 255, 31)):
        func = get("gmm").func(shape)
        for trace in spaces(func)[0]:
            assert UNIT in str(drawn(func, trace).trace)


def test_results_stay_in_a_local_buffer_through_the_reduction():
    func = get("gmm").func((1, 16, 16, 16))
    sch = drawn(func, spaces(func)[0][0])
    update, finish = sch.get_block("Z_o_update"), sch.get_block("Z_reindex")
    assert sch.get(update).writes[0].buffer.scope == "local"
    around = [sch.get(loop).var for loop in sch.get_loops(finish)]
    steps = [loop for loop in sch.get_loops(update) if sch.get(loop).var not in around]
    assert steps != sch.get_loops(update)
    values = sch.state.block(update).iter_values
    kinds = [v.is_reduce for v in sch.get(update).iter_vars]
    (depth,) = [value for value, reduced in zip(values, kinds, strict=True) if reduced]
    assert free_vars(depth) <= {sch.get(loop).var for loop in steps}


def test_a_consumer_finishes_the_results():
    @T.prim_func
    def scaled(
        A: T.Buffer((8, 8), "float32"),
        B: T.Buffer((8, 8), "float32"),
        D: T.Buffer((8, 8), "float32"),
    ):
        C = T.alloc_buffer((8, 8), "float32")
        for i, j, k in T.grid(8, 8, 8):
            with T.block("C"):
                vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                with T.init():
                    C[vi, vj] = T.float32(0)
                C[vi, vj] += A[vi, vk] * B[vk, vj]
        for i, j in T.grid(8, 8):
            with T.block("D"):
                vi, vj = T.axis.remap("SS", [i, j])
                D[vi, vj] = T.max(C[vi, vj], T.float32(0))

    sch = drawn(scaled, spaces(scaled)[0][0])
    assert "C_reindex" not in sch.mod.script()
    computes_the_same(scaled, sch)


def test_a_depthwise_convolution_is_left_alone_with_a_reason():
    found, told = spaces(get("dep").func((1, 6, 6, 4, 3, 1, 1)))
    assert not found
    assert any("and no other operand, as" in text for text in told)


def test_much_padding_is_given_up_with_a_reason():
    found, told = spaces(get("gmm").func((1, 2, 3, 8)))
    assert not found
    assert any("whole tiles of test.outer would take" in text for text in told)


def test_of_several_implementations_one_is_drawn():
    TensorIntrin.register("test.outer.second", OUTER, OUTER)
    trace = spaces(get("gmm").func((1, 8, 8, 4)))[0][0]
    assert "test.outer,test.outer.second" in str(trace) and TENSOR_CHOICE in str(trace)


def test_the_target_has_the_features_of_an_instruction():
    TensorIntrin.register("test.absent", OUTER, OUTER, needs=("far-matrix-unit",))
    assert "test.absent" not in str(spaces(get("gmm").func((1, 8, 8, 4)))[0][0])


@pytest.mark.parametrize("structure", ["SSRRS", "SSRSRS", "SRS", "SSR"])
def test_an_intrinsic_by_name_with_another_structure(structure):
    """As TVM's rule of this name takes them; lanes of dot products, too."""
    func = get("gmm_u8s8s32").func((1, 8, 32, 8))
    module = MultiLevelTilingWithIntrin(
        "x86.avx2.dot_8x4_u8i8i32", structure, 4, Reuse("no", (1,)), Reuse("must", (1,)), AVX2
    )
    sch = Schedule(func)
    *found, plain = module(sch, sch.get_block("Z"))
    assert plain is sch and found
    for variant in found:
        assert AUTO_TENSORIZE in str(variant.trace)
        run_postprocs(variant, HERE, default_postprocs(HERE))
        want, given = numbers(func), numbers(func)
        run(func, *want)
        run(variant.mod, *given)
        np.testing.assert_array_equal(given[-1], want[-1])
