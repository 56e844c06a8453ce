"""Schedules in the style of TVM's users, each a regression test."""

from __future__ import annotations

from oracle import check_numbers, check_refused, check_trace

from metasched.ir.verify import verify
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T


@T.prim_func
def centred(A: T.Buffer((4, 20), "float32"), O: T.Buffer((4, 20), "float32")):
    S = T.alloc_buffer((4,))
    for i, k in T.grid(4, 20):
        with T.block("S"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + A[vi, vk]
    for i, k in T.grid(4, 20):
        with T.block("O"):
            vi, vk = T.axis.remap("SS", [i, k])
            O[vi, vk] = A[vi, vk] * T.float32(20) - S[vi]


def test_a_block_of_threads_computes_what_it_reads_alone() -> None:
    """Thread blocks do not wait for each other, so none may fill a buffer for another."""
    sch = Schedule(centred, check=True)
    i, _ = sch.get_loops("O")
    sch.bind(i, "blockIdx.x")
    sch.compute_at("S", i)
    assert len(sch.get_loops("S")) == 2
    sch.set_scope("S", 0, "shared")
    for name in ("O", "S"):
        _, lanes = sch.split(sch.get_loops(name)[-1], [None, 8])
        sch.bind(lanes, "threadIdx.x")
    verify(sch.mod)
    check_numbers(centred, sch.mod)
    check_trace(centred, sch)


def test_partial_sums_in_a_local_scope_are_private_to_a_thread() -> None:
    sch = Schedule(centred, check=True)
    rf = sch.rfactor(sch.split(sch.get_loops("S")[1], [None, 5])[1], 0)
    lanes = sch.get_loops("S")[-1]
    sch.bind(lanes, "threadIdx.x")
    error = check_refused(
        sch, lambda: sch.compute_at(rf, lanes), "carried-dependence", "iterations of loop k_1"
    )
    assert "first give each thread or block its own memory (set_scope)" in str(error)
    sch.set_scope(rf, 0, "local")
    sch.compute_at(rf, lanes)
    check_numbers(centred, sch.mod)
    check_trace(centred, sch)


@T.prim_func
def conv(
    X: T.Buffer((6, 4), "float32"),
    W: T.Buffer((3, 4, 5), "float32"),
    Y: T.Buffer((6, 5), "float32"),
):
    for h, o, i, c in T.grid(6, 5, 3, 4):
        with T.block("Y"):
            vh, vo, vi, vc = T.axis.remap("SSRR", [h, o, i, c])
            with T.init():
                Y[vh, vo] = T.float32(0)
            Y[vh, vo] = (
                Y[vh, vo]
                + T.if_then_else(1 <= vh + vi and vh + vi < 7, X[vh + vi - 1, vc], T.float32(0))
                * W[vi, vc, vo]
            )


def test_a_padded_convolution_becomes_a_product_of_whole_tiles() -> None:
    """The padded steps of the reduction add 0 * 0 for each value of the border's condition."""
    sch = Schedule(conv, check=True)
    for side in (("read", 0), ("read", 1), ("write", 0)):
        sch.reindex("Y", side)
    sch.transform_layout("Y", ("read", 0), lambda h, i, c: (h, i * 4 + c))
    sch.transform_layout("Y", ("read", 1), lambda o, i, c: (i * 4 + c, o))
    sch.transform_block_layout("Y", lambda h, o, i, c: (h, o, i * 4 + c))
    sch.pad_einsum("Y", [8, 8, 8])
    assert [v.dom.extent for v in sch.get(sch.get_block("Y")).iter_vars] == [8, 8, 16]
    verify(sch.mod)
    check_numbers(conv, sch.mod, compiled=True)
    check_trace(conv, sch)
