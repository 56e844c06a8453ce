"""One table with a proof of every primitive; a primitive without a row fails the suite.

Each row makes a small schedule in which the primitive takes part. Of all the same is checked: the
module verifies after every step, its script is the golden one, it computes what it did before,
interpreted and compiled, and its trace replays from JSON, as Python and simplified.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from oracle import check_golden, check_transform
from schedule.programs import (
    box,
    convolution,
    elementwise,
    matmul,
    matmul_relu,
    padded,
    quantized,
    softmax,
    strided,
    symbolic,
    triangle_product,
    two_outputs,
)
from schedule.test_found import double

import metasched
from metasched.ir.func import PrimFunc
from metasched.schedule.instruction import PRIMITIVES
from metasched.schedule.intrinsics import TensorIntrin
from metasched.schedule.schedule import Schedule
from metasched.script import tir as T
from metasched.script.printer import script


@T.prim_func
def row_sums(A: T.Buffer((4, 6), "int32"), E: T.Buffer((4,), "int32"), D: T.Buffer((4,), "int32")):
    C = T.alloc_buffer((4,), "int32")
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = 0
            C[vi] = C[vi] + A[vi, vk]
    for i in range(4):
        with T.block("D"):
            vi = T.axis.spatial(4, i)
            D[vi] = C[vi] + E[vi]


@T.prim_func
def wavefront(A: T.Buffer((6, 7), "int32")):
    for i, j in T.grid((1, 6), (1, 6)):
        with T.block("A"):
            A[i, j] = A[i - 1, j + 1] + A[i, j - 1] * 2


@T.prim_func
def band(A: T.Buffer((6, 7), "int32"), B: T.Buffer((6, 7), "int32")):
    for i, j in T.grid(6, 7):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.where(i <= j and j < i + 3)
            B[vi, vj] = A[vi, vj] * 2


@T.prim_func
def by_turns(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32")):
    B = T.alloc_buffer((1,), "int32")
    for i in range(6):
        with T.block("B"):
            B[0] = A[i]
        with T.block("C"):
            C[i] = B[0] * 2


@T.prim_func
def running_mean(A: T.Buffer((6,), "int32"), C: T.Buffer((6,), "int32")):
    s = T.alloc_buffer((1,), "int32")
    with T.block("first"):
        s[0] = 0
    for i in range(6):
        with T.block("sum"):
            s[0] = s[0] + A[i]
        with T.block("C"):
            C[i] = s[0] // (i + 1)


@T.prim_func
def solved(A: T.Buffer((6, 6), "int32"), X: T.Buffer((6,), "int32")):
    for i in range(6):
        for k in range(i):
            with T.block("update"):
                vi, vk = T.axis.remap("SR", [i, k])
                X[vi] -= A[vi, vk] * X[vk]
        with T.block("finish"):
            X[i] = X[i] * A[i, i]


@T.prim_func
def closure(A: T.Buffer((6, 6), "int32")):
    for k, i, j in T.grid(6, 6, 6):
        with T.block("A"):
            A[i, j] = T.max(A[i, j], A[i, k] * A[k, j])


def pivoted(sch: Schedule) -> None:
    """Cut at row k, so that the rows before and after it run in parallel."""
    k, i, _ = sch.get_loops("A")
    before, _, after = sch.partition_at(k, i, 0)
    sch.parallel(before)
    sch.parallel(after)


def skewed_rows(sch: Schedule) -> None:
    """Skew, so that the rows of each diagonal run in parallel."""
    i, j = sch.get_loops("A")
    j = sch.skew(i, j, 2)
    sch.reorder(j, i)
    sch.parallel(i)


@T.prim_func
def plain_loops(A: T.Buffer((6, 7), "int32"), S: T.Buffer((6,), "int32")):
    for i in range(6):
        S[i] = 0
        for j in range(7):
            S[i] = S[i] + A[i, j]


@T.prim_func
def two_steps(A: T.Buffer((8,), "int32"), B: T.Buffer((8,), "int32"), C: T.Buffer((8,), "int32")):
    for i in range(7):
        with T.block("B"):
            B[i] = A[i] + A[i + 1]
    for i in range(6):
        with T.block("C"):
            C[i] = B[i] * B[i + 1]


def one_behind(sch: Schedule) -> None:
    """Merge two loops, of which the second needs what the first computes one iteration later."""
    (first,), (second,) = sch.get_loops("B"), sch.get_loops("C")
    sch.merge(first, sch.delay(second, 1))


@T.prim_func
def matrix_rows(A: T.Buffer((6, 6), "int32"), B: T.Buffer((6, 4), "int32")):
    for i, k in T.grid(2, 6):
        for r, j in T.grid(2, 4):
            with T.block("product"):
                vi = T.axis.spatial(4, i * 2 + r)
                vj, vk = T.axis.remap("SR", [j, k])
                B[vi, vj] += A[vi, vk]


def cut_and_joined(sch: Schedule) -> None:
    """A loop in two parts, which become one loop again."""
    parts = sch.cut_loop(sch.get_loops("product")[1], 4)
    sch.join_loops(*parts)


def of_square(sch: Schedule) -> None:
    """A triangle as a square in tiles, of which those outside of the triangle are left out."""
    sch.overcompute_box("X")
    i, j, k = sch.get_loops("X")
    (io, ii), (jo, ji) = sch.split(i, [None, 4]), sch.split(j, [None, 2])
    sch.reorder(io, jo, k, ii, ji)
    sch.skip_unused(jo)


@T.prim_func
def paired_products(
    A: T.Buffer((4, 6), "float32"), B: T.Buffer((4, 6), "float32"), C: T.Buffer((4, 4), "float32")
):
    for i, j, k in T.grid(4, 4, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = T.float32(0)
            C[vi, vj] = C[vi, vj] + (A[vi, vk] * B[vj, vk] - B[vi, vk] * A[vj, vk])


@T.prim_func
def zero_points(
    A: T.Buffer((4, 6), "uint8"), B: T.Buffer((6, 5), "int8"), Z: T.Buffer((5,), "int32"),
    C: T.Buffer((4, 5), "int32"),
):  # fmt: skip
    for i, j, k in T.grid(4, 5, 6):
        with T.block("C"):
            vi, vj, vk = T.axis.remap("SSR", [i, j, k])
            with T.init():
                C[vi, vj] = 0
            C[vi, vj] = C[vi, vj] + (T.cast(A[vi, vk], "int32") - 121) * (
                T.cast(B[vk, vj], "int32") - Z[vj]
            )


@T.prim_func
def update(A: T.Buffer((4, 6), "int32"), X: T.Buffer((4, 6), "int32")):
    for i, j in T.grid(4, 6):
        with T.block("A"):
            vi, vj = T.axis.remap("SS", [i, j])
            T.reads(A[vi, vj], X[vi, vj])
            T.writes(A[vi, vj])
            A[vi, vj] = A[vi, vj] * 2 + vi


@T.prim_func
def running(A: T.Buffer((3, 30), "int32"), B: T.Buffer((3, 30), "int32")):
    for i, j in T.grid(3, 30):
        with T.block("B"):
            vi, vj = T.axis.spatial(3, i), T.axis.scan(30, j)
            B[vi, vj] = T.if_then_else(vj == 0, A[vi, 0], B[vi, vj - 1] + A[vi, vj])


@T.prim_func
def histogram(A: T.Buffer((20,), "int32"), H: T.Buffer((6, 2), "int32")):
    for i, j in T.grid(20, 2):
        with T.block("H"):
            vi, vj = T.axis.reduce(20, i), T.axis.spatial(2, j)
            H[A[vi] % 6, vj] = H[A[vi] % 6, vj] + vi


@T.prim_func
def gather(A: T.Buffer((24,), "int32"), B: T.Buffer((4, 6), "int32")):
    for i, j in T.grid(4, 6):
        with T.block("B"):
            vi, vj = T.axis.remap("SS", [i, j])
            B[vi, vj] = A[(vi * 6 + vj) // 2] + A[(vi * 6 + vj) // 2]


@T.prim_func
def softened(
    A: T.Buffer((6,), "float32"), B: T.Buffer((4, 6), "float32"), C: T.Buffer((4,), "float32")
):
    for i, j in T.grid(4, 6):
        with T.block("C"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] = C[vi] + B[vi, vj] / (A[vj] + T.float32(2)) * (T.float32(1) / A[vj])


@T.prim_func
def weighted(
    X: T.Buffer((3, 10), "float32"), V: T.Buffer((10, 2), "float32"), Y: T.Buffer((3, 2), "float32")
):
    M = T.alloc_buffer((3,), "float32")
    E = T.alloc_buffer((3, 10), "float32")
    S = T.alloc_buffer((3,), "float32")
    W = T.alloc_buffer((3, 2), "float32")
    for i, j in T.grid(3, 10):
        with T.block("M"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                M[vi] = T.float32("-inf")
            M[vi] = T.max(M[vi], X[vi, vj])
    for i, j in T.grid(3, 10):
        with T.block("E"):
            vi, vj = T.axis.remap("SS", [i, j])
            E[vi, vj] = T.exp2(X[vi, vj] - M[vi])
    for i, j in T.grid(3, 10):
        with T.block("S"):
            vi, vj = T.axis.remap("SR", [i, j])
            with T.init():
                S[vi] = T.float32(0)
            S[vi] = S[vi] + E[vi, vj]
    for i, k, j in T.grid(3, 2, 10):
        with T.block("W"):
            vi, vk, vj = T.axis.remap("SSR", [i, k, j])
            with T.init():
                W[vi, vk] = T.float32(0)
            W[vi, vk] = W[vi, vk] + E[vi, vj] * V[vj, vk]
    for i, k in T.grid(3, 2):
        with T.block("Y"):
            vi, vk = T.axis.remap("SS", [i, k])
            Y[vi, vk] = W[vi, vk] * T.float32(0.5) + S[vi]


def rolled_up(s: Schedule) -> None:
    around = s.rolling_update([s.get_loops(name)[-1] for name in "MESW"], 4)
    s.annotate(around, "pass", 1)


@T.prim_func
def zeros_between(A: T.Buffer((6,)), W: T.Buffer((4,)), C: T.Buffer((8,))):
    T.func_attr({"tir.finite": True})
    for i, k in T.grid(8, 4):
        with T.block("C"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                C[vi] = T.float32(0)
            C[vi] += T.if_then_else((vi + vk) % 2 == 0, A[(vi + vk) // 2], T.float32(0)) * W[vk]


@T.prim_func
def triangle(A: T.Buffer((4, 6), "float32"), C: T.Buffer((4,), "float32")):
    for i in range(4):
        with T.block("start"):
            vi = T.axis.spatial(4, i)
            C[vi] = 0.0
    for i, k in T.grid(4, 6):
        with T.block("C"):
            vi = T.axis.spatial(4, i)
            vk = T.axis.opaque(6, k)
            C[vi] = C[vi] + T.if_then_else(vk <= vi, A[vi, vk], 0.0)


def of(name: str, nth: int, step: Callable[..., Any]) -> Callable[[Schedule], Any]:
    """A step on loop `nth` of a block."""
    return lambda s: step(s, s.get_loops(name)[nth])


def sampled(s: Schedule) -> None:
    v = s.sample_categorical([2, 4, 8], [0.2, 0.3, 0.5])
    s.require(v <= 4)
    s.split(s.get_loops("C")[0], [None, v])


def tiled(s: Schedule) -> None:
    s.split(s.get_loops("C")[0], s.sample_perfect_tile(s.get_loops("C")[0], n=3))


def run_on(s: Schedule) -> None:
    i = s.get_loops("C")[1]
    tile = s.sample_padded_tile(i, 2, 4, [6, 8], [0.1, 0.9])
    s.overcompute("C", [1, tile[0] * tile[1], 1])
    s.split(i, tile)


def partitioned(s: Schedule) -> None:
    i = s.get_loops("C")[0]
    s.split(i, s.sample_partitioned_tile(i, 2, partition_pos=1, innerpart_factor=2))


def rolled(s: Schedule) -> None:
    i, _, _ = (loops := s.get_loops("Z"))[1], *loops[2:4]
    s.compute_at("P", i)
    s.rolling_buffer("P", 0)


def queried(s: Schedule) -> None:
    root = s.get_block("root")
    for name in ("get_child_blocks", "get_output_blocks"):
        for block in getattr(s, name)(root):
            s.annotate(block, name, 1)
    for block in (*s.get_producers("C"), *s.get_consumers("B")):
        s.annotate(block, "beside", 1)


def read_at(s: Schedule) -> None:
    s.read_at(s.get_loops("C")[0], "C", 0, "local")


def write_at(s: Schedule) -> None:
    s.write_at(s.get_loops("C")[1], "C", 0, "local")


def tensorized(s: Schedule) -> None:
    TensorIntrin.register("test.double", double, double)
    s.tensorize(s.split(s.get_loops("B")[1], [None, 4])[1], "test.double")


def merged(s: Schedule) -> None:
    s.merge(s.get_loops("B")[1], s.get_loops("C")[1])


def parted(s: Schedule) -> None:
    merged(s)
    s.fission(s.get_loops("B")[1])


def halves(s: Schedule) -> tuple[Any, Any]:
    """The loop over earlier rows, and the loop over the rows of a block around it."""
    _, inside = s.split(s.get_loops("update")[0], [None, 2])
    return s.get_loops("update")[2], inside


def summed_apart(s: Schedule) -> None:
    s.decompose_outputs("S")
    s.fission(s.get_loops("S")[1])
    s.privatize_reduction("S")


def decomposed(s: Schedule) -> None:
    s.decompose_reduction("C", s.get_loops("C")[2])


def depadded(s: Schedule) -> None:
    s.decompose_padding("C", s.get_loops("C")[0])


def marked(s: Schedule) -> None:
    s.unroll(s.get_loops("B")[1])
    s.enter_postproc()


def unnoted(s: Schedule) -> None:
    s.annotate("B", "a", 1)
    s.annotate("B", "b", [2, "c"])
    s.unannotate("B", "a")


def at_drawn(s: Schedule) -> None:
    s.compute_at("B", s.sample_compute_location("B"))


def around(name: str, step: str, **more: Any) -> Callable[[Schedule], Any]:
    """compute_at or its mirror to the first loop of another block."""
    other = "C" if name == "B" else "B"
    return lambda s: getattr(s, step)(name, s.get_loops(other)[0], **more)


ROWS: dict[str, tuple[PrimFunc, Callable[[Schedule], Any]]] = {
    "add_unit_loop": (elementwise, lambda s: s.add_unit_loop("B")),
    "annotate": (elementwise, lambda s: s.annotate("B", "note", {"a": [1, 2.5]})),
    "annotate_buffer_access": (
        strided,
        lambda s: s.annotate_buffer_access("P", 0, "read", lambda i: ((i - 1, i + 2),)),
    ),
    "bind": (elementwise, of("B", 0, lambda s, i: s.bind(i, "threadIdx.x"))),
    "blockize": (matmul, of("C", 1, lambda s, j: s.blockize(j))),
    "unblockize": (elementwise, lambda s: s.unblockize("B")),
    "cache_index": (gather, lambda s: s.cache_index("B", "local")),
    "cache_inplace": (update, lambda s: s.cache_inplace("A", 0, "local")),
    "cache_read": (matmul, lambda s: s.cache_read("C", "A", "local")),
    "cache_update": (
        matrix_rows,
        lambda s: s.cache_update(s.get_loops("product")[1], "local"),
    ),
    "cache_values": (softened, lambda s: s.cache_values("C", "local")),
    "cache_write": (matmul, lambda s: s.cache_write("C", 0, "local")),
    "compute_at": (elementwise, around("B", "compute_at", preserve_unit_loops=True)),
    "compute_inline": (elementwise, lambda s: s.compute_inline("B")),
    "cut_loop": (solved, lambda s: s.cut_loop(*halves(s))),
    "decompose_padding": (padded, depadded),
    "decompose_reduction": (matmul, decomposed),
    "decompose_scan": (
        running,
        of("B", 1, lambda s, j: s.decompose_scan(s.split(j, [None, 8])[0])),
    ),
    "enter_postproc": (elementwise, marked),
    "decompose_outputs": (two_outputs, lambda s: s.decompose_outputs("S")),
    "expand_buffer": (by_turns, lambda s: s.expand_buffer("B", 0, s.get_loops("B")[0])),
    "chain_sum": (paired_products, lambda s: s.chain_sum("C")),
    "expand_reduction": (zero_points, lambda s: s.expand_reduction("C")),
    "expand_running_value": (
        running_mean,
        of("sum", 0, lambda s, i: s.expand_running_value("sum", 0, i)),
    ),
    "fission": (elementwise, parted),
    "fuse": (matmul, lambda s: s.fuse(*s.get_loops("C")[:2])),
    "fuse_reduction_epilogue": (row_sums, lambda s: s.fuse_reduction_epilogue("C", "D")),
    "get_block": (elementwise, lambda s: s.annotate(s.get_block("C"), "found", 1)),
    "get_child_blocks": (elementwise, queried),
    "get_consumers": (elementwise, queried),
    "get_loops": (elementwise, lambda s: s.unroll(s.get_loops("C")[1])),
    "get_output_blocks": (elementwise, queried),
    "get_producers": (elementwise, queried),
    "join_loops": (matrix_rows, cut_and_joined),
    "keep_in_result": (by_turns, lambda s: s.keep_in_result("C", "B")),
    "loop_partition": (elementwise, of("B", 0, lambda s, i: s.loop_partition(i, [2, None]))),
    "merge": (elementwise, merged),
    "overcompute": (matmul_relu, lambda s: s.overcompute("C", [3, 4, 1])),
    "narrow_dtype": (quantized, lambda s: s.narrow_dtype("B", 0, "uint8", -121)),
    "overcompute_box": (triangle_product, lambda s: s.overcompute_box("X")),
    "pad_einsum": (matmul, lambda s: s.pad_einsum("C", [5, 4, 5])),
    "parallel": (matmul, of("C", 0, lambda s, i: s.parallel(i))),
    "privatize_reduction": (two_outputs, summed_apart),
    "partition_at": (closure, pivoted),
    "privatize_update": (
        histogram,
        of("H", 0, lambda s, i: s.privatize_update(s.split(i, [3, None])[0])),
    ),
    "read_at": (matmul, read_at),
    "reindex": (convolution, lambda s: s.reindex("Z", ("read", 0))),
    "reindex_cache_read": (
        matmul,
        lambda s: s.reindex_cache_read("C", 0, "local", lambda i, j, k: (k, i)),
    ),
    "reindex_cache_write": (
        matmul,
        lambda s: s.reindex_cache_write("C", 0, "local", lambda i, j, k: (j, i)),
    ),
    "reorder": (matmul, lambda s: s.reorder(*reversed(s.get_loops("C")))),
    "right_looking": (solved, lambda s: s.right_looking(s.get_loops("update")[0])),
    "skew": (wavefront, skewed_rows),
    "narrow_loop": (band, lambda s: s.parallel(s.narrow_loop(s.get_loops("B")[1]))),
    "delay": (two_steps, one_behind),
    "enclose": (plain_loops, lambda s: s.enclose("root")),
    "skip_unused": (triangle_product, of_square),
    "reorder_block_iter_var": (matmul, lambda s: s.reorder_block_iter_var("C", [2, 0, 1])),
    "require": (matmul, sampled),
    "reverse_compute_at": (elementwise, around("C", "reverse_compute_at")),
    "reverse_compute_inline": (elementwise, lambda s: s.reverse_compute_inline("C")),
    "rfactor": (matmul, of("C", 2, lambda s, k: s.rfactor(s.split(k, [None, 4])[1], 0))),
    "rolling_buffer": (convolution, rolled),
    "rolling_update": (weighted, rolled_up),
    "sample_categorical": (matmul, sampled),
    "sample_compute_location": (elementwise, at_drawn),
    "sample_padded_tile": (matmul_relu, run_on),
    "sample_partitioned_tile": (matmul, partitioned),
    "sample_perfect_tile": (matmul, tiled),
    "separate_window": (box, of("B", 3, lambda s, j: s.separate_window(j))),
    "set_scope": (elementwise, lambda s: s.set_scope("B", "B", "local")),
    "split": (symbolic, of("C", 0, lambda s, i: s.split(i, [None, 4]))),
    "skip_zeros": (triangle, lambda s: s.skip_zeros("C")),
    "step_over_zeros": (zeros_between, of("C", 1, lambda s, k: s.step_over_zeros(k))),
    "storage_align": (elementwise, lambda s: s.storage_align("B", 0, -2, 16, 4)),
    "tensorize": (elementwise, tensorized),
    "transform_block_layout": (
        elementwise,
        lambda s: s.transform_block_layout("B", lambda i, j: (j // 3, i * 3 + j % 3)),
    ),
    "transform_layout": (
        elementwise,
        lambda s: s.transform_layout("B", ("write", 0), lambda i, j: (j // 5, i, j % 5), 7.0),
    ),
    "unannotate": (elementwise, unnoted),
    "unroll": (matmul, of("C", 2, lambda s, k: s.unroll(k))),
    "unsafe_hide_buffer_access": (update, lambda s: s.unsafe_hide_buffer_access("A", "read", [1])),
    "unsafe_set_dtype": (softmax, lambda s: s.unsafe_set_dtype("E", 0, "int64")),
    "vectorize": (matmul_relu, of("D", 1, lambda s, j: s.vectorize(j))),
    "widen_dtype": (softmax, lambda s: s.widen_dtype("E", 0, "float64")),
    "write_at": (matmul, write_at),
}


def test_every_primitive_has_its_row() -> None:
    missing = sorted(set(PRIMITIVES) - ROWS.keys())
    assert not missing, f"ROWS of this file has no proof of {', '.join(missing)}"
    assert ROWS.keys() == set(PRIMITIVES)


@pytest.mark.parametrize("name", ROWS)
def test_proof(name: str) -> None:
    func, steps = ROWS[name]
    sch = Schedule(func, seed=3, check=True)
    steps(sch)
    assert name in {entry.kind.name for entry in sch.trace}
    check_golden(f"proof_{name}", f"{script(func)}\n->\n\n{script(sch.mod)}")
    check_transform(func, sch, compiled=name != "bind")


REFUSALS = {"error": 0, "Failure": 0, "ScheduleError": 1}
"""Calls that make a refusal, and where their reason stands among the arguments."""
COMPOSED = {"producer-outside", "consumer-outside"}
"""Reasons put together from parts (`f"{what}-outside"`)."""


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _reasons(folder: Path) -> dict[str, str]:
    """Every reason of a refusal, with a place in the code that raises it."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            position = REFUSALS.get(called)
            if position is not None and len(node.args) > position:
                for reason in _texts(node.args[position]):
                    found[reason] = f"{path.relative_to(folder)}:{node.lineno}"
    return found


def test_every_reason_is_met_by_a_test_on_its_message() -> None:
    """Each reason is a string in a test, mostly in `check_refused(..., reason, message)`."""
    product = Path(metasched.__file__).parent
    wanted = {r: p for part in ("schedule", "analysis") for r, p in
              _reasons(product / part).items()} | dict.fromkeys(COMPOSED, "composed")  # fmt: skip
    assert len(wanted) > 150
    texts = "\n".join(
        path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py")
        if path != Path(__file__)
    )  # fmt: skip
    tested = {quoted[1:-1] for quoted in re.findall(r'"[a-z-]+"', texts)}
    untested = {r: p for r, p in wanted.items() if r not in tested}
    assert not untested, f"no test matches the message of these refusals: {untested}"
