"""Notes on blocks that no design space helps, and the module that distributes loops."""

from __future__ import annotations

import pytest
from oracle import check_transform
from schedule.programs import elementwise, matmul, two_outputs

from metasched import workloads
from metasched.analysis.block import FOLD, TILED
from metasched.ir.func import PrimFunc
from metasched.kinds.cpu import cpu_modules
from metasched.schedule.schedule import Schedule
from metasched.script import parse
from metasched.space.default_schedule import vectors_and_threads
from metasched.space.generate import SpaceGenerator, Union
from metasched.space.modules.loop_distribution import LoopDistribution
from metasched.target import Target

TARGET = Target.of("native")


def notes(func: PrimFunc) -> list[str]:
    space = SpaceGenerator(cpu_modules(TARGET))
    space.generate(func)
    both = Union((space, space))
    both.generate(func)
    assert list(both.notes) == space.notes  # each sentence once
    return space.notes


def test_programs_that_modules_schedule_have_no_notes():
    assert notes(workloads.get("gmm").func((1, 32, 32, 32))) == []
    assert notes(workloads.get("sfm").func((64, 64))) == []
    assert notes(elementwise) == notes(matmul) == []  # too small to gain


def test_a_dependence_is_named():
    source = """
@T.prim_func
def f(A: T.Buffer((4096,), "float32")):
    for i in range(4095):
        with T.block("chain"):
            vi = T.axis.spatial(4095, i)
            A[vi + 1] = T.sqrt(A[vi] + T.float32(1))
"""
    first, second = notes(parse(source))
    assert first.startswith(
        "block chain has no parallel loop: different iterations of loop i may touch the same "
        "element of A: block chain writes A[vi + 1]"
    )
    assert second.startswith("block chain has no vector loop: different iterations of loop i may")


def test_ranges_that_memory_holds_may_be_said_to_be_apart():
    """The short loop inside is no place for threads; what is missing is named."""
    source = """
@T.prim_func
def f(P: T.Buffer((4097,), "int32"), X: T.Buffer((9999,)), Y: T.Buffer((9999,))):
    for i in {loop}(4096):
        for p in range(P[i], P[i + 1]):
            Y[p] = X[p] * T.float32(i)
"""
    (first,) = [n for n in notes(parse(source.format(loop="range"))) if "parallel" in n]
    assert first.startswith("block Y has no parallel loop: different iterations of loop i may")
    assert first.endswith("block Y writes Y[v_p]; if they never do, write the loop as T.parallel")
    assert not [n for n in notes(parse(source.format(loop="T.parallel"))) if "parallel" in n]


def test_other_reasons_have_no_advice_about_elements_that_meet():
    source = """
@T.prim_func
def f(P: T.Buffer((4096,), "int32"), X: T.Buffer((4096,)), S: T.Buffer((9999,)),
      Y: T.Buffer((9999,))):
    for i in range(4096):
        with T.block("two"):
            vi = T.axis.spatial(4096, i)
            S[P[vi]] = X[vi]
            Y[P[vi]] = X[vi] * 2.0
"""
    (found,) = [n for n in notes(parse(source)) if "parallel" in n]
    assert found == "block two has no parallel loop: it writes 2 outputs, S and Y"


def test_an_update_without_init_is_summed_apart():
    assert notes(workloads.get("poly.gemm").func((32, 32, 32))) == []


def test_dependent_ranges_and_carried_updates_are_named():
    source = """
@T.prim_func
def f(A: T.Buffer((64, 64), "float32"), B: T.Buffer((64, 64), "float32"),
      C: T.Buffer((64,), "float32"), D: T.Buffer((64,), "float32")):
    for i in range(64):
        for j in range(64):
            for k in range(i, 64):
                with T.block("triangle"):
                    vi, vj, vk = T.axis.remap("SSR", [i, j, k])
                    with T.init():
                        B[vi, vj] = 0.0
                    B[vi, vj] = B[vi, vj] + A[vi, vk] * A[vj, vk]
    for i, j in T.grid(64, 64):
        with T.block("both"):
            vi, vj = T.axis.remap("RR", [i, j])
            C[0] = T.max(C[0], A[vi, vj] + D[0])
            D[0] = T.min(D[0], A[vi, vj] + C[0])
"""
    found = notes(parse(source))
    assert "block triangle is not tiled: the range of loop k depends on a loop outside" in found
    assert any(
        note.startswith("block both has no parallel loop: different iterations of loop i may touch")
        for note in found
    )


def test_outputs_that_stay_together_are_named():
    source = """
@T.prim_func
def f(A: T.Buffer((4096,), "int32"), M: T.Buffer((1,), "int32"), P: T.Buffer((1,), "int32")):
    for i in range(4096):
        with T.block("last"):
            if A[i] > P[0]:
                M[0] = A[i]
                P[0] = i
"""
    assert "block last has no parallel loop: it writes 2 outputs, M and P" in notes(parse(source))


