"""Rewriting postprocs: notes carried out, inits decomposed, traces that replay without them."""

from __future__ import annotations

import numpy as np
import pytest
from oracle import check_numbers
from space.candidates import TARGET, assert_same, tiny

from metasched.errors import ScheduleError, TargetError
from metasched.ir.equal import structural_hash
from metasched.ir.stmt import For, ForKind
from metasched.ir.visit import blocks_of, walk_stmts
from metasched.kinds import default_postprocs
from metasched.postproc import run_postprocs
from metasched.postproc.parallel_vectorize_unroll import RewriteParallelVectorizeUnroll
from metasched.postproc.reduction_block import RewriteReductionBlock
from metasched.runtime.build import build
from metasched.schedule.schedule import Schedule
from metasched.script.parser import parse
from metasched.space.loop_kinds import AUTO_UNROLL
from metasched.space.modules.parallel_vectorize_unroll import (
    PARALLEL,
    UNROLL,
    UNROLL_IMPLICIT,
    VECTORIZE,
)
from metasched.target import Target
from metasched.workloads import get


def kinds(sch):
    return [(s.kind, int(s.extent)) for s in walk_stmts(sch.func.body) if isinstance(s, For)]


def noted(func, *, jobs=0, copies=0, width=0, block="Z"):
    sch = Schedule(func, seed=0, check=True)
    root = sch.get_block("root")
    if jobs:
        sch.annotate(root, PARALLEL, jobs)
    if copies:
        sch.annotate(root, UNROLL, copies)
    if width:
        sch.annotate(sch.get_block(block), VECTORIZE, width)
    sch.enter_postproc()
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    return sch


def test_notes_become_loop_kinds_and_are_taken_off():
    func = get("gmm").func((1, 64, 64, 64))
    sch = noted(func, jobs=8, copies=64, width=16)
    found = kinds(sch)
    assert (ForKind.PARALLEL, 64) in found  # batch and rows
    assert (ForKind.VECTORIZED, 16) in found
    assert (ForKind.UNROLLED, 64) in found
    assert all(not r.block.annotations for r in blocks_of(sch.func.body))


@pytest.mark.parametrize("where", ["root", "Z"])
@pytest.mark.parametrize(
    ("key", "number", "kind"),
    [
        (VECTORIZE, 8, (ForKind.VECTORIZED, 8)),
        (PARALLEL, 8, (ForKind.PARALLEL, 64)),
        (UNROLL, 64, (ForKind.UNROLLED, 64)),
    ],
)
def test_a_note_counts_on_the_root_and_on_the_block(where, key, number, kind):
    sch = Schedule(get("gmm").func((1, 64, 64, 64)), seed=0, check=True)
    sch.annotate(sch.get_block(where), key, number)
    sch.enter_postproc()
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    assert kind in kinds(sch)
    assert all(not r.block.annotations for r in blocks_of(sch.func.body))


@pytest.mark.parametrize("where", ["root", "Z"])
def test_the_code_generator_unrolls_where_a_note_lets_it(where):
    func = get("gmm").func((1, 64, 64, 12))
    sch = Schedule(func, seed=0, check=True)
    sch.annotate(sch.get_block(where), UNROLL_IMPLICIT, 32)
    sch.enter_postproc()
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    loops = [s for s in walk_stmts(sch.func.body) if isinstance(s, For)]
    assert [dict(loop.annotations) for loop in loops] == [{AUTO_UNROLL: 32}, {}, {}, {}]
    assert all(not r.block.annotations for r in blocks_of(sch.func.body))
    unrolled = build(sch).llvm_ir.count("fmul")
    assert unrolled == 12 * build(func).llvm_ir.count("fmul") > 0
    arrays = [np.ones([int(n) for n in b.shape], "float32") for b in func.buffers]
    build(sch)(*arrays)
    np.testing.assert_array_equal(arrays[2], 12)


def test_a_limit_of_the_loop_itself_and_blocks_without_a_sum_stay():
    sch = Schedule(get("gmm").func((1, 8, 8, 8)), seed=0)
    sch.annotate(sch.get_loops(sch.get_block("Z"))[0], AUTO_UNROLL, 4)
    sch.annotate(sch.get_block("root"), UNROLL_IMPLICIT, 16)
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    assert next(s for s in walk_stmts(sch.func.body) if isinstance(s, For)).annotations == {
        AUTO_UNROLL: 4
    }
    plain = parse(
        """
@T.prim_func
def f(A: T.Buffer((64,), "float32")):
    for i in range(64):
        with T.block("A"):
            v = T.axis.spatial(64, i)
            A[v] = A[v] + T.float32(1)
"""
    )
    sch = Schedule(plain, seed=0)
    sch.annotate(sch.get_block("root"), UNROLL_IMPLICIT, 16)
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    assert not any(s.annotations for s in walk_stmts(sch.func.body) if isinstance(s, For))


