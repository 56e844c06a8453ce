"""Refusals of rare situations: each with its reason, its message, and nothing changed."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from oracle import check_refused, check_trace, check_transform, refusal
from schedule.programs import argmax, elementwise, matmul, strided
from schedule.test_blocks import start

from metasched.errors import MetaschedError
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def with_init(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            with T.init():
                if vi < 9:
                    B[vi] = 0
            B[vi] = B[vi] + A[vi]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi] * 2


@T.prim_func
def with_buffer(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            X = T.alloc_buffer((1,), "int32")
            B[vi] = A[vi] + 1
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = B[vi] * 2


def test_only_plain_blocks_are_inlined() -> None:
    for func, reason, message in (
        (with_init, "has-init", "B is a reduction"),
        (with_buffer, "has-buffers", "B allocates or matches buffers"),
    ):
        sch, (b,), _ = start(func, "B")
        check_refused(sch, functools.partial(sch.compute_inline, b), reason, message)


def test_a_partial_result_starts_with_its_first_update() -> None:
    sch, (c,), ((i, j, k),) = start(matmul, "C")
    outer, _ = sch.split(k, [4, 4])
    message = "may leave a partial result without its first update"
    check_refused(sch, lambda: sch.rfactor(outer, 0), "hidden-init", message)


@T.prim_func
def in_planes(A: T.Buffer((4, 6), "int32"), D: T.Buffer((4,), "int32")):
    C = T.alloc_buffer((2, 4), "int32")
    for i, k in T.grid(4, 6):
        with T.block("first"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[0, vi] = 0
            C[0, vi] = C[0, vi] + A[vi, vk]
    for i, k in T.grid(4, 6):
        with T.block("second"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[1, vi] = 0
            C[1, vi] = C[1, vi] + A[vi, vk] * C[0, 3 - vi]
    for i in range(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[0, vi] + C[1, vi]


def test_a_reduction_that_reads_another_plane_of_its_buffer_is_a_consumer() -> None:
    sch, (first, last), (_, (i,)) = start(in_planes, "first", "D")
    assert [sch.get(b).name for b in sch.get_consumers(first)] == ["second", "D"]
    message = "every consumer must be under i, but second is not"
    check_refused(sch, lambda: sch.compute_at(first, i), "consumer-outside", message)


@T.prim_func
def repeated(A: T.Buffer((4, 6), "int32"), C: T.Buffer((4,), "int32")):
    for i, u, k in T.grid(4, 3, 6):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.reduce(6, k)
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]


def test_rfactor_refuses_a_loop_that_drives_no_iterator() -> None:
    sch, (c,), ((i, u, k),) = start(repeated, "C")
    check_refused(sch, lambda: sch.rfactor(k, 0), "idle-loop", "u drives no iterator")


def test_blockize_refuses_a_loop_that_repeats_a_reduction() -> None:
    """Random machine, case 61040217: the result was three times the sum."""
    sch, (c,), ((i, u, k),) = start(repeated, "C")
    message = "C restarts in each iteration of u"
    check_refused(sch, lambda: sch.blockize(u), "repeated-reduction", message)
    check_refused(sch, lambda: sch.blockize(i), "repeated-reduction", message)
    sch.blockize(k)
    check_transform(repeated, sch)


def test_a_stored_replay_refuses_a_trace_without_decisions() -> None:
    sch = Schedule(matmul, seed=0)
    sch.sample_categorical([1, 2], [0.5, 0.5])
    trace = sch.trace.with_decision(0, None)
    again = Schedule(matmul, seed=0)
    message = "holds no decision for this step"
    check_refused(again, lambda: trace.apply(again), "no-decision", message)


@T.prim_func
def overwritten(A: T.Buffer((8,), "int32"), C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((8,), "int32")
    for i in range(6):
        for x in range(3):
            with T.block("B"):
                v = T.axis.spatial(8, i + x)
                B[v] = A[v]
        for x in range(3):
            with T.block("W"):
                v = T.axis.spatial(8, i + x)
                B[v] = A[v] * 2
        for r in range(3):
            with T.block("C"):
                vi, vr = T.axis.remap("SR", [i, r])
                with T.init():
                    C[vi] = 0
                C[vi] = C[vi] + B[vi + vr]


def test_a_buffer_of_two_writers_is_not_rolled() -> None:
    sch, (b,), _ = start(overwritten, "B")
    step = lambda: sch.rolling_buffer(b, 0)  # noqa: E731
    check_refused(sch, step, "not-read-after-write", "B is written again")


@T.prim_func
def later(A: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            C[vi] = A[vi]
    for i in range(4):
        with T.block("W"):
            vi = T.axis.spatial(4, i)
            A[vi] = 3


def test_a_cache_is_filled_by_what_was_written_before() -> None:
    sch, (c,), _ = start(later, "C")
    step = lambda: sch.cache_read(c, 0, "local")  # noqa: E731
    check_refused(sch, step, "reads-before-written", "C reads A before or while it is written")


def test_two_results_at_once_are_not_padded() -> None:
    sch, (m,), _ = start(argmax, "M")
    step = lambda: sch.pad_einsum(m, [1, 2])  # noqa: E731
    check_refused(sch, step, "unknown-reduction", "M is no single reduction")


@T.prim_func
def vectors(A: T.Buffer((4, 4), "int32"), C: T.Buffer((4, 4), "int32")):
    B = T.alloc_buffer((4, 4), "int32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi, T.ramp(0, 1, 4)] = A[vi, T.ramp(0, 1, 4)]
    for i, j in T.grid(4, 4):
        with T.block("C"):
            vi, vj = T.axis.remap("SS", [i, j])
            C[vi, vj] = B[vi, vj]


def test_vector_accesses_keep_their_layout() -> None:
    sch, (b,), _ = start(vectors, "B")
    step = lambda: sch.transform_layout(b, "B", lambda i, j: (j, i))  # noqa: E731
    check_refused(sch, step, "vector-index", "B is accessed by vectors")
    again = lambda: sch.reindex_cache_read(b, 0, "local", lambda i: (i,))  # noqa: E731
    check_refused(sch, again, "vector-index", "B accesses A by vectors")


def test_debug_mask_turns_verification_on() -> None:
    assert Schedule(strided, debug_mask="all").state.check
    assert not Schedule(strided, debug_mask="none", check=False).state.check
    with refusal("bad-mask", 'debug_mask is \'some\', not "none", "all"'):
        Schedule(strided, debug_mask="some")


def test_a_seed_is_an_integer() -> None:
    assert Schedule(strided, seed=np.int64(3)).seed == 3  # type: ignore[arg-type]
    with refusal("bad-seed", "seed is 'a', not an integer"):
        Schedule(strided, seed="a")  # type: ignore[arg-type]


def test_blocks_by_name_and_buffers_by_name_or_object_are_accepted() -> None:
    """A block may be given by its name, a buffer by its position, its name or as a Buffer;
    the trace stores names and positions."""
    sch = Schedule(elementwise, seed=0)
    assert sch.has_block("B") and not sch.has_block("X")
    assert sch.is_output_block("C") and not sch.is_output_block(sch.get_block("B"))
    sch.annotate("B", "note", 1)
    sch.unannotate("B", "note")
    assert len(sch.get_child_blocks("root")) == 2
    sch.add_unit_loop("B")
    sch.blockize("B")
    buffer = sch.get(sch.get_block("C")).reads[0].buffer
    sch.cache_read("C", buffer, "local")
    sch.set_scope("B", buffer, "shared")
    check_trace(elementwise, sch)


@T.prim_func
def foreign(A: T.Buffer((4,), "int32"), X: T.Buffer((4,), "int32"), C: T.Buffer((4,), "int32")):
    B = T.alloc_buffer((4,), "int32")
    for i in range(4):
        with T.block("B"):
            vi = T.axis.spatial(4, i)
            B[vi] = A[vi]
    for i in range(4):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            T.reads(B[vi], X[0:4])
            T.writes(C[vi])
            C[vi] = B[vi] + T.call_extern("int32", "f", T.address_of(X[0]))


def test_buffers_that_foreign_code_reads_are_not_transformed() -> None:
    """address_of(X[0]) is no load: the called function relies on the layout."""
    sch, (b, c), _ = start(foreign, "B", "C")
    step = lambda: sch.transform_layout(c, ("read", 1), lambda i: (i // 2, i % 2))  # noqa: E731
    check_refused(sch, step, "opaque-use", "a pointer to X is taken")
    message = "what is accessed through a pointer cannot be inferred"
    check_refused(sch, lambda: sch.compute_inline(b), "not-analysable", message)


@pytest.mark.parametrize("source", [3, None, "gmm", [matmul], {"main": 3}])
def test_schedule_refuses_sources_that_are_no_programs(source: object) -> None:
    with pytest.raises(MetaschedError, match=r"a program is a PrimFunc, an IRModule or a mapping"):
        Schedule(source)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (lambda sch: sch.get_loops(4), "block takes BlockRV or str, not int 4"),
        (lambda sch: sch.cache_read("C", "A", 3), "storage_scope takes str, not int 3"),
        (lambda sch: sch.sample_categorical([1, 2], [0.5, "x"]), r"takes .*Sequence\[float\], not"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(step, said) -> None:
    sch = Schedule(matmul)
    check_refused(sch, lambda: step(sch), "wrong-argument", said)


def test_a_list_of_handles_in_place_of_one_is_named() -> None:
    sch = Schedule(matmul)
    loops = sch.get_loops("C")
    said = "loop takes LoopRV, not a list of 3 LoopRV; give one of them"
    check_refused(sch, lambda: sch.parallel(loops), "wrong-argument", said)
    assert str(loops) == "[<LoopRV>, <LoopRV>, <LoopRV>]"
    assert str(sch.get_block("C")) == "<BlockRV>"


def test_a_factor_that_is_no_integer_is_refused() -> None:
    sch = Schedule(matmul)
    i, *_ = sch.get_loops("C")
    check_refused(
        sch, lambda: sch.split(i, [None, 2.5]), "bad-factor", r"the factor 2\.5 is no integer"
    )
    check_refused(
        sch, lambda: sch.split(i, [None, "a"]), "bad-factor", r"the factor .*a.* is no integer"
    )