def test_the_module_gives_each_output_a_nest():
    space = SpaceGenerator((LoopDistribution(),))
    distributed, plain = space.generate(two_outputs)
    sch = Schedule(two_outputs)
    distributed.apply(sch)
    assert len(sch.get_loops("S")) == len(sch.get_loops("S_C")) == 2
    assert sch.get(sch.get_loops("S")[0]) is not sch.get(sch.get_loops("S_C")[0])
    check_transform(two_outputs, sch)
    assert not plain.entries


def test_a_distributed_program_is_tiled():
    func = workloads.get("poly.atax").func((64, 64))
    space = SpaceGenerator(cpu_modules(TARGET))
    marks = set()
    for trace in space.generate(func):
        sch = Schedule(func)
        trace.apply(sch)
        marks |= {*sch.get(sch.get_block("tmp")).annotations}
    assert marks & {TILED, FOLD}


def kinds(sch: Schedule, block: str) -> str:
    return " ".join(sch.get(loop).kind.value for loop in sch.get_loops(block))


def test_the_default_schedule_runs_nests_inside_a_time_loop_in_parallel():
    func = workloads.get("poly.jacobi-2d").func((4, 400))
    sch = Schedule(func)
    vectors_and_threads(func, TARGET).apply(sch)
    parallel = "parallel" if TARGET.num_cores > 1 else "serial"
    assert kinds(sch, "A") == kinds(sch, "B") == f"serial {parallel} serial vectorized"


def test_small_steps_of_a_time_loop_stay_on_one_core():
    func = workloads.get("poly.jacobi-2d").func((4, 60))
    sch = Schedule(func)
    vectors_and_threads(func, TARGET).apply(sch)
    assert kinds(sch, "A") == "serial serial serial vectorized"


@pytest.mark.parametrize("span", ["range(i + 1)", "range(i, 40)", "range(T.min(i, 20))"])
def test_the_default_schedule_vectorizes_a_loop_of_dependent_extent(span):
    func = parse(f"""
@T.prim_func
def f(A: T.Buffer((40, 40), "float32"), B: T.Buffer((40, 40), "float32")):
    for i in range(40):
        for j in {span}:
            with T.block("B"):
                vi, vj = T.axis.remap("SS", [i, j])
                B[vi, vj] = A[vi, vj] * 2.0
""")
    sch = Schedule(func)
    vectors_and_threads(func, TARGET).apply(sch)
    assert kinds(sch, "B").split()[-1] == "vectorized"
    check_transform(func, sch)


def test_the_default_schedule_distributes_loops_for_vectors_and_threads():
    func = workloads.get("poly.bicg").func((200, 200))
    sch = Schedule(func)
    vectors_and_threads(func, TARGET).apply(sch)
    assert kinds(sch, "bicg") == "parallel serial serial vectorized"
    assert kinds(sch, "bicg_q").split()[0] == ("parallel" if TARGET.num_cores > 1 else "serial")


@pytest.mark.parametrize(
    ("name", "shape"), [("argmax", (64, 512)), ("qdep_s8", (1, 8, 8, 16, 3, 1, 1))]
)
def test_a_step_with_nothing_to_do_is_no_refusal(name, shape):
    """argmax has one statement for its outputs; a product without zero points has one term."""
    space = SpaceGenerator(cpu_modules(TARGET))
    space.generate(workloads.get(name).func(shape))
    assert space.refusals == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "poly.gesummv",
            "auto_inline leaves block zero alone: compute_inline: block zero is not the only",
        ),
        (
            "poly.covariance",
            "fuse_rows leaves block divide alone: compute_at: block cov is neither",
        ),
    ],
)
def test_a_module_whose_every_step_was_refused_says_why(name, text):
    space = SpaceGenerator(cpu_modules(TARGET))
    space.generate(workloads.get(name).func())
    assert any(note.text.startswith(text) for note in space.refusals)


@pytest.mark.parametrize(("dtype", "words", "told"), [
    ("float32", "", True), ("float32", "reassoc", False), ("int32", "", False),
])  # fmt: skip
def test_a_sum_of_floats_in_plain_loops_says_what_permits_another_order(dtype, words, told):
    func = parse(f"""
@T.prim_func
def dot(A: T.Buffer((9000,), "{dtype}"), B: T.Buffer((9000,), "{dtype}"),
        C: T.Buffer((1,), "{dtype}")):
    T.func_attr({{"tir.fast_math": "{words}"}})
    C[0] = 0
    for k in range(9000):
        C[0] += A[k] * B[k]
""")
    advice = (
        'block C_1 combines floats in one order: T.func_attr({"tir.fast_math": "reassoc"}), or '
        "T.axis.reduce in a block, permits any"
    )
    assert (advice in notes(func)) == told
    assert any(n.startswith("block C_1 has no parallel loop") for n in notes(func)) == told