@pytest.mark.parametrize("value", ["x", -1, 1.5, True])
def test_a_note_that_is_no_number_is_refused(value):
    sch = Schedule(get("gmm").func((1, 64, 64, 64)), seed=0)
    sch.annotate(sch.get_block("root"), VECTORIZE, value)
    sch.enter_postproc()
    with pytest.raises(ScheduleError, match="vectorize on block root is .* not a number of lanes"):
        RewriteParallelVectorizeUnroll()(sch, TARGET)


def test_loop_kinds_respect_limits_of_copies_and_jobs():
    func = get("gmm").func((1, 64, 64, 64))
    assert {k for k, _ in kinds(noted(func, copies=16))} == {ForKind.SERIAL}
    assert ForKind.PARALLEL not in {k for k, _ in kinds(noted(tiny("nrm"), jobs=8))}
    assert ForKind.PARALLEL not in {
        k for k, _ in kinds(noted(get("gmm").func((1, 4, 4, 4)), jobs=8))
    }


def test_vectors_take_their_width_or_all_of_a_short_loop():
    sch = noted(get("gmm").func((1, 8, 24, 8)), width=16)
    assert (ForKind.VECTORIZED, 16) in kinds(sch) and "T.where" in sch.script()
    assert (ForKind.VECTORIZED, 12) in kinds(noted(get("gmm").func((1, 8, 12, 8)), width=16))


def test_a_loop_carried_dependence_stays_serial():
    func = parse(
        """
@T.prim_func
def scan(A: T.Buffer((4096,), "float32")):
    for i in range(4095):
        with T.block("Z"):
            v = T.axis.spatial(4095, i)
            A[v + 1] = A[v] + A[v + 1]
"""
    )
    sch = noted(func, jobs=8, width=16)
    assert {k for k, _ in kinds(sch)} == {ForKind.SERIAL}
    assert len([e for e in sch.trace.entries if e.kind.name in ("split", "parallel")]) == 0


def test_reductions_are_decomposed_with_loops_of_the_same_kind():
    sch = noted(tiny("gmm"), width=16)
    RewriteReductionBlock()(sch, TARGET)
    init = next(r for r in blocks_of(sch.func.body) if r.block.name == "Z_init")
    assert sch.state.loops_above(init)[-1].kind is ForKind.VECTORIZED
    assert all(r.block.init is None for r in blocks_of(sch.func.body))
    assert_same("gmm", sch.mod)


def test_a_reduction_over_threads_keeps_its_init():
    sch = Schedule(tiny("nrm"), seed=0)
    loops = sch.get_loops(sch.get_block("sum"))
    sch.bind(loops[2], "threadIdx.x")
    RewriteReductionBlock()(sch, TARGET)
    assert any(r.block.init is not None for r in blocks_of(sch.func.body))


def test_an_init_that_cannot_move_stays():
    """D reads the old results before the init runs; the sum stays whole, and C is decomposed."""
    func = parse(
        """
@T.prim_func
def f(A: T.Buffer((6, 8), "int32"), S: T.Buffer((6,), "int32"), D: T.Buffer((6, 8), "int32"),
      C: T.Buffer((6,), "int32")):
    for i, k in T.grid(6, 8):
        with T.block("D"):
            vi, vk = T.axis.remap("SS", [i, k])
            D[vi, vk] = S[vi]
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = 0
            S[vi] = S[vi] + A[vi, vk]
    for i, k in T.grid(6, 8):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
"""
    )
    sch = Schedule(func, seed=0)
    RewriteReductionBlock()(sch, TARGET)
    kept = [r.block.name for r in blocks_of(sch.func.body) if r.block.init is not None]
    assert kept == ["S"] and sch.get_block("C_init")
    check_numbers(func, sch.mod)


def test_the_shipped_trace_holds_the_postprocs():
    sch = Schedule(tiny("sfm"), seed=0)
    sch.annotate(sch.get_block("exp"), VECTORIZE, 16)
    run_postprocs(sch, TARGET, default_postprocs(TARGET))
    again = Schedule(tiny("sfm"))
    sch.trace.apply(again)
    assert structural_hash(again.mod) == structural_hash(sch.mod)
    assert len(sch.trace.before_postproc()) < len(sch.trace)


def test_several_functions_are_each_rewritten():
    module = {"a": get("gmm").func((1, 64, 64, 64)), "b": get("sfm").func((64, 64))}
    sch = Schedule(module, seed=0)
    for name in module:
        sch.annotate(sch.get_block("root", name), PARALLEL, 8)
    RewriteParallelVectorizeUnroll()(sch, TARGET)
    RewriteReductionBlock()(sch, TARGET)
    for name in module:
        found = [s.kind for s in walk_stmts(sch.mod[name].body) if isinstance(s, For)]
        assert ForKind.PARALLEL in found
        assert all(r.block.init is None for r in blocks_of(sch.mod[name].body))


def test_a_target_without_postprocs_is_named():
    with pytest.raises(TargetError, match="of kind 'cuda'; kinds with one: cpu"):
        default_postprocs(Target.of({"kind": "cuda", "mcpu": "sm_86"}))
